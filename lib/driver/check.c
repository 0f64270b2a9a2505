// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Check mode: see check.h. Vector clocks of streams and events, uses of
 * physical memory, and the reports.
 *
 * A clock is an array: at[i] is the number of the last work of stream i that
 * is ordered before; stream 0 is the host. Streams get their index once and
 * never again, so that a new stream at an old handle is behind nothing of
 * the old one. Memory, the driver's own or a handle, has a tree of disjoint
 * segments, each with who allocated it and at most one use per stream. What
 * the driver does not know is in one more tree, by address.
 *
 * All of it is protected by the soft driver's lock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "driver/soft.h"

bool hm_check_enabled;

enum state { UNKNOWN, ALLOCATED, FREE };

/* Work @at of stream @index, whose id the driver tells as @id. */
struct use {
	unsigned int index;
	unsigned long long id;
	uint64_t at;
	uintptr_t addr;
	const char *what;
};

struct segment {
	struct hm_range range;
	enum state state;
	struct use alloc;
	unsigned int nr;
	struct use *uses;
};

/* The part of [addr, end) that is one memory. */
struct piece {
	void **root;
	struct soft_memory *m;
	const char *kind;
	unsigned long long id;
	uintptr_t addr;
	uintptr_t offset;
	size_t size;
};

__attribute__((noreturn))
static void no_memory(void)
{
	fprintf(stderr, "hetmem: check: no memory to check with\n");
	abort();
}

static uint64_t clock_at(const struct soft_clock *c, unsigned int index)
{
	return index < c->nr ? c->at[index] : 0;
}

static void clock_reach(struct soft_clock *c, unsigned int index, uint64_t at)
{
	unsigned int nr = (index + 8) & ~7U;
	uint64_t *more;

	if (index >= c->nr) {
		more = realloc(c->at, nr * sizeof(*more));
		if (!more)
			no_memory();
		memset(more + c->nr, 0, (nr - c->nr) * sizeof(*more));
		c->at = more;
		c->nr = nr;
	}
	if (c->at[index] < at)
		c->at[index] = at;
}

static void clock_join(struct soft_clock *c, const struct soft_clock *with)
{
	unsigned int i;

	for (i = with->nr; i--;)
		if (with->at[i])
			clock_reach(c, i, with->at[i]);
}

void hm_check_clock_free(struct soft_clock *c)
{
	free(c->at);
	c->at = NULL;
	c->nr = 0;
}

void hm_check_stream(struct CUstream_st *s)
{
	struct soft_world *w = hm_soft_world;
	unsigned long long *ids;

	if (!hm_check_enabled)
		return;
	ids = realloc(w->stream_ids, (w->nr_indices + 2) * sizeof(*ids));
	if (!ids)
		no_memory();
	s->index = ++w->nr_indices;
	ids[s->index] = s->id;
	w->stream_ids = ids;
}

/* What the host has done is before it: the host goes on counting itself. */
static void follow_host(struct CUstream_st *s)
{
	struct soft_clock *host = &hm_soft_world->host;

	clock_reach(host, 0, clock_at(host, 0) + 1);
	clock_join(&s->clock, host);
}

void hm_check_submit(struct CUstream_st *s)
{
	if (!hm_check_enabled)
		return;
	follow_host(s);
	clock_reach(&s->clock, s->index, clock_at(&s->clock, s->index) + 1);
}

void hm_check_behind(struct CUstream_st *s, const struct soft_clock *clock)
{
	if (hm_check_enabled)
		clock_join(&s->clock, clock);
}

void hm_check_join(struct soft_clock *c, const struct soft_clock *with)
{
	if (hm_check_enabled)
		clock_join(c, with);
}

void hm_check_host(const struct soft_clock *clock)
{
	if (hm_check_enabled)
		clock_join(&hm_soft_world->host, clock);
}

