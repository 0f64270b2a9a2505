// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Handles of the host's memory: who can use their mappings, what pointers to them are, and
 * how much there is.
 */
#include <sys/wait.h>

#include "device_memory.h"
#include "soft_driver.h"
#include "touch.h"

#define G	((size_t)2 << 20)

static const CUmemAllocationProp hosts[] = {
	{ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	  .location = { CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 } },
	{ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	  .location = { CU_MEM_LOCATION_TYPE_HOST, 0 } },
};

static CUdeviceptr va;

static void make(CUmemGenericAllocationHandle *h, const CUmemAllocationProp *p)
{
	need(!drv->cuMemCreate(h, G, p, 0), "a handle");
}

static void map_at(size_t offset, CUmemGenericAllocationHandle h)
{
	need(!drv->cuMemMap(va + offset, G, 0, h, 0) &&
	     !drv->cuMemSetAccess(va + offset, G, &rw, 1), "mapped");
}

static CUresult cpu_access(size_t offset, CUmemAccess_flags flags,
			   const CUmemAllocationProp *p)
{
	CUmemAccessDesc cpu = { .location = p->location, .flags = flags };

	return drv->cuMemSetAccess(va + offset, G, &cpu, 1);
}

static void fill(size_t offset, unsigned char value, size_t size)
{
	drv->cuMemsetD8Async(va + offset, value, size, NULL);
}

static unsigned char byte(size_t offset)
{
	unsigned char out = 0;

	drv->cuMemcpyDtoHAsync(&out, va + offset, 1, NULL);
	drv->cuCtxSynchronize();
	return out;
}

/* A handle behind va and va + 2 G, where only the device has it at first. */
static void access_by(const CUmemAllocationProp *p)
{
	CUmemGenericAllocationHandle h;

	make(&h, p);
	map_at(0, h);
	map_at(2 * G, h);
	is(touch(va), SIGSEGV, "the CPU has no access");
	fill(5, 0x51, 10);
	is(byte(2 * G + 14), 0x51, "the device has, at two addresses");
	is(cpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READ, p), 0, "read access");
	ok(!touch(va + 5) && *(unsigned char *)(uintptr_t)(va + 5) == 0x51,
	   "the CPU reads what the device wrote");
	is(touch_write(va), SIGSEGV, "and does not write");
	fill(G - 1, 0x52, 1);
	is(byte(G - 1), 0x52, "the device still does");
	is(touch(va + 2 * G), SIGSEGV, "nor reads at the other address");
	is(cpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, p), 0, "all access");
	is(touch_write(va + 7), 0, "the CPU writes");
	is(byte(2 * G + 7), 1, "which the device reads");
	is(cpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_NONE, p), 0, "no access");
	is(touch(va + 7), SIGSEGV, "faults again");
	is(byte(7), 1, "for the CPU only");
	is(drv->cuMemUnmap(va, G), 0, "one address goes");
	is(drv->cuMemRelease(h), 0, "and the handle");
	is(byte(2 * G + 7), 1, "the other address keeps the memory");
	is(drv->cuMemUnmap(va + 2 * G, G), 0, "until it goes");
}

/* Of the device, of the host twice, and of the device, side by side. */
static void copies(void)
{
	CUmemGenericAllocationHandle h[4];
	const struct hm_soft_range across = { va + G - 3, G, 9 };
	unsigned int *out = malloc(3 * G / 2);
	size_t i, bad = 0;

	for (i = 0; i < 4; i++) {
		make(&h[i], i == 1 || i == 2 ? hosts : &prop);
		map_at(i * G, h[i]);
		drv->cuMemRelease(h[i]);
	}
	drv->cuMemsetD32Async(va + 12, 0x01020304, 3 * G / 8, NULL);
	drv->cuMemcpyAsync(va + 2 * G + 100, va + 12, 3 * G / 2, NULL);
	drv->cuMemsetD32Async(va + 12, 0, 3 * G / 8, NULL);
	drv->cuMemcpyAsync(va + 4, va + 2 * G + 100, 3 * G / 2, NULL);
	drv->cuMemcpyDtoHAsync(out, va + 4, 3 * G / 2, NULL);
	is(drv->cuCtxSynchronize(), 0, "to the device and back");
	for (i = 0; i < 3 * G / 8; i++)
		bad += out[i] != 0x01020304;
	is(bad, 0, "every byte");
	soft_launch(NULL, "a kernel", &across, 1, 0);
	drv->cuMemcpyDtoHAsync(out, va + G - 3, G, NULL);
	is(drv->cuCtxSynchronize(), 0, "a kernel");
	ok(all_bytes(out, 9, G), "writes both");
	free(out);
	drv->cuMemUnmap(va, 4 * G);
}

/* Whether the attribute of @va is the same as it was last, which it becomes. */
static bool same(CUpointer_attribute which, unsigned long long *last)
{
	unsigned long long now = 0;

	is(drv->cuPointerGetAttribute(&now, which, va + 100), 0, "an attribute");
	if (now == *last)
		return true;
	*last = now;
	return false;
}

