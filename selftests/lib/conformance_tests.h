/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The tests of conformance.h, which includes this. Each has the resource, the
 * row that it was made from and the driver's streams; what is wrong it expects
 * otherwise, and goes on. All leave the resource empty but for the last.
 */
#ifndef HETMEM_SELFTESTS_CONFORMANCE_TESTS_H
#define HETMEM_SELFTESTS_CONFORMANCE_TESTS_H

static void test_basic(void)
{
	hetmem_stream s = stream_of(0);
	void *p, *q;
	int i;

	if (!same(hetmem_alloc(res, 1000, 0, s, &p), 0))
		return;
	fill(p, 1000, 1, s);
	expect(holds(p, 1000, 1, s));
	same(hetmem_alloc(res, 1000, 0, s, &q), 0);
	fill(q, 1000, 2, s);
	expect(holds(p, 1000, 1, s) && holds(q, 1000, 2, s));
	same(hetmem_free(res, p, 1000, s), 0);
	expect(holds(q, 1000, 2, s));
	same(hetmem_free(res, q, 0, s), 0);
	for (i = 0; i < 3; i++) {
		same(hetmem_alloc(res, 5000, 0, s, &p), 0);
		fill(p, 5000, i, s);
		same(hetmem_free(res, p, 0, HETMEM_STREAM_UNKNOWN), 0);
	}
	same(hetmem_alloc(res, 5000, 0, HETMEM_STREAM_HOST, &p), 0);
	fill(p, 5000, 3, HETMEM_STREAM_HOST);
	expect(holds(p, 5000, 3, HETMEM_STREAM_HOST));
	same(hetmem_free(res, p, 5000, HETMEM_STREAM_HOST), 0);
	same(hetmem_free(res, NULL, 0, s), 0);
	same(hetmem_poll(res), 0);
}

static void test_alignment(void)
{
	hetmem_stream s = stream_of(0);
	size_t align;
	void *p;
	int err;

	for (align = 1; align <= 64 * KB; align *= 2) {
		err = hetmem_alloc(res, 3 * align, align, s, &p);
		if (row->largest && 3 * align > row->largest && err == -ENOMEM)
			continue;
		if (!same(err, 0))
			continue;
		same((uintptr_t)p % align, 0);
		same((uintptr_t)p % HETMEM_ALIGNMENT, 0);
		fill(p, 3 * align, 5, s);
		same(hetmem_free(res, p, 3 * align, s), 0);
	}
	same(hetmem_alloc(res, 100, 768, s, &p), -EINVAL);
}

static void test_sizes(void)
{
	hetmem_stream s = stream_of(1);
	struct { void *p; size_t size; } blocks[64];
	size_t size;
	int nr = 0, i;
	void *p;

	for (size = 1; size <= largest() && nr < 60; size *= 4) {
		int d;

		for (d = -1; d <= 1; d++) {
			if (size + d > largest())
				continue;
			blocks[nr].size = size + d;
			if (!same(hetmem_alloc(res, size + d, 0, s,
					       &blocks[nr].p), 0))
				continue;
			if (size + d)
				fill(blocks[nr].p, size + d, nr, s);
			nr++;
		}
	}
	for (i = 0; i < nr; i++)
		if (blocks[i].size)
			expect(holds(blocks[i].p, blocks[i].size, i, s));
	for (i = 0; i < nr; i++)
		same(hetmem_free(res, blocks[i].p, blocks[i].size, s), 0);
	p = &p;
	same(hetmem_alloc(res, SIZE_MAX, 0, s, &p), -ENOMEM);
	same(hetmem_alloc(res, SIZE_MAX - 4096, 0, s, &p), -ENOMEM);
	same(hetmem_alloc(res, PTRDIFF_MAX, 0, s, &p), -ENOMEM);
	same(hetmem_alloc(res, (size_t)1 << 60, 0, s, &p), -ENOMEM);
	expect(p == (void *)&p);
}

