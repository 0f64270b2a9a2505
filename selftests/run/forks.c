/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Threads that allocate while one forks, vfork with exec, posix_spawn: a child has copies of all
 * blocks, and can allocate, resize and free. Nothing hangs.
 */
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>

#include "tap.h"

#define MIB	((size_t)1 << 20)
#define THREADS	3
#define FORKS	24

static atomic_bool stop;
static atomic_int wrong;

/* Allocates, resizes and frees until it is stopped. */
static void *churn(void *arg)
{
	unsigned int seed = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		const size_t size = (1 + rand_r(&seed) % 12) * MIB;
		unsigned char *p = malloc(size), *q;

		if (!p)
			continue;
		p[0] = p[size - 1] = seed;
		q = realloc(p, size / 2 + MIB);
		p = q ? q : p;
		if (p[0] != (unsigned char)seed)
			atomic_fetch_add(&wrong, 1);
		free(p);
	}
	return NULL;
}

/* Exit status: 0 if the child has what its parent had. */
static int as_child(unsigned char **p, size_t nr, int depth)
{
	unsigned char *q;
	pid_t child;
	size_t i;
	int status;

	for (i = 0; i < nr; i++) {
		if (p[i][0] != i + 1 || p[i][5 * MIB - 1] != i + 1)
			return 1;
		memset(p[i], 0xee, 5 * MIB);
	}
	for (i = 0; i < 8; i++) {
		q = calloc(1, (3 + i) * MIB);
		if (!q || q[0] || q[(3 + i) * MIB - 1])
			return 2;
		q[0] = 9;
		q = realloc(q, (24 - i) * MIB);
		if (!q || q[0] != 9)
			return 3;
		free(q);
	}
	p[0] = realloc(p[0], 90 * MIB);
	if (!p[0] || p[0][0] != 0xee)
		return 4;
	if (depth) {
		for (i = 0; i < nr; i++)
			p[i][0] = p[i][5 * MIB - 1] = i + 1;
		child = fork();
		if (!child)
			_exit(as_child(p, nr, depth - 1));
		if (waitpid(child, &status, 0) != child || status)
			return 5;
	}
	for (i = 0; i < nr; i++)
		free(p[i]);
	return 0;
}

static void forks(void)
{
	unsigned char *p[4];
	pthread_t threads[THREADS];
	int i, status, bad = 0;
	size_t k;
	pid_t child;

	for (k = 0; k < 4; k++) {
		p[k] = malloc(5 * MIB);
		need(p[k], "memory");
		memset(p[k], k + 1, 5 * MIB);
	}
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(i + 1)), "a thread");
	for (i = 0; i < FORKS; i++) {
		child = fork();
		if (!child)
			_exit(as_child(p, 4, i % 6 == 0));
		if (waitpid(child, &status, 0) != child || status) {
			printf("# child %d: status %x\n", i, status);
			bad++;
		}
	}
	atomic_store(&stop, true);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is(bad, 0, "%d children of a process with %d threads", FORKS, THREADS);
	is(atomic_load(&wrong), 0, "the threads' contents");
	for (k = 0; k < 4; k++)
		bad += p[k][0] != k + 1 || p[k][5 * MIB - 1] != k + 1;
	is(bad, 0, "the parent's contents");
	for (k = 0; k < 4; k++)
		free(p[k]);
}

static void vforks(void)
{
	static char *const args[] = { "true", NULL };
	extern char **environ;
	void *volatile p = malloc(4 * MIB);
	volatile int bad = 0, i;
	int status = -1;
	pid_t child;

	for (i = 0; i < 20; i++) {
		child = vfork();
		if (!child) {
			execv("/bin/true", args);
			_exit(9);
		}
		bad += waitpid(child, &status, 0) != child || status;
		p = realloc(p, (5 + i) * MIB);
	}
	is(bad, 0, "vfork and exec");
	bad = posix_spawn(&child, "/bin/true", NULL, NULL, args, environ);
	ok(!bad && waitpid(child, &status, 0) == child && !status, "posix_spawn");
	free(p);
}

int main(void)
{
	forks();
	vforks();
	return tap_end();
}
