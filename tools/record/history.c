/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What a recording tells, see report.h. Three passes: which addresses had pages and how long
 * it took; how much work blocks of a size make, so that blocks are chosen that bound it; and
 * what happened to each block.
 */
#include <stdlib.h>
#include <string.h>

#include <linux/hetmem.h>

#include "map/source.h"
#include "report.h"
#include "util.h"

/* Updates of blocks in the last pass. */
#define MOST_WORK	(1ULL << 26)
/* Of a block's pages at one place, so that it is there: less than that is on the way. */
#define MOST_OF(pages)	((pages) - (pages) / 4)

bool report_is_device(uint32_t location)
{
	const uint32_t kind = HETMEM_LOC_KIND(location);

	return kind == HETMEM_DEVICE || kind == HETMEM_FOREIGN || kind == HETMEM_COHERENT;
}

static bool is_host(uint32_t location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_HOST;
}

void grid_init(struct grid *g, unsigned int rows, unsigned int columns)
{
	int way;

	*g = (struct grid){ .rows = rows, .columns = columns };
	g->sum = xcalloc((size_t)rows * columns * HISTORY_LOCATIONS, sizeof(*g->sum));
	for (way = 0; way < NR_WAYS; way++)
		g->moved[way] = xcalloc(columns, sizeof(**g->moved));
	g->events = xcalloc((size_t)columns * GRID_EVENTS, sizeof(*g->events));
}

void grid_free(struct grid *g)
{
	int way;

	free(g->sum);
	for (way = 0; way < NR_WAYS; way++)
		free(g->moved[way]);
	free(g->events);
}

static double *cell_of(const struct grid *g, unsigned int row, unsigned int column)
{
	return g->sum + ((size_t)row * g->columns + column) * HISTORY_LOCATIONS;
}

int grid_cell(const struct grid *g, unsigned int row, unsigned int column)
{
	const double *sum = cell_of(g, row, column);
	double all = 0;
	int i, most = 0;

	for (i = 0; i < HISTORY_LOCATIONS; i++) {
		all += sum[i];
		if (sum[i] > sum[most])
			most = i;
	}
	if (all <= 0)
		return CELL_EMPTY;
	return sum[most] < all - all / 8 ? CELL_MIXED : most;
}

double grid_bytes(const struct history *h, const struct grid *g, unsigned int row,
		  unsigned int column, unsigned int location)
{
	return h->seconds > 0 ? cell_of(g, row, column)[location] * g->columns / h->seconds : 0;
}

uint64_t grid_most(const struct grid *g, int way)
{
	uint64_t most = 1;
	unsigned int c;

	for (c = 0; c < g->columns; c++)
		if (g->moved[way][c] > most)
			most = g->moved[way][c];
	return most;
}

/* Which addresses. */

