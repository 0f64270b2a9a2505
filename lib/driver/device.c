// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the devices of the driver are. Asked once, at open; nothing here changes
 * afterwards. platform/detect.c makes the verdict of the facts that are gathered
 * here.
 */
#include <errno.h>
#include <stdlib.h>

#include "driver/check.h"

/* 0 for an attribute that this driver does not know. */
static int attribute(const struct hetmem *hm, CUdevice device,
		     CUdevice_attribute which)
{
	int value = 0;

	if (hm->driver.cuDeviceGetAttribute(&value, which, device))
		return 0;
	return value;
}

static void ask_driver(const struct hetmem *hm, CUdevice device,
		       struct hm_platform *p)
{
	static const struct {
		enum hm_fact_id id;
		CUdevice_attribute attribute;
	} rows[] = {
		{ HM_FACT_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED },
		{ HM_FACT_PAGEABLE, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS },
		{ HM_FACT_HOST_TABLES,
		  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES },
		{ HM_FACT_MANAGED, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY },
		{ HM_FACT_CONCURRENT, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS },
		{ HM_FACT_DIRECT,
		  CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST },
		{ HM_FACT_REGISTERS, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED },
		{ HM_FACT_REGISTERED,
		  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM },
		{ HM_FACT_NODE, CU_DEVICE_ATTRIBUTE_NUMA_ID },
		{ HM_FACT_HOST_NODE, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID },
	};
	const struct hm_driver *d = &hm->driver;
	int value, config = 0;
	CUresult res;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		value = 0;
		res = d->cuDeviceGetAttribute(&value, rows[i].attribute, device);
		/* NUMA_ID counts only with NUMA_CONFIG. */
		if (!res && rows[i].id == HM_FACT_NODE)
			res = d->cuDeviceGetAttribute(&config,
					CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, device);
		if (rows[i].id == HM_FACT_NODE &&
		    config != CU_DEVICE_NUMA_CONFIG_NUMA_NODE)
			value = -1;
		if (res)
			hm_fact_unknown(p, rows[i].id, "%s", hm_cuda_name(d, res));
		else
			hm_fact_set(p, rows[i].id, value);
	}
}

/* @missing: why @nvml is not to be asked, or NULL. */
static void ask_nvml(const struct hetmem *hm, CUdevice device,
		     const struct hm_nvml *nvml, const char *missing,
		     struct hm_platform *p)
{
	CUuuid uuid;

	if (!missing && (!hm->driver.cuDeviceGetUuid ||
			 hm->driver.cuDeviceGetUuid(&uuid, device)))
		missing = "the driver tells no UUID";
	if (missing)
		hm_nvml_missing(p, missing);
	else
		hm_nvml_facts(nvml, (unsigned char *)uuid.bytes, p);
}

/* A machine that is played may have another kernel than this one. */
static void ask_soft(const struct hetmem *hm, int ordinal, struct hm_platform *p)
{
	int id;

	for (id = 0; hm->soft && id < HM_FACT_NR; id++)
		hm->soft->fact(ordinal, id, p);
}

static void judge_device(struct hetmem *hm, int ordinal,
			 const struct hm_nvml *nvml, const char *missing,
			 int config)
{
	struct hm_device *dev = &hm->devices[ordinal];
	struct hm_platform *p = dev->evidence;

	hm_platform_init(p);
	ask_driver(hm, dev->handle, p);
	ask_nvml(hm, dev->handle, nvml, missing, p);
	hm_kernel_facts(p, hm_platform_node(p));
	hm_module_facts(p, &hm->kmod, dev->module_id, config);
	ask_soft(hm, ordinal, p);
	hm_platform_judge(p);
	dev->platform = p->verdict;
	dev->props.platform = p->verdict.kind;
	dev->props.managed = p->verdict.concurrent;
	dev->props.host_node = p->verdict.host_node;
}

