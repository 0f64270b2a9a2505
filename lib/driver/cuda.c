// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The drivers: finds libcuda.so.1 or libhetmem-soft.so and fills the driver
 * table. Both are asked in the same way.
 *
 * cuGetProcAddress is asked for the ABI that driver.h declares, by base name
 * and version. If asked for a version newer than itself, a driver returns its
 * newest ABI, which may differ from ours: a call that is younger than the
 * driver is never asked for. Success with a NULL function is an absent call
 * too. Drivers before 11.3 have no cuGetProcAddress: dlsym() of the exported
 * symbol.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/calls.h"
#include "driver/check.h"

#define CUDA_LIBRARY	"libcuda.so.1"
#define SOFT_LIBRARY	"libhetmem-soft.so"

/* The oldest driver that has everything that is REQUIRED. */
#define MIN_VERSION	11000

#define LOAD_FLAGS	(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

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

static void *find_call(const struct lookup *l, const struct call *c)
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
static const char *fill_table(struct hm_driver *driver, const struct lookup *l)
{
	const char *missing = NULL;
	size_t i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = find_call(l, &calls[i]);

		memcpy((char *)driver + calls[i].offset, &fn, sizeof(fn));
		if (!fn && calls[i].need == REQUIRED && !missing)
			missing = calls[i].base;
	}
	return missing;
}

/* POSIX lets an object pointer be a function; ISO C wants it copied. */
static void find_symbol(void *library, const char *name, void *fn)
{
	void *p = dlsym(library, name);

	memcpy(fn, &p, sizeof(p));
}

/* @name: of the library. */
static int load_table(struct hm_driver *driver, void *library,
		      const char *name, char *reason, size_t len)
{
	struct lookup l = { .library = library };
	CUresult (*get_version)(int *version);
	const char *missing;
	CUresult res;

	find_symbol(library, "cuDriverGetVersion", &get_version);
	find_symbol(library, "cuGetProcAddress_v2", &l.get_v2);
	find_symbol(library, "cuGetProcAddress", &l.get_v1);
	if (!get_version) {
		snprintf(reason, len, "%s is no CUDA driver: it lacks cuDriverGetVersion",
			 name);
		return -ENODEV;
	}
	res = get_version(&l.version);
	if (res) {
		snprintf(reason, len, "%s: cuDriverGetVersion: error %d%s", name,
			 res, res == CUDA_ERROR_STUB_LIBRARY ?
			 " (the toolkit's stub, not the driver's library)" :
			 "");
		return -ENODEV;
	}
	driver->version = l.version;
	if (l.version < MIN_VERSION) {
		snprintf(reason, len, "%s is of CUDA %d.%d: %d.%d at least is needed, install a newer driver",
			 name, l.version / 1000, l.version % 1000 / 10,
			 MIN_VERSION / 1000, MIN_VERSION % 1000 / 10);
		return -ENODEV;
	}
	missing = fill_table(driver, &l);
	if (missing) {
		snprintf(reason, len, "%s (CUDA %d.%d) lacks %s", name,
			 l.version / 1000, l.version % 1000 / 10, missing);
		return -ENODEV;
	}
	return 0;
}

static int init_cuda(struct hm_driver *driver, char *reason, size_t len)
{
	char version[32];
	CUresult res;
	int nr = 0;

	snprintf(version, sizeof(version), "CUDA %d.%d",
		 driver->version / 1000, driver->version % 1000 / 10);
	res = driver->cuInit(0);
	if (res) {
		snprintf(reason, len, CUDA_LIBRARY " (%s): cuInit: %s%s",
			 version, hm_cuda_name(driver, res),
			 res == CUDA_ERROR_NO_DEVICE ? "" :
			 ": see dmesg and nvidia-smi");
		return -ENODEV;
	}
	res = driver->cuDeviceGetCount(&nr);
	if (res) {
		snprintf(reason, len, CUDA_LIBRARY " (%s): cuDeviceGetCount: %s",
			 version, hm_cuda_name(driver, res));
		return -ENODEV;
	}
	if (nr < 1) {
		snprintf(reason, len, CUDA_LIBRARY " (%s) works and has no device: see CUDA_VISIBLE_DEVICES",
			 version);
		return -ENODEV;
	}
	snprintf(reason, len, CUDA_LIBRARY ", %s, %d device%s", version, nr,
		 nr == 1 ? "" : "s");
	return 0;
}

