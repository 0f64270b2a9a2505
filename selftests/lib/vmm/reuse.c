// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * alloc_reserve() and hetmem_grow() use free memory before they create
 * any: behind the block, elsewhere, of other streams, in handles of other sizes.
 */
#include "alloc_with.h"
#include "pool_gate.h"

#define GIB	((size_t)1 << 30)

static unsigned int seed;

static unsigned int any_of(unsigned int nr)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % nr;
}

static double excess(void)
{
	struct hetmem_resource_stats s = pool_stats();

	return (double)s.reserved_peak / s.requested_peak;
}

#define SEQUENCES	64

struct sequence {
	char *p;
	size_t size;
	size_t end;
	CUstream stream;
};

/* Sequences of tokens: each block grows step by step up to a length of its own. */
static void kv_blocks(size_t step, unsigned int nr_streams, double most)
{
	struct hm_pool_options opt = { .reuse_order = nr_streams > 1, .reserve = 256 * GIB };
	struct sequence all[SEQUENCES] = { 0 };
	CUstream streams[4];
	unsigned int i;

	for (i = 0; i < nr_streams; i++)
		streams[i] = new_stream();
	make_pool("vmm", &opt);
	seed = step;
	for (i = 0; i < 8000; i++) {
		struct sequence *q = &all[any_of(SEQUENCES)];

		if (!q->p) {
			q->stream = streams[any_of(nr_streams)];
			q->end = step * (1 + any_of(48));
			q->size = step;
			need(!alloc_reserve(pool, step, 512 * MIB, q->stream,
						   (void **)&q->p),
			     "a sequence: %s", hetmem_last_error());
		} else if (q->size < q->end) {
			q->size += step;
			need(!hetmem_grow(pool, q->p, q->size, q->stream),
			     "grows: %s", hetmem_last_error());
		} else {
			put(q->p, q->size, q->stream);
			q->p = NULL;
		}
	}
	ok(excess() <= most, "steps of %zu KiB, %u streams: at most %.2f of what is requested: %.3f",
	   step >> 10, nr_streams, most, excess());
	for (i = 0; i < SEQUENCES; i++)
		if (all[i].p)
			put(all[i].p, all[i].size, all[i].stream);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	is(device_used(), 0, "and given back");
	for (i = 0; i < nr_streams; i++)
		drv->cuStreamDestroy(streams[i]);
}

#define PIECES	300

/* Memory that is free in pieces between live blocks, too little of it elsewhere. */
static void in_pieces(bool grows)
{
	struct hm_pool_options opt = { .handle = 4 * MIB, .reserve = 256 * GIB };
	void *keep[PIECES], *gone[PIECES];
	struct hetmem_resource_stats was;
	unsigned int i;
	char *p;
	int err;

	make_pool("vmm", &opt);
	for (i = 0; i < PIECES; i++) {
		gone[i] = get(36 * MIB, NULL);
		keep[i] = get(24 * MIB, NULL);
	}
	for (i = 0; i < PIECES; i++)
		put(gone[i], 0, NULL);
	was = pool_stats();
	if (grows) {
		err = alloc_reserve(pool, 2 * MIB, 32 * GIB, NULL, (void **)&p);
		is(err, 0, "a block with room");
		err = hetmem_grow(pool, p, 16 * GIB, NULL);
	} else {
		err = alloc_reserve(pool, 16 * GIB, 20 * GIB, NULL, (void **)&p);
	}
	is(err, 0, "%s of 16 GiB, with %.1f free in pieces: %s",
	   grows ? "a grow" : "a reserve",
	   (double)(was.reserved - was.requested) / GIB, hetmem_last_error());
	if (!err)
		put(p, 0, NULL);
	for (i = 0; i < PIECES; i++)
		put(keep[i], 0, NULL);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	is(device_used(), 0, "and given back");
}

