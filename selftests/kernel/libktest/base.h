/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What has nothing to do with hetmem: sizes, memory filled with a pattern, children,
 * waiting, small files, descriptors. Functions of libktest return 0 or a negative errno
 * unless they say otherwise.
 */
#ifndef LIBKTEST_BASE_H
#define LIBKTEST_BASE_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hetmem_fd.h"

#define KiB		1024UL
#define MiB		(1024 * KiB)
#define HUGE_SIZE	(2 * MiB)
#define NOBODY		65534

/* Outside of every user address space, 47 or 56 bits. */
#define KERNEL_ADDR	0xffff888000000000UL

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))
#endif

/* In a forked child: asserting there would run the fixture's teardown. */
#define CHILD_CHECK(cond)						\
	do {								\
		if (!(cond)) {						\
			fprintf(stderr, "# %s:%d: child: not true: %s (errno %d)\n", \
				__FILE__, __LINE__, #cond, errno);	\
			_exit(1);					\
		}							\
	} while (0)

size_t page_size(void);

/* Pages of @size bytes. */
#define NR(size)	((long)((size) / page_size()))

/* A kernel that checks itself is some thirty times slower. */
bool slow_kernel(void);

/* Bytes that a test moves about; never below 1 MiB. */
size_t test_size(void);
int test_rounds(int rounds);

/* The time of day, in nanoseconds, as events have it. */
uint64_t now_ns(void);

/* The time that this machine had, in milliseconds: see selftests/vm/clock.sh. */
long had_ms(void);

/* How long EVENTUALLY() waits: a value that only a test that fails waits for. */
#define PATIENCE_MS	30000

/* What closes or ends a little later than the call that asked for it. */
#define EVENTUALLY(cond)						\
	({								\
		long end_ = had_ms() + PATIENCE_MS;			\
		bool so_;						\
									\
		while (!(so_ = (cond)) && had_ms() < end_)		\
			usleep(5000); /* time: the pace of looks */	\
		so_;							\
	})

/* The pattern: each word of it tells @seed and its offset. */
uint64_t pattern_word(uint64_t seed, size_t offset);
void fill(void *p, size_t size, uint64_t seed);

/* Bytes into @p where the pattern breaks, -1 if it does not. */
long mismatch_at(const void *p, size_t size, uint64_t seed, size_t first_offset);
long mismatch(const void *p, size_t size, uint64_t seed);
bool all_zero(const void *p, size_t size);

/* Exit status of a child, 128 + signal if one killed it, or -errno. */
int child_status(pid_t pid);

/* Give up every privilege; the caller must be single-threaded. */
int become_nobody(void);

/* A pair of pipes by which parent and child take turns. */
struct turns {
	int to_child[2], to_parent[2];
};

int turns_init(struct turns *t);

/* False if the other side is gone. */
bool turn_wait(int pipe_end);
bool turn_pass(int pipe_end);
void turns_in_child(struct turns *t);
void turns_in_parent(struct turns *t);

/*
 * Counters in memory that processes share: who waits for one sleeps, so that many can
 * wait on few processors.
 */
void word_add(int *word);
int word_read(const int *word);
void word_wait(const int *word, int at_least);

/* The number in a file, -1 if it cannot be read. */
long read_long(const char *path);
int write_text(const char *path, const char *text);
int write_long(const char *path, long v);

/* revents of @fd, 0 if there are none within @timeout_ms. */
int poll_one(int fd, int timeout_ms);

#endif
