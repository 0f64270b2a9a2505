/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A program with limits of memory. It can use freed memory again, for mappings of any kind, and
 * its allocations need no more memory than libc's. The program does not know hetmem.
 *
 * usage: limits [spec]	realloc() of a spec's memory copies, so growing is left out
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tap.h"

#define KIB	((size_t)1 << 10)
#define MIB	((size_t)1 << 20)

static volatile size_t large = 50 * MIB;
static void *volatile hidden;

static size_t address_space(void)
{
	char text[64] = "";
	int fd = open("/proc/self/statm", O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);

	close(fd);
	return n > 0 ? strtoul(text, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

/* Allows @size bytes more than the process has now. */
static bool set_limit(int resource, size_t size)
{
	const struct rlimit limit = { address_space() + size, RLIM_INFINITY };

	return !setrlimit(resource, &limit);
}

static void *begin_thread(void *arg)
{
	return arg;
}

static bool begins_threads(void)
{
	pthread_t threads[6];
	int i, good = 1;

	for (i = 0; i < 6; i++)
		good &= !pthread_create(&threads[i], NULL, begin_thread, NULL) &&
			!pthread_join(threads[i], NULL);
	return good;
}

static bool maps(void)
{
	void *p = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p != MAP_FAILED && !munmap(p, large);
}

static bool allocates_large(void)
{
	hidden = malloc(large);
	free(hidden);
	return hidden;
}

static bool allocates_small(void)
{
	void *p[40];
	int i, good = 1;

	for (i = 0; i < 40; i++)
		good &= !!(p[i] = malloc(MIB));
	for (i = 0; i < 40; i++)
		free(p[i]);
	return good;
}

static bool in_child(bool (*test)(void))
{
	const pid_t pid = fork();
	int status;

	if (!pid)
		_exit(!test());
	return waitpid(pid, &status, 0) == pid && !status;
}

static bool (*use)(void);

/* Frees ten blocks under a limit of 70 MiB. */
static bool frees(void)
{
	void *p[10];
	int i;

	if (!set_limit(RLIMIT_AS, 70 * MIB))
		return false;
	for (i = 0; i < 10; i++) {
		p[i] = malloc(6 * MIB);
		if (p[i])
			memset(p[i], 1, 6 * MIB);
	}
	for (i = 0; i < 10; i++)
		free(p[i]);
	return use();
}

static bool after_free(bool (*next)(void))
{
	use = next;
	return in_child(frees);
}

/* Less than twice the block is left. */
static bool grows(void)
{
	char *p = malloc(100 * MIB);

	if (!p)
		return false;
	p[100 * MIB - 1] = 7;
	/* Another mapping follows the block. */
	mmap(p + 102 * MIB, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!set_limit(RLIMIT_DATA, 40 * MIB))
		return false;
	p = realloc(p, 110 * MIB);
	return p && p[100 * MIB - 1] == 7;
}

static bool shrinks(void)
{
	char *p = malloc(100 * MIB);

	if (!p || !set_limit(RLIMIT_AS, MIB))
		return false;
	p[1000] = 7;
	p = realloc(p, large);
	if (!p || p[1000] != 7)
		return false;
	p = realloc(p, large - 5000);
	return p && p[1000] == 7;
}

/* Ends the process at system calls of limits and files, as sandboxes do. */
static bool enter_sandbox(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	const struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static bool works_in_sandbox(void)
{
	int i;

	/* The first block opens a file. */
	if (!allocates_large() || !enter_sandbox())
		return false;
	for (i = 0; i < 10; i++) {
		hidden = malloc((3 + i) * MIB);
		if (!hidden)
			return false;
		memset(hidden, 1, MIB);
		hidden = realloc(hidden, (6 + i) * MIB);
		free(hidden);
	}
	return true;
}

/* The peak of resident memory. */
static size_t peak(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_SELF, &usage) ? SIZE_MAX : usage.ru_maxrss * KIB;
}

/* Allocations of 64 KiB are not as large as a huge page each. */
static bool stays_small(void)
{
	const size_t before = peak();
	char *p[200];
	size_t i;

	for (i = 0; i < 200; i++) {
		p[i] = malloc(64 * KIB);
		if (p[i])
			*p[i] = 1;
	}
	for (i = 0; i < 200; i++)
		free(p[i]);
	return peak() - before < 64 * MIB;
}

int main(int argc, char **argv)
{
	const bool spec = argc > 1 && !strcmp(argv[1], "spec");

	ok(after_free(allocates_large), "freed memory can be allocated");
	ok(after_free(allocates_small), "in small parts");
	ok(after_free(maps), "mapped");
	ok(after_free(begins_threads), "and be the stacks of threads");
	ok(spec || in_child(grows), "a block grows where there is no room for two");
	ok(in_child(shrinks), "a block shrinks where there is no room at all");
	ok(in_child(works_in_sandbox), "a sandbox that forbids files and limits is no obstacle");
	ok(stays_small(), "small allocations stay small");
	errno = 0;
	ok(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) ==
	   MAP_FAILED && errno == EINVAL, "an offset that is no page is wrong");
	return tap_end();
}
