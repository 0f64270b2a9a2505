// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that share handles: a handle moves with all of them or stays, what is freed beside a
 * spilled block is nobody's until the handle is back, and calls of the driver that fail lose
 * nothing. Then random programs of three streams against what they wrote.
 * Arguments: a seed, steps of each random program.
 */
#include "spill_test.h"

#include <hetmem/snapshot.h>

#define PAGE	(2 * MIB)

static unsigned int steps = 250;

static bool on_host(const void *p)
{
	unsigned int type = 0;

	return !drv->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					   (uintptr_t)p) && type == CU_MEMORYTYPE_HOST;
}

static bool begins_on_host(unsigned int k)
{
	return on_host(slots[k].p);
}

static bool ends_on_host(unsigned int k)
{
	return on_host((char *)slots[k].p + slots[k].size - 1);
}

/* The first @nr slots, one after the other in memory. */
static void row(unsigned int nr, size_t size, hetmem_stream stream)
{
	unsigned int k;

	for (k = 0; k < nr; k++) {
		fill(&slots[k], size, stream);
		need(!k || (char *)slots[k].p == (char *)slots[k - 1].p + ((size + 511) & ~511UL),
		     "a row: %p after %p", slots[k].p, slots[k ? k - 1 : 0].p);
	}
}

/* What was freed is complete, and so are the events that tell the pool. */
static void settle(void)
{
	unsigned int i;

	for (i = 0; i < 3; i++) {
		drv->cuCtxSynchronize();
		hetmem_poll(res);
	}
}

/* Three blocks in a handle of 4 MiB, with 512 KiB that are free. */
static void together(size_t size)
{
	unsigned int k, n = 4 * MIB / size;
	void *p;

	make("pool(vmm,handle=4M)");
	row(n, size, streams[0]);
	is(hetmem_spill(res, slots[1].p), 0, "%zu bytes: spill: %s", size, hetmem_last_error());
	for (k = 0; k < n && begins_on_host(k) && ends_on_host(k); k++)
		;
	is(k, n, "the blocks of the handle move together");
	is(stats().spilled, 4 * MIB, "and are counted as the handle");
	is(stats().reserved, 0, "of which nothing is on the device");
	is(wrong(), 0, "contents are there");
	write_block(&slots[0]);
	/* What is freed, and what was free before, is not for others. */
	p = slots[2].p;
	empty(&slots[2]);
	fill(&slots[9], size, streams[0]);
	ok(!begins_on_host(9) && slots[9].p != p, "free memory on the host is nobody's");
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	ok(!begins_on_host(1) && !stats().spilled, "they come back together");
	fill(&slots[10], size, streams[0]);
	is(wrong(), 0, "contents are there");
	is(hetmem_spill(res, slots[0].p), 0, "again");
	for (k = 0; k < n; k++)
		empty(&slots[k]);
	empty(&slots[10]);
	settle();
	is(stats().spilled, 0, "the last block that is freed gives the handle back");
	is(wrong(), 0, "contents are there");
	end();
}

/* A long block: its ends are of others, too. */
static void ends(void)
{
	make("pool(vmm,handle=4M)");
	row(3, 7 * MIB, streams[0]);
	is(hetmem_spill_async(res, slots[1].p), 0, "spill_async: %s", hetmem_last_error());
	is(hetmem_spill(res, slots[1].p), 0, "its end: %s", hetmem_last_error());
	ok(!ends_on_host(0) && !begins_on_host(1) && !ends_on_host(1) && !begins_on_host(2),
	   "a move that is only begun leaves what others have");
	write_block(&slots[0]);
	is(hetmem_spill(res, slots[1].p), 0, "once more: %s", hetmem_last_error());
	ok(ends_on_host(0) && begins_on_host(1) && ends_on_host(1) && begins_on_host(2),
	   "the other one takes it along");
	ok(!begins_on_host(0), "and no more than that");
	is(wrong(), 0, "contents are there");
	is(hetmem_fetch(res, slots[2].p), 0, "fetch: %s", hetmem_last_error());
	ok(!begins_on_host(2) && !ends_on_host(1) && begins_on_host(1), "a part comes back");
	is(hetmem_spill(res, slots[1].p), 0, "it goes, and what is there stays");
	is(wrong(), 0, "contents are there");
	is(hetmem_fetch(res, slots[1].p), 0, "fetch: %s", hetmem_last_error());
	ok(!begins_on_host(1) && !ends_on_host(1), "all of it is back");
	is(wrong(), 0, "contents are there");
	end();
}

