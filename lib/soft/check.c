// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Check mode: proves that memory is never given out before its last use is over.
 *
 * Every stream has a vector clock: which work of each other stream its next
 * work is ordered after. Record, wait, synchronize and a query that returns done
 * move it along, and nothing else does: that work happens to be done by then is
 * no order. The host is a stream too, and work is ordered after all that the
 * host did before it gave it (as if there were one host thread).
 *
 * Uses are kept by physical memory, handle and offset, so that a block is the
 * same memory whatever address it is mapped at. A use is work of the driver on a
 * range (copy, fill, kernel), and what a resource reports with the calls of
 * driver/check.h. What is wrong aborts the process with a report that names both
 * sides:
 *
 * - memory is allocated on a stream that is not ordered after its last use, or
 *   while it is allocated, at this address or another;
 * - it is used after it was freed, or on a stream that is not ordered after its
 *   allocation;
 * - an address is unmapped, or memory given back, while a stream may still use
 *   it;
 * - two branches of a graph use it, one of them writing, and neither is ordered
 *   after the other.
 *
 * A clock is an array: at[i] is the number of the last work of stream i that
 * is ordered before; stream 0 is the host. Streams get their index once and
 * never again, so that a new stream at an old handle is after nothing of the
 * old one. A graph is not one stream: each of its branches, a chain of nodes,
 * has an index, and a node is ordered after those that it depends on, whatever
 * order a launch does them in.
 *
 * Memory, the driver's own or a handle, has a tree of disjoint segments, each
 * with who allocated or freed it, and for each actor the last use that reads
 * and the last that writes. Memory that the driver does not know is in one more
 * tree, by address.
 *
 * All of it is protected by the soft driver's lock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

enum state { UNKNOWN, ALLOCATED, FREE };

/* Work @at of actor @index, 0 for the host. */
struct use {
	unsigned int index;
	uint64_t at;
	uintptr_t addr;
	const char *what;
	bool write;
};