/* Rooms that are given up can be had again, whatever they still have of memory. */
static void addresses(void)
{
	struct hm_pool_options opt = { .reserve = 64 * GIB };
	unsigned int i, failed = 0;
	void *p, *q = NULL;

	make_pool("vmm", &opt);
	for (i = 0; i < 100; i++) {
		if (alloc_reserve(pool, 2 * MIB * (1 + i % 9), 12 * GIB, NULL, &p)) {
			failed++;
			continue;
		}
		if (q)
			put(q, 0, NULL);
		q = p;
	}
	is(failed, 0, "100 times room of 12 GiB in 64: %s", hetmem_last_error());
	if (q)
		put(q, 0, NULL);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

/* Memory after the block, which another stream freed. */
static void of_another_stream(void)
{
	struct hm_pool_options opt = { .handle = 2 * MIB };
	CUstream a = new_stream(), b = new_stream();
	uint64_t before;
	char *p, *q;

	make_pool("vmm", &opt);
	p = get(16 * MIB, a);
	put(p, 0, a);
	p = get(8 * MIB, a);
	q = get(8 * MIB, a);
	ok(q == p + 8 * MIB, "two in a row");
	put(get(4 * MIB, b), 0, b);
	before = pool_stats().reserved;
	close_gate(a);
	put(q, 0, a);
	is(hetmem_grow(pool, p, 16 * MIB, b), 0, "into what another stream freed: %s",
	   hetmem_last_error());
	is(pool_stats().reserved, before, "without new memory");
	is(pool_stats().host_wait_ns, 0, "and without waiting");
	ok(is_held_up(b), "the stream is ordered behind it");
	open_gate();
	drv->cuCtxSynchronize();
	put(p, 16 * MIB, b);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* All there is has been freed by another stream, which is busy: it is moved. */
static void moved(bool grows)
{
	struct hm_pool_options opt = { .max = 64 * MIB };
	CUstream a = new_stream(), b = new_stream();
	char *p = NULL, *q;

	make_pool("vmm", &opt);
	q = get(60 * MIB, a);
	put(get(512, b), 0, b);
	if (grows)
		need(!alloc_reserve(pool, 2 * MIB, 64 * MIB, b, (void **)&p), "room");
	close_gate(a);
	put(q, 0, a);
	is(grows ? hetmem_grow(pool, p, 50 * MIB, b) :
	   alloc_reserve(pool, 50 * MIB, 64 * MIB, b, (void **)&p), 0,
	   "%s: memory of another stream: %s", grows ? "grow" : "reserve",
	   hetmem_last_error());
	is(pool_stats().host_wait_ns, 0, "the host does not wait");
	ok(is_held_up(b), "the stream is ordered behind it");
	open_gate();
	drv->cuCtxSynchronize();
	put(p, 0, b);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	is(device_used(), 0, "and given back");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* The host cannot be ordered behind what is after the block: it waits. */
static void behind_in_use(bool recorded)
{
	struct hm_pool_options opt = { .handle = 2 * MIB, .wait_ms = 20 };
	const char *how = recorded ? "a recorded use" : "a use";
	CUstream a = new_stream(), b = new_stream();
	unsigned int tries;
	int err = -1;
	char *p, *q;

	make_pool("vmm", &opt);
	put(get(16 * MIB, a), 0, a);
	put(get(512, b), 512, b);
	p = get(8 * MIB, a);
	q = get(8 * MIB, a);
	need(q == p + 8 * MIB, "two in a row");
	if (recorded)
		need(!hetmem_record_stream(pool, q, b), "recorded");
	close_gate(recorded ? b : a);
	put(q, 0, a);
	is(hetmem_grow(pool, p, 16 * MIB, HETMEM_STREAM_HOST), -ENOMEM,
	   "%s of what is behind is waited for: %s", how, hetmem_last_error());
	open_gate();
	for (tries = 0; tries < 10 && err; tries++) {
		need(!drv->cuCtxSynchronize(), "all is complete");
		hetmem_poll(pool);
		err = hetmem_grow(pool, p, 16 * MIB, HETMEM_STREAM_HOST);
	}
	is(err, 0, "%s: and no longer: %s", how, hetmem_last_error());
	put(p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A page of a block is more than it needs, and was moved there in use. */
static void rest_in_use(void)
{
	struct hm_pool_options opt = { .max = 64 * MIB, .handle = 2 * MIB, .wait_ms = 20 };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *small, *r = NULL;

	make_pool("vmm", &opt);
	q = get(60 * MIB, a);
	small = get(512, b);
	p = get(2 * MIB, b);
	close_gate(a);
	put(q, 0, a);
	is(hetmem_grow(pool, p, 17 * MIB / 2, b), 0, "a block gets memory in use: %s",
	   hetmem_last_error());
	is(hetmem_alloc(pool, 5 * MIB / 4, 0, HETMEM_STREAM_HOST, &r), -ENOMEM,
	   "what is left of that is in use, too: %s", hetmem_last_error());
	if (r)
		put(r, 0, HETMEM_STREAM_HOST);
	open_gate();
	drv->cuCtxSynchronize();
	put(p, 0, b);
	put(small, 512, b);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static CUdeviceptr stays, stays_end;

static CUresult unmap_others(CUdeviceptr addr, size_t size)
{
	return addr >= stays && addr < stays_end ? CUDA_ERROR_UNKNOWN :
		real.cuMemUnmap(addr, size);
}

/*
 * The addresses that memory was moved from are left alone while they are used. After that a
 * neighbour grows there. @other: another stream has the memory then.
 */
static void old_addresses(bool other)
{
	struct hm_pool_options opt = { .max = 72 * MIB, .handle = 2 * MIB, .wait_ms = 20 };
	const char *who = other ? "another stream" : "its stream";
	CUstream a = new_stream(), b = other ? new_stream() : a;
	char *x, *y, *p, *q = NULL;
	unsigned int tries;
	int err = -1;

	make_pool("vmm", &opt);
	put(get(56 * MIB, a), 0, a);
	x = get(8 * MIB, a);
	p = get(48 * MIB, a);
	need(p == x + 8 * MIB, "two in a row");
	y = get(14 * MIB, b);
	close_gate(a);
	need(!drv->cuMemsetD8Async((CUdeviceptr)p, 1, 48 * MIB, a), "work");
	put(p, 0, a);
	is(alloc_reserve(pool, 48 * MIB, 64 * MIB, b, (void **)&q), 0,
	   "%s has the memory at other addresses: %s", who, hetmem_last_error());
	put(y, 0, b);
	is(hetmem_grow(pool, x, 16 * MIB, b), -ENOSPC, "%s: the old ones are in use: %s", who,
	   hetmem_last_error());
	open_gate();
	for (tries = 0; tries < 10 && err; tries++) {
		need(!drv->cuCtxSynchronize(), "%s: they are there until then", who);
		hetmem_poll(pool);
		err = hetmem_grow(pool, x, 16 * MIB, b);
	}
	is(err, 0, "%s: a neighbour grows there: %s", who, hetmem_last_error());
	put(x, 0, b);
	put(q, 0, b);
	stays = (CUdeviceptr)p + 8 * MIB;
	stays_end = (CUdeviceptr)p + 48 * MIB;
	hm->driver.cuMemUnmap = unmap_others;
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", who);
	hm->driver.cuMemUnmap = real.cuMemUnmap;
	ok(device_used() && pool_stats().reserved == device_used(),
	   "%s: memory with an old address that stays mapped is held", who);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", who);
	is(device_used(), 0, "%s: then given back", who);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	if (other)
		drv->cuStreamDestroy(b);
}

/*
 * Every call fails of a grow, or a reserve, that moves what another stream freed, and
 * the call that undoes it: nothing has changed, and it works afterwards.
 */
static void each_call(bool grows, const char *undo)
{
	static const char *const calls[] = {
		"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuStreamWaitEvent",
		"cuEventRecord",
	};
	struct hm_pool_options opt = { .max = 64 * MIB, .handle = 4 * MIB, .wait_ms = 20 };
	CUstream a = new_stream(), b = new_stream();
	struct hetmem_resource_stats was;
	unsigned int i, wrong = 0, failed = 0;
	char rule[100], *p, *q;
	int err;

	for (i = 0; i < 4 * sizeof(calls) / sizeof(calls[0]); i++) {
		snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_UNKNOWN%s", calls[i / 4],
			 1 + i % 4 * 3, undo);
		make_pool("vmm", &opt);
		p = NULL;
		q = get(56 * MIB, a);
		put(get(512, b), 512, b);
		if (grows)
			need(!alloc_reserve(pool, 2 * MIB, 64 * MIB, b, (void **)&p), "room");
		put(q, 0, a);
		was = pool_stats();
		soft_rules(rule, NULL);
		err = grows ? hetmem_grow(pool, p, 50 * MIB, b) :
			alloc_reserve(pool, 50 * MIB, 64 * MIB, b, (void **)&p);
		soft_rules(NULL, NULL);
		failed += err != 0;
		if (err)
			wrong += pool_stats().requested != was.requested;
		wrong += pool_stats().reserved != device_used();
		if (err && !*undo)
			wrong += pool_stats().reserved > was.reserved;
		if (err && !*undo)
			wrong += grows ? hetmem_grow(pool, p, 50 * MIB, b) :
				alloc_reserve(pool, 50 * MIB, 64 * MIB, b, (void **)&p);
		if (p && (!err || grows || !*undo))
			put(p, 0, b);
		wrong += hetmem_resource_destroy(pool);
		wrong += device_used() != 0;
	}
	ok(failed && !wrong, "%s%s: every call fails, %u times; %u wrong",
	   grows ? "grow" : "reserve", undo, failed, wrong);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* The host cannot be ordered behind a stream: it waits, as an allocation does. */
static void waits(bool grows)
{
	struct hm_pool_options opt = { .max = 64 * MIB, .wait_ms = 20000 };
	CUstream a = new_stream();
	char *p = NULL, *q;
	pthread_t opener;

	make_pool("vmm", &opt);
	q = get(60 * MIB, a);
	if (grows)
		need(!alloc_reserve(pool, 2 * MIB, 64 * MIB, HETMEM_STREAM_HOST,
					   (void **)&p), "room");
	close_gate(a);
	put(q, 0, a);
	need(!pthread_create(&opener, NULL, open_gate_later, NULL), "a thread");
	is(grows ? hetmem_grow(pool, p, 50 * MIB, HETMEM_STREAM_HOST) :
	   alloc_reserve(pool, 50 * MIB, 64 * MIB, HETMEM_STREAM_HOST, (void **)&p), 0,
	   "%s: waits for memory in use: %s", grows ? "grow" : "reserve", hetmem_last_error());
	pthread_join(opener, NULL);
	put(p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");

	opt.wait_ms = 20;
	make_pool("vmm", &opt);
	q = get(60 * MIB, a);
	p = NULL;
	if (grows)
		need(!alloc_reserve(pool, 2 * MIB, 64 * MIB, HETMEM_STREAM_HOST,
					   (void **)&p), "room");
	close_gate(a);
	put(q, 0, a);
	is(grows ? hetmem_grow(pool, p, 50 * MIB, HETMEM_STREAM_HOST) :
	   alloc_reserve(pool, 50 * MIB, 64 * MIB, HETMEM_STREAM_HOST, (void **)&p),
	   -ENOMEM, "%s: not for longer than wait=", grows ? "grow" : "reserve");
	ok(strstr(hetmem_last_error(), "on stream"), "names what it waited for: %s",
	   hetmem_last_error());
	open_gate();
	drv->cuCtxSynchronize();
	if (p)
		put(p, 2 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	is(device_used(), 0, "and given back");
	drv->cuStreamDestroy(a);
}

/*
 * Large free blocks with gaps of addresses between them, and a request for a block
 * that is nearly as large as all of them.
 */
static void put_together(void)
{
	static const unsigned int parts[] = { 1, 3, 7, 15, 31 };
	unsigned int i, j, n, worse = 0;
	double most = 0;

	for (i = 0; i < 5; i++) {
		for (j = 0; j < 60; j++) {
			size_t size[4], all = 0;
			char *p[4], *q;

			make_pool("vmm", NULL);
			seed = 100 * i + j;
			for (n = 0; n < 4; n++) {
				size[n] = (any_of(parts[i]) + 1) * 32 * MIB +
					any_of(200) * MIB;
				p[n] = get(size[n], NULL);
				all += size[n];
			}
			for (n = 0; n < 4; n++)
				put(p[n], size[n], NULL);
			q = get(all - 40 * MIB, NULL);
			worse += excess() > 1.05;
			if (excess() > most)
				most = excess();
			put(q, all - 40 * MIB, NULL);
			hetmem_resource_destroy(pool);
		}
	}
	is(worse, 0, "large blocks are put together: %.3f at most", most);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "24G", 1);
	open_soft("");
	count_calls();
	kv_blocks(2 * MIB, 1, 1.10);
	kv_blocks(2 * MIB, 4, 1.10);
	kv_blocks(6 * MIB, 1, 1.10);
	kv_blocks(5 * MIB, 2, 1.10);
	kv_blocks(MIB + 4096, 1, 1.10);
	in_pieces(false);
	in_pieces(true);
	put_together();
	addresses();
	of_another_stream();
	moved(false);
	moved(true);
	behind_in_use(false);
	behind_in_use(true);
	rest_in_use();
	old_addresses(false);
	old_addresses(true);
	waits(false);
	waits(true);
	each_call(false, "");
	each_call(true, "");
	each_call(false, ",cuMemUnmap:1");
	each_call(true, ",cuMemUnmap:*");
	close_soft();
	return tap_end();
}
