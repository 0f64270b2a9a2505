// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * guard(R,abort=): finds what writes outside its block. Each gets a red zone
 * on either side, the one behind from the very next byte, and is poisoned
 * when it is allocated and when it is freed. Works on device memory too, and
 * does not wait for the device: zones are filled and poison is laid in the
 * order of the stream; a free copies the zones to the host and has a host
 * function of the same stream look at them. So damage is found when the
 * stream gets there; it is reported on stderr, by hetmem_poll() as
 * -EFAULT, and ends the process with abort=on.
 *
 * Host memory on HETMEM_STREAM_HOST is filled and looked at by the CPU at
 * once. A block with uses recorded on other streams is not poisoned when it
 * is freed, since they may go on; on a stream that is being captured nothing
 * is filled or looked at, since it would become a part of the graph.
 *
 * Memory that sleeps loses what is in it, zones included, so blocks that are
 * live then are not looked at, nor touched, when they are freed.
 *
 * A guarded block lies at front bytes in its upstream's: ZONE, or the
 * alignment that was asked for if that is more.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adaptor/adaptor.h"
#include "core/move.h"
#include "core/snapshot.h"

#define ZONE		((size_t)512)

enum known_flags {
	BARE = 1,	/* zones: not filled, or in no order */
	RECORDED = 2,
	SLEPT = 4,	/* what was in it may be gone */
	SCRATCH = 8,	/* no sleep keeps what is in it */
};

/**
 * struct known_block - one live block
 * @range: as the guard returned it, of the size that was requested
 * @stream: it was allocated on, as @thread calls it, see hm_stream_here()
 * @front: bytes before it
 * @flags: enum known_flags
 * @away: call of hetmem_sleep() since which it may be asleep and will come back, or 0
 */
struct known_block {
	struct hm_range range;
	hetmem_stream stream;
	uint64_t thread;
	size_t front;
	unsigned int flags;
	uint32_t away;
};

/**
 * struct guard - the adaptor
 * @lock: protects what follows, and is held by fork(). Nothing is called while
 *	it is held.
 * @blocks: tree of live blocks; @nr: how many
 * @stream: for what happens on HETMEM_STREAM_HOST, made when it is needed
 * @looks: free slots; @chunks: first slots of all chunks
 * @pending: slots in use
 * @damage: text of the first that hetmem_poll() has not told yet
 */
struct guard {
	struct hetmem_resource resource;
	bool abort;
	struct hm_lock lock;
	void *blocks;
	size_t nr;
	CUstream stream;
	struct look *looks;
	struct look *chunks;
	unsigned int pending;
	char damage[256];
};

/* Blocks that are live. */

static void *known_ptr(const struct known_block *known)
{
	return (void *)known->range.start;
}

static size_t known_size(const struct known_block *known)
{
	return known->range.end - known->range.start;
}

/* As upstream returned it. */
static void *known_base(const struct known_block *known)
{
	return (char *)known_ptr(known) - known->front;
}

/* With the lock: the block that begins at @ptr, or NULL. */
static struct known_block *find_block(struct guard *g, const void *ptr)
{
	struct hm_range *range = hm_range_find(&g->blocks, (uintptr_t)ptr, 1);

	return range && range->start == (uintptr_t)ptr ?
		(struct known_block *)range : NULL;
}

/* @known, allocated, is live. -ENOMEM: it is not. */
static int add_block(struct guard *g, struct known_block *known)
{
	int err;

	hm_lock(&g->lock);
	err = hm_range_insert(&g->blocks, &known->range);
	if (!err)
		__atomic_add_fetch(&g->nr, 1, __ATOMIC_RELAXED);
	hm_unlock(&g->lock);
	return err ? hm_error(-ENOMEM, "guard: no host memory to know a block by") : 0;
}

/*
 * Takes out the block at @ptr, which is freed, if @size is 0 or its own: before
 * upstream has it, since that may give it to another thread. NULL: -EINVAL.
 */
