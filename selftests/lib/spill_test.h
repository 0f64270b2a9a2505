/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks of a pool that a test moves: their contents, and what the pool holds.
 */
#ifndef HETMEM_SELFTESTS_SPILL_TEST_H
#define HETMEM_SELFTESTS_SPILL_TEST_H

#include "one_resource.h"

#define SLOTS	16
#define LARGEST	(64 * MIB)

static CUstream streams[3];
static CUcontext context;

/* @stream: of the block. @image: on the host, of the thread that looks at it. */
struct slot {
	void *p;
	size_t size;
	uint64_t value;
	CUstream stream;
	hetmem_stream on;
};

static struct slot slots[SLOTS];
static __thread unsigned char *image;

static void open_moves(const char *check)
{
	unsigned int i;

	setenv("HETMEM_SOFT_CHECK", check, 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	if (!getenv("HETMEM_SOFT_MACHINE"))
		setenv("HETMEM_SOFT_MACHINE", "managed memory=256M", 1);
	open_soft("");
	need(!drv->cuCtxGetCurrent(&context), "a context");
	if (!image)
		image = malloc(LARGEST);
	for (i = 0; i < 3; i++)
		need(image && !drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING),
		     "streams");
}

static void close_moves(void)
{
	unsigned int i;

	for (i = 0; i < 3; i++)
		drv->cuStreamDestroy(streams[i]);
	close_soft();
}

__attribute__((unused))
static void make(const char *spec)
{
	memset(slots, 0, sizeof(slots));
	create(spec);
}

/* On the block's stream, and waits. */
static CUresult copy(const struct slot *s, bool in)
{
	CUresult err;

	err = in ? drv->cuMemcpyAsync((uintptr_t)s->p, (uintptr_t)image, s->size, s->stream) :
		drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)s->p, s->size, s->stream);
	return err ? err : drv->cuStreamSynchronize(s->stream);
}

static uint64_t word_at(const struct slot *s, size_t i)
{
	return s->value + i * 0x9e3779b97f4a7c15ULL;
}

static void write_block(struct slot *s)
{
	uint64_t *words = (uint64_t *)image;
	size_t i;

	s->value = ((uint64_t)below(1U << 31) << 20) + 1;
	for (i = 0; i < (s->size + 7) / 8; i++)
		words[i] = word_at(s, i);
	need(!copy(s, true), "a copy to the block");
}

/* Words of @s that are not what was written. */
static unsigned int wrong_in(const struct slot *s)
{
	const uint64_t *words = (const uint64_t *)image;
	uint64_t last = word_at(s, s->size / 8);
	unsigned int n = 0;
	size_t i;

	if (copy(s, false))
		return 1;
	for (i = 0; i < s->size / 8; i++)
		n += words[i] != word_at(s, i);
	return n + (memcmp(&words[i], &last, s->size % 8) != 0);
}

__attribute__((unused))
static unsigned int wrong(void)
{
	unsigned int k, n = 0;

	for (k = 0; k < SLOTS; k++)
		n += slots[k].p ? wrong_in(&slots[k]) : 0;
	return n;
}

static int try_flagged(struct slot *s, size_t size, hetmem_stream stream, unsigned int flags,
		       int priority)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = stream, .flags = flags,
		.priority = priority,
	};
	void *p = NULL;
	int err = hetmem_alloc_with(res, &params, &p);

	if (err)
		return err;
	*s = (struct slot){
		.p = p, .size = size, .on = stream,
		.stream = stream == HOST ? streams[0] : (CUstream)stream,
	};
	write_block(s);
	return 0;
}

__attribute__((unused))
static int try_fill(struct slot *s, size_t size, hetmem_stream stream, unsigned int flags)
{
	return try_flagged(s, size, stream, flags, 0);
}

__attribute__((unused))
static void fill(struct slot *s, size_t size, hetmem_stream stream)
{
	need(!try_flagged(s, size, stream, HETMEM_ALLOC_MOVABLE, 0), "%zu bytes: %s", size,
	     hetmem_last_error());
}

__attribute__((unused))
static void empty(struct slot *s)
{
	if (s->p && hetmem_free(res, s->p, s->size, s->on))
		ok(false, "free: %s", hetmem_last_error());
	s->p = NULL;
}

__attribute__((unused))
static void refused(int err, int want, const char *text, const char *what)
{
	ok(err == want && strstr(hetmem_last_error(), text), "%s: %d: %s", what, err,
	   hetmem_last_error());
}

/* A stream is held up until it is let through. */
static int gate_open;

static void wait_at_gate(void *unused)
{
	(void)unused;
	stay_until(__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE));
}

__attribute__((unused))
static void hold_up(CUstream stream)
{
	gate_open = 0;
	need(!drv->cuLaunchHostFunc(stream, wait_at_gate, NULL), "a stream waits");
}

__attribute__((unused))
static void let_through(void)
{
	__atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
}

/* All is freed. Whether anything of the pool, or of the driver, is left: in words, or NULL. */
__attribute__((unused))
static const char *leftover(uint64_t min_host)
{
	const char *what = NULL;
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	hetmem_trim(res, 0, NULL);
	if (stats().spilled)
		what = "spilled bytes of no block";
	else if (stats().spill_host != min_host)
		what = "host memory after a trim";
	else if (stats().reserved || device_used())
		what = "device memory after a trim";
	if (hetmem_resource_destroy(res) && !what)
		what = "live blocks";
	if (!what && device_used())
		what = "device memory";
	return !what && hm->soft->holds() ? "memory" : what;
}

__attribute__((unused))
static void end(void)
{
	const char *what = leftover(0);

	ok(!what, "nothing is left: %s", what ? what : "");
}

#endif /* HETMEM_SELFTESTS_SPILL_TEST_H */
