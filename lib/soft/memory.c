// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's memory that is allocated and freed as a whole: device,
 * managed, page-locked and registered memory.
 *
 * Every allocation is a mapping of its own, so that touching it after it
 * was freed is a fault and not a riddle.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "soft/soft.h"

/* Linux 5.14; older C libraries do not know it. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif

static const char *const kinds[] = {
	[SOFT_DEVICE] = "device memory",
	[SOFT_MANAGED] = "managed memory",
	[SOFT_HOST] = "page-locked memory",
	[SOFT_REGISTERED] = "registered memory",
	[SOFT_MAPPING] = "mapping",
};

struct soft_memory *hm_soft_find(uintptr_t addr, size_t size)
{
	return (void *)hm_range_find(&hm_soft_world->memory, addr, size);
}

CUresult hm_soft_map_memory(struct CUctx_st *ctx, enum soft_kind kind,
			    size_t size, struct soft_memory **out)
{
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;
	size_t len;
	void *p;

	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > PTRDIFF_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	len = (size + w->page_size - 1) & ~(w->page_size - 1);
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (kind == SOFT_DEVICE && hm_soft_charge(ctx, len))
		goto fail;
	/* Device memory can be named to others: it is in the file. */
	if (kind != SOFT_DEVICE)
		p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	else if (hm_soft_file_take(len, &m->offset))
		p = MAP_FAILED;
	else
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd,
			 m->offset);
	if (p == MAP_FAILED)
		goto fail_charge;
	m->range.start = (uintptr_t)p;
	m->range.end = m->range.start + len;
	m->size = size;
	m->kind = kind;
	m->ctx = ctx;
	m->id = ++w->next_id;
	m->advice.preferred = CU_DEVICE_INVALID;
	m->advice.prefetched = CU_DEVICE_INVALID;
	if (hm_range_insert(&w->memory, &m->range)) {
		munmap(p, len);
		goto fail_charge;
	}
	*out = m;
	return CUDA_SUCCESS;

fail_charge:
	if (kind == SOFT_DEVICE)
		hm_soft_uncharge(ctx, len);
fail:
	free(m);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void hm_soft_drop_memory(struct soft_memory *m)
{
	const size_t len = m->range.end - m->range.start;

	hm_range_erase(&hm_soft_world->memory, &m->range);
	if (m->node)
		hm_soft_unmap_pages(m->range.start, len);
	else if (m->kind != SOFT_REGISTERED)
		munmap((void *)m->range.start, len);
	if (m->kind == SOFT_DEVICE) {
		hm_soft_uncharge(m->ctx, len);
		if (!m->node)
			hm_soft_file_put(m->offset, len);
	}
	if (m->pool) {
		m->pool->used -= len;
		if (!m->freeing)
			m->pool->given -= len;
		if (m->pool->dying && !m->pool->used)
			m->pool->live = m->pool->dying = false;
	}
	if (m->node) {
		m->node->memory = NULL;
		m->node->live = 0;
		hm_soft_node_put(m->node);
	}
	hm_check_clock_free(&m->clock);
	hm_check_free_uses(&m->uses);
	free(m);
}

void hm_soft_free_memory(struct soft_world *w)
{
	struct soft_memory *m;

	while ((m = (void *)hm_range_any(&w->memory))) {
		if (w->debug)
			hm_soft_leak(kinds[m->kind], m->range.start, m->size);
		if (m->kind == SOFT_MAPPING)
			hm_soft_unmap(m);
		else
			hm_soft_drop_memory(m);
	}
}

static CUresult mem_get_info(size_t *available, size_t *total)
{
	struct CUctx_st *ctx = hm_soft_current();

	SOFT_ENTER(cuMemGetInfo);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	hm_soft_lock();
	*available = hm_soft_available(ctx);
	*total = ctx->capacity;
	hm_soft_unlock();
	return CUDA_SUCCESS;
}

static CUresult allocate(enum soft_kind kind, size_t size, uintptr_t *ptr)
{
	struct CUctx_st *ctx = hm_soft_current();
	struct soft_memory *m;
	CUresult res;

	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	hm_soft_lock();
	res = ctx->error;
	if (!res)
		res = hm_soft_unsafe();
	if (!res)
		res = hm_soft_map_memory(ctx, kind, size, &m);
	if (!res)
		*ptr = m->range.start;
	hm_soft_unlock();
	return res;
}

static CUresult mem_alloc(CUdeviceptr *ptr, size_t size)
{
	uintptr_t addr;
	CUresult res;

	SOFT_ENTER(cuMemAlloc);
	res = allocate(SOFT_DEVICE, size, &addr);
	if (!res)
		*ptr = addr;
	return res;
}

static CUresult mem_alloc_managed(CUdeviceptr *ptr, size_t size,
				  unsigned int flags)
{
	uintptr_t addr;
	CUresult res;

	SOFT_ENTER(cuMemAllocManaged);
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	if (hm_soft_current() && !hm_soft_says(hm_soft_current(), HM_FACT_MANAGED))
		return CUDA_ERROR_NOT_SUPPORTED;
	res = allocate(SOFT_MANAGED, size, &addr);
	if (!res)
		*ptr = addr;
	return res;
}