static struct known_block *take_block(struct guard *g, const void *ptr,
				      size_t size)
{
	struct known_block *known;
	size_t has = 0;

	hm_lock(&g->lock);
	known = find_block(g, ptr);
	if (known)
		has = known_size(known);
	if (known && size && size != has)
		known = NULL;
	if (known) {
		hm_range_erase(&g->blocks, &known->range);
		__atomic_sub_fetch(&g->nr, 1, __ATOMIC_RELAXED);
	}
	hm_unlock(&g->lock);
	if (known)
		return known;
	hm_error(-EINVAL, has ? "free: %p has %zu bytes, not %zu" :
		 "free: %p is not allocated from this guard", ptr, has, size);
	return NULL;
}

static void mark_slept(struct hm_range *range, void *arg)
{
	(void)arg;
	((struct known_block *)range)->flags |= SLEPT;
}

/* Nothing below can sleep. */
static void mark_sleepless(struct hm_range *range, void *arg)
{
	(void)arg;
	((struct known_block *)range)->flags &= ~SLEPT;
}

/* @arg: the call. A block that is away already stays so if this one fails. */
static void mark_away(struct hm_range *range, void *arg)
{
	struct known_block *known = (struct known_block *)range;

	if (known->flags & SCRATCH)
		known->flags |= SLEPT;
	else if (!known->away)
		known->away = *(uint32_t *)arg;
}

/* @arg: the call, 0: any. */
static void mark_back(struct hm_range *range, void *arg)
{
	struct known_block *known = (struct known_block *)range;
	const uint32_t call = *(uint32_t *)arg;

	if (!call || known->away == call)
		known->away = 0;
}

static void mark_all(struct guard *g, void (*mark)(struct hm_range *range, void *arg),
		     uint32_t call)
{
	hm_lock(&g->lock);
	hm_range_walk(&g->blocks, mark, &call);
	hm_unlock(&g->lock);
}

/* Host memory that the CPU uses at once. */
static bool guard_by_cpu(const struct guard *g, hetmem_stream stream)
{
	return g->resource.device < 0 &&
	       (stream == HETMEM_STREAM_HOST || !g->resource.hm->nr_devices);
}

#define ZONE_BYTE	0xfd
#define FRESH_BYTE	0xcd
#define FREED_BYTE	0xdd
#define CHUNK		256
/* Blocks that are reported when the guard is destroyed. */
#define MAX_LEAKS	16

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
	struct known_block known;
};

/* Zones: filled, copied to the host and looked at. */

/* Where the first byte differs, ZONE if none does. */
static size_t first_wrong(const unsigned char *zone)
{
	size_t i;

	for (i = 0; i < ZONE && zone[i] == ZONE_BYTE; i++)
		;
	return i;
}

/* A history() below knows who allocated the block, and who freed it. */
static void trace(struct guard *g, const struct known_block *known, bool leak)
{
	struct hm_ctl_trace arg = {
		.ptr = known_base(known),
		.leak = leak,
	};

	hm_ctl_upstream(&g->resource, HM_CTL_TRACE, &arg);
}

static void inspect_zones(struct guard *g, const unsigned char *front,
			  const unsigned char *back, const struct known_block *known)
{
	size_t before = first_wrong(front), behind = first_wrong(back);
	char where[64], text[sizeof(g->damage)];

	if (before == ZONE && behind == ZONE)
		return;
	if (before != ZONE)
		snprintf(where, sizeof(where), "byte %zu before its beginning", ZONE - before);
	else
		snprintf(where, sizeof(where), "byte %zu after its end", behind + 1);
	snprintf(text, sizeof(text), "guard: block %p of %zu bytes, allocated on stream %p: %s was overwritten",
		 known_ptr(known), known_size(known), known->stream, where);
	fprintf(stderr, "hetmem: %s\n", text);
	trace(g, known, false);
	if (g->abort)
		abort();
	hm_lock(&g->lock);
	if (!g->damage[0])
		memcpy(g->damage, text, sizeof(text));
	hm_unlock(&g->lock);
}

static void put_look(struct look *look)
{
	struct guard *g = look->guard;

	hm_lock(&g->lock);
	look->next = g->looks;
	g->looks = look;
	g->pending--;
	hm_unlock(&g->lock);
}