int hm_cuda_open(struct hm_driver *driver, char *reason, size_t len)
{
	const char *why;
	void *library;
	int err;

	memset(driver, 0, sizeof(*driver));
	driver->name = "cuda";
	library = dlopen(CUDA_LIBRARY, LOAD_FLAGS);
	if (!library) {
		why = dlerror();
		if (!why || strstr(why, "No such file"))
			snprintf(reason, len, CUDA_LIBRARY " not found: no NVIDIA driver is installed, or not where the loader looks");
		else
			snprintf(reason, len, CUDA_LIBRARY " cannot be loaded: %s",
				 why);
		return -ENODEV;
	}
	err = load_table(driver, library, CUDA_LIBRARY, reason, len);
	if (!err)
		err = init_cuda(driver, reason, len);
	dlclose(library);
	return err;
}

/*
 * The file that this code is in: libhetmem.so, or the program that is linked
 * with libhetmem.a. False: not known.
 */
static bool own_path(char *path, size_t len)
{
	struct link_map *map = NULL;
	Dl_info info;
	ssize_t n;

	if (!dladdr1((void *)own_path, &info, (void **)&map, RTLD_DL_LINKMAP) ||
	    !map)
		return false;
	/* The program itself has no name there. */
	if (!map->l_name[0]) {
		n = readlink("/proc/self/exe", path, len - 1);
		path[n < 0 ? 0 : n] = '\0';
	} else {
		snprintf(path, len, "%s", map->l_name);
	}
	return path[0];
}

/*
 * Beside this library; beside it as PREFIX/lib is beside PREFIX/bin, for the command; else
 * where the loader looks. NULL: *@why tells.
 */
static void *load_soft(const char **why)
{
	static const char *const places[] = { SOFT_LIBRARY, "../lib/" SOFT_LIBRARY };
	const char *found = SOFT_LIBRARY;
	char path[PATH_MAX];
	char *slash;
	void *library;
	size_t i;

	slash = own_path(path, sizeof(path) - sizeof("../lib/" SOFT_LIBRARY)) ?
		strrchr(path, '/') : NULL;
	for (i = 0; slash && found != path && i < sizeof(places) / sizeof(places[0]); i++) {
		strcpy(slash + 1, places[i]);
		if (!access(path, F_OK))
			found = path;
	}
	library = dlopen(found, LOAD_FLAGS);
	*why = library ? NULL : dlerror();
	return library;
}

static int start_soft(struct hm_driver *driver, const struct hm_soft *soft,
		      void *library, const char *module_path, char *reason,
		      size_t len)
{
	CUresult res;
	int err, nr;

	err = soft->open(module_path, reason, len);
	if (err)
		return err;
	err = load_table(driver, library, SOFT_LIBRARY, reason, len);
	if (!err) {
		res = driver->cuInit(0);
		if (!res)
			res = driver->cuDeviceGetCount(&nr);
		if (res) {
			snprintf(reason, len, "cuInit: %s",
				 hm_cuda_name(driver, res));
			err = -EIO;
		}
	}
	if (err)
		soft->close();
	else
		snprintf(reason, len, "%d device%s", nr, nr == 1 ? "" : "s");
	return err;
}

int hm_soft_open(struct hm_driver *driver, const struct hm_soft **out,
		 const char *module_path, char *reason, size_t len)
{
	const struct hm_soft *soft;
	const char *why;
	void *library;
	int err = -ENODEV;

	memset(driver, 0, sizeof(*driver));
	driver->name = "soft";
	library = load_soft(&why);
	if (!library) {
		snprintf(reason, len, SOFT_LIBRARY " cannot be loaded: %s: install it beside libhetmem.so",
			 why ? why : "no reason is known");
		return -ENODEV;
	}
	soft = dlsym(library, HM_SOFT_SYMBOL);
	if (!soft || soft->version != HM_SOFT_VERSION)
		snprintf(reason, len, SOFT_LIBRARY " is of another version than this libhetmem: install both together");
	else
		err = start_soft(driver, soft, library, module_path, reason,
				 len);
	dlclose(library);
	if (!err)
		*out = soft;
	return err;
}
