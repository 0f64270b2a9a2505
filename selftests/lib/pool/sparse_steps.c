// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The cost of calls on sparse blocks by how many of them there are: the basic blocks of code
 * that the library executes, with few and with many freed blocks that keep their addresses, of
 * as many sizes, each with a unit that is parked there. A cost that more than doubles is not
 * O(log n).
 */
#include "pool.h"
#include "count_blocks.h"

#define FEWEST	32
#define MOST	2048
#define UNIT_BYTES	(2 * MIB)

enum call {
	NEW_SIZE,
	SAME_SIZE,
	COMMIT,
	DECOMMIT,
	FREE,
	TRIM_ONE,
	NR_CALLS,
};

static const char *const names[] = {
	[NEW_SIZE] = "a block of another size, and its free",
	[SAME_SIZE] = "a block of the size of a freed one",
	[COMMIT] = "a commit of a unit that is parked elsewhere",
	[DECOMMIT] = "its decommit",
	[FREE] = "the free",
	[TRIM_ONE] = "a trim of one unit",
};

/* The child's results. */
struct counted {
	bool failed;
	unsigned long steps[NR_CALLS];
};

static struct counted *counted;

static void *get_sparse(size_t units)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = units * UNIT_BYTES, .stream = HETMEM_STREAM_HOST,
		.flags = HETMEM_ALLOC_SPARSE,
	};
	void *p = NULL;

	counted->failed |= !!hetmem_alloc_with(pool, &params, &p);
	return p;
}

static void put_sparse(void *p)
{
	counted->failed |= !!hetmem_free(pool, p, 0, HETMEM_STREAM_HOST);
}

static void begin(void)
{
	nr_blocks = 0;
	counts_blocks = true;
}

static void end(enum call call)
{
	counts_blocks = false;
	counted->steps[call] = nr_blocks;
}

static size_t held_bytes(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	counted->failed |= !!hetmem_resource_stats(pool, &stats);
	return stats.reserved;
}

/* In the child. */
static void work(const void *arg)
{
	const unsigned int nr = *(const unsigned int *)arg;
	void **held = calloc(nr, sizeof(*held)), *p;
	struct hm_pool_options opt = { 0 };
	unsigned int i;
	size_t held_before;

	need(held, "memory");
	open_soft("");
	make_pool("vmm", &opt);
	for (i = 0; i < nr; i++) {
		held[i] = get_sparse(8 + i);
		counted->failed |= !!hetmem_commit(pool, held[i], 0, UNIT_BYTES, HETMEM_STREAM_HOST);
	}
	for (i = 0; i < nr; i++)
		put_sparse(held[i]);
	begin();
	put_sparse(get_sparse(5));
	end(NEW_SIZE);
	begin();
	p = get_sparse(8 + nr / 2);
	end(SAME_SIZE);
	counted->failed |= p != held[nr / 2];
	begin();
	counted->failed |= !!hetmem_commit(pool, p, 4 * UNIT_BYTES, UNIT_BYTES, HETMEM_STREAM_HOST);
	end(COMMIT);
	begin();
	counted->failed |= !!hetmem_decommit(pool, p, 4 * UNIT_BYTES, UNIT_BYTES, HETMEM_STREAM_HOST);
	end(DECOMMIT);
	begin();
	put_sparse(p);
	end(FREE);
	held_before = held_bytes();
	counted->failed |= held_before != nr * UNIT_BYTES;
	begin();
	counted->failed |= !!hetmem_trim(pool, held_before - UNIT_BYTES, NULL);
	end(TRIM_ONE);
	counted->failed |= held_bytes() != held_before - UNIT_BYTES;
}

int main(void)
{
	static const unsigned int few = FEWEST, many = MOST;
	struct counted least;
	enum call call;

	setenv("HETMEM_SOFT_MEMORY", "16G", 1);
	need(library_counts(), "the library counts its basic blocks");
	counted = shared_memory(sizeof(*counted));
	ok(in_child(work, &few) && !counted->failed, "%u blocks", few);
	least = *counted;
	*counted = (struct counted){ 0 };
	ok(in_child(work, &many) && !counted->failed, "%u blocks", many);
	for (call = 0; call < NR_CALLS; call++)
		ok(counted->steps[call] && counted->steps[call] <= 2 * least.steps[call],
		   "%s: %lu basic blocks, then %lu", names[call], least.steps[call],
		   counted->steps[call]);
	return tap_end();
}
