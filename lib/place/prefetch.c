// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Prefetch and residency. The module moves memory of its devices and reports locations.
 * move_pages(2) moves memory between host nodes, and reports nodes if there is no module.
 * The driver moves memory that it manages or can take. The verdict of platform/ decides
 * between them. If nothing is to be done, the call succeeds and reports why.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/nvtx.h"
#include "place/headroom.h"
#include "place/place.h"
#include "provider/arenas.h"

const struct hetmem_moved hm_nothing_moved = {
	.size = sizeof(hm_nothing_moved),
	.how = "none",
	.reason = "",
};

const char hm_one_memory[] = "the device and the CPU have one memory: it is there";
const char hm_stays[] = "memory of the driver's own stays where it was allocated";
const char hm_page_locked[] = "page-locked memory stays where it is";

int hm_place_enter(struct hetmem *hm, const char *what,
		   const struct hetmem_moved *moved)
{
	if (!hm)
		return hm_error(-EINVAL, "%s: hm is NULL", what);
	if (moved && moved->size < sizeof(*moved))
		return hm_error(-EINVAL, "%s: moved->size is %zu, set it to sizeof(struct hetmem_moved)",
				what, moved->size);
	return hm_check_owner(hm);
}

int hm_place_pages(const struct hetmem *hm, const char *what, const void *ptr,
		   size_t size, struct hm_span *span)
{
	const uintptr_t mask = hm->page_size - 1;
	uintptr_t first = (uintptr_t)ptr, last;

	if (!size)
		return hm_error(-EINVAL, "%s: size is 0", what);
	if (__builtin_add_overflow(first, size - 1, &last) ||
	    (last | mask) == UINTPTR_MAX)
		return hm_error(-EINVAL, "%s: [%p, +%zu) leaves the address space: check ptr and size",
				what, ptr, size);
	*span = (struct hm_span){
		.ptr = ptr, .size = size,
		.start = first & ~mask, .end = (last | mask) + 1,
	};
	return 0;
}

/* CUDA_ERROR_INVALID_VALUE: the driver does not know the address. */
static int ask_memory_of(const struct hetmem *hm, const void *ptr, enum hm_memory *memory)
{
	CUpointer_attribute ask[2] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED };
	unsigned int type = 0, managed = 0;
	void *data[2] = { &type, &managed };
	CUresult res = CUDA_SUCCESS;

	if (hm->nr_devices)
		res = hm->driver.cuPointerGetAttributes(2, ask, data, (uintptr_t)ptr);
	if (res && res != CUDA_ERROR_INVALID_VALUE)
		return hm_driver_error(&hm->driver, "cuPointerGetAttributes", res);
	*memory = res ? HM_PAGEABLE : managed ? HM_MANAGED :
		type == CU_MEMORYTYPE_HOST ? HM_PINNED :
		type ? HM_DRIVERS_OWN : HM_PAGEABLE;
	return 0;
}

/* Asking the driver takes a microsecond; all arenas of a resource are of one kind. */
int hm_memory_of(struct hetmem *hm, const void *ptr, enum hm_memory *memory)
{
	const int known = hm_arenas_kind(hm, (uintptr_t)ptr);
	int err;

	if (known) {
		*memory = known - 1;
		return 0;
	}
	err = ask_memory_of(hm, ptr, memory);
	if (!err)
		hm_arenas_set_kind(hm, (uintptr_t)ptr, *memory + 1);
	return err;
}

int hm_place_span(struct hetmem *hm, const char *what, const void *ptr,
		  size_t size, struct hm_span *span)
{
	static const char *const names[] = {
		[HM_PAGEABLE] = "memory of the process",
		[HM_MANAGED] = "managed memory",
		[HM_PINNED] = "page-locked memory",
		[HM_DRIVERS_OWN] = "memory of the driver's own",
	};
	enum hm_memory last;
	int err = hm_place_pages(hm, what, ptr, size, span);

	if (!err)
		err = hm_memory_of(hm, ptr, &span->memory);
	if (!err)
		err = hm_memory_of(hm, (const char *)ptr + size - 1, &last);
	if (err || span->memory == last)
		return err;
	return hm_error(-EINVAL, "%s: [%p, +%zu) begins in %s and ends in %s: split it",
			what, ptr, size, names[span->memory], names[last]);
}

