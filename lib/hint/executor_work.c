// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The executor of hints at work.
 *
 * Hints are carried out in the order they came. Those at the head of the
 * queue that have one target are a batch: what they ask for is put together,
 * so that memory which several ask for moves once, and a huge page is not cut
 * where one hint ends and the next begins. Each gets its own answer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hint/executor.h"

/* Moved at a time: between two of them the executor can be told to stop. */
#define PIECE	((uintptr_t)256 << 20)

/* Looked at in one go. */
#define RUNS	256

static void count(uint64_t *counter, uint64_t n)
{
	__atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

static bool stopped(const struct hetmem_executor *x)
{
	return __atomic_load_n(&x->stop, __ATOMIC_ACQUIRE);
}

/* Reads what is in the ring as long as there is memory to put it. */
static void read_ring(struct hetmem_executor *x)
{
	struct hetmem_event event;

	for (;;) {
		if (x->nr == x->room) {
			size_t room = x->room ? 2 * x->room : 64;
			struct hm_pending *p;

			p = reallocarray(x->pending, room, sizeof(*p));
			if (!p)
				return;
			x->pending = p;
			x->room = room;
		}
		if (!hm_ring_next(&x->ring, &event))
			return;
		if (event.type != HETMEM_EVENT_HINT)
			continue;
		x->pending[x->nr++] = (struct hm_pending){
			.id = event.data,
			.start = event.start,
			.end = event.end,
			.location = event.location,
		};
		memcpy(x->pending[x->nr - 1].uuid, event.uuid,
		       sizeof(event.uuid));
	}
}

/* Of another driver's device the location does not tell which it is. */
static const struct hm_binding *find_binding(const struct hetmem_executor *x,
					     const struct hm_pending *h)
{
	unsigned int i;

	for (i = 0; i < x->nr_bindings; i++)
		if (x->bindings[i].location == h->location &&
		    (HETMEM_LOC_KIND(h->location) == HETMEM_DEVICE ||
		     !memcmp(x->bindings[i].uuid, h->uuid, sizeof(h->uuid))))
			return &x->bindings[i];
	return NULL;
}

/* What hetmem_prefetch() calls @location, which may be the host. */
static uint32_t target_of(const struct hm_binding *b, uint32_t location)
{
	return b ? b->target : location;
}

/* By the driver, on a stream of ours, waited for: an answer says it is done. */
static int move_by_driver(struct hetmem_executor *x, const struct hm_binding *b,
			  uintptr_t start, uintptr_t end,
			  struct hetmem_moved *moved)
{
	struct hetmem *hm = x->hm;
	struct hm_context saved;
	CUresult res;
	int err;

	err = hm_context_enter(hm, b->device, &saved);
	if (err)
		return err;
	err = hetmem_prefetch(hm, (void *)start, end - start, b->target,
			      b->stream, moved);
	if (!err && !strcmp(moved->how, "driver")) {
		res = hm->driver.cuStreamSynchronize(b->stream);
		if (res)
			err = hm_driver_error(&hm->driver,
					      "cuStreamSynchronize", res);
	}
	hm_context_leave(hm, &saved);
	return err;
}

static int move_piece(struct hetmem_executor *x, const struct hm_binding *b,
		      uint32_t location, uintptr_t start, uintptr_t end,
		      uint64_t *pages)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	int err;

	if (b && b->device >= 0)
		err = move_by_driver(x, b, start, end, &moved);
	else
		err = hetmem_prefetch(x->hm, (void *)start, end - start,
				      target_of(b, location), NULL, &moved);
	if (!err && !strcmp(moved.how, "none"))
		err = -EOPNOTSUPP;
	*pages += moved.moved;
	return err;
}

/* Pages that are somewhere, and not where they are wanted. */
static bool can_move(const struct hetmem_run *run, uint32_t location)
{
	switch (HETMEM_LOC_KIND(run->location)) {
	case HETMEM_HOST:
	case HETMEM_DEVICE:
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		return run->location != location;
	default:
		return false;
	}
}

/*
 * To a device only what there is goes: moving what was never touched would
 * have the device make pages of it, and who asks could make us use memory.
 */
static int move_present(struct hetmem_executor *x, const struct hm_binding *b,
			uint32_t location, uintptr_t start, uintptr_t end,
			uint64_t *pages)
{
	struct hetmem_run runs[RUNS];
	ssize_t n, i, next_run;
	uintptr_t next;
	int err;

	for (; start < end; start = next) {
		n = hm_kmod_residency(&x->hm->kmod, start, end, runs, RUNS,
				      &next);
		if (n < 0 || next <= start)
			return n < 0 ? n : -EBUSY;
		for (i = 0; i < n; i = next_run) {
			next_run = i + 1;
			if (!can_move(&runs[i], location))
				continue;
			while (next_run < n &&
			       runs[next_run].start == runs[next_run - 1].end &&
			       can_move(&runs[next_run], location))
				next_run++;
			err = move_piece(x, b, location, runs[i].start,
					 runs[next_run - 1].end, pages);
			if (err)
				return err;
		}
	}
	return 0;
}

