// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A resource of whole regions without host memory for its tree of live blocks: what is
 * live stays live, through a retire and through a free that failed.
 */
#include <dlfcn.h>
#include <search.h>

#include "block_of.h"
#include "provider/regions.h"
#include "pool/region.h"
#include "pool_gate.h"

static bool no_memory;

/* In the place of the C library's. */
void *tsearch(const void *key, void **root,
	      int (*compare)(const void *a, const void *b))
{
	static void *(*real_tsearch)(const void *key, void **root,
				     int (*compare)(const void *a, const void *b));

	if (!real_tsearch)
		*(void **)&real_tsearch = dlsym(RTLD_NEXT, "tsearch");
	return no_memory ? NULL : real_tsearch(key, root, compare);
}

static void make_regions(void)
{
	struct hm_provider *p;

	need(!hm_device_provider(hm, 0, &p) && !hm_region_create(p, &pool), "regions");
}

/* All of @p are the caller's, each with its contents. */
static void all_live(char **p, const char *what)
{
	struct hm_ctl_owns block;
	bool good = true;
	int i;

	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", what);
	for (i = 0; i < 8; i++)
		good &= !block_of(pool, p[i] + 5, &block) && block.base == p[i] &&
			block.asked == MIB && all_bytes(p[i], i, MIB);
	ok(good, "%s: what is live stays live", what);
	is(pool_stats().live, 8, "%s: and is counted", what);
	ok(device_used() >= 8 * MIB, "%s: nothing was given back", what);
}

static void fail_to_grow(bool retire)
{
	const char *what = retire ? "retire" : "a free that fails";
	CUstream a = new_stream();
	CUgraph graph;
	char *p[8];
	int i;

	make_regions();
	for (i = 0; i < 8; i++) {
		p[i] = get(MIB, a);
		memset(p[i], i, MIB);
	}
	no_memory = true;
	if (retire) {
		is(hetmem_stream_retire(pool, a), 0, "retire, without memory");
	} else {
		is(drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), 0, "a capture");
		for (i = 0; i < 8; i += 3) {
			is(hetmem_free(pool, p[i], MIB, a), -EBUSY, "free: %s",
			   hetmem_last_error());
			is(hetmem_free(pool, p[i], MIB, HETMEM_STREAM_UNKNOWN), -EBUSY,
			   "free: %s", hetmem_last_error());
		}
		is(drv->cuStreamEndCapture(a, &graph), 0, "which is valid");
		drv->cuGraphDestroy(graph);
	}
	no_memory = false;
	all_live(p, what);
	is(hetmem_record_stream(pool, p[0], a), 0, "%s: it can be recorded", what);
	is(hetmem_stream_retire(pool, a), 0, "%s: and retired", what);
	for (i = 0; i < 7; i++)
		is(hetmem_free(pool, p[i], MIB, HETMEM_STREAM_UNKNOWN), 0, "%s: freed", what);
	is(hetmem_free(pool, p[0], 0, HETMEM_STREAM_HOST), -EINVAL, "%s: once", what);
	is(hetmem_resource_destroy(pool), 1, "%s: one is left: %s", what, hetmem_last_error());
	is(device_used(), 0, "%s: all is given back", what);
	drv->cuStreamDestroy(a);
}

int main(void)
{
	open_soft("");
	count_calls();
	fail_to_grow(true);
	fail_to_grow(false);
	close_soft();
	return tap_end();
}
