// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Opening and closing the library: the top of lib/, which calls everything and
 * which nothing calls.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/nvtx.h"
#include "core/publish.h"
#include "driver/check.h"
#include "hint/agent.h"
#include "place/place.h"
#include "platform/kmod_hint.h"
#include "provider/provider.h"
#include "spec/spec.h"
#include "vmm/vmm.h"

static void hold_hetmem(struct hm_fork *fork)
{
	pthread_mutex_lock(&((struct hetmem *)fork)->lock);
}

/* A child has nothing of a resource that another thread was making. */
static void let_go_hetmem(struct hm_fork *fork, bool child)
{
	struct hetmem *hm = (struct hetmem *)fork;

	if (child)
		pthread_mutex_init(&hm->making, NULL);
	pthread_mutex_unlock(&hm->lock);
}

enum choice { CHOICE_CUDA, CHOICE_SOFT, CHOICE_ANY };

static int choose(const struct hetmem_params *params, enum choice *choice)
{
	const char *name = params ? params->driver : NULL;

	if (!name)
		name = secure_getenv("HETMEM_DRIVER");
	if (!name || !*name)
		*choice = CHOICE_ANY;
	else if (!strcmp(name, "cuda"))
		*choice = CHOICE_CUDA;
	else if (!strcmp(name, "soft"))
		*choice = CHOICE_SOFT;
	else
		return hm_error(-EINVAL, "no driver \"%s\": there are \"cuda\" and \"soft\"",
				name);
	return 0;
}

/*
 * @cuda: why there is no CUDA, or what it is. Without a driver all of its calls
 * are NULL, and there is no device: host memory needs none.
 */
static int open_driver(struct hetmem *hm, enum choice choice,
		       const char *module_path, char *cuda, bool *has_cuda)
{
	char reason[HM_REASON_LEN];
	int err;

	*has_cuda = false;
	if (choice == CHOICE_SOFT) {
		snprintf(cuda, HM_REASON_LEN,
			 "not looked for: the soft driver was asked for");
		err = hm_soft_open(&hm->driver, &hm->soft, module_path, reason,
				   sizeof(reason));
		if (err)
			return hm_error(err, "driver \"soft\": %s", reason);
		hm->check = hm->soft->is_checking() ? hm->soft : NULL;
		return 0;
	}
	err = hm_cuda_open(&hm->driver, cuda, HM_REASON_LEN);
	*has_cuda = !err;
	if (err && choice == CHOICE_CUDA)
		return hm_error(-ENODEV, "driver \"cuda\": %s", cuda);
	if (err)
		hm->driver = (struct hm_driver){ .name = "none" };
	return 0;
}

/* What this machine can do, each with its reason. Asked once, at open. */

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

__attribute__((format(printf, 4, 5)))
static void set_feature(struct hetmem *hm, enum hetmem_feature_id id,
			bool available, const char *fmt, ...)
{
	va_list args;

	hm->available[id] = available;
	va_start(args, fmt);
	vsnprintf(hm->reasons[id], HM_REASON_LEN, fmt, args);
	va_end(args);
}

static void probe_pageable(struct hetmem *hm)
{
	const enum hetmem_feature_id id = HETMEM_FEATURE_PAGEABLE;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		const struct hetmem_platform *p = &hm->devices[i].platform;

		if (!p->pageable)
			continue;
		set_feature(hm, id, true, "device %d: %s", i,
			    hetmem_platform_name(p->kind));
		return;
	}
	if (!hm->nr_devices)
		set_feature(hm, id, false, "%s", hm->reasons[HETMEM_FEATURE_DEVICE]);
	else if (hm->soft)
		set_feature(hm, id, false,
			    "the soft driver plays no device with pageable memory access: set HETMEM_SOFT_MACHINE=hmm");
	else
		set_feature(hm, id, false,
			    "no device has pageable memory access: HMM needs the open NVIDIA module and a kernel with CONFIG_DEVICE_PRIVATE");
}