static int by_start(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* Rounds all to h->block, and puts together what touches. */
static void merge_extents(struct history *h)
{
	const uint64_t mask = h->block - 1;
	size_t i, nr = 0;

	qsort(h->extents, h->nr_extents, sizeof(*h->extents), by_start);
	for (i = 0; i < h->nr_extents; i++) {
		struct extent e = h->extents[i];

		e.start &= ~mask;
		e.end = (e.end + mask) & ~mask;
		if (nr && e.start <= h->extents[nr - 1].end) {
			if (e.end > h->extents[nr - 1].end)
				h->extents[nr - 1].end = e.end;
			continue;
		}
		h->extents[nr++] = e;
	}
	h->nr_extents = nr;
	h->nr_blocks = 0;
	for (i = 0; i < nr; i++) {
		h->extents[i].first = h->nr_blocks;
		h->nr_blocks += (h->extents[i].end - h->extents[i].start) / h->block;
	}
}

static void add_extent(struct history *h, uint64_t start, uint64_t end)
{
	struct extent *last = h->nr_extents ? &h->extents[h->nr_extents - 1] : NULL;

	if (last && start >= last->start && start <= last->end) {
		if (end > last->end)
			last->end = end;
		return;
	}
	if (h->nr_extents == HISTORY_EXTENTS) {
		merge_extents(h);
		while (h->nr_extents > HISTORY_EXTENTS / 2) {
			h->block *= 2;
			merge_extents(h);
		}
	}
	h->extents[h->nr_extents++] = (struct extent){ .start = start, .end = end };
}

static void last_until(struct history *h, uint64_t ns)
{
	if (ns / 1e9 > h->seconds)
		h->seconds = ns / 1e9;
}

static uint64_t time_of(const struct reader *r)
{
	uint64_t time = 0;

	/* All types begin with it; those that are not known may not. */
	if (r->frame.type >= RECORD_PROCESS && r->frame.type <= RECORD_END)
		memcpy(&time, r->payload, sizeof(time));
	return time;
}

static void first_pass(struct history *h)
{
	struct reader *r = h->reader;
	const struct record_sample *s = (void *)r->payload;
	const struct record_cell *c = reader_cells(r);
	uint32_t i;

	h->block = RECORD_BLOCK;
	while (h->block < r->header.page_size)
		h->block *= 2;
	while (reader_next(r)) {
		last_until(h, time_of(r));
		if (r->frame.type != RECORD_SAMPLE)
			continue;
		h->samples++;
		if (s->took < 1000000000000)
			last_until(h, s->took > UINT64_MAX - s->time ? s->time : s->time + s->took);
		h->module |= s->source == RECORD_MODULE;
		h->pagemap |= s->source == RECORD_PAGEMAP;
		h->counted |= !!(s->flags & RECORD_COUNTED);
		for (i = 0; i < s->nr_cells; i++) {
			add_extent(h, c[i].start, c[i].end);
			h->foreign |= report_is_device(c[i].location) &&
				HETMEM_LOC_KIND(c[i].location) != HETMEM_DEVICE;
		}
	}
	/* What another process adds meanwhile is not read. */
	r->limit = r->at;
	merge_extents(h);
}

/* The first extent that ends behind @address. */
static size_t extent_at(const struct history *h, uint64_t address)
{
	size_t low = 0, high = h->nr_extents;

	while (low < high) {
		const size_t middle = (low + high) / 2;

		if (h->extents[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Number of the first block at or behind @address; nr_blocks: none. */
static uint64_t block_at(const struct history *h, uint64_t address)
{
	const size_t i = extent_at(h, address);
	const struct extent *e = &h->extents[i];

	if (i == h->nr_extents)
		return h->nr_blocks;
	return e->first + (address > e->start ? (address - e->start) / h->block : 0);
}

static uint64_t address_of(const struct history *h, uint64_t block)
{
	size_t low = 0, high = h->nr_extents;

	while (high - low > 1) {
		const size_t middle = (low + high) / 2;

		if (h->extents[middle].first <= block)
			low = middle;
		else
			high = middle;
	}
	return h->extents[low].start + (block - h->extents[low].first) * h->block;
}

/* Of [@from, @to): the blocks [*@first, *@end). */
static void blocks_of(const struct history *h, uint64_t from, uint64_t to, uint64_t *first,
		      uint64_t *end)
{
	*first = block_at(h, from);
	*end = *first;
	if (from >= to)
		return;
	*end = block_at(h, to - 1);
	/* to - 1 may be before the block that was found. */
	if (*end < h->nr_blocks && address_of(h, *end) < to)
		++*end;
}

static void second_pass(struct history *h)
{
	struct reader *r = h->reader;
	const struct record_sample *s = (void *)r->payload;
	uint64_t work, first, end;

	do {
		while (h->nr_blocks > HISTORY_BLOCKS) {
			h->block *= 2;
			merge_extents(h);
		}
		work = 0;
		reader_rewind(r);
		while (r->at < r->limit && reader_next(r) && work <= MOST_WORK) {
			if (r->frame.type != RECORD_SAMPLE || s->flags & RECORD_SAME)
				continue;
			blocks_of(h, s->from, s->to, &first, &end);
			work += end - first;
		}
		if (work > MOST_WORK) {
			h->block *= 4;
			merge_extents(h);
		}
	} while (work > MOST_WORK && h->nr_blocks > 64);
	h->blocks = xcalloc(h->nr_blocks, sizeof(*h->blocks));
}

/* What happened. */

/* The state of the last pass. @since: of each row of each grid, up to when it is drawn. */
struct pass {
	struct history *h;
	struct grid **grids;
	size_t nr_grids;
	double **since;
	/* Bytes of each row of each grid, by location. */
	uint64_t **rows;
	bool any;
	uint64_t to_device, to_host;
};

static unsigned int column_at(const struct history *h, const struct grid *g, double time)
{
	const double at = h->seconds > 0 ? time / h->seconds * g->columns : 0;

	return at < 0 ? 0 : at < g->columns ? at : g->columns - 1;
}

static unsigned int row_of(const struct history *h, const struct grid *g, uint64_t block)
{
	return block * g->rows / h->nr_blocks;
}

uint64_t history_address(const struct history *h, const struct grid *g, unsigned int row)
{
	/* The first block with row_of() @row. */
	if (row < g->rows)
		return address_of(h, (row * h->nr_blocks + g->rows - 1) / g->rows);
	return h->nr_extents ? h->extents[h->nr_extents - 1].end : 0;
}

/* Draws a row up to @time. */
static void draw_row(struct pass *p, size_t i, unsigned int row, double time)
{
	const struct history *h = p->h;
	const struct grid *g = p->grids[i];
	const uint64_t *bytes = p->rows[i] + (size_t)row * HISTORY_LOCATIONS;
	const double width = h->seconds / g->columns;
	double from = p->since[i][row];
	unsigned int c, k;

	if (time <= from)
		return;
	p->since[i][row] = time;
	for (c = column_at(h, g, from); c < g->columns && from < time; c++) {
		double to = (c + 1) * width;

		if (to > time || c + 1 == g->columns)
			to = time;
		for (k = 0; k < h->nr_locations && to > from; k++)
			cell_of(g, row, c)[k] += bytes[k] * (to - from);
		from = to > from ? to : from;
	}
}

static void sum_end(struct history_sum *s, double time)
{
	s->integral += s->bytes * (time > s->since ? time - s->since : 0);
	if (s->bytes > s->peak)
		s->peak = s->bytes;
}

static void sum_add(struct history_sum *s, double time, uint64_t less, uint64_t more)
{
	if (time > s->since) {
		/* What was there for a time, not what one frame took away and gave back. */
		if (s->bytes > s->peak)
			s->peak = s->bytes;
		s->integral += s->bytes * (time - s->since);
		s->since = time;
	}
	s->bytes += more - less;
}

static unsigned int location_number(struct history *h, uint32_t location)
{
	unsigned int i;

	for (i = 0; i < h->nr_locations; i++)
		if (h->locations[i] == location)
			return i;
	if (i == HISTORY_LOCATIONS)
		return i - 1;
	h->locations[h->nr_locations++] = location;
	return i;
}

/* Takes what is in the block out of all sums, or puts it in. */
static void count_block(struct pass *p, uint64_t number, const struct history_block *b,
			double time, bool in)
{
	struct history *h = p->h;
	const uint64_t page = h->reader->header.page_size;
	unsigned int i, k, bit;

	for (k = 0; k < b->nr; k++) {
		const uint64_t bytes = b->pages[k] * page;

		for (i = 0; i < p->nr_grids; i++) {
			const unsigned int row = row_of(h, p->grids[i], number);
			uint64_t *sum = p->rows[i] + (size_t)row * HISTORY_LOCATIONS + b->part[k];

			draw_row(p, i, row, time);
			*sum += in ? bytes : -bytes;
		}
		sum_add(&h->sums[b->part[k]], time, in ? 0 : bytes, in ? bytes : 0);
		for (bit = 0; bit < HISTORY_WHYS && is_host(h->locations[b->part[k]]); bit++)
			if (b->whys[k] & 1U << bit)
				sum_add(&h->whys[bit], time, in ? 0 : bytes, in ? bytes : 0);
	}
}

static void add_part(struct history_block *b, unsigned int location, uint32_t why, uint64_t pages)
{
	unsigned int k;

	for (k = 0; k < b->nr; k++)
		if (b->part[k] == location && b->whys[k] == why)
			break;
	if (k == HISTORY_PARTS)
		k--;
	if (k == b->nr) {
		b->nr++;
		b->part[k] = location;
		b->whys[k] = why;
		b->pages[k] = 0;
	}
	/* Only blocks of 16 TiB and more have more pages. */
	b->pages[k] = pages > UINT32_MAX - b->pages[k] ? UINT32_MAX : b->pages[k] + pages;
}

static void add_moved(struct pass *p, int way, double time, uint64_t bytes)
{
	size_t i;

	p->h->moved[way] += bytes;
	for (i = 0; i < p->nr_grids; i++)
		p->grids[i]->moved[way][column_at(p->h, p->grids[i], time)] += bytes;
}

static uint64_t less_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Where a location is for the timeline: 0 the host, 1 away from it, 2 elsewhere. */
static int place_of(const struct history *h, uint32_t location)
{
	if (is_host(location))
		return 0;
	if (report_is_device(location) || (location == LOC_SWAP_OR_DEVICE && !h->module))
		return 1;
	return 2;
}

/* The pages that one location of a block has more are from those that have less. */
static void estimate(struct pass *p, const struct history_block *was,
		     const struct history_block *is, double time)
{
	struct history *h = p->h;
	const uint64_t page = h->reader->header.page_size;
	int64_t change[HISTORY_LOCATIONS] = { 0 };
	uint64_t more[3] = { 0 }, less[3] = { 0 }, bytes;
	unsigned int k;
	bool counted = h->counted && !h->foreign;

	for (k = 0; k < was->nr; k++)
		change[was->part[k]] -= was->pages[k];
	for (k = 0; k < is->nr; k++)
		change[is->part[k]] += is->pages[k];
	for (k = 0; k < h->nr_locations; k++) {
		const int place = place_of(h, h->locations[k]);

		if (change[k] > 0)
			more[place] += change[k];
		else
			less[place] -= change[k];
	}
	bytes = less_of(more[1], less[0]);
	if (!counted)
		add_moved(p, TO_DEVICE, time, bytes * page);
	less[0] -= bytes;
	bytes = less_of(more[0], less[1]);
	if (!counted)
		add_moved(p, TO_HOST, time, bytes * page);
	more[0] -= bytes;
	add_moved(p, BETWEEN, time, less_of(more[0], less[0]) * page);
}

/* Which side a block is on now. */
static void find_side(struct history *h, struct history_block *b)
{
	uint64_t pages[HISTORY_LOCATIONS] = { 0 }, all = 0;
	unsigned int k, most = 0, kind;

	for (k = 0; k < b->nr; k++) {
		pages[b->part[k]] += b->pages[k];
		all += b->pages[k];
	}
	for (k = 0; k < h->nr_locations; k++)
		if (pages[k] > pages[most])
			most = k;
	if (!all)
		b->side = 0;
	if (!all || pages[most] < MOST_OF(all))
		return;
	kind = HETMEM_LOC_KIND(h->locations[most]);
	/* Pages of zeroes become others, and nothing moves. */
	if (kind == HETMEM_ZERO || kind == HETMEM_UNKNOWN || kind == HETMEM_UNMAPPED)
		return;
	/* Where the module is, pages look so while they are on their way. */
	if (h->module && h->locations[most] == LOC_SWAP_OR_DEVICE)
		return;
	if (b->side && b->side != most + 1)
		b->moves++;
	b->side = most + 1;
}

/* Adds the part of @c that is in block @b to @now. */
static void add_cell(struct history *h, struct history_block *now, const struct record_cell *c,
		     uint64_t start)
{
	const uint64_t page = h->reader->header.page_size;
	const uint64_t from = c->start > start ? c->start : start;
	const uint64_t to = less_of(c->end, start + h->block);
	uint64_t pages = (to - from) / page;

	if (pages != (c->end - c->start) / page)
		pages = (double)pages * c->pages / ((c->end - c->start) / page);
	else
		pages = c->pages;
	if (pages)
		add_part(now, location_number(h, c->location), c->why, pages);
}

static void take_sample(struct pass *p, const struct record_sample *s, double time)
{
	struct history *h = p->h;
	const struct record_cell *c = reader_cells(h->reader);
	uint64_t n, first, end, start;
	size_t extent = 0;
	uint32_t i = 0, k;

	blocks_of(h, s->from, s->to, &first, &end);
	if (first < end)
		extent = extent_at(h, address_of(h, first));
	for (n = first; n < end; n++) {
		struct history_block *b = &h->blocks[n], now = { .side = b->side, .moves = b->moves };

		while (extent + 1 < h->nr_extents && h->extents[extent + 1].first <= n)
			extent++;
		start = h->extents[extent].start + (n - h->extents[extent].first) * h->block;
		while (i < s->nr_cells && c[i].end <= start)
			i++;
		for (k = i; k < s->nr_cells && c[k].start < start + h->block; k++)
			add_cell(h, &now, &c[k], start);
		if (now.nr == b->nr && !memcmp(now.pages, b->pages, sizeof(now.pages)) &&
		    !memcmp(now.part, b->part, sizeof(now.part)) &&
		    !memcmp(now.whys, b->whys, sizeof(now.whys)))
			continue;
		estimate(p, b, &now, time);
		count_block(p, n, b, time, false);
		find_side(h, &now);
		*b = now;
		count_block(p, n, b, time, true);
	}
}

static void take_counters(struct pass *p, const struct record_sample *s, double time)
{
	const uint64_t page = p->h->reader->header.page_size;

	if (!(s->flags & RECORD_COUNTED))
		return;
	if (p->any && !p->h->foreign && s->to_device > p->to_device)
		add_moved(p, TO_DEVICE, time, (s->to_device - p->to_device) * page);
	if (p->any && !p->h->foreign && s->to_host > p->to_host)
		add_moved(p, TO_HOST, time, (s->to_host - p->to_host) * page);
	p->any = true;
	p->to_device = s->to_device;
	p->to_host = s->to_host;
}

static void take_event(struct pass *p, const struct record_event *e, double time)
{
	struct history *h = p->h;
	unsigned int bit;
	size_t i;

	if (!e->what || e->what >= GRID_EVENTS)
		return;
	h->events[e->what]++;
	for (i = 0; i < p->nr_grids; i++)
		p->grids[i]->events[column_at(h, p->grids[i], time) * GRID_EVENTS + e->what]++;
	for (bit = 0; bit < HISTORY_WHYS && e->what == RECORD_MIGRATE; bit++)
		if (e->why & 1U << bit && e->not_moved < UINT64_MAX - h->failed[bit])
			h->failed[bit] += e->not_moved;
}

/* Another program: all that was there is gone. */
static void take_exec(struct pass *p, double time)
{
	struct history *h = p->h;
	uint64_t n;

	for (n = 0; n < h->nr_blocks; n++) {
		count_block(p, n, &h->blocks[n], time, false);
		h->blocks[n] = (struct history_block){ .moves = h->blocks[n].moves };
	}
	p->any = false;
}

static void take_frame(struct pass *p)
{
	struct history *h = p->h;
	const struct reader *r = h->reader;
	const void *payload = r->payload;
	const struct record_process *process = payload;
	const struct record_sample *s = payload;
	const double time = time_of(r) / 1e9;

	switch (r->frame.type) {
	case RECORD_PROCESS:
		escape(h->name, sizeof(h->name), process->name);
		/* More would be a liar's, and take too long. */
		if (process->what == RECORD_EXEC && h->execs++ < 4096)
			take_exec(p, time);
		break;
	case RECORD_SAMPLE:
		take_counters(p, s, time);
		if (!(s->flags & RECORD_SAME))
			take_sample(p, s, time);
		break;
	case RECORD_EVENT:
		take_event(p, payload, time);
		break;
	case RECORD_END:
		memcpy(&h->end, payload, sizeof(h->end));
		h->ended = true;
		break;
	default:
		break;
	}
}

static void third_pass(struct history *h, struct grid **grids, size_t nr,
		       const struct history_watch *watch)
{
	struct pass p = { .h = h, .grids = grids, .nr_grids = nr };
	struct reader *r = h->reader;
	unsigned int row;
	size_t i;

	p.since = xcalloc(nr, sizeof(*p.since));
	p.rows = xcalloc(nr, sizeof(*p.rows));
	for (i = 0; i < nr; i++) {
		if (grids[i]->rows > h->nr_blocks)
			grids[i]->rows = h->nr_blocks;
		p.since[i] = xcalloc(grids[i]->rows, sizeof(**p.since));
		p.rows[i] = xcalloc((size_t)grids[i]->rows * HISTORY_LOCATIONS, sizeof(**p.rows));
	}
	reader_rewind(r);
	while (r->at < r->limit && reader_next(r)) {
		take_frame(&p);
		if (watch)
			watch->frame(watch->arg, h);
	}
	for (i = 0; i < nr; i++) {
		for (row = 0; row < grids[i]->rows; row++)
			draw_row(&p, i, row, h->seconds);
		free(p.since[i]);
		free(p.rows[i]);
	}
	free(p.since);
	free(p.rows);
	for (i = 0; i < HISTORY_LOCATIONS; i++)
		sum_end(&h->sums[i], h->seconds);
	for (i = 0; i < HISTORY_WHYS; i++)
		sum_end(&h->whys[i], h->seconds);
}

/* Findings. */

/* Keeps the HISTORY_FOUND best, the best one first. */
static void keep(struct found *list, const struct found *f, bool (*better)(const struct found *,
									  const struct found *))
{
	int i;

	if (!better(f, &list[HISTORY_FOUND - 1]))
		return;
	for (i = HISTORY_FOUND - 1; i && better(f, &list[i - 1]); i--)
		list[i] = list[i - 1];
	list[i] = *f;
}

static bool moved_more(const struct found *a, const struct found *b)
{
	return a->moves != b->moves ? a->moves > b->moves : a->bytes > b->bytes;
}

static bool has_more(const struct found *a, const struct found *b)
{
	return a->bytes > b->bytes;
}

/* Of a block, for the findings: 0 none, 1 bounced, 2 stayed on the host, 3 on a device. */
static int kind_of(const struct history *h, const struct history_block *b)
{
	if (b->moves > 1)
		return 1;
	if (b->moves || !b->side)
		return 0;
	if (is_host(h->locations[b->side - 1]))
		return 2;
	return report_is_device(h->locations[b->side - 1]) ? 3 : 0;
}

static uint64_t bytes_of(const struct history *h, const struct history_block *b)
{
	uint64_t pages = 0;
	unsigned int k;

	for (k = 0; k < b->nr; k++)
		pages += b->pages[k];
	return pages * h->reader->header.page_size;
}

static void keep_found(struct history *h, const struct found *f, int kind)
{
	if (kind == 1)
		keep(h->bounced, f, moved_more);
	else if (kind > 1)
		keep(h->stayed[kind - 2], f, has_more);
}

/* Neighbours of one kind, and with as many moves, are one range. */
static void find(struct history *h)
{
	struct found f = { 0 };
	int kind, last = 0;
	uint64_t n;

	for (n = 0; n < h->nr_blocks; n++) {
		const struct history_block *b = &h->blocks[n];
		const uint64_t start = address_of(h, n), bytes = bytes_of(h, b);
		const uint32_t location = b->side ? h->locations[b->side - 1] : 0;

		kind = kind_of(h, b);
		if (kind == 1)
			h->nr_bounced++;
		else if (kind)
			h->stayed_bytes[kind - 2] += bytes;
		if (kind == last && f.end == start && f.moves == b->moves &&
		    (kind == 1 || f.location == location)) {
			f.end += h->block;
			f.bytes += bytes;
			continue;
		}
		keep_found(h, &f, last);
		f = (struct found){ start, start + h->block, bytes, b->moves, location };
		last = kind;
	}
	keep_found(h, &f, last);
}

int history_read(struct history *h, struct reader *reader, struct grid **grids, size_t nr,
		 const struct history_watch *watch)
{
	const char *damage;

	memset(h, 0, sizeof(*h));
	h->reader = reader;
	h->extents = xcalloc(HISTORY_EXTENTS, sizeof(*h->extents));
	first_pass(h);
	if (reader->damage && !h->samples)
		return complain(EXIT_USAGE, reader->command, "'%s' is %s at byte %llu, before the first sample; record again",
				reader->path, reader->damage, (unsigned long long)reader->at);
	if (!h->samples || !h->nr_blocks)
		return complain(EXIT_USAGE, reader->command, "'%s' has no sample of memory: the process ended too early; record again with a smaller --interval",
				reader->path);
	damage = reader->damage;
	second_pass(h);
	third_pass(h, grids, nr, watch);
	find(h);
	reader->damage = damage;
	return 0;
}

void history_free(struct history *h)
{
	free(h->extents);
	free(h->blocks);
}