static CUresult mem_host_alloc(void **ptr, size_t size, unsigned int flags)
{
	uintptr_t addr;
	CUresult res;

	SOFT_ENTER(cuMemHostAlloc);
	if (flags & ~7U)
		return CUDA_ERROR_INVALID_VALUE;
	res = allocate(SOFT_HOST, size, &addr);
	if (!res)
		*ptr = (void *)addr;
	return res;
}

/*
 * Frees what begins at @addr and is of one of the kinds in the mask, when
 * all work of the device is done, as the driver does. Waiting drops the
 * lock: what was found before is looked for again.
 */
static CUresult free_whole(uintptr_t addr, unsigned int mask)
{
	struct soft_memory *m;
	CUresult res;

	hm_soft_lock();
	res = hm_soft_unsafe();
	if (res) {
		hm_soft_unlock();
		return res;
	}
	m = hm_soft_find(addr, 1);
	if (m)
		hm_soft_drain(m->ctx);
	m = hm_soft_find(addr, 1);
	if (!m || m->range.start != addr || m->freeing ||
	    !(mask & (m->pool ? 1U << SOFT_DEVICE : 1U << m->kind))) {
		res = CUDA_ERROR_INVALID_VALUE;
	} else {
		res = m->ctx->error;
		hm_soft_drop_memory(m);
	}
	hm_soft_unlock();
	return res;
}

static CUresult mem_free(CUdeviceptr ptr)
{
	SOFT_ENTER(cuMemFree);
	if (!ptr)
		return CUDA_SUCCESS;
	return free_whole(ptr, 1U << SOFT_DEVICE | 1U << SOFT_MANAGED);
}

static CUresult mem_free_host(void *ptr)
{
	SOFT_ENTER(cuMemFreeHost);
	return free_whole((uintptr_t)ptr, 1U << SOFT_HOST);
}

/*
 * Makes the pages be there, as pinning does. False: some are not mapped, or are read
 * only and not asked for as such. A kernel before 5.14 knows only the first.
 */
static bool pin(uintptr_t start, uintptr_t end, bool read_only)
{
	const size_t page_size = hm_soft_world->page_size;
	unsigned char core;

	start &= ~(page_size - 1);
	end = (end + page_size - 1) & ~(page_size - 1);
	if (!madvise((void *)start, end - start, read_only ?
		     MADV_POPULATE_READ : MADV_POPULATE_WRITE))
		return true;
	if (errno != EINVAL)
		return false;
	for (; start < end; start += page_size)
		if (mincore((void *)start, page_size, &core))
			return false;
	return true;
}

/* Bytes, not pages, as two buffers in one page may both be registered. */
static CUresult mem_host_register(void *ptr, size_t size, unsigned int flags)
{
	struct CUctx_st *ctx = hm_soft_current();
	uintptr_t start = (uintptr_t)ptr, end;
	struct soft_memory *m, *other;
	CUresult res = CUDA_SUCCESS;

	SOFT_ENTER(cuMemHostRegister);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ptr || !size || flags & ~0xfU ||
	    __builtin_add_overflow(start, size, &end) ||
	    !pin(start, end, flags & CU_MEMHOSTREGISTER_READ_ONLY))
		return CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->range.start = start;
	m->range.end = end;
	m->size = size;
	m->kind = SOFT_REGISTERED;
	m->ctx = ctx;
	hm_soft_lock();
	m->id = ++hm_soft_world->next_id;
	res = hm_soft_unsafe();
	if (res)
		goto out;
	other = hm_soft_find(start, size);
	if (other && (other->kind == SOFT_HOST ||
		      other->kind == SOFT_REGISTERED))
		res = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (other)
		res = CUDA_ERROR_INVALID_VALUE;
	else if (hm_range_insert(&hm_soft_world->memory, &m->range))
		res = CUDA_ERROR_OUT_OF_MEMORY;
out:
	hm_soft_unlock();
	if (res)
		free(m);
	return res;
}

static CUresult mem_host_unregister(void *ptr)
{
	CUresult res;
	bool inside;

	SOFT_ENTER(cuMemHostUnregister);
	hm_soft_lock();
	inside = hm_soft_find((uintptr_t)ptr, 1);
	hm_soft_unlock();
	res = free_whole((uintptr_t)ptr, 1U << SOFT_REGISTERED);
	return res == CUDA_ERROR_INVALID_VALUE && !inside ?
		CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : res;
}

/* What is told about a pointer. */

static unsigned int memory_type(const struct soft_memory *m)
{
	switch (m->kind) {
	case SOFT_HOST:
	case SOFT_REGISTERED:
		return CU_MEMORYTYPE_HOST;
	case SOFT_MAPPING:
		return hm_soft_handle_host(m->handle) ? CU_MEMORYTYPE_HOST :
			CU_MEMORYTYPE_DEVICE;
	default:
		return CU_MEMORYTYPE_DEVICE;
	}
}

