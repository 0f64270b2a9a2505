// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Tags, where a program is unkind: the first block of a kind comes while its tag sleeps.
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

int main(void)
{
	setenv("HETMEM_SOFT_MACHINE", "managed memory=512M", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	first_while_asleep(0, KEEP);
	first_while_asleep(SCRATCH, KEEP);
	first_while_asleep(0, 0);
	first_while_asleep(SCRATCH, 0);
	close_soft();
	return tap_end();
}