static void probe_migration(struct hetmem *hm)
{
	const enum hetmem_feature_id id = HETMEM_FEATURE_MIGRATION;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		if (hm->devices[i].module_id >= 0) {
			set_feature(hm, id, true,
				    "device %d is %s of hetmem.ko", i,
				    hm->devices[i].props.name);
			return;
		}
		if (hm->devices[i].platform.moves) {
			set_feature(hm, id, true,
				    "device %d by cuMemPrefetchAsync", i);
			return;
		}
	}
	if (!hm->nr_devices)
		set_feature(hm, id, false, "%s", hm->reasons[HETMEM_FEATURE_DEVICE]);
	else if (hm->available[HETMEM_FEATURE_PAGEABLE])
		set_feature(hm, id, false,
			    "no device takes pages of the process into memory of its own (%s)",
			    hm->reasons[HETMEM_FEATURE_PAGEABLE]);
	else if (!hm->soft)
		set_feature(hm, id, false, "%s", hm->reasons[HETMEM_FEATURE_PAGEABLE]);
	else if (!hm_kmod_there(&hm->kmod))
		set_feature(hm, id, false,
			    "the soft driver has no device pages without hetmem.ko and hetmem_emu.ko: %s",
			    hm->reasons[HETMEM_FEATURE_MODULE]);
	else
		set_feature(hm, id, false,
			    "no /dev/hetmem_emu0 that can be opened: load hetmem_emu.ko (needs CONFIG_DEVICE_PRIVATE)");
}

static void probe_flags(struct hetmem *hm)
{
	int managed = -1, vmm = -1, i;

	for (i = hm->nr_devices - 1; i >= 0; i--) {
		if (hm->devices[i].platform.concurrent)
			managed = i;
		if (hm->devices[i].props.vmm)
			vmm = i;
	}
	if (managed >= 0)
		set_feature(hm, HETMEM_FEATURE_MANAGED, true, "device %d", managed);
	else
		set_feature(hm, HETMEM_FEATURE_MANAGED, false, "%s", hm->nr_devices ?
			    "no device has concurrent managed access" :
			    hm->reasons[HETMEM_FEATURE_DEVICE]);
	if (vmm >= 0)
		set_feature(hm, HETMEM_FEATURE_VMM, true,
			    "device %d, granularity %llu KiB", vmm,
			    (unsigned long long)hm->devices[vmm].props.granularity >>
			    10);
	else
		set_feature(hm, HETMEM_FEATURE_VMM, false, "%s", hm->nr_devices ?
			    "no device with virtual memory management, or the driver lacks its calls" :
			    hm->reasons[HETMEM_FEATURE_DEVICE]);
}

