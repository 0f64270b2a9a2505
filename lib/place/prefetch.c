// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Placement: bringing memory to a location and telling where it is, by
 * whatever this machine has for it: the module for its devices and the
 * kernel's truth, move_pages(2) between host nodes, the driver where it
 * reaches the memory. What a device can do is the verdict of platform/. Nothing
 * to be done is an answer, not an error.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "driver/hetmem.h"
#include "platform/platform.h"

static const struct hetmem_moved nothing_moved = {
	.size = sizeof(nothing_moved),
	.how = "none",
	.reason = "",
};

/* Whole pages that overlap [@ptr, @ptr + @size). */
static int page_range(const struct hetmem *hm, const char *what,
		      const void *ptr, size_t size, uintptr_t *start,
		      uintptr_t *end)
{
	const uintptr_t mask = hm->page_size - 1;
	uintptr_t first = (uintptr_t)ptr, last;

	if (!size)
		return hm_error(-EINVAL, "%s: size is 0", what);
	if (__builtin_add_overflow(first, size - 1, &last) ||
	    (last | mask) == UINTPTR_MAX)
		return hm_error(-EINVAL, "%s: [%p, +%zu) leaves the address space",
				what, ptr, size);
	*start = first & ~mask;
	*end = (last | mask) + 1;
	return 0;
}

/* The module's id of @location's device, -1 if there is none. */
static int module_id(const struct hetmem *hm, uint32_t location)
{
	unsigned int index = HETMEM_LOC_INDEX(location);

	if (!hm_kmod_there(&hm->kmod))
		return -1;
	if (index & HM_KERNEL_DEVICE)
		return index & ~HM_KERNEL_DEVICE;
	return hm->devices[index].module_id;
}

static int check_location(struct hetmem *hm, uint32_t location)
{
	unsigned int index = HETMEM_LOC_INDEX(location), i;

	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		if (index == HETMEM_NODE_ANY || hm_numa_has_node(index))
			return 0;
		return hm_error(-EINVAL, "prefetch: no host node %u", index);
	case HETMEM_DEVICE:
		if (!(index & HM_KERNEL_DEVICE)) {
			if (index < (unsigned int)hm->nr_devices)
				return 0;
			return hm_no_device(hm, "prefetch", index);
		}
		for (i = 0; i < hm->kmod.nr_devices; i++)
			if (hm->kmod.devices[i].id ==
			    (index & ~HM_KERNEL_DEVICE))
				return 0;
		return hm_error(-ENODEV, "prefetch: no kernel device %u",
				index & ~HM_KERNEL_DEVICE);
	default:
		return hm_error(-EINVAL, "prefetch: %#x is neither a device nor the host",
				location);
	}
}

/* Only what hetmem.h promises leaves. The text stays. */
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

static int by_module(const struct hetmem *hm, uintptr_t start, uintptr_t end,
		     uint32_t location, struct hetmem_moved *moved)
{
	moved->how = "module";
	return public_error(hm_kmod_migrate(&hm->kmod, start, end, location, 0,
					    moved));
}

static CUresult call_prefetch(const struct hetmem *hm, uintptr_t start,
			      size_t size, CUmemLocation location,
			      CUstream stream)
{
	const struct hm_driver *d = &hm->driver;

	if (d->cuMemPrefetchAsync_v2)
		return d->cuMemPrefetchAsync_v2(start, size, location, 0,
						stream);
	return d->cuMemPrefetchAsync_v1(start, size,
			location.type == CU_MEM_LOCATION_TYPE_DEVICE ?
			location.id : CU_DEVICE_CPU, stream);
}

static int by_driver(struct hetmem *hm, const void *ptr, size_t size,
		     uint32_t location, CUstream stream,
		     struct hetmem_moved *moved)
{
	unsigned int index = HETMEM_LOC_INDEX(location);
	CUmemLocation where = { CU_MEM_LOCATION_TYPE_HOST, 0 };
	struct hm_context saved;
	int device = 0, err;
	CUresult res;

	if (HETMEM_LOC_KIND(location) == HETMEM_DEVICE) {
		device = index;
		where.type = CU_MEM_LOCATION_TYPE_DEVICE;
		where.id = hm->devices[index].handle;
	} else if (index != HETMEM_NODE_ANY && hm->driver.cuMemPrefetchAsync_v2) {
		where.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
		where.id = index;
	}
	moved->how = "driver";
	err = hm_context_default(hm, device, &saved);
	if (err)
		return err;
	res = call_prefetch(hm, (uintptr_t)ptr, size, where, stream);
	hm_context_leave(hm, &saved);
	return res ? hm_driver_error(&hm->driver, "cuMemPrefetchAsync", res) :
		0;
}

