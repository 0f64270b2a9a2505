// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The providers of whole regions on a real GPU, alone and as resources; and
 * how long pinned memory takes, beside cuMemHostAlloc().
 */
#include "gpu_driver.h"
#include "provider/regions.h"
#include "pool/region.h"

#define MIB	((size_t)1 << 20)

static struct hetmem *hm;
static const struct hm_api *drv;

enum { MANAGED, ASYNC, PINNED, SYSTEM, HOST, NR_KINDS };

static const char *const names[] = {
	"managed", "async", "pinned", "system", "host",
};

static int make(int kind, struct hm_provider **p)
{
	switch (kind) {
	case MANAGED:
		return hm_managed_provider(hm, 0, p);
	case ASYNC:
		return hm_async_provider(hm, 0, NULL, p);
	case PINNED:
		return hm_pinned_provider(hm, 0, NULL, p);
	case SYSTEM:
		return hm_system_provider(hm, 0, NULL, p);
	default:
		return hm_host_provider(hm, p);
	}
}

static void regions(int kind)
{
	static const size_t sizes[] = { 1, 3 * MIB, 64 * MIB };
	unsigned char out[2];
	struct hm_provider *p;
	size_t i, size;
	void *v;

	if (make(kind, &p)) {
		printf("# %s: %s\n", names[kind], hetmem_last_error());
		return;
	}
	for (i = 0; i < 3; i++) {
		size = (sizes[i] + p->granularity - 1) & ~(p->granularity - 1);
		need(!p->ops->alloc(p, size, HETMEM_STREAM_HOST, &v),
		     "%s: %zu bytes", names[kind], size);
		ok(!((uintptr_t)v & (p->granularity - 1)), "aligned");
		if (p->caps & HM_PROVIDER_DEVICE) {
			drv->cuMemsetD8Async((uintptr_t)v, 0x42, size, NULL);
			drv->cuMemcpyDtoHAsync(&out[0], (uintptr_t)v, 1, NULL);
			drv->cuMemcpyDtoHAsync(&out[1],
					       (uintptr_t)v + size - 1, 1,
					       NULL);
			is(drv->cuCtxSynchronize(), 0, "the device uses it");
			ok(out[0] == 0x42 && out[1] == 0x42, "all of it");
		}
		if (p->caps & HM_PROVIDER_HOST) {
			if (p->caps & HM_PROVIDER_DEVICE)
				ok(((unsigned char *)v)[size / 2] == 0x42,
				   "the CPU sees it");
			((unsigned char *)v)[size - 1] = 1;
		}
		is(p->ops->free(p, v, size, HETMEM_STREAM_HOST), 0, "freed");
	}
	p->ops->destroy(p);
}

/* The bytes of a block are those of its own stream's last work. */
static void ordered(int kind)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;
	struct hm_provider *p;
	unsigned char *host;
	CUstream s[2];
	void *v;
	int i, bad = 0;

	if (make(kind, &p) || hm_region_create(p, &res))
		return;
	if (!(p->caps & HM_PROVIDER_DEVICE)) {
		hetmem_resource_destroy(res);
		return;
	}
	host = malloc(4 * MIB);
	for (i = 0; i < 2; i++)
		drv->cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING);
	for (i = 0; i < 100; i++) {
		need(!hetmem_alloc(res, 4 * MIB, 0, s[i & 1], &v),
		     "%s: a block: %s", names[kind], hetmem_last_error());
		drv->cuMemsetD8Async((uintptr_t)v, i, 4 * MIB, s[i & 1]);
		if (i % 10 == 9) {
			drv->cuMemcpyDtoHAsync(host, (uintptr_t)v, 4 * MIB,
					       s[i & 1]);
			drv->cuStreamSynchronize(s[i & 1]);
			bad += host[0] != i || memcmp(host, host + 1,
						      4 * MIB - 1);
		}
		bad += !!hetmem_free(res, v, 4 * MIB, s[i & 1]);
	}
	is(bad, 0, "%s: 100 blocks on two streams", names[kind]);
	for (i = 0; i < 2; i++) {
		is(hetmem_stream_retire(res, s[i]), 0, "retired");
		drv->cuStreamDestroy(s[i]);
	}
	is(hetmem_trim(res, 0, NULL), 0, "trimmed");
	is(hetmem_resource_stats(res, &stats), 0, "statistics");
	is(stats.reserved, 0, "nothing is held");
	is(hetmem_resource_destroy(res), 0, "nothing was left");
	free(host);
}

static double host_alloc(size_t size)
{
	double start = ms_now();
	void *p;

	if (drv->cuMemHostAlloc(&p, size, 0))
		return 0;
	start = ms_now() - start;
	drv->cuMemFreeHost(p);
	return start;
}

static double pinned(size_t size, unsigned int threads)
{
	struct hm_pinned_options options = { .threads = threads };
	struct hm_provider *p;
	double start;
	void *v;

	if (hm_pinned_provider(hm, 0, &options, &p))
		return 0;
	start = ms_now();
	if (p->ops->alloc(p, size, HETMEM_STREAM_HOST, &v)) {
		p->ops->destroy(p);
		return 0;
	}
	start = ms_now() - start;
	p->ops->free(p, v, size, HETMEM_STREAM_HOST);
	p->ops->destroy(p);
	return start;
}

/* Us, peer, peer, us; told, not judged. */
static void times(void)
{
	const size_t size = 1024 * MIB;
	double us[2], peer[2];
	unsigned int threads;

	us[0] = pinned(size, 0);
	peer[0] = host_alloc(size);
	peer[1] = host_alloc(size);
	us[1] = pinned(size, 0);
	ok(us[0] > 0 && us[1] > 0, "1 GiB of pinned memory");
	printf("# 1 GiB: pinned %.1f, %.1f ms; cuMemHostAlloc %.1f, %.1f ms; ratio %.2f\n",
	       us[0], us[1], peer[0], peer[1],
	       (peer[0] + peer[1]) / (us[0] + us[1]));
	for (threads = 1; threads <= 16; threads *= 2)
		printf("# %2u threads: %.1f ms\n", threads,
		       pinned(size, threads));
}

int main(void)
{
	int kind;

	drv = open_driver(DRIVER, &hm);
	for (kind = 0; kind < NR_KINDS; kind++) {
		regions(kind);
		ordered(kind);
	}
	times();
	close_driver(drv, hm);
	return tap_end();
}