/* On a thread of the driver, when the stream has copied the zones. */
static void look_now(void *data)
{
	struct look *look = data;

	inspect_zones(look->guard, look->zones, look->zones + ZONE,
		      &look->known);
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

	hm_lock(&g->lock);
	look = g->looks;
	if (!look) {
		hm_unlock(&g->lock);
		chunk = new_chunk(g);
		if (!chunk)
			return NULL;
		hm_lock(&g->lock);
		chunk->next_chunk = g->chunks;
		g->chunks = chunk;
		chunk[CHUNK - 1].next = g->looks;
		look = chunk;
	}
	g->looks = look->next;
	g->pending++;
	hm_unlock(&g->lock);
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
	hm_lock(&g->lock);
	*on = g->stream;
	hm_unlock(&g->lock);
	if (*on)
		return 0;
	res = d->cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING);
	if (res)
		return hm_driver_error(d, "cuStreamCreate", res);
	hm_lock(&g->lock);
	if (!g->stream) {
		g->stream = fresh;
		fresh = NULL;
	}
	*on = g->stream;
	hm_unlock(&g->lock);
	if (fresh)
		d->cuStreamDestroy(fresh);
	return 0;
}

/* With the context current, unless it is by the CPU. */
static int guard_fill(struct guard *g, struct known_block *known)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	uintptr_t at = known->range.start;
	const size_t front = known->front, size = known_size(known);
	unsigned char *base = known_base(known);
	CUresult res, waited;
	CUstream on;
	bool wait;
	int err;

	if (guard_by_cpu(g, known->stream)) {
		memset(base + front - ZONE, ZONE_BYTE, ZONE);
		memset(base + front, FRESH_BYTE, size);
		memset(base + front + size, ZONE_BYTE, ZONE);
		return 0;
	}
	if (hm_capture_active(g->resource.hm, known->stream)) {
		known->flags |= BARE;
		return 0;
	}
	err = work_stream(g, known->stream, &on, &wait);
	if (err)
		return err;
	res = d->cuMemsetD8Async(at - ZONE, ZONE_BYTE, ZONE, on);
	if (!res)
		res = d->cuMemsetD8Async(at, FRESH_BYTE, size, on);
	if (!res)
		res = d->cuMemsetD8Async(at + size, ZONE_BYTE, ZONE, on);
	/* Also after a failure: the block is freed then, and nothing may write to it. */
	waited = wait ? hm_retry_once(d->cuStreamSynchronize(on)) : 0;
	if (!res)
		res = waited;
	return res ? hm_driver_error(d, "cuMemsetD8Async", res) : 0;
}

/* Has the zones looked at, and lays poison, in the order of @stream. */
static int guard_check(struct guard *g, const struct known_block *known,
		       hetmem_stream stream)
{
	const struct hm_driver *d = &g->resource.hm->driver;
	const size_t size = known_size(known);
	uintptr_t at = known->range.start;
	struct look *look;
	CUstream on;
	CUresult res;
	bool wait, launched = false;
	int err;

	if (known->flags & SLEPT || known->away)
		return 0;
	if (guard_by_cpu(g, stream)) {
		inspect_zones(g, (unsigned char *)at - ZONE,
			      (unsigned char *)at + size, known);
		memset((void *)at, FREED_BYTE, size);
		return 0;
	}
	if (known->flags & BARE || hm_capture_active(g->resource.hm, stream))
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
		res = d->cuMemcpyDtoHAsync(look->zones + ZONE, at + size,
					   ZONE, on);
	if (!res && !(known->flags & RECORDED))
		res = d->cuMemsetD8Async(at, FREED_BYTE, size, on);
	if (!res && d->cuLaunchHostFunc) {
		res = d->cuLaunchHostFunc(on, look_now, look);
		launched = !res;
	} else if (!res) {
		res = d->cuStreamSynchronize(on);
	}
	if (!res && wait)
		res = hm_retry_once(d->cuStreamSynchronize(on));
	if (res) {
		/* Copies that were given still come. look_now() puts its look itself. */
		d->cuStreamSynchronize(on);
		if (!launched)
			put_look(look);
		return hm_driver_error(d, "cuMemcpyDtoHAsync", res);
	}
	if (!d->cuLaunchHostFunc) {
		inspect_zones(g, look->zones, look->zones + ZONE, known);
		put_look(look);
	}
	return 0;
}

/* @ours: the memory is this process's, not the parent's. */
static void guard_free_chunks(struct guard *g, bool ours)
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

/* The adaptor. */

/*
 * Makes the device's context current where there is a device. @asked: the
 * stream that the caller named, on which nothing is written if it is none of
 * the device's. What is done there is legal whatever other streams capture.
 */
