// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * history(R,events=,callers=): the last events, in a ring: allocations, frees,
 * blocks that grow, trims, and failures of these; each with the time, the stream
 * and the return addresses of its callers. hetmem_history() copies them. When it
 * is destroyed, history reports blocks that are still allocated on stderr, with
 * who allocated them; a guard() above has it tell about a damaged block.
 *
 * A free is recorded before it happens, an allocation after: in the order of
 * events, no address is given out that is still in use.
 *
 * The lock protects the ring. Callers are looked up before it is taken, and it
 * is held for a copy of at most PIECE events. Nothing is called with it.
 */
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include "adaptor/adaptor.h"
#include "core/snapshot.h"

#define MAX_EVENTS	(1U << 20)
/* Events that are copied or looked at with the lock. */
#define PIECE		64
/* Functions of the library between the program and here, at most. */
#define OWN_FRAMES	12
/* Blocks that are reported when the adaptor is destroyed. */
#define MAX_LEAKS	16

/**
 * struct history - the adaptor
 * @room: events of @ring
 * @callers: of each
 * @text, @text_end: where libhetmem.so is mapped; 0: it is a part of the program
 * @told: blocks that were reported as still allocated
 * @lock: protects what follows
 * @last: number of the last event; event n is in ring[n % room]
 */
struct history {
	struct hetmem_resource resource;
	unsigned int room;
	unsigned int callers;
	uintptr_t text;
	uintptr_t text_end;
	unsigned int nr_told;
	const void *told[MAX_LEAKS];
	struct hm_lock lock;
	uint64_t last;
	struct hetmem_history_event *ring;
};

/* Who called. */

/* Finds the object that this code is in, unless that is the program. */
static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	const uintptr_t here = (uintptr_t)find_text;
	struct history *h = arg;
	int i;

	(void)size;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type != PT_LOAD || here < start ||
		    here >= start + segment->p_memsz)
			continue;
		if (info->dlpi_name && *info->dlpi_name) {
			h->text = start;
			h->text_end = start + segment->p_memsz;
		}
		return 1;
	}
	return 0;
}

static bool is_own(const struct history *h, const void *address)
{
	return (uintptr_t)address >= h->text &&
	       (uintptr_t)address < h->text_end;
}

/* Without the library's own functions, unless nothing were left. */
static void find_callers(const struct history *h,
			 struct hetmem_history_event *event)
{
	void *frames[OWN_FRAMES + HETMEM_HISTORY_CALLERS];
	int nr, own = 0, i;

	event->nr_callers = 0;
	if (!h->callers)
		return;
	nr = backtrace(frames, OWN_FRAMES + h->callers);
	/* A sanitizer's backtrace() is a function of its own. */
	for (i = 0; i < nr && i < OWN_FRAMES; i++)
		if (is_own(h, frames[i]))
			own = i + 1;
		else if (own || i)
			break;
	if (own == nr)
		own = 0;
	for (i = own; i < nr && event->nr_callers < h->callers; i++)
		event->callers[event->nr_callers++] = frames[i];
}

/* The ring. */

static struct hetmem_history_event *slot(struct history *h, uint64_t nr)
{
	return &h->ring[nr % h->room];
}

/* Returns the event's number. */
static uint64_t note(struct history *h, enum hetmem_history_kind kind,
		     const void *ptr, size_t bytes, hetmem_stream stream,
		     int error)
{
	struct hetmem_history_event event = {
		.kind = kind, .ptr = ptr, .bytes = bytes, .stream = stream,
		.error = error,
	};

	find_callers(h, &event);
	hm_lock(&h->lock);
	/* Numbers and times are in one order. */
	event.time = hm_now();
	event.nr = ++h->last;
	*slot(h, event.nr) = event;
	hm_unlock(&h->lock);
	return event.nr;
}

/* How the event @nr ended. */
static void amend(struct history *h, uint64_t nr, size_t bytes, int error)
{
	struct hetmem_history_event *event;

	hm_lock(&h->lock);
	event = slot(h, nr);
	if (event->nr == nr) {
		event->bytes = bytes;
		event->error = error;
	}
	hm_unlock(&h->lock);
}

/* The numbers of the events that are there: [*@first, *@end). */
static void range(struct history *h, uint64_t *first, uint64_t *end)
{
	hm_lock(&h->lock);
	*end = h->last + 1;
	hm_unlock(&h->lock);
	*first = *end > h->room ? *end - h->room : 1;
}

/* Those of [@first, @end) that are still there; their number. */
static size_t copy(struct history *h, uint64_t first, uint64_t end,
		   struct hetmem_history_event *events)
{
	size_t nr = 0;
	uint64_t i;