/* @cuda, @module: what their open said. */
static void probe_features(struct hetmem *hm, const char *cuda, bool has_cuda,
			   const char *module)
{
	const bool kmod = hm_kmod_there(&hm->kmod);

	set_feature(hm, HETMEM_FEATURE_MODULE, kmod, "%s", module);
	if (kmod)
		set_feature(hm, HETMEM_FEATURE_RESIDENCY, true, "by hetmem.ko%s",
			    hm->kmod.info.features & HETMEM_FEATURE_DEVICE_PRIVATE ?
			    "" : "; this kernel has no device-private pages");
	else
		set_feature(hm, HETMEM_FEATURE_RESIDENCY, false,
			    "host nodes only, by move_pages(2): %s", module);
	set_feature(hm, HETMEM_FEATURE_CUDA, has_cuda, "%s", cuda);
	if (hm->nr_devices)
		set_feature(hm, HETMEM_FEATURE_DEVICE, true, "%d of the %s driver: %s",
			    hm->nr_devices, hm->driver.name,
			    hm->devices[0].props.name);
	else if (hm->soft)
		set_feature(hm, HETMEM_FEATURE_DEVICE, false,
			    "the soft driver has none: set HETMEM_SOFT_DEVICES");
	else
		set_feature(hm, HETMEM_FEATURE_DEVICE, false,
			    "there is no GPU: set HETMEM_DRIVER=soft to play one in software; %s",
			    cuda);
	probe_pageable(hm);
	probe_migration(hm);
	probe_flags(hm);
	if (!hm_numa_there())
		set_feature(hm, HETMEM_FEATURE_NUMA, false,
			    "this kernel is built without CONFIG_NUMA");
	else if (hm_numa_nodes() < 2)
		set_feature(hm, HETMEM_FEATURE_NUMA, false, "there is one node");
	else
		set_feature(hm, HETMEM_FEATURE_NUMA, true, "%d nodes",
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

static void free_hetmem(struct hetmem *hm)
{
	hm_forget_devices(hm);
	hm_kmod_close(&hm->kmod);
	hm_lock_destroy(&hm->arenas_lock);
	pthread_mutex_destroy(&hm->making);
	pthread_mutex_destroy(&hm->lock);
	free(hm);
}

int hetmem_open(struct hetmem **out, const struct hetmem_params *params)
{
	char cuda[HM_REASON_LEN], module[HM_REASON_LEN];
	const char *module_path = NULL;
	enum choice choice = CHOICE_ANY;
	struct hetmem *hm;
	bool has_cuda;
	int err;

	if (!out)
		return hm_error(-EINVAL, "open: hm is NULL");
	if (params && params->size < sizeof(*params))
		return hm_error(-EINVAL, "open: params->size is %zu, set it to sizeof(struct hetmem_params)",
				params->size);
	err = choose(params, &choice);
	if (err)
		return err;
	hm = calloc(1, sizeof(*hm));
	if (!hm)
		return hm_error(-ENOMEM, "open: no memory");
	pthread_mutex_init(&hm->lock, NULL);
	pthread_mutex_init(&hm->making, NULL);
	hm_lock_init(&hm->arenas_lock, HM_FORK_ARENAS);
	hm->generation = hm_generation();
	hm->page_size = sysconf(_SC_PAGESIZE);
	hm->root = "";
	hm->kmod.fd = -1;
	hm->watching.fd = -1;
	err = hm_read_reserve(&hm->reserve);
	if (err)
		goto fail;
	if (params)
		module_path = params->module_path;
	hm_nvtx_open();

	hm_kmod_open(&hm->kmod, module_path, module, sizeof(module));
	if (hm_kmod_there(&hm->kmod) && hm_publish_wanted())
		hm_kmod_allow(hm->kmod.fd, HETMEM_SHAREABLE);
	err = open_driver(hm, choice, module_path, cuda, &has_cuda);
	if (err)
		goto fail;
	err = hm_probe_devices(hm);
	if (err)
		goto fail_driver;
	probe_features(hm, cuda, has_cuda, module);
	err = hm_place_open(hm);
	if (!err)
		err = hm_attach_open(hm);
	if (err)
		goto fail_place;

	hm->fork = (struct hm_fork){
		.level = HM_FORK_OPEN,
		.hold = hold_hetmem, .let_go = let_go_hetmem,
	};
	hm_fork_add(&hm->fork);
	err = hm_agent_open(hm);
	if (err) {
		hetmem_close(hm);
		return err;
	}
	*out = hm;
	return 0;

fail_place:
	hm_place_close(hm);
fail_driver:
	if (hm->soft)
		hm->soft->close();
fail:
	free_hetmem(hm);
	return err;
}

static void close_driver(struct hetmem *hm)
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].ctx)
			hm->driver.cuDevicePrimaryCtxRelease(
				hm->devices[i].handle);
	if (hm->soft)
		hm->soft->close();
}

void hetmem_close(struct hetmem *hm)
{
	if (!hm)
		return;
	hm_agent_close(hm);
	hm_replicas_close(hm);
	hm_current_close(hm);
	hm_attach_close(hm);
	hm_place_close(hm);
	hm_fork_remove(&hm->fork);
	if (hm->generation == hm_generation())
		close_driver(hm);
	hm_system_forget(hm);
	hm_custom_close(hm);
	hm_import_forget(hm);
	free_hetmem(hm);
}