/* Why a handle stays. Slot 0 begins it, and slot 1 is what keeps it. */
static void stays(void)
{
	const size_t size = MIB + 512 * 1024;

	make("pool(vmm,handle=8M,wait=20ms)");
	fill(&slots[0], size, streams[0]);
	fill(&slots[1], size, streams[1]);
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "another stream", "another stream");
	refused(hetmem_spill(res, slots[1].p), -EBUSY, "another stream", "and the other way");
	empty(&slots[1]);
	hold_up(streams[1]);
	need(!hetmem_alloc(res, size, 0, streams[1], &slots[1].p), "%s", hetmem_last_error());
	hetmem_free(res, slots[1].p, 0, streams[1]);
	slots[1].p = NULL;
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "in use", "free memory that is in use");
	let_through();
	drv->cuCtxSynchronize();
	is(hetmem_spill(res, slots[0].p), 0, "no more: %s", hetmem_last_error());
	is(hetmem_fetch(res, slots[0].p), 0, "back: %s", hetmem_last_error());
	need(!try_fill(&slots[1], size, streams[0], 0), "not movable");
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "not movable", "not movable");
	empty(&slots[1]);
	need(!try_fill(&slots[1], size, streams[0], HETMEM_ALLOC_KEEP), "kept");
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "not movable", "kept");
	empty(&slots[1]);
	fill(&slots[1], size, streams[0]);
	is(hetmem_spill(res, slots[0].p), 0, "both are movable: %s", hetmem_last_error());
	need(!hetmem_record_stream(res, slots[1].p, streams[1]), "recorded");
	refused(hetmem_fetch(res, slots[0].p), -EBUSY, "recorded", "it was recorded since");
	is(wrong(), 0, "contents are there");
	empty(&slots[1]);
	settle();
	is(hetmem_fetch(res, slots[0].p), 0, "freed: %s", hetmem_last_error());
	fill(&slots[1], size, streams[0]);
	need(!hetmem_pin_comm(res, slots[1].p), "pinned");
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "pinned", "pinned");
	is(wrong(), 0, "contents are there");
	empty(&slots[0]);
	empty(&slots[1]);
	is(hetmem_resource_destroy(res), 0, "a pinned handle stays to the end");
	ok(!device_used() && !hm->soft->holds(), "nothing is left");
}

/* A pool moves a handle with the block of its highest priority. */
static void by_priority(void)
{
	unsigned int k;

	make("pool(vmm,max=32M,spill=64M,handle=4M)");
	for (k = 0; k < 8; k++)
		need(!try_flagged(&slots[k], 4 * MIB - 512 * 1024, streams[0],
				  HETMEM_ALLOC_MOVABLE, k == 1 ? 1 : 0), "%s", hetmem_last_error());
	for (k = 8; k < SLOTS; k++) {
		need(!try_flagged(&slots[k], 4 * MIB, streams[0], HETMEM_ALLOC_MOVABLE, 2),
		     "%s", hetmem_last_error());
		if (k == 10)
			ok(!begins_on_host(1) && !ends_on_host(1), "the highest one stays");
		if (k == 10)
			ok(begins_on_host(3), "others go");
	}
	ok(begins_on_host(1) && ends_on_host(1), "it goes before others of a higher one");
	is(wrong(), 0, "contents are there");
	end();
}

/* Small blocks move if they are declared, and by movable= from 1 MiB on. */
static void small_blocks(void)
{
	unsigned int k;

	make("pool(vmm,handle=2M,movable=64K)");
	need(!try_fill(&slots[0], MIB - 512, streams[0], 0), "%s", hetmem_last_error());
	refused(hetmem_spill(res, slots[0].p), -EBUSY, "not movable", "smaller than 1 MiB");
	need(!try_fill(&slots[1], MIB, streams[0], 0), "%s", hetmem_last_error());
	need(!try_fill(&slots[2], MIB, streams[0], HETMEM_ALLOC_KEEP), "%s", hetmem_last_error());
	refused(hetmem_spill(res, slots[2].p), -EBUSY, "not movable", "1 MiB, and kept");
	empty(&slots[2]);
	is(hetmem_spill(res, slots[1].p), 0, "1 MiB: %s", hetmem_last_error());
	ok(begins_on_host(1), "is on the host");
	for (k = 2; k < 12; k++)
		fill(&slots[k], 512 << below(11), streams[0]);
	is(hetmem_spill(res, slots[5].p), 0, "declared: %s", hetmem_last_error());
	for (k = 2; k < 12; k++)
		if (!begins_on_host(k))
			break;
	ok(begins_on_host(5), "is on the host, too");
	is(wrong(), 0, "contents are there");
	for (k = 2; k < 12; k++)
		empty(&slots[k]);
	is(wrong(), 0, "contents are there");
	end();
}

