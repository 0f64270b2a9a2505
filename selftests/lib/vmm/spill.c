// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that move: the memory behind an address goes to the host and comes back, with its
 * contents; what may not move says why; those who registered an address are told; moves that
 * are only begun; sleep, fork and destroy beside them.
 * Argument: a seed.
 */
#include <sys/wait.h>

#include "spill_test.h"

static void there_and_back(const char *spec)
{
	struct hetmem_resource_stats before;

	make(spec);
	fill(&slots[0], 40 * MIB + 5000, streams[0]);
	fill(&slots[1], 9 * MIB, streams[0]);
	fill(&slots[2], 17 * MIB, HOST);
	before = stats();
	is(hetmem_spill(res, slots[0].p), 0, "%s: spill: %s", spec, hetmem_last_error());
	is(wrong(), 0, "contents are there");
	ok(stats().spilled && stats().reserved + stats().spilled == before.reserved,
	   "%lld bytes are on the host, and not on the device",
	   (long long)stats().spilled);
	is(device_used(), (long long)stats().reserved, "and are free on the device");
	is(hetmem_spill(res, slots[0].p), 0, "again");
	write_block(&slots[0]);
	is(wrong(), 0, "it can be written there");
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	is(stats().spilled, 0, "nothing is on the host");
	is(stats().reserved, (long long)before.reserved, "all is on the device");
	is(hetmem_fetch(res, slots[0].p), 0, "again");
	is(hetmem_spill(res, slots[2].p), 0, "of the host's stream: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	is(hetmem_spill(res, slots[0].p), 0, "spilled");
	empty(&slots[0]);
	fill(&slots[3], 40 * MIB + 5000, streams[0]);
	fill(&slots[4], 30 * MIB, streams[1]);
	hetmem_poll(res);
	hetmem_trim(res, 0, NULL);
	is(wrong(), 0, "a spilled block is freed, and others come");
	end();
}

/* What is refused, and why. */

static void ignore(const struct hetmem_remap *remap, void *arg)
{
	(void)remap;
	(void)arg;
}

static int (*const moves[])(struct hetmem_resource *res, void *ptr) = {
	hetmem_spill, hetmem_fetch, hetmem_spill_async, hetmem_fetch_async, hetmem_host_access,
};

#define NR_MOVES	(sizeof(moves) / sizeof(moves[0]))

/* How many of them, and of hetmem_priority(), do not return @want for @ptr. */
static unsigned int others(void *ptr, int want, bool priority)
{
	unsigned int i, n = 0;

	for (i = 0; i < NR_MOVES; i++)
		n += moves[i](res, ptr) != want;
	return n + (priority && hetmem_priority(res, ptr, 1) != want);
}

static void bad_pointers(void)
{
	struct hetmem_resource *mine;
	void *freed, *theirs;

	make("pool(vmm,handle=2M)");
	mine = res;
	need(!hetmem_resource_create(hm, "pool(vmm)", &res), "%s", hetmem_last_error());
	fill(&slots[1], 4 * MIB, streams[0]);
	theirs = slots[1].p;
	empty(&slots[1]);
	fill(&slots[1], 4 * MIB, streams[0]);
	theirs = slots[1].p;
	is(hetmem_free(res, theirs, 0, streams[0]), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "another pool");
	memset(slots, 0, sizeof(slots));
	res = mine;
	fill(&slots[0], 4 * MIB, streams[0]);
	fill(&slots[1], 4 * MIB, streams[0]);
	freed = slots[1].p;
	empty(&slots[1]);
	is(others(NULL, -EINVAL, true), 0, "NULL");
	is(others((char *)slots[0].p + 512, -EINVAL, true), 0, "an interior pointer");
	is(others((char *)slots[0].p + 2 * MIB, -EINVAL, true), 0, "a page of it");
	is(others(freed, -EINVAL, true), 0, "a freed block");
	is(others(theirs, -EINVAL, true), 0, "an address of another pool");
	is(others(image, -EINVAL, true), 0, "an address of nobody");
	is(hetmem_on_remap(res, NULL, NULL), -EINVAL, "on_remap: fn is NULL");
	is(hetmem_off_remap(res, NULL, NULL), -EINVAL, "off_remap: fn is NULL");
	is(hetmem_off_remap(res, ignore, NULL), -EINVAL, "off_remap: it was not added");
	is(hetmem_on_remap(res, ignore, &seed), 0, "on_remap");
	is(hetmem_off_remap(res, ignore, NULL), -EINVAL, "off_remap: another argument");
	is(hetmem_off_remap(res, ignore, &seed), 0, "off_remap");
	is(hetmem_off_remap(res, ignore, &seed), -EINVAL, "off_remap: once more");
	is(wrong(), 0, "contents are there");
	end();
}

static void no_moves(const char *spec)
{
	make(spec);
	need(!try_fill(&slots[0], 4 * MIB, streams[0], 0), "%s", hetmem_last_error());
	is(others(slots[0].p, -EOPNOTSUPP, true), 0, "%s has no moves", spec);
	empty(&slots[0]);
	is(hetmem_resource_destroy(res), 0, "%s", spec);
}

/* Adaptors pass it on, also with a pointer that is not the pool's. */
static void passed_on(const char *spec)
{
	int calls = 0;

	make(spec);
	fill(&slots[0], 6 * MIB, streams[0]);
	is(hetmem_on_remap(res, ignore, &calls), 0, "%s: on_remap: %s", spec, hetmem_last_error());
	is(hetmem_priority(res, slots[0].p, 3), 0, "priority");
	is(hetmem_spill(res, slots[0].p), 0, "spill: %s", hetmem_last_error());
	ok(stats().spilled, "it is on the host");
	is(hetmem_host_access(res, slots[0].p), 0, "host_access: %s", hetmem_last_error());
	is(hetmem_fetch_async(res, slots[0].p), 0, "fetch_async: %s", hetmem_last_error());
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	ok(!stats().spilled, "it is on the device");
	is(hetmem_spill_async(res, slots[0].p), 0, "spill_async");
	is(hetmem_spill(res, slots[0].p), 0, "spill");
	is(wrong(), 0, "contents are there");
	is(hetmem_off_remap(res, ignore, &calls), 0, "off_remap");
	empty(&slots[0]);
	is(hetmem_resource_destroy(res), 0, "%s", spec);
	ok(!device_used() && !hm->soft->holds(), "nothing is left");
}

/* Where wait= is shorter than a copy on a busy machine. */
static int end_spill(void *p)
{
	int err;

	do
		err = hetmem_spill(res, p);
	while (err == -EBUSY && strstr(hetmem_last_error(), "has not finished"));
	return err;
}

static void busy(void)
{
	CUgraph graph;
	void *p, *q;

	make("pool(vmm,handle=2M,wait=20ms)");
	need(!try_fill(&slots[0], 4 * MIB, streams[0], 0), "not movable");
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "not movable", "no flag");
	refused(hetmem_priority(res, slots[0].p, 1), -EBUSY, "not movable", "its priority");
	need(!try_fill(&slots[1], 4 * MIB, streams[0], HETMEM_ALLOC_KEEP), "kept");
	is(others(slots[1].p, -EBUSY, true), 0, "a kept block");
	fill(&slots[2], 4 * MIB, streams[0]);
	need(!hetmem_record_stream(res, slots[2].p, streams[1]), "recorded");
	refused(hetmem_spill(res, slots[2].p), -EBUSY, "recorded", "recorded");
	fill(&slots[3], 4 * MIB, streams[0]);
	need(!hetmem_pin_comm(res, slots[3].p), "pinned");
	refused(hetmem_spill(res, slots[3].p), -EBUSY, "pinned", "pinned");
	fill(&slots[4], MIB + 512 * 1024, streams[0]);
	/* It begins where a handle does, and ends in it. */
	refused(hetmem_spill_async(res, slots[4].p), -EBUSY, "no handle of its own", "small");
	is(hetmem_spill(res, slots[4].p), 0, "which moves with the block: %s", hetmem_last_error());
	is(hetmem_fetch(res, slots[4].p), 0, "and comes back");
	fill(&slots[5], 4 * MIB, streams[0]);
	refused(hetmem_host_access(res, slots[5].p), -EBUSY, "not spilled", "host_access");
	hold_up(streams[0]);
	refused(hetmem_spill(res, slots[5].p), -EBUSY, "has not finished", "its stream works");
	is(hetmem_spill_async(res, slots[5].p), 0, "which is no reason not to begin");
	let_through();
	is(end_spill(slots[5].p), 0, "it has finished: %s", hetmem_last_error());
	refused(hetmem_pin_comm(res, slots[5].p), -EBUSY, "on the host", "pin_comm of a spilled block");
	need(!hetmem_capture_begin(res, streams[1], 1), "%s", hetmem_last_error());
	need(!drv->cuStreamBeginCapture(streams[1], CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	is(others(slots[5].p, -EBUSY, false), 0, "a capture is open: %s", hetmem_last_error());
	need(!hetmem_alloc(res, 4 * MIB, 0, streams[1], &p), "%s", hetmem_last_error());
	need(!drv->cuStreamEndCapture(streams[1], &graph), "its end");
	need(!hetmem_capture_end(res, streams[1], 1), "%s", hetmem_last_error());
	is(hetmem_fetch(res, slots[5].p), 0, "it has ended: %s", hetmem_last_error());
	is(others(p, -EBUSY, true), 0, "a capture's block: %s", hetmem_last_error());
	hetmem_free(res, p, 0, streams[1]);
	need(!hetmem_capture_release(res, streams[1], 1) && !drv->cuGraphDestroy(graph),
	     "released");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "%s", hetmem_last_error());
	is(others(slots[5].p, -EBUSY, false), 0, "asleep: %s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "%s", hetmem_last_error());
	is(hetmem_spill(res, slots[5].p), 0, "awake");
	is(wrong(), 0, "contents are there");
	q = slots[3].p;
	empty(&slots[3]);
	(void)q;
	for (p = slots; p < (void *)(slots + SLOTS); p = (struct slot *)p + 1)
		empty(p);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	ok(!device_used() && !hm->soft->holds(), "nothing is left");
}

static void legacy(const char *spec, int want)
{
	make(spec);
	fill(&slots[0], 4 * MIB, (hetmem_stream)NULL);
	is(hetmem_spill(res, slots[0].p), want, "%s, NULL: %s", spec, hetmem_last_error());
	is(hetmem_fetch(res, slots[0].p), want, "fetch");
	is(hetmem_spill_async(res, slots[0].p), want, "spill_async");
	is(hetmem_spill(res, slots[0].p), want, "its end");
	fill(&slots[1], 4 * MIB, HETMEM_STREAM_LEGACY);
	is(hetmem_spill(res, slots[1].p), want, "the legacy stream by its name");
	is(wrong(), 0, "contents are there");
	end();
}

static void peers(void)
{
	make("pool(vmm(device=0,peers=1),handle=2M)");
	fill(&slots[0], 4 * MIB, streams[0]);
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "peers", "peers");
	end();
}

static void *retire_and_destroy(CUstream stream)
{
	is(hetmem_stream_retire(res, stream), 0, "retired: %s", hetmem_last_error());
	need(!drv->cuStreamDestroy(stream), "destroyed");
	return NULL;
}

/* Blocks outlive their streams, which may have work still. */
static void retired(void)
{
	struct hm_soft_range range = { .size = 4 * MIB, .fill = 7 };
	unsigned int way;

	make("pool(vmm,handle=2M)");
	for (way = 0; way < 4; way++) {
		CUstream mine;

		need(!drv->cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), "a stream");
		fill(&slots[0], 4 * MIB, mine);
		slots[0].stream = streams[0];
		if (way >= 2)
			need(!hetmem_spill(res, slots[0].p), "%s", hetmem_last_error());
		range.ptr = (uintptr_t)slots[0].p;
		need(!soft_launch(mine, "late", &range, 1, 20000000), "a kernel");
		retire_and_destroy(mine);
		is(way & 1 ? (way < 2 ? hetmem_spill_async : hetmem_fetch_async)(res, slots[0].p) :
		   (way < 2 ? hetmem_spill : hetmem_fetch)(res, slots[0].p), 0,
		   "way %u: %s", way, hetmem_last_error());
		(way < 2 ? hetmem_spill : hetmem_fetch)(res, slots[0].p);
		need(!drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)slots[0].p, 4 * MIB,
					 streams[0]) && !drv->cuStreamSynchronize(streams[0]),
		     "a copy");
		ok(all_bytes(image, 7, 4 * MIB), "what its stream wrote last is there");
		slots[0].on = HOST;
		empty(&slots[0]);
	}
	end();
}

