// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The vmm provider: addresses and device memory apart. Handles are for one
 * device; mappings can be used by it and by the peers that were asked for.
 *
 * No call here waits for the device. A mapping costs the driver some 20 us
 * and unmapping 12, whatever the size: the pool keeps handles large, and maps
 * nothing that it has mapped already.
 */
#include <errno.h>
#include <stdlib.h>

#include "provider/vmm.h"

struct vmm_provider {
	struct hm_provider p;
	CUmemAllocationProp prop;
	bool can_rdma;
	size_t nr_access;
	CUmemAccessDesc access[HM_MAX_DEVICES];
};

static struct vmm_provider *to_vmm(struct hm_provider *p)
{
	return (struct vmm_provider *)p;
}

static int failed(const struct hm_provider *p, const char *call, CUresult res)
{
	return hm_driver_error(&p->hm->driver, call, res);
}

static int vmm_reserve(struct hm_provider *self, size_t size, size_t align,
		       uintptr_t *addr)
{
	struct hm_context saved;
	CUdeviceptr ptr;
	CUresult res;
	int err;

	err = hm_provider_enter(self, &saved);
	if (err)
		return err;
	res = self->hm->driver.cuMemAddressReserve(&ptr, size, align, 0, 0);
	hm_context_leave(self->hm, &saved);
	if (res)
		return failed(self, "cuMemAddressReserve", res);
	*addr = ptr;
	return 0;
}

static int vmm_unreserve(struct hm_provider *self, uintptr_t addr,
			 size_t size)
{
	CUresult res = self->hm->driver.cuMemAddressFree(addr, size);

	return res ? failed(self, "cuMemAddressFree", res) : 0;
}

static int create_as(struct hm_provider *self, size_t size, bool rdma,
		     CUmemAllocationHandleType types, uint64_t *handle)
{
	struct vmm_provider *v = to_vmm(self);
	CUmemAllocationProp prop = v->prop;
	CUmemGenericAllocationHandle h;
	CUresult res;
	int err;

	err = hm_check_owner(self->hm);
	if (err)
		return err;
	prop.allocFlags.gpuDirectRDMACapable = rdma && v->can_rdma;
	prop.requestedHandleTypes = types;
	res = self->hm->driver.cuMemCreate(&h, size, &prop, 0);
	if (res)
		return failed(self, "cuMemCreate", res);
	*handle = h;
	return 0;
}

static int vmm_create(struct hm_provider *self, size_t size, bool rdma,
		      uint64_t *handle)
{
	return create_as(self, size, rdma, to_vmm(self)->prop.requestedHandleTypes, handle);
}

static int vmm_create_shared(struct hm_provider *self, size_t size, uint64_t *handle)
{
	if (!self->hm->driver.cuMemExportToShareableHandle)
		return hm_error(-EOPNOTSUPP, "vmm: the driver does not export handles");
	return create_as(self, size, true, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, handle);
}

static int vmm_release(struct hm_provider *self, uint64_t handle)
{
	CUresult res = self->hm->driver.cuMemRelease(handle);

	return res ? failed(self, "cuMemRelease", res) : 0;
}

static int map_for(struct hm_provider *self, uintptr_t addr, size_t size,
		   uint64_t handle, const CUmemAccessDesc *access)
{
	const struct hm_driver *d = &self->hm->driver;
	CUresult res;
	int err;

	err = hm_check_owner(self->hm);
	if (err)
		return err;
	res = d->cuMemMap(addr, size, 0, handle, 0);
	if (res)
		return failed(self, "cuMemMap", res);
	res = d->cuMemSetAccess(addr, size, access, to_vmm(self)->nr_access);
	if (!res)
		return 0;
	err = failed(self, "cuMemSetAccess", res);
	return hm_retry_once(d->cuMemUnmap(addr, size)) ? -EUCLEAN : err;
}

