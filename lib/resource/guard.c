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
#include <stdlib.h>
#include <string.h>

#include "resource/guard.h"

/*
 * Makes the device's context current where there is a device. @asked: the
 * stream that the caller named, on which nothing is written if it is none of
 * the device's. What is done there is legal whatever other streams capture.
 */
static int enter(struct guard *g, hetmem_stream stream, hetmem_stream asked,
		 struct hm_context *saved)
{
	struct hetmem *hm = g->resource.hm;
	int device = g->resource.device, err;

	*saved = (struct hm_context){ 0 };
	if (hm_guard_by_cpu(g, stream))
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

static int guard_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct guard *g = (struct guard *)self;
	struct hetmem_resource *up = self->upstream;
	size_t front = align > ZONE ? align : ZONE, whole;
	struct hm_known known = {
		.size = size, .stream = stream, .thread = hm_thread(),
		.extra = front,
	};
	struct hm_context saved;
	void *base;
	int err;

	if (__builtin_add_overflow(size, front + ZONE, &whole) ||
	    front > SIZE_MAX / 2)
		return hm_error(-ENOMEM, "guard: %zu bytes and zones are too many",
				size);
	err = up->ops->alloc(up, whole, align, stream, &base);
	if (err)
		return err;
	known.ptr = (unsigned char *)base + front;
	err = enter(g, stream, stream, &saved);
	if (!err) {
		err = hm_guard_fill(g, base, front, &known);
		hm_context_leave(self->hm, &saved);
	}
	if (!err)
		err = hm_blocks_add(g->blocks, &known);
	if (err)
		up->ops->free(up, base, whole, stream);
	else
		*ptr = known.ptr;
	return err;
}

/* Upstream knows of a stream that was retired; ours may be another's handle. */
static bool is_retired(struct guard *g, const struct hm_known *known)
{
	struct hm_ctl_owns owns = {
		.ptr = (char *)known->ptr - (known->extra & ~FLAGS),
		.first = true,
	};

	return !hm_ctl_upstream(&g->resource, HM_CTL_OWNS, &owns) &&
	       (owns.stream == HETMEM_STREAM_UNKNOWN ||
		(owns.stream == HETMEM_STREAM_HOST &&
		 known->stream != HETMEM_STREAM_HOST));
}

static int guard_free(struct hetmem_resource *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct guard *g = (struct guard *)self;
	struct hetmem_resource *up = self->upstream;
	hetmem_stream on = stream;
	struct hm_context saved;
	struct hm_known known, looked;
	size_t front;
	int err;

	err = hm_blocks_take_freed(g->blocks, "guard", ptr, size, &known);
	if (err)
		return err;
	looked = known;
	if (stream == HETMEM_STREAM_UNKNOWN) {
		on = hm_stream_here(known.stream, known.thread);
		if (is_retired(g, &known))
			looked.extra |= BARE;
	}
	front = known.extra & ~FLAGS;
	err = enter(g, on, stream, &saved);
	if (!err) {
		err = hm_guard_check(g, &looked, on);
		hm_context_leave(self->hm, &saved);
	}
	if (!err)
		err = up->ops->free(up, (unsigned char *)ptr - front,
				    front + known.size + ZONE, stream);
	if (err)
		hm_blocks_add(g->blocks, &known);
	return err;
}

/* The block that upstream's at @base is the inside of. */
static bool find_by_base(struct guard *g, const void *base,
			 struct hm_known *known)
{
	size_t front;

	for (front = ZONE; front; front <<= 1)
		if (hm_blocks_find(g->blocks, (const char *)base + front,
				   known) &&
		    (known->extra & ~FLAGS) == front)
			return true;
	return false;
}

static int guard_owns(struct guard *g, struct hm_ctl_owns *owns)
{
	struct hm_ctl_owns outer = *owns;
	struct hm_known known;
	int err;

	/* Where ours begins there is none of upstream's: its own is asked for. */
	if (hm_blocks_find(g->blocks, owns->ptr, &known)) {
		outer.ptr = (char *)known.ptr - (known.extra & ~FLAGS);
		outer.first = true;
	} else if (owns->first) {
		return -ENOENT;
	}
	err = hm_ctl_upstream(&g->resource, HM_CTL_OWNS, &outer);
	if (err)
		return err;
	if (!find_by_base(g, outer.base, &known) || owns->ptr < known.ptr ||
	    (const char *)owns->ptr >= (char *)known.ptr + known.size)
		return -ENOENT;
	owns->base = known.ptr;
	owns->size = known.size;
	owns->stream = hm_stream_here(known.stream, known.thread);
	return 0;
}

