/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counts what the library executes, in basic blocks of some five instructions. The library
 * of such a program is compiled with -fsanitize-coverage=trace-pc: see counted_tests in the
 * Makefile. The functions of the C library that take longer for more bytes are wrapped, and
 * count as a block for each 32 bytes. The rest of it and the driver do not count.
 *
 * The count depends on the compiler, and neither on the machine nor on its load.
 */
#ifndef HETMEM_SELFTESTS_COUNT_BLOCKS_H
#define HETMEM_SELFTESTS_COUNT_BLOCKS_H

#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

/* Whether this thread's blocks count, and how many have. */
static __thread bool counts_blocks;
static __thread unsigned long nr_blocks;

/* An allocation of the C library. */
#define BLOCKS_OF_MALLOC	20

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	nr_blocks += counts_blocks;
}

static void count_bytes(size_t n)
{
	if (counts_blocks)
		nr_blocks += 1 + n / 32;
}

#define COUNTED(type, name, params, bytes, ...)				\
type __real_##name params;						\
type __wrap_##name params;						\
type __wrap_##name params						\
{									\
	count_bytes(bytes);						\
	return __real_##name(__VA_ARGS__);				\
}

COUNTED(void *, memset, (void *p, int c, size_t n), n, p, c, n)
COUNTED(void *, memcpy, (void *to, const void *from, size_t n), n, to, from, n)
COUNTED(void *, memmove, (void *to, const void *from, size_t n), n, to, from, n)
COUNTED(int, memcmp, (const void *a, const void *b, size_t n), n, a, b, n)
COUNTED(void *, malloc, (size_t n), 32 * BLOCKS_OF_MALLOC, n)
COUNTED(void *, calloc, (size_t nr, size_t n), 32 * BLOCKS_OF_MALLOC + nr * n, nr, n)
COUNTED(void *, realloc, (void *p, size_t n), 32 * BLOCKS_OF_MALLOC + malloc_usable_size(p), p, n)

/* Memory that parent and child share, zeroed. */
static void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "memory");
	return p;
}

/*
 * Runs @work(@arg) in a child, whose memory ends with it. Returns whether the child ended by
 * exit(0).
 */
static bool in_child(void (*work)(const void *arg), const void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		work(arg);
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
		!WEXITSTATUS(status);
}

/* Whether the library of this program counts. A tree that was built otherwise must not pass. */
static bool library_counts(void)
{
	nr_blocks = 0;
	counts_blocks = true;
	hetmem_last_error();
	counts_blocks = false;
	return nr_blocks > 0;
}

#endif /* HETMEM_SELFTESTS_COUNT_BLOCKS_H */
