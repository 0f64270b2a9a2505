// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a communication library is told about a pointer: address range, buffer
 * id, legacy IPC, dma-buf, by kind of memory and by how a block lies in VMM
 * handles. Documentation/ucx.md leans on what is checked here, and shows the
 * table that is printed.
 */
#include "gpu_driver.h"

#define G	((size_t)2 << 20)

/* What a communication library calls, and nobody of ours. */
#define DMA_BUF_FD	1

struct ipc_handle {
	char reserved[64];
};

static CUresult (*get_ipc)(struct ipc_handle *handle, CUdeviceptr ptr);
static CUresult (*set_attribute)(const void *value, CUpointer_attribute which,
				 CUdeviceptr ptr);
static CUresult (*get_range_handle)(void *handle, CUdeviceptr ptr, size_t size,
				    int type, unsigned long long flags);

static void find_calls(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	need(library, "libcuda.so.1");
	*(void **)&get_ipc = dlsym(library, "cuIpcGetMemHandle");
	*(void **)&set_attribute = dlsym(library, "cuPointerSetAttribute");
	*(void **)&get_range_handle =
		dlsym(library, "cuMemGetHandleForAddressRange");
	need(get_ipc && set_attribute, "its calls");
}

static struct hetmem *hm;
static const struct hm_api *drv;

struct told {
	CUresult range;
	CUdeviceptr base;
	size_t size;
	unsigned long long id;
	CUresult ipc;
	unsigned int legacy;
	unsigned long long handles;
	CUresult sync_memops;
	CUresult dma_buf;
};

static struct told ask(CUdeviceptr p, size_t dma_size)
{
	unsigned int one = 1;
	struct ipc_handle ipc;
	struct told t = { 0 };
	int fd = -1;

	t.range = drv->cuMemGetAddressRange(&t.base, &t.size, p);
	drv->cuPointerGetAttribute(&t.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
	drv->cuPointerGetAttribute(&t.legacy,
			CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
	drv->cuPointerGetAttribute(&t.handles,
			CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
	t.ipc = get_ipc(&ipc, p);
	t.sync_memops = set_attribute(&one,
			CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
	t.dma_buf = CUDA_ERROR_NOT_SUPPORTED;
	if (get_range_handle && dma_size)
		t.dma_buf = get_range_handle(&fd, p, dma_size, DMA_BUF_FD, 0);
	if (fd >= 0)
		close(fd);
	return t;
}

static void show(const char *what, CUdeviceptr p, const struct told *t)
{
	printf("# %-34s range %s +%#llx %zu KiB, id %llu, IPC %s%s, handles %#llx, sync_memops %s, dma-buf %s\n",
	       what, hm_cuda_name(&hm->driver, t->range),
	       (unsigned long long)(p - t->base), t->size >> 10, t->id,
	       hm_cuda_name(&hm->driver, t->ipc), t->legacy ? " (capable)" : "",
	       t->handles, hm_cuda_name(&hm->driver, t->sync_memops),
	       hm_cuda_name(&hm->driver, t->dma_buf));
}

static void whole_regions(void)
{
	CUdeviceptr p = 0;
	struct told t;

	need(!drv->cuMemAlloc(&p, 8 * G), "cuMemAlloc");
	t = ask(p + G, G);
	show("cuMemAlloc, in the middle", p + G, &t);
	ok(!t.range && t.base == p && t.size == 8 * G,
	   "the range is all of the allocation");
	ok(t.id, "it has an id");
	ok(!t.ipc && t.legacy, "legacy IPC names it");
	ok(!t.sync_memops && !t.dma_buf, "so does a dma-buf");
	drv->cuMemFree(p);
	need(!drv->cuMemAllocAsync(&p, 8 * G, NULL) && !drv->cuCtxSynchronize(),
	     "cuMemAllocAsync");
	t = ask(p + G, G);
	show("cuMemAllocAsync, in the middle", p + G, &t);
	ok(!t.range && t.base == p, "the range is the allocation");
	is(t.ipc, CUDA_ERROR_INVALID_VALUE, "legacy IPC is refused");
	is(t.dma_buf, CUDA_ERROR_INVALID_VALUE, "and a dma-buf");
	drv->cuMemFreeAsync(p, NULL);
	drv->cuCtxSynchronize();
}

/* Handles of 4, 2 and 2 MiB behind each other. */
static void mappings(bool rdma)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.allocFlags = { .gpuDirectRDMACapable = rdma },
	};
	CUmemAccessDesc rw = {
		.location = prop.location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	const size_t sizes[3] = { 2 * G, G, G };
	CUmemGenericAllocationHandle h[3];
	struct told one, part, next, last;
	CUdeviceptr va, at;
	int i;

	printf("# gpuDirectRDMACapable: %d\n", rdma);
	need(!drv->cuMemAddressReserve(&va, 8 * G, 0, 0, 0), "addresses");
	for (i = 0, at = va; i < 3; at += sizes[i++])
		need(!drv->cuMemCreate(&h[i], sizes[i], &prop, 0) &&
		     !drv->cuMemMap(at, sizes[i], 0, h[i], 0), "a handle");
	need(!drv->cuMemSetAccess(va, 4 * G, &rw, 1), "access");

	one = ask(va, 2 * G);
	show("VMM: a block that is one handle", va, &one);
	ok(!one.range && one.base == va && one.size == 2 * G,
	   "the range is its handle's mapping");
	ok(one.id, "it has an id");
	is(one.ipc, CUDA_ERROR_INVALID_VALUE, "legacy IPC is refused");
	is(one.sync_memops, CUDA_ERROR_NOT_SUPPORTED, "and SYNC_MEMOPS");
	is(one.dma_buf, 0, "a dma-buf names it");
	part = ask(va + 4096, 4096);
	show("VMM: a part of a handle", va + 4096, &part);
	ok(!part.range && part.base == va && part.size == 2 * G,
	   "the range is more than the block: all of the handle");
	is(part.id == one.id, 1, "so is the id");
	/* A block of all three: asked at its start, what is told ends early. */
	next = ask(va + 2 * G, 2 * G);
	show("VMM: two handles, at the first", va + 2 * G, &next);
	ok(!next.range && next.base == va + 2 * G && next.size == G,
	   "the range is less than the block: the first handle");
	last = ask(va + 3 * G, G);
	show("VMM: two handles, at the second", va + 3 * G, &last);
	ok(last.base == va + 3 * G && last.size == G, "then the second");
	ok(one.id != next.id && next.id != last.id && one.id != last.id,
	   "each has its own id: %llu, %llu, %llu", one.id, next.id, last.id);

	/* The same address with other memory behind it. */
	drv->cuMemUnmap(va + 3 * G, G);
	need(!drv->cuMemMap(va + 3 * G, G, 0, h[1], 0) &&
	     !drv->cuMemSetAccess(va + 3 * G, G, &rw, 1), "another handle");
	next = ask(va + 3 * G, G);
	show("VMM: mapped anew", va + 3 * G, &next);
	ok(next.id != last.id && next.id, "the id is new: %llu", next.id);

	drv->cuMemUnmap(va, 4 * G);
	for (i = 0; i < 3; i++)
		drv->cuMemRelease(h[i]);
	next = ask(va, 0);
	ok(next.range, "of addresses without memory nothing is told");
	drv->cuMemAddressFree(va, 8 * G);
}

int main(void)
{
	drv = open_driver(DRIVER, &hm);
	find_calls();
	whole_regions();
	mappings(false);
	mappings(true);
	close_driver(drv, hm);
	return tap_end();
}
