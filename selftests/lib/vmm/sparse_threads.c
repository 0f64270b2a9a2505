// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Commits and decommits of many units, which let go of the pool's lock in between: beside
 * those of other threads that need the same memory, trims and allocations; and beside sleeps.
 * Each is all or nothing, and no two units have the same memory.
 */
#include "sparse_test.h"

#define THREADS		3
#define BLOCK_UNITS	150
#define ROUNDS		25

static struct hetmem_resource *res;
static unsigned int wrong, refused, done;

struct worker {
	pthread_t thread;
	unsigned int number;
	bool writes;
	uint64_t seed;
	char *p;
	bool has[BLOCK_UNITS];
};

static unsigned int any(struct worker *w, unsigned int nr)
{
	w->seed = w->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (w->seed >> 33) % nr;
}

static void expect(bool good, const char *what)
{
	if (!good && __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED) < 10)
		printf("# %s: %s\n", what, hetmem_last_error());
}

/* hetmem_committed() says what the thread knows. */
static bool is_listed(const struct worker *w)
{
	struct hetmem_extent e[BLOCK_UNITS];
	bool has[BLOCK_UNITS] = { false };
	ssize_t i, nr = hetmem_committed(res, w->p, e, BLOCK_UNITS);
	size_t u;

	for (i = 0; i < nr; i++)
		for (u = e[i].offset; u < e[i].offset + e[i].length; u += GRANULE)
			has[u / GRANULE] = true;
	return nr >= 0 && !memcmp(has, w->has, sizeof(has));
}

/* Each unit keeps the value that is written first. */
static void write_units(struct worker *w, CUstream s, unsigned int from, unsigned int to)
{
	unsigned char value = 1 + any(w, 250), c;
	unsigned int u;

	for (u = from; u < to; u++)
		expect(!drv->cuMemsetD8Async((uintptr_t)w->p + u * GRANULE, value + u, 4096, s), "write");
	for (u = from; u < to; u++)
		expect(!drv->cuMemcpyDtoHAsync(&c, (uintptr_t)w->p + u * GRANULE + 4095, 1, s) &&
		       !drv->cuStreamSynchronize(s) && c == (unsigned char)(value + u), "contents");
}

static void change(struct worker *w, CUstream s)
{
	const unsigned int from = any(w, BLOCK_UNITS), to = from + 1 + any(w, BLOCK_UNITS - from);
	unsigned int u, there = 0;
	int err;

	for (u = from; u < to; u++)
		there += w->has[u];
	if (!there) {
		err = hetmem_commit(res, w->p, from * GRANULE, (to - from) * GRANULE, s);
		expect(!err || err == -ENOMEM || err == -EBUSY, "commit");
		__atomic_add_fetch(&refused, err == -ENOMEM, __ATOMIC_RELAXED);
		for (u = from; u < to && !err; u++)
			w->has[u] = true;
		if (!err && w->writes)
			write_units(w, s, from, to);
	} else {
		err = hetmem_decommit(res, w->p, from * GRANULE, (to - from) * GRANULE, s);
		expect(there == to - from ? !err || err == -EBUSY : err == -ENOENT || err == -EBUSY,
		       "decommit");
		for (u = from; u < to && !err; u++)
			w->has[u] = false;
	}
	expect(is_listed(w), "all or nothing");
}

/* What is committed is given back: the next round can commit. */
static void empty(struct worker *w, CUstream s)
{
	unsigned int from, to;
	int err;

	for (from = 0; from < BLOCK_UNITS; from = to) {
		for (to = from + 1; to < BLOCK_UNITS && w->has[to] == w->has[from]; to++)
			;
		if (!w->has[from])
			continue;
		while ((err = hetmem_decommit(res, w->p, from * GRANULE, (to - from) * GRANULE, s)) == -EBUSY)
			sched_yield();
		expect(!err, "decommit");
		memset(&w->has[from], 0, to - from);
	}
	expect(is_listed(w), "empty");
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int n;
	CUstream s;

	drv->cuCtxSetCurrent(hm->devices[0].ctx);
	s = new_stream();
	while (sparse(res, BLOCK_UNITS * GRANULE, s, &w->p) == -EBUSY)
		sched_yield();
	for (n = 0; n < ROUNDS && w->p; n++) {
		change(w, s);
		if (!any(w, 4))
			empty(w, s);
	}
	drv->cuStreamSynchronize(s);
	empty(w, s);
	expect(w->p && !hetmem_free(res, w->p, 0, s), "free");
	drv->cuStreamSynchronize(s);
	hetmem_stream_retire(res, s);
	drv->cuStreamDestroy(s);
	__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Until the workers are done. */
static void disturb(bool sleeps)
{
	void *other = NULL;
	unsigned int n = 0;

	while (__atomic_load_n(&done, __ATOMIC_RELAXED) < THREADS) {
		if (sleeps) {
			expect(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep");
			expect(!hetmem_wake(res, NULL), "wake");
		} else if (++n % 4) {
			hetmem_trim(res, 0, NULL);
		} else {
			hetmem_free(res, other, 0, HETMEM_STREAM_HOST);
			other = NULL;
			hetmem_alloc(res, (1 + n % 40) * MIB, 0, HETMEM_STREAM_HOST, &other);
		}
		sched_yield();
	}
	hetmem_free(res, other, 0, HETMEM_STREAM_HOST);
}

static void run(const char *spec, bool sleeps)
{
	struct worker w[THREADS] = { 0 };
	unsigned int i;

	wrong = refused = done = 0;
	res = make(spec);
	for (i = 0; i < THREADS; i++) {
		w[i].number = i;
		w[i].seed = 1 + i;
		w[i].writes = !sleeps;
		need(!pthread_create(&w[i].thread, NULL, work, &w[i]), "a thread");
	}
	disturb(sleeps);
	for (i = 0; i < THREADS; i++)
		pthread_join(w[i].thread, NULL);
	is(wrong, 0, "%s%s: %u commits were refused", spec, sleeps ? ", with sleeps" : "", refused);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	is(stats(res).requested, 0, "%s: nothing is requested", spec);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "%s: nothing is held", spec);
	is(held(res), device_used(), "%s: the driver agrees", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	run("pool(vmm,wait=0s)", false);
	run("pool(vmm,max=400M,wait=0s)", false);
	run("pool(vmm,max=400M,wait=10ms)", false);
	run("pool(vmm,wait=0s)", true);
	close_soft();
	return tap_end();
}