/* Observers. */

/* A registration cache: what a transport has of an address. */
#define REGISTRATIONS	8

static struct registration {
	uintptr_t ptr;
	unsigned long long id;
	bool valid;
} cache[REGISTRATIONS];

static struct {
	unsigned int before, after, failed, wrong_memory;
	void *ptr[64];
	size_t bytes[64];
	unsigned int nr_open, bad;
	int codes[16];
	unsigned int nr_codes;
	bool forget;		/* drops registrations, as it has to */
	bool allocates;
} seen;

static unsigned long long buffer_id(uintptr_t ptr)
{
	unsigned long long id = 0;

	drv->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
	return id;
}

static unsigned int memory_type(uintptr_t ptr)
{
	unsigned int type = 0;

	if (drv->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr))
		return 0;
	return type;
}

static void count_codes(void *ptr)
{
	void *q;

	seen.nr_codes = 0;
	seen.codes[seen.nr_codes++] = hetmem_spill(res, ptr);
	seen.codes[seen.nr_codes++] = hetmem_fetch(res, ptr);
	seen.codes[seen.nr_codes++] = hetmem_spill_async(res, ptr);
	seen.codes[seen.nr_codes++] = hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP);
	seen.codes[seen.nr_codes++] = hetmem_wake(res, NULL);
	seen.codes[seen.nr_codes++] = hetmem_on_remap(res, ignore, NULL);
	seen.codes[seen.nr_codes++] = hetmem_off_remap(res, ignore, NULL);
	if (!hetmem_alloc(res, 3 * MIB, 0, streams[1], &q))
		seen.bad += hetmem_free(res, q, 0, streams[1]) != 0;
	hetmem_poll(res);
}

