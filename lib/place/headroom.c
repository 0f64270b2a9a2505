// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A prefetch to a device where a headroom() keeps memory free: the start of the range
 * that fits is moved. Pages that are on the device need no room. Without the module
 * these are not known, and every page counts.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "place/headroom.h"

#define RUNS	64


/* Returns the end of the part of [@start, @end) that fits into @room bytes. */
static uintptr_t fitting(const struct hetmem *hm, uintptr_t start, uintptr_t end,
			 int module_id, uint64_t room)
{
	const uint32_t there = HETMEM_LOC(HETMEM_DEVICE, module_id);
	struct hetmem_run runs[RUNS];
	uintptr_t next = start;
	ssize_t n, i;

	while (module_id >= 0 && start < end) {
		n = hm_kmod_residency(&hm->kmod, start, end, runs, RUNS, &next);
		if (n <= 0 || next <= start)
			break;
		for (i = 0; i < n; i++) {
			if (runs[i].location == there)
				continue;
			if (runs[i].end - runs[i].start > room)
				return runs[i].start + room;
			room -= runs[i].end - runs[i].start;
		}
		start = next;
	}
	return end - start > room ? start + room : end;
}

/* Returns the driver's device that @plan moves memory to, -1: none. */
static int device_of(const struct hetmem *hm, const struct hm_plan *plan)
{
	const int index = HETMEM_LOC_INDEX(plan->location);
	int i;

	if (HETMEM_LOC_KIND(plan->location) != HETMEM_DEVICE)
		return -1;
	if (plan->way == HM_WAY_DRIVER)
		return index;
	for (i = 0; plan->way == HM_WAY_MODULE && i < hm->nr_devices; i++)
		if (hm->devices[i].module_id == index)
			return i;
	return -1;
}

int hm_headroom_cut(struct hetmem *hm, const struct hm_plan *plan,
		    struct hm_span *span)
{
	const int device = device_of(hm, plan);
	struct hm_thread_page *page;
	uintptr_t cut;
	uint64_t room;

	if (device < 0)
		return 0;
	room = hm_headroom_fit(hm, device);
	if (room >= span->end - span->start)
		return 0;
	room &= ~(uint64_t)(hm->page_size - 1);
	cut = fitting(hm, span->start, span->end, hm->devices[device].module_id, room);
	if (cut == span->end)
		return 0;
	if (cut == span->start)
		return hm_error(-ENOMEM, "prefetch: the headroom of device %d leaves no room for %zu bytes: at most %" PRIu64 " fit: free memory of the device, or lower keep=",
				device, (size_t)(span->end - span->start), room);
	page = hm_thread_page();
	if (page)
		snprintf(page->reason, sizeof(page->reason), "headroom: the last %zu bytes stay: at most %" PRIu64 " fit on device %d",
			 (size_t)(span->end - cut), room, device);
	span->end = cut;
	if (span->size > cut - (uintptr_t)span->ptr)
		span->size = cut - (uintptr_t)span->ptr;
	return 0;
}

void hm_headroom_left(const struct hetmem *hm, const struct hm_span *span,
		      const struct hm_span *part, struct hetmem_moved *moved)
{
	const struct hm_thread_page *page = hm_thread_page();

	moved->reason = page ? page->reason : "headroom";
	if (!moved->not_moved) {
		moved->why = HETMEM_WHY_NO_MEMORY;
		moved->why_addr = part->end;
	}
	moved->not_moved += (span->end - part->end) / hm->page_size;
}
