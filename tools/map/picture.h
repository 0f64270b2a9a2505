/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Residency as a picture: one character a block of memory, by location, and
 * the totals. Runs come in order of address, through picture_run().
 */
#ifndef HETMEM_TOOLS_PICTURE_H
#define HETMEM_TOOLS_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/hetmem.h>

#define PICTURE_LOCATIONS	64
#define PICTURE_WHYS		64

/* Pages by something: a location, or a set of HETMEM_WHY_*. */
struct tally {
	uint32_t key;
	uint64_t pages;
};

struct totals {
	uint64_t page_size;
	size_t nr_locations;
	size_t nr_whys;
	struct tally locations[PICTURE_LOCATIONS];
	struct tally whys[PICTURE_WHYS];
};

void totals_add(struct totals *totals, const struct hetmem_run *run);

/* Tables of pages and bytes by location and by why. */
void totals_print(const struct totals *totals);

/**
 * struct picture - one picture of several ranges, which have a legend and
 *	totals in common
 * @width: columns it may use
 * @colour: write colours
 * @block: bytes that a character stands for
 * @totals: of everything drawn
 * The rest is the drawing's own.
 */
struct picture {
	int width;
	bool colour;
	uint64_t block;
	struct totals totals;

	uint64_t range_block;
	uint64_t at;			/* where the current block starts */
	uint64_t next;			/* ... and ends */
	uint64_t end;
	int column;
	int row_columns;
	bool one_row;
	bool mixed;			/* some block was */
	const char *ink;
	size_t nr_here;
	struct tally here[PICTURE_LOCATIONS];	/* in the current block */
};

/*
 * Chooses a block for ranges of these sizes, so that they fill about a
 * screen; a range that would take too many rows of it alone gets larger
 * blocks, which picture_begin() says.
 */
void picture_init(struct picture *picture, int width, bool colour,
		  uint64_t page_size, const uint64_t *sizes, size_t nr);

/* Begins the picture of [@start, @end), with what is written beside it. */
void picture_begin(struct picture *picture, uint64_t start, uint64_t end,
		   const char *perms, const char *name);

/* Draws a run, a run_fn of source_walk(); @arg is the picture. */
int picture_run(const struct hetmem_run *run, void *arg);

/* Ends the range; @name as for picture_begin(). */
void picture_end(struct picture *picture, const char *name);

/* The character of a location, and the escape sequence of its colour. */
char picture_mark(uint32_t location);
const char *picture_ink(uint32_t location);

/* What the characters mean. */
void picture_legend(const struct picture *picture);

#endif