/* What a movable block leaves of the memory that it grew into is not movable. */
static void grown(void)
{
	make("pool(vmm,handle=8M)");
	fill(&slots[0], 3 * MIB, streams[0]);
	is(hetmem_grow(res, slots[0].p, 3 * MIB + 512, streams[0]), 0, "grow: %s",
	   hetmem_last_error());
	slots[0].size = 3 * MIB + 512;
	write_block(&slots[0]);
	need(!try_fill(&slots[1], 2 * MIB, streams[0], 0), "%s", hetmem_last_error());
	refused(hetmem_spill(res, slots[1].p), -EBUSY, "not movable", "the memory behind it");
	is(wrong(), 0, "contents are there");
	end();
}

/* Streams have handles of their own where blocks move by themselves. */
static void several_streams(size_t size)
{
	unsigned int k;

	make("pool(vmm,max=32M,spill=64M)");
	for (k = 0; k < SLOTS && (k + 1) * size <= 48 * MIB; k++)
		if (try_fill(&slots[k], size, streams[k % 2], HETMEM_ALLOC_MOVABLE))
			break;
	ok(k * size > 40 * MIB || k == SLOTS, "%zu bytes: %u blocks of two streams, in turn: %s",
	   size, k, hetmem_last_error());
	is(wrong(), 0, "contents are there");
	end();
}

static unsigned int nr_ranges, bad_ranges;

static void count_range(const struct hetmem_remap *remap, void *arg)
{
	const bool host = remap->cause == HETMEM_REMAP_SPILL ? remap->after : !remap->after;
	size_t at;

	(void)arg;
	nr_ranges++;
	for (at = 0; at < remap->bytes; at += PAGE)
		bad_ranges += on_host((char *)remap->ptr + at) != host;
}

/* Handles that are no neighbours move at once: each range is announced, and no other one. */
static void ranges(void)
{
	nr_ranges = 0;
	bad_ranges = 0;
	make("pool(vmm,handle=4M)");
	row(3, 11 * MIB, streams[0]);
	is(hetmem_spill(res, slots[1].p), 0, "spill: %s", hetmem_last_error());
	is(hetmem_fetch(res, slots[0].p), 0, "fetch: %s", hetmem_last_error());
	is(hetmem_fetch(res, slots[2].p), 0, "fetch: %s", hetmem_last_error());
	ok(!begins_on_host(1) && on_host((char *)slots[1].p + 5 * MIB) && !ends_on_host(1),
	   "both ends are here, and the middle is on the host");
	need(!hetmem_on_remap(res, count_range, NULL), "%s", hetmem_last_error());
	is(hetmem_spill(res, slots[1].p), 0, "spill: %s", hetmem_last_error());
	is(nr_ranges, 4, "two ranges are announced");
	is(bad_ranges, 0, "which are those that move");
	is(hetmem_fetch(res, slots[1].p), 0, "fetch: %s", hetmem_last_error());
	is(nr_ranges, 6, "one range");
	is(bad_ranges, 0, "which is the one that moves");
	is(wrong(), 0, "contents are there");
	end();
}

