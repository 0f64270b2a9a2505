// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What an allocation and a free cost by how many blocks there are: the
 * instructions that they take, which another process counts one by one, with a
 * thousand blocks and with a hundred thousand, live and as many free between
 * them. Logarithms of these are as 3 to 5; what is more than twice as much is
 * neither O(1) nor O(log n).
 */
#include "pool.h"
#include "single_step.h"

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

/* What the child does. */
struct work {
	const struct kind *kind;
	unsigned int nr;
};

static struct counted *counted;

/* In the child, from step_here() on what is counted: any block, and another. */
static void work(const void *arg)
{
	const struct work *w = arg;
	struct hm_pool_options opt = {
		.cache = w->kind->cached ? 0 : 1,
	};
	unsigned int i;
	void **held, **p;
	size_t size;

	open_soft("");
	make_pool(w->kind->provider, &opt);
	held = fill(w->kind, w->nr);
	for (i = 0; i < SAMPLES; i++) {
		size = size_of(w->kind);
		p = &held[any_of(w->nr)];
		counted->nr = i;
		counted->counts = true;
		step_here();
		if (hetmem_free(pool, *p, 0, HETMEM_STREAM_HOST) ||
		    hetmem_alloc(pool, size, 0, HETMEM_STREAM_HOST, p))
			counted->failed = true;
		counted->counts = false;
	}
}

static bool look(void)
{
	if (counted->counts)
		counted->steps[counted->nr]++;
	return counted->counts;
}

static int by_number(const void *a, const void *b)
{
	const unsigned long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/*
 * The median: a table grows now and then, which is O(n), once in O(n). 0: it cannot be
 * counted.
 */
static unsigned long steps(const struct kind *k, unsigned int nr)
{
	const struct work w = { k, nr };

	memset(counted, 0, sizeof(*counted));
	if (!single_step(work, look, &w) || counted->failed)
		return 0;
	qsort(counted->steps, SAMPLES, sizeof(*counted->steps), by_number);
	return counted->steps[SAMPLES / 2];
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "512G", 1);
	if (!can_single_step()) {
		printf("1..0 # SKIP instructions cannot be counted here\n");
		return 0;
	}
	counted = step_shared(sizeof(*counted));
	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		unsigned long few = steps(&kinds[i], FEWEST);
		unsigned long many = steps(&kinds[i], MOST);

		ok(few && many && many <= 2 * few,
		   "%s: %lu instructions with %d, %lu with %d", kinds[i].name,
		   few, FEWEST, many, MOST);
	}
	return tap_end();
}