/* Returns the module's id of @location's device, -1: none. */
static int module_id(const struct hetmem *hm, uint32_t location)
{
	unsigned int index = HETMEM_LOC_INDEX(location);

	if (!hm_kmod_there(&hm->kmod))
		return -1;
	if (index & HM_KERNEL_DEVICE)
		return index & ~HM_KERNEL_DEVICE;
	return hm->devices[index].module_id;
}

int hm_place_location(struct hetmem *hm, const char *what, uint32_t location)
{
	unsigned int index = HETMEM_LOC_INDEX(location), i;

	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		if (index == HETMEM_NODE_ANY || hm_numa_has_node(index))
			return 0;
		return hm_error(-EINVAL, "%s: there is no host node %u: use HETMEM_NODE_ANY, or a node that `numactl -H` shows", what, index);
	case HETMEM_DEVICE:
		if (!(index & HM_KERNEL_DEVICE)) {
			if (index < (unsigned int)hm->nr_devices)
				return 0;
			return hm_no_device(hm, what, index);
		}
		for (i = 0; i < hm->kmod.nr_devices; i++)
			if (hm->kmod.devices[i].id ==
			    (index & ~HM_KERNEL_DEVICE))
				return 0;
		return hm_error(-ENODEV, "%s: there is no kernel device %u: use a location that hetmem_residency() reports", what,
				index & ~HM_KERNEL_DEVICE);
	default:
		return hm_error(-EINVAL, "%s: location %#x is neither a device nor the host: use HETMEM_LOC()",
				what, location);
	}
}

/* Maps an errno of the kernel to those documented in place.h. The text stays. */
static int public_error(int err)
{
	switch (err) {
	case -EINVAL:
	case -ENODEV:
	case -ENOMEM:
	case -EINTR:
		return err;
	default:
		return err < 0 ? -EIO : err;
	}
}

int hm_place_error(const struct hetmem *hm, const char *call, CUresult res)
{
	int err = hm_driver_error(&hm->driver, call, res);

	switch (res) {
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_INVALID_HANDLE:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return -EINVAL;
	default:
		return err;
	}
}

static void stays(struct hetmem_moved *moved, const struct hetmem *hm,
		  uintptr_t start, uintptr_t end, uint32_t why)
{
	if (start >= end)
		return;
	if (!moved->not_moved) {
		moved->why = why;
		moved->why_addr = start;
	}
	moved->not_moved += (end - start) / hm->page_size;
}

/* Adjacent mappings that one driver call can move. */
struct movable {
	uintptr_t start;
	uintptr_t end;
	unsigned int calls;
};

static int prefetch_movable(const struct hetmem *hm, const struct hm_plan *plan,
			    CUstream stream, struct movable *m)
{
	CUresult res;

	if (m->start == m->end)
		return 0;
	m->calls++;
	res = hm_driver_prefetch(hm, m->start, m->end - m->start, plan->location, stream);
	return res ? hm_place_error(hm, "cuMemPrefetchAsync", res) : 0;
}

/*
 * Prefetches the process's own memory mapping by mapping: the driver refuses a range with
 * a hole, and skips, without a report, mappings that it cannot move.
 */
static int prefetch_mapped(struct hetmem *hm, const struct hm_span *span,
			   const struct hm_plan *plan, CUstream stream,
			   struct hm_maps *maps, struct hetmem_moved *moved)
{
	struct movable m = { 0 };
	uintptr_t at = span->start;
	struct hm_vma vma;
	int err;

	while (at < span->end && hm_maps_next(maps, at, &vma) &&
	       vma.start < span->end) {
		const uintptr_t start = vma.start > at ? vma.start : at;
		const uintptr_t end = vma.end < span->end ? vma.end : span->end;

		stays(moved, hm, at, start, HETMEM_WHY_UNMAPPED);
		at = end;
		if (vma.why & plan->why) {
			stays(moved, hm, start, end, vma.why);
			continue;
		}
		if (m.end != start) {
			err = prefetch_movable(hm, plan, stream, &m);
			if (err)
				return err;
			m.start = start;
		}
		m.end = end;
	}
	stays(moved, hm, at, span->end, HETMEM_WHY_UNMAPPED);
	err = prefetch_movable(hm, plan, stream, &m);
	if (err || m.calls)
		return err;
	moved->how = "none";
	moved->reason = moved->why == HETMEM_WHY_UNMAPPED ?
		"nothing is mapped there" :
		"HMM: files, shared memory and pages of hugetlbfs stay on the host, where the device uses them";
	return 0;
}