enum memory_kind { PAGEABLE, MANAGED, DRIVERS_OWN };

static enum memory_kind kind_of(const struct hetmem *hm, const void *ptr)
{
	CUpointer_attribute ask[2] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED };
	unsigned int type = 0, managed = 0;
	void *data[2] = { &type, &managed };

	if (!hm->nr_devices ||
	    hm->driver.cuPointerGetAttributes(2, ask, data, (uintptr_t)ptr))
		return PAGEABLE;
	return managed ? MANAGED : type ? DRIVERS_OWN : PAGEABLE;
}

static int none(struct hetmem_moved *moved, const char *reason)
{
	moved->how = "none";
	moved->reason = reason;
	return 0;
}

static bool can_prefetch(const struct hetmem *hm)
{
	return hm->driver.cuMemPrefetchAsync_v2 ||
	       hm->driver.cuMemPrefetchAsync_v1;
}

static const char one_memory[] = "the device and the CPU have one memory: it is there";

/* Why a device that does not use all memory of the process cannot be given it. */
static const char *not_pageable(const struct hetmem *hm, int kind)
{
	if (!hm->available[HETMEM_FEATURE_MIGRATION])
		return hm->reasons[HETMEM_FEATURE_MIGRATION];
	return kind == HETMEM_PLATFORM_MANAGED ?
		"this device uses managed memory only, unlike another of this machine" :
		"this device shares no memory with the CPU, unlike another of this machine";
}

static int to_device(struct hetmem *hm, const void *ptr, size_t size,
		     uintptr_t start, uintptr_t end, uint32_t location,
		     CUstream stream, struct hetmem_moved *moved)
{
	int id = module_id(hm, location);
	const struct hetmem_platform *p;
	enum memory_kind kind;

	if (id >= 0)
		return by_module(hm, start, end,
				 HETMEM_LOC(HETMEM_DEVICE, id), moved);
	p = &hm->devices[HETMEM_LOC_INDEX(location)].platform;
	kind = kind_of(hm, ptr);
	if (kind == DRIVERS_OWN)
		return none(moved, "memory of the driver's own stays where it was allocated");
	if (kind == PAGEABLE && !p->pageable)
		return none(moved, not_pageable(hm, p->kind));
	if (p->kind == HETMEM_PLATFORM_INTEGRATED)
		return none(moved, one_memory);
	if (kind == MANAGED && !p->concurrent)
		return none(moved, "this device cannot prefetch managed memory: no concurrent managed access");
	if (!can_prefetch(hm))
		return none(moved, "this driver has no cuMemPrefetchAsync");
	if (kind == PAGEABLE && p->kind == HETMEM_PLATFORM_CDMM)
		moved->reason = "CDMM: the driver moves this memory to the host node nearest to the device, and not to the device";
	return by_driver(hm, ptr, size, location, stream, moved);
}

static bool moves_pageable(const struct hetmem_platform *p)
{
	return p->moves;
}

static bool is_integrated(const struct hetmem_platform *p)
{
	return p->kind == HETMEM_PLATFORM_INTEGRATED;
}

static bool moves_managed(const struct hetmem_platform *p)
{
	return p->concurrent && !is_integrated(p);
}

static bool is_node(const struct hetmem_platform *p)
{
	return p->node >= 0;
}

static int to_host(struct hetmem *hm, const void *ptr, size_t size,
		   uintptr_t start, uintptr_t end, uint32_t location,
		   CUstream stream, struct hetmem_moved *moved)
{
	const bool any_node = HETMEM_LOC_INDEX(location) == HETMEM_NODE_ANY;
	enum memory_kind kind;

	/* To the module a device's node is as good as any of the host. */
	if (hm_kmod_there(&hm->kmod) && !(any_node && hm_any_platform(hm, is_node)))
		return by_module(hm, start, end, location, moved);
	kind = kind_of(hm, ptr);
	if (kind == DRIVERS_OWN)
		return none(moved, "memory of the driver's own stays where it was allocated");
	if (can_prefetch(hm) && hm_any_platform(hm, kind == MANAGED ?
						moves_managed : moves_pageable))
		return by_driver(hm, ptr, size, location, stream, moved);
	if (kind == MANAGED && hm_any_platform(hm, is_integrated))
		return none(moved, one_memory);
	if (kind == MANAGED)
		return none(moved, "this machine cannot prefetch managed memory: no concurrent managed access");
	if (any_node)
		return none(moved, "no device of this machine can hold this memory: it is on the host");
	if (!hm_numa_there())
		return none(moved, "this kernel has no NUMA: there is one node");
	moved->how = "move_pages";
	return public_error(hm_numa_move(start, end, hm->page_size,
					 HETMEM_LOC_INDEX(location), moved));
}

