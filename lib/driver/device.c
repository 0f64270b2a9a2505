// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the devices of the driver are. Asked once, at open; nothing here changes
 * afterwards.
 */
#include <errno.h>

#include "driver/check.h"
#include "platform/platform.h"

/* 0 for an attribute that this driver does not know. */
static int attribute(const struct hetmem *hm, CUdevice device,
		     CUdevice_attribute which)
{
	int value = 0;

	if (hm->driver.cuDeviceGetAttribute(&value, which, device))
		return 0;
	return value;
}

/* What the platform makes its verdict of. */
static struct hm_evidence evidence(const struct hetmem *hm, CUdevice device)
{
	struct hm_evidence e = { .soft = hm->soft, .numa_node = -1 };
	int node;

	e.pageable = attribute(hm, device,
			CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
	e.host_tables = attribute(hm, device,
			CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
	if (attribute(hm, device, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG) ==
	    CU_DEVICE_NUMA_CONFIG_NUMA_NODE &&
	    !hm->driver.cuDeviceGetAttribute(&node,
				CU_DEVICE_ATTRIBUTE_NUMA_ID, device))
		e.numa_node = node;
	return e;
}

static int host_node(const struct hetmem *hm, CUdevice device)
{
	int node;

	if (hm->driver.cuDeviceGetAttribute(&node,
				CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device))
		return -1;
	return hm_numa_has_node(node) ? node : -1;
}

static bool has_vmm(const struct hetmem *hm, CUdevice device)
{
	const struct hm_driver *d = &hm->driver;

	return attribute(hm, device,
		CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
	       d->cuMemAddressReserve && d->cuMemAddressFree &&
	       d->cuMemCreate && d->cuMemRelease && d->cuMemMap &&
	       d->cuMemUnmap && d->cuMemSetAccess &&
	       d->cuMemGetAllocationGranularity;
}

static uint64_t granularity(const struct hetmem *hm, CUdevice device)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
	size_t size = 0;

	if (hm->driver.cuMemGetAllocationGranularity(&size, &prop,
					CU_MEM_ALLOC_GRANULARITY_MINIMUM))
		return 0;
	return size;
}

static int probe_device(struct hetmem *hm, int ordinal)
{
	const struct hm_driver *d = &hm->driver;
	struct hm_device *dev = &hm->devices[ordinal];
	struct hetmem_device_props *props = &dev->props;
	struct hm_evidence e;
	size_t total = 0;
	CUresult res;

	res = d->cuDeviceGet(&dev->handle, ordinal);
	if (res)
		return hm_driver_error(d, "cuDeviceGet", res);
	res = d->cuDeviceGetName(props->name, sizeof(props->name),
				 dev->handle);
	if (res)
		return hm_driver_error(d, "cuDeviceGetName", res);
	props->name[sizeof(props->name) - 1] = '\0';
	res = d->cuDeviceTotalMem(&total, dev->handle);
	if (res)
		return hm_driver_error(d, "cuDeviceTotalMem", res);
	props->size = sizeof(*props);
	props->total = total;
	e = evidence(hm, dev->handle);
	props->addressing = hm_platform_verdict(&e);
	props->managed = !!attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
	props->vmm = has_vmm(hm, dev->handle);
	props->granularity = props->vmm ? granularity(hm, dev->handle) : 0;
	props->host_node = host_node(hm, dev->handle);
	dev->pageable = e.pageable;
	dev->managed = attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
	dev->registers = attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
	dev->registered = attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
	/*
	 * Devices of another driver than ours do not register; of the soft
	 * driver's, only those that this context's module has, too.
	 */
	dev->module_id = -1;
	if (hm->soft && hm_kmod_there(&hm->kmod))
		dev->module_id = hm->soft->module_id(ordinal);
	props->module_id = dev->module_id;
	return 0;
}

int hm_probe_devices(struct hetmem *hm)
{
	CUresult res;
	int nr = 0, i, err;

	if (!hm->driver.cuDeviceGetCount)
		return 0;
	res = hm->driver.cuDeviceGetCount(&nr);
	if (res)
		return hm_driver_error(&hm->driver, "cuDeviceGetCount", res);
	if (nr > HM_MAX_DEVICES)
		nr = HM_MAX_DEVICES;
	for (i = 0; i < nr; i++) {
		err = probe_device(hm, i);
		if (err)
			return err;
	}
	hm->nr_devices = nr;
	return 0;
}

int hetmem_device_count(struct hetmem *hm)
{
	if (!hm)
		return hm_error(-EINVAL, "device_count: hm is NULL");
	return hm->nr_devices;
}

int hetmem_device_props(struct hetmem *hm, int device,
			struct hetmem_device_props *props)
{
	size_t size;

	if (!hm || !props)
		return hm_error(-EINVAL, "device_props: %s is NULL",
				hm ? "props" : "hm");
	size = props->size;
	if (size < sizeof(*props))
		return hm_error(-EINVAL, "device_props: size is %zu, set it to sizeof(struct hetmem_device_props)",
				size);
	if (device < 0 || device >= hm->nr_devices)
		return hm_no_device(hm, "device_props", device);
	*props = hm->devices[device].props;
	props->size = size;
	return 0;
}

const char *hetmem_driver_name(struct hetmem *hm)
{
	return hm ? hm->driver.name : "";
}
