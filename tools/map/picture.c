/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Residency as a picture: see picture.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "picture.h"
#include "source.h"
#include "util.h"

/* A range of at most so many blocks is drawn on the line of its name. */
#define INLINE_BLOCKS	16
#define ADDRESS_COLUMNS	15
#define MAX_ROWS	5
#define SCREEN_ROWS	32

#define MARK_MIXED	'%'

char picture_mark(uint32_t location)
{
	uint32_t index = HETMEM_LOC_INDEX(location);

	if (location == LOC_ABSENT)
		return '.';
	if (location == LOC_SWAP_OR_DEVICE)
		return 's';
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		if (!index || index == HETMEM_NODE_ANY)
			return '#';
		return index < 10 ? '0' + index : 'n';
	case HETMEM_DEVICE:
		index &= 0x7fff;	/* HM_KERNEL_DEVICE: no ordinal */
		return index < 26 ? 'A' + index : 'Z';
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		return index < 13 ? 'a' + index : 'm';
	case HETMEM_ZERO:
		return 'o';
	case HETMEM_UNMAPPED:
		return '-';
	default:
		return '?';
	}
}

const char *picture_ink(uint32_t location)
{
	static const char *const devices[] = {
		"\033[1;35m", "\033[1;34m", "\033[1;31m", "\033[1;33m",
	};
	uint32_t index = HETMEM_LOC_INDEX(location);

	if (location == LOC_ABSENT)
		return "\033[2m";
	if (location == LOC_SWAP_OR_DEVICE)
		return "\033[33m";
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		return index && index != HETMEM_NODE_ANY ? "\033[36m" :
		       "\033[32m";
	case HETMEM_DEVICE:
		return devices[index % ARRAY_SIZE(devices)];
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		return devices[3 - index % ARRAY_SIZE(devices)];
	case HETMEM_ZERO:
	case HETMEM_UNMAPPED:
		return "\033[2m";
	default:
		return "\033[31m";
	}
}

/* What does not fit is counted in the last entry rather than lost. */
static void tally_add(struct tally *tally, size_t *nr, size_t max,
		      uint32_t key, uint64_t pages)
{
	size_t i;

	for (i = 0; i < *nr; i++)
		if (tally[i].key == key)
			break;
	if (i == *nr && *nr < max) {
		tally[i].key = key;
		tally[i].pages = 0;
		(*nr)++;
	}
	if (i == max)
		i--;
	tally[i].pages += pages;
}

void totals_add(struct totals *totals, const struct hetmem_run *run)
{
	uint64_t pages = (run->end - run->start) / totals->page_size;

	tally_add(totals->locations, &totals->nr_locations, PICTURE_LOCATIONS,
		  run->location, pages);
	if (run->why)
		tally_add(totals->whys, &totals->nr_whys, PICTURE_WHYS,
			  run->why, pages);
}

static int tally_cmp(const void *a, const void *b)
{
	const struct tally *l = a, *r = b;

	return l->pages < r->pages ? 1 : l->pages > r->pages ? -1 : 0;
}

static void tally_print(const char *header, const struct tally *tally,
			size_t nr, uint64_t page_size,
			char *(*name)(uint32_t, char *, size_t), bool sum)
{
	const struct table_column columns[] = {
		{ header, false }, { "PAGES", true }, { "SIZE", true },
	};
	struct tally *sorted = xcalloc(nr, sizeof(*sorted));
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	uint64_t all = 0;
	char text[256], pages[32];
	size_t i;

	memcpy(sorted, tally, nr * sizeof(*sorted));
	qsort(sorted, nr, sizeof(*sorted), tally_cmp);
	for (i = 0; i <= nr; i++) {
		const char *cells[] = { text, pages, NULL };
		uint64_t n = i < nr ? sorted[i].pages : all;

		if (i == nr && !sum)
			break;
		all += n;
		snprintf(pages, sizeof(pages), "%" PRIu64, n);
		if (i < nr)
			name(sorted[i].key, text, sizeof(text));
		else
			strcpy(text, "total");
		cells[2] = size_text(n * page_size);
		table_row(table, cells);
	}
	free(sorted);
	table_print(table);
}

void totals_print(const struct totals *totals)
{
	tally_print("LOCATION", totals->locations, totals->nr_locations,
		    totals->page_size, location_text, true);
	if (!totals->nr_whys)
		return;
	putchar('\n');
	tally_print("KEPT ON THE HOST BY", totals->whys, totals->nr_whys,
		    totals->page_size, hetmem_why_names, false);
}

static uint64_t blocks(uint64_t size, uint64_t block)
{
	return size / block + !!(size % block);
}

static uint64_t rows(const struct picture *picture, uint64_t size,
		     uint64_t block)
{
	uint64_t nr = blocks(size, block);

	if (nr <= INLINE_BLOCKS)
		return 1;
	return 1 + blocks(nr, picture->row_columns);
}

