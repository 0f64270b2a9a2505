// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a pool reports as its peaks, and what decay= makes of them: against the bytes that
 * really were requested and held at once.
 */
#include "block_of.h"
#include "pool_gate.h"

static uint64_t live, peak;

static void *count_get(size_t size, hetmem_stream stream)
{
	live += size;
	if (live > peak)
		peak = live;
	return get(size, stream);
}

static void count_put(void *p, size_t size, hetmem_stream stream)
{
	live -= size;
	put(p, size, stream);
}

static void begin(const char *provider, const struct hm_pool_options *opt)
{
	live = 0;
	peak = 0;
	make_pool(provider, opt);
}

static void end(const char *what)
{
	is(pool_stats().requested, live, "%s: requested", what);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", what);
}

/* One stream allocates, another one frees: each block has both. */
static void handed_over(size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	void *p[16];
	int i;

	begin("vmm", NULL);
	for (i = 0; i < 16; i++)
		p[i] = count_get(size, a);
	for (i = 0; i < 20000; i++) {
		count_put(p[i % 16], size, b);
		p[i % 16] = count_get(size, a);
	}
	is(pool_stats().requested_peak, peak, "16 blocks of %zu bytes: peak", size);
	for (i = 0; i < 16; i++)
		count_put(p[i], size, b);
	is(pool_stats().requested_peak, peak, "and still");
	end("handed over");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Each stream has its turn. */
static void one_after_another(unsigned int nr, size_t size)
{
	CUstream *s = calloc(nr, sizeof(*s));
	void *p[24];
	unsigned int i, j;

	need(s, "memory");
	begin("vmm", NULL);
	for (i = 0; i < nr; i++) {
		s[i] = new_stream();
		for (j = 0; j < 24; j++)
			p[j] = count_get(size, s[i]);
		for (j = 0; j < 24; j++)
			count_put(p[j], size, s[i]);
	}
	is(pool_stats().requested_peak, peak, "%u streams of 24 blocks of %zu: peak", nr, size);
	end("one after another");
	for (i = 0; i < nr; i++)
		drv->cuStreamDestroy(s[i]);
	free(s);
}

/* Whatever they do: never more than there was, and not much less. */
static void at_random(unsigned int nr, unsigned int seed)
{
	const size_t steps = 20000;
	struct { void *p; size_t size; } b[64] = { { NULL, 0 } };
	CUstream s[40];
	uint64_t told;
	size_t i, at;

	begin("vmm", NULL);
	for (i = 0; i < nr; i++)
		s[i] = new_stream();
	for (i = 0; i < steps; i++) {
		at = rand_r(&seed) % 64;
		if (b[at].p) {
			count_put(b[at].p, b[at].size, s[rand_r(&seed) % nr]);
			b[at].p = NULL;
		} else if (rand_r(&seed) % 64U < 16 + 32 * i / steps) {
			b[at].size = 1 + rand_r(&seed) % (rand_r(&seed) % 4 ? 40000 : 3 * MIB);
			b[at].p = count_get(b[at].size, s[rand_r(&seed) % nr]);
		}
	}
	for (at = 0; at < 64; at++)
		if (b[at].p)
			count_put(b[at].p, b[at].size, s[at % nr]);
	told = pool_stats().requested_peak;
	ok(told <= peak, "%u streams: the peak is never too high", nr);
	ok(told >= peak - peak / 20, "%u streams: nor much too low: %llu of %llu", nr,
	   (unsigned long long)told, (unsigned long long)peak);
	end("at random");
	for (i = 0; i < nr; i++)
		drv->cuStreamDestroy(s[i]);
}

/* What could not be made was never held. */
static void not_made(const char *provider)
{
	struct hm_pool_options opt = { .wait_ms = HM_POOL_NO_WAIT };
	void *p;

	begin(provider, &opt);
	p = count_get(8 * MIB, NULL);
	is(hetmem_alloc(pool, 700 * MIB, 0, NULL, &p) ? 0 : 1, 0, "%s: more than there is",
	   provider);
	ok(pool_stats().reserved_peak <= 512 * MIB, "%s: %llu bytes at most were held", provider,
	   (unsigned long long)pool_stats().reserved_peak);
	hetmem_resource_destroy(pool);
	begin(provider, &opt);
	soft_rules("cuMemCreate:*,cuMemAlloc:*", NULL);
	ok(hetmem_alloc(pool, 8 * MIB, 0, NULL, &p) < 0, "%s: nothing to be had", provider);
	soft_rules(NULL, NULL);
	is(pool_stats().reserved_peak, 0, "%s: nothing was held", provider);
	end("not made");
}

/* decay_ms = 1 has passed. */
static void decay_is_due(void)
{
	/* time: decay counts it */
	usleep(3000);
}

/* Nobody asks for statistics here. */
static void decays(unsigned int nr)
{
	struct hm_pool_options opt = { .decay_ms = 1 };
	CUstream s[4];
	void *p[24];
	unsigned int i, j;

	begin("vmm", &opt);
	for (i = 0; i < nr; i++)
		s[i] = new_stream();
	for (i = 0; i < 3; i++)
		for (j = 0; j < 24; j++)
			p[j] = get(MIB, s[j % nr]);
	for (i = 0; i < 3; i++) {
		for (j = 0; j < 24 && !i; j++)
			put(p[j], MIB, s[(j + 1) % nr]);
		drv->cuCtxSynchronize();
		hetmem_poll(pool);
		decay_is_due();
	}
	ok(device_used() >= 48 * MIB, "%u streams: what is live stays", nr);
	is(hetmem_poll(pool), 0, "a look");
	/* An eighth more than what is live stays: a look after half of the frees found less. */
	ok(device_used() <= (48 + 48 / 8) * MIB,
	   "%u streams: what is free was given back: %zu", nr,
	   device_used());
	hetmem_resource_destroy(pool);
	for (i = 0; i < nr; i++)
		drv->cuStreamDestroy(s[i]);
}

static unsigned int nr_freed;

static CUresult count_free(CUdeviceptr p)
{
	nr_freed++;
	return real.cuMemFree(p);
}

/* cuMemFree() waits for the device, which a free never does. */
static void decays_elsewhere(void)
{
	struct hm_pool_options opt = { .decay_ms = 1 };
	void *p[8];
	int i;

	begin("device", &opt);
	hm->driver.cuMemFree = count_free;
	for (i = 0; i < 8; i++)
		p[i] = get(4 * MIB, NULL);
	for (i = 0; i < 8; i++) {
		decay_is_due();
		put(p[i], 0, NULL);
	}
	is(nr_freed, 0, "a free gives nothing back to a driver that waits");
	for (i = 0; i < 3; i++) {
		decay_is_due();
		drv->cuCtxSynchronize();
		put(get(2 * MIB, NULL), 0, NULL);
	}
	ok(nr_freed, "an allocation does");
	ok(device_used() < 16 * MIB, "what was not needed: %zu are left", device_used());
	hetmem_resource_destroy(pool);
	hm->driver.cuMemFree = real.cuMemFree;
}

#define NR_FITS	1000

/* Cached blocks that are larger than asked for: what they have too much is bounded. */
static void too_large(const char *provider)
{
	const size_t large = 8 << 10, small = 5 << 10;
	struct hm_ctl_owns block;
	CUstream s = new_stream();
	void *p[NR_FITS];
	size_t excess = 0;
	int i;

	begin(provider, NULL);
	for (i = 0; i < NR_FITS; i++)
		p[i] = get(large, s);
	for (i = 0; i < NR_FITS; i++)
		put(p[i], large, s);
	for (i = 0; i < NR_FITS; i++) {
		p[i] = get(small, s);
		need(!block_of(pool, p[i], &block), "a block");
		excess += block.size - small;
	}
	ok(excess && excess <= MIB + pool_stats().reserved / 1024 + large,
	   "%s: %zu KiB too much in %d of %zu KiB", provider, excess >> 10, NR_FITS,
	   small >> 10);
	for (i = 0; i < NR_FITS; i++)
		put(p[i], small, s);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
	drv->cuStreamDestroy(s);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "512M", 1);
	open_soft("");
	count_calls();
	handed_over(MIB);
	handed_over(3 * MIB);
	handed_over(1000);
	one_after_another(8, MIB);
	one_after_another(256, MIB);
	one_after_another(40, 100);
	at_random(1, 1);
	at_random(2, 2);
	at_random(5, 3);
	at_random(40, 4);
	not_made("vmm");
	not_made("device");
	decays(1);
	decays(3);
	decays_elsewhere();
	too_large("vmm");
	too_large("device");
	close_soft();
	return tap_end();
}