static int guard_enter(struct guard *g, hetmem_stream stream,
		       hetmem_stream asked, struct hm_context *saved)
{
	struct hetmem *hm = g->resource.hm;
	int device = g->resource.device, err;

	*saved = (struct hm_context){ 0 };
	if (guard_by_cpu(g, stream))
		return 0;
	err = hm_check_owner(hm);
	if (!err && device >= 0)
		err = hm_stream_of_device(hm, device, asked);
	if (!err)
		err = hm_context_enter(hm, device < 0 ? 0 : device, saved);
	if (!err)
		hm_context_relax(hm, saved);
	return err;
}

/* @with: where the class of the block is given, else NULL. */
static int alloc_zones(struct guard *g, const struct hm_ctl_alloc *with,
		       size_t whole, size_t align, hetmem_stream stream,
		       void **base)
{
	struct hetmem_resource *up = g->resource.upstream;
	struct hm_ctl_alloc arg;
	int err;

	if (!with)
		return up->ops->alloc(up, whole, align, stream, base);
	arg = *with;
	arg.size = whole;
	err = up->ops->ctl(up, HM_CTL_ALLOC_WITH, &arg);
	if (!err)
		*base = arg.ptr;
	return err;
}

static int guard_make(struct guard *g, const struct hm_ctl_alloc *with,
		      size_t size, size_t align, hetmem_stream stream,
		      void **ptr)
{
	struct hetmem_resource *self = &g->resource, *up = self->upstream;
	size_t front = align > ZONE ? align : ZONE, whole;
	struct known_block *known;
	struct hm_context saved;
	void *base;
	int err;

	if (__builtin_add_overflow(size, front + ZONE, &whole) ||
	    front > SIZE_MAX / 2)
		return hm_error(-ENOMEM, "guard: %zu bytes and zones are too many",
				size);
	known = malloc(sizeof(*known));
	if (!known)
		return hm_error(-ENOMEM, "guard: no host memory to know a block by");
	err = alloc_zones(g, with, whole, align, stream, &base);
	if (err) {
		free(known);
		return err;
	}
	*known = (struct known_block){
		.stream = stream, .thread = hm_thread(), .front = front,
		.flags = with && with->flags & HETMEM_ALLOC_SCRATCH ? SCRATCH : 0,
	};
	known->range.start = (uintptr_t)base + front;
	known->range.end = known->range.start + size;
	err = guard_enter(g, stream, stream, &saved);
	if (!err) {
		err = guard_fill(g, known);
		hm_context_leave(self->hm, &saved);
	}
	if (!err)
		err = add_block(g, known);
	if (err) {
		free(known);
		up->ops->free(up, base, &whole, stream);
	} else {
		*ptr = (char *)base + front;
	}
	return err;
}

static int guard_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	return guard_make((struct guard *)self, NULL, size, align, stream, ptr);
}

static int guard_alloc_with(struct guard *g, struct hm_ctl_alloc *arg)
{
	if (arg->reserve || arg->private_pool)
		return -EOPNOTSUPP;
	return guard_make(g, arg, arg->size, arg->align, arg->stream,
			  &arg->ptr);
}

/* Upstream knows of a stream that was retired; ours may be another's handle. */
static bool is_retired(struct guard *g, const struct known_block *known)
{
	struct hm_ctl_owns owns = {
		.ptr = known_base(known),
		.first = true,
	};

	return !hm_ctl_upstream(&g->resource, HM_CTL_OWNS, &owns) &&
	       (owns.stream == HETMEM_STREAM_UNKNOWN ||
		(owns.stream == HETMEM_STREAM_HOST &&
		 known->stream != HETMEM_STREAM_HOST));
}

static int guard_free(struct hetmem_resource *self, void *ptr, size_t *size,
		      hetmem_stream stream)
{
	struct guard *g = (struct guard *)self;
	struct hetmem_resource *up = self->upstream;
	hetmem_stream on = stream;
	struct known_block *known = take_block(g, ptr, *size), looked;
	struct hm_context saved;
	size_t whole;
	int err;

	if (!known)
		return -EINVAL;
	*size = known_size(known);
	looked = *known;
	if (stream == HETMEM_STREAM_UNKNOWN) {
		on = hm_stream_here(known->stream, known->thread);
		if (is_retired(g, known))
			looked.flags |= BARE;
	}
	whole = known->front + *size + ZONE;
	err = guard_enter(g, on, stream, &saved);
	if (!err) {
		err = guard_check(g, &looked, on);
		hm_context_leave(self->hm, &saved);
	}
	if (!err)
		err = up->ops->free(up, known_base(known), &whole, stream);
	/* Should it not be known again, its zones are not looked at. */
	if (!err || add_block(g, known))
		free(known);
	return err;
}

