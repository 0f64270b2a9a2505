/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Between the parts of `hetmem report`. A file is read in passes, frame by frame. Whatever it
 * has, memory is bounded by the constants below, and time by the file's size, which is
 * RECORD_MOST at most.
 */
#ifndef HETMEM_TOOLS_REPORT_H
#define HETMEM_TOOLS_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "format.h"

/**
 * struct reader - a recording that is read
 * @command: complaints begin with its name
 * @limit: bytes that are read, decided by the first pass
 * @at: where the next frame begins
 * @damage: why reading ends at @at before the file does, or NULL
 */
struct reader {
	const char *command, *path;
	int fd;
	uint64_t size, limit, at;
	uint32_t sequence;
	const char *damage;
	struct record_header header;
	struct record_frame frame;
	char *payload;
};

/* 0, or an exit status after a complaint. */
int reader_open(struct reader *reader, const char *command, const char *path);
void reader_close(struct reader *reader);
/* Back to the first frame. */
void reader_rewind(struct reader *reader);
/*
 * The next frame, complete and checked, in @frame and @payload: its type's struct is there in
 * whole, and cells are in order. Times can go back. false: there is none.
 */
bool reader_next(struct reader *reader);

/* Of a frame's payload. */
static inline const struct record_cell *reader_cells(const struct reader *reader)
{
	return (const struct record_cell *)(reader->payload + sizeof(struct record_sample));
}

#define HISTORY_LOCATIONS	12	/* the last one stands for all others */
#define HISTORY_EXTENTS		16384
#define HISTORY_BLOCKS		(1U << 18)
#define HISTORY_PARTS		4	/* kinds of pages of a block; the last one has the rest */
#define HISTORY_WHYS		17	/* bits of HETMEM_WHY_* */
#define HISTORY_FOUND		3	/* blocks or ranges of a finding */

/* What moves, on the timeline. */
enum { TO_DEVICE, TO_HOST, BETWEEN, NR_WAYS };

/**
 * struct grid - a picture: addresses are rows, time is columns
 * @sum: bytes times seconds, of each row, column and location
 * @moved: bytes of each column, each way
 * @events: of each column, by enum record_event_what
 */
struct grid {
	unsigned int rows, columns;
	double *sum;
	uint64_t *moved[NR_WAYS];
	uint32_t *events;
};

#define GRID_EVENTS	(RECORD_COMPLETE + 1)

/* Addresses that had pages. @first: number of the first block in it. */
struct extent {
	uint64_t start, end;
	uint64_t first;
};

/**
 * struct history_block - a block of addresses
 * @nr, @pages, @part: what is there, in struct history_part's numbers
 * @side: location + 1 that most of it has, 0: none
 * @moves: how often that changed
 */
struct history_block {
	uint32_t pages[HISTORY_PARTS];
	uint32_t whys[HISTORY_PARTS];
	uint8_t part[HISTORY_PARTS];
	uint8_t nr, side;
	uint32_t moves;
};

/* Neighbouring blocks of a finding. @moves: of the one with most. */
struct found {
	uint64_t start, end, bytes;
	uint32_t moves, location;
};

/**
 * struct history - what a recording tells
 * @seconds: from its begin to the last frame
 * @name: the program's, the last one's
 * @execs: how often it began another program
 * @locations: that were seen; with the bytes now and at most, and bytes times seconds, of each
 * @whys: the same of each bit of why, on the host
 * @failed: pages that MIGRATE could not move, by bit of why
 * @bounced: blocks that moved most; @stayed[0] on the host, @stayed[1] on a device: the
 *	largest ranges that never moved, and the @stayed_bytes of all
 */
struct history {
	struct reader *reader;
	double seconds;
	char name[4 * 64];
	uint64_t samples, execs;
	bool module, pagemap, counted, foreign, ended;
	struct record_end end;
	uint64_t block, nr_blocks;
	struct extent *extents;
	size_t nr_extents;
	struct history_block *blocks;
	unsigned int nr_locations;
	uint32_t locations[HISTORY_LOCATIONS];
	struct history_sum {
		uint64_t bytes, peak;
		double since, integral;
	} sums[HISTORY_LOCATIONS], whys[HISTORY_WHYS];
	uint64_t failed[HISTORY_WHYS];
	uint64_t events[GRID_EVENTS];
	uint64_t moved[NR_WAYS];
	uint64_t nr_bounced;
	struct found bounced[HISTORY_FOUND];
	uint64_t stayed_bytes[2];
	struct found stayed[2][HISTORY_FOUND];
};

/* Calls @frame with @arg after each frame of the last pass: sums and moves are those until it. */
struct history_watch {
	void (*frame)(void *arg, const struct history *history);
	void *arg;
};

/*
 * Reads all of it. @grids: with their most rows and columns; rows that there are too few
 * blocks for are taken away. @watch: or NULL. 0, or an exit status after a complaint.
 */
int history_read(struct history *history, struct reader *reader, struct grid **grids, size_t nr,
		 const struct history_watch *watch);
void history_free(struct history *history);
void grid_init(struct grid *grid, unsigned int rows, unsigned int columns);
void grid_free(struct grid *grid);

/* The first address of a row; of row @rows, the last one's end. */
uint64_t history_address(const struct history *history, const struct grid *grid,
			 unsigned int row);

/* What one cell of the picture shows: a location's number, or one of these. */
enum { CELL_MIXED = -1, CELL_EMPTY = -2 };
int grid_cell(const struct grid *grid, unsigned int row, unsigned int column);

/* The bytes of a location in a cell, on average over its time. */
double grid_bytes(const struct history *history, const struct grid *grid, unsigned int row,
		  unsigned int column, unsigned int location);

/* Of the timeline: the largest of all columns, 1 at least. */
uint64_t grid_most(const struct grid *grid, int way);

/* Names and advice, for text, JSON, SVG and HTML. */
const char *report_way(const struct history *history, int way);
bool report_is_device(uint32_t location);
/* What to do about bit @bit of why. */
const char *report_remedy(unsigned int bit);
/* What to type or to call; malloc'd. */
char *report_advice_bounced(const struct history *history);
char *report_advice_stayed(const struct history *history, int device);
/* Bits of why by what they kept from moving, the most first; returns how many kept anything. */
unsigned int report_whys(const struct history *history, unsigned int bits[HISTORY_WHYS]);
/* How the recording ended. */
const char *report_reason(const struct history *history);
/* What a reader must know: an incomplete file, what was left out. malloc'd, or NULL. */
char *report_note(const struct history *history);

void report_svg(FILE *f, const struct history *history, const struct grid *grid);
void report_html(FILE *f, const struct history *history, const struct grid *grid);
int report_json(const struct history *history, const struct grid *grid);
/* Reads a recording that is open, and writes all of it. 0, or an exit status. */
int report_chrome(FILE *f, struct reader *reader);

#endif
