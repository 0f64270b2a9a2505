/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The reader's side of the event ring, as the interface's header describes reading. */
#ifndef LIBKTEST_RING_H
#define LIBKTEST_RING_H

#include "libktest/commands.h"

#include <poll.h>

#define EVENT(type)	(1ULL << HETMEM_EVENT_##type)
#define ALL_EVENTS	((1ULL << HETMEM_EVENT_NR) - 1)

/* Only a test that fails waits for so long. Also the longest timeout of a hint. */
#define FOREVER_MS	HETMEM_HINT_TIMEOUT_MAX

/* A mapped ring; @tail is the reader's own, and what the header's should be. */
struct ring {
	int fd;			/* of the context */
	struct hetmem_ring_header *h;
	size_t size;
	uint64_t tail;
};

/* One RING; @map_size may be NULL. */
int ring_make(int fd, uint32_t nr_entries, uint64_t events,
	      size_t *map_size);

/* Maps the ring of @fd, which has r->size bytes. */
int ring_map(int fd, struct ring *r);

/* Both. */
int ring_open(int fd, uint32_t nr_entries, uint64_t events, struct ring *r);
void ring_close(struct ring *r);

/* The UUID, 16 bytes, that executor_open() gives the device at @location. */
const void *uuid_of(uint32_t location);

/* A context with a ring that is executor for @location, or an errno. */
int executor_open(struct ring *r, uint32_t location, unsigned int entries);

struct hetmem_event *ring_entry(const struct ring *r, uint64_t n);

/* The next event. False: there is none. */
bool ring_next(struct ring *r, struct hetmem_event *e);

/* The next event, waiting for it; false: none came in @ms. */
bool ring_wait(struct ring *r, struct hetmem_event *e, int ms);

/* Everything that waits is read: how many of @type, the last one of them in @last. */
unsigned int ring_count(struct ring *r, uint32_t type, struct hetmem_event *last);

/* Everything that waits is read; sum of the counts of @type's events. */
uint64_t ring_sum(struct ring *r, uint32_t type, uint32_t loc);
void ring_drain(struct ring *r);

/* One notification of a page that is there: REPLACE. */
int invalidate(char *page);

#endif