static void look(const struct hetmem_remap *remap, void *arg)
{
	const bool host = remap->cause == HETMEM_REMAP_SPILL ? remap->after && !remap->error :
		!(remap->after && !remap->error);
	const uintptr_t ptr = (uintptr_t)remap->ptr;
	unsigned int i;

	if (arg != &seen || remap->size < sizeof(*remap))
		seen.bad++;
	if (remap->cause == HETMEM_REMAP_SPILL || remap->cause == HETMEM_REMAP_FETCH)
		seen.wrong_memory += memory_type(ptr) !=
			(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE) ||
			!(remap->changes & HETMEM_REMAP_MEMORY_TYPE);
	seen.failed += remap->error != 0;
	for (i = 0; i < REGISTRATIONS && !remap->after && seen.forget; i++)
		if (cache[i].ptr >= ptr && cache[i].ptr < ptr + remap->bytes)
			cache[i].valid = false;
	if (seen.allocates)
		count_codes(slots[0].p);
	if (!remap->after) {
		seen.before++;
		seen.ptr[seen.nr_open] = remap->ptr;
		seen.bytes[seen.nr_open++] = remap->bytes;
		return;
	}
	seen.after++;
	for (i = 0; i < seen.nr_open; i++)
		if (seen.ptr[i] == remap->ptr && seen.bytes[i] == remap->bytes)
			break;
	if (i == seen.nr_open) {
		seen.bad++;
		return;
	}
	seen.nr_open--;
	seen.ptr[i] = seen.ptr[seen.nr_open];
	seen.bytes[i] = seen.bytes[seen.nr_open];
}

