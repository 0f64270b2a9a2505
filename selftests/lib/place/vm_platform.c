// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Machines that the soft driver plays, where node 1 has memory and no CPU as a
 * device's has: memory really moves to it and back (ATS), or to the host's node
 * instead (CDMM), or stays (integrated). With the module and without; where there is
 * an emulated device, beside it.
 */
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include "api.h"

#define SIZE	((size_t)4 << 20)

static const uint32_t any = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
static const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);

static struct hetmem *hm;
static const struct hm_api *d;
static size_t page;
static const char *module_path;

static void play(const char *machine)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft",
		.module_path = module_path,
	};
	CUcontext ctx;

	setenv("HETMEM_SOFT_MACHINE", machine, 1);
	need(!hetmem_open(&hm, &params), "%s: %s", machine, hetmem_last_error());
	printf("# %s, %s the module\n", machine,
	       hm_kmod_there(hetmem_kmod(hm)) ? "with" : "without");
	d = api_of(hm);
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx),
	     "device 0 is current");
}

static void stop(void)
{
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
}

/* Memory on @node. */
static char *memory(int node)
{
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i;

	need(p != MAP_FAILED, "memory");
	madvise(p, SIZE, MADV_NOHUGEPAGE);
	numa_tonode_memory(p, SIZE, node);
	for (i = 0; i < SIZE / page; i++)
		memset(p + i * page, i % 251 + 1, page);
	return p;
}

static bool is_whole(const char *p)
{
	size_t i;

	for (i = 0; i < SIZE; i++)
		if (p[i] != (char)(i / page % 251 + 1))
			return false;
	return true;
}

/* Asks the kernel itself. */
static size_t pages_on(char *p, int node)
{
	size_t i, n = 0;

	for (i = 0; i < SIZE / page; i++) {
		void *at = p + i * page;
		int status = -1;

		if (!move_pages(0, 1, &at, NULL, &status, 0))
			n += status == node;
	}
	return n;
}

static void to(char *p, uint32_t location, const char *how, const char *reason)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	char name[64];

	hetmem_location_name(hm, location, name, sizeof(name));
	is(hetmem_prefetch(hm, p, SIZE, location, NULL, &m), 0, "to %s", name);
	ok(!strcmp(m.how, how) && strstr(m.reason, reason), "by %s: %s", m.how,
	   m.reason);
	is(d->cuCtxSynchronize(), 0, "done");
}

/* All of it, as the library tells. */
static void told(char *p, uint32_t location)
{
	const int source = hm_kmod_there(hetmem_kmod(hm)) ?
		HETMEM_SOURCE_MODULE : HETMEM_SOURCE_MOVE_PAGES;
	struct hetmem_run runs[16];
	uint8_t sources[16];
	uintptr_t next;
	ssize_t n = hetmem_residency(hm, p, SIZE, runs, sources, 16, &next), i;
	size_t right = 0;
	char name[64];

	for (i = 0; i < n; i++)
		if (runs[i].location == location && sources[i] == source)
			right += (runs[i].end - runs[i].start) / page;
	is(right, SIZE / page, "residency: %s",
	   hetmem_location_name(hm, location, name, sizeof(name)));
}

static void ats(void)
{
	struct hetmem_platform platform = { .size = sizeof(platform) };
	char name[64];
	char *p;

	play("ats");
	need(!hetmem_platform(hm, 0, &platform), "a verdict");
	is(platform.kind, HETMEM_PLATFORM_ATS, "ATS");
	is(platform.node, 1, "on the node without CPUs");
	ok(!hetmem_contradiction(hm, 0, 0), "nothing contradicts");
	p = memory(0);
	told(p, HETMEM_LOC(HETMEM_HOST, 0));
	to(p, device0, "driver", "");
	is(pages_on(p, 1), SIZE / page, "all pages are there");
	told(p, device0);
	ok(!strcmp(hetmem_location_name(hm, device0, name, sizeof(name)),
		   "device 0 (node 1)"), "%s", name);
	to(p, any, "driver", "");
	is(pages_on(p, 0), SIZE / page, "all pages are back");
	told(p, HETMEM_LOC(HETMEM_HOST, 0));
	ok(is_whole(p), "contents");
	munmap(p, SIZE);
	stop();
}

static void cdmm(void)
{
	char *p;

	play("cdmm host_node=0");
	p = memory(1);
	told(p, HETMEM_LOC(HETMEM_HOST, 1));
	to(p, device0, "driver", "CDMM");
	is(pages_on(p, 0), SIZE / page, "it went to the host's node instead");
	told(p, HETMEM_LOC(HETMEM_HOST, 0));
	ok(is_whole(p), "contents");
	munmap(p, SIZE);
	stop();
}

static void integrated(void)
{
	char *p;

	play("integrated");
	p = memory(1);
	to(p, device0, "none", "one memory");
	is(d->cuMemPrefetchAsync_v2((uintptr_t)p, SIZE, (CUmemLocation){
		   CU_MEM_LOCATION_TYPE_DEVICE, 0 }, 0, NULL), 0,
	   "the driver takes it");
	is(d->cuCtxSynchronize(), 0, "done");
	is(pages_on(p, 1), SIZE / page, "and does nothing");
	munmap(p, SIZE);
	stop();
}

/* Facts of this kernel, none of which is played. */
static void facts(void)
{
	struct hetmem_evidence e = { .size = sizeof(e) };
	unsigned int i, right = 0;

	play("cdmm nvml.node=1 driver.node=fails kernel.device_private=fails");
	for (i = 0; !hetmem_evidence(hm, 0, i, &e); i++) {
		right += !strcmp(e.what, "node_online") && !strcmp(e.value, "yes");
		right += !strcmp(e.what, "node_cpus") && !strcmp(e.value, "no");
		right += !strcmp(e.what, "node_memory") && strstr(e.value, " MiB");
	}
	is(right, 3, "the node is there, has memory and no CPU");
	stop();
}

/* An emulated device goes to the first that has HMM. */
static void beside(void)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	char *p;

	play("ats memory=64M; hmm");
	need(!hetmem_device_props(hm, 0, &props), "properties");
	is(props.module_id, -1, "the one with ATS is not emulated");
	need(!hetmem_device_props(hm, 1, &props), "properties");
	if (props.module_id < 0) {
		printf("# no emulated device\n");
		stop();
		return;
	}
	p = memory(0);
	to(p, device0, "driver", "");
	is(pages_on(p, 1), SIZE / page, "all pages are on the node");
	to(p, HETMEM_LOC(HETMEM_DEVICE, 1), "module", "");
	told(p, HETMEM_LOC(HETMEM_DEVICE, 1));
	to(p, any, "driver", "");
	is(pages_on(p, 0), SIZE / page, "from the device to the host, not to the node");
	ok(is_whole(p), "contents");
	munmap(p, SIZE);
	stop();
}

int main(void)
{
	static const char *const paths[] = { NULL, "" };
	size_t i;

	page = sysconf(_SC_PAGESIZE);
	need(hm_numa_has_node(1), "there are two nodes");
	for (i = 0; i < 2; i++) {
		module_path = paths[i];
		ats();
		cdmm();
		integrated();
		facts();
		beside();
	}
	return tap_end();
}
