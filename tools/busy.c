/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Work for streams: see busy.h. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "busy.h"
#include "driver/check.h"
#include "util.h"

/* Until the GPU's clock of nanoseconds has gone on by that much. */
static const char kernel[] =
	".version 6.4\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry hetmem_busy(.param .u64 takes)\n"
	"{\n"
	"	.reg .u64 %start, %now, %takes;\n"
	"	.reg .pred %more;\n"
	"	ld.param.u64 %takes, [takes];\n"
	"	mov.u64 %start, %globaltimer;\n"
	"again:\n"
	"	mov.u64 %now, %globaltimer;\n"
	"	sub.u64 %now, %now, %start;\n"
	"	setp.lt.u64 %more, %now, %takes;\n"
	"	@%more bra again;\n"
	"	ret;\n"
	"}\n";

struct busy {
	const struct hm_soft *soft;
	void *module;
	void *function;
	CUresult (*load)(void **module, const void *image);
	CUresult (*get)(void **function, void *module, const char *name);
	CUresult (*unload)(void *module);
	CUresult (*launch)(void *function, unsigned int grid_x,
			   unsigned int grid_y, unsigned int grid_z,
			   unsigned int block_x, unsigned int block_y,
			   unsigned int block_z, unsigned int shared,
			   CUstream stream, void **args, void **extra);
};

static bool find(void *library, const char *name, void *fn)
{
	void *p = dlsym(library, name);

	memcpy(fn, &p, sizeof(p));
	return p;
}

/* The library is loaded, and stays so: the driver table is from it. */
static bool load_kernel(struct busy *busy)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	bool good;

	if (!library)
		return false;
	good = find(library, "cuModuleLoadData", &busy->load) &&
		find(library, "cuModuleGetFunction", &busy->get) &&
		find(library, "cuModuleUnload", &busy->unload) &&
		find(library, "cuLaunchKernel", &busy->launch) &&
		!busy->load(&busy->module, kernel) &&
		!busy->get(&busy->function, busy->module, "hetmem_busy");
	dlclose(library);
	return good;
}

struct busy *busy_open(struct hetmem *hm, const char *sub)
{
	struct busy *busy = xcalloc(1, sizeof(*busy));

	busy->soft = hm->soft;
	if (busy->soft || load_kernel(busy))
		return busy;
	complain(EXIT_FAILED, sub, "the driver does not take the kernel of --work busy");
	busy_close(busy);
	return NULL;
}

void busy_close(struct busy *busy)
{
	if (busy && busy->module)
		busy->unload(busy->module);
	free(busy);
}

bool busy_run(const struct busy *busy, CUstream stream, const void *ptr,
	      size_t size, uint64_t ns)
{
	struct hm_soft_range range = { (uintptr_t)ptr, size, -1 };
	void *args[] = { &ns };

	if (busy->soft)
		return !busy->soft->launch(stream, "hetmem_busy", &range,
					   ptr && size, ns);
	return !busy->launch(busy->function, 1, 1, 1, 1, 1, 1, 0, stream, args,
			     NULL);
}
