/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The Driver API for a test, which plays the program: every call, asked of the
 * library that the open library uses. What a test puts into the library's own
 * table, hm->driver, is not in this one.
 */
#ifndef HETMEM_SELFTESTS_API_H
#define HETMEM_SELFTESTS_API_H

#include <dlfcn.h>

#include "driver/check.h"
#include "soft/calls.h"
#include "tap.h"

typedef CUresult (*get_address_fn)(const char *symbol, void **fn, int version,
				   cuuint64_t flags,
				   CUdriverProcAddressQueryResult *status);

__attribute__((unused))
static const struct hm_api *api_of(const struct hetmem *hm)
{
	static const struct {
		size_t offset;
		const char *base;
		int version;
	} rows[] = {
#define CALL(member, base, symbol, version, need) \
		{ offsetof(struct hm_api, member), #base, version },
		HM_DRIVER_CALLS(CALL)
		HM_PROGRAM_CALLS(CALL)
#undef CALL
	};
	static struct hm_api apis[2];
	struct hm_api *api = &apis[!!hm->soft];
	CUdriverProcAddressQueryResult status;
	get_address_fn get_address;
	void *library, *fn;
	size_t i;

	library = dlopen(hm->soft ? "libhetmem-soft.so" : "libcuda.so.1",
			 RTLD_NOW | RTLD_NOLOAD);
	need(library, "the driver's library: %s", dlerror());
	fn = dlsym(library, "cuGetProcAddress_v2");
	need(fn, "cuGetProcAddress_v2");
	memcpy(&get_address, &fn, sizeof(fn));
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		fn = NULL;
		if (rows[i].version <= hm->driver.version &&
		    get_address(rows[i].base, &fn, rows[i].version, 0,
				&status))
			fn = NULL;
		memcpy((char *)api + rows[i].offset, &fn, sizeof(fn));
	}
	dlclose(library);
	return api;
}

/* Of the soft driver, see struct hm_soft; @hm is the test's. */
#define soft_rules(fail, delay)	hm->soft->rules(fail, delay)
#define soft_launch(stream, name, ranges, nr, ns) \
	hm->soft->launch(stream, name, ranges, nr, ns)

#endif /* HETMEM_SELFTESTS_API_H */