/* @state is since @since. */
struct segment {
	struct hm_range range;
	enum state state;
	struct use since;
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

void hm_check_actor(struct soft_actor *a, unsigned long long id,
		    unsigned int branch)
{
	struct soft_world *w = hm_soft_world;
	struct soft_name *more;

	if (!w->check)
		return;
	more = realloc(w->actors, (w->nr_actors + 2) * sizeof(*more));
	if (!more)
		no_memory();
	a->index = ++w->nr_actors;
	more[a->index] = (struct soft_name){ id, branch };
	w->actors = more;
}

/* What the host has done is before it: the host goes on counting itself. */
static void follow_host(struct soft_actor *a)
{
	struct soft_clock *host = &hm_soft_world->host;

	clock_reach(host, 0, clock_at(host, 0) + 1);
	clock_join(&a->clock, host);
}

void hm_check_submit(struct soft_actor *a)
{
	if (!hm_soft_world->check)
		return;
	follow_host(a);
	clock_reach(&a->clock, a->index, clock_at(&a->clock, a->index) + 1);
}

void hm_check_join(struct soft_clock *c, const struct soft_clock *with)
{
	if (hm_soft_world->check)
		clock_join(c, with);
}

void hm_check_host(const struct soft_clock *clock)
{
	if (hm_soft_world->check)
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

static void say_actor(const struct use *u)
{
	const struct soft_name *name = &hm_soft_world->actors[u->index];

	if (!u->index)
		fprintf(stderr, "the host");
	else if (name->branch)
		fprintf(stderr, "branch %u of graph %llu", name->branch,
			name->id);
	else
		fprintf(stderr, "stream %llu", name->id);
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
	say_actor(now);
	fprintf(stderr, "\n");
	if (before) {
		fprintf(stderr, "hetmem: check:   before: %s on ",
			before->what);
		say_actor(before);
		fprintf(stderr, ", its work %" PRIu64 ", at address %#" PRIxPTR "\n",
			before->at, before->addr);
	}
	if (before && clock) {
		fprintf(stderr, "hetmem: check:   order:  ");
		say_actor(now);
		fprintf(stderr, " is behind work %" PRIu64 " of ",
			clock_at(clock, before->index));
		say_actor(before);
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
		if (s->uses[i].index == u->index &&
		    s->uses[i].write == u->write) {
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

/* A use by another branch of the same graph, in no order with @u of @a. */
static const struct use *racing(const struct segment *s,
				const struct soft_actor *a,
				const struct use *u)
{
	const struct soft_name *names = hm_soft_world->actors;
	unsigned int i;

	if (!names[a->index].branch)
		return NULL;
	for (i = 0; i < s->nr; i++) {
		const struct use *other = &s->uses[i];

		if ((other->write || u->write) &&
		    names[other->index].branch &&
		    names[other->index].id == names[a->index].id &&
		    other->at > clock_at(&a->clock, other->index))
			return other;
	}
	return NULL;
}

static void use_piece(struct soft_actor *a, const struct piece *p,
		      const struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const struct use *before;
	struct segment *seg;

	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, p->m))) {
		const size_t size = seg->range.end - seg->range.start;

		if (seg->state == FREE)
			report("memory is used after it was freed", p,
			       seg->range.start, size, u, &seg->since, NULL);
		if (seg->state == ALLOCATED &&
		    seg->since.at > clock_at(&a->clock, seg->since.index))
			report("memory is used on a stream that is not ordered behind its allocation",
			       p, seg->range.start, size, u, &seg->since,
			       &a->clock);
		before = racing(seg, a, u);
		if (before)
			report("memory is used by two branches of a graph without an order between them",
			       p, seg->range.start, size, u, before,
			       &a->clock);
		add_use(seg, u);
	}
	if (p->m)
		clock_reach(&p->m->clock, u->index, u->at);
}

void hm_check_use(struct soft_actor *a, uintptr_t addr, size_t size,
		  const char *what, bool write)
{
	struct use u = { .what = what, .write = write };
	uintptr_t end = addr + size;
	struct piece p;

	if (!hm_soft_world->check)
		return;
	u.index = a->index;
	u.at = clock_at(&a->clock, a->index);
	for (; next_piece(addr, end, &p); addr += p.size) {
		u.addr = p.addr;
		use_piece(a, &p, &u);
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
		return;
	}
}

void hm_check_gone(struct soft_memory *m, struct soft_actor *a,
		   const char *what)
{
	struct use now = { .what = what }, before = { .what = NULL };
	struct soft_clock *clock = &hm_soft_world->host;
	struct piece p;

	if (!hm_soft_world->check)
		return;
	if (a) {
		follow_host(a);
		clock = &a->clock;
		now.index = a->index;
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
	if (!hm_soft_world->check)
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
static bool begin(hetmem_stream stream, struct CUstream_st **s,
		  struct soft_clock **clock, struct use *u)
{
	CUresult res;

	if (!hm_soft_world || !hm_soft_world->check ||
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
		*clock = &(*s)->actor.clock;
		follow_host(&(*s)->actor);
		u->index = (*s)->actor.index;
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
			       seg->range.start, size, u, &seg->since, NULL);
		before = clock ? unordered(seg, clock) : NULL;
		if (before)
			report("memory is allocated on a stream that is not ordered behind its last use",
			       p, seg->range.start, size, u, before, clock);
		free_segment(p->root, seg);
	}
	seg = new_segment(p->root, p->offset, end);
	seg->state = ALLOCATED;
	seg->since = *u;
	seg->since.addr = p->addr;
	add_use(seg, &seg->since);
}

void hm_check_alloc_memory(const void *ptr, size_t size, hetmem_stream stream)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "allocation" };
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p;

	if (!begin(stream, &s, &clock, &u))
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
		seg->since = *u;
		add_use(seg, u);
	}
	if (p->m)
		clock_reach(&p->m->clock, u->index, u->at);
}

void hm_check_free_memory(const void *ptr, size_t size, hetmem_stream stream)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "free" };
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p;

	if (!begin(stream, &s, &clock, &u))
		return;
	for (; next_piece(addr, end, &p); addr += p.size)
		free_piece(&p, &u);
	hm_soft_unlock();
}

void hm_check_forget_memory(const void *ptr, size_t size)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "giving it back" };
	const struct use *before;
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct segment *seg;
	struct piece p;

	if (!begin(HETMEM_STREAM_HOST, &s, &clock, &u))
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
