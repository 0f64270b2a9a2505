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
	default:
		return CU_MEMORYTYPE_DEVICE;
	}
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
	size_t size;

	memset(&v, 0, sizeof(v));
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		size = sizeof(v.pointer);
		v.pointer = m ? m->ctx : NULL;
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
		if (m && m->kind != SOFT_DEVICE && m->kind != SOFT_MAPPING)
			v.pointer = (void *)ptr;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		size = sizeof(v.type);
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
		v.device = m ? m->range.start : 0;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		size = sizeof(v.size);
		v.size = m ? m->size : 0;
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
	if (!m || !value_of(m, ptr, attribute, data))
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

	SOFT_ENTER(cuPointerSetAttribute);
	hm_soft_lock();
	if (value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
	    hm_soft_find(ptr, 1))
		res = CUDA_SUCCESS;
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