static int guard_owns(struct guard *g, struct hm_ctl_owns *owns)
{
	struct known_block *known;

	hm_lock(&g->lock);
	known = (struct known_block *)hm_range_find(&g->blocks,
						    (uintptr_t)owns->ptr, 1);
	if (known) {
		owns->base = known_ptr(known);
		owns->size = known_size(known);
		owns->asked = known_size(known);
		owns->stream = hm_stream_here(known->stream, known->thread);
	}
	hm_unlock(&g->lock);
	return known ? 0 : -ENOENT;
}

/* A block in our own terms, in upstream's: it starts before. */
static int guard_by_base(struct guard *g, enum hm_ctl op, void *arg,
			 void **ptr)
{
	struct known_block *known;
	void *ours = *ptr;
	int err;

	hm_lock(&g->lock);
	known = find_block(g, ours);
	if (known) {
		known->flags |= op == HM_CTL_RECORD ? RECORDED : 0;
		*ptr = known_base(known);
	}
	hm_unlock(&g->lock);
	if (!known)
		return hm_error(-EINVAL, "%p is not allocated from this guard",
				ours);
	err = hm_ctl_upstream(&g->resource, op, arg);
	*ptr = ours;
	return err;
}

static int guard_poll(struct guard *g)
{
	char text[sizeof(g->damage)];
	int err;

	hm_lock(&g->lock);
	memcpy(text, g->damage, sizeof(text));
	g->damage[0] = '\0';
	hm_unlock(&g->lock);
	err = hm_ctl_upstream(&g->resource, HM_CTL_POLL, NULL);
	return text[0] ? hm_error(-EFAULT, "%s", text) : err;
}

/*
 * First, since a block may be freed as soon as its memory is gone. Whose tag
 * it is the guard does not know.
 */
static int guard_sleep(struct guard *g, struct hm_ctl_sleep *arg)
{
	int err;

	mark_all(g, arg->keep ? mark_away : mark_slept, arg->call);
	err = hm_ctl_upstream(&g->resource, HM_CTL_SLEEP, arg);
	if (err == -EOPNOTSUPP && !arg->keep)
		mark_all(g, mark_sleepless, 0);
	else if (arg->keep && err && err != -EIO)
		mark_all(g, mark_back, arg->call);
	return err;
}

static int guard_wake(struct guard *g, struct hm_ctl_sleep *arg)
{
	int err = hm_ctl_upstream(&g->resource, HM_CTL_WAKE, arg);

	if (!err && (arg->undo || !arg->tag))
		mark_all(g, mark_back, arg->undo ? arg->call : 0);
	return err;
}

static int guard_stats(struct guard *g, struct hetmem_resource_stats *stats)
{
	int err = hm_ctl_upstream(&g->resource, HM_CTL_STATS, stats);

	if (!err)
		stats->metadata += sizeof(*g) + __atomic_load_n(&g->nr, __ATOMIC_RELAXED) *
			sizeof(struct known_block);
	return err;
}

/* A free uses the block, to look at its zones: no move may be under way then. */
static int guard_move(struct guard *g, const struct hm_ctl_move *arg)
{
	struct hm_ctl_move whole = *arg;

	/* Its zones would be at the other address, too. */
	if (arg->move == HM_MOVE_ALIAS || arg->move == HM_MOVE_PIN)
		return -EOPNOTSUPP;
	whole.begin = false;
	return guard_by_base(g, HM_CTL_MOVE, &whole, &whole.ptr);
}

