// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* driver [ipc | open HANDLE]: every allocation call of the driver API, a kernel, IPC. */
#include <cuda.h>

#include "sample.h"

static unsigned char host[8 * MIB];
static CUstream stream;

/* add(p, n, x): adds x to n words. */
static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry add(.param .u64 p, .param .u32 n, .param .u32 x)\n{\n"
	"	.reg .pred %done;\n	.reg .b32 %i, %b, %t, %n, %x, %v;\n	.reg .b64 %p, %o;\n"
	"	ld.param.u64 %p, [p];\n	ld.param.u32 %n, [n];\n	ld.param.u32 %x, [x];\n"
	"	mov.u32 %b, %ctaid.x;\n	mov.u32 %t, %ntid.x;\n	mul.lo.u32 %i, %b, %t;\n"
	"	mov.u32 %t, %tid.x;\n	add.u32 %i, %i, %t;\n"
	"	setp.ge.u32 %done, %i, %n;\n	@%done bra END;\n"
	"	mul.wide.u32 %o, %i, 4;\n	add.u64 %p, %p, %o;\n	cvta.to.global.u64 %p, %p;\n"
	"	ld.global.u32 %v, [%p];\n	add.u32 %v, %v, %x;\n	st.global.u32 [%p], %v;\n"
	"END:\n	ret;\n}\n";

static unsigned long long contents(CUdeviceptr p, size_t size)
{
	memset(host, 0, size);
	if (cuMemcpyDtoHAsync(host, p, size, stream) || cuStreamSynchronize(stream))
		return 0;
	return sum(host, size);
}

static void allocations(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = { 256, 256, CU_AD_FORMAT_FLOAT, 1 };
	CUdeviceptr p, base;
	size_t pitch = 0, size = 0;
	CUarray array;

	step("cuMemAlloc", cuMemAlloc(&p, 3 * MIB + 5), p % 256);
	step("cuMemsetD8", cuMemsetD8(p, 6, 3 * MIB + 5), contents(p, 3 * MIB + 5));
	step("cuMemGetAddressRange", cuMemGetAddressRange(&base, &size, p + 99), size + (base != p));
	step("cuMemFree of its inside", cuMemFree(p + 256), 0);
	step("cuMemFree", cuMemFree(p), 0);
	step("cuMemAlloc of nothing", cuMemAlloc(&p, 0), 0);
	step("cuMemAllocPitch", cuMemAllocPitch(&p, &pitch, 1000, 10, 4), pitch);
	step("cuMemFree", cuMemFree(p), 0);
	step("cuMemAllocManaged", cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL), 0);
	step("cuMemsetD8", cuMemsetD8(p, 8, MIB), contents(p, MIB));
	step("cuMemFree", cuMemFree(p), 0);
	step("cuArrayCreate", cuArrayCreate(&array, &shape), 0);
	step("cuArrayDestroy", cuArrayDestroy(array), 0);
	step("cuMemAllocAsync", cuMemAllocAsync(&p, MIB, stream), 0);
	step("cuMemsetD8Async", cuMemsetD8Async(p, 9, MIB, stream), contents(p, MIB));
	step("cuMemFreeAsync", cuMemFreeAsync(p, stream), 0);
}

static void handles(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemAccessDesc access = { .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	size_t unit = 0;
	CUdeviceptr p;

	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location = prop.location;
	step("cuMemGetAllocationGranularity", cuMemGetAllocationGranularity(&unit, &prop,
	     CU_MEM_ALLOC_GRANULARITY_MINIMUM), unit);
	step("cuMemCreate", cuMemCreate(&handle, unit, &prop, 0), 0);
	step("cuMemAddressReserve", cuMemAddressReserve(&p, unit, 0, 0, 0), 0);
	step("cuMemMap", cuMemMap(p, unit, 0, handle, 0), 0);
	step("cuMemRelease", cuMemRelease(handle), 0);
	step("cuMemSetAccess", cuMemSetAccess(p, unit, &access, 1), 0);
	step("cuMemsetD8", cuMemsetD8(p, 7, unit), contents(p, unit));
	step("cuMemUnmap", cuMemUnmap(p, unit), 0);
	step("cuMemAddressFree", cuMemAddressFree(p, unit), 0);
}

static void kernels(void)
{
	unsigned int n = MIB / 4, x = 3;
	CUmodule module;
	CUfunction add;
	CUdeviceptr p;
	void *args[] = { &p, &n, &x };
	int i, result = 0;

	step("cuModuleLoadData", cuModuleLoadData(&module, ptx), 0);
	step("cuModuleGetFunction", cuModuleGetFunction(&add, module, "add"), 0);
	step("cuMemAlloc", cuMemAlloc(&p, MIB), 0);
	step("cuMemsetD8", cuMemsetD8(p, 1, MIB), 0);
	for (i = 0; i < 1000 && !result; i++)
		result = cuLaunchKernel(add, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, args, NULL);
	step("cuLaunchKernel", result, contents(p, MIB));
	step("cuMemFree", cuMemFree(p), 0);
	step("cuModuleUnload", cuModuleUnload(module), 0);
}

static int opens(const char *hex)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	from_hex(&handle, hex, sizeof(handle));
	step("cuIpcOpenMemHandle", cuIpcOpenMemHandle(&p, handle,
	     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), 0);
	step("contents there", 0, contents(p, 3 * MIB));
	step("changed there", cuMemsetD8(p, 22, 3 * MIB), contents(p, 3 * MIB));
	step("cuIpcCloseMemHandle", cuIpcCloseMemHandle(p), 0);
	return 0;
}

static void shares(const char *program)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	step("cuMemAlloc", cuMemAlloc(&p, 3 * MIB), 0);
	step("cuMemsetD8", cuMemsetD8(p, 11, 3 * MIB), contents(p, 3 * MIB));
	step("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, p), 0);
	step("the peer", run_peer(program, &handle, sizeof(handle)), contents(p, 3 * MIB));
	step("cuMemFree", cuMemFree(p), 0);
}

int main(int argc, char **argv)
{
	CUcontext ctx;

	step("cuInit", cuInit(0), 0);
	step("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	step("cuCtxSetCurrent", cuCtxSetCurrent(ctx), 0);
	step("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	if (argc > 2)
		return opens(argv[2]);
	if (argc > 1) {
		shares(argv[0]);
	} else {
		allocations();
		handles();
		kernels();
	}
	step("cuStreamDestroy", cuStreamDestroy(stream), 0);
	step("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease(0), 0);
	return 0;
}
