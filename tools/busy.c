/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Work for streams: see busy.h. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "busy.h"
#include "driver/check.h"
#include "util.h"

/*
 * hetmem_busy: until the GPU's clock of nanoseconds has gone on by that much.
 * hetmem_count_up: neighbours do neighbouring words.
 */
static const char kernels[] =
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
	"}\n"
	".visible .entry hetmem_count_up(.param .u64 first, .param .u64 words)\n"
	"{\n"
	"	.reg .u64 %first, %words, %i, %step, %at;\n"
	"	.reg .u32 %thread, %block, %size, %value;\n"
	"	.reg .pred %end;\n"
	"	ld.param.u64 %first, [first];\n"
	"	ld.param.u64 %words, [words];\n"
	"	mov.u32 %thread, %tid.x;\n"
	"	mov.u32 %block, %ctaid.x;\n"
	"	mov.u32 %size, %ntid.x;\n"
	"	mad.lo.u32 %block, %block, %size, %thread;\n"
	"	cvt.u64.u32 %i, %block;\n"
	"	mov.u32 %thread, %nctaid.x;\n"
	"	mul.lo.u32 %thread, %thread, %size;\n"
	"	cvt.u64.u32 %step, %thread;\n"
	"next:\n"
	"	setp.ge.u64 %end, %i, %words;\n"
	"	@%end bra done;\n"
	"	shl.b64 %at, %i, 2;\n"
	"	add.u64 %at, %at, %first;\n"
	"	ld.global.u32 %value, [%at];\n"
	"	add.u32 %value, %value, 1;\n"
	"	st.global.u32 [%at], %value;\n"
	"	add.u64 %i, %i, %step;\n"
	"	bra next;\n"
	"done:\n"
	"	ret;\n"
	"}\n";

struct busy {
	const struct hm_soft *soft;
	void *module;
	void *function;
	void *count_up;
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
		!busy->load(&busy->module, kernels) &&
		!busy->get(&busy->function, busy->module, "hetmem_busy") &&
		!busy->get(&busy->count_up, busy->module, "hetmem_count_up");
	dlclose(library);
	return good;
}

struct busy *busy_open(struct hetmem *hm, const char *sub)
{
	struct busy *busy = xcalloc(1, sizeof(*busy));

	busy->soft = hm->soft;
	if (busy->soft || load_kernel(busy))
		return busy;
	complain(EXIT_FAILED, sub, "the driver does not take the kernels that are its work");
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

/* Threads of a block, and blocks: enough of them for any device. */
#define THREADS	256
#define BLOCKS	4096

bool busy_count_up(const struct busy *busy, CUstream stream, const void *ptr, size_t size,
		   unsigned int *adds)
{
	struct hm_soft_range range = { (uintptr_t)ptr, size, -1 };
	uint64_t words = size / sizeof(uint32_t);
	void *args[] = { &ptr, &words };

	*adds = !busy->soft;
	if (busy->soft)
		return !busy->soft->launch(stream, "hetmem_count_up", &range, !!size, 0);
	return !busy->launch(busy->count_up, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, args,
			     NULL);
}
