/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Samples of one process, see record.h. Pages are put together to cells of format.h, block by
 * block. A frame has only what lies between the first and the last cell that differ from what
 * the file has already.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "bounded.h"
#include "map/source.h"
#include "maps.h"
#include "platform/kmod_hint.h"
#include "record.h"
#include "util.h"

/* Of one block; what does not fit is counted in the last one. */
#define TALLIES		8
/* Of a walk, between two looks at the clock. */
#define PIECE		(64ULL << 20)
/* Cells of a frame. */
#define FRAME_CELLS	((RECORD_PAYLOAD - sizeof(struct record_sample)) / sizeof(struct record_cell))

struct cells {
	struct record_cell *cell;
	size_t nr, room;
};

/**
 * struct record_taker - what is known of a process
 * @known: as it is in the file
 * @seen: by the look that is under way
 * @block, @tally, @nr_tallies: of the block that is being looked at
 * @at: where the next look begins
 */
struct record_taker {
	pid_t pid;
	uint64_t page_size, at;
	struct cells known, seen;
	uint64_t block;
	struct record_cell tally[TALLIES];
	size_t nr_tallies;
};

struct record_taker *record_taker_new(pid_t pid)
{
	struct record_taker *t = xcalloc(1, sizeof(*t));

	t->pid = pid;
	return t;
}

void record_taker_free(struct record_taker *t)
{
	if (!t)
		return;
	free(t->known.cell);
	free(t->seen.cell);
	free(t);
}

void record_taker_exec(struct record_taker *t)
{
	t->known.nr = 0;
	t->at = 0;
}

static bool is_full(const struct record_taker *t, const struct record_cell *c)
{
	return c->pages * t->page_size == c->end - c->start;
}

/* Neighbours that are all of one kind become one cell. */
static void add_cell(const struct record_taker *t, struct cells *cells,
		     const struct record_cell *c)
{
	struct record_cell *last = cells->nr ? &cells->cell[cells->nr - 1] : NULL;

	if (last && last->end == c->start && last->location == c->location &&
	    last->why == c->why && is_full(t, last) && is_full(t, c)) {
		last->end = c->end;
		last->pages += c->pages;
		return;
	}
	if (cells->nr == cells->room) {
		cells->room = 2 * cells->room + 64;
		cells->cell = xrealloc_array(cells->cell, cells->room, sizeof(*c));
	}
	cells->cell[cells->nr++] = *c;
}

static void end_block(struct record_taker *t)
{
	size_t i;

	for (i = 0; i < t->nr_tallies; i++)
		add_cell(t, &t->seen, &t->tally[i]);
	t->nr_tallies = 0;
}

/* [@start, @end) lies in one block. */
static void add_pages(struct record_taker *t, const struct hetmem_run *run, uint64_t start,
		      uint64_t end)
{
	const uint64_t block = start & ~(RECORD_BLOCK - 1);
	size_t i;

	if (t->nr_tallies && t->block != block)
		end_block(t);
	t->block = block;
	for (i = 0; i < t->nr_tallies; i++)
		if (t->tally[i].location == run->location && t->tally[i].why == run->why)
			break;
	if (i == TALLIES)
		i--;
	if (i == t->nr_tallies)
		t->tally[t->nr_tallies++] = (struct record_cell){
			.start = block, .end = block + RECORD_BLOCK,
			.location = run->location, .why = run->why,
		};
	t->tally[i].pages += (end - start) / t->page_size;
}

static bool is_there(const struct hetmem_run *run)
{
	if (run->location == LOC_ABSENT || HETMEM_LOC_KIND(run->location) == HETMEM_UNMAPPED)
		return false;
	return HETMEM_LOC_KIND(run->location) != HETMEM_UNKNOWN || !(run->why & HETMEM_WHY_ABSENT);
}

static int add_run(const struct hetmem_run *run, void *arg)
{
	struct record_taker *t = arg;
	uint64_t start = run->start, end;

	while (is_there(run) && start < run->end) {
		end = run->end & ~(RECORD_BLOCK - 1);
		if (!(start & (RECORD_BLOCK - 1)) && start < end) {
			const struct record_cell c = {
				.start = start, .end = end, .pages = (end - start) / t->page_size,
				.location = run->location, .why = run->why,
			};

			end_block(t);
			add_cell(t, &t->seen, &c);
		} else {
			end = (start | (RECORD_BLOCK - 1)) + 1;
			if (end > run->end)
				end = run->end;
			add_pages(t, run, start, end);
		}
		start = end;
	}
	return 0;
}