/* Sends all handles of the blocks; how many through a registration of other memory. */
static unsigned int transfer(void)
{
	unsigned int i, stale = 0;

	for (i = 0; i < REGISTRATIONS; i++) {
		const uintptr_t ptr = (uintptr_t)slots[i / 4].p + i % 4 * 2 * MIB;

		if (!cache[i].valid || cache[i].ptr != ptr)
			cache[i] = (struct registration){ ptr, buffer_id(ptr), true };
		stale += cache[i].id != buffer_id(ptr);
	}
	return stale;
}

static unsigned int transfers(void)
{
	unsigned int stale = transfer(), i;

	for (i = 0; i < 2; i++) {
		need(!hetmem_spill(res, slots[i].p), "%s", hetmem_last_error());
		stale += transfer();
	}
	need(!hetmem_sleep(res, NULL, i & 1 ? HETMEM_SLEEP_DISCARD : HETMEM_SLEEP_KEEP) &&
	     !hetmem_wake(res, NULL), "%s", hetmem_last_error());
	stale += transfer();
	need(!hetmem_fetch_async(res, slots[0].p) && !hetmem_fetch(res, slots[0].p), "%s",
	     hetmem_last_error());
	stale += transfer();
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP) && !hetmem_wake(res, NULL), "%s",
	     hetmem_last_error());
	stale += transfer();
	need(!hetmem_fetch(res, slots[1].p), "%s", hetmem_last_error());
	return stale + transfer();
}