static bool next_piece(uintptr_t addr, uintptr_t end, struct piece *p)
{
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;

	if (addr >= end)
		return false;
	p->addr = addr;
	p->m = NULL;
	while ((m = hm_soft_find(addr, end - addr))) {
		if (m->range.start <= addr) {
			p->m = m;
			break;
		}
		end = m->range.start;
	}
	if (!p->m) {
		p->kind = "process memory";
		p->id = 0;
		p->root = &w->process_uses;
		p->offset = addr;
	} else if (p->m->kind == SOFT_MAPPING) {
		p->kind = "handle";
		p->id = p->m->handle->id;
		p->root = &p->m->handle->uses;
		p->offset = addr - p->m->range.start;
	} else {
		p->kind = "memory";
		p->id = p->m->id;
		p->root = &p->m->uses;
		p->offset = addr - p->m->range.start;
	}
	if (p->m && end > p->m->range.end)
		end = p->m->range.end;
	p->size = end - addr;
	return true;
}

static void say_stream(const struct use *u)
{
	if (u->index)
		fprintf(stderr, "stream %llu", u->id);
	else
		fprintf(stderr, "the host");
}

/* @now: by whom and on what stream; @before: NULL if it is not about one. */
__attribute__((noreturn))
static void report(const char *problem, const struct piece *p, uintptr_t offset,
		   size_t size, const struct use *now, const struct use *before,
		   const struct soft_clock *clock)
{
	fprintf(stderr, "hetmem: check: %s\n", problem);
	fprintf(stderr, "hetmem: check:   where:  %#" PRIxPTR ", %zu bytes: %s %llu, offset %#" PRIxPTR "\n",
		p->addr + (offset - p->offset), size, p->kind, p->id, offset);
	fprintf(stderr, "hetmem: check:   now:    %s on ", now->what);
	say_stream(now);
	fprintf(stderr, "\n");
	if (before) {
		fprintf(stderr, "hetmem: check:   before: %s on ",
			before->what);
		say_stream(before);
		fprintf(stderr, ", its work %" PRIu64 ", at address %#" PRIxPTR "\n",
			before->at, before->addr);
	}
	if (before && clock) {
		fprintf(stderr, "hetmem: check:   order:  ");
		say_stream(now);
		fprintf(stderr, " is behind work %" PRIu64 " of ",
			clock_at(clock, before->index));
		say_stream(before);
		fprintf(stderr, "\n");
	}
	abort();
}

static void insert(void **root, struct segment *s)
{
	if (hm_range_insert(root, &s->range))
		no_memory();
}

static struct segment *new_segment(void **root, uintptr_t start,
				   uintptr_t end)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		no_memory();
	s->range.start = start;
	s->range.end = end;
	insert(root, s);
	return s;
}

static void free_segment(void **root, struct segment *s)
{
	hm_range_erase(root, &s->range);
	free(s->uses);
	free(s);
}

/* Afterwards a segment begins at @at, or none is around it. */
static void split(void **root, uintptr_t at)
{
	struct segment *s = (void *)hm_range_find(root, at, 1);
	struct segment *right;

	if (!s || s->range.start == at)
		return;
	right = malloc(sizeof(*right));
	if (!right)
		no_memory();
	*right = *s;
	right->range.start = at;
	right->uses = malloc((s->nr + 1) * sizeof(*s->uses));
	if (!right->uses)
		no_memory();
	memcpy(right->uses, s->uses, s->nr * sizeof(*s->uses));
	hm_range_erase(root, &s->range);
	s->range.end = at;
	insert(root, s);
	insert(root, right);
}

/*
 * The segment that begins at @at; what is between segments becomes one if
 * @fill. Neither goes beyond @end if it was split there. NULL: no more.
 */