/* Calls that fail: all of them take minutes with a sanitizer. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EVERY	8
#else
#define EVERY	2
#endif

static const char *const calls[] = {
	"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
	"cuMemAddressReserve", "cuMemcpyAsync", "cuEventCreate", "cuEventRecord",
	"cuEventSynchronize", "cuStreamSynchronize", "cuStreamCreate",
};

#define NR_CALLS	(sizeof(calls) / sizeof(calls[0]))

static void lost(unsigned int *bad, const char *rule, const char *what)
{
	(*bad)++;
	printf("# %s: %s: %s\n", rule, what, hetmem_last_error());
}

/* What a block shares is moved, freed and moved back while the call of @rule fails. */
static bool one_failure(const char *rule, unsigned int way, unsigned int *bad)
{
	bool fetch = way & 1, gone = way & 2, made;
	const char *what;
	int err;

	make("pool(vmm,handle=4M)");
	row(5, 3 * MIB, streams[0]);
	if (fetch)
		need(!hetmem_spill(res, slots[2].p), "%s", hetmem_last_error());
	need(!soft_rules(rule, NULL), "a rule");
	err = fetch ? hetmem_fetch(res, slots[2].p) : hetmem_spill(res, slots[2].p);
	if (gone) {
		empty(&slots[1]);
		empty(&slots[3]);
		hetmem_poll(res);
	}
	made = hm->soft->made(0);
	soft_rules(NULL, NULL);
	drv->cuCtxSetCurrent(context);
	if (wrong())
		lost(bad, rule, "contents are lost");
	if (err && hetmem_fetch(res, slots[2].p) && hetmem_fetch(res, slots[2].p))
		lost(bad, rule, "it does not come back");
	if (hetmem_spill(res, slots[2].p) || hetmem_fetch(res, slots[2].p))
		lost(bad, rule, "it does not move");
	fill(&slots[8], 3 * MIB, streams[0]);
	fill(&slots[9], 2 * MIB, streams[1]);
	if (wrong())
		lost(bad, rule, "contents are lost by an allocation");
	what = leftover(0);
	if (what)
		lost(bad, rule, what);
	return made;
}

static void failures(void)
{
	unsigned int bad = 0, runs = 0, way, nth;
	char rule[96];
	size_t i;

	for (way = 0; way < 4; way++)
		for (i = 0; i < NR_CALLS; i++)
			for (nth = 1 + below(EVERY); nth < 40; nth += EVERY, runs++) {
				snprintf(rule, sizeof(rule), "%s:%u", calls[i], nth);
				if (!one_failure(rule, way, &bad))
					break;
				/* A retry helps the first one, and not the second one. */
				snprintf(rule, sizeof(rule), "%s:%u,%s:%u", calls[i], nth,
					 calls[i], nth + 1);
				if (strcmp(calls[i], "cuMemRelease"))
					one_failure(rule, way, &bad);
			}
	ok(!bad, "%u calls fail", runs);
}

/* Random programs. */

static size_t random_size(unsigned int kind)
{
	switch (kind) {
	case 0:
		return 1 + below(MIB);
	case 1:
		return MIB + below(3 * MIB);
	case 2:
		return (1 + below(6)) * MIB;
	default:
		return 1 + below(12 * MIB);
	}
}

static int add_on_host(void *data, const struct hetmem_walk_segment *segment)
{
	uint64_t *sum = data;
	size_t at;

	for (at = 0; at < segment->bytes; at += PAGE)
		*sum += on_host((char *)segment->base + at) ? PAGE : 0;
	return 0;
}

/* Bytes of the pool that are on the host. What lies beside its addresses may be anything. */
static uint64_t bytes_on_host(void)
{
	uint64_t sum = 0;
	const struct hetmem_walk walk = {
		.size = sizeof(walk), .segment = add_on_host, .data = &sum,
	};

	need(!hetmem_walk(res, &walk), "walk: %s", hetmem_last_error());
	return sum;
}

static uint64_t live_bytes(void)
{
	uint64_t sum = 0;
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		sum += slots[k].p ? slots[k].size : 0;
	return sum;
}

static unsigned int taken_along, none, refusals;

/* wait= is shorter than a copy can be. */
static int end_spill(void *p)
{
	int err;

	do
		err = hetmem_spill(res, p);
	while (err == -EBUSY && strstr(hetmem_last_error(), "has not finished"));
	return err;
}

static void random_move(unsigned int k, unsigned int *bad)
{
	unsigned int others = 0, i;
	int err;

	for (i = 0; i < SLOTS; i++)
		others += i != k && slots[i].p && (begins_on_host(i) || ends_on_host(i));
	if (below(3)) {
		err = hetmem_spill(res, slots[k].p);
	} else {
		err = hetmem_spill_async(res, slots[k].p);
		/* The block may be used after its end. */
		if (!err)
			err = end_spill(slots[k].p);
	}
	*bad += err && err != -EBUSY && err != -ENOMEM;
	refusals += err != 0;
	for (i = 0; i < SLOTS; i++)
		others -= i != k && slots[i].p && (begins_on_host(i) || ends_on_host(i));
	taken_along += (int)others < 0;
}