static void test_bad_frees(void)
{
	hetmem_stream s = stream_of(0);
	struct hm_ctl_owns block;
	char local[8];
	void *p;

	same(hetmem_free(res, local, 8, s), -EINVAL);
	same(hetmem_free(res, (void *)4096, 0, s), -EINVAL);
	if (!same(hetmem_alloc(res, 100000, 0, s, &p), 0))
		return;
	fill(p, 100000, 9, s);
	same(hetmem_free(res, (char *)p + 512, 0, s), -EINVAL);
	same(hetmem_free(res, (char *)p + 1, 0, s), -EINVAL);
	same(hetmem_free(res, p, 1, s), -EINVAL);
	same(hetmem_free(res, p, 16 * MB, s), -EINVAL);
	expect(holds(p, 100000, 9, s));
	same(block_of(res, p, &block), 0);
	expect(block.base == p && block.size >= 100000);
	same(block_of(res, (char *)p + 99999, &block), 0);
	expect(block.base == p);
	same(block_of(res, local, &block), -ENOENT);
	same(hetmem_free(res, p, 100000, s), 0);
	same(hetmem_free(res, p, 100000, s), -EINVAL);
	if (!(row->flags & CPU_ONLY))
		same(hetmem_record_stream(res, local, streams[1]), -EINVAL);
}

/* All there is, and the same again. */
static void test_exhaustion(void)
{
	size_t size = row->largest ? row->largest : 4 * MB;
	hetmem_stream s = stream_of(2);
	void *blocks[128];
	int nr = 0, again = 0, err = 0, round;

	for (; nr < 128; nr++) {
		err = hetmem_alloc(res, size, 0, s, &blocks[nr]);
		if (err)
			break;
	}
	if (!(row->flags & UNLIMITED))
		same(err, -ENOMEM);
	expect(err == 0 || strlen(hetmem_last_error()) > 10);
	for (; nr; nr--)
		if (!same(hetmem_free(res, blocks[nr - 1], size, s), 0))
			return;
	for (round = 0; round < 2; round++) {
		int most = again;

		for (again = 0; again < 128; again++)
			if (hetmem_alloc(res, size, 0, s, &blocks[again]))
				break;
		expect(again > 0 && (!round || again >= most - 1));
		for (nr = again; nr; nr--)
			same(hetmem_free(res, blocks[nr - 1], size, s), 0);
	}
}

static void test_stats(void)
{
	struct hetmem_resource_stats before = { .size = sizeof(before) };
	struct hetmem_resource_stats after = { .size = sizeof(after) };
	hetmem_stream s = stream_of(0);
	void *p;

	if (!same(hetmem_resource_stats(res, &before), 0))
		return;
	same(before.live, 0);
	same(before.requested, 0);
	if (!same(hetmem_alloc(res, 3000, 0, s, &p), 0))
		return;
	same(hetmem_resource_stats(res, &after), 0);
	same(after.live, 1);
	expect(after.requested >= 3000 && after.reserved >= 3000);
	same(after.allocs, before.allocs + 1);
	same(hetmem_free(res, p, 3000, s), 0);
	same(hetmem_resource_stats(res, &after), 0);
	same(after.live, 0);
	same(after.requested, 0);
	same(after.frees, before.frees + 1);
	expect(after.reserved_peak >= after.reserved);
}

/* Written on one stream, freed there, written by the next user on another. */
static void test_streams(void)
{
	size_t size = largest() / 2;
	void *p, *q;
	int i;

	for (i = 0; i < 12; i++) {
		hetmem_stream a = stream_of(i % 3), b = stream_of((i + 1) % 3);

		if (!same(hetmem_alloc(res, size, 0, a, &p), 0))
			return;
		fill(p, size, i, a);
		same(hetmem_free(res, p, size, a), 0);
		if (!same(hetmem_alloc(res, size, 0, b, &q), 0))
			return;
		fill(q, size, i + 100, b);
		expect(holds(q, size, i + 100, b));
		same(hetmem_free(res, q, size, b), 0);
	}
}

