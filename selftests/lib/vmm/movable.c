// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that move by themselves: which, in which order, how much host memory they take, and
 * what an allocation that finds no room leaves.
 * Argument: a seed.
 */
#include "spill_test.h"

static unsigned int memory_type(uintptr_t ptr)
{
	unsigned int type = 0;

	if (drv->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr))
		return 0;
	return type;
}

static bool is_spilled(unsigned int k)
{
	return memory_type((uintptr_t)slots[k].p) == CU_MEMORYTYPE_HOST;
}

/* Which of the first @nr slots are on the host, a bit each. */
static unsigned int spilled_set(unsigned int nr)
{
	unsigned int k, set = 0;

	for (k = 0; k < nr; k++)
		set |= (unsigned int)(slots[k].p && is_spilled(k)) << k;
	return set;
}

static void by_itself(const char *spec)
{
	unsigned int k, bad;
	uint64_t spilled;

	make(spec);
	for (k = 0; k < 12; k++)
		fill(&slots[k], 10 * MIB, streams[0]);
	is(wrong(), 0, "%s: 120 MiB are in 64: %lld on the host", spec,
	   (long long)stats().spilled);
	ok(device_used() <= 64 * MIB, "never more than max=: %zu", device_used());
	ok(stats().spilled >= 56 * MIB && stats().spilled <= 80 * MIB, "the rest is on the host");
	spilled = stats().spilled;
	for (k = 11; k > 3; k--)
		empty(&slots[k]);
	for (k = 4; k < 6; k++) {
		fill(&slots[k], 2 * MIB, streams[0]);
		empty(&slots[k]);
	}
	ok(stats().spilled < spilled / 2, "there is room: they come back: %lld",
	   (long long)stats().spilled);
	is(wrong(), 0, "contents are there");
	is(try_fill(&slots[15], 60 * MIB, streams[1], 0), -ENOMEM,
	   "blocks of another stream do not move: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	spilled = stats().spilled;
	for (bad = 0, k = 0; k < 100; k++) {
		struct slot *s = &slots[below(12)];

		if (s->p)
			bad += wrong_in(s);
		empty(s);
		fill(s, (1 + below(12)) * MIB + below(4096), streams[0]);
		if (spilled < stats().spilled)
			spilled = stats().spilled;
	}
	is(bad, 0, "at random");
	is(wrong(), 0, "contents are there");
	end();
}

/* Host memory is at most what was spilled at once and a tenth more. */
static void host_memory(const char *spec)
{
	uint64_t peak = 0, over = 0;
	unsigned int k;

	make(spec);
	for (k = 0; k < 60; k++) {
		struct slot *s = &slots[below(6)];

		empty(s);
		fill(s, (2 + below(20)) * MIB + below(4096), streams[0]);
		/* Small ones may have no handle of their own. */
		if (hetmem_spill(res, s->p) == -EBUSY)
			continue;
		if (stats().spilled > peak)
			peak = stats().spilled;
		if (stats().spill_host > peak + peak / 10)
			over = stats().spill_host;
		if (k % 3 == 0)
			need(!hetmem_fetch(res, s->p), "%s", hetmem_last_error());
	}
	ok(peak && !over, "%s: host memory: %lld, spilled at most %lld", spec,
	   (long long)stats().spill_host_peak, (long long)peak);
	is(wrong(), 0, "contents are there");
	end();
}

static void min_host(const char *spec, uint64_t bytes)
{
	const char *what;
	uint64_t calls;

	make(spec);
	is(stats().spill_host, (long long)bytes, "%s: made beforehand", spec);
	fill(&slots[0], 8 * MIB, streams[0]);
	calls = bytes;
	is(hetmem_spill(res, slots[0].p), 0, "spill");
	ok(stats().spill_host >= calls, "is kept");
	fill(&slots[1], 14 * MIB, streams[0]);
	is(hetmem_spill(res, slots[1].p), 0, "more than that");
	is(wrong(), 0, "contents are there");
	what = leftover(bytes);
	ok(!what, "what is left is min_host=: %s", what ? what : "");
}

/* Handles of the device that moves take, and in which order they come back. */
static void in_order(void)
{
	unsigned int k;

	make("pool(vmm,max=64M,spill=100M,handle=2M)");
	for (k = 0; k < 6; k++)
		need(!try_flagged(&slots[k], 10 * MIB, streams[0], HETMEM_ALLOC_MOVABLE,
				  k == 0 ? 5 : k == 4 ? -1 : 0), "%s", hetmem_last_error());
	fill(&slots[6], 10 * MIB, streams[0]);
	ok(is_spilled(4), "the lowest priority first: %#x", spilled_set(7));
	ok(!is_spilled(0), "the highest stays");
	fill(&slots[7], 10 * MIB, streams[0]);
	ok(is_spilled(1) && !is_spilled(0) && !is_spilled(6), "then the oldest: %#x",
	   spilled_set(8));
	is(hetmem_priority(res, slots[6].p, -3), 0, "priorities change");
	fill(&slots[8], 10 * MIB, streams[0]);
	ok(is_spilled(6), "which the next one minds: %#x", spilled_set(9));
	is(wrong(), 0, "contents are there");
	end();
}

/* Weights, from before the step, go last; what went last comes back first. */
static void steps(void)
{
	unsigned int k, step, weights = 0, set, was;

	make("pool(vmm,max=64M,spill=100M,handle=2M)");
	for (k = 0; k < 2; k++)
		fill(&slots[k], 8 * MIB, streams[0]);
	for (step = 0; step < 3; step++) {
		for (k = 2; k < 9; k++) {
			fill(&slots[k], 10 * MIB, streams[0]);
			weights += step && (spilled_set(2) != 0);
		}
		set = spilled_set(9);
		ok(!step || (set & ~3U && !(set & 3)),
		   "step %u: activations go, and weights stay: %#x", step, set);
		is(wrong(), 0, "contents are there");
		if (step == 2)
			break;
		for (k = 8; k > 1; k--)
			empty(&slots[k]);
	}
	is(weights, 0, "weights never went");
	/* The youngest are freed: of those on the host the last to go are first to return. */
	was = spilled_set(9);
	for (k = 8; k > 6; k--)
		empty(&slots[k]);
	for (k = 0; k < 4; k++) {
		fill(&slots[10], 2 * MIB, streams[0]);
		empty(&slots[10]);
	}
	set = spilled_set(9);
	ok(set != was && !(set & (was ^ set)), "some are back: %#x, %#x", was, set);
	for (k = 2; k < 8 && !(was >> k & 1 && !(set >> k & 1)); k++)
		;
	ok(!set || set < 1U << k, "the last to go first: %#x, %#x", was, set);
	is(wrong(), 0, "contents are there");
	end();
}

/* A failed allocation leaves all as it was; what may not move stays. */
static void no_room(void)
{
	make("pool(vmm,max=64M,spill=16M,handle=2M)");
	need(!try_fill(&slots[0], 30 * MIB, streams[0], 0), "not movable");
	need(!try_fill(&slots[1], 10 * MIB, streams[0], HETMEM_ALLOC_KEEP), "kept");
	fill(&slots[2], 20 * MIB, streams[0]);
	is(try_fill(&slots[3], 8 * MIB, streams[0], 0), -ENOMEM,
	   "a block moves as a whole: %s", hetmem_last_error());
	refused(hetmem_spill(res, slots[2].p), -ENOMEM, "spill=", "more than spill=");
	empty(&slots[2]);
	fill(&slots[2], 10 * MIB, streams[0]);
	fill(&slots[4], 10 * MIB, streams[0]);
	is(try_fill(&slots[3], 30 * MIB, streams[0], 0), -ENOMEM, "too much: %s",
	   hetmem_last_error());
	is(wrong(), 0, "contents are there");
	is(try_fill(&slots[3], 8 * MIB, streams[0], 0), 0, "so much fits: %s",
	   hetmem_last_error());
	is(wrong(), 0, "contents are there");
	ok(stats().spill_host <= 16 * MIB, "the host has spill= at most");
	end();
}

/* Several streams: only the blocks of the one that needs memory move. */
static void several_streams(void)
{
	unsigned int k;

	make("pool(vmm,max=64M,spill=100M,handle=2M)");
	for (k = 0; k < 3; k++)
		fill(&slots[k], 10 * MIB, streams[1]);
	for (k = 3; k < 9; k++)
		fill(&slots[k], 10 * MIB, streams[0]);
	is(spilled_set(3), 0, "another stream's stay");
	ok(spilled_set(9), "its own move: %#x", spilled_set(9));
	/* A kernel of another stream goes on meanwhile. */
	hold_up(streams[1]);
	fill(&slots[9], 10 * MIB, streams[0]);
	is(spilled_set(3), 0, "and are not waited for");
	let_through();
	is(wrong(), 0, "contents are there");
	end();
}

/* Memory is full while a kernel works on the oldest block: it moves after that. */
static void full_and_busy(void)
{
	struct hm_soft_range range = { .size = 10 * MIB, .fill = 9 };
	struct slot *s = &slots[6];
	unsigned int k;

	make("pool(vmm,max=64M,spill=100M,handle=2M)");
	for (k = 0; k < 6; k++)
		fill(&slots[k], 10 * MIB, streams[0]);
	range.ptr = (uintptr_t)slots[0].p;
	need(!soft_launch(streams[0], "late", &range, 1, 30000000), "a kernel");
	need(!hetmem_alloc(res, 10 * MIB, 0, streams[0], &s->p), "%s", hetmem_last_error());
	ok(is_spilled(0), "the oldest is on the host");
	need(!drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)slots[0].p, 10 * MIB, streams[0]) &&
	     !drv->cuStreamSynchronize(streams[0]), "a copy");
	ok(all_bytes(image, 9, 10 * MIB), "with what the kernel wrote");
	s->on = streams[0];
	empty(s);
	write_block(&slots[0]);
	is(wrong(), 0, "contents are there");
	end();
}

static void all(void)
{
	by_itself("pool(vmm,max=64M,spill=200M,handle=2M)");
	host_memory("pool(vmm,handle=2M)");
	host_memory("pool(vmm,handle=4M)");
	host_memory("pool(vmm)");
	host_memory("pool(vmm,spill=130M)");
	min_host("pool(vmm,handle=2M,min_host=10M)", 10 * MIB);
	min_host("pool(vmm,handle=4M,min_host=10M)", 12 * MIB);
	in_order();
	steps();
	no_room();
	several_streams();
	full_and_busy();
}

int main(int argc, char **argv)
{
	unsigned int check;

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
