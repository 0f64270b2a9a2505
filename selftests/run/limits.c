/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Programs with limits of memory: what they freed is there again, for memory of any kind, and
 * large allocations take no more than libc's do. It knows nothing of hetmem.
 *
 * usage: limits [spec]	realloc() of a spec's memory copies, so growing is left out
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

/* As much more as @size. */
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

/* In a child: ten blocks are freed under a limit of 70 MiB. */
static bool after_free(bool (*use)(void))
{
	const pid_t pid = fork();
	void *p[10];
	int status, i;

	if (!pid) {
		if (!set_limit(RLIMIT_AS, 70 * MIB))
			_exit(2);
		for (i = 0; i < 10; i++) {
			p[i] = malloc(6 * MIB);
			if (p[i])
				memset(p[i], 1, 6 * MIB);
		}
		for (i = 0; i < 10; i++)
			free(p[i]);
		_exit(!use());
	}
	return waitpid(pid, &status, 0) == pid && !status;
}

/* Less than twice the block is left. */
static bool grows(void)
{
	const pid_t pid = fork();
	char *p, *more;
	int status;

	if (!pid) {
		p = malloc(100 * MIB);
		if (!p)
			_exit(2);
		p[100 * MIB - 1] = 7;
		/* Something else is behind it. */
		mmap(p + 102 * MIB, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (!set_limit(RLIMIT_DATA, 40 * MIB))
			_exit(2);
		more = realloc(p, 110 * MIB);
		_exit(!more || more[100 * MIB - 1] != 7);
	}
	return waitpid(pid, &status, 0) == pid && !status;
}

static bool shrinks(void)
{
	const pid_t pid = fork();
	char *p;
	int status;

	if (!pid) {
		p = malloc(100 * MIB);
		if (!p || !set_limit(RLIMIT_AS, MIB))
			_exit(2);
		p[1000] = 7;
		p = realloc(p, large);
		if (!p || p[1000] != 7)
			_exit(1);
		p = realloc(p, large - 5000);
		_exit(!p || p[1000] != 7);
	}
	return waitpid(pid, &status, 0) == pid && !status;
}

/* The most memory that was there at once. */
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
	ok(spec || grows(), "a block grows where there is no room for two");
	ok(shrinks(), "a block shrinks where there is no room at all");
	ok(stays_small(), "small allocations stay small");
	errno = 0;
	ok(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) ==
	   MAP_FAILED && errno == EINVAL, "an offset that is no page is wrong");
	return tap_end();
}