	hm_lock(&h->lock);
	for (i = first; i < end; i++)
		if (slot(h, i)->nr == i)
			events[nr++] = *slot(h, i);
	hm_unlock(&h->lock);
	return nr;
}

static int history_read(struct history *h, struct hm_ctl_history *arg)
{
	uint64_t first, end, piece;
	size_t filled = 0;

	range(h, &first, &end);
	if (end - first > arg->nr)
		first = end - arg->nr;
	for (; first < end; first = piece) {
		piece = end - first > PIECE ? first + PIECE : end;
		filled += copy(h, first, piece, arg->events + filled);
	}
	arg->nr = filled;
	return 0;
}

/*
 * Calls @each for events from the last to the first, until it returns false. It
 * is called without the lock.
 */
static void walk_back(struct history *h,
		      bool (*each)(struct history *h,
				   const struct hetmem_history_event *event,
				   void *arg), void *arg)
{
	struct hetmem_history_event events[PIECE];
	uint64_t first, end, piece;
	size_t nr;

	for (range(h, &first, &end); first < end; end = piece) {
		piece = end - first > PIECE ? end - PIECE : first;
		nr = copy(h, piece, end, events);
		while (nr)
			if (!each(h, &events[--nr], arg))
				return;
	}
}

/* Reports on stderr. */

static void print_event(const char *what,
			const struct hetmem_history_event *event)
{
	char **names = backtrace_symbols(event->callers, event->nr_callers);
	char stream[24] = "the host";
	unsigned int i;

	if (event->stream == HETMEM_STREAM_UNKNOWN)
		snprintf(stream, sizeof(stream), "its stream");
	else if (event->stream != HETMEM_STREAM_HOST)
		snprintf(stream, sizeof(stream), "stream %p", event->stream);
	fprintf(stderr, "hetmem: history: %p, %zu bytes, %s on %s %.3f s ago%s\n",
		event->ptr, event->bytes, what, stream,
		(hm_now() - event->time) / 1e9, event->nr_callers ? " by" : "");
	for (i = 0; i < event->nr_callers; i++)
		if (names)
			fprintf(stderr, "hetmem:   %s\n", names[i]);
		else
			fprintf(stderr, "hetmem:   %p\n", event->callers[i]);
	free(names);
}

/* The last allocation of a block, and the free that came after it. */
static bool trace_event(struct history *h,
			const struct hetmem_history_event *event, void *arg)
{
	const struct hm_ctl_trace *trace = arg;

	(void)h;
	if (event->ptr != trace->ptr || event->error)
		return true;
	if (event->kind == HETMEM_HISTORY_FREE)
		print_event("freed", event);
	if (event->kind != HETMEM_HISTORY_ALLOC)
		return true;
	print_event("allocated", event);
	return false;
}

static bool was_told(const struct history *h, const void *ptr)
{
	unsigned int i;

	for (i = 0; i < h->nr_told; i++)
		if (h->told[i] == ptr)
			return true;
	return false;
}

static int history_trace(struct history *h, struct hm_ctl_trace *trace)
{
	walk_back(h, trace_event, trace);
	if (trace->leak && h->nr_told < MAX_LEAKS)
		h->told[h->nr_told++] = trace->ptr;
	return 0;
}

/* Upstream knows whether the block is live: events of it may be lost. */
static bool report_leak(struct history *h,
			const struct hetmem_history_event *event, void *arg)
{
	struct hm_ctl_owns owns = { .ptr = event->ptr, .first = true };

	(void)arg;
	if (h->nr_told == MAX_LEAKS)
		return false;
	if (event->kind != HETMEM_HISTORY_ALLOC || event->error ||
	    was_told(h, event->ptr) ||
	    hm_ctl_upstream(&h->resource, HM_CTL_OWNS, &owns) ||
	    owns.base != event->ptr)
		return true;
	h->told[h->nr_told++] = event->ptr;
	print_event("still allocated, allocated", event);
	return true;
}

static void report_leaks(struct history *h)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	if (hm_ctl_upstream(&h->resource, HM_CTL_STATS, &stats) || !stats.live)
		return;
	walk_back(h, report_leak, NULL);
	if (stats.live > h->nr_told)
		fprintf(stderr, "hetmem: history: %llu blocks are still allocated, %u of them were reported\n",
			(unsigned long long)stats.live, h->nr_told);
}

/* The adaptor. */

static int history_alloc(struct hetmem_resource *self, size_t size,
			 size_t align, hetmem_stream stream, void **ptr)
{
	struct hetmem_resource *up = self->upstream;
	int err = up->ops->alloc(up, size, align, stream, ptr);

	note((struct history *)self, HETMEM_HISTORY_ALLOC, err ? NULL : *ptr,
	     size, stream, err);
	return err;
}

