// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_resource_access(): who can use the memory of a resource, by provider,
 * by machine and by stack; three devices, of which the tests change what they
 * reach. Devices that are named can use every block.
 */
#include <sys/wait.h>

#include "by_spec.h"

#define HOST	HETMEM_STREAM_HOST
#define ALL	7

/* What the devices of a machine reach: bit N is device N's. */
struct machine {
	const char *name;
	unsigned int pageable;
	unsigned int managed;
	unsigned int registered;
};

static const struct machine plain = { "plain", 0, ALL, ALL };
static const struct machine hmm = { "HMM or ATS", ALL, ALL, ALL };
static const struct machine mixed = { "mixed", 2, 5, 3 };

static void become(const struct machine *m)
{
	int i;

	for (i = 0; i < 3; i++) {
		hm->devices[i].platform.pageable = m->pageable >> i & 1;
		hm->devices[i].platform.managed = m->managed >> i & 1;
		hm->devices[i].platform.registered = m->registered >> i & 1;
	}
}

static void test_row(const struct machine *m, const char *spec, int host,
		     uint64_t devices, int some_host, uint64_t some_devices)
{
	struct hetmem_access a = { .size = sizeof(a) };
	struct hetmem_resource *res;

	become(m);
	res = make(spec);
	is(hetmem_resource_access(res, &a), 0, "%s, %s", m->name, spec);
	if (!ok(a.host == host && a.devices == devices &&
		a.some_host == some_host && a.some_devices == some_devices &&
		a.size == sizeof(a), "%s, %s: who", m->name, spec))
		printf("# host %d, devices %#llx; some: %d, %#llx\n", a.host,
		       (unsigned long long)a.devices, a.some_host,
		       (unsigned long long)a.some_devices);
	hetmem_resource_destroy(res);
}

/* The same for all blocks. */
static void every(const struct machine *m, const char *spec, int host,
		  uint64_t devices)
{
	test_row(m, spec, host, devices, host, devices);
}

static void test_providers(void)
{
	every(&plain, "device(device=1)", 0, 2);
	every(&plain, "async(device=2)", 0, 4);
	every(&plain, "pool(vmm(device=0))", 0, 1);
	every(&plain, "pool(vmm(device=0,peers=2))", 0, 5);
	every(&plain, "pool(vmm(device=2,peers=0/1/2))", 0, ALL);
	every(&plain, "pool(vmm(device=1,export=fd))", 0, 2);
	every(&plain, "managed(device=1)", 1, ALL);
	every(&plain, "pinned", 1, ALL);
	every(&plain, "pool(pinned(device=2))", 1, ALL);
	every(&plain, "system", 1, 0);
	every(&plain, "pool(system(device=1))", 1, 0);
	every(&plain, "host", 1, 0);
	every(&hmm, "system", 1, ALL);
	every(&hmm, "pool(system(device=1))", 1, ALL);
	every(&hmm, "pool(host)", 1, ALL);
	every(&hmm, "device", 0, 1);
	every(&hmm, "pool(vmm)", 0, 1);
	every(&hmm, "unified", 1, ALL);
	every(&hmm, "device-pool(device=1)", 0, 2);
	every(&mixed, "system", 1, 2);
	every(&mixed, "managed", 1, 5);
	every(&mixed, "pinned(device=1)", 1, 3);
}

static void test_stacks(void)
{
	every(&plain, "stats(limit(log(pool(vmm),file=/dev/null),max=1M))", 0, 1);
	every(&plain, "guard(align(retry(pool(managed)),align=4K))", 1, ALL);
	every(&plain, "fixed(pool(pinned),size=4K,count=2)", 1, ALL);
	test_row(&plain, "fallback(pool(vmm),pool(pinned))", 0, 1, 1, ALL);
	test_row(&plain, "stats(binning(pool(host),pool(pinned),device(device=2),at=4K/1M))",
		 0, 0, 1, ALL);
	test_row(&plain, "fallback(pool(vmm),device(device=1))", 0, 0, 0, 3);
	test_row(&mixed, "fallback(managed,system)", 1, 0, 1, ALL);
}

/* What it says can be done. */
static void test_devices_do(const char *spec)
{
	struct hetmem_access a = { .size = sizeof(a) };
	struct hetmem_resource *res = make(spec);
	unsigned char *p = get(res, 5000, HOST), byte;
	struct hm_context saved;
	int i;

	need(p && !hetmem_resource_access(res, &a), "%s: a block", spec);
	for (i = 0; i < 3; i++) {
		if (!(a.devices >> i & 1))
			continue;
		need(!hm_context_enter(hm, i, &saved), "device %d", i);
		byte = 0;
		ok(!drv->cuMemsetD8Async((uintptr_t)p, 40 + i, 5000, NULL) &&
		   !drv->cuMemcpyDtoHAsync(&byte, (uintptr_t)p + 4999, 1, NULL) &&
		   !drv->cuStreamSynchronize(NULL) && byte == 40 + i,
		   "%s: device %d uses it", spec, i);
		hm_context_leave(hm, &saved);
		if (a.host)
			ok(all_bytes(p, 40 + i, 5000), "%s: so does the CPU", spec);
	}
	hetmem_free(res, p, 0, HOST);
	hetmem_resource_destroy(res);
}

static void test_bad_input(void)
{
	struct hetmem_access a = { .size = offsetof(struct hetmem_access, unit) - 1, .devices = 9 };
	struct hetmem_resource *res = make("pool(host)");

	is(hetmem_resource_access(res, NULL), -EINVAL, "no struct");
	is(hetmem_resource_access(res, &a), -EINVAL, "a size that is too small");
	ok(strstr(hetmem_last_error(), "sizeof") && a.devices == 9,
	   "it tells what to do, and writes nothing");
	a.size++;
	a.unit = 9;
	is(hetmem_resource_access(res, &a), 0, "a program that was built before @unit");
	ok(a.host && !a.devices && a.unit == 9, "gets what it knows");
	a.size = sizeof(a);
	is(hetmem_resource_access(NULL, &a), -EINVAL, "no resource");
	hetmem_resource_destroy(res);
}

static int child(struct hetmem_resource *host, struct hetmem_resource *device)
{
	struct hetmem_access a = { .size = sizeof(a) };

	return hetmem_resource_access(host, &a) || !a.host || a.devices ||
	       hetmem_resource_access(device, &a) != -EOWNERDEAD;
}

static void test_fork(const char *spec)
{
	struct hetmem_resource *host, *device = make(spec);
	int status = -1;
	pid_t pid;

	become(&hmm);
	host = make("pool(system)");
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child(host, device));
	waitpid(pid, &status, 0);
	is(status, 0, "%s: a forked child has the CPU, and no device", spec);
	hetmem_resource_destroy(host);
	hetmem_resource_destroy(device);
	become(&plain);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_DEVICES", "3", 1);
	open_soft("");
	test_providers();
	test_stacks();
	become(&plain);
	test_devices_do("pool(vmm(peers=1))");
	test_devices_do("device(device=2)");
	test_devices_do("pool(managed)");
	test_devices_do("pinned");
	test_bad_input();
	test_fork("pool(vmm)");
	test_fork("device");
	close_soft();
	return tap_end();
}