static int vmm_map(struct hm_provider *self, uintptr_t addr, size_t size,
		   uint64_t handle)
{
	return map_for(self, addr, size, handle, to_vmm(self)->access);
}

static int vmm_map_read(struct hm_provider *self, uintptr_t addr, size_t size,
			uint64_t handle)
{
	const struct vmm_provider *v = to_vmm(self);
	CUmemAccessDesc access[HM_MAX_DEVICES];
	size_t i;

	for (i = 0; i < v->nr_access; i++) {
		access[i] = v->access[i];
		access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	}
	return map_for(self, addr, size, handle, access);
}

static int vmm_unmap(struct hm_provider *self, uintptr_t addr, size_t size)
{
	CUresult res = self->hm->driver.cuMemUnmap(addr, size);

	return res ? failed(self, "cuMemUnmap", res) : 0;
}

static int vmm_export_fd(struct hm_provider *self, uint64_t handle, int *fd)
{
	const struct hm_driver *d = &self->hm->driver;
	struct vmm_provider *v = to_vmm(self);
	CUresult res;

	if (v->prop.requestedHandleTypes !=
	    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return hm_error(-EOPNOTSUPP, "vmm: made without export=fd");
	res = d->cuMemExportToShareableHandle(fd, handle,
				CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return res ? failed(self, "cuMemExportToShareableHandle", res) : 0;
}

static CUmemLocation host_location(const struct hm_provider *self)
{
	const int node = self->hm->devices[self->device].platform.host_node;

	return (CUmemLocation){
		.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node > 0 ? node : 0,
	};
}

static int vmm_create_host(struct hm_provider *self, size_t size, uint64_t *handle)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = host_location(self),
	};
	CUmemGenericAllocationHandle h;
	CUresult res;
	int err;

	err = hm_check_owner(self->hm);
	if (err)
		return err;
	res = self->hm->driver.cuMemCreate(&h, size, &prop, 0);
	if (res == CUDA_ERROR_INVALID_DEVICE || res == CUDA_ERROR_NOT_SUPPORTED)
		return hm_error(-EOPNOTSUPP, "vmm: the driver makes no handles of host memory");
	if (res)
		return failed(self, "cuMemCreate", res);
	*handle = h;
	return 0;
}

static int vmm_access_host(struct hm_provider *self, uintptr_t addr, size_t size)
{
	const CUmemAccessDesc access = {
		.location = host_location(self), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUresult res = self->hm->driver.cuMemSetAccess(addr, size, &access, 1);

	return res ? failed(self, "cuMemSetAccess", res) : 0;
}

static const struct hm_provider_ops vmm_ops = {
	.name = "vmm",
	.reserve = vmm_reserve,
	.unreserve = vmm_unreserve,
	.create = vmm_create,
	.release = vmm_release,
	.map = vmm_map,
	.map_read = vmm_map_read,
	.unmap = vmm_unmap,
	.export_fd = vmm_export_fd,
	.create_shared = vmm_create_shared,
	.create_host = vmm_create_host,
	.access_host = vmm_access_host,
	.destroy = hm_provider_free,
};

static bool has_calls(const struct hm_driver *d)
{
	return d->cuMemGetAllocationGranularity && d->cuMemAddressReserve &&
	       d->cuMemAddressFree && d->cuMemCreate && d->cuMemRelease &&
	       d->cuMemMap && d->cuMemUnmap && d->cuMemSetAccess;
}

static bool has_attribute(struct hetmem *hm, int device,
			  CUdevice_attribute attribute)
{
	int value = 0;

	return !hm->driver.cuDeviceGetAttribute(&value, attribute,
				hm->devices[device].handle) && value;
}

static int add_peers(struct vmm_provider *v, uint64_t peers)
{
	struct hetmem *hm = v->p.hm;
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++) {
		CUcontext ctx;
		int err;

		if (!(peers >> i & 1) || i == v->p.device)
			continue;
		/* What is not there is an error, and so is what has no path. */
		err = hm_device_context(hm, i, &ctx);
		if (err)
			return err;
		v->p.devices |= 1ULL << i;
		v->access[v->nr_access++] = (CUmemAccessDesc){
			.location = { CU_MEM_LOCATION_TYPE_DEVICE,
				      hm->devices[i].handle },
			.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
		};
	}
	return 0;
}