/* For a range of this size, so that it has no more than its rows. */
static uint64_t block_for(const struct picture *picture, uint64_t size)
{
	uint64_t block = picture->block;

	while (rows(picture, size, block) > MAX_ROWS)
		block *= 2;
	return block;
}

void picture_init(struct picture *picture, int width, bool colour,
		  uint64_t page_size, const uint64_t *sizes, size_t nr)
{
	uint64_t sum, least = 0;
	size_t i;

	memset(picture, 0, sizeof(*picture));
	picture->width = width;
	picture->colour = colour;
	picture->totals.page_size = page_size;
	picture->row_columns = width - ADDRESS_COLUMNS;
	/* So that a row is a round number of bytes. */
	if (picture->row_columns > 16)
		picture->row_columns &= ~15;
	if (picture->row_columns < 1)
		picture->row_columns = 1;
	picture->block = page_size;
	for (;;) {
		sum = 0;
		for (i = 0; i < nr; i++) {
			uint64_t n = rows(picture, sizes[i], picture->block);

			sum += n < MAX_ROWS ? n - 1 : MAX_ROWS - 1;
		}
		if (sum <= SCREEN_ROWS || picture->block >> 50)
			break;
		picture->block *= 2;
	}
	/* Blocks that no range is drawn in would only confuse. */
	for (i = 0; i < nr; i++) {
		uint64_t block = block_for(picture, sizes[i]);

		if (!i || block < least)
			least = block;
	}
	if (nr && least > picture->block)
		picture->block = least;
}

static void set_ink(struct picture *picture, const char *ink)
{
	if (!picture->colour || picture->ink == ink)
		return;
	fputs(ink ? ink : "\033[0m", stdout);
	picture->ink = ink;
}

void picture_begin(struct picture *picture, uint64_t start, uint64_t end,
		   const char *perms, const char *name)
{
	uint64_t block = block_for(picture, end - start);

	picture->range_block = block;
	picture->at = start;
	picture->one_row = blocks(end - start, block) <= INLINE_BLOCKS;
	picture->next = end - start < block ? end : start + block;
	picture->end = end;
	picture->column = 0;
	picture->nr_here = 0;
	printf("%012" PRIx64 " %9s %s ", start, size_text(end - start), perms);
	if (picture->one_row)
		return;
	printf("%s", name);
	if (block != picture->block)
		printf(" (a character here: %s)", size_text(block));
	putchar('\n');
}

static void draw_block(struct picture *picture)
{
	struct tally *most = picture->here;
	uint64_t all = 0;
	char mark;
	size_t i;

	for (i = 0; i < picture->nr_here; i++) {
		all += picture->here[i].pages;
		if (picture->here[i].pages > most->pages)
			most = &picture->here[i];
	}
	mark = picture_mark(most->key);
	if (most->pages < all - all / 8) {
		mark = MARK_MIXED;
		picture->mixed = true;
	}
	if (!picture->one_row && !picture->column)
		printf(" %012" PRIx64 "  ", picture->at);
	set_ink(picture, picture_ink(most->key));
	putchar(mark);
	picture->nr_here = 0;
	picture->column++;
	if (!picture->one_row && picture->column == picture->row_columns) {
		set_ink(picture, NULL);
		putchar('\n');
		picture->column = 0;
	}
}

int picture_run(const struct hetmem_run *run, void *arg)
{
	struct picture *picture = arg;
	uint64_t start = run->start;

	totals_add(&picture->totals, run);
	while (start < run->end) {
		uint64_t end = run->end < picture->next ? run->end :
			       picture->next;

		tally_add(picture->here, &picture->nr_here, PICTURE_LOCATIONS,
			  run->location, end - start);
		start = end;
		if (start < picture->next)
			break;
		draw_block(picture);
		if (picture->next >= picture->end)
			break;
		picture->at = picture->next;
		picture->next += picture->range_block;
		if (picture->next > picture->end)
			picture->next = picture->end;
	}
	return 0;
}

void picture_end(struct picture *picture, const char *name)
{
	set_ink(picture, NULL);
	if (picture->one_row)
		printf("%*s %s\n", INLINE_BLOCKS - picture->column, "", name);
	else if (picture->column)
		putchar('\n');
}

void picture_legend(const struct picture *picture)
{
	const struct totals *totals = &picture->totals;
	bool seen[256] = { false };
	char text[64];
	size_t i;

	printf("One character: %s.", size_text(picture->block));
	for (i = 0; i < totals->nr_locations; i++) {
		uint32_t location = totals->locations[i].key;
		unsigned char mark = picture_mark(location);

		if (seen[mark])
			continue;
		seen[mark] = true;
		printf("  %s%c%s %s", picture->colour ? picture_ink(location) : "",
		       mark, picture->colour ? "\033[0m" : "",
		       location_text(location, text, sizeof(text)));
	}
	if (picture->mixed)
		printf("  %c several", MARK_MIXED);
	putchar('\n');
}