int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved)
{
	struct hetmem_moved result = nothing_moved;
	uintptr_t start, end;
	int err;

	if (!hm)
		return hm_error(-EINVAL, "prefetch: hm is NULL");
	if (moved && moved->size < sizeof(*moved))
		return hm_error(-EINVAL, "prefetch: moved->size is %zu, set it to sizeof(struct hetmem_moved)",
				moved->size);
	err = hm_check_owner(hm);
	if (!err)
		err = page_range(hm, "prefetch", ptr, size, &start, &end);
	if (!err)
		err = check_location(hm, location);
	if (err)
		goto out;
	if (HETMEM_LOC_KIND(location) == HETMEM_DEVICE)
		err = to_device(hm, ptr, size, start, end, location, stream,
				&result);
	else
		err = to_host(hm, ptr, size, start, end, location, stream,
			      &result);
out:
	if (moved) {
		result.size = moved->size;
		*moved = result;
	}
	return err;
}

/* The driver's ordinal for the module's id or for a node, where it has one. */
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

/* Where a prefetch last sent all of @run; HETMEM_UNKNOWN: to no one place. */
static uint32_t last_request(const struct hetmem *hm, const struct hetmem_run *run)
{
	int device = CU_DEVICE_INVALID, i;

	if (hm->driver.cuMemRangeGetAttribute(&device, sizeof(device),
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
			run->start, run->end - run->start))
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	if (device == CU_DEVICE_CPU)
		return HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].handle == device)
			return HETMEM_LOC(HETMEM_DEVICE, i);
	return HETMEM_LOC(HETMEM_UNKNOWN, 0);
}

static bool is_unknown(const struct hetmem_run *run)
{
	return HETMEM_LOC_KIND(run->location) == HETMEM_UNKNOWN;
}

/* Asks the driver about the runs of which @kernel knows nothing. */
static void find_sources(struct hetmem *hm, struct hetmem_run *runs,
			 uint8_t *sources, size_t nr, enum hetmem_source kernel)
{
	struct hm_context saved;
	bool asks = false;
	size_t i;

	for (i = 0; i < nr; i++) {
		sources[i] = is_unknown(&runs[i]) ? HETMEM_SOURCE_UNKNOWN : kernel;
		asks = asks || is_unknown(&runs[i]);
	}
	if (!asks || !hm->nr_devices || !hm->driver.cuMemRangeGetAttribute ||
	    hm_context_default(hm, 0, &saved))
		return;
	for (i = 0; i < nr; i++) {
		if (!is_unknown(&runs[i]))
			continue;
		runs[i].location = last_request(hm, &runs[i]);
		if (!is_unknown(&runs[i]))
			sources[i] = HETMEM_SOURCE_REQUEST;
	}
	hm_context_leave(hm, &saved);
}

ssize_t hetmem_residency(struct hetmem *hm, const void *ptr, size_t size,
			 struct hetmem_run *runs, uint8_t *sources, size_t nr,
			 uintptr_t *next)
{
	enum hetmem_source kernel = HETMEM_SOURCE_MODULE;
	uintptr_t start, end;
	ssize_t n, i;
	int err;

	if (!hm || !runs || !nr || !next)
		return hm_error(-EINVAL, "residency: %s", !hm ? "hm is NULL" :
				!runs ? "runs is NULL" :
				!nr ? "nr is 0" : "next is NULL");
	err = hm_check_owner(hm);
	if (!err)
		err = page_range(hm, "residency", ptr, size, &start, &end);
	if (err)
		return err;
	if (hm_kmod_there(&hm->kmod)) {
		n = hm_kmod_residency(&hm->kmod, start, end, runs, nr, next);
	} else {
		kernel = HETMEM_SOURCE_MOVE_PAGES;
		n = hm_numa_residency(start, end, hm->page_size, runs, nr, next);
	}
	for (i = 0; i < n; i++)
		runs[i].location = public_location(hm, runs[i].location);
	if (n > 0 && sources)
		find_sources(hm, runs, sources, n, kernel);
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
