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
 * - two streams use it by different addresses, one of them writing, and neither use is ordered
 *   after the other;
 * - two branches of a graph use it, one of them writing, and neither is ordered
 *   after the other;
 * - a block moves (its addresses get other memory) while a stream may still use it, is
 *   used before its move has ended, or its stream is given work by another thread during a
 *   synchronous move.
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
 * A move has a tree by address of what its memory was at the beginning. At the end this
 * becomes the state of the memory that is mapped there then.
 *
 * All of it is protected by the soft driver's lock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

enum state { UNKNOWN, ALLOCATED, FREE };

/* Work @at of actor @index, 0 for the host. @base: where the first byte of the memory is mapped. */
struct use {
	unsigned int index;
	uint64_t at;
	uintptr_t addr, base;
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

/* The part of [addr, end) that is one memory; @handle: of a mapping. */
struct piece {
	void **root;
	struct soft_memory *m;
	struct soft_handle *handle;
	const char *kind;
	unsigned long long id;
	uintptr_t addr;
	uintptr_t offset;
	size_t size;
};

/**
 * struct soft_move - a move of [@start, @end) that has begun
 * @stream: index of the block's; @copies: of the stream that copies
 * @frozen: only @thread may give work to either
 * @pieces: what was mapped there; root and m are not valid any more
 * @states: segments by address
 */
struct soft_move {
	struct soft_move *next;
	uintptr_t start;
	uintptr_t end;
	unsigned int stream;
	unsigned int copies;
	bool frozen;
	unsigned long long thread;
	struct use since;
	unsigned int nr;
	struct piece *pieces;
	void *states;
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
	p->handle = NULL;
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
		p->handle = p->m->handle;
		p->id = p->handle->id;
		p->root = &p->handle->uses;
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
			if (s->uses[i].at <= u->at)
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

/* A use by another address, in no order with @u of @a, if either writes. */
static const struct use *elsewhere(const struct segment *s, const struct soft_actor *a,
				   const struct use *u)
{
	unsigned int i;

	for (i = 0; i < s->nr; i++) {
		const struct use *other = &s->uses[i];

		if ((other->write || u->write) && other->base != u->base &&
		    other->at > clock_at(&a->clock, other->index))
			return other;
	}
	return NULL;
}

static bool is_copy(const struct soft_move *move, const struct soft_actor *a)
{
	return a && move->copies && move->copies == a->index &&
	       (!move->frozen || move->thread == hm_thread());
}

static bool is_copying(const struct soft_actor *a)
{
	const struct soft_move *move;

	for (move = hm_soft_world->moves; move; move = move->next)
		if (is_copy(move, a))
			return true;
	return false;
}

/* Whether [@a, @a + @size) and [@b, @b + @more) meet; *@where: first in @a. */
static bool meet(uintptr_t a, size_t size, uintptr_t b, size_t more,
		 uintptr_t *where)
{
	*where = a > b ? a : b;
	return a < b + more && b < a + size;
}

/* Whether @move has some of @p, by address or as memory; *@where: its offset. */
static bool is_moving(const struct soft_move *move, const struct piece *p,
		      uintptr_t *where)
{
	unsigned int i;

	if (meet(p->addr, p->size, move->start, move->end - move->start,
		 where)) {
		*where += p->offset - p->addr;
		return true;
	}
	for (i = 0; p->id && i < move->nr; i++)
		if (move->pieces[i].id == p->id &&
		    meet(p->offset, p->size, move->pieces[i].offset,
			 move->pieces[i].size, where))
			return true;
	return false;
}

/* Nobody but the copies of its move, @a, may have memory that moves. */
static void check_moves(const char *problem, const struct piece *p,
			const struct use *u, const struct soft_actor *a)
{
	const struct soft_move *move;
	uintptr_t where;

	for (move = hm_soft_world->moves; move; move = move->next)
		if (!is_copy(move, a) && is_moving(move, p, &where))
			report(problem, p, where, p->offset + p->size - where,
			       u, &move->since, NULL);
}

void hm_check_work(struct soft_actor *a, const char *what)
{
	struct use u = { .index = a->index, .what = what ? what : "work" };
	const struct soft_move *move;

	a->worked = clock_at(&a->clock, a->index);
	for (move = hm_soft_world->moves; move; move = move->next)
		if (move->frozen && move->stream == a->index &&
		    move->thread != hm_thread())
			report("a stream is given work by another thread while its memory moves",
			       &move->pieces[0], move->pieces[0].offset,
			       move->pieces[0].size, &u, &move->since, NULL);
}

static void use_piece(struct soft_actor *a, const struct piece *p,
		      const struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const bool copying = is_copying(a);
	const struct use *before;
	struct segment *seg;

	check_moves("memory is used while it moves", p, u, a);
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, p->m))) {
		const size_t size = seg->range.end - seg->range.start;

		before = copying ? unordered(seg, &a->clock) : NULL;
		if (before)
			report("memory is copied by a move that is not ordered behind its last use",
			       p, seg->range.start, size, u, before,
			       &a->clock);
		if (seg->state == FREE && !copying && !a->parks)
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
		before = p->handle ? elsewhere(seg, a, u) : NULL;
		if (before)
			report("memory is used at two addresses without an order between the uses",
			       p, seg->range.start, size, u, before, &a->clock);
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
		u.base = p.addr - p.offset;
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
	check_moves("memory is allocated while it moves", p, u, NULL);
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

static void set_free(void **root, uintptr_t at, uintptr_t end,
		     const struct use *u)
{
	struct segment *seg;

	split(root, at);
	split(root, end);
	while ((seg = segment_at(root, &at, end, true))) {
		seg->state = FREE;
		seg->since = *u;
		add_use(seg, u);
	}
}

static void free_piece(const struct piece *p, struct use *u)
{
	u->addr = p->addr;
	set_free(p->root, p->offset, p->offset + p->size, u);
	if (p->m)
		clock_reach(&p->m->clock, u->index, u->at);
}

/* Whole mappings move: none has parts that move and parts that do not. */
static struct soft_move *move_at(uintptr_t addr)
{
	struct soft_move *move;

	for (move = hm_soft_world->moves; move; move = move->next)
		if (addr >= move->start && addr < move->end)
			return move;
	return NULL;
}

void hm_check_free_memory(const void *ptr, size_t size, hetmem_stream stream)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "free" };
	struct soft_move *move;
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p;

	if (!begin(stream, &s, &clock, &u))
		return;
	/* An event that the stream was given after its last work is no use. */
	if (s && u.index && u.at > s->actor.worked)
		u.at = s->actor.worked;
	for (; addr < end; addr += p.size) {
		move = move_at(addr);
		next_piece(addr, move && move->end < end ? move->end : end, &p);
		u.addr = addr;
		if (move)
			set_free(&move->states, addr, addr + p.size, &u);
		else
			free_piece(&p, &u);
	}
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