static void observers(void)
{
	unsigned int i;

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 8 * MIB, streams[0]);
	fill(&slots[1], 8 * MIB, streams[1]);
	memset(&seen, 0, sizeof(seen));
	memset(cache, 0, sizeof(cache));
	need(!hetmem_on_remap(res, look, &seen), "%s", hetmem_last_error());
	ok(transfers(), "registrations that are kept are stale");
	seen.forget = true;
	memset(cache, 0, sizeof(cache));
	is(transfers(), 0, "with on_remap none is");
	ok(seen.before && seen.before == seen.after && !seen.nr_open && !seen.bad,
	   "%u calls before, %u after, of the same ranges", seen.before, seen.after);
	is(seen.wrong_memory, 0, "before there is the old memory, after it the new");
	is(seen.failed, 0, "none has failed");
	soft_rules("cuMemcpyAsync:1", NULL);
	ok(hetmem_spill(res, slots[0].p), "a copy fails");
	soft_rules(NULL, NULL);
	ok(seen.failed == 1 && seen.before == seen.after && !seen.wrong_memory,
	   "which the call after it tells, with the old memory");
	is(hetmem_spill(res, slots[0].p), 0, "spilled");
	i = seen.before;
	is(hetmem_spill(res, slots[0].p), 0, "nothing changes");
	is(seen.before, i, "which nobody is told");
	is(hetmem_off_remap(res, look, &seen), 0, "off_remap");
	is(hetmem_fetch(res, slots[0].p), 0, "fetch");
	is(seen.before, i, "it is not called any more");
	is(wrong(), 0, "contents are there");
	end();
}

static void in_callbacks(const char *spec)
{
	unsigned int i, good = 0;

	make(spec);
	memset(&seen, 0, sizeof(seen));
	fill(&slots[0], 8 * MIB, streams[0]);
	fill(&slots[1], 8 * MIB, streams[0]);
	seen.allocates = true;
	need(!hetmem_on_remap(res, look, &seen), "%s", hetmem_last_error());
	is(hetmem_spill(res, slots[0].p), 0, "%s: spill: %s", spec, hetmem_last_error());
	for (i = 0; i < seen.nr_codes; i++)
		good += seen.codes[i] == -EDEADLK;
	ok(good && good == seen.nr_codes, "moves, sleep, wake and the like: -EDEADLK");
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	fill(&slots[2], 6 * MIB, streams[0]);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), 0, "sleep: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wake: %s", hetmem_last_error());
	ok(seen.before && seen.before == seen.after && !seen.bad, "allocations and frees work");
	is(wrong(), 0, "contents are there");
	end();
}

/* Moves that are only begun. */

static void *end_it(void *ptr)
{
	return hetmem_spill(res, ptr) ? ptr : NULL;
}

