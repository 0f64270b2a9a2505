/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The file of `hetmem record`, as Documentation/record.md describes it: a header, then frames.
 * All numbers are little-endian. A frame is at a multiple of 8 bytes and is never changed once
 * it is written. A reader skips frames of unknown types and stops at the first damaged one.
 * Structs grow at the end: a payload longer than a struct is read as far as it is known.
 */
#ifndef HETMEM_TOOLS_RECORD_FORMAT_H
#define HETMEM_TOOLS_RECORD_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define RECORD_MAGIC	"HETMEMRC"
#define RECORD_VERSION	1

/* What a reader accepts of a file, and the most that --max may be. */
#define RECORD_MOST	(1ULL << 30)
/* Of a payload. */
#define RECORD_PAYLOAD	(1U << 20)
/* Cells do not cross multiples of it, unless all of the cell is at one location. */
#define RECORD_BLOCK	(2ULL << 20)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is written as memory is");

/**
 * struct record_header - the beginning of the file
 * @magic: RECORD_MAGIC, without a NUL
 * @version: RECORD_VERSION
 * @size: of the header; the first frame follows
 * @page_size: bytes
 * @pid: the process
 * @realtime: CLOCK_REALTIME in ns when the recording began
 * @interval_ms: between two samples
 * @max: bytes that the file may have
 * @crc: CRC-32 of all bytes before it
 */
struct record_header {
	char magic[8];
	uint32_t version;
	uint32_t size;
	uint32_t page_size;
	uint32_t pid;
	uint64_t realtime;
	uint64_t max;
	uint32_t interval_ms;
	uint32_t reserved[4];
	uint32_t crc;
};

enum record_type {
	RECORD_PROCESS	= 1,
	RECORD_SAMPLE	= 2,
	RECORD_EVENT	= 3,
	RECORD_END	= 4,
};

/**
 * struct record_frame - before each payload
 * @type: enum record_type
 * @length: of the payload, a multiple of 8, at most RECORD_PAYLOAD
 * @sequence: 0 for the first frame, and one more for each
 * @crc: CRC-32 of @type, @length, @sequence and the payload
 */
struct record_frame {
	uint32_t type;
	uint32_t length;
	uint32_t sequence;
	uint32_t crc;
};

/* Times of payloads are nanoseconds since the recording began. */

enum record_process_what {
	RECORD_BEGAN	= 1,	/* the recording did */
	RECORD_EXEC	= 2,	/* the process runs another program: all memory is new */
};

/* What the process runs. @name: NUL-terminated. */
struct record_process {
	uint64_t time;
	uint32_t what;
	uint32_t reserved;
	char name[64];
};

/* @source of a sample: as `hetmem map` looks. */
enum record_source {
	RECORD_MODULE	= 1,
	RECORD_PAGEMAP	= 2,
};

/* Nothing in [@from, @to) changed since the last sample of it: there are no cells. */
#define RECORD_SAME	(1U << 0)
/* The counters are those of the module. */
#define RECORD_COUNTED	(1U << 1)

/**
 * struct record_sample - where the pages of [@from, @to) were
 * @time: when the look began; @took: ns that it took
 * @flags: RECORD_SAME, RECORD_COUNTED
 * @to_device, @to_host, @failed: pages, of the process, since its context was opened
 * @nr_cells: struct record_cell that follow, in order of @start
 */
struct record_sample {
	uint64_t time;
	uint64_t took;
	uint64_t from;
	uint64_t to;
	uint64_t to_device;
	uint64_t to_host;
	uint64_t failed;
	uint32_t source;
	uint32_t flags;
	uint32_t nr_cells;
	uint32_t reserved;
};

/**
 * struct record_cell - pages at one location
 * @start, @end: the addresses. Cells of the same addresses follow each other; others do not
 *	overlap
 * @pages: pages in there that are at @location for @why; pages that do not exist are in no cell
 * @location: HETMEM_LOC() of <linux/hetmem.h>; 0x1010000: swapped out, or on a device
 * @why: HETMEM_WHY_*
 */
struct record_cell {
	uint64_t start;
	uint64_t end;
	uint64_t pages;
	uint32_t location;
	uint32_t why;
};

enum record_event_what {
	RECORD_MIGRATE	= 1,	/* MIGRATE ended */
	RECORD_THRASH	= 2,	/* a block went back and forth @nr times */
	RECORD_HINT	= 3,	/* a hint went to the process; @nr is its id */
	RECORD_COMPLETE	= 4,	/* a hint ended */
};

/**
 * struct record_event - what the module did
 * @result: 0 or a negative errno
 * @not_moved, @why: of MIGRATE, the pages that stayed, and why the first one did
 * @nr: of MIGRATE the pages that moved
 */
struct record_event {
	uint64_t time;
	uint32_t what;
	int32_t result;
	uint64_t start;
	uint64_t end;
	uint32_t location;
	uint32_t why;
	uint64_t nr;
	uint64_t not_moved;
};

enum record_reason {
	RECORD_EXITED	= 1,	/* the process ended */
	RECORD_STOPPED	= 2,	/* by a signal */
	RECORD_TIME	= 3,	/* by --for */
	RECORD_DENIED	= 4,	/* it may no longer be looked at */
};

/**
 * struct record_end - the last frame
 * @reason: enum record_reason
 * @skipped: samples that found no room in the file
 * @dropped: events that were lost, or found no room
 */
struct record_end {
	uint64_t time;
	uint32_t reason;
	uint32_t reserved;
	uint64_t skipped;
	uint64_t dropped;
};

/* CRC-32 as of zlib, PNG and Ethernet; begins with @crc 0. */
uint32_t record_crc(uint32_t crc, const void *data, size_t len);

#endif