static int guard_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct guard *g = (struct guard *)self;

	switch (op) {
	case HM_CTL_OWNS:
		return guard_owns(g, arg);
	case HM_CTL_RECORD:
	case HM_CTL_PIN_COMM:
	case HM_CTL_UNPIN_COMM:
		return guard_by_base(g, op, arg,
				     &((struct hm_ctl_stream *)arg)->ptr);
	case HM_CTL_MOVE:
		return guard_move(g, arg);
	case HM_CTL_POLL:
		return guard_poll(g);
	case HM_CTL_SLEEP:
		return guard_sleep(g, arg);
	case HM_CTL_WAKE:
		return guard_wake(g, arg);
	case HM_CTL_STATS:
		return guard_stats(g, arg);
	case HM_CTL_ALLOC_WITH:
		return guard_alloc_with(g, arg);
	case HM_CTL_ACCESS:	/* a sparse block has no zones */
		return hm_adaptor_access(self, arg);
	case HM_CTL_GROW:	/* what is behind it is its zone */
	case HM_CTL_SHRINK:
	case HM_CTL_EXPORT:	/* whole handles have no room for zones */
		return -EOPNOTSUPP;
	default:
		/* Segments are found by any part of a block. */
		return hm_ctl_upstream(self, op, arg);
	}
}

struct leaks {
	struct guard *guard;
	unsigned int nr;
};

static void report_leak(struct hm_range *range, void *arg)
{
	const struct known_block *known = (struct known_block *)range;
	struct leaks *leaks = arg;

	if (leaks->nr++ >= MAX_LEAKS)
		return;
	fprintf(stderr, "hetmem: guard: block %p of %zu bytes, allocated on stream %p, is still allocated\n",
		known_ptr(known), known_size(known), known->stream);
	trace(leaks->guard, known, true);
}

/* Names the blocks that are still allocated, some of them. */
static void report_leaks(struct guard *g)
{
	struct leaks leaks = { .guard = g };

	hm_range_walk(&g->blocks, report_leak, &leaks);
	if (leaks.nr > MAX_LEAKS)
		fprintf(stderr, "hetmem: guard: and %u more\n",
			leaks.nr - MAX_LEAKS);
}

static bool has_looked(struct guard *g)
{
	bool looked;

	hm_lock(&g->lock);
	looked = !g->pending;
	hm_unlock(&g->lock);
	return looked;
}

/*
 * A context that has failed never calls back: false. Where nothing is pending it is not
 * synchronized, which is illegal while a stream is captured.
 */
static bool wait_for_looks(struct guard *g)
{
	if (has_looked(g))
		return true;
	g->resource.hm->driver.cuCtxSynchronize();
	return has_looked(g);
}

static void guard_destroy(struct hetmem_resource *self)
{
	struct guard *g = (struct guard *)self;
	const struct hm_driver *d = &self->hm->driver;
	struct hm_context saved;
	bool all_looked = true;
	struct hm_range *known;

	if (self->hm->generation == hm_generation())
		report_leaks(g);
	if (self->hm->generation != hm_generation())
		guard_free_chunks(g, false);
	else if ((g->chunks || g->stream) &&
		 !hm_context_enter(self->hm,
				   self->device < 0 ? 0 : self->device,
				   &saved)) {
		hm_context_relax(self->hm, &saved);
		all_looked = wait_for_looks(g);
		if (g->stream)
			d->cuStreamDestroy(g->stream);
		if (all_looked)
			guard_free_chunks(g, true);
		hm_context_leave(self->hm, &saved);
	}
	if (!all_looked)
		return;
	while ((known = hm_range_any(&g->blocks))) {
		hm_range_erase(&g->blocks, known);
		free(known);
	}
	hm_lock_destroy(&g->lock);
	hm_resource_free(self);
}

static const struct hm_resource_ops guard_ops = {
	.name = "guard",
	.alloc = guard_alloc,
	.free = guard_free,
	.ctl = guard_ctl,
	.destroy = guard_destroy,
};

int hm_guard_create(struct hetmem_resource *upstream, bool abort_on_damage,
		    struct hetmem_resource **res)
{
	struct guard *g;

	/* It fills and looks either by the CPU or by the driver. */
	if (upstream->mixed)
		return hm_error(-EINVAL, "guard: below it are the host's memory and a device's: put a guard around each");
	g = hm_adaptor_new(sizeof(*g), &guard_ops, upstream);
	if (!g)
		return -ENOMEM;
	hm_lock_init(&g->lock, HM_FORK_ADAPTOR);
	g->abort = abort_on_damage;
	*res = &g->resource;
	return 0;
}
