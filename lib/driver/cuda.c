// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The CUDA driver: finds libcuda.so.1 and fills the driver table.
 *
 * cuGetProcAddress is asked for the ABI that driver.h declares, by base name
 * and version. Asked for a version above its own, a driver answers with
 * the newest ABI it has, which is another one: a call that is younger than
 * the driver is never asked for. Success with a NULL function is an absent
 * call too. Drivers before 11.3 have no cuGetProcAddress: dlsym() of the
 * exported symbol.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "driver/calls.h"
#include "internal.h"

#define LIBRARY		"libcuda.so.1"

/* The oldest driver that has everything that is REQUIRED. */
#define MIN_VERSION	11000

enum need { OPTIONAL, REQUIRED };

struct call {
	size_t offset;
	const char *base;
	const char *symbol;
	int version;
	enum need need;
};

static const struct call calls[] = {
#define CALL(member, base, symbol, version, need) \
	{ offsetof(struct hm_driver, member), #base, #symbol, version, need },
	HM_DRIVER_CALLS(CALL)
#undef CALL
};

struct lookup {
	void *library;
	int version;
	CUresult (*get_v2)(const char *symbol, void **fn, int version,
			   cuuint64_t flags,
			   CUdriverProcAddressQueryResult *status);
	CUresult (*get_v1)(const char *symbol, void **fn, int version,
			   cuuint64_t flags);
};

static void *find(const struct lookup *l, const struct call *c)
{
	CUdriverProcAddressQueryResult status;
	void *fn = NULL;

	if (c->version > l->version)
		return NULL;
	if (l->get_v2) {
		status = CU_GET_PROC_ADDRESS_SUCCESS;
		if (l->get_v2(c->base, &fn, c->version, 0, &status) ||
		    status != CU_GET_PROC_ADDRESS_SUCCESS)
			return NULL;
		return fn;
	}
	if (l->get_v1)
		return l->get_v1(c->base, &fn, c->version, 0) ? NULL : fn;
	return dlsym(l->library, c->symbol);
}

/* The name of a required call that is absent, or NULL. */
static const char *fill(struct hm_driver *driver, const struct lookup *l)
{
	const char *missing = NULL;
	size_t i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = find(l, &calls[i]);

		memcpy((char *)driver + calls[i].offset, &fn, sizeof(fn));
		if (!fn && calls[i].need == REQUIRED && !missing)
			missing = calls[i].base;
	}
	return missing;
}

/* POSIX lets an object pointer be a function; ISO C wants it copied. */
static void symbol(void *library, const char *name, void *fn)
{
	void *p = dlsym(library, name);

	memcpy(fn, &p, sizeof(p));
}

static int try_init(struct hm_driver *driver, char *reason, size_t len)
{
	char version[32];
	CUresult res;
	int nr = 0;

	snprintf(version, sizeof(version), "CUDA %d.%d",
		 driver->version / 1000, driver->version % 1000 / 10);
	res = driver->cuInit(0);
	if (res) {
		snprintf(reason, len, LIBRARY " (%s): cuInit: %s%s", version,
			 hm_cuda_name(driver, res),
			 res == CUDA_ERROR_NO_DEVICE ? "" :
			 ": see dmesg and nvidia-smi");
		return -ENODEV;
	}
	res = driver->cuDeviceGetCount(&nr);
	if (res) {
		snprintf(reason, len, LIBRARY " (%s): cuDeviceGetCount: %s",
			 version, hm_cuda_name(driver, res));
		return -ENODEV;
	}
	if (nr < 1) {
		snprintf(reason, len, LIBRARY " (%s) works and has no device: see CUDA_VISIBLE_DEVICES",
			 version);
		return -ENODEV;
	}
	snprintf(reason, len, LIBRARY ", %s, %d device%s", version, nr,
		 nr == 1 ? "" : "s");
	return 0;
}

static int open_library(struct hm_driver *driver, void *library, char *reason,
			size_t len)
{
	struct lookup l = { .library = library };
	CUresult (*get_version)(int *version);
	const char *missing;
	CUresult res;

	symbol(library, "cuDriverGetVersion", &get_version);
	symbol(library, "cuGetProcAddress_v2", &l.get_v2);
	symbol(library, "cuGetProcAddress", &l.get_v1);
	if (!get_version) {
		snprintf(reason, len, LIBRARY " is no CUDA driver: it lacks cuDriverGetVersion");
		return -ENODEV;
	}
	res = get_version(&l.version);
	if (res) {
		snprintf(reason, len, LIBRARY ": cuDriverGetVersion: error %d%s",
			 res, res == CUDA_ERROR_STUB_LIBRARY ?
			 " (the toolkit's stub, not the driver's library)" :
			 "");
		return -ENODEV;
	}
	driver->version = l.version;
	if (l.version < MIN_VERSION) {
		snprintf(reason, len, LIBRARY " is of CUDA %d.%d: %d.%d at least is needed, install a newer driver",
			 l.version / 1000, l.version % 1000 / 10,
			 MIN_VERSION / 1000, MIN_VERSION % 1000 / 10);
		return -ENODEV;
	}
	missing = fill(driver, &l);
	if (missing) {
		snprintf(reason, len, LIBRARY " (CUDA %d.%d) lacks %s",
			 l.version / 1000, l.version % 1000 / 10, missing);
		return -ENODEV;
	}
	return try_init(driver, reason, len);
}

int hm_cuda_open(struct hm_driver *driver, char *reason, size_t len)
{
	void *library;
	int err;

	memset(driver, 0, sizeof(*driver));
	driver->name = "cuda";
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!library) {
		const char *why = dlerror();

		if (!why || strstr(why, "No such file"))
			snprintf(reason, len, LIBRARY " not found: no NVIDIA driver is installed, or not where the loader looks");
		else
			snprintf(reason, len, LIBRARY " cannot be loaded: %s",
				 why);
		return -ENODEV;
	}
	err = open_library(driver, library, reason, len);
	dlclose(library);
	return err;
}
