// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Tags, where a program is unkind: the first block of a kind comes while its tag sleeps; a sleep
 * that one of several pools refuses keeps scratch blocks, too; tags that slept one after the
 * other wake together.
 */
#include "one_resource.h"

#define KEEP	HETMEM_SLEEP_KEEP
#define SCRATCH	HETMEM_ALLOC_SCRATCH

static int get(const char *tag, unsigned int flags, size_t size, void **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = HOST, .tag = tag, .flags = flags,
	};

	*p = NULL;
	return hetmem_alloc_with(res, &params, p);
}

static void *block(const char *tag, unsigned int flags, size_t size, int byte)
{
	void *p;

	need(!get(tag, flags, size, &p), "%zu bytes: %s", size, hetmem_last_error());
	memset(p, byte, size);
	return p;
}

static void end(void)
{
	hetmem_resource_destroy(res);
	is(device_used(), 0, "no device memory is left");
}

/* A sleeping tag has no new blocks, scratch or not, whichever kind it had. */
static void first_while_asleep(unsigned int had, unsigned int flags)
{
	void *a, *b, *other;

	create("pool(vmm)");
	a = block("t", had, 3 * MIB, 1);
	need(!hetmem_sleep(res, "t", flags), "it sleeps");
	is(get("t", had ^ SCRATCH, 3 * MIB, &b), -EBUSY, "no block of the other kind: %s",
	   hetmem_last_error());
	is(get("t", had, 3 * MIB, &b), -EBUSY, "nor of the same");
	is(stats().reserved, 0, "and no memory");
	other = block("other", had ^ SCRATCH, 3 * MIB, 2);
	is(hetmem_sleep(res, "t", flags), 0, "asleep still");
	is(hetmem_wake(res, "t"), 0, "it wakes");
	b = block("t", had ^ SCRATCH, 3 * MIB, 3);
	ok(all_bytes(other, 2, 3 * MIB) && all_bytes(b, 3, 3 * MIB), "contents");
	ok(had || !flags || all_bytes(a, 1, 3 * MIB), "contents that were kept");
	end();
}

/* A sleep that is refused keeps all contents, those of scratch blocks, too. */
static void refused(const char *spec, const char *tag, size_t small, size_t large, int want)
{
	unsigned char *blocks[4];
	int k;

	create(spec);
	/* The one that refuses comes last. */
	blocks[0] = block("t", SCRATCH, small, 1);
	blocks[1] = block(NULL, SCRATCH, small, 2);
	blocks[2] = block(NULL, 0, small, 3);
	blocks[3] = block("t", 0, small, 4);
	block("last", 0, large, 5);
	if (want == -EBUSY)
		need(!hetmem_sleep(res, "last", 0), "one sleeps without contents");
	else
		block("t", 0, large, 5);
	is(hetmem_sleep(res, tag, KEEP), want, "%s: %s", spec, hetmem_last_error());
	for (k = 0; k < 4; k++)
		ok(all_bytes(blocks[k], k + 1, small), "block %d is as it was", k);
	is(hetmem_wake(res, NULL), 0, "all wake");
	is(hetmem_sleep(res, tag, 0), 0, "without contents there is no reason to refuse");
	end();
}

/* Room of a tag that sleeps is used by others. Then max= bounds a wake of everything, too. */
static void wake_of_all(void)
{
	void *a, *b, *c, *d;

	create("pool(vmm,max=32M,handle=2M)");
	a = block("a", 0, 12 * MIB, 1);
	b = block("b", 0, 12 * MIB, 2);
	need(!hetmem_sleep(res, "a", KEEP), "a sleeps");
	c = block(NULL, 0, 16 * MIB, 3);
	need(!hetmem_sleep(res, NULL, KEEP), "all sleep");
	is(hetmem_wake(res, NULL), -ENOMEM, "40 MiB in 32: %s", hetmem_last_error());
	is(stats().reserved, 0, "nothing is held");
	is(hetmem_wake(res, "b"), 0, "one wakes");
	is(hetmem_wake(res, NULL), -ENOMEM, "the others have no room");
	ok(all_bytes(b, 2, 12 * MIB), "contents");
	is(hetmem_free(res, b, 0, HOST), 0, "a free");
	is(hetmem_wake(res, NULL), 0, "makes room: %s", hetmem_last_error());
	ok(all_bytes(a, 1, 12 * MIB) && all_bytes(c, 3, 16 * MIB), "contents");
	ok(stats().reserved_peak <= 32 * MIB, "max= held");
	/* All of this was held at once. */
	need(!hetmem_sleep(res, "a", KEEP) && !hetmem_sleep(res, NULL, KEEP), "all sleep");
	is(hetmem_resource_set(res, "max", "8M"), 0, "a lower max=");
	is(hetmem_wake(res, NULL), 0, "wakes: %s", hetmem_last_error());
	ok(all_bytes(a, 1, 12 * MIB) && all_bytes(c, 3, 16 * MIB), "contents");
	is(get("a", 0, MIB, &d), -ENOMEM, "and gets no more");
	end();
}

int main(void)
{
	setenv("HETMEM_SOFT_MACHINE", "managed memory=512M", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	first_while_asleep(0, KEEP);
	first_while_asleep(SCRATCH, KEEP);
	first_while_asleep(0, 0);
	first_while_asleep(SCRATCH, 0);
	refused("pool(vmm)", NULL, 3 * MIB, 3 * MIB, -EBUSY);
	refused("pool(vmm,max_host=9M)", NULL, 2 * MIB, 6 * MIB, -ENOMEM);
	refused("pool(vmm,max_host=5M)", "t", 2 * MIB, 6 * MIB, -ENOMEM);
	refused("binning(pool(vmm),pool(vmm,max_host=2M),at=1M)", "t", 5000, 6 * MIB, -ENOMEM);
	refused("binning(pool(vmm),pool(vmm,max_host=2M),at=1M)", NULL, 5000, 6 * MIB, -ENOMEM);
	wake_of_all();
	close_soft();
	return tap_end();
}
