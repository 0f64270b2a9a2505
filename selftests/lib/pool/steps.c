// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The cost of an allocation and a free by how many blocks there are: the basic blocks of code
 * that the library executes, with a thousand blocks of memory and with a hundred thousand,
 * live and as many free between them. Logarithms of these are as 3 to 5. A cost that more
 * than doubles is neither O(1) nor O(log n). Statistics and sums cost about as much with both.
 */
#include <hetmem/snapshot.h>

#include "pool.h"
#include "count_blocks.h"

#define SAMPLES	21
#define FEWEST	1000
#define MOST	100000

/* The child's results. */
struct counted {
	bool failed;
	unsigned long steps[SAMPLES];
	unsigned long sums;
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

/* Blocks of code that the statistics take. */
static unsigned long count_sums(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_sums sums = { .size = sizeof(sums) };

	nr_blocks = 0;
	counts_blocks = true;
	if (hetmem_resource_stats(pool, &stats) || hetmem_pool_sums(pool, &sums))
		counted->failed = true;
	counts_blocks = false;
	return nr_blocks;
}

/* In the child: frees any block and allocates another. */
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
		nr_blocks = 0;
		counts_blocks = true;
		if (hetmem_free(pool, *p, 0, HETMEM_STREAM_HOST) ||
		    hetmem_alloc(pool, size, 0, HETMEM_STREAM_HOST, p))
			counted->failed = true;
		counts_blocks = false;
		counted->steps[i] = nr_blocks;
	}
	counted->sums = count_sums();
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
	if (!in_child(work, &w) || counted->failed)
		return 0;
	qsort(counted->steps, SAMPLES, sizeof(*counted->steps), by_number);
	return counted->steps[SAMPLES / 2];
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "512G", 1);
	need(library_counts(), "the library counts its basic blocks");
	counted = shared_memory(sizeof(*counted));
	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		unsigned long few = steps(&kinds[i], FEWEST), sums = counted->sums;
		unsigned long many = steps(&kinds[i], MOST);

		ok(few && many && many <= 2 * few,
		   "%s: %lu basic blocks with %d, %lu with %d", kinds[i].name,
		   few, FEWEST, many, MOST);
		/* One step more for each table that was outgrown. */
		ok(sums && counted->sums <= sums + sums / 4, "%s: %lu for the sums, and %lu",
		   kinds[i].name, sums, counted->sums);
	}
	return tap_end();
}