static void judge_devices(struct hetmem *hm)
{
	int config = hm_kmod_there(&hm->kmod) ? -1 : hm_kernel_device_private();
	struct hm_nvml real;
	const struct hm_nvml *nvml = &real;
	char reason[48];
	int err = 0, i;

	if (hm->soft)
		nvml = hm->soft->nvml;
	else
		err = hm_nvml_open(&real, reason, sizeof(reason));
	if (!err)
		err = hm_nvml_begin(nvml, reason, sizeof(reason));
	for (i = 0; i < hm->nr_devices; i++)
		judge_device(hm, i, nvml, err ? reason : NULL, config);
	if (!err)
		hm_nvml_end(nvml);
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
	props->vmm = has_vmm(hm, dev->handle);
	props->granularity = props->vmm ? granularity(hm, dev->handle) : 0;
	/*
	 * Devices of another driver than ours do not register; of the soft
	 * driver's, only those that this context's module has, too.
	 */
	dev->module_id = -1;
	if (hm->soft && hm_kmod_there(&hm->kmod))
		dev->module_id = hm->soft->module_id(ordinal);
	props->module_id = dev->module_id;
	if (!dev->evidence)
		dev->evidence = malloc(sizeof(*dev->evidence));
	return dev->evidence ? 0 : hm_error(-ENOMEM, "open: no memory");
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
	if (nr)
		judge_devices(hm);
	return 0;
}

void hm_forget_devices(struct hetmem *hm)
{
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++)
		free(hm->devices[i].evidence);
}

int hm_device_of_node(const struct hetmem *hm, int node)
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (node >= 0 && hm->devices[i].platform.node == node)
			return i;
	return -1;
}

bool hm_any_platform(const struct hetmem *hm,
		     bool (*test)(const struct hetmem_platform *p))
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (test(&hm->devices[i].platform))
			return true;
	return false;
}

int hetmem_device_count(struct hetmem *hm)
{
	if (!hm)
		return hm_error(-EINVAL, "device_count: hm is NULL");
	return hm->nr_devices;
}

/*
 * 0, -EINVAL or -ENODEV, with the text. @name: the caller's of @out; @size: of that,
 * which needs @need.
 */
static int check_ask(const struct hetmem *hm, const char *what, const char *name,
		     int device, const void *out, size_t size, size_t need)
{
	if (!hm || !out)
		return hm_error(-EINVAL, "%s: %s is NULL", what,
				hm ? name : "hm");
	if (size < need)
		return hm_error(-EINVAL, "%s: size is %zu, set it to sizeof(struct hetmem_%s)",
				what, size, what);
	if (device < 0 || device >= hm->nr_devices)
		return hm_no_device(hm, what, device);
	return 0;
}

int hetmem_device_props(struct hetmem *hm, int device,
			struct hetmem_device_props *props)
{
	const size_t size = props ? props->size : 0;
	int err = check_ask(hm, "device_props", "props", device, props, size,
			    sizeof(*props));

	if (err)
		return err;
	*props = hm->devices[device].props;
	props->size = size;
	return 0;
}

int hetmem_platform(struct hetmem *hm, int device,
		    struct hetmem_platform *platform)
{
	const size_t size = platform ? platform->size : 0;
	int err = check_ask(hm, "platform", "platform", device, platform, size,
			    sizeof(*platform));

	if (err)
		return err;
	*platform = hm->devices[device].platform;
	platform->size = size;
	return 0;
}

int hetmem_evidence(struct hetmem *hm, int device, unsigned int index,
		    struct hetmem_evidence *evidence)
{
	const size_t size = evidence ? evidence->size : 0;
	int err = check_ask(hm, "evidence", "evidence", device, evidence, size,
			    sizeof(*evidence));

	if (err)
		return err;
	if (index >= HM_FACT_NR)
		return hm_error(-ENOENT, "evidence: there are %d pieces",
				HM_FACT_NR);
	*evidence = (struct hetmem_evidence){
		.size = size,
		.source = hm_fact_rows[index].source,
		.what = hm_fact_rows[index].what,
		.value = hm->devices[device].evidence->facts[index].text,
	};
	return 0;
}

const char *hetmem_contradiction(struct hetmem *hm, int device,
				 unsigned int index)
{
	if (!hm || device < 0 || device >= hm->nr_devices ||
	    index >= hm->devices[device].evidence->nr_contradictions)
		return NULL;
	return hm->devices[device].evidence->contradictions[index];
}

const char *hetmem_driver_name(struct hetmem *hm)
{
	return hm ? hm->driver.name : "";
}