static int by_driver(struct hetmem *hm, const struct hm_span *span,
		     const struct hm_plan *plan, CUstream stream,
		     struct hm_maps *maps, struct hetmem_moved *moved)
{
	const int device = HETMEM_LOC_KIND(plan->location) == HETMEM_DEVICE ?
		HETMEM_LOC_INDEX(plan->location) : 0;
	struct hm_maps own;
	struct hm_context saved;
	CUresult res;
	int err;

	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "prefetch: the driver needs a stream: give one, or NULL");
	moved->how = "driver";
	moved->reason = plan->reason;
	err = hm_context_default(hm, device, &saved);
	if (err)
		return err;
	if (span->memory == HM_PAGEABLE && maps) {
		err = prefetch_mapped(hm, span, plan, stream, maps, moved);
	} else if (span->memory == HM_PAGEABLE && !hm_maps_open(&own)) {
		err = prefetch_mapped(hm, span, plan, stream, &own, moved);
		hm_maps_close(&own);
	} else {
		res = hm_driver_prefetch(hm, (uintptr_t)span->ptr, span->size,
				    plan->location, stream);
		err = res ? hm_place_error(hm, "cuMemPrefetchAsync", res) : 0;
	}
	hm_context_leave(hm, &saved);
	return err;
}

int hm_place_mapped(const struct hm_span *span, const char *what)
{
	uintptr_t at = span->start;
	struct hm_maps maps;
	struct hm_vma vma;

	if (hm_maps_open(&maps))
		return 0;
	while (at < span->end && hm_maps_next(&maps, at, &vma) && vma.start <= at)
		at = vma.end;
	hm_maps_close(&maps);
	return at >= span->end ? 0 :
		hm_error(-EINVAL, "%s: nothing is mapped at %#lx: give mapped memory only", what, (long)at);
}

const char *hm_not_pageable(const struct hetmem *hm, int kind)
{
	if (!hm->available[HETMEM_FEATURE_MIGRATION])
		return hm->reasons[HETMEM_FEATURE_MIGRATION];
	return kind == HETMEM_PLATFORM_MANAGED ?
		"this device uses managed memory only, unlike another of this machine" :
		"this device shares no memory with the CPU, unlike another of this machine";
}

bool hm_moves_pageable(const struct hetmem_platform *p)
{
	return p->moves;
}

bool hm_is_integrated(const struct hetmem_platform *p)
{
	return p->kind == HETMEM_PLATFORM_INTEGRATED;
}

bool hm_moves_managed(const struct hetmem_platform *p)
{
	return p->concurrent && !hm_is_integrated(p);
}

bool hm_is_not_concurrent(const struct hetmem_platform *p)
{
	return !p->concurrent;
}

static bool is_node(const struct hetmem_platform *p)
{
	return p->node >= 0;
}

static void plan_none(struct hm_plan *plan, const char *reason)
{
	plan->way = HM_WAY_NONE;
	plan->reason = reason;
}

static void plan_to_device(struct hetmem *hm, const struct hm_span *span,
			   uint32_t location, struct hm_plan *plan)
{
	const enum hm_memory memory = span->memory;
	const int id = module_id(hm, location);
	const struct hetmem_platform *p;

	if (id >= 0) {
		plan->way = HM_WAY_MODULE;
		plan->location = HETMEM_LOC(HETMEM_DEVICE, id);
		return;
	}
	p = &hm->devices[HETMEM_LOC_INDEX(location)].platform;
	plan->way = HM_WAY_DRIVER;
	if (memory == HM_DRIVERS_OWN)
		plan_none(plan, hm_stays);
	else if (memory == HM_PINNED)
		plan_none(plan, hm_page_locked);
	else if (memory == HM_PAGEABLE && !p->pageable)
		plan_none(plan, hm_not_pageable(hm, p->kind));
	else if (hm_is_integrated(p))
		plan_none(plan, hm_one_memory);
	else if (memory == HM_MANAGED && !p->concurrent)
		plan_none(plan, "this device cannot prefetch managed memory: no concurrent managed access");
	else if (!hm_driver_can_prefetch(hm))
		plan_none(plan, "this driver has no cuMemPrefetchAsync");
	else if (memory == HM_PAGEABLE && p->kind == HETMEM_PLATFORM_CDMM)
		plan->reason = "CDMM: the driver moves this memory to the host node nearest to the device, and not to the device";
	else if (memory == HM_PAGEABLE && p->kind == HETMEM_PLATFORM_HMM)
		plan->why = HETMEM_WHY_FILE | HETMEM_WHY_SHMEM |
			HETMEM_WHY_HUGETLB | HETMEM_WHY_SPECIAL;
}

