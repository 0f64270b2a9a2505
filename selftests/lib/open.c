// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Opening the library: which driver, what is missing and why, what devices
 * there are, on a machine without module and GPU.
 */
#include "driver/hetmem.h"
#include "tap.h"

static struct hetmem *open_with(const char *driver, const char *module)
{
	struct hetmem_params params = {
		.size = sizeof(params),
		.driver = driver,
		.module_path = module,
	};
	struct hetmem *hm = NULL;
	int err = hetmem_open(&hm, &params);

	if (err)
		printf("# %s\n", hetmem_last_error());
	return err ? NULL : hm;
}

static void drivers(void)
{
	struct hetmem_params params = { .size = sizeof(params) };
	struct hetmem *hm;

	hm = open_with("soft", "");
	ok(hm && !strcmp(hetmem_driver_name(hm), "soft"), "driver soft");
	hetmem_close(hm);

	setenv("HETMEM_DRIVER", "soft", 1);
	hm = open_with(NULL, "");
	ok(hm && !strcmp(hetmem_driver_name(hm), "soft"),
	   "HETMEM_DRIVER chooses when nobody asks");
	hetmem_close(hm);
	setenv("HETMEM_DRIVER", "vulkan", 1);
	is(hetmem_open(&hm, NULL), -EINVAL, "an unknown HETMEM_DRIVER");
	ok(strstr(hetmem_last_error(), "vulkan"), "is named: %s",
	   hetmem_last_error());
	hm = open_with("soft", "");
	ok(hm, "what is asked for beats HETMEM_DRIVER");
	hetmem_close(hm);
	unsetenv("HETMEM_DRIVER");

	params.driver = "Soft";
	is(hetmem_open(&hm, &params), -EINVAL, "names are as they are written");
	params.driver = "soft";
	params.size = sizeof(params) - 1;
	is(hetmem_open(&hm, &params), -EINVAL, "a params that is too small");
	params.size = 0;
	is(hetmem_open(&hm, &params), -EINVAL, "a params without a size");
	params.size = sizeof(params) + 64;
	is(hetmem_open(&hm, &params), 0, "a params of a later version");
	hetmem_close(hm);
	is(hetmem_open(NULL, NULL), -EINVAL, "nowhere to put it");
	hetmem_close(NULL);
	ok(true, "closing NULL");
}

static void features(void)
{
	static const char *const names[] = {
		"module", "residency", "cuda", "device", "pageable",
		"migration", "managed", "vmm", "numa",
	};
	struct hetmem *hm = open_with("soft", "/dev/hetmem-is-not-there");
	struct hetmem_feature f;
	int i;

	need(hm, "opens without the module");
	for (i = 0; i < HETMEM_FEATURE_NR; i++) {
		f.reason = "";
		ok(!hetmem_feature(hm, i, &f) && !strcmp(f.name, names[i]) &&
		   *f.reason, "%s: %d: %s", names[i], f.available,
		   f.reason);
	}
	hetmem_feature(hm, HETMEM_FEATURE_MODULE, &f);
	ok(!f.available && strstr(f.reason, "/dev/hetmem-is-not-there: ") &&
	   strstr(f.reason, "No such file or directory: ") &&
	   strstr(f.reason, access("/proc/modules", F_OK) ? "this kernel loads no modules" :
		  "load hetmem.ko: 'hetmem doctor'"), "what is missing, why, what this machine can do");
	hetmem_feature(hm, HETMEM_FEATURE_MIGRATION, &f);
	ok(!f.available && strstr(f.reason, "hetmem.ko"),
	   "why nothing moves names what is missing");
	hetmem_feature(hm, HETMEM_FEATURE_VMM, &f);
	ok(f.available, "the soft driver has VMM");
	is(hetmem_feature(hm, HETMEM_FEATURE_NR, &f), -EINVAL,
	   "a feature of a later version");
	is(hetmem_feature(hm, -1, &f), -EINVAL, "no feature");
	is(hetmem_feature(NULL, 0, &f), -EINVAL, "no library");
	is(hetmem_feature(hm, 0, NULL), -EINVAL, "no answer wanted");
	hetmem_close(hm);

	hm = open_with("soft", "/dev/null");
	need(hm, "opens with a module that is none");
	hetmem_feature(hm, HETMEM_FEATURE_MODULE, &f);
	ok(!f.available && strstr(f.reason, "not the device node"),
	   "a device that is not hetmem: %s", f.reason);
	hetmem_close(hm);
}

static void devices(void)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem *hm;

	setenv("HETMEM_SOFT_DEVICES", "3", 1);
	setenv("HETMEM_SOFT_MEMORY", "48M", 1);
	hm = open_with("soft", "");
	need(hm, "opens with three devices");
	is(hetmem_device_count(hm), 3, "HETMEM_SOFT_DEVICES");
	is(hetmem_device_props(hm, 2, &props), 0, "properties of the last");
	is(props.total, 48 << 20, "HETMEM_SOFT_MEMORY");
	is(props.platform, HETMEM_PLATFORM_MANAGED, "platform");
	is(props.granularity, 2 << 20, "granularity");
	is(props.module_id, -1, "not one of the module's");
	ok(props.vmm && props.managed && props.name[0], "the rest: %s",
	   props.name);
	is(hetmem_device_props(hm, 3, &props), -ENODEV, "one too many");
	is(hetmem_device_props(hm, -1, &props), -ENODEV, "one too few");
	is(hetmem_device_props(hm, 0, NULL), -EINVAL, "nowhere to put them");
	is(hetmem_device_props(NULL, 0, &props), -EINVAL, "no library");
	props.size = 8;
	is(hetmem_device_props(hm, 0, &props), -EINVAL, "a size too small");
	is(hetmem_device_count(NULL), -EINVAL, "count of no library");
	hetmem_close(hm);

	setenv("HETMEM_SOFT_DEVICES", "0", 1);
	hm = open_with("soft", "");
	ok(hm && !hetmem_device_count(hm), "no device at all");
	hetmem_close(hm);
	setenv("HETMEM_SOFT_DEVICES", "many", 1);
	ok(!open_with("soft", ""), "HETMEM_SOFT_DEVICES=many");
	unsetenv("HETMEM_SOFT_DEVICES");
	setenv("HETMEM_SOFT_MEMORY", "12X", 1);
	ok(!open_with("soft", ""), "HETMEM_SOFT_MEMORY=12X");
	unsetenv("HETMEM_SOFT_MEMORY");
}

int main(void)
{
	unsetenv("HETMEM_DRIVER");
	drivers();
	features();
	devices();
	return tap_end();
}
