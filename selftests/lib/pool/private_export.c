// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Exported memory of a private pool, and of a capture: another process may have it,
 * so that nobody gets it again: it is given back at the release.
 */
#include "alloc_with.h"
#include "by_spec.h"

#define SIZE	((size_t)3 << 20)

static struct hetmem_resource *res;

static void *get_of(CUstream s, bool private)
{
	void *p = NULL;

	if (!private)
		return get(res, SIZE, s);
	need(!alloc_private(res, 5, SIZE, s, &p), "a private block: %s",
	     hetmem_last_error());
	return p;
}

static uint64_t held(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	need(!hetmem_resource_stats(res, &stats), "statistics");
	return stats.reserved;
}

static void exported(bool private)
{
	const char *what = private ? "private pool" : "capture";
	struct hetmem_segment segment;
	void *p, *q, *other;
	CUstream s;
	uint64_t held_before;
	int fd, i;

	res = make("pool(vmm(export=fd))");
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!(private ? hetmem_private_retain(res, 5) :
	       hetmem_capture_begin(res, s, 5)), "an id");
	p = get_of(s, private);
	other = get_of(s, private);
	is(hetmem_export(res, p, &fd, &segment, 1), 1, "%s: exported", what);
	close(fd);
	is(hetmem_free(res, p, SIZE, s), 0, "%s: freed", what);
	q = get_of(s, private);
	ok(q && q != p, "%s: is not used again", what);
	is(hetmem_free(res, q, SIZE, s), 0, "%s: others", what);
	ok(get_of(s, private) == q, "%s: are", what);
	is(hetmem_free(res, q, SIZE, s), 0, "%s: freed", what);
	is(hetmem_free(res, other, SIZE, s), 0, "%s: all", what);
	held_before = held();
	if (!private)
		need(!hetmem_capture_end(res, s, 5), "end");
	is(private ? hetmem_private_release(res, 5, s) :
	   hetmem_capture_release(res, s, 5), 0, "%s: released", what);
	/* One poll records an event, the next one sees it. */
	for (i = 0; i < 3; i++)
		need(!drv->cuStreamSynchronize(s) && !hetmem_poll(res),
		     "complete");
	is(held(), held_before / 3 * 2, "%s: it is given back then", what);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", what);
	drv->cuStreamDestroy(s);
}

int main(void)
{
	open_soft("");
	exported(true);
	exported(false);
	close_soft();
	return tap_end();
}