/* Allocated on one stream, used and freed on another that is ordered behind. */
static void test_cross_stream(void)
{
	size_t size = largest() / 4;
	CUevent event;
	void *p;
	int i;

	if (row->flags & CPU_ONLY)
		return;
	same(drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), 0);
	for (i = 0; i < 9; i++) {
		CUstream a = streams[i % 3], b = streams[(i + 1) % 3];
		void *q;

		if (!same(hetmem_alloc(res, size, 0, a, &p), 0))
			break;
		fill(p, size, i, a);
		drv->cuEventRecord(event, a);
		drv->cuStreamWaitEvent(b, event, 0);
		fill(p, size, i + 50, b);
		if (i % 3 == 0) {
			/* The ordering point moves to b. */
			same(hetmem_free(res, p, size, b), 0);
		} else {
			/* It stays, and the other use is told of. */
			same(hetmem_record_stream(res, p, b), 0);
			same(hetmem_free(res, p, size,
					 i % 3 == 1 ? (hetmem_stream)a :
					 HETMEM_STREAM_UNKNOWN), 0);
		}
		if (!same(hetmem_alloc(res, size, 0, a, &q), 0))
			break;
		fill(q, size, i + 100, a);
		expect(holds(q, size, i + 100, a));
		same(hetmem_free(res, q, size, a), 0);
	}
	drv->cuEventDestroy(event);
}

/* Streams come and go; their handles come again. */
static void test_retire(void)
{
	size_t size = largest() / 4;
	void *p, *held;
	CUstream s;
	int i;

	if (row->flags & CPU_ONLY)
		return;
	for (i = 0; i < 12; i++) {
		if (!same(drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0))
			return;
		if (!same(hetmem_alloc(res, size, 0, s, &p), 0))
			return;
		fill(p, size, i, s);
		same(hetmem_alloc(res, 4096, 0, s, &held), 0);
		fill(held, 4096, i, s);
		same(hetmem_free(res, p, size, s), 0);
		same(hetmem_stream_retire(res, s), 0);
		drv->cuStreamDestroy(s);
		/* What outlives its stream is freed behind another. */
		drv->cuCtxSynchronize();
		same(hetmem_free(res, held, 4096, HETMEM_STREAM_HOST), 0);
	}
}

/* A block outlives many streams that used it, one after the other. */
static void test_many_retired(void)
{
	CUstream s;
	void *p;
	int i;

	if (row->flags & CPU_ONLY ||
	    !same(hetmem_alloc(res, 4096, 0, streams[0], &p), 0))
		return;
	fill(p, 4096, 1, streams[0]);
	same(drv->cuStreamSynchronize(streams[0]), 0);
	for (i = 0; i < 100; i++) {
		if (!same(drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0))
			break;
		same(hetmem_record_stream(res, p, s), 0);
		fill(p, 4096, i, s);
		same(drv->cuStreamSynchronize(s), 0);
		same(hetmem_stream_retire(res, s), 0);
		drv->cuStreamDestroy(s);
	}
	expect(holds(p, 4096, 99, streams[0]));
	same(hetmem_free(res, p, 4096, streams[0]), 0);
}

/*
 * What CU_STREAM_PER_THREAD means to one thread, another one must not take for
 * its own: blocks that were allocated there or recorded there.
 */
struct own {
	pthread_barrier_t given;
	pthread_barrier_t freed;
	size_t size;
	void *recorded;
	void *allocated;
};

static void *use_own(void *arg)
{
	struct hm_context saved;
	struct own *o = arg;

	o->allocated = NULL;
	if (expect(!hm_context_enter(hm, 0, &saved)) &&
	    same(hetmem_alloc(res, o->size, 0, CU_STREAM_PER_THREAD,
			      &o->allocated), 0)) {
		fill(o->allocated, o->size, 7, CU_STREAM_PER_THREAD);
		same(hetmem_record_stream(res, o->recorded,
					  CU_STREAM_PER_THREAD), 0);
		fill(o->recorded, o->size, 8, CU_STREAM_PER_THREAD);
	}
	pthread_barrier_wait(&o->given);
	pthread_barrier_wait(&o->freed);
	same(hetmem_stream_retire(res, CU_STREAM_PER_THREAD), 0);
	return NULL;
}

static void reuse(size_t size, hetmem_stream s)
{
	void *p[3];
	int i, nr;

	for (nr = 0; nr < 3; nr++) {
		if (!same(hetmem_alloc(res, size, 0, s, &p[nr]), 0))
			break;
		fill(p[nr], size, nr, s);
	}
	for (i = 0; i < nr; i++) {
		expect(holds(p[i], size, i, s));
		same(hetmem_free(res, p[i], size, s), 0);
	}
}