static void begun(void)
{
	struct hm_soft_range range = { .size = 8 * MIB, .fill = 9 };
	pthread_t thread;
	unsigned int k;
	void *failed;
	int err;

	make("pool(vmm,handle=2M)");
	for (k = 0; k < 4; k++)
		fill(&slots[k], 8 * MIB, streams[k & 1]);
	is(hetmem_spill(res, slots[3].p), 0, "one is on the host");
	hold_up(streams[0]);
	is(hetmem_spill_async(res, slots[0].p), 0, "a stream is held up: %s", hetmem_last_error());
	is(hetmem_spill_async(res, slots[1].p), 0, "another one");
	is(hetmem_fetch_async(res, slots[3].p), 0, "and one comes back");
	is(hetmem_spill_async(res, slots[0].p), 0, "begun twice is no error");
	refused(hetmem_fetch_async(res, slots[0].p), -EBUSY, "it moves", "the other way");
	is(hetmem_poll(res), 0, "poll");
	is(hetmem_fetch(res, slots[3].p), 0, "another direction ends alone");
	is(stats().spilled_total - stats().fetched_total, 0, "one is back, none else has moved");
	let_through();
	need(!drv->cuCtxSynchronize(), "complete");
	is(hetmem_poll(res), 0, "poll");
	is(stats().spilled, 16 * MIB, "ends what is complete");
	is(wrong(), 0, "contents are there");

	is(hetmem_fetch_async(res, slots[0].p), 0, "fetch_async");
	while ((err = hetmem_spill_async(res, slots[0].p)) == -EBUSY)
		;
	is(err, 0, "spill_async once it is complete: %s", hetmem_last_error());
	is(hetmem_spill(res, slots[0].p), 0, "its end");
	ok(stats().fetched_total == 16 * MIB && stats().spilled == 16 * MIB,
	   "it came back and left again");
	is(hetmem_fetch_async(res, slots[1].p), 0, "fetch_async");
	refused(hetmem_host_access(res, slots[1].p), -EBUSY, "not spilled",
		"host_access ends it, and nothing is on the host");
	is(hetmem_spill_async(res, slots[1].p), 0, "spill_async");
	need(!pthread_create(&thread, NULL, end_it, slots[1].p), "a thread");
	pthread_join(thread, &failed);
	ok(!failed, "another thread ends it");
	is(hetmem_fetch(res, slots[1].p), 0, "fetch");
	is(wrong(), 0, "contents are there");

	/* The copy comes behind the kernel, and the next kernel of others beside it. */
	range.ptr = (uintptr_t)slots[1].p;
	need(!soft_launch(streams[1], "late", &range, 1, 20000000), "a kernel");
	is(hetmem_spill_async(res, slots[1].p), 0, "behind a kernel");
	is(hetmem_spill(res, slots[1].p), 0, "its end");
	need(!drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)slots[1].p, 8 * MIB, streams[1]) &&
	     !drv->cuStreamSynchronize(streams[1]), "a copy");
	ok(all_bytes(image, 9, 8 * MIB), "what the kernel wrote is there");
	write_block(&slots[1]);

	need(!soft_rules("cuMemcpyAsync:3", NULL), "a rule");
	ok(hetmem_spill_async(res, slots[2].p), "a copy in the middle fails");
	soft_rules(NULL, NULL);
	need(!soft_rules("cuEventSynchronize:2,cuEventSynchronize:3", NULL), "a rule");
	is(hetmem_spill_async(res, slots[2].p), 0, "it is begun");
	ok(hetmem_spill(res, slots[2].p), "and fails later: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	is(wrong(), 0, "contents are there");
	end();
}

/* Freed, and its stream retired, while it moves. */
static void freed_while_moving(void)
{
	unsigned int k, way;

	make("pool(vmm,handle=2M)");
	for (way = 0; way < 2; way++) {
		CUstream mine, next;

		need(!drv->cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), "a stream");
		fill(&slots[0], 8 * MIB, mine);
		if (way)
			need(!hetmem_spill(res, slots[0].p), "%s", hetmem_last_error());
		hold_up(mine);
		is((way ? hetmem_fetch_async : hetmem_spill_async)(res, slots[0].p), 0, "begun");
		is(hetmem_priority(res, slots[0].p, 2), 0, "it is movable");
		is(hetmem_free(res, slots[0].p, 8 * MIB, mine), 0, "freed while it moves");
		is(others(slots[0].p, -EINVAL, true), 0, "it is no block");
		slots[0].p = NULL;
		fill(&slots[1], 8 * MIB, streams[1]);
		fill(&slots[2], 8 * MIB, streams[1]);
		is(wrong(), 0, "others do not get its memory");
		let_through();
		need(!drv->cuStreamSynchronize(mine), "it is complete");
		retire_and_destroy(mine);
		/* Others get the slots of streams that are gone. */
		for (k = 0; k < 4; k++) {
			need(!drv->cuStreamCreate(&next, CU_STREAM_NON_BLOCKING), "a stream");
			fill(&slots[3], 4 * MIB, next);
			is(wrong(), 0, "contents are there");
			empty(&slots[3]);
			hetmem_poll(res);
			need(!drv->cuStreamSynchronize(next), "complete");
			retire_and_destroy(next);
		}
		need(!drv->cuCtxSynchronize(), "complete");
		is(hetmem_poll(res), 0, "poll");
		is(stats().spilled, 0, "nothing is on the host");
		empty(&slots[1]);
		empty(&slots[2]);
	}
	end();
}

