// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What an allocation and a free cost by how many blocks there are: the
 * instructions that they take, which another process counts one by one, with a
 * thousand blocks and with a hundred thousand, live and as many free between
 * them. Logarithms of these are as 3 to 5; what is more than twice as much is
 * neither O(1) nor O(log n).
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "pool.h"

#define SAMPLES	21
#define FEWEST	1000
#define MOST	100000

/* What the two processes share. */
struct counted {
	volatile bool counts;
	volatile bool failed;
	unsigned int nr;
	unsigned long steps[SAMPLES];
};

struct kind {
	const char *name;
	const char *provider;
	size_t least;		/* bytes of the smallest block */
	size_t spread;		/* sizes are so many times 512 bytes more */
	bool cached;
};

static const struct kind kinds[] = {
	{ "small blocks, cached", "device", 512, 64, true },
	{ "small blocks", "device", 512, 64, false },
	{ "large blocks", "device", MIB + 512, 400, false },
	{ "small blocks over vmm", "vmm", 512, 64, false },
	{ "large blocks over vmm", "vmm", MIB + 512, 400, false },
};

static unsigned int seed;

static unsigned int any_of(unsigned int nr)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % nr;
}

static size_t size_of(const struct kind *k)
{
	return k->least + any_of(k->spread) * 512;
}

/*
 * @nr live blocks, and as many free ones between them: two are not side by
 * side.
 */
static void **fill(const struct kind *k, unsigned int nr)
{
	void **held = calloc(2 * nr, sizeof(*held));
	unsigned int i;

	need(held, "memory");
	for (i = 0; i < 2 * nr; i++)
		held[i] = get(size_of(k), HETMEM_STREAM_HOST);
	for (i = 0; i < nr; i++) {
		put(held[2 * i], 0, HETMEM_STREAM_HOST);
		held[i] = held[2 * i + 1];
	}
	return held;
}

/* In the child, which stops before what is counted: any block, and another. */
static void work(const struct kind *k, unsigned int nr, struct counted *c)
{
	struct hm_pool_options opt = {
		.cache = k->cached ? 0 : 1,
	};
	unsigned int i;
	void **held, **p;
	size_t size;

	open_soft("");
	make_pool(k->provider, &opt);
	held = fill(k, nr);
	raise(SIGSTOP);
	for (i = 0; i < SAMPLES; i++) {
		size = size_of(k);
		p = &held[any_of(nr)];
		c->nr = i;
		c->counts = true;
		if (hetmem_free(pool, *p, 0, HETMEM_STREAM_HOST) ||
		    hetmem_alloc(pool, size, 0, HETMEM_STREAM_HOST, p))
			c->failed = true;
		c->counts = false;
	}
	_exit(0);
}

/* Until it ends; false: it cannot be counted here. */
static bool count(pid_t pid, struct counted *c)
{
	int status;

	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (c->counts)
			c->steps[c->nr]++;
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return false;
		}
	}
	return WIFEXITED(status) && !WEXITSTATUS(status) && !c->failed;
}

static int by_number(const void *a, const void *b)
{
	const unsigned long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/*
 * The median: now and then a table grows, which is O(n), once in O(n). 0: it
 * cannot be counted.
 */
static unsigned long steps(const struct kind *k, unsigned int nr)
{
	struct counted *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long median = 0;
	pid_t pid;

	need(c != MAP_FAILED, "memory");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(1);
		work(k, nr, c);
	}
	if (count(pid, c)) {
		qsort(c->steps, SAMPLES, sizeof(*c->steps), by_number);
		median = c->steps[SAMPLES / 2];
	}
	munmap(c, sizeof(*c));
	return median;
}

/* Who may not trace cannot. */
static bool can_count(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (!ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			raise(SIGSTOP);
		_exit(1);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		return false;
	status = ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return !status;
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "512G", 1);
	if (!can_count()) {
		printf("1..0 # SKIP instructions cannot be counted here\n");
		return 0;
	}
	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		unsigned long few = steps(&kinds[i], FEWEST);
		unsigned long many = steps(&kinds[i], MOST);

		ok(few && many && many <= 2 * few,
		   "%s: %lu instructions with %d, %lu with %d", kinds[i].name,
		   few, FEWEST, many, MOST);
	}
	return tap_end();
}