static void test_own_stream(void)
{
	struct own o = { .size = largest() / 4 };
	pthread_t thread;
	int i;

	if (row->flags & CPU_ONLY)
		return;
	pthread_barrier_init(&o.given, NULL, 2);
	pthread_barrier_init(&o.freed, NULL, 2);
	for (i = 0; i < 2; i++) {
		hetmem_stream s = i ? streams[0] : CU_STREAM_PER_THREAD;

		if (!same(hetmem_alloc(res, o.size, 0, s, &o.recorded), 0))
			break;
		fill(o.recorded, o.size, 6, s);
		same(drv->cuStreamSynchronize(s), 0);
		pthread_create(&thread, NULL, use_own, &o);
		pthread_barrier_wait(&o.given);
		same(hetmem_free(res, o.recorded, o.size, s), 0);
		if (o.allocated)
			same(hetmem_free(res, o.allocated, 0,
					 HETMEM_STREAM_UNKNOWN), 0);
		reuse(o.size, s);
		pthread_barrier_wait(&o.freed);
		pthread_join(thread, NULL);
	}
	same(hetmem_stream_retire(res, CU_STREAM_PER_THREAD), 0);
	pthread_barrier_destroy(&o.given);
	pthread_barrier_destroy(&o.freed);
}

struct worker {
	pthread_t thread;
	int index;
	unsigned int seed;
};

/* Blocks that another thread frees. */
static void *handed_over[64];

static void free_handed(void *p, hetmem_stream s)
{
	/* Its writer has synchronized its stream before it gave it away. */
	same(hetmem_free(res, p, 0, s), 0);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct { unsigned char *p; size_t size; unsigned char v; } live[8] = { 0 };
	hetmem_stream s = HETMEM_STREAM_HOST;
	CUstream mine = NULL;
	int i;

	if (!(row->flags & CPU_ONLY)) {
		struct hm_context saved;

		if (hm_context_enter(hm, 0, &saved) ||
		    !same(drv->cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), 0))
			return NULL;
		s = mine;
	}
	for (i = 0; i < 200; i++) {
		unsigned int slot = i % 8;
		void *p;

		w->seed = w->seed * 1103515245 + 12345;
		if (live[slot].p) {
			expect(holds(live[slot].p, live[slot].size,
				     live[slot].v, s));
			if (i % 5)
				same(hetmem_free(res, live[slot].p,
						 live[slot].size, s), 0);
			else
				p = __atomic_exchange_n(
					&handed_over[w->seed >> 16 & 63],
					live[slot].p, __ATOMIC_ACQ_REL);
			if (i % 5 == 0 && p)
				free_handed(p, s);
			live[slot].p = NULL;
		}
		live[slot].size = 1 + (w->seed >> 8) % (largest() / 64);
		live[slot].v = w->seed >> 24;
		if (hetmem_alloc(res, live[slot].size, 0, s, &p) == 0) {
			live[slot].p = p;
			fill(p, live[slot].size, live[slot].v, s);
		} else if (!row->largest) {
			expect(!"threads: alloc");
		}
	}
	for (i = 0; i < 8; i++)
		if (live[i].p)
			same(hetmem_free(res, live[i].p, 0, s), 0);
	if (mine) {
		same(hetmem_stream_retire(res, mine), 0);
		drv->cuStreamDestroy(mine);
	}
	return NULL;
}

static void test_threads(void)
{
	struct worker workers[4];
	int i;

	for (i = 0; i < 4; i++) {
		workers[i] = (struct worker){ .index = i, .seed = i * 7919 + 1 };
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	}
	for (i = 0; i < 4; i++)
		pthread_join(workers[i].thread, NULL);
	for (i = 0; i < 64; i++) {
		if (handed_over[i])
			free_handed(handed_over[i], HETMEM_STREAM_HOST);
		handed_over[i] = NULL;
	}
}

static int in_child(void *live)
{
	void *p;
	int err = hetmem_alloc(res, 4096, 0, HETMEM_STREAM_HOST, &p);

	if (!(row->flags & FORKS))
		return err != -EOWNERDEAD ||
		       hetmem_free(res, live, 4096, HETMEM_STREAM_HOST) !=
			-EOWNERDEAD;
	if (err || ((unsigned char *)live)[0] != 77)
		return 1;
	memset(p, 1, 4096);
	return hetmem_free(res, p, 4096, HETMEM_STREAM_HOST) ||
	       hetmem_free(res, live, 4096, HETMEM_STREAM_HOST);
}

