// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_resource_access() on a real machine: every device that is named uses
 * the memory, and the CPU reaches it where that is what was told, and nowhere
 * else.
 */
#include <sys/uio.h>

#include "gpu_driver.h"

#define MIB	((size_t)1 << 20)

static struct hetmem *hm;
static const struct hm_api *drv;

/* Whether the CPU reaches @p, found out without a fault. */
static bool cpu_reaches(const void *p)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)p, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static bool device_uses(int device, void *p, size_t size)
{
	struct hm_context saved;
	unsigned char byte = 0;
	bool good;

	need(!hm_context_enter(hm, device, &saved), "device %d", device);
	good = !drv->cuMemsetD8Async((uintptr_t)p, 0x51, size, NULL) &&
	       !drv->cuMemcpyDtoHAsync(&byte, (uintptr_t)p + size - 1, 1, NULL) &&
	       !drv->cuStreamSynchronize(NULL) && byte == 0x51;
	hm_context_leave(hm, &saved);
	return good;
}

static void test(const char *spec)
{
	struct hetmem_access a = { .size = sizeof(a) };
	struct hetmem_resource *res;
	void *p;
	int i;

	if (hetmem_resource_create(hm, spec, &res)) {
		printf("# %s: %s\n", spec, hetmem_last_error());
		return;
	}
	need(!hetmem_resource_access(res, &a) &&
	     !hetmem_alloc(res, 3 * MIB, 0, HETMEM_STREAM_HOST, &p),
	     "%s: a block", spec);
	printf("# %s: host %d, devices %#llx\n", spec, a.host,
	       (unsigned long long)a.devices);
	if (a.host)
		memset(p, 1, 3 * MIB);
	is(cpu_reaches(p), a.host, "%s: the CPU", spec);
	for (i = 0; i < hetmem_device_count(hm); i++)
		if (a.devices >> i & 1)
			ok(device_uses(i, p, 3 * MIB), "%s: device %d", spec, i);
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(res);
}

int main(void)
{
	drv = open_driver(DRIVER, &hm);
	test("device");
	test("pool(vmm)");
	test("async");
	test("managed");
	test("pinned");
	test("system(device=0)");
	test("host");
	if (hetmem_device_count(hm) > 1) {
		test("pool(vmm(peers=1))");
		test("pool(vmm(device=1))");
		test("pinned(device=1)");
		test("managed(device=1)");
	}
	close_driver(drv, hm);
	return tap_end();
}