static struct segment *segment_at(void **root, uintptr_t *at, uintptr_t end,
				  bool fill)
{
	struct segment *first = NULL, *s;
	uintptr_t stop = end;

	if (*at >= end)
		return NULL;
	while ((s = (void *)hm_range_find(root, *at, stop - *at))) {
		first = s;
		if (s->range.start <= *at)
			break;
		stop = s->range.start;
	}
	if (fill && stop > *at && (!first || first->range.start > *at))
		first = new_segment(root, *at, stop);
	if (first)
		*at = first->range.end;
	return first;
}

static void add_use(struct segment *s, const struct use *u)
{
	struct use *more;
	unsigned int i;

	for (i = 0; i < s->nr; i++) {
		if (s->uses[i].index == u->index) {
			s->uses[i] = *u;
			return;
		}
	}
	more = realloc(s->uses, (s->nr + 1) * sizeof(*more));
	if (!more)
		no_memory();
	s->uses = more;
	s->uses[s->nr++] = *u;
}

/* The first use of @s that is not ordered before @clock. */
static const struct use *unordered(const struct segment *s,
				   const struct soft_clock *clock)
{
	unsigned int i;

	for (i = 0; i < s->nr; i++)
		if (s->uses[i].at > clock_at(clock, s->uses[i].index))
			return &s->uses[i];
	return NULL;
}

static void use_piece(struct CUstream_st *s, const struct piece *p,
		      const struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	struct segment *seg;

	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, p->m))) {
		if (seg->state == FREE)
			report("memory is used after it was freed", p,
			       seg->range.start,
			       seg->range.end - seg->range.start, u,
			       seg->nr ? &seg->uses[seg->nr - 1] : NULL, NULL);
		if (seg->state == ALLOCATED &&
		    seg->alloc.at > clock_at(&s->clock, seg->alloc.index))
			report("memory is used on a stream that is not ordered behind its allocation",
			       p, seg->range.start,
			       seg->range.end - seg->range.start, u,
			       &seg->alloc, &s->clock);
		add_use(seg, u);
	}
	if (p->m)
		clock_reach(&p->m->clock, u->index, u->at);
}

void hm_check_use(struct CUstream_st *s, uintptr_t addr, size_t size,
		  const char *what)
{
	struct use u = { .what = what };
	uintptr_t end = addr + size;
	struct piece p;

	if (!hm_check_enabled)
		return;
	u.index = s->index;
	u.id = s->id;
	u.at = clock_at(&s->clock, s->index);
	for (; next_piece(addr, end, &p); addr += p.size) {
		u.addr = p.addr;
		use_piece(s, &p, &u);
	}
}

/* The first of @m's uses that is not before @clock, as far as is known. */
static void find_use(struct soft_memory *m, const struct soft_clock *clock,
		     struct use *u)
{
	unsigned int i;

	for (i = 0; i < m->clock.nr; i++) {
		if (m->clock.at[i] <= clock_at(clock, i))
			continue;
		u->index = i;
		u->at = m->clock.at[i];
		u->addr = m->range.start;
		u->what = "its last use";
		u->id = i ? hm_soft_world->stream_ids[i] : 0;
		return;
	}
}

void hm_check_gone(struct soft_memory *m, struct CUstream_st *s,
		   const char *what)
{
	struct use now = { .what = what }, before = { .what = NULL };
	struct soft_clock *clock = &hm_soft_world->host;
	struct piece p;

	if (!hm_check_enabled)
		return;
	if (s) {
		follow_host(s);
		clock = &s->clock;
		now.index = s->index;
		now.id = s->id;
	}
	find_use(m, clock, &before);
	if (!before.what)
		return;
	next_piece(m->range.start, m->range.end, &p);
	report("addresses go away while a stream may still use them", &p,
	       p.offset, p.size, &now, &before, clock);
}

void hm_check_hole(uintptr_t addr, size_t size, const char *what)
{
	if (!hm_check_enabled)
		return;
	fprintf(stderr, "hetmem: check: %s of %#" PRIxPTR ", %zu bytes, some of which is not mapped\n",
		what, addr, size);
	abort();
}

