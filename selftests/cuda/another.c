// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Another object that interposes: it calls the next cuMemAlloc() that RTLD_NEXT finds. At the
 * end it fails the process unless it was called.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/prototypes.h"

static unsigned int calls;

__attribute__((visibility("default")))
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CUresult (*next)(CUdeviceptr *ptr, size_t size);
	void *fn = dlsym(RTLD_NEXT, "cuMemAlloc_v2");

	calls++;
	memcpy(&next, &fn, sizeof(fn));
	return next(ptr, size);
}

__attribute__((destructor))
static void end(void)
{
	if (!calls && getenv("HETMEM_TEST_ANOTHER"))
		_exit(77);
}