static void test_fork(void)
{
	int status = -1;
	void *live;
	pid_t pid;

	/* The host gets what is complete, and may not be let wait for more. */
	if (!(row->flags & CPU_ONLY))
		drv->cuCtxSynchronize();
	hetmem_poll(res);
	if (!same(hetmem_alloc(res, 4096, 0, HETMEM_STREAM_HOST, &live), 0))
		return;
	if (row->flags & FORKS)
		memset(live, 77, 4096);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		status = in_child(live);
		hetmem_resource_destroy(res);
		_exit(status);
	}
	waitpid(pid, &status, 0);
	same(status, 0);
	same(hetmem_free(res, live, 4096, HETMEM_STREAM_HOST), 0);
}

static void test_trim(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	size_t freed = 0;

	if (!(row->flags & CPU_ONLY))
		drv->cuCtxSynchronize();
	hetmem_poll(res);
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.live, 0);
	if (hetmem_trim(res, 0, &freed) == -EOPNOTSUPP)
		return;
	expect(freed <= stats.reserved);
	same(hetmem_resource_stats(res, &stats), 0);
}

/* Addresses first, then memory: on two streams, all or nothing. Others refuse, with a reason. */
static void test_sparse(void)
{
	const bool has = !strncmp(row->spec, "pool(vmm", 8) && !strstr(row->spec, "comm=on") &&
		!strstr(row->spec, "export=");
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 1024 * MB, .flags = HETMEM_ALLOC_SPARSE,
		.stream = stream_of(0),
	};
	struct hetmem_resource_stats before = { .size = sizeof(before) }, stats = before;
	struct hetmem_access access = { .size = sizeof(access) };
	struct hetmem_extent e[2];
	size_t unit;
	char *p = NULL;
	int err;

	same(hetmem_resource_stats(res, &before), 0);
	err = hetmem_alloc_with(res, &params, (void **)&p);
	if (err) {
		same(err, -EOPNOTSUPP);
		expect(!p && !has && hetmem_last_error()[0]);
		/* Not all blocks of a binning() are of one pool. */
		same(hetmem_resource_access(res, &access), 0);
		expect(!access.unit || strstr(row->spec, "binning("));
		return;
	}
	same(hetmem_resource_access(res, &access), 0);
	unit = access.unit;
	if (!expect(unit == (strstr(row->spec, "unit=4M") || strstr(row->spec, "stripe=") ?
			     4 * MB : 2 * MB)))
		return;
	same(hetmem_commit(res, p, 0, unit, stream_of(0)), 0);
	fill(p, unit, 1, stream_of(0));
	same(hetmem_commit(res, p, 512 * MB, unit, stream_of(1)), 0);
	fill(p + 512 * MB, unit, 2, stream_of(1));
	same(hetmem_commit(res, p, 512 * MB, 2 * unit, stream_of(0)), -EEXIST);
	same(hetmem_decommit(res, p, 0, 2 * unit, stream_of(0)), -ENOENT);
	same(hetmem_commit(res, p, unit / 2, unit, stream_of(0)), -EINVAL);
	same(hetmem_committed(res, p, e, 2), 2);
	expect(e[0].offset == 0 && e[0].length == unit && e[1].offset == 512 * MB &&
	       e[1].length == unit);
	expect(holds(p, unit, 1, stream_of(0)) && holds(p + 512 * MB, unit, 2, stream_of(1)));
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.requested, before.requested + 2 * unit);
	same(stats.addresses, before.addresses + params.bytes);
	same(hetmem_decommit(res, p, 0, unit, stream_of(0)), 0);
	/* The memory of the first unit serves another one, on another stream. */
	same(hetmem_commit(res, p, 8 * unit, unit, stream_of(1)), 0);
	fill(p + 8 * unit, unit, 3, stream_of(1));
	expect(holds(p + 8 * unit, unit, 3, stream_of(1)) &&
	       holds(p + 512 * MB, unit, 2, stream_of(1)));
	same(hetmem_free(res, p, params.bytes, stream_of(1)), 0);
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.requested, before.requested);
	same(stats.live, before.live);
}