/* Sleep, wake, trim and destroy while moves are under way. */
static void pending(void)
{
	unsigned int way;

	for (way = 0; way < 5; way++) {
		make("pool(vmm,handle=2M)");
		fill(&slots[0], 8 * MIB, streams[0]);
		fill(&slots[1], 8 * MIB, streams[1]);
		need(!hetmem_spill(res, slots[1].p), "%s", hetmem_last_error());
		memset(&seen, 0, sizeof(seen));
		need(!hetmem_on_remap(res, look, &seen), "%s", hetmem_last_error());
		is(hetmem_spill_async(res, slots[0].p), 0, "one leaves");
		is(hetmem_fetch_async(res, slots[1].p), 0, "one returns");
		if (way < 2) {
			is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), 0, "sleep: %s",
			   hetmem_last_error());
			is(device_used(), 0, "all memory is given back");
			is(hetmem_wake(res, NULL), 0, "wake");
		} else if (way == 2) {
			is(hetmem_trim(res, 0, NULL), 0, "trim");
			is(hetmem_spill(res, slots[0].p), 0, "the end of one");
			is(hetmem_fetch(res, slots[1].p), 0, "and of the other");
		} else if (way == 3) {
			empty(&slots[0]);
			empty(&slots[1]);
		}
		if (way < 3)
			is(wrong(), 0, "contents are there");
		if (way < 2)
			ok(seen.before == seen.after && seen.before > 2,
			   "what was told before is told after");
		if (way == 4)
			hetmem_resource_destroy(res);
		else
			end();
		ok(seen.before == seen.after && !seen.nr_open && !seen.bad,
		   "all that was begun has ended: %u, %u", seen.before, seen.after);
		ok(!device_used() && !hm->soft->holds(), "nothing is left");
	}
}

static void sleeps(unsigned int flags)
{
	make("pool(vmm,handle=2M)");
	fill(&slots[0], 8 * MIB, streams[0]);
	fill(&slots[1], 8 * MIB, streams[1]);
	is(hetmem_spill(res, slots[0].p), 0, "spilled");
	is(hetmem_sleep(res, NULL, flags), 0, "sleep: %s", hetmem_last_error());
	is(device_used(), 0, "no memory of the device is held");
	is(others(slots[0].p, -EBUSY, false), 0, "asleep: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wake");
	is(wrong_in(&slots[0]), 0, "a spilled block keeps its contents");
	if (flags)
		is(wrong_in(&slots[1]), 0, "and the other one");
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	is(wrong_in(&slots[0]), 0, "contents are there");
	is(hetmem_sleep(res, NULL, flags), 0, "sleep once more");
	empty(&slots[0]);
	is(hetmem_wake(res, NULL), 0, "wake: freed while it was asleep");
	end();
}

/* A sleep that fails in part is tried again, and tells what it takes. */
static void sleeps_in_part(void)
{
	unsigned int told;

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 8 * MIB, streams[0]);
	memset(&seen, 0, sizeof(seen));
	need(!hetmem_on_remap(res, look, &seen), "%s", hetmem_last_error());
	need(!soft_rules("cuMemUnmap:2", NULL), "a rule");
	ok(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps in part");
	soft_rules(NULL, NULL);
	told = seen.before;
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), 0, "sleeps when it is told again");
	ok(told == 1 && seen.before == 2 && seen.after == 2 && !seen.bad,
	   "which observers are told again: %u, %u", seen.before, seen.after);
	is(hetmem_wake(res, NULL), 0, "wake");
	is(wrong(), 0, "contents are there");
	end();
}

static int in_child(bool exits)
{
	unsigned int n = others(slots[0].p, -EOWNERDEAD, true) +
		(hetmem_on_remap(res, ignore, NULL) != -EOWNERDEAD) +
		(hetmem_off_remap(res, ignore, NULL) != -EOWNERDEAD) +
		(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP) != -EOWNERDEAD);

	if (exits)
		return n;
	hetmem_resource_destroy(res);
	hetmem_close(hm);
	return n;
}

