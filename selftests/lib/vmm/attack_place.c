// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A movable block that is smaller than a handle gets a free block that ends within the first
 * handle of the pool's addresses.
 */
#include "soft_driver.h"

#define KIB	((size_t)1 << 10)
#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static struct hetmem_resource *res;

static unsigned char *get(size_t bytes, unsigned int flags)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = HOST, .flags = flags,
	};
	void *p = NULL;

	need(!hetmem_alloc_with(res, &params, &p), "%zu bytes: %s", bytes, hetmem_last_error());
	return p;
}

int main(void)
{
	const size_t gap = 1536 * KIB, rest = 4 * MIB - gap;
	unsigned char *first, *second, *p;
	size_t bytes;

	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "managed memory=256M", 1);
	open_soft("");
	need(!hetmem_resource_create(hm, "pool(vmm,handle=2M,max=4M)", &res), "%s",
	     hetmem_last_error());
	first = get(gap, 0);
	second = get(rest, 0);
	is(second - first, gap, "two blocks in a row, in two handles");
	memset(second, 2, rest);
	need(!hetmem_free(res, first, gap, HOST), "%s", hetmem_last_error());
	for (bytes = MIB + 1; bytes <= gap; bytes += 100 * KIB) {
		p = get(bytes, HETMEM_ALLOC_MOVABLE);
		ok(p >= first && p + bytes <= second, "%zu bytes are before the second block",
		   bytes);
		memset(p, 1, bytes);
		is(hetmem_spill(res, p), -EBUSY, "they have no whole handle: %s",
		   hetmem_last_error());
		need(!hetmem_free(res, p, 0, HOST), "%s", hetmem_last_error());
	}
	ok(all_bytes(second, 2, rest), "the second block has its contents");
	hetmem_free(res, second, rest, HOST);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	close_soft();
	return tap_end();
}