void hm_check_free_uses(void **root)
{
	struct hm_range *r;

	while ((r = hm_range_any(root)))
		free_segment(root, (struct segment *)r);
}

/* Lock taken; false: not for check mode. @s: NULL for the host. */
static bool begin(struct hetmem *hm, hetmem_stream stream,
		  struct CUstream_st **s, struct soft_clock **clock,
		  struct use *u)
{
	CUresult res;

	if (!hm->soft || !hm_soft_world ||
	    hm_soft_world->generation != hm_generation())
		return false;
	hm_soft_lock();
	*s = NULL;
	*clock = &hm_soft_world->host;
	if (stream != HETMEM_STREAM_HOST) {
		*s = hm_soft_stream(stream, &res);
		/* None: memory changes hands, but nothing is said of order. */
		if (!*s) {
			*clock = NULL;
			return true;
		}
		*clock = &(*s)->clock;
		follow_host(*s);
		u->index = (*s)->index;
		u->id = (*s)->id;
		/* It is the graph's, which any stream may be given. */
		if ((*s)->capture)
			u->index = 0;
	}
	u->at = clock_at(*clock, u->index);
	return true;
}

static void alloc_piece(const struct piece *p, const struct soft_clock *clock,
			struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const struct use *before;
	struct segment *seg;

	if (!p->m && hm_range_find(&hm_soft_world->reserved, p->addr, 1))
		report("memory is allocated where nothing is mapped", p,
		       p->offset, p->size, u, NULL, NULL);
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, false))) {
		const size_t size = seg->range.end - seg->range.start;

		if (seg->state == ALLOCATED)
			report("memory is allocated that is allocated", p,
			       seg->range.start, size, u, &seg->alloc, NULL);
		before = clock ? unordered(seg, clock) : NULL;
		if (before)
			report("memory is allocated on a stream that is not ordered behind its last use",
			       p, seg->range.start, size, u, before, clock);
		free_segment(p->root, seg);
	}
	seg = new_segment(p->root, p->offset, end);
	seg->state = ALLOCATED;
	seg->alloc = *u;
	seg->alloc.addr = p->addr;
	add_use(seg, &seg->alloc);
}

void hm_check_do_alloc(struct hetmem *hm, const void *ptr, size_t size,
		       hetmem_stream stream)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "allocation" };
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p;

	if (!begin(hm, stream, &s, &clock, &u))
		return;
	for (; next_piece(addr, end, &p); addr += p.size)
		alloc_piece(&p, clock, &u);
	hm_soft_unlock();
}

static void free_piece(const struct piece *p, struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	struct segment *seg;

	u->addr = p->addr;
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, true))) {
		seg->state = FREE;
		add_use(seg, u);
	}
	if (p->m)
		clock_reach(&p->m->clock, u->index, u->at);
}

void hm_check_do_free(struct hetmem *hm, const void *ptr, size_t size,
		      hetmem_stream stream)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "free" };
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p;

	if (!begin(hm, stream, &s, &clock, &u))
		return;
	for (; next_piece(addr, end, &p); addr += p.size)
		free_piece(&p, &u);
	hm_soft_unlock();
}

void hm_check_do_forget(struct hetmem *hm, const void *ptr, size_t size)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "giving it back" };
	const struct use *before;
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct segment *seg;
	struct piece p;

	if (!begin(hm, HETMEM_STREAM_HOST, &s, &clock, &u))
		return;
	p = (struct piece){ .kind = "process memory", .addr = addr,
			    .offset = addr, .size = size,
			    .root = &hm_soft_world->process_uses };
	split(p.root, addr);
	split(p.root, end);
	while ((seg = segment_at(p.root, &addr, end, false))) {
		before = unordered(seg, clock);
		if (before)
			report("memory goes back while a stream may still use it",
			       &p, seg->range.start,
			       seg->range.end - seg->range.start, &u, before,
			       clock);
		free_segment(p.root, seg);
	}
	hm_soft_unlock();
}
