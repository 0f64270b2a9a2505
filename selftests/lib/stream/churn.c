// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Threads whose streams come and go, retired or not, over regions of each provider and
 * fixed(): blocks pass between threads, are recorded, and are freed by who knows the
 * stream and by who does not. In check mode: memory that is given back, or out, before
 * its uses are complete aborts. And more streams, one after the other, than there are
 * slots.
 */
#include "by_spec.h"

#define SIZE	(16UL << 10)
#define THREADS	4
#define ROUNDS	60
#define STREAMS	5000

static struct hetmem_resource *res;
static void *passed[8];
static unsigned int bad;

static void check(int err)
{
	if (err && !__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED))
		printf("# %d: %s\n", err, hetmem_last_error());
}

static void use(void *p, CUstream s)
{
	struct hm_soft_range r = { (uintptr_t)p, SIZE, -1 };

	check(hm->soft->launch(s, "a kernel", &r, 1, 1000));
}

/* A block of another thread, whose stream may have ended since. */
static void use_passed(unsigned int i, CUstream s, CUevent event)
{
	void *p = __atomic_exchange_n(&passed[i], NULL, __ATOMIC_ACQ_REL);

	if (!p)
		return;
	check(hetmem_record_stream(res, p, s));
	use(p, s);
	if (i % 2) {
		check(hetmem_free(res, p, SIZE, HETMEM_STREAM_UNKNOWN));
	} else {
		check(drv->cuEventRecord(event, s));
		check(drv->cuEventSynchronize(event));
		check(hetmem_free(res, p, SIZE, s));
	}
}

static void *work(void *arg)
{
	unsigned int seed = (uintptr_t)arg * 7919 + 1, i, j;
	CUstream s;
	CUcontext ctx;
	CUevent event;
	void *p, *q;

	check(drv->cuDevicePrimaryCtxRetain(&ctx, 0) || drv->cuCtxSetCurrent(ctx));
	check(drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	for (i = 0; i < ROUNDS; i++) {
		check(drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
		for (j = 0; j < 4; j++) {
			seed = seed * 1103515245 + 12345;
			p = get(res, SIZE, s);
			check(!p);
			use(p, s);
			use_passed(seed >> 16 & 7, s, event);
			if (seed >> 20 & 1) {
				/* The next user is ordered after this one. */
				check(drv->cuStreamSynchronize(s));
				q = __atomic_exchange_n(&passed[seed >> 24 & 7], p,
							__ATOMIC_ACQ_REL);
				if (q)
					check(hetmem_free(res, q, SIZE,
							  HETMEM_STREAM_UNKNOWN));
			} else {
				check(hetmem_free(res, p, SIZE, seed >> 21 & 1 ? s :
						  HETMEM_STREAM_UNKNOWN));
			}
		}
		if (i % 3)
			check(hetmem_stream_retire(res, s));
		check(drv->cuStreamDestroy(s));
		if (i % 16 == 7)
			check(hetmem_trim(res, 0, NULL));
		else if (i % 4 == 1)
			check(hetmem_poll(res));
	}
	check(drv->cuEventDestroy(event));
	drv->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static void threads(const char *spec)
{
	pthread_t thread[THREADS];
	uintptr_t i;

	res = make(spec);
	bad = 0;
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&thread[i], NULL, work, (void *)i), "a thread");
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (i = 0; i < 8; i++) {
		if (passed[i])
			check(hetmem_free(res, passed[i], SIZE, HETMEM_STREAM_UNKNOWN));
		passed[i] = NULL;
	}
	is(bad, 0, "%s: threads", spec);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
}

static void many(const char *spec, bool retire)
{
	unsigned int i;
	CUstream s;
	void *p;

	res = make(spec);
	bad = 0;
	for (i = 0; i < STREAMS && !bad; i++) {
		check(drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
		p = get(res, SIZE, s);
		check(!p);
		check(hetmem_free(res, p, SIZE, i % 2 ? s : HETMEM_STREAM_UNKNOWN));
		if (retire)
			check(hetmem_stream_retire(res, s));
		check(drv->cuStreamDestroy(s));
	}
	is(i, STREAMS, "%s: %d streams, %s", spec, STREAMS, retire ? "retired" : "not retired");
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
}

int main(void)
{
	static const char *const specs[] = {
		"device", "managed", "async", "pinned", "system(device=0)",
		"fixed(pool(vmm),size=64K,count=40)", "fixed(pool(host),size=64K,count=40)",
	};
	unsigned int i;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
		threads(specs[i]);
	many("managed", true);
	many("managed", false);
	many("fixed(device,size=64K,count=4)", true);
	many("fixed(device,size=64K,count=4)", false);
	close_soft();
	return tap_end();
}
