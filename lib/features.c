// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the devices are and what this machine can do, each with its reason.
 * Asked once, at open; nothing here changes afterwards.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static const char *const feature_names[HETMEM_FEATURE_NR] = {
	[HETMEM_FEATURE_MODULE] = "module",
	[HETMEM_FEATURE_RESIDENCY] = "residency",
	[HETMEM_FEATURE_CUDA] = "cuda",
	[HETMEM_FEATURE_DEVICE] = "device",
	[HETMEM_FEATURE_PAGEABLE] = "pageable",
	[HETMEM_FEATURE_MIGRATION] = "migration",
	[HETMEM_FEATURE_MANAGED] = "managed",
	[HETMEM_FEATURE_VMM] = "vmm",
	[HETMEM_FEATURE_NUMA] = "numa",
};

/* 0 for an attribute that this driver does not know. */
static int attribute(const struct hetmem *hm, CUdevice device,
		     CUdevice_attribute which)
{
	int value = 0;

	if (hm->driver.cuDeviceGetAttribute(&value, which, device))
		return 0;
	return value;
}

/*
 * A device that walks the CPU's page tables is coherent; then its own memory
 * is a NUMA node, or the driver keeps it to itself (CDMM).
 */
static int addressing(const struct hetmem *hm, CUdevice device)
{
	int node = -1;

	if (hm->soft)
		return HETMEM_ADDRESSING_SOFT;
	if (!attribute(hm, device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS))
		return HETMEM_ADDRESSING_NONE;
	if (!attribute(hm, device,
		       CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES))
		return HETMEM_ADDRESSING_HMM;
	if (attribute(hm, device, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG) ==
	    CU_DEVICE_NUMA_CONFIG_NUMA_NODE &&
	    !hm->driver.cuDeviceGetAttribute(&node,
				CU_DEVICE_ATTRIBUTE_NUMA_ID, device) &&
	    hm_numa_has_node(node))
		return HETMEM_ADDRESSING_ATS;
	return HETMEM_ADDRESSING_CDMM;
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
	props->addressing = addressing(hm, dev->handle);
	props->managed = !!attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
	props->vmm = has_vmm(hm, dev->handle);
	props->granularity = props->vmm ? granularity(hm, dev->handle) : 0;
	props->host_node = host_node(hm, dev->handle);
	dev->pageable = !!attribute(hm, dev->handle,
			CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
	/*
	 * Devices of another driver than ours do not register; of the soft
	 * driver's, only those that this context's module has, too.
	 */
	dev->module_id = -1;
	if (hm->soft && hm_kmod_there(&hm->kmod))
		dev->module_id = hm_soft_module_id(ordinal);
	props->module_id = dev->module_id;
	return 0;
}

int hm_probe_devices(struct hetmem *hm)
{
	CUresult res;
	int nr = 0, i, err;

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

__attribute__((format(printf, 4, 5)))
static void set(struct hetmem *hm, enum hetmem_feature_id id, bool available,
		const char *fmt, ...)
{
	va_list args;

	hm->available[id] = available;
	va_start(args, fmt);
	vsnprintf(hm->reasons[id], HM_REASON_LEN, fmt, args);
	va_end(args);
}

static void probe_pageable(struct hetmem *hm)
{
	static const char *const modes[] = {
		[HETMEM_ADDRESSING_NONE] = "none",
		[HETMEM_ADDRESSING_HMM] = "HMM",
		[HETMEM_ADDRESSING_ATS] = "ATS",
		[HETMEM_ADDRESSING_CDMM] = "ATS with CDMM",
		[HETMEM_ADDRESSING_SOFT] = "the soft driver: same process",
	};
	const enum hetmem_feature_id id = HETMEM_FEATURE_PAGEABLE;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		int mode = hm->devices[i].props.addressing;

		if (mode == HETMEM_ADDRESSING_NONE)
			continue;
		set(hm, id, true, "device %d: %s", i, modes[mode]);
		return;
	}
	if (!hm->nr_devices)
		set(hm, id, false, "there is no device");
	else
		set(hm, id, false,
		    "no device has pageable memory access: HMM needs the open NVIDIA module and a kernel with CONFIG_DEVICE_PRIVATE");
}

static void probe_migration(struct hetmem *hm)
{
	const enum hetmem_feature_id id = HETMEM_FEATURE_MIGRATION;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		if (hm->devices[i].module_id >= 0) {
			set(hm, id, true,
			    "device %d is %s of hetmem.ko", i,
			    hm->devices[i].props.name);
			return;
		}
		if (hm->devices[i].pageable) {
			set(hm, id, true,
			    "device %d by cuMemPrefetchAsync", i);
			return;
		}
	}
	if (!hm->nr_devices)
		set(hm, id, false, "there is no device");
	else if (!hm->soft)
		set(hm, id, false, "%s", hm->reasons[HETMEM_FEATURE_PAGEABLE]);
	else if (!hm_kmod_there(&hm->kmod))
		set(hm, id, false,
		    "the soft driver has no device pages without hetmem.ko and hetmem_emu.ko: %s",
		    hm->reasons[HETMEM_FEATURE_MODULE]);
	else
		set(hm, id, false,
		    "no /dev/hetmem_emu0 that can be opened: insmod build/hetmem_emu.ko (needs CONFIG_DEVICE_PRIVATE)");
}