static void random_step(unsigned int *bad)
{
	const unsigned int k = below(SLOTS), what = below(24);
	static const unsigned int flags[] = {
		HETMEM_ALLOC_MOVABLE, HETMEM_ALLOC_MOVABLE, HETMEM_ALLOC_MOVABLE,
		HETMEM_ALLOC_MOVABLE, 0, HETMEM_ALLOC_KEEP,
	};
	struct slot *s = &slots[k];
	CUstream on = below(12) ? streams[0] : streams[below(3)];
	int err;

	if (!s->p) {
		err = try_flagged(s, random_size(below(5)), on, flags[below(6)],
				  (int)below(3) - 1);
		none += err == -ENOMEM;
		*bad += err && err != -ENOMEM;
	} else if (what < 6) {
		*bad += wrong_in(s);
		/* Its uses are complete: any stream may free it. */
		s->on = below(4) ? s->on : (hetmem_stream)streams[below(3)];
		empty(s);
	} else if (what < 14) {
		random_move(k, bad);
	} else if (what < 18) {
		err = hetmem_fetch(res, s->p);
		*bad += err && err != -EBUSY && err != -ENOMEM;
	} else if (what == 18) {
		write_block(s);
	} else if (what == 19) {
		hetmem_priority(res, s->p, (int)below(5) - 2);
	} else if (what == 20) {
		*bad += below(8) == 0 && hetmem_record_stream(res, s->p, streams[2]);
	} else if (what == 21) {
		*bad += hetmem_trim(res, below(2) * 16 * MIB, NULL) != 0;
	} else if (what == 22 && !below(4)) {
		*bad += hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP) && hetmem_wake(res, NULL);
		*bad += hetmem_wake(res, NULL) != 0;
	} else {
		*bad += hetmem_poll(res) != 0;
	}
}

static void random_program(const char *spec)
{
	unsigned int bad = 0, false_figures = 0, contents = 0, i, k;
	struct hetmem_resource_stats s;

	make(spec);
	for (i = 0; i < steps; i++) {
		random_step(&bad);
		k = below(SLOTS);
		contents += slots[k].p ? wrong_in(&slots[k]) : 0;
		if (i % 16)
			continue;
		contents += wrong();
		/* A block that is freed on another stream keeps its memory for a while. */
		settle();
		s = stats();
		if (s.requested == live_bytes() && s.reserved == device_used() &&
		    s.spilled == bytes_on_host())
			continue;
		false_figures++;
		printf("# requested %llu, live %llu; reserved %llu, used %zu; spilled %llu, seen %llu\n",
		       (unsigned long long)s.requested, (unsigned long long)live_bytes(),
		       (unsigned long long)s.reserved, device_used(),
		       (unsigned long long)s.spilled, (unsigned long long)bytes_on_host());
	}
	contents += wrong();
	is(bad, 0, "%s: no call fails", spec);
	is(contents, 0, "contents are there");
	is(false_figures, 0, "figures are true: %llu spilled, %llu seen",
	   (unsigned long long)stats().spilled, (unsigned long long)bytes_on_host());
	end();
}

static void all(void)
{
	together(MIB + 256 * 1024);
	together(1 * MIB);
	together(512 * 1024);
	ends();
	stays();
	by_priority();
	small_blocks();
	grown();
	ranges();
	several_streams(2 * MIB + 700);
	several_streams(3 * MIB);
	several_streams(6 * MIB + 512);
	several_streams(7 * MIB);
	random_program("pool(vmm,handle=2M,wait=10ms)");
	random_program("pool(vmm,handle=8M,wait=10ms)");
	random_program("pool(vmm,handle=4M,max=48M,spill=200M,wait=10ms)");
	random_program("pool(vmm,handle=16M,max=64M,spill=100M,movable=2M,wait=10ms)");
	random_program("pool(vmm,max=40M,spill=30M,movable=1M,wait=10ms)");
}

int main(int argc, char **argv)
{
	unsigned int check;

	if (argc > 2)
		steps = strtoul(argv[2], NULL, 0);
	for (check = 0; check < 2; check++) {
		seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
		printf("# seed %llu, %s\n", (unsigned long long)seed,
		       check ? "checked" : "not checked");
		open_moves(check ? "1" : "0");
		all();
		if (!check)
			failures();
		close_moves();
	}
	ok(taken_along, "%u random moves took other blocks along, %u were refused, no memory %u times",
	   taken_along, refusals, none);
	free(image);
	return tap_end();
}
