// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's ways to name memory for others: handles of addresses,
 * descriptors for other processes, and the 64 bytes of legacy IPC, which say
 * where in whose file the memory is. A descriptor is a memfd; one that stands
 * for a dma-buf is the file in which the range is, and no other driver can
 * import it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
	    !(h->prop.requestedHandleTypes & type))
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

/* With the lock: whole pages of one mapping or of one allocation. */
static int fd_of_range(uintptr_t ptr, size_t size, CUresult *res)
{
	const size_t mask = hm_soft_world->page_size - 1;
	struct soft_memory *m = hm_soft_find(ptr, 1);

	*res = CUDA_ERROR_INVALID_VALUE;
	if (!m || (ptr | size) & mask || size > m->range.end - ptr)
		return -1;
	*res = CUDA_SUCCESS;
	if (m->kind == SOFT_MAPPING)
		return hm_soft_handle_fd(m->handle);
	if (hm_soft_is_legacy_ipc(m))
		return hm_soft_world->fd;
	*res = CUDA_ERROR_INVALID_VALUE;
	return -1;
}

static CUresult get_range_handle(void *handle, CUdeviceptr ptr, size_t size,
				 CUmemRangeHandleType type,
				 unsigned long long flags)
{
	CUresult res;
	int fd;

	SOFT_ENTER(cuMemGetHandleForAddressRange);
	if (flags || !size || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	fd = fd_of_range(ptr, size, &res);
	if (fd >= 0)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	hm_soft_unlock();
	if (res)
		return res;
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}

/* What legacy IPC hands over: a part of the file of a process. */
struct name {
	char magic[8];
	uint64_t offset;
	uint64_t size;
	int32_t pid;
	int32_t fd;
	int32_t device;
};

static const char magic[8] = "hm soft";

bool hm_soft_is_legacy_ipc(const struct soft_memory *m)
{
	return m->kind == SOFT_DEVICE && !m->pool && !m->node && !m->imported;
}

static CUresult ipc_get_mem_handle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct name name = { .pid = getpid() };
	struct soft_memory *m;

	SOFT_ENTER(cuIpcGetMemHandle);
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (m && hm_soft_is_legacy_ipc(m)) {
		name.offset = m->offset;
		name.size = m->size;
		name.fd = hm_soft_world->fd;
		name.device = m->ctx->ordinal;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	if (res)
		return res;
	memcpy(name.magic, magic, sizeof(magic));
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &name, sizeof(name));
	return CUDA_SUCCESS;
}

/* @len bytes of another process's file, MAP_FAILED. */
static void *map_named(const struct name *name, size_t len)
{
	char path[64];
	void *p;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", name->pid, name->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return MAP_FAILED;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		 name->offset);
	close(fd);
	return p;
}

static CUresult ipc_open_mem_handle(CUdeviceptr *ptr, CUipcMemHandle handle,
				    unsigned int flags)
{
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;
	struct name name;
	size_t len;
	void *p;

	SOFT_ENTER(cuIpcOpenMemHandle);
	memcpy(&name, &handle, sizeof(name));
	if (flags & ~1U || memcmp(name.magic, magic, sizeof(magic)) ||
	    name.device < 0 || name.device >= w->nr_devices)
		return CUDA_ERROR_INVALID_VALUE;
	if (!hm_soft_current() || name.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	len = (name.size + w->page_size - 1) & ~(w->page_size - 1);
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p = map_named(&name, len);
	m->range.start = (uintptr_t)p;
	m->range.end = m->range.start + len;
	m->size = name.size;
	m->kind = SOFT_DEVICE;
	m->imported = true;
	m->ctx = &w->devices[name.device];
	hm_soft_lock();
	m->id = ++w->next_id;
	if (p != MAP_FAILED && hm_range_insert(&w->memory, &m->range)) {
		munmap(p, len);
		p = MAP_FAILED;
	}
	hm_soft_unlock();
	if (p == MAP_FAILED) {
		free(m);
		return CUDA_ERROR_MAP_FAILED;
	}
	*ptr = (uintptr_t)p;
	return CUDA_SUCCESS;
}

static CUresult ipc_close_mem_handle(CUdeviceptr ptr)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_memory *m;

	SOFT_ENTER(cuIpcCloseMemHandle);
	hm_soft_lock();
	m = hm_soft_find(ptr, 1);
	if (m && m->imported)
		hm_soft_drain(m->ctx);
	m = hm_soft_find(ptr, 1);
	if (m && m->imported && m->range.start == ptr) {
		hm_soft_drop_memory(m);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
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