static void forks(void)
{
	unsigned int way;
	int status;

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 8 * MIB, streams[0]);
	fill(&slots[1], 8 * MIB, streams[0]);
	is(hetmem_spill(res, slots[1].p), 0, "one is on the host");
	for (way = 0; way < 6; way++) {
		if (way / 2 == 1)
			need(!hetmem_fetch_async(res, slots[1].p), "%s", hetmem_last_error());
		if (way / 2 == 2)
			need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "%s",
			     hetmem_last_error());
		fflush(stdout);
		if (!fork())
			_exit(in_child(way & 1));
		status = -1;
		wait(&status);
		is(status, 0, "a forked child, %u", way);
		if (way / 2 == 1)
			need(!hetmem_spill(res, slots[1].p), "%s", hetmem_last_error());
	}
	is(hetmem_wake(res, NULL), 0, "wake");
	is(wrong(), 0, "contents are there");
	end();
}

/* A block that grows counts as it was declared; steps are found all the same. */
static void grows(void)
{
	void *p;

	make("pool(vmm,max=64M,spill=64M,handle=2M)");
	p = NULL;
	{
		struct hetmem_alloc_params params = {
			.size = sizeof(params), .bytes = 4 * MIB, .stream = streams[0],
			.flags = HETMEM_ALLOC_MOVABLE, .reserve = 32 * MIB,
		};

		need(!hetmem_alloc_with(res, &params, &p), "%s", hetmem_last_error());
	}
	slots[0] = (struct slot){
		.p = p, .size = 4 * MIB, .on = streams[0], .stream = streams[0],
	};
	write_block(&slots[0]);
	is(hetmem_spill(res, p), 0, "spill: %s", hetmem_last_error());
	is(hetmem_grow(res, p, 10 * MIB, streams[0]), 0, "it grows: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	slots[0].size = 10 * MIB;
	write_block(&slots[0]);
	is(hetmem_spill(res, p), 0, "spill: %s", hetmem_last_error());
	is(stats().spilled, 10 * MIB, "all of it");
	is(hetmem_fetch_async(res, p), 0, "fetch_async");
	is(hetmem_grow(res, p, 12 * MIB, streams[0]), 0, "it grows while it moves");
	is(hetmem_fetch(res, p), 0, "fetch: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	slots[0].size = 12 * MIB;
	end();
}

static void all(void)
{
	there_and_back("pool(vmm)");
	there_and_back("pool(vmm,handle=2M)");
	there_and_back("stats(guard(pool(vmm,handle=4M)))");
	bad_pointers();
	no_moves("device");
	no_moves("pool(device)");
	no_moves("pool(vmm,comm=on)");
	no_moves("pool(vmm(export=fd))");
	no_moves("stats(pool(device))");
	no_moves("limit(pool(vmm,comm=on),max=100M)");
	passed_on("guard(pool(vmm,handle=2M))");
	passed_on("stats(pool(vmm,handle=2M))");
	passed_on("limit(pool(vmm,handle=2M),max=100M)");
	passed_on("history(pool(vmm,handle=2M))");
	passed_on("fallback(pool(vmm,handle=2M),pool(device))");
	busy();
	legacy("pool(vmm,handle=2M)", -EBUSY);
	legacy("pool(vmm,handle=2M,launcher=single)", 0);
	peers();
	retired();
	observers();
	in_callbacks("pool(vmm,handle=2M)");
	in_callbacks("pool(vmm,handle=2M,max=22M,spill=64M,wait=1ms)");
	begun();
	freed_while_moving();
	pending();
	sleeps(HETMEM_SLEEP_KEEP);
	sleeps(HETMEM_SLEEP_DISCARD);
	sleeps_in_part();
	forks();
	grows();
}

int main(int argc, char **argv)
{
	unsigned int check;

	setenv("HETMEM_SOFT_MACHINE", "managed memory=256M; managed memory=64M", 1);
	for (check = 0; check < 2; check++) {
		seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
		printf("# seed %llu, %s\n", (unsigned long long)seed,
		       check ? "checked" : "not checked");
		open_moves(check ? "1" : "0");
		all();
		close_moves();
	}
	free(image);
	return tap_end();
}