void hm_check_set_parks(hetmem_stream copies, bool on)
{
	struct use u = { 0 };
	struct soft_clock *clock;
	struct CUstream_st *s;

	if (!begin(copies, &s, &clock, &u))
		return;
	if (s)
		s->actor.parks = on;
	hm_soft_unlock();
}

/* Moves. */

/* @clock: of the block's stream. */
static void begin_piece(struct soft_move *move, const struct piece *p,
			const struct soft_clock *clock)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const struct use *before;
	struct segment *seg, *copy;
	struct piece *more;

	if (!p->m)
		report("memory is moved where nothing is mapped", p, p->offset,
		       p->size, &move->since, NULL, NULL);
	check_moves("memory is moved that is moving", p, &move->since, NULL);
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, false))) {
		before = unordered(seg, clock);
		if (before)
			report("memory is moved whose stream is not ordered behind its last use",
			       p, seg->range.start,
			       seg->range.end - seg->range.start, &move->since,
			       before, clock);
		copy = new_segment(&move->states,
				   seg->range.start - p->offset + p->addr,
				   seg->range.end - p->offset + p->addr);
		copy->state = seg->state;
		copy->since = seg->since;
	}
	more = realloc(move->pieces, (move->nr + 1) * sizeof(*more));
	if (!more)
		no_memory();
	move->pieces = more;
	more[move->nr++] = *p;
}

void hm_check_begin_move(const void *ptr, size_t size, hetmem_stream stream,
			 hetmem_stream copies, bool frozen)
{
	uintptr_t addr = (uintptr_t)ptr;
	struct use u = { .what = "the beginning of a move", .addr = addr };
	struct soft_clock *clock;
	struct soft_move *move;
	struct CUstream_st *s;
	struct piece p;
	CUresult res;

	if (!begin(stream, &s, &clock, &u))
		return;
	move = calloc(1, sizeof(*move));
	if (!move)
		no_memory();
	move->start = addr;
	move->end = addr + size;
	move->stream = s ? s->actor.index : 0;
	move->frozen = frozen;
	move->thread = hm_thread();
	move->since = u;
	s = copies == HETMEM_STREAM_HOST ? NULL : hm_soft_stream(copies, &res);
	move->copies = s ? s->actor.index : 0;
	if (!clock)
		clock = &hm_soft_world->host;
	for (; next_piece(addr, move->end, &p); addr += p.size)
		begin_piece(move, &p, clock);
	move->next = hm_soft_world->moves;
	hm_soft_world->moves = move;
	hm_soft_unlock();
}

