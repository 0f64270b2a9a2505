// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's ways to name memory for others: handles of addresses,
 * descriptors for other processes. A descriptor is the handle's memfd; what
 * only a GPU's driver can share (legacy IPC, dma-buf) is refused as it refuses
 * memory that it cannot share.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/soft.h"

static CUresult retain_handle(CUmemGenericAllocationHandle *handle,
			      void *addr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_memory *m;

	SOFT_ENTER(cuMemRetainAllocationHandle);
	hm_soft_lock();
	m = hm_soft_find((uintptr_t)addr, 1);
	if (m && m->kind == SOFT_MAPPING) {
		m->handle->refs++;
		*handle = (uintptr_t)m->handle;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

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
	    h->prop.requestedHandleTypes != type)
		res = CUDA_ERROR_INVALID_VALUE;
	else
		fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
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

static CUresult get_properties(CUmemAllocationProp *prop,
			       CUmemGenericAllocationHandle handle)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_handle *h;

	SOFT_ENTER(cuMemGetAllocationPropertiesFromHandle);
	hm_soft_lock();
	h = hm_soft_handle(handle);
	if (h) {
		*prop = h->prop;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult get_range_handle(void *handle, CUdeviceptr ptr, size_t size,
				 CUmemRangeHandleType type,
				 unsigned long long flags)
{
	CUresult res;

	SOFT_ENTER(cuMemGetHandleForAddressRange);
	(void)handle;
	if (flags || !size || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	res = hm_soft_find(ptr, 1) ? CUDA_ERROR_NOT_SUPPORTED :
		CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

static CUresult ipc_get_mem_handle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct soft_memory *m;
	CUresult res;

	SOFT_ENTER(cuIpcGetMemHandle);
	(void)handle;
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	res = m && m->kind == SOFT_DEVICE && !m->pool ?
		CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

static CUresult ipc_open_mem_handle(CUdeviceptr *ptr, CUipcMemHandle handle,
				    unsigned int flags)
{
	SOFT_ENTER(cuIpcOpenMemHandle);
	(void)ptr;
	(void)handle;
	(void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult ipc_close_mem_handle(CUdeviceptr ptr)
{
	SOFT_ENTER(cuIpcCloseMemHandle);
	(void)ptr;
	return CUDA_ERROR_INVALID_VALUE;
}

void hm_soft_fill_share(struct hm_driver *d)
{
	d->cuMemRetainAllocationHandle = retain_handle;
	d->cuMemExportToShareableHandle = export_handle;
	d->cuMemImportFromShareableHandle = import_handle;
	d->cuMemGetAllocationPropertiesFromHandle = get_properties;
	d->cuMemGetHandleForAddressRange = get_range_handle;
	d->cuIpcGetMemHandle = ipc_get_mem_handle;
	d->cuIpcOpenMemHandle = ipc_open_mem_handle;
	d->cuIpcCloseMemHandle = ipc_close_mem_handle;
}