/* A block in our own terms, in upstream's: it starts before. */
static int guard_by_base(struct guard *g, enum hm_ctl op, void *arg,
			 void **ptr)
{
	struct hm_known known;
	void *ours = *ptr;
	int err;

	if (!hm_blocks_update(g->blocks, ours, 0,
			      op == HM_CTL_RECORD ? RECORDED : 0, &known))
		return hm_error(-EINVAL, "%p is not allocated from this guard",
				ours);
	*ptr = (char *)ours - (known.extra & ~FLAGS);
	err = hm_ctl_upstream(&g->resource, op, arg);
	*ptr = ours;
	return err;
}

static int guard_poll(struct guard *g)
{
	char text[sizeof(g->damage)];
	int err;

	hm_blocks_lock(g->blocks);
	memcpy(text, g->damage, sizeof(text));
	g->damage[0] = '\0';
	hm_blocks_unlock(g->blocks);
	err = hm_ctl_upstream(&g->resource, HM_CTL_POLL, NULL);
	return text[0] ? hm_error(-EFAULT, "%s", text) : err;
}

/*
 * First, since a block may be freed as soon as its memory is gone. Whose tag
 * it is the guard does not know.
 */
static int guard_sleep(struct guard *g, void *tag)
{
	int err;

	hm_blocks_update_all(g->blocks, SLEPT, 0);
	err = hm_ctl_upstream(&g->resource, HM_CTL_SLEEP, tag);
	if (err == -EOPNOTSUPP)
		hm_blocks_update_all(g->blocks, 0, SLEPT);
	return err;
}

static int guard_stats(struct guard *g, struct hetmem_resource_stats *stats)
{
	int err = hm_ctl_upstream(&g->resource, HM_CTL_STATS, stats);

	if (!err)
		stats->metadata += sizeof(*g) + hm_blocks_bytes(g->blocks);
	return err;
}

static int guard_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct guard *g = (struct guard *)self;

	switch (op) {
	case HM_CTL_OWNS:
		return guard_owns(g, arg);
	case HM_CTL_RECORD:
	case HM_CTL_PIN_COMM:
		return guard_by_base(g, op, arg,
				     &((struct hm_ctl_stream *)arg)->ptr);
	case HM_CTL_POLL:
		return guard_poll(g);
	case HM_CTL_SLEEP:
		return guard_sleep(g, arg);
	case HM_CTL_STATS:
		return guard_stats(g, arg);
	case HM_CTL_GROW:	/* what is behind it is its zone */
	case HM_CTL_RESERVE:
	case HM_CTL_EXPORT:	/* whole handles have no room for zones */
		return -EOPNOTSUPP;
	default:
		/* Segments are found by any part of a block. */
		return hm_ctl_upstream(self, op, arg);
	}
}

static void guard_destroy(struct hetmem_resource *self)
{
	struct guard *g = (struct guard *)self;
	const struct hm_driver *d = &self->hm->driver;
	struct hm_context saved;
	bool all_looked = true;

	if (self->hm->generation != hm_generation())
		hm_guard_free_chunks(g, false);
	else if ((g->chunks || g->stream) &&
		 !hm_context_enter(self->hm,
				   self->device < 0 ? 0 : self->device,
				   &saved)) {
		hm_context_relax(self->hm, &saved);
		/* A context that has failed never calls back. */
		d->cuCtxSynchronize();
		hm_blocks_lock(g->blocks);
		all_looked = !g->pending;
		hm_blocks_unlock(g->blocks);
		if (g->stream)
			d->cuStreamDestroy(g->stream);
		if (all_looked)
			hm_guard_free_chunks(g, true);
		hm_context_leave(self->hm, &saved);
	}
	if (!all_looked)
		return;
	hm_blocks_free(g->blocks, NULL, NULL);
	free(g);
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
	g = calloc(1, sizeof(*g));
	if (!g)
		return hm_error(-ENOMEM, "guard: no memory");
	g->blocks = hm_blocks_new();
	if (!g->blocks) {
		free(g);
		return -ENOMEM;
	}
	g->abort = abort_on_damage;
	hm_adaptor_init(&g->resource, &guard_ops, upstream);
	*res = &g->resource;
	return 0;
}