/* Of @c, what is in [@from, @to). Only cells that are all of one kind can be cut. */
static struct record_cell clip(const struct record_taker *t, const struct record_cell *c,
			       uint64_t from, uint64_t to)
{
	struct record_cell part = *c;

	if (part.start < from)
		part.start = from;
	if (part.end > to)
		part.end = to;
	if (part.start != c->start || part.end != c->end)
		part.pages = (part.end - part.start) / t->page_size;
	return part;
}

static bool same_cell(const struct record_cell *a, const struct record_cell *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* Whether a frame may begin with cell @i. */
static bool begins_group(const struct cells *cells, size_t i)
{
	return !i || i >= cells->nr || cells->cell[i].start != cells->cell[i - 1].start;
}

static int add_frame(struct record_file *file, struct record_sample *head,
		     const struct record_cell *cells, size_t nr)
{
	head->nr_cells = nr;
	head->flags &= ~RECORD_SAME;
	if (head->from == head->to)
		head->flags |= RECORD_SAME;
	return record_file_add(file, RECORD_SAMPLE, head, sizeof(*head), cells,
			       nr * sizeof(*cells));
}

/* What differs between @old and @now, which are of [head->from, head->to). */
static int add_difference(struct record_file *file, struct record_sample *head,
			  const struct cells *old, const struct cells *now)
{
	const uint64_t to = head->to;
	size_t first = 0, last = 0, i, n;
	int status = 0;

	while (first < old->nr && first < now->nr && same_cell(&old->cell[first], &now->cell[first]))
		first++;
	if (first == old->nr && first == now->nr) {
		head->to = head->from;
		return add_frame(file, head, NULL, 0);
	}
	while (first && !(begins_group(old, first) && begins_group(now, first)))
		first--;
	while (last < old->nr - first && last < now->nr - first &&
	       same_cell(&old->cell[old->nr - 1 - last], &now->cell[now->nr - 1 - last]))
		last++;
	while (last && !(begins_group(old, old->nr - last) && begins_group(now, now->nr - last)))
		last--;
	if (first)
		head->from = now->cell[first - 1].end;
	head->to = last ? now->cell[now->nr - last].start : to;
	for (i = first; !status; i += n) {
		const uint64_t end = head->to;

		n = now->nr - last - i;
		if (n > FRAME_CELLS) {
			n = FRAME_CELLS;
			while (!begins_group(now, i + n))
				n--;
			head->to = now->cell[i + n].start;
		}
		status = add_frame(file, head, &now->cell[i], n);
		head->from = head->to;
		head->to = end;
		if (i + n == now->nr - last)
			break;
	}
	return status;
}

/* Puts what was seen of [@from, @to) into the file. */
static int put(struct record_taker *t, struct record_file *file, struct record_sample *head)
{
	const uint64_t from = head->from, to = head->to, skipped = file->skipped;
	struct cells old = { 0 }, all = { 0 };
	size_t i;
	int status;

	end_block(t);
	for (i = 0; i < t->known.nr; i++) {
		const struct record_cell *c = &t->known.cell[i];
		struct record_cell part;

		if (c->end > from && c->start < to) {
			part = clip(t, c, from, to);
			add_cell(t, &old, &part);
		}
	}
	status = add_difference(file, head, &old, &t->seen);
	free(old.cell);
	if (status || file->skipped != skipped) {
		t->seen.nr = 0;
		return status;
	}
	for (i = 0; i < t->known.nr && t->known.cell[i].start < from; i++) {
		struct record_cell part = clip(t, &t->known.cell[i], 0, from);

		add_cell(t, &all, &part);
	}
	for (i = 0; i < t->seen.nr; i++)
		add_cell(t, &all, &t->seen.cell[i]);
	for (i = 0; i < t->known.nr; i++) {
		struct record_cell part = t->known.cell[i];

		if (part.end <= to)
			continue;
		part = clip(t, &part, to, UINT64_MAX);
		add_cell(t, &all, &part);
	}
	free(t->known.cell);
	t->known = all;
	t->seen.nr = 0;
	return 0;
}

static void look_at_counters(const struct source *source, double end, struct record_sample *head)
{
	struct hetmem_cmd_stats stats = { .size = sizeof(stats), .flags = HETMEM_STATS_CONTEXT };

	if (source->context < 0)
		return;
	/* Limits and lists of others go by what the module has seen: see to it here, too. */
	hm_kmod_refresh_all(source->context, end * 1e9);
	if (ioctl(source->context, HETMEM_IOC_STATS, &stats))
		return;
	head->flags |= RECORD_COUNTED;
	head->to_device = stats.to_device;
	head->to_host = stats.to_host;
	head->failed = stats.failed;
}

/*
 * Walks from t->at on, until @end of time. *@stopped: where that was, the beginning of a block;
 * 0: all was seen.
 */
static int walk(struct record_taker *t, struct source *source, const struct vmas *vmas,
		double end, uint64_t *stopped)
{
	size_t i;
	int err;

	for (i = 0; i < vmas->nr; i++) {
		const struct vma *vma = &vmas->vma[i];
		uint64_t at = vma->start < t->at ? t->at : vma->start, next;

		/* Reserved addresses have no pages, and can be terabytes. */
		if (!strncmp(vma->perms, "---", 3))
			continue;
		for (; at < vma->end; at = next) {
			*stopped = at & ~(RECORD_BLOCK - 1);
			/* Each look comes further by one block at least. */
			if (*stopped > t->at && now() >= end)
				return 0;
			next = (at & ~(PIECE - 1)) + PIECE;
			if (next > vma->end)
				next = vma->end;
			err = source_walk(source, vma, at, next, add_run, t);
			if (err)
				return err;
		}
	}
	*stopped = 0;
	return 0;
}

/**
 * struct look - at the process, without the file: in a thread of its own
 * @taker, @budget: of record_take()
 * @head, @err: what it found
 */
struct look {
	struct record_taker *taker;
	double budget;
	struct record_sample head;
	int err;
};

static void look(void *arg)
{
	struct look *l = arg;
	struct record_taker *t = l->taker;
	const double start = now();
	struct source source;
	struct vmas vmas;
	uint64_t stopped = 0;

	l->err = vmas_read(&vmas, t->pid);
	if (l->err)
		goto out;
	l->err = source_open(&source, t->pid);
	if (!l->err) {
		t->page_size = source.page_size;
		t->seen.nr = t->nr_tallies = 0;
		l->head.source = source.context >= 0 ? RECORD_MODULE : RECORD_PAGEMAP;
		look_at_counters(&source, start + l->budget / 4, &l->head);
		l->err = walk(t, &source, &vmas, start + l->budget, &stopped);
	}
	source_close(&source);
	if (l->err)
		goto out;
	if (stopped) {
		l->head.to = stopped;
		/* The block in which it stopped is the next look's. */
		if (t->nr_tallies && t->block >= stopped)
			t->nr_tallies = 0;
	}
	t->at = stopped;
	l->head.took = 1e9 * (now() - start);
out:
	vmas_free(&vmas);
}

static void drop_look(void *arg)
{
	struct look *l = arg;

	record_taker_free(l->taker);
	free(l);
}

int record_take(struct record_taker **taker, struct record_file *file, uint64_t time,
		double budget, void (*wait)(void *arg, const struct bounded *call), void *arg,
		int *err)
{
	struct record_taker *t = *taker;
	struct look *l = xcalloc(1, sizeof(*l));
	struct record_sample head;
	struct bounded *call;

	l->taker = t;
	l->budget = budget;
	l->head = (struct record_sample){ .time = time, .from = t->at, .to = 1ULL << 63 };
	call = bounded_begin(look, l);
	if (!call) {
		look(l);
	} else {
		wait(arg, call);
		if (!bounded_end(call, drop_look)) {
			*taker = NULL;
			*err = -ETIMEDOUT;
			return 0;
		}
	}
	*err = l->err;
	head = l->head;
	free(l);
	return *err ? 0 : put(t, file, &head);
}
