// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Programs that are written against the pool: what it holds at its peak, of what
 * is requested at the peak.
 */
#include "pool.h"

#define KIB	((size_t)1 << 10)

static double excess(void)
{
	struct hetmem_resource_stats s = pool_stats();

	return (double)s.reserved_peak / s.requested_peak;
}

/* Every 32nd of many small blocks stays, and large ones come. */
static void pinholes(size_t size, unsigned int nr, unsigned int stays, size_t large,
		     double most)
{
	void **held = calloc(nr, sizeof(*held));
	size_t peak, left = 0;
	unsigned int i;

	make_pool("vmm", NULL);
	for (i = 0; i < nr; i++)
		held[i] = get(size, NULL);
	peak = pool_stats().requested;
	for (i = 0; i < nr; i++) {
		if (i % stays)
			put(held[i], size, NULL);
		else
			left += size;
	}
	while (left + large <= peak) {
		get(large, NULL);
		left += large;
	}
	ok(excess() <= most, "%u of %zu KiB, every %u. stays, then %zu KiB: at most %.2f: %.3f",
	   nr, size / KIB, stays, large / KIB, most, excess());
	free(held);
	hetmem_resource_destroy(pool);
}

/* Large and small ones in turns, every second freed, then slightly larger ones. */
static void turns(size_t large, size_t small, unsigned int nr, unsigned int which,
		  double most)
{
	void **held = calloc(nr, sizeof(*held));
	unsigned int i, gone = 0;

	make_pool("vmm", NULL);
	for (i = 0; i < nr; i++)
		held[i] = get(i & 1 ? small : large, NULL);
	/* Every second one of them all, or of either size. */
	for (i = 0; i < nr; i++) {
		if (which == 2 ? i / 2 & 1 : (i & 1) == which) {
			put(held[i], 0, NULL);
			gone++;
		}
	}
	for (i = 0; i < gone; i++)
		get((which == 2 ? i & 1 : which) ? small + 512 : large + large / 16,
		    NULL);
	ok(excess() <= most, "%zu KiB and %zu B in turns, every second freed (%u), then larger ones: at most %.2f: %.3f",
	   large / KIB, small, which, most, excess());
	free(held);
	hetmem_resource_destroy(pool);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "24G", 1);
	open_soft("");
	pinholes(256 * KIB, 12000, 32, 64 * MIB, 1.25);
	turns(2 * MIB, 512, 4000, 0, 1.38);
	turns(2 * MIB, 512, 4000, 1, 1.38);
	turns(2 * MIB, 512, 4000, 2, 1.42);
	turns(4 * MIB, 4096, 2000, 2, 1.38);
	pinholes(64 * KIB, 40000, 100, 32 * MIB, 1.45);
	close_soft();
	return tap_end();
}