static void plan_to_host(struct hetmem *hm, const struct hm_span *span,
			 uint32_t location, struct hm_plan *plan)
{
	const bool any_node = HETMEM_LOC_INDEX(location) == HETMEM_NODE_ANY;
	const enum hm_memory memory = span->memory;

	/* To the module, the node of an ATS device is a node of the host. */
	if (hm_kmod_there(&hm->kmod) && !(any_node && hm_any_platform(hm, is_node)))
		plan->way = HM_WAY_MODULE;
	else if (memory == HM_DRIVERS_OWN)
		plan_none(plan, hm_stays);
	else if (memory == HM_PINNED)
		plan_none(plan, hm_page_locked);
	else if (hm_driver_can_prefetch(hm) && hm_any_platform(hm, memory == HM_MANAGED ?
			hm_moves_managed : hm_moves_pageable))
		plan->way = HM_WAY_DRIVER;
	else if (memory == HM_MANAGED && hm_any_platform(hm, hm_is_integrated))
		plan_none(plan, hm_one_memory);
	else if (memory == HM_MANAGED)
		plan_none(plan, "this machine cannot prefetch managed memory: no concurrent managed access");
	else if (any_node)
		plan_none(plan, "no device of this machine can hold this memory: it is on the host");
	else if (!hm_numa_there())
		plan_none(plan, "this kernel has no NUMA: there is one node");
	else
		plan->way = HM_WAY_PAGES;
}

void hm_place_plan(struct hetmem *hm, const struct hm_span *span,
		   uint32_t location, struct hm_plan *plan)
{
	*plan = (struct hm_plan){ .reason = "", .location = location };
	if (HETMEM_LOC_KIND(location) == HETMEM_DEVICE)
		plan_to_device(hm, span, location, plan);
	else
		plan_to_host(hm, span, location, plan);
}

static int carry_out(struct hetmem *hm, const struct hm_span *span,
		     const struct hm_plan *plan, hetmem_stream stream,
		     struct hm_maps *maps, struct hetmem_moved *moved)
{
	switch (plan->way) {
	case HM_WAY_MODULE:
		moved->how = "module";
		return public_error(hm_kmod_migrate(&hm->kmod, span->start,
						    span->end, plan->location,
						    0, moved));
	case HM_WAY_DRIVER:
		return by_driver(hm, span, plan, stream, maps, moved);
	case HM_WAY_PAGES:
		moved->how = "move_pages";
		return public_error(hm_numa_move(span->start, span->end,
						 hm->page_size,
						 HETMEM_LOC_INDEX(plan->location),
						 moved));
	default:
		moved->how = "none";
		moved->reason = plan->reason;
		return 0;
	}
}

