// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Adaptors that count bytes: a free reports the size of its block, whoever frees it, so
 * that they keep nothing of blocks.
 */
#include "by_spec.h"

#define HOST	HETMEM_STREAM_HOST

/* 500 blocks of 1000 to 1499 bytes, which are freed. */
static void counted(struct hetmem_resource *res)
{
	struct hetmem_counters c = { .size = sizeof(c) };

	is(hetmem_counters(res, &c), 0, "counters");
	is(c.bytes.value, 0, "no byte is live, though every other free gave no size");
	is(c.bytes.peak, 624750, "the most that were");
	is(c.bytes.total, 624750, "all that ever were");
}

static uint64_t metadata(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(res, &s), "statistics");
	return s.metadata;
}

/* A free reports the size: counting needs no table of blocks, whoever frees. */
static void no_table(void)
{
	static const char *const stacks[] = {
		"pool(host)", "stats(limit(pool(host),max=1G))",
	};
	struct hetmem_resource *res;
	uint64_t before, grown[2];
	void *p[500];
	int i, j;

	for (i = 0; i < 2; i++) {
		res = make(stacks[i]);
		before = metadata(res);
		for (j = 0; j < 500; j++)
			p[j] = get(res, 1000 + j, HOST);
		grown[i] = metadata(res) - before;
		for (j = 0; j < 500; j++)
			hetmem_free(res, p[j], j & 1 ? 0 : 1000 + j, HOST);
		if (i)
			counted(res);
		is(hetmem_free(res, p[0], 0, HOST), -EINVAL, "freed once");
		hetmem_resource_destroy(res);
	}
	is(grown[1], grown[0], "stats, limit: nothing is kept of a block");
}

int main(void)
{
	open_soft("");
	no_table();
	close_soft();
	return tap_end();
}