static int history_free(struct hetmem_resource *self, void *ptr, size_t *size,
			hetmem_stream stream)
{
	struct history *h = (struct history *)self;
	struct hetmem_resource *up = self->upstream;
	size_t told = *size;
	uint64_t nr = note(h, HETMEM_HISTORY_FREE, ptr, told, stream, 0);
	int err = up->ops->free(up, ptr, size, stream);

	if (err || *size != told)
		amend(h, nr, err ? told : *size, err);
	return err;
}

static int history_alloc_with(struct history *h, struct hm_ctl_alloc *arg)
{
	int err = hm_ctl_upstream(&h->resource, HM_CTL_ALLOC_WITH, arg);

	note(h, HETMEM_HISTORY_ALLOC, err ? NULL : arg->ptr, arg->size,
	     arg->stream, err);
	return err;
}

static int history_restore(struct history *h, struct hm_ctl_restore *arg)
{
	size_t from, to, i;
	int err = hm_restore_upstream(&h->resource, arg, &from, &to);

	for (i = from; !err && arg->step == HM_RESTORE_DO && i < to; i++) {
		const struct hetmem_restored *b = &arg->blocks[i];

		if (b->kind != HETMEM_RESTORED_KEPT)
			note(h, b->kind == HETMEM_RESTORED_FREED ?
			     HETMEM_HISTORY_FREE : HETMEM_HISTORY_ALLOC, b->ptr,
			     b->bytes, b->stream, 0);
	}
	return err;
}

static int history_grow(struct history *h, struct hm_ctl_grow *arg)
{
	int err = hm_ctl_upstream(&h->resource, HM_CTL_GROW, arg);

	note(h, HETMEM_HISTORY_GROW, arg->ptr, arg->size, arg->stream, err);
	return err;
}

static int history_trim(struct history *h, size_t *bytes)
{
	int err = hm_ctl_upstream(&h->resource, HM_CTL_TRIM, bytes);

	note(h, HETMEM_HISTORY_TRIM, NULL, err ? 0 : *bytes,
	     HETMEM_STREAM_UNKNOWN, err);
	return err;
}

static int history_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct history *h = (struct history *)self;
	struct hetmem_resource_stats *stats = arg;
	int err;

	switch (op) {
	case HM_CTL_HISTORY:
		return history_read(h, arg);
	case HM_CTL_TRACE:
		return history_trace(h, arg);
	case HM_CTL_ALLOC_WITH:
		return history_alloc_with(h, arg);
	case HM_CTL_RESTORE:
		return history_restore(h, arg);
	case HM_CTL_GROW:
		return history_grow(h, arg);
	case HM_CTL_TRIM:
		return history_trim(h, arg);
	default:
		err = hm_ctl_upstream(self, op, arg);
		if (op == HM_CTL_STATS && !err)
			stats->metadata += sizeof(*h) +
				h->room * sizeof(*h->ring);
		return err;
	}
}

static void history_destroy(struct hetmem_resource *self)
{
	struct history *h = (struct history *)self;

	if (self->hm->generation == hm_generation())
		report_leaks(h);
	hm_lock_destroy(&h->lock);
	free(h->ring);
	hm_resource_free(self);
}

static const struct hm_resource_ops history_ops = {
	.name = "history",
	.alloc = history_alloc,
	.free = history_free,
	.ctl = history_ctl,
	.destroy = history_destroy,
};

int hm_history_create(struct hetmem_resource *upstream, unsigned int events,
		      unsigned int callers, struct hetmem_resource **res)
{
	struct history *h;
	void *frame;

	if (!events || events > MAX_EVENTS)
		return hm_error(-EINVAL, "history: events is 1 to %u",
				MAX_EVENTS);
	if (callers > HETMEM_HISTORY_CALLERS)
		return hm_error(-EINVAL, "history: callers is %d at most",
				HETMEM_HISTORY_CALLERS);
	h = hm_adaptor_new(sizeof(*h), &history_ops, upstream);
	if (!h)
		return -ENOMEM;
	h->ring = calloc(events, sizeof(*h->ring));
	if (!h->ring) {
		free(h);
		return hm_error(-ENOMEM, "history: no memory for %u events",
				events);
	}
	h->room = events;
	h->callers = callers;
	/* The first call loads the unwinder: not in the middle of a program. */
	if (callers && backtrace(&frame, 1))
		dl_iterate_phdr(find_text, h);
	hm_lock_init(&h->lock, HM_FORK_ADAPTOR);
	*res = &h->resource;
	return 0;
}
