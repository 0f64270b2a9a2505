/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem demo: twice as much memory as the device has. Every page holds a
 * part of the input and its own number, so that lost, stale and misplaced
 * pages all show.
 */
#include <stdlib.h>
#include <string.h>

#include "demo.h"

/* The device overwrites this much at the start of each piece. */
#define STRIPE		((size_t)64 << 10)

/* Of what is available, what the demonstration may take. */
#define PART_OF_MEMORY	0.8

/* The part of the input that page @nr holds. */
static const char *original(const struct demo *demo, size_t nr)
{
	return demo->data + nr % (demo->size / demo->page) * demo->page;
}

static void fill(struct demo *demo, char *big, size_t size)
{
	size_t nr, pages = size / demo->page;

	demo_step("CPU: writes %s", size_text(size));
	for (nr = 0; nr < pages; nr++) {
		char *page = big + nr * demo->page;
		uint64_t number = nr;

		memcpy(page, original(demo, nr), demo->page);
		memcpy(page, &number, sizeof(number));
		if (!(nr % 1024))
			demo_progress(nr * demo->page, size);
	}
	demo_done("done");
}

static int stripes(struct demo *demo, char *big, size_t size)
{
	size_t at;
	int ret = 0;

	demo_step("device: overwrites %s of every %s", size_text(STRIPE),
		  size_text(DEMO_PIECE));
	for (at = 0; at < size && !ret; at += DEMO_PIECE) {
		ret = demo_device_fills(demo, big + at, STRIPE);
		if (!ret)
			ret = demo_device_waits(demo, "", CUDA_SUCCESS);
		demo_progress(at, size);
	}
	if (!ret)
		demo_done("done");
	return ret;
}

static int compare(struct demo *demo, const char *big, size_t size)
{
	char *stripe = xcalloc(demo->page, 1);
	size_t nr, pages = size / demo->page;
	double begin = now();
	int ret = 0;

	memset(stripe, DEMO_VALUE, demo->page);
	demo_step("CPU: compares all of it");
	for (nr = 0; nr < pages; nr++) {
		const char *page = big + nr * demo->page;
		size_t skip = sizeof(uint64_t);
		uint64_t number;
		bool same;

		memcpy(&number, page, sizeof(number));
		if (nr * demo->page % DEMO_PIECE < STRIPE)
			same = !memcmp(page, stripe, demo->page);
		else
			same = number == nr &&
			       !memcmp(page + skip, original(demo, nr) + skip,
				       demo->page - skip);
		if (!same) {
			ret = demo_fail("wrong contents: page %zu of %zu, at %p",
					nr, pages, (const void *)page);
			break;
		}
		if (!(nr % 1024))
			demo_progress(nr * demo->page, size);
	}
	free(stripe);
	if (!ret)
		demo_done("%zu pages right, %.3f GB/s", pages,
			  size / (now() - begin) / 1e9);
	return ret;
}

int demo_oversubscribe(struct demo *demo)
{
	uint64_t size = (2 * demo->capacity + DEMO_HUGE - 1) & -DEMO_HUGE;
	size_t available = available_memory();
	void *big;
	int ret;

	/* What an emulated device holds is host memory too. */
	if (size + demo->capacity > available * PART_OF_MEMORY) {
		printf("   (twice the device's %s is more than the %s of memory that is available: left out)\n",
		       size_text(demo->capacity), size_text(available));
		return 0;
	}
	ret = hetmem_system_alloc(demo->hm, size, &big);
	if (ret)
		return demo_fail("%s: %s", size_text(size),
				 hetmem_last_error());
	fill(demo, big, size);
	ret = demo_prefetch(demo, "twice the device's capacity to the device",
			    big, size,
			    HETMEM_LOC(HETMEM_DEVICE, demo->device), false);
	if (!ret)
		ret = stripes(demo, big, size);
	if (!ret)
		ret = demo_map(demo, "oversubscribed", big, size);
	if (!ret)
		ret = compare(demo, big, size);
	if (!ret)
		demo_counts(demo, "oversubscribed", big);
	hetmem_system_free(demo->hm, big);
	return ret;
}
