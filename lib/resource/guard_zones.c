// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The guard's zones: filled, copied to the host and looked at; see guard.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "resource/guard.h"
#include "resource/region_use.h"

#define ZONE_BYTE	0xfd
#define FRESH_BYTE	0xcd
#define FREED_BYTE	0xdd
#define CHUNK		256

/**
 * struct look - zones on their way to the host
 * @zones: the last of the front one, the back one; pinned
 * @memory: of a chunk, in its first slot
 */
struct look {
	struct guard *guard;
	struct look *next;
	struct look *next_chunk;
	void *memory;
	unsigned char *zones;
	struct hm_known known;
};

/* Where the first byte differs, ZONE if none does. */
static size_t first_wrong(const unsigned char *zone)
{
	size_t i;

	for (i = 0; i < ZONE && zone[i] == ZONE_BYTE; i++)
		;
	return i;
}

static void inspect(struct guard *g, const unsigned char *front,
		    const unsigned char *back, const struct hm_known *known)
{
	size_t before = first_wrong(front), behind = first_wrong(back);
	char where[64], text[sizeof(g->damage)];

	if (before == ZONE && behind == ZONE)
		return;
	if (before != ZONE)
		snprintf(where, sizeof(where), "%zu bytes before it",
			 ZONE - before);
	else
		snprintf(where, sizeof(where), "%zu bytes behind its end",
			 behind);
	snprintf(text, sizeof(text), "guard: block %p of %zu bytes, allocated on stream %p: something wrote %s",
		 known->ptr, known->size, known->stream, where);
	fprintf(stderr, "hetmem: %s\n", text);
	if (g->abort)
		abort();
	hm_blocks_lock(g->blocks);
	if (!g->damage[0])
		memcpy(g->damage, text, sizeof(text));
	hm_blocks_unlock(g->blocks);
}

static void put_look(struct look *look)
{
	struct guard *g = look->guard;

	hm_blocks_lock(g->blocks);
	look->next = g->looks;
	g->looks = look;
	g->pending--;
	hm_blocks_unlock(g->blocks);
}

/* On a thread of the driver, when the stream has copied the zones. */
static void look_now(void *data)
{
	struct look *look = data;

	inspect(look->guard, look->zones, look->zones + ZONE, &look->known);
	put_look(look);
}

/* More slots. Without the lock; the context is current. */
static struct look *new_chunk(struct guard *g)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	struct look *looks = calloc(CHUNK, sizeof(*looks));
	void *memory;
	int i;

	if (!looks)
		return NULL;
	if (d->cuMemHostAlloc(&memory, CHUNK * 2 * ZONE,
			      CU_MEMHOSTALLOC_PORTABLE)) {
		free(looks);
		return NULL;
	}
	for (i = 0; i < CHUNK; i++) {
		looks[i].guard = g;
		looks[i].zones = (unsigned char *)memory + i * 2 * ZONE;
		looks[i].next = i + 1 < CHUNK ? &looks[i + 1] : NULL;
	}
	looks->memory = memory;
	return looks;
}

static struct look *take_look(struct guard *g)
{
	struct look *look, *chunk = NULL;

	hm_blocks_lock(g->blocks);
	look = g->looks;
	if (!look) {
		hm_blocks_unlock(g->blocks);
		chunk = new_chunk(g);
		if (!chunk)
			return NULL;
		hm_blocks_lock(g->blocks);
		chunk->next_chunk = g->chunks;
		g->chunks = chunk;
		chunk[CHUNK - 1].next = g->looks;
		look = chunk;
	}
	g->looks = look->next;
	g->pending++;
	hm_blocks_unlock(g->blocks);
	return look;
}

/*
 * The stream to work on for @stream, or an error. *@wait: the CPU uses the
 * memory next. The context is current.
 */
