// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * NVML: loading libnvidia-ml.so.1, and the facts that it knows.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "platform/nvml.h"

#define NVML_LIBRARY	"libnvidia-ml.so.1"

int hm_nvml_open(struct hm_nvml *nvml, char *reason, size_t len)
{
	static const struct {
		const char *name;
		size_t offset;
		bool required;
	} calls[] = {
#define CALL(name, required) { #name, offsetof(struct hm_nvml, name), required }
		CALL(nvmlInit_v2, true),
		CALL(nvmlShutdown, true),
		CALL(nvmlDeviceGetHandleByUUID, true),
		CALL(nvmlDeviceGetAddressingMode, false),
		CALL(nvmlDeviceGetNumaNodeId, false),
#undef CALL
	};
	void *library = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL |
			       RTLD_NODELETE);
	const char *lacks = NULL, *why;
	size_t i;

	memset(nvml, 0, sizeof(*nvml));
	if (!library) {
		why = dlerror();
		snprintf(reason, len, !why || strstr(why, "No such file") ?
			 "no " NVML_LIBRARY : NVML_LIBRARY " cannot be loaded");
		return -ENODEV;
	}
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = dlsym(library, calls[i].name);

		memcpy((char *)nvml + calls[i].offset, &fn, sizeof(fn));
		if (!fn && calls[i].required && !lacks)
			lacks = calls[i].name;
	}
	dlclose(library);
	if (!lacks)
		return 0;
	snprintf(reason, len, "it lacks %s", lacks);
	return -ENODEV;
}

int hm_nvml_begin(const struct hm_nvml *nvml, char *reason, size_t len)
{
	int ret = nvml->nvmlInit_v2();

	if (ret == HM_NVML_SUCCESS)
		return 0;
	if (ret == HM_NVML_ERROR_LIBRARY_NOT_FOUND)
		snprintf(reason, len, "no " NVML_LIBRARY);
	else
		snprintf(reason, len, "nvmlInit: error %d", ret);
	return -ENODEV;
}

void hm_nvml_end(const struct hm_nvml *nvml)
{
	nvml->nvmlShutdown();
}

/* NVML names a whole device and a part of one (MIG) differently. */
static int find_device(const struct hm_nvml *nvml,
		       const unsigned char uuid[16], void **device)
{
	static const char *const prefixes[] = { "GPU", "MIG" };
	int ret = HM_NVML_ERROR_NOT_FOUND, len, i;
	char text[48];
	size_t k;

	for (k = 0; k < 2 && ret; k++) {
		len = snprintf(text, sizeof(text), "%s", prefixes[k]);
		for (i = 0; i < 16; i++)
			len += snprintf(text + len, sizeof(text) - len, "%s%02x",
					!i || i == 4 || i == 6 || i == 8 ||
					i == 10 ? "-" : "", uuid[i]);
		ret = nvml->nvmlDeviceGetHandleByUUID(text, device);
	}
	return ret;
}

static void unknown(struct hm_platform *p, enum hm_fact_id id, int ret)
{
	if (ret == HM_NVML_ERROR_NOT_SUPPORTED)
		hm_fact_unknown(p, id, "not supported");
	else
		hm_fact_unknown(p, id, "error %d", ret);
}

void hm_nvml_facts(const struct hm_nvml *nvml, const unsigned char uuid[16],
		   struct hm_platform *p)
{
	struct hm_nvml_mode mode = { .version = HM_NVML_MODE_VERSION };
	unsigned int node = 0;
	void *device = NULL;
	int ret;

	hm_fact_set(p, HM_FACT_NVML, true);
	ret = find_device(nvml, uuid, &device);
	if (ret) {
		hm_fact_unknown(p, HM_FACT_NVML_MODE, "no such device, error %d",
				ret);
		hm_fact_unknown(p, HM_FACT_NVML_NODE, "no such device, error %d",
				ret);
		return;
	}
	ret = HM_NVML_ERROR_NOT_SUPPORTED;
	if (nvml->nvmlDeviceGetAddressingMode)
		ret = nvml->nvmlDeviceGetAddressingMode(device, &mode);
	if (ret)
		unknown(p, HM_FACT_NVML_MODE, ret);
	else
		hm_fact_set(p, HM_FACT_NVML_MODE, mode.value);
	ret = HM_NVML_ERROR_NOT_SUPPORTED;
	if (nvml->nvmlDeviceGetNumaNodeId)
		ret = nvml->nvmlDeviceGetNumaNodeId(device, &node);
	if (ret)
		unknown(p, HM_FACT_NVML_NODE, ret);
	else
		hm_fact_set(p, HM_FACT_NVML_NODE, node > INT16_MAX ? -1 : (int)node);
}

void hm_nvml_missing(struct hm_platform *p, const char *reason)
{
	hm_fact_set(p, HM_FACT_NVML, false);
	hm_fact_unknown(p, HM_FACT_NVML_MODE, "%s", reason);
	hm_fact_unknown(p, HM_FACT_NVML_NODE, "%s", reason);
}
