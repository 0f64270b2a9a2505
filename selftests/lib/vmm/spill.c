// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that move: the memory behind an address goes to the host and comes back, whole
 * or not at all, with its contents, whatever call of the driver fails and in any order of
 * calls; what may not move says why; those who registered an address are told.
 * Arguments: a seed, rounds.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST
#define SLOTS	16

static unsigned int seed = 1, rounds = 8;
static struct hetmem_resource *res;
static CUstream streams[2];
static unsigned char *image;		/* on the host, of one block */

struct slot {
	void *p;
	size_t size;
	unsigned int value;
	hetmem_stream stream;
};

static struct slot slots[SLOTS];

static unsigned int below(unsigned int n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % n;
}

static void make(const char *spec)
{
	memset(slots, 0, sizeof(slots));
	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
}

static size_t used(void)
{
	size_t available = 0, total = 1;

	drv->cuMemGetInfo(&available, &total);
	return total - available;
}

static struct hetmem_resource_stats stats(void)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(res, &s), "%s", hetmem_last_error());
	return s;
}

static unsigned char byte_of(const struct slot *s, size_t i)
{
	return s->value + i * 7 + (i >> 12);
}

/* Copies on the block's stream, and waits for them. */
static void copy(const struct slot *s, bool in)
{
	CUstream stream = s->stream == HOST ? streams[0] : s->stream;
	CUresult err;

	err = in ? drv->cuMemcpyAsync((uintptr_t)s->p, (uintptr_t)image, s->size, stream) :
		drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)s->p, s->size, stream);
	need(!err && !drv->cuStreamSynchronize(stream), "a copy");
}

static void write_block(struct slot *s)
{
	size_t i;

	s->value = below(256);
	for (i = 0; i < s->size; i++)
		image[i] = byte_of(s, i);
	copy(s, true);
}

static unsigned int wrong_in(const struct slot *s)
{
	unsigned int n = 0;
	size_t i;

	copy(s, false);
	for (i = 0; i < s->size; i++)
		n += image[i] != byte_of(s, i);
	return n;
}

static unsigned int wrong(void)
{
	unsigned int k, n = 0;

	for (k = 0; k < SLOTS; k++)
		n += slots[k].p ? wrong_in(&slots[k]) : 0;
	return n;
}

static int try_fill(struct slot *s, size_t size, hetmem_stream stream, unsigned int flags)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = stream, .flags = flags,
	};
	void *p = NULL;
	int err = hetmem_alloc_with(res, &params, &p);

	if (err)
		return err;
	*s = (struct slot){ p, size, 0, stream };
	write_block(s);
	return 0;
}

static void fill(struct slot *s, size_t size, hetmem_stream stream)
{
	need(!try_fill(s, size, stream, HETMEM_ALLOC_MOVABLE), "%zu bytes: %s", size,
	     hetmem_last_error());
}

static void empty(struct slot *s)
{
	if (s->p && hetmem_free(res, s->p, s->size, s->stream))
		ok(false, "free: %s", hetmem_last_error());
	s->p = NULL;
}

static void end(void)
{
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	is(used(), 0, "no device memory is left");
}

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
	is(used(), (long long)stats().reserved, "and are free on the device");
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

/* What does not fit goes to the host by itself, the oldest first, and comes back. */
static void by_itself(void)
{
	unsigned int k, bad;
	uint64_t spilled;

	make("pool(vmm,max=64M,spill=200M,handle=2M)");
	for (k = 0; k < 12; k++)
		fill(&slots[k], 10 * MIB, streams[0]);
	is(wrong(), 0, "120 MiB are in 64: %lld on the host", (long long)stats().spilled);
	ok(used() <= 64 * MIB, "never more than max=: %zu", used());
	ok(stats().spilled >= 56 * MIB && stats().spilled <= 80 * MIB, "the rest is on the host");
	ok(stats().spill_host_peak <= stats().spilled + stats().spilled / 10,
	   "and no more: %lld", (long long)stats().spill_host_peak);
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
	for (bad = 0, k = 0; k < 200; k++) {
		struct slot *s = &slots[below(12)];

		if (s->p)
			bad += wrong_in(s);
		empty(s);
		fill(s, (1 + below(12)) * MIB + below(4096), streams[0]);
	}
	is(bad, 0, "at random");
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

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %u\n", seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "managed memory=256M", 1);
	open_soft("");
	image = malloc(256 * MIB);
	need(image && !drv->cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING), "streams");
	there_and_back("pool(vmm)");
	there_and_back("pool(vmm,handle=2M)");
	there_and_back("pool(vmm,spill=200M)");
	there_and_back("stats(guard(pool(vmm,handle=4M)))");
	by_itself();
	no_room();
	(void)rounds;
	free(image);
	close_soft();
	return tap_end();
}