static int move_range(struct hetmem_executor *x, const struct hm_binding *b,
		      uint32_t location, uintptr_t start, uintptr_t end,
		      uint64_t *pages)
{
	int err = 0;

	*pages = 0;
	count(&x->stats.moves, 1);
	while (start < end && !err && !stopped(x)) {
		uintptr_t next = (start | (PIECE - 1)) + 1;

		if (next > end)
			next = end;
		if (b)
			err = move_present(x, b, location, start, next, pages);
		else
			err = move_piece(x, b, location, start, next, pages);
		start = next;
	}
	return err;
}

static int by_start(const void *a, const void *b)
{
	const struct hm_pending *l = *(struct hm_pending *const *)a;
	const struct hm_pending *r = *(struct hm_pending *const *)b;

	return l->start < r->start ? -1 : l->start > r->start;
}

/* Whose memory moved, where several hints were one, or the driver tells none. */
static void count_before(struct hetmem_executor *x, struct hm_pending *h)
{
	h->before = hm_kmod_pages_at(x->fd, h->start, h->end, h->location);
}

static void count_after(struct hetmem_executor *x, struct hm_pending *h)
{
	int64_t after = hm_kmod_pages_at(x->fd, h->start, h->end, h->location);

	if (h->before >= 0 && after > h->before)
		h->moved = after - h->before;
}

/* Hints @h[0] to @h[@nr - 1] touch each other and end at @end: one move. */
static void carry_out(struct hetmem_executor *x, struct hm_pending **h,
		      size_t nr, uintptr_t end)
{
	const uint32_t location = h[0]->location;
	const struct hm_binding *b = find_binding(x, h[0]);
	const bool look = nr > 1 || (b && b->device >= 0);
	uint64_t pages = 0;
	size_t i;
	int err;

	for (i = 0; i < nr && look; i++)
		count_before(x, h[i]);
	err = move_range(x, b, location, h[0]->start, end, &pages);
	for (i = 0; i < nr; i++) {
		h[i]->result = err;
		if (look)
			count_after(x, h[i]);
		else
			h[i]->moved = pages;
	}
}

/* The hints of @order, in order of address: what touches moves at once. */
static void carry_out_all(struct hetmem_executor *x, struct hm_pending **order,
			  size_t nr)
{
	size_t first, next;
	uintptr_t end;

	for (first = 0; first < nr && !stopped(x); first = next) {
		end = order[first]->end;
		for (next = first + 1; next < nr && order[next]->start <= end;
		     next++)
			if (order[next]->end > end)
				end = order[next]->end;
		carry_out(x, order + first, next - first, end);
	}
}

static bool accepted(struct hetmem_executor *x, struct hm_pending *h)
{
	const struct hm_binding *b = find_binding(x, h);

	if (!b && HETMEM_LOC_KIND(h->location) != HETMEM_HOST) {
		h->result = -ENODEV;
		return false;
	}
	if (!x->accept)
		return true;
	h->result = x->accept(x->arg, (void *)h->start, h->end - h->start,
			      target_of(b, h->location));
	if (!h->result)
		return true;
	/* The kernel takes nothing else for an answer. */
	if (h->result > 0 || h->result < -4095)
		h->result = -EPERM;
	count(&x->stats.refused, 1);
	return false;
}

/* Counted first: who is answered may look at once. */
static void answer(struct hetmem_executor *x, const struct hm_pending *h)
{
	const uint64_t failed = !!h->result;

	count(&x->stats.hints, 1);
	count(&x->stats.failed, failed);
	count(&x->stats.moved, h->moved);
	if (!hm_kmod_complete(x->fd, h->id, h->result, h->moved))
		return;
	count(&x->stats.hints, -1);
	count(&x->stats.failed, -failed);
	count(&x->stats.moved, -h->moved);
	count(&x->stats.withdrawn, 1);
}

/* The first @nr hints have one target. */
static size_t run_batch(struct hetmem_executor *x, size_t nr)
{
	struct hm_pending *one[1], **order = one;
	size_t i, n = 0;

	if (nr > 1)
		order = calloc(nr, sizeof(*order));
	if (!order) {
		order = one;
		nr = 1;
	}
	for (i = 0; i < nr; i++)
		if (accepted(x, &x->pending[i]))
			order[n++] = &x->pending[i];
	qsort(order, n, sizeof(*order), by_start);
	carry_out_all(x, order, n);
	/* Who is told to stop leaves what it has not done unanswered. */
	for (i = 0; i < nr && !stopped(x); i++)
		answer(x, &x->pending[i]);
	if (order != one)
		free(order);
	return nr;
}

static size_t same_target(const struct hetmem_executor *x)
{
	size_t nr = 1;

	while (nr < x->nr &&
	       x->pending[nr].location == x->pending[0].location &&
	       !memcmp(x->pending[nr].uuid, x->pending[0].uuid,
		       sizeof(x->pending[0].uuid)))
		nr++;
	return nr;
}

size_t hm_executor_work(struct hetmem_executor *x)
{
	size_t done, answered = 0;

	read_ring(x);
	while (x->nr && !stopped(x)) {
		done = run_batch(x, same_target(x));
		x->nr -= done;
		memmove(x->pending, x->pending + done,
			x->nr * sizeof(*x->pending));
		answered += done;
		read_ring(x);
	}
	return answered;
}