static void attributes(void)
{
	unsigned long long type = CU_MEMORYTYPE_DEVICE, id = 0;
	CUmemGenericAllocationHandle host, device;

	make(&host, hosts);
	make(&device, &prop);
	map_at(0, device);
	ok(same(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type), "memory of the device");
	same(CU_POINTER_ATTRIBUTE_BUFFER_ID, &id);
	drv->cuMemUnmap(va, G);
	map_at(0, host);
	ok(!same(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type) &&
	   type == CU_MEMORYTYPE_HOST, "of the host");
	ok(!same(CU_POINTER_ATTRIBUTE_BUFFER_ID, &id), "another buffer");
	drv->cuMemUnmap(va, G);
	map_at(0, device);
	ok(!same(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type) &&
	   type == CU_MEMORYTYPE_DEVICE, "of the device again");
	ok(!same(CU_POINTER_ATTRIBUTE_BUFFER_ID, &id), "and another buffer");
	drv->cuMemUnmap(va, G);
	drv->cuMemRelease(host);
	drv->cuMemRelease(device);
}

/* Of the host there are 8 MiB. */
static void bound(void)
{
	CUmemGenericAllocationHandle h[5], device;
	int i;

	for (i = 0; i < 4; i++)
		make(&h[i], &hosts[i & 1]);
	is(drv->cuMemCreate(&h[4], G, hosts, 0), CUDA_ERROR_OUT_OF_MEMORY,
	   "more than the host has");
	is(drv->cuMemCreate(&device, G, &prop, 0), 0, "the device has some");
	is(device_used(), G, "of its own");
	drv->cuMemRelease(device);
	map_at(0, h[0]);
	drv->cuMemRelease(h[0]);
	is(drv->cuMemCreate(&h[4], G, hosts, 0), CUDA_ERROR_OUT_OF_MEMORY,
	   "what is mapped counts");
	drv->cuMemUnmap(va, G);
	is(drv->cuMemCreate(&h[0], G, hosts, 0), 0, "until it is unmapped");
	for (i = 0; i < 4; i++)
		drv->cuMemRelease(h[i]);
	is(drv->cuMemCreate(&h[0], 5 * G, hosts, 0), CUDA_ERROR_OUT_OF_MEMORY,
	   "one that is too large");
	is(drv->cuMemCreate(&h[0], 4 * G, hosts, 0), 0, "all of it");
	drv->cuMemRelease(h[0]);
}

/* @fn is called when a handle of the host is at va, and a stream has work before a copy. */
static void copy_faults(const char *what, void (*fn)(void))
{
	CUmemGenericAllocationHandle h, device;
	int status;

	fflush(stdout);
	if (!fork()) {
		open_soft("");
		make(&h, hosts);
		make(&device, &prop);
		drv->cuMemAddressReserve(&va, 2 * G, 0, 0, 0);
		map_at(0, h);
		map_at(G, device);
		soft_launch(NULL, "a kernel", NULL, 0, 100000000);
		drv->cuMemcpyAsync(va, va + G, G, NULL);
		fn();
		drv->cuCtxSynchronize();
		_exit(0);
	}
	wait(&status);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "%s", what);
}

static void unmap(void)
{
	drv->cuMemUnmap(va, G);
}

static void device_access(CUmemAccess_flags flags)
{
	CUmemAccessDesc device = rw;

	device.flags = flags;
	drv->cuMemSetAccess(va, G, &device, 1);
}

static void no_access(void)
{
	device_access(CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static void read_access(void)
{
	device_access(CU_MEM_ACCESS_FLAGS_PROT_READ);
}

/* Mappings that this process has of the soft driver's files. */
static int mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	need(maps, "what is mapped");
	while (fgets(line, sizeof(line), maps))
		n += !!strstr(line, "hetmem soft device");
	fclose(maps);
	return n;
}

static void configured(void)
{
	struct hetmem_params params = { .size = sizeof(params), .driver = "soft" };
	CUmemGenericAllocationHandle h;
	struct hetmem *none;

	setenv("HETMEM_SOFT_HOST_MEMORY", "some", 1);
	is(hetmem_open(&none, &params), -EINVAL, "no size");
	ok(strstr(hetmem_last_error(), "HETMEM_SOFT_HOST_MEMORY=some: use a size"),
	   "it says %s", hetmem_last_error());
	unsetenv("HETMEM_SOFT_HOST_MEMORY");
	open_soft("");
	is(drv->cuMemCreate(&h, 4096 * G, hosts, 0), 0, "no bound");
	drv->cuMemRelease(h);
	close_soft();
}

int main(void)
{
	catch_faults();
	setenv("HETMEM_SOFT_HOST_MEMORY", "8M", 1);
	copy_faults("a copy to an address that has gone", unmap);
	copy_faults("a copy to what the device has no access to", no_access);
	copy_faults("a copy to what the device only reads", read_access);
	open_soft("");
	drv->cuMemAddressReserve(&va, 4 * G, 0, 0, 0);
	access_by(&hosts[0]);
	access_by(&hosts[1]);
	copies();
	attributes();
	bound();
	is(mapped(), 0, "nothing stays mapped");
	drv->cuMemAddressFree(va, 4 * G);
	close_soft();
	configured();
	return tap_end();
}