static void probe_flags(struct hetmem *hm)
{
	int managed = -1, vmm = -1, i;

	for (i = hm->nr_devices - 1; i >= 0; i--) {
		if (hm->devices[i].props.managed)
			managed = i;
		if (hm->devices[i].props.vmm)
			vmm = i;
	}
	if (managed >= 0)
		set(hm, HETMEM_FEATURE_MANAGED, true, "device %d", managed);
	else
		set(hm, HETMEM_FEATURE_MANAGED, false, "%s", hm->nr_devices ?
		    "no device has concurrent managed access" :
		    "there is no device");
	if (vmm >= 0)
		set(hm, HETMEM_FEATURE_VMM, true,
		    "device %d, granularity %llu KiB", vmm,
		    (unsigned long long)hm->devices[vmm].props.granularity >>
		    10);
	else
		set(hm, HETMEM_FEATURE_VMM, false, "%s", hm->nr_devices ?
		    "no device with virtual memory management, or the driver lacks its calls" :
		    "there is no device");
}

void hm_probe_features(struct hetmem *hm, const char *cuda, bool has_cuda,
		       const char *module)
{
	const bool kmod = hm_kmod_there(&hm->kmod);

	set(hm, HETMEM_FEATURE_MODULE, kmod, "%s", module);
	if (kmod)
		set(hm, HETMEM_FEATURE_RESIDENCY, true, "by hetmem.ko%s",
		    hm->kmod.info.features & HETMEM_FEATURE_DEVICE_PRIVATE ?
		    "" : "; this kernel has no device-private pages");
	else
		set(hm, HETMEM_FEATURE_RESIDENCY, false,
		    "host nodes only, by move_pages(2): %s", module);
	set(hm, HETMEM_FEATURE_CUDA, has_cuda, "%s", cuda);
	if (hm->nr_devices)
		set(hm, HETMEM_FEATURE_DEVICE, true, "%d of the %s driver: %s",
		    hm->nr_devices, hm->driver.name,
		    hm->devices[0].props.name);
	else
		set(hm, HETMEM_FEATURE_DEVICE, false,
		    "the %s driver has none", hm->driver.name);
	probe_pageable(hm);
	probe_migration(hm);
	probe_flags(hm);
	if (!hm_numa_there())
		set(hm, HETMEM_FEATURE_NUMA, false,
		    "this kernel is built without CONFIG_NUMA");
	else if (hm_numa_nodes() < 2)
		set(hm, HETMEM_FEATURE_NUMA, false, "there is one node");
	else
		set(hm, HETMEM_FEATURE_NUMA, true, "%d nodes",
		    hm_numa_nodes());
}

int hetmem_feature(struct hetmem *hm, enum hetmem_feature_id id,
		   struct hetmem_feature *feature)
{
	if (!hm || !feature)
		return hm_error(-EINVAL, "feature: %s is NULL",
				hm ? "feature" : "hm");
	if ((unsigned int)id >= HETMEM_FEATURE_NR)
		return hm_error(-EINVAL, "feature: no feature %d", (int)id);
	feature->name = feature_names[id];
	feature->available = hm->available[id];
	feature->reason = hm->reasons[id];
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
		return hm_error(-ENODEV, "device_props: no device %d: there are %d",
				device, hm->nr_devices);
	*props = hm->devices[device].props;
	props->size = size;
	return 0;
}

const char *hetmem_driver_name(struct hetmem *hm)
{
	return hm ? hm->driver.name : "";
}