static int work_stream(struct guard *g, hetmem_stream stream, CUstream *on,
		       bool *wait)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	CUstream fresh;
	CUresult res;

	*wait = stream == HETMEM_STREAM_HOST;
	*on = stream;
	if (!*wait)
		return 0;
	hm_blocks_lock(g->blocks);
	*on = g->stream;
	hm_blocks_unlock(g->blocks);
	if (*on)
		return 0;
	res = d->cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING);
	if (res)
		return hm_driver_error(d, "cuStreamCreate", res);
	hm_blocks_lock(g->blocks);
	if (!g->stream) {
		g->stream = fresh;
		fresh = NULL;
	}
	*on = g->stream;
	hm_blocks_unlock(g->blocks);
	if (fresh)
		d->cuStreamDestroy(fresh);
	return 0;
}

int hm_guard_fill(struct guard *g, unsigned char *base, size_t front,
		  struct hm_known *known)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	uintptr_t at = (uintptr_t)base + front;
	CUstream on;
	CUresult res;
	bool wait;
	int err;

	if (hm_guard_by_cpu(g, known->stream)) {
		memset(base + front - ZONE, ZONE_BYTE, ZONE);
		memset(base + front, FRESH_BYTE, known->size);
		memset(base + front + known->size, ZONE_BYTE, ZONE);
		return 0;
	}
	if (hm_capture_active(g->resource.hm, known->stream)) {
		known->extra |= BARE;
		return 0;
	}
	err = work_stream(g, known->stream, &on, &wait);
	if (err)
		return err;
	res = d->cuMemsetD8Async(at - ZONE, ZONE_BYTE, ZONE, on);
	if (!res)
		res = d->cuMemsetD8Async(at, FRESH_BYTE, known->size, on);
	if (!res)
		res = d->cuMemsetD8Async(at + known->size, ZONE_BYTE, ZONE,
					 on);
	if (!res && wait)
		res = d->cuStreamSynchronize(on);
	return res ? hm_driver_error(d, "cuMemsetD8Async", res) : 0;
}

int hm_guard_check(struct guard *g, const struct hm_known *known,
		   hetmem_stream stream)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	uintptr_t at = (uintptr_t)known->ptr;
	struct look *look;
	CUstream on;
	CUresult res;
	bool wait;
	int err;

	if (known->extra & SLEPT)
		return 0;
	if (hm_guard_by_cpu(g, stream)) {
		inspect(g, (unsigned char *)at - ZONE,
			(unsigned char *)at + known->size, known);
		memset(known->ptr, FREED_BYTE, known->size);
		return 0;
	}
	if (known->extra & BARE || hm_capture_active(g->resource.hm, stream))
		return 0;
	err = work_stream(g, stream, &on, &wait);
	if (err)
		return err;
	look = take_look(g);
	if (!look)
		return hm_error(-ENOMEM, "guard: no pinned memory to look at zones in");
	look->known = *known;
	res = d->cuMemcpyDtoHAsync(look->zones, at - ZONE, ZONE, on);
	if (!res)
		res = d->cuMemcpyDtoHAsync(look->zones + ZONE,
					   at + known->size, ZONE, on);
	if (!res && !(known->extra & RECORDED))
		res = d->cuMemsetD8Async(at, FREED_BYTE, known->size, on);
	if (!res && d->cuLaunchHostFunc)
		res = d->cuLaunchHostFunc(on, look_now, look);
	else if (!res)
		res = d->cuStreamSynchronize(on);
	if (!res && wait)
		res = d->cuStreamSynchronize(on);
	if (res) {
		/* Copies that were given still come. */
		d->cuStreamSynchronize(on);
		put_look(look);
		return hm_driver_error(d, "cuMemcpyDtoHAsync", res);
	}
	if (!d->cuLaunchHostFunc) {
		inspect(g, look->zones, look->zones + ZONE, known);
		put_look(look);
	}
	return 0;
}

void hm_guard_free_chunks(struct guard *g, bool ours)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	struct look *chunk;

	while ((chunk = g->chunks)) {
		g->chunks = chunk->next_chunk;
		if (ours)
			d->cuMemFreeHost(chunk->memory);
		free(chunk);
	}
}