/* Whether @p is where it was, or part of it. */
static bool has_piece(const struct soft_move *move, const struct piece *p)
{
	unsigned int i;

	for (i = 0; i < move->nr; i++) {
		const struct piece *q = &move->pieces[i];

		if (q->id == p->id && q->addr - q->offset == p->addr - p->offset)
			return true;
	}
	return false;
}

/* @p, other memory, becomes the block's. */
static void enter_piece(const struct piece *p, const struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const struct soft_clock *clock = &hm_soft_world->host;
	const struct use *before;
	struct segment *seg;

	if (!p->m)
		report("a move ends where nothing is mapped", p, p->offset,
		       p->size, u, NULL, NULL);
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, false))) {
		const size_t size = seg->range.end - seg->range.start;

		if (seg->state == ALLOCATED)
			report("memory is moved to where memory is allocated",
			       p, seg->range.start, size, u, &seg->since,
			       NULL);
		before = unordered(seg, clock);
		if (before)
			report("a move ends before the host has waited for its copy",
			       p, seg->range.start, size, u, before, clock);
		free_segment(p->root, seg);
	}
	seg = new_segment(p->root, p->offset, end);
	seg->since = *u;
	add_use(seg, u);
}

/* @p becomes what the block was at these addresses, or was freed to be since. */
static void set_states(struct soft_move *move, const struct piece *p, bool had)
{
	uintptr_t at = p->addr, end = p->addr + p->size;
	struct piece part = *p;
	struct segment *was, *seg;

	split(&move->states, at);
	split(&move->states, end);
	while ((was = segment_at(&move->states, &at, end, false))) {
		part.addr = was->range.start;
		part.offset = p->offset + (part.addr - p->addr);
		part.size = was->range.end - was->range.start;
		split(p->root, part.offset);
		split(p->root, part.offset + part.size);
		seg = (void *)hm_range_find(p->root, part.offset, part.size);
		if (was->state == FREE)
			free_piece(&part, &was->since);
		else if (!had && seg)
			seg->state = was->state;
	}
}

/* @p is the block's no longer; it may have gone. */
static void leave_piece(struct piece *p, const struct use *u)
{
	uintptr_t at = p->offset, end = p->offset + p->size;
	const struct soft_clock *clock = &hm_soft_world->host;
	struct hm_range *self;
	const struct use *before;
	struct segment *seg;

	self = hm_range_find(&hm_soft_world->handles, (uintptr_t)p->handle, 1);
	if (!self || self != &p->handle->self || p->handle->id != p->id)
		return;
	p->root = &p->handle->uses;
	split(p->root, at);
	split(p->root, end);
	while ((seg = segment_at(p->root, &at, end, false))) {
		before = unordered(seg, clock);
		if (before)
			report("a move ends before the host has waited for its copy",
			       p, seg->range.start,
			       seg->range.end - seg->range.start, u, before,
			       clock);
		seg->state = UNKNOWN;
	}
}

static void free_move(struct soft_move *move)
{
	hm_check_free_uses(&move->states);
	free(move->pieces);
	free(move);
}

void hm_check_end_move(const void *ptr, size_t size)
{
	uintptr_t addr = (uintptr_t)ptr, end = addr + size;
	struct use u = { .what = "the end of a move" };
	struct soft_move **link, *move;
	struct soft_clock *clock;
	struct CUstream_st *s;
	struct piece p, *old;
	bool had;

	if (!begin(HETMEM_STREAM_HOST, &s, &clock, &u))
		return;
	link = &hm_soft_world->moves;
	while ((move = *link) && (move->start != addr || move->end != end))
		link = &move->next;
	if (!move) {
		next_piece(addr, end, &p);
		report("a move ends that has not begun", &p, p.offset, size,
		       &u, NULL, NULL);
	}
	*link = move->next;
	for (old = move->pieces; old < move->pieces + move->nr; old++)
		if (!next_piece(old->addr, old->addr + old->size, &p) ||
		    p.id != old->id || p.offset != old->offset)
			leave_piece(old, &u);
	for (; next_piece(addr, end, &p); addr += p.size) {
		u.addr = addr;
		had = has_piece(move, &p);
		if (!had)
			enter_piece(&p, &u);
		set_states(move, &p, had);
	}
	free_move(move);
	hm_soft_unlock();
}

void hm_check_free_moves(struct soft_world *w)
{
	struct soft_move *move;

	while ((move = w->moves)) {
		w->moves = move->next;
		hm_soft_leak("move", move->start, move->end - move->start);
		free_move(move);
	}
}
