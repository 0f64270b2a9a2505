// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the soft driver tells about a pointer.
 */
#include <string.h>

#include "driver/soft.h"

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
		v.type = m && hm_soft_is_legacy_ipc(m);
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

/* Every copy that is to be synchronous is, here. */
static CUresult pointer_set_attribute(const void *value,
				      CUpointer_attribute attribute,
				      CUdeviceptr ptr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_memory *m;

	SOFT_ENTER(cuPointerSetAttribute);
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && m)
		res = m->kind == SOFT_MAPPING ? CUDA_ERROR_NOT_SUPPORTED :
			hm_soft_unsafe();
	hm_soft_unlock();
	return res;
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
		*base = m->range.start;
		*size = m->size;
	} else {
		res = CUDA_ERROR_NOT_FOUND;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_pointer(struct hm_driver *d)
{
	d->cuPointerGetAttribute = pointer_get_attribute;
	d->cuPointerGetAttributes = pointer_get_attributes;
	d->cuPointerSetAttribute = pointer_set_attribute;
	d->cuMemGetAddressRange = mem_get_address_range;
}