/* Whether the CPU can use it where it is. */
static bool on_host(const struct soft_memory *m)
{
	return m->kind == SOFT_MANAGED || memory_type(m) == CU_MEMORYTYPE_HOST;
}

/* Of a mapping all that is reserved around it, as cuMemGetAddressRange() not. */
static struct hm_range range_of(const struct soft_memory *m)
{
	struct hm_range range = m->range;

	if (m->kind == SOFT_MAPPING)
		return *hm_range_find(&hm_soft_world->reserved,
				      m->range.start, 1);
	range.end = range.start + m->size;
	return range;
}

/* Whether legacy IPC could name it. */
static bool is_legacy_ipc(const struct soft_memory *m)
{
	return m->kind == SOFT_DEVICE && !m->pool && !m->node;
}

/* @data NULL: only says the size of the value. 0: unknown attribute. */
static size_t value_of(const struct soft_memory *m, uintptr_t ptr,
		       CUpointer_attribute which, void *data)
{
	union {
		void *pointer;
		CUdeviceptr device;
		unsigned int type;
		int ordinal;
		unsigned long long id;
		size_t size;
	} v;
	struct hm_range range;
	size_t size;

	memset(&v, 0, sizeof(v));
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		size = sizeof(v.pointer);
		/* Mappings and pools are no context's. */
		v.pointer = m && m->kind != SOFT_MAPPING && !m->pool ?
			m->ctx : NULL;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		size = sizeof(v.type);
		v.type = m ? memory_type(m) : 0;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		size = sizeof(v.device);
		v.device = m ? ptr : 0;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		size = sizeof(v.pointer);
		if (m && on_host(m))
			v.pointer = (void *)ptr;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		size = sizeof(v.type);
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		size = sizeof(v.type);
		v.type = m && is_legacy_ipc(m);
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		size = sizeof(v.id);
		if (m && m->kind == SOFT_MAPPING)
			v.id = m->handle->prop.requestedHandleTypes;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		size = sizeof(v.id);
		v.id = m ? m->id : 0;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED:
		/* Called a boolean; the driver writes four bytes. */
		size = sizeof(v.type);
		v.type = m && (which == CU_POINTER_ATTRIBUTE_MAPPED ||
			       m->kind == SOFT_MANAGED);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		size = sizeof(v.ordinal);
		v.ordinal = m ? m->ctx->ordinal : CU_DEVICE_INVALID;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		size = sizeof(v.device);
		v.device = m ? range_of(m).start : 0;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		size = sizeof(v.size);
		if (m) {
			range = range_of(m);
			v.size = range.end - range.start;
		}
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		size = sizeof(v.pointer);
		v.pointer = m ? m->pool : NULL;
		break;
	default:
		return 0;
	}
	if (data)
		memcpy(data, &v, size);
	return size;
}

static CUresult pointer_get_attribute(void *data,
				      CUpointer_attribute attribute,
				      CUdeviceptr ptr)
{
	struct soft_memory *m;
	CUresult res = CUDA_SUCCESS;

	SOFT_ENTER(cuPointerGetAttribute);
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (!m || (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
		   !on_host(m)) || !value_of(m, ptr, attribute, data))
		res = CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

static CUresult pointer_get_attributes(unsigned int nr,
				       CUpointer_attribute *attributes,
				       void **data, CUdeviceptr ptr)
{
	struct soft_memory *m;
	unsigned int i;

	SOFT_ENTER(cuPointerGetAttributes);
	for (i = 0; i < nr; i++)
		if (!value_of(NULL, 0, attributes[i], NULL))
			return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	for (i = 0; i < nr; i++)
		value_of(m, ptr, attributes[i], data[i]);
	hm_soft_unlock();
	return CUDA_SUCCESS;
}

static CUresult mem_get_address_range(CUdeviceptr *base, size_t *size,
				      CUdeviceptr ptr)
{
	struct soft_memory *m;
	CUresult res = CUDA_SUCCESS;

	SOFT_ENTER(cuMemGetAddressRange);
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (m) {
		if (base)
			*base = m->range.start;
		if (size)
			*size = m->size;
	} else {
		res = CUDA_ERROR_NOT_FOUND;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_memory(struct hm_api *d)
{
	d->cuMemGetInfo = mem_get_info;
	d->cuMemAlloc = mem_alloc;
	d->cuMemFree = mem_free;
	d->cuMemAllocManaged = mem_alloc_managed;
	d->cuMemHostAlloc = mem_host_alloc;
	d->cuMemFreeHost = mem_free_host;
	d->cuMemHostRegister = mem_host_register;
	d->cuMemHostUnregister = mem_host_unregister;
	d->cuPointerGetAttribute = pointer_get_attribute;
	d->cuPointerGetAttributes = pointer_get_attributes;
	d->cuMemGetAddressRange = mem_get_address_range;
}