/* Why no page moved, in words: of the first page that stayed. */
static const char *why_stayed(uint32_t why)
{
	static const struct {
		uint32_t why;
		const char *reason;
	} reasons[] = {
		{ HETMEM_WHY_UNMAPPED, "no page moved: nothing is mapped there" },
		{ HETMEM_WHY_ABSENT, "no page moved: there are no pages yet, write to the memory first" },
		{ HETMEM_WHY_FILE, "no page moved: it is memory of a file" },
		{ HETMEM_WHY_SHMEM, "no page moved: it is shared memory" },
		{ HETMEM_WHY_HUGETLB, "no page moved: it is of hugetlbfs" },
		{ HETMEM_WHY_SPECIAL, "no page moved: it is memory of a device or of DAX" },
		{ HETMEM_WHY_UFFD, "no page moved: userfaultfd is armed" },
		{ HETMEM_WHY_NOT_READABLE, "no page moved: the memory is not readable" },
		{ HETMEM_WHY_NO_MEMORY, "no page moved: the destination is full" },
		{ HETMEM_WHY_BUSY, "no page moved: pages are pinned, locked or in use" },
		{ HETMEM_WHY_PINNED_BY_US, "no page moved: pages are held by a move with PIN" },
	};
	size_t i;

	for (i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (why & reasons[i].why)
			return reasons[i].reason;
	return "no page moved: see why";
}

int hm_place_carry_out(struct hetmem *hm, const struct hm_span *span,
		       const struct hm_plan *plan, hetmem_stream stream,
		       struct hm_maps *maps, struct hetmem_moved *moved)
{
	struct hm_span part = *span;
	HM_RANGE(HETMEM_LOC_KIND(plan->location) == HETMEM_DEVICE ? "to device" : "to host", span->size);
	int err = hm_headroom_cut(hm, plan, &part);

	if (!err)
		err = carry_out(hm, &part, plan, stream, maps, moved);
	/* A driver reports no counts. */
	if (!err && plan->way != HM_WAY_DRIVER && moved->not_moved && !moved->moved &&
	    !moved->already && !*moved->reason)
		moved->reason = why_stayed(moved->why);
	if (!err && plan->way != HM_WAY_NONE)
		hm_arenas_moved(hm, part.start, part.end,
				HETMEM_LOC_KIND(plan->location) == HETMEM_DEVICE);
	if (!err && part.end < span->end)
		hm_headroom_left(hm, span, &part, moved);
	return err;
}

int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved)
{
	struct hetmem_moved result = hm_nothing_moved;
	struct hm_span span;
	struct hm_plan plan;
	int err = hm_place_enter(hm, "prefetch", moved);

	if (err && err != -EOWNERDEAD)
		return err;
	if (!err)
		err = hm_place_span(hm, "prefetch", ptr, size, &span);
	if (!err)
		err = hm_place_location(hm, "prefetch", location);
	if (!err) {
		hm_place_plan(hm, &span, location, &plan);
		err = hm_place_carry_out(hm, &span, &plan, stream, NULL, &result);
	}
	if (moved) {
		result.size = moved->size;
		*moved = result;
	}
	return err;
}

/* Replaces the module's id, or a device's node, by the driver's ordinal if it has one. */
static uint32_t public_location(const struct hetmem *hm, uint32_t location)
{
	unsigned int id = HETMEM_LOC_INDEX(location);
	int i;

	if (HETMEM_LOC_KIND(location) == HETMEM_HOST) {
		i = hm_device_of_node(hm, id);
		return i < 0 ? location : HETMEM_LOC(HETMEM_DEVICE, i);
	}
	if (HETMEM_LOC_KIND(location) != HETMEM_DEVICE)
		return location;
	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].module_id == (int)id)
			return HETMEM_LOC(HETMEM_DEVICE, i);
	return HETMEM_LOC(HETMEM_DEVICE, id | HM_KERNEL_DEVICE);
}

/* Returns the location of the driver's device; HETMEM_UNKNOWN: it is none of ours. */
static uint32_t location_of(const struct hetmem *hm, int handle)
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].handle == handle)
			return HETMEM_LOC(HETMEM_DEVICE, i);
	return HETMEM_LOC(HETMEM_UNKNOWN, 0);
}

/* Returns where a prefetch last sent all of @run; HETMEM_UNKNOWN: nowhere, or apart. */
static uint32_t last_request(const struct hetmem *hm, const struct hetmem_run *run)
{
	int device = CU_DEVICE_INVALID;

	if (!hm->driver.cuMemRangeGetAttribute ||
	    hm->driver.cuMemRangeGetAttribute(&device, sizeof(device),
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
			run->start, run->end - run->start))
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	if (device == CU_DEVICE_CPU)
		return HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	return location_of(hm, device);
}

static bool is_unknown(const struct hetmem_run *run)
{
	return HETMEM_LOC_KIND(run->location) == HETMEM_UNKNOWN;
}

/* Device memory is in handles of this size at least. */
#define OWNER_STEP	((uint64_t)2 << 20)

/* Returns the device whose memory is at @at; HETMEM_UNKNOWN: it is no device memory. */
static uint32_t owner_of(const struct hetmem *hm, uint64_t at)
{
	CUpointer_attribute ask[3] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	unsigned int type = 0, managed = 0;
	int device = CU_DEVICE_INVALID;
	void *data[3] = { &type, &managed, &device };

	if (hm->driver.cuPointerGetAttributes(3, ask, data, at) || managed ||
	    type != CU_MEMORYTYPE_DEVICE)
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	return location_of(hm, device);
}

/*
 * If run @i of @n is a device's memory, it becomes that device's, up to where another one's
 * begins. The rest is the run after it. A run beyond @room is dropped, and *@next is its start.
 * Returns the number of runs.
 */