/* A ring is one memory at two addresses, requested and held once. Others refuse, with a reason. */
static void test_ring(void)
{
	static const char *const have[] = {
		"pool(vmm)", "pool(vmm,streams=retired)", "pool(host,max=48M)", "pool(pinned,max=48M)",
		"pool(registered,max=48M)", "pool(custom(name=mapped))", "stats(pool(vmm))",
	};
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 4 * MB, .flags = HETMEM_ALLOC_RING,
		.stream = stream_of(0),
	};
	struct hetmem_resource_stats before = { .size = sizeof(before) }, stats = before;
	bool must = false;
	char *p = NULL;
	size_t i;
	int err;

	for (i = 0; i < sizeof(have) / sizeof(*have); i++)
		must |= !strcmp(row->spec, have[i]);
	same(hetmem_resource_stats(res, &before), 0);
	err = hetmem_alloc_with(res, &params, (void **)&p);
	if (err) {
		same(err, -EOPNOTSUPP);
		expect(!p && !must && hetmem_last_error()[0]);
		return;
	}
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.requested, before.requested + params.bytes);
	fill(p, 4 * MB, 1, stream_of(0));
	fill(p + 2 * MB, 4 * MB, 2, stream_of(0));
	expect(holds(p, 2 * MB, 2, stream_of(0)) && holds(p + 6 * MB, 2 * MB, 2, stream_of(0)));
	same(hetmem_grow(res, p, 6 * MB, stream_of(0)), -EOPNOTSUPP);
	same(hetmem_free(res, p, 8 * MB, stream_of(0)), -EINVAL);
	same(hetmem_free(res, p, params.bytes, stream_of(0)), 0);
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.requested, before.requested);
	same(stats.live, before.live);
}

/* A copy on device 1 that is no block. Others refuse, with a reason. */
static void test_replica(void)
{
	static const char *const have[] = {
		"pool(vmm)", "pool(vmm,handle=2M)", "pool(vmm(stripe=0/1),max=128M)", "stats(pool(vmm))",
	};
	struct hetmem_resource_stats before = { .size = sizeof(before) }, stats = before;
	const size_t size = 400 * KB;
	hetmem_stream s = stream_of(0);
	void *p = NULL, *replica = NULL;
	bool must = false;
	size_t i;
	int err;

	if (hm->nr_devices < 2)
		return;
	for (i = 0; i < sizeof(have) / sizeof(*have); i++)
		must |= !strcmp(row->spec, have[i]);
	same(hetmem_alloc(res, size, 0, s, &p), 0);
	same(hetmem_resource_stats(res, &before), 0);
	err = hetmem_replicate(res, p, 1, &replica);
	if (err) {
		same(err, -EOPNOTSUPP);
		expect(!replica && !must && hetmem_last_error()[0]);
		same(hetmem_free(res, p, 0, s), 0);
		return;
	}
	same(hetmem_resource_stats(res, &stats), 0);
	expect(stats.replicas >= size && stats.requested == before.requested &&
	       stats.live == before.live && stats.reserved == before.reserved);
	fill(p, size, 1, s);
	same(hetmem_refresh(res, p, s), 0);
	fill(p, size, 2, s);
	expect(holds(replica, size, 1, s));
	same(hetmem_replicate(res, p, 1, &replica), -EEXIST);
	same(hetmem_free(res, p, size, s), 0);
	same(hetmem_free(res, replica, 0, s), -EINVAL);
	same(hetmem_resource_stats(res, &stats), 0);
	same(stats.live, before.live - 1);
}

/* With live blocks: they are counted and gone. */
static void test_destroy(void)
{
	hetmem_stream s = stream_of(0);
	int i, nr = 0;
	void *p;

	for (i = 0; i < 3; i++)
		nr += !hetmem_alloc(res, 1000, 0, s, &p);
	same(nr, 3);
	same(hetmem_resource_destroy(res), 3);
	if (!(hm->soft && getenv("HETMEM_SOFT_CHECK")) &&
	    !strstr(row->spec, "guard("))
		return;
	/* Whoever uses it now is told so. */
	same(hetmem_alloc(res, 1000, 0, s, &p), -EINVAL);
	expect(strstr(hetmem_last_error(), "was destroyed before"));
	same(hetmem_free(res, &nr, 0, s), -EINVAL);
	same(hetmem_record_stream(res, &nr, s), -EINVAL);
	same(hetmem_poll(res), -EINVAL);
	same(hetmem_resource_destroy(res), -EINVAL);
}

#endif /* HETMEM_SELFTESTS_CONFORMANCE_TESTS_H */
