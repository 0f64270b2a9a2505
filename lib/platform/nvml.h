/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * NVML: a second opinion about NVIDIA's devices. Nothing depends on it: where it is
 * missing or fails, its facts are unknown.
 *
 * The table has NVML's own names, types and meaning. hm_nvml_open() fills it from
 * libnvidia-ml.so.1; the soft driver has one of its own.
 */
#ifndef HETMEM_PLATFORM_NVML_H
#define HETMEM_PLATFORM_NVML_H

#include "platform/platform.h"

#define HM_NVML_SUCCESS			0
#define HM_NVML_ERROR_NOT_SUPPORTED	3
#define HM_NVML_ERROR_NOT_FOUND		6
#define HM_NVML_ERROR_LIBRARY_NOT_FOUND	12

/* nvmlDeviceAddressingMode_t, its version: the size, and 1 in the upper byte. */
struct hm_nvml_mode {
	unsigned int version;
	unsigned int value;
};

#define HM_NVML_MODE_VERSION	(sizeof(struct hm_nvml_mode) | 1U << 24)

struct hm_nvml {
	/* pre: every other call stands between these two. */
	int (*nvmlInit_v2)(void);
	int (*nvmlShutdown)(void);

	/* pre:  "GPU-" or "MIG-" and the UUID, in lower case. */
	int (*nvmlDeviceGetHandleByUUID)(const char *uuid, void **device);

	/*
	 * NULL where NVML is too old.
	 * post: enum hm_mode; the node, where the device's memory is one, else
	 *	 NOT_SUPPORTED.
	 */
	int (*nvmlDeviceGetAddressingMode)(void *device,
					   struct hm_nvml_mode *mode);
	int (*nvmlDeviceGetNumaNodeId)(void *device, unsigned int *node);
};

/* 0, or -ENODEV and why in @reason. The library stays loaded. */
int hm_nvml_open(struct hm_nvml *nvml, char *reason, size_t len);

/*
 * Asks @nvml about all devices: between begin and end, facts for each. Where begin
 * fails, @reason is why, and the others are not called.
 */
int hm_nvml_begin(const struct hm_nvml *nvml, char *reason, size_t len);
void hm_nvml_facts(const struct hm_nvml *nvml, const unsigned char uuid[16],
		   struct hm_platform *p);
void hm_nvml_end(const struct hm_nvml *nvml);

/* All facts of NVML are unknown, because of @reason. */
void hm_nvml_missing(struct hm_platform *p, const char *reason);

#endif /* HETMEM_PLATFORM_NVML_H */
