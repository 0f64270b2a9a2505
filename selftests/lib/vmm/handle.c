// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools whose handles have one size, and blocks that grow, which end anywhere:
 * holes between them are not of whole handles, and their memory is used again.
 */
#include "alloc_with.h"
#include "by_spec.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

/* In so few addresses one is made beside the other. */
static const char *const small[] = {
	"pool(vmm,handle=8M,reserve=120M)", "pool(vmm,handle=2M,reserve=120M)",
	"pool(vmm,reserve=120M)",
};

static const char *const large[] = {
	"pool(vmm,handle=8M,max=192M,reserve=512M)",
	"pool(vmm,handle=2M,max=192M,reserve=512M)",
	"pool(vmm,max=192M,reserve=512M)",
};

/* A block, room for another, a block: then all of it is one. */
static void between(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *x, *y, *z, *q;

	x = get(res, 8 * MIB, HOST);
	is(alloc_reserve(res, 2 * MIB, 6 * MIB, HOST, &y), 0,
	   "%s: a block with room", spec);
	z = get(res, 8 * MIB, HOST);
	is(hetmem_free(res, x, 0, HOST) | hetmem_free(res, y, 0, HOST) |
	   hetmem_free(res, z, 0, HOST), 0, "%s: all are freed", spec);
	q = get(res, 20 * MIB, HOST);
	ok(q, "%s: a large one has addresses of theirs", spec);
	if (q)
		memset(q, 1, 20 * MIB);
	is(hetmem_free(res, q, 20 * MIB, HOST), 0, "%s: freed", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
}

/* Runs that were made side by side, the first full: they are one then. */
static void beside(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *x, *y, *q;
	int err;

	err = alloc_reserve(res, 16 * MIB, 16 * MIB, HOST, &x);
	err |= alloc_reserve(res, 16 * MIB, 16 * MIB, HOST, &y);
	is(err, 0, "%s: two blocks without room", spec);
	is(hetmem_free(res, x, 0, HOST) | hetmem_free(res, y, 0, HOST), 0,
	   "%s: are freed", spec);
	q = get(res, 32 * MIB, HOST);
	ok(q, "%s: and are one", spec);
	if (q)
		memset(q, 1, 32 * MIB);
	is(hetmem_free(res, q, 0, HOST), 0, "%s: freed", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
}

/* All there is to allocate is 100 of 192 MiB: none may fail. */
static void at_random(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	size_t size[8] = { 0 }, live = 0;
	unsigned int seed = 5, i, failed = 0, freed = 0;
	unsigned char *p[8] = { NULL };
	void *q;

	for (i = 0; i < 800; i++) {
		unsigned int at, kind;
		int err;

		seed = seed * 1103515245 + 12345;
		at = seed >> 8 & 7;
		kind = seed >> 11 & 3;
		if (p[at] && kind == 0 && live + 5 * MIB < 100 * MIB) {
			if (!hetmem_grow(res, p[at], size[at] + 5 * MIB, HOST)) {
				size[at] += 5 * MIB;
				live += 5 * MIB;
				memset(p[at] + size[at] - MIB, at, MIB);
			}
			continue;
		}
		if (p[at]) {
			freed += !all_bytes(p[at], at, MIB);
			freed += !!hetmem_free(res, p[at], size[at], HOST);
			live -= size[at];
			p[at] = NULL;
			continue;
		}
		size[at] = MIB + (seed >> 13) % (9 * MIB);
		if (live + size[at] > 100 * MIB)
			continue;
		err = kind < 2 ? hetmem_alloc(res, size[at], 0, HOST, &q) :
			alloc_reserve(res, size[at], size[at] + 9 * MIB,
					     HOST, &q);
		failed += !!err;
		if (err) {
			printf("# %s\n", hetmem_last_error());
			continue;
		}
		p[at] = q;
		live += size[at];
		memset(q, at, MIB);
	}
	is(failed, 0, "%s: nothing fails while there is memory", spec);
	is(freed, 0, "%s: each is its own memory", spec);
	for (i = 0; i < 8; i++)
		if (p[i])
			hetmem_free(res, p[i], 0, HOST);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
}

/* Most bytes of a handle in a block of @size at @p. */
static size_t largest_handle(struct hetmem_resource *res, const void *p, size_t size)
{
	struct hetmem_segment segments[512];
	ssize_t i, nr = hetmem_segments(res, p, size, segments, 512);
	size_t most = 0;

	need(nr > 0, "segments: %s", hetmem_last_error());
	for (i = 0; i < nr; i++)
		if (segments[i].length > most)
			most = segments[i].length;
	return most;
}

/* Far from max= handles are large; from 70% of it on they are a 600th of it, or 2 MiB. */
static void near_the_limit(const char *spec, size_t max)
{
	struct hetmem_resource *res = make(spec);
	void *far, *near;

	need(!hetmem_alloc(res, max / 2, 0, HOST, &far), "half of it");
	need(!hetmem_alloc(res, max / 4, 0, HOST, &near), "a quarter");
	ok(largest_handle(res, far, max / 2) > 2 * MIB, "%s: half of it has large handles",
	   spec);
	ok(largest_handle(res, near, max / 4) <= (max / 600 > 2 * MIB ? max / 600 : 2 * MIB),
	   "%s: what is near the limit has small ones", spec);
	hetmem_free(res, near, 0, HOST);
	hetmem_free(res, far, 0, HOST);
	hetmem_resource_destroy(res);
}

int main(void)
{
	size_t i;

	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	open_soft("");
	for (i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
		between(small[i]);
		beside(small[i]);
		at_random(large[i]);
	}
	near_the_limit("pool(vmm,max=240M)", 240 * MIB);
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