static size_t find_owner(const struct hetmem *hm, struct hetmem_run *runs, uint8_t *sources,
			 size_t i, size_t n, size_t room, uintptr_t *next)
{
	const uint32_t owner = owner_of(hm, runs[i].start);
	struct hetmem_run rest = runs[i];

	if (HETMEM_LOC_KIND(owner) == HETMEM_UNKNOWN)
		return n;
	do
		rest.start = (rest.start | (OWNER_STEP - 1)) + 1;
	while (rest.start < rest.end && owner_of(hm, rest.start) == owner);
	runs[i].location = owner;
	sources[i] = HETMEM_SOURCE_DRIVER;
	if (rest.start >= rest.end)
		return n;
	runs[i].end = rest.start;
	if (n == room) {
		*next = i + 1 < n ? runs[n - 1].start : rest.start;
		n--;
	}
	if (i + 1 == room)
		return room;
	memmove(&runs[i + 2], &runs[i + 1], (n - i - 1) * sizeof(*runs));
	memmove(&sources[i + 2], &sources[i + 1], n - i - 1);
	runs[i + 1] = rest;
	sources[i + 1] = HETMEM_SOURCE_UNKNOWN;
	return n + 1;
}

/*
 * Sets the source of each run of @nr. Asks the driver about runs that @kernel does not know.
 * Returns the number of runs, up to @room: see find_owner().
 */
static size_t find_sources(struct hetmem *hm, struct hetmem_run *runs, uint8_t *sources,
			   size_t nr, enum hetmem_source kernel, size_t room, uintptr_t *next)
{
	struct hm_context saved;
	bool asks = false;
	size_t i;

	for (i = 0; i < nr; i++) {
		sources[i] = is_unknown(&runs[i]) ? HETMEM_SOURCE_UNKNOWN : kernel;
		asks = asks || is_unknown(&runs[i]);
	}
	if (!asks || !hm->nr_devices || hm_context_default(hm, 0, &saved))
		return nr;
	for (i = 0; i < nr; i++) {
		if (!is_unknown(&runs[i]))
			continue;
		runs[i].location = last_request(hm, &runs[i]);
		if (!is_unknown(&runs[i]))
			sources[i] = HETMEM_SOURCE_REQUEST;
		else
			nr = find_owner(hm, runs, sources, i, nr, room, next);
	}
	hm_context_leave(hm, &saved);
	return nr;
}

ssize_t hetmem_residency(struct hetmem *hm, const void *ptr, size_t size,
			 struct hetmem_run *runs, uint8_t *sources, size_t nr,
			 uintptr_t *next)
{
	enum hetmem_source kernel = HETMEM_SOURCE_MODULE;
	struct hm_span span;
	ssize_t n, i;
	int err;

	if (!hm || !runs || !nr || !next)
		return hm_error(-EINVAL, "residency: %s", !hm ? "hm is NULL" :
				!runs ? "runs is NULL" :
				!nr ? "nr is 0" : "next is NULL");
	err = hm_check_owner(hm);
	if (!err)
		err = hm_place_pages(hm, "residency", ptr, size, &span);
	if (err)
		return err;
	if (hm_kmod_there(&hm->kmod)) {
		n = hm_kmod_residency(&hm->kmod, span.start, span.end, runs, nr, next);
	} else {
		kernel = HETMEM_SOURCE_MOVE_PAGES;
		n = hm_numa_residency(span.start, span.end, hm->page_size, runs, nr,
				      next);
	}
	for (i = 0; i < n; i++)
		runs[i].location = public_location(hm, runs[i].location);
	if (n > 0 && sources)
		n = find_sources(hm, runs, sources, n, kernel, nr, next);
	return n;
}

char *hetmem_location_name(struct hetmem *hm, uint32_t location, char *buf,
			   size_t len)
{
	const uint32_t kind = HETMEM_LOC_KIND(location);
	int index = HETMEM_LOC_INDEX(location);

	if (hm && kind == HETMEM_HOST)
		index = hm_device_of_node(hm, index);
	if (hm && buf && len && (kind == HETMEM_HOST || kind == HETMEM_DEVICE) &&
	    index >= 0 && index < hm->nr_devices &&
	    hm->devices[index].platform.node >= 0)
		snprintf(buf, len, "device %d (node %d)", index,
			 hm->devices[index].platform.node);
	else
		hm_location_name(location, buf, len);
	return buf;
}
