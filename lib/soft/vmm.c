// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's virtual memory management. A reservation is a mapping without
 * access; a handle is a part of a memfd, a device's memory or the host's; a mapping
 * of it is a mapping. What a GPU would fault on, the process faults on. A handle
 * that is mapped twice is one memory behind two addresses, as on a GPU.
 *
 * The CPU has access to a mapping of the host's memory if it was given some. Streams are
 * threads of the CPU, too: where only devices have access, they use another mapping of
 * the handle. Device memory has one page table for all: the CPU can use it where a device
 * can.
 *
 * All handles that need no descriptor of their own are in one file, as is the
 * memory of cuMemAlloc(). A descriptor for another process is a memfd.
 */
#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "soft/soft.h"

#define HOST_BIT	(1U << SOFT_MAX_DEVICES)

/* Handles. */

bool hm_soft_place_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
		hm_numa_has_node(location->id));
}

/* Whether there can be memory as @prop has it, or why not. */
static CUresult check_place(const CUmemAllocationProp *prop)
{
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	/* It takes a channel that an administrator makes. */
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_PERMITTED;
	if (hm_soft_place_host(&prop->location))
		return CUDA_SUCCESS;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	return prop->location.id >= 0 &&
	       prop->location.id < hm_soft_world->nr_devices ?
		CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

bool hm_soft_handle_host(const struct soft_handle *h)
{
	return h->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The same for every place, one that is none included. */
static CUresult get_granularity(size_t *granularity,
				const CUmemAllocationProp *prop,
				CUmemAllocationGranularity_flags which)
{
	SOFT_ENTER(cuMemGetAllocationGranularity);
	(void)which;
	(void)prop;
	*granularity = SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

/* With the lock. */
struct soft_handle *hm_soft_handle(CUmemGenericAllocationHandle handle)
{
	struct soft_handle *h;

	h = (void *)hm_range_find(&hm_soft_world->handles, handle, 1);
	return h && h->self.start == handle && h->refs ? h : NULL;
}

int hm_soft_handle_fd(const struct soft_handle *h)
{
	return h->fd >= 0 ? h->fd : hm_soft_world->fd;
}

/* With the lock. Its pages go; its part of the file is not used again. */
static void free_pages(struct soft_handle *h)
{
	if (h->streams)
		munmap((void *)h->streams, h->size);
	if (h->fd >= 0)
		close(h->fd);
	else
		hm_soft_file_put(h->offset, h->size);
}

/* With the lock. host_used is read without it. */
static CUresult charge(struct soft_handle *h)
{
	struct soft_world *w = hm_soft_world;

	if (!hm_soft_handle_host(h))
		return hm_soft_charge(&w->devices[h->prop.location.id],
				      h->size);
	if (h->size > w->host_capacity - w->host_used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	__atomic_fetch_add(&w->host_used, h->size, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

static void uncharge(struct soft_handle *h)
{
	struct soft_world *w = hm_soft_world;

	if (hm_soft_handle_host(h))
		__atomic_fetch_sub(&w->host_used, h->size, __ATOMIC_RELAXED);
	else
		hm_soft_uncharge(&w->devices[h->prop.location.id], h->size);
}

/* With the lock. Frees it if neither handles nor mappings are left. */
void hm_soft_handle_put(struct soft_handle *h)
{
	if (h->refs || h->mappings)
		return;
	hm_range_erase(&hm_soft_world->handles, &h->self);
	if (h->charged)
		uncharge(h);
	hm_check_free_uses(&h->uses);
	free_pages(h);
	free(h);
}

CUresult hm_soft_add_handle(struct soft_handle *h)
{
	h->refs = 1;
	h->id = ++hm_soft_world->next_id;
	h->self.start = (uintptr_t)h;
	h->self.end = h->self.start + 1;
	return hm_range_insert(&hm_soft_world->handles, &h->self) ?
		CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static int new_file(size_t size)
{
	int fd = memfd_create("hetmem soft device", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

CUresult hm_soft_file_take(size_t size, uint64_t *offset)
{
	struct soft_world *w = hm_soft_world;
	uint64_t end = w->file_end + size;

	if (end > INT64_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (w->fd < 0)
		w->fd = new_file(0);
	if (w->fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (end > w->file_size) {
		if (ftruncate(w->fd, 2 * end))
			return CUDA_ERROR_OUT_OF_MEMORY;
		w->file_size = 2 * end;
	}
	*offset = w->file_end;
	w->file_end = end + SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

void hm_soft_file_put(uint64_t offset, size_t size)
{
	fallocate(hm_soft_world->fd, FALLOC_FL_PUNCH_HOLE |
		  FALLOC_FL_KEEP_SIZE, offset, size);
}

/* With the lock. */
static CUresult make_pages(struct soft_handle *h)
{
	if (h->prop.requestedHandleTypes &
	    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		h->fd = new_file(h->size);
		return h->fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
	h->fd = -1;
	return hm_soft_file_take(h->size, &h->offset);
}

static CUresult add_new(struct soft_handle *h)
{
	CUresult res = charge(h);

	if (res)
		return res;
	res = make_pages(h);
	if (!res) {
		res = hm_soft_add_handle(h);
		if (res)
			free_pages(h);
	}
	h->charged = !res;
	if (res)
		uncharge(h);
	return res;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t size,
			   const CUmemAllocationProp *prop,
			   unsigned long long flags)
{
	struct soft_handle *h;
	CUresult res;

	SOFT_ENTER(cuMemCreate);
	if (!hm_soft_granular(size) || size > PTRDIFF_MAX || flags)
		return CUDA_ERROR_INVALID_VALUE;
	res = check_place(prop);
	if (res)
		return res;
	h = calloc(1, sizeof(*h));
	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	h->size = size;
	h->prop = *prop;
	hm_soft_lock();
	res = add_new(h);
	hm_soft_unlock();
	if (res)
		free(h);
	else
		*handle = (uintptr_t)h;
	return res;
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_handle *h;

	SOFT_ENTER(cuMemRelease);
	hm_soft_lock();
	h = hm_soft_handle(handle);
	if (h) {
		h->refs--;
		hm_soft_handle_put(h);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_free_handles(struct soft_world *w)
{
	struct soft_handle *h;

	while ((h = (void *)hm_range_any(&w->handles))) {
		if (w->debug)
			hm_soft_leak("handle", (uintptr_t)h, h->size);
		h->refs = 0;
		hm_soft_handle_put(h);
	}
}

/* Descriptors for other processes. */

static CUresult export_handle(void *shareable,
			      CUmemGenericAllocationHandle handle,
			      CUmemAllocationHandleType type,
			      unsigned long long flags)
{
	CUresult res = CUDA_SUCCESS;
	struct soft_handle *h;
	int fd = -1;

	SOFT_ENTER(cuMemExportToShareableHandle);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	h = hm_soft_handle(handle);
	if (!h || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !(h->prop.requestedHandleTypes & type))
		res = CUDA_ERROR_INVALID_VALUE;
	else
		fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0)
		h->shared = true;
	hm_soft_unlock();
	if (res)
		return res;
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *handle,
			      void *shareable, CUmemAllocationHandleType type)
{
	struct soft_handle *h;
	struct stat st;
	CUresult res;
	int fd;

	SOFT_ENTER(cuMemImportFromShareableHandle);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!hm_soft_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	h = calloc(1, sizeof(*h));
	if (!h || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < 0 ||
	    !hm_soft_granular(st.st_size)) {
		close(fd);
		free(h);
		return h ? CUDA_ERROR_INVALID_VALUE :
			CUDA_ERROR_OUT_OF_MEMORY;
	}
	h->fd = fd;
	h->shared = true;
	h->size = st.st_size;
	h->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	h->prop.requestedHandleTypes = type;
	h->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	h->prop.location.id = hm_soft_current()->ordinal;
	hm_soft_lock();
	res = hm_soft_add_handle(h);
	hm_soft_unlock();
	if (res) {
		close(fd);
		free(h);
		return res;
	}
	*handle = (uintptr_t)h;
	return CUDA_SUCCESS;
}

/* Reservations and mappings. */

/* Maps @size without access at a multiple of @align; MAP_FAILED. */
static void *reserve(size_t size, size_t align, uintptr_t hint)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	uintptr_t raw, start;
	void *p;

	if (hint && !(hint & (align - 1))) {
		p = mmap((void *)hint, size, PROT_NONE,
			 flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (p == (void *)hint)
			return p;
		/* A kernel without the flag takes the address as a hint. */
		if (p != MAP_FAILED)
			munmap(p, size);
	}
	p = mmap(NULL, size + align, PROT_NONE, flags, -1, 0);
	if (p == MAP_FAILED)
		return p;
	raw = (uintptr_t)p;
	start = (raw + align - 1) & ~(align - 1);
	if (start > raw)
		munmap(p, start - raw);
	if (raw + align > start)
		munmap((void *)(start + size), raw + align - start);
	return (void *)start;
}

static CUresult address_reserve(CUdeviceptr *ptr, size_t size,
				size_t alignment, CUdeviceptr addr,
				unsigned long long flags)
{
	struct hm_range *r;
	void *p;

	SOFT_ENTER(cuMemAddressReserve);
	if (!hm_soft_granular(size) || flags || alignment & (alignment - 1))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < SOFT_GRANULARITY)
		alignment = SOFT_GRANULARITY;
	if (size > (size_t)PTRDIFF_MAX - alignment)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = malloc(sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	hm_soft_lock();
	p = reserve(size, alignment, addr);
	r->start = (uintptr_t)p;
	r->end = r->start + size;
	if (p != MAP_FAILED && hm_range_insert(&hm_soft_world->reserved, r)) {
		munmap(p, size);
		p = MAP_FAILED;
	}
	hm_soft_unlock();
	if (p == MAP_FAILED) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = (uintptr_t)p;
	return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct hm_range *r;

	SOFT_ENTER(cuMemAddressFree);
	hm_soft_lock();
	r = hm_range_find(&hm_soft_world->reserved, ptr, 1);
	if (r && r->start == ptr && r->end - r->start == size &&
	    !hm_soft_find(ptr, size)) {
		hm_range_erase(&hm_soft_world->reserved, r);
		munmap((void *)r->start, size);
		free(r);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

/* Its pages come from @node, or else from where there are any. */
static void prefer_node(uintptr_t ptr, size_t size, int node)
{
	unsigned long mask[16] = { 0 };
	const unsigned int bits = 8 * sizeof(mask[0]);

	if (!hm_numa_there() || (size_t)node >= bits * 16)
		return;
	mask[node / bits] |= 1UL << node % bits;
	mbind((void *)ptr, size, MPOL_PREFERRED, mask, bits * 16, 0);
}

/* With the lock: where streams reach @h, of the host. */
static bool map_for_streams(struct soft_handle *h)
{
	void *p;

	if (h->streams)
		return true;
	p = mmap(NULL, h->size, PROT_READ | PROT_WRITE, MAP_SHARED,
		 hm_soft_handle_fd(h), h->offset);
	if (p == MAP_FAILED)
		return false;
	h->streams = (uintptr_t)p;
	return true;
}

uintptr_t hm_soft_reach(uintptr_t addr, size_t *size, bool write)
{
	struct soft_memory *m;
	uintptr_t reach = addr;
	uint32_t who;

	if (!__atomic_load_n(&hm_soft_world->host_used, __ATOMIC_RELAXED))
		return addr;
	hm_soft_lock();
	while ((m = hm_soft_find(addr, *size)) && m->range.start > addr)
		*size = m->range.start - addr;
	if (m && *size > m->range.end - addr)
		*size = m->range.end - addr;
	if (m && m->kind == SOFT_MAPPING && hm_soft_handle_host(m->handle)) {
		who = write ? m->writers : m->readers;
		if (who & ~HOST_BIT)
			reach = m->handle->streams + (addr - m->range.start);
	}
	hm_soft_unlock();
	return reach;
}

/* With the lock. */
static CUresult map(uintptr_t ptr, struct soft_handle *h)
{
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;
	struct hm_range *r;
	CUresult res;

	r = hm_range_find(&w->reserved, ptr, 1);
	if (!r || ptr & (SOFT_GRANULARITY - 1) || h->size > r->end - ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (hm_soft_find(ptr, h->size))
		return CUDA_ERROR_INVALID_VALUE;
	if (hm_soft_handle_host(h) && !map_for_streams(h))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->range.start = ptr;
	m->range.end = ptr + h->size;
	m->size = h->size;
	m->kind = SOFT_MAPPING;
	m->ctx = &w->devices[hm_soft_handle_host(h) ? 0 : h->prop.location.id];
	m->id = ++w->next_id;
	m->handle = h;
	if (hm_range_insert(&w->memory, &m->range)) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (mmap((void *)ptr, h->size, PROT_NONE, MAP_SHARED | MAP_FIXED,
		 hm_soft_handle_fd(h), h->offset) == MAP_FAILED) {
		/* Memory, or what the process may have of mappings. */
		res = errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY :
			CUDA_ERROR_MAP_FAILED;
		hm_range_erase(&w->memory, &m->range);
		free(m);
		return res;
	}
	if (h->prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
		prefer_node(ptr, h->size, h->prop.location.id);
	h->mappings++;
	return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr ptr, size_t size, size_t offset,
			CUmemGenericAllocationHandle handle,
			unsigned long long flags)
{
	struct soft_handle *h;
	CUresult res;

	SOFT_ENTER(cuMemMap);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	h = hm_soft_handle(handle);
	if (!h)
		res = CUDA_ERROR_INVALID_VALUE;
	else if (offset || size != h->size)
		res = CUDA_ERROR_NOT_SUPPORTED;
	else
		res = map(ptr, h);
	hm_soft_unlock();
	return res;
}

/*
 * A process at its limit of mappings may not even replace one: it goes first
 * then, and whoever maps something right there in between is not stopped.
 */
void hm_soft_unmap_pages(uintptr_t start, size_t size)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	if (mmap((void *)start, size, PROT_NONE, flags | MAP_FIXED, -1, 0) !=
	    MAP_FAILED)
		return;
	munmap((void *)start, size);
	mmap((void *)start, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1,
	     0);
}

/* With the lock. The addresses stay reserved. */
void hm_soft_unmap(struct soft_memory *m)
{
	const size_t size = m->range.end - m->range.start;

	hm_range_erase(&hm_soft_world->memory, &m->range);
	hm_soft_unmap_pages(m->range.start, size);
	m->handle->mappings--;
	hm_soft_handle_put(m->handle);
	hm_check_clock_free(&m->clock);
	free(m);
}

/* With the lock: the mapping with the lowest address in [start, end). */
static struct soft_memory *first_mapping(uintptr_t start, uintptr_t end)
{
	struct soft_memory *m, *first = NULL;

	while (start < end && (m = hm_soft_find(start, end - start))) {
		first = m->kind == SOFT_MAPPING ? m : first;
		if (m->range.start <= start)
			break;
		end = m->range.start;
	}
	return first;
}

/* With the lock: whether [ptr, ptr + size) is whole mappings and no hole. */
static bool is_whole(uintptr_t ptr, size_t size)
{
	uintptr_t end = ptr + size;
	struct soft_memory *m;

	if (!size || end < ptr)
		return false;
	for (; ptr < end; ptr = m->range.end) {
		m = hm_soft_find(ptr, 1);
		if (!m || m->kind != SOFT_MAPPING || m->range.start != ptr ||
		    m->range.end > end)
			return false;
	}
	return true;
}

/*
 * With the lock: whether [ptr, ptr + size) begins in what is reserved and
 * parts no mapping. *@holes: not all of it is mapped.
 */
static bool is_parted(uintptr_t ptr, size_t size, bool *holes)
{
	uintptr_t end = ptr + size, at = ptr;
	struct soft_memory *m;

	*holes = false;
	if (!hm_soft_granular(size) || ptr & (SOFT_GRANULARITY - 1) ||
	    end < ptr || !hm_range_find(&hm_soft_world->reserved, ptr, 1))
		return true;
	while (at < end && (m = first_mapping(at, end))) {
		*holes = *holes || m->range.start > at;
		if (m->range.start < ptr || m->range.end > end)
			return true;
		at = m->range.end;
	}
	*holes = *holes || at < end;
	return false;
}

static CUresult mem_unmap(CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_SUCCESS;
	struct soft_memory *m;
	bool holes;

	SOFT_ENTER(cuMemUnmap);
	hm_soft_lock();
	if (is_parted(ptr, size, &holes))
		res = CUDA_ERROR_INVALID_VALUE;
	else if (holes)
		hm_check_hole(ptr, size, "cuMemUnmap");
	while (!res && (m = first_mapping(ptr, ptr + size))) {
		hm_check_gone(m, NULL, "cuMemUnmap");
		hm_soft_unmap(m);
	}
	hm_soft_unlock();
	return res;
}

/* The bit of a place in the masks of a mapping; -1: there is no such place. */
static int place_bit(const CUmemLocation *location)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return location->id >= 0 &&
		       location->id < hm_soft_world->nr_devices ?
			location->id : -1;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return SOFT_MAX_DEVICES;
	default:
		return -1;
	}
}

/* What the CPU may do where @m is. */
static int cpu_prot(const struct soft_memory *m)
{
	const uint32_t who = hm_soft_handle_host(m->handle) ? HOST_BIT : ~0U;

	return (m->readers & who ? PROT_READ : 0) |
	       (m->writers & who ? PROT_WRITE : 0);
}

static void set_masks(struct soft_memory *m, int place, int prot)
{
	const uint32_t bit = 1U << place;

	m->readers = prot & PROT_READ ? m->readers | bit : m->readers & ~bit;
	m->writers = prot & PROT_WRITE ? m->writers | bit : m->writers & ~bit;
}

static CUresult mem_set_access(CUdeviceptr ptr, size_t size,
			       const CUmemAccessDesc *desc, size_t count)
{
	static const int prots[] = {
		[CU_MEM_ACCESS_FLAGS_PROT_NONE] = PROT_NONE,
		[CU_MEM_ACCESS_FLAGS_PROT_READ] = PROT_READ,
		[2] = -1,
		[CU_MEM_ACCESS_FLAGS_PROT_READWRITE] = PROT_READ | PROT_WRITE,
	};
	CUresult res = CUDA_SUCCESS;
	struct soft_memory *m;
	bool host = false;
	uintptr_t at;
	size_t i;

	SOFT_ENTER(cuMemSetAccess);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < count; i++) {
		unsigned int flags = desc[i].flags;

		if (place_bit(&desc[i].location) < 0 || flags > 3 ||
		    prots[flags] < 0)
			return CUDA_ERROR_INVALID_VALUE;
		host = host || place_bit(&desc[i].location) ==
			SOFT_MAX_DEVICES;
	}
	hm_soft_lock();
	if (!is_whole(ptr, size))
		res = CUDA_ERROR_INVALID_VALUE;
	for (at = ptr; host && !res && at < ptr + size; at = m->range.end) {
		m = hm_soft_find(at, 1);
		if (!hm_soft_handle_host(m->handle))
			res = CUDA_ERROR_NOT_SUPPORTED;
	}
	for (at = ptr; !res && at < ptr + size; at = m->range.end) {
		m = hm_soft_find(at, 1);
		for (i = 0; i < count; i++)
			set_masks(m, place_bit(&desc[i].location),
				  prots[desc[i].flags]);
		if (mprotect((void *)at, m->range.end - at, cpu_prot(m)))
			res = errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY :
				CUDA_ERROR_OPERATING_SYSTEM;
	}
	hm_soft_unlock();
	return res;
}

/* Mappings are gone by now. */
void hm_soft_free_vmm(struct soft_world *w)
{
	struct hm_range *r;

	hm_soft_free_handles(w);
	while ((r = hm_range_any(&w->reserved))) {
		if (w->debug)
			hm_soft_leak("address range", r->start,
				     r->end - r->start);
		hm_range_erase(&w->reserved, r);
		munmap((void *)r->start, r->end - r->start);
		free(r);
	}
}

static CUresult mem_get_access(unsigned long long *flags,
			       const CUmemLocation *location, CUdeviceptr ptr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	int bit = place_bit(location);
	struct soft_memory *m;

	SOFT_ENTER(cuMemGetAccess);
	if (bit < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (m && m->kind == SOFT_MAPPING) {
		/* The host at large has a device's memory as the device has. */
		if (location->type == CU_MEM_LOCATION_TYPE_HOST &&
		    !hm_soft_handle_host(m->handle))
			bit = m->handle->prop.location.id;
		*flags = (m->readers >> bit & 1 ?
			  CU_MEM_ACCESS_FLAGS_PROT_READ : 0) |
			 (m->writers >> bit & 1 ?
			  CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult retain_handle(CUmemGenericAllocationHandle *handle, void *ptr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_memory *m;

	SOFT_ENTER(cuMemRetainAllocationHandle);
	if (!handle)
		return res;
	hm_soft_lock();
	m = hm_soft_find((uintptr_t)ptr, 1);
	if (m && m->kind == SOFT_MAPPING) {
		m->handle->refs++;
		*handle = (uintptr_t)m->handle;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_vmm(struct hm_api *d)
{
	d->cuMemAddressReserve = address_reserve;
	d->cuMemAddressFree = address_free;
	d->cuMemMap = mem_map;
	d->cuMemUnmap = mem_unmap;
	d->cuMemSetAccess = mem_set_access;
	d->cuMemGetAccess = mem_get_access;
	d->cuMemRetainAllocationHandle = retain_handle;
	d->cuMemGetAllocationGranularity = get_granularity;
	d->cuMemCreate = mem_create;
	d->cuMemRelease = mem_release;
	d->cuMemExportToShareableHandle = export_handle;
	d->cuMemImportFromShareableHandle = import_handle;
}