/*
 * Attributes report what the driver knows of; creating a handle shows what it
 * does.
 */
static int try_handle(struct vmm_provider *v)
{
	uint64_t handle;
	uintptr_t addr;
	int err;

	err = vmm_create(&v->p, v->p.granularity, v->can_rdma, &handle);
	if (err && v->can_rdma) {
		v->can_rdma = false;
		err = vmm_create(&v->p, v->p.granularity, false, &handle);
	}
	if (err || v->nr_access == 1) {
		return err ? err : hm_retry_once(vmm_release(&v->p, handle));
	}
	err = vmm_reserve(&v->p, v->p.granularity, 0, &addr);
	if (!err) {
		err = vmm_map(&v->p, addr, v->p.granularity, handle);
		if (!err || err == -EUCLEAN)
			hm_retry_once(vmm_unmap(&v->p, addr, v->p.granularity));
		hm_retry_once(vmm_unreserve(&v->p, addr, v->p.granularity));
	}
	hm_retry_once(vmm_release(&v->p, handle));
	return err;
}

static int probe(struct vmm_provider *v, const struct hm_vmm_options *options)
{
	struct hetmem *hm = v->p.hm;
	CUresult res;
	int err;

	if (!has_calls(&hm->driver) ||
	    !has_attribute(hm, v->p.device,
		CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return hm_error(-EOPNOTSUPP, "vmm: device %d or its driver has no virtual memory management",
				v->p.device);
	if (options && options->export &&
	    !hm->driver.cuMemExportToShareableHandle)
		return hm_error(-EOPNOTSUPP, "vmm: the driver does not export handles");
	v->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	v->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	v->prop.location.id = hm->devices[v->p.device].handle;
	if (options && options->export == HM_VMM_EXPORT_FD)
		v->prop.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	else if (options && options->export == HM_VMM_EXPORT_FABRIC)
		v->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	res = hm->driver.cuMemGetAllocationGranularity(&v->p.granularity,
				&v->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (res)
		return failed(&v->p, "cuMemGetAllocationGranularity", res);
	v->can_rdma = has_attribute(hm, v->p.device,
		CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	v->access[0].location = v->prop.location;
	v->access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	v->nr_access = 1;
	err = options ? add_peers(v, options->peers) : 0;
	if (err)
		return err;
	/* The plainest one is not tried: nothing in it could be refused. */
	if (!v->prop.requestedHandleTypes && v->nr_access == 1 &&
	    !v->can_rdma)
		return 0;
	err = try_handle(v);
	return err == -EIO || err == -EUCLEAN ? -EOPNOTSUPP : err;
}

int hm_vmm_provider(struct hetmem *hm, int device,
		    const struct hm_vmm_options *options,
		    struct hm_provider **out)
{
	struct hm_context saved;
	struct vmm_provider *v;
	int err;

	err = hm_check_owner(hm);
	if (!err)
		err = hm_context_enter(hm, device, &saved);
	if (err)
		return err;
	v = hm_provider_new(hm, device, &vmm_ops,
			    HM_PROVIDER_MAPPABLE | HM_PROVIDER_DEVICE,
			    sizeof(*v));
	err = v ? probe(v, options) : -ENOMEM;
	hm_context_leave(hm, &saved);
	if (err) {
		free(v);
		return err;
	}
	if (v->prop.requestedHandleTypes)
		v->p.caps |= HM_PROVIDER_EXPORT;
	v->p.handle_types = v->prop.requestedHandleTypes;
	*out = &v->p;
	return 0;
}
