/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The kernel module's events and hints, on descriptors of contexts: the
 * executor's own, or another process's that we have got hold of. All return 0
 * (or what they say) or a negative errno, and set no text.
 */
#ifndef HETMEM_PLATFORM_KMOD_HINT_H
#define HETMEM_PLATFORM_KMOD_HINT_H

#include <poll.h>

#include "platform/kmod.h"

/* A new context of the device behind @kmod, to be closed with close(2). */
int hm_kmod_context(const struct hm_kmod *kmod);

/**
 * struct hm_ring - reader of a context's events
 * @header: mapped; NULL: closed
 * @size: bytes of the mapping
 * @tail: entries read
 * One thread at a time reads.
 */
struct hm_ring {
	struct hetmem_ring_header *header;
	size_t size;
	uint64_t tail;
};

/*
 * Makes and maps the ring of the context @fd, which has none yet, for @events
 * (bits of enum hetmem_event_type). Wait with poll(2) on @fd. -EDQUOT,
 * -ENOMEM, -EPROTO a ring of another version. A forked child has no mapping
 * and must not close it.
 */
int hm_ring_open(struct hm_ring *ring, int fd, unsigned int nr_entries,
		 uint64_t events);
void hm_ring_close(struct hm_ring *ring);

/* The next event; false: there is none. */
bool hm_ring_next(struct hm_ring *ring, struct hetmem_event *event);

/* Events, of all types, that found no room. */
uint64_t hm_ring_dropped(const struct hm_ring *ring);

/*
 * Whether the polled descriptor @fd is no longer the context of @ring: the program closed
 * it, or made it another file.
 */
bool hm_ring_lost(const struct hm_ring *ring, const struct pollfd *fd);

/*
 * For a thread that reads @ring: polls @fds for at most @ms (-1: no limit, or soon after
 * a descriptor was closed). @fds[0] is the context, @fds[1] an eventfd that ends the
 * thread after *@stop was set, the others are the caller's. Returns false if the thread
 * must end: *@stop is set; or the module no longer answers, or a descriptor was closed.
 */
bool hm_ring_wait(const struct hm_ring *ring, struct pollfd *fds, unsigned int nr,
		  const bool *stop, int ms);

/* HETMEM_SHAREABLE, HETMEM_ALLOW_HINTS or both: all that others may do. */
int hm_kmod_allow(int fd, uint32_t allowed);

/* @flags: HETMEM_BIND_EXECUTOR or 0; @uuid may be NULL. */
int hm_kmod_bind(int fd, uint32_t location, uint32_t flags,
		 const unsigned char uuid[16]);

/* The answer of an executor. */
struct hm_answer {
	int result;
	uint64_t moved;
};

/*
 * Waits for the outcome: on 0, and only then, @answer is valid. @uuid: of the
 * device, if @location is another driver's; NULL: by @location alone.
 */
int hm_kmod_hint(int fd, uintptr_t start, uintptr_t end, uint32_t location,
		 const unsigned char uuid[16], unsigned int timeout_ms,
		 struct hm_answer *answer);
int hm_kmod_complete(int fd, uint64_t id, int result, uint64_t moved);

/* Pages that a pin holds, and those of them that came from elsewhere for it. */
struct hm_pinned {
	uint64_t pages;
	uint64_t moved;
};

/*
 * Brings [@start, @end) to the host and holds it there for @ms, by the context @fd;
 * hm_kmod_unpin() ends that. Fewer pages than there are is no error.
 */
int hm_kmod_pin(int fd, uintptr_t start, uintptr_t end, unsigned int ms,
		struct hm_pinned *pinned);
int hm_kmod_unpin(int fd, uintptr_t start, uintptr_t end);

/* Number of contexts there are for the caller to see; fills at most @nr. */
int64_t hm_kmod_list(int fd, struct hetmem_list_entry *entries, size_t nr);

/*
 * Fills @stats of the first tracked range of the context @fd that ends after @at.
 * -ENOENT: there is none.
 */
int hm_kmod_next_range(int fd, uintptr_t at, struct hetmem_cmd_stats *stats);

/*
 * Has the module look again at what changed in the tracked range of @stats, and updates
 * @stats. Does nothing if the last complete look was less than @pause ns ago. No look begins
 * after @end of hm_now(), and each is bounded.
 */
void hm_kmod_refresh(int fd, struct hetmem_cmd_stats *stats, uint64_t pause, uint64_t end);

/* The same of all tracked ranges of the context, once a second at most. */
void hm_kmod_refresh_all(int fd, uint64_t end);

/* The pause of those who look again and again. */
#define HM_REFRESH_PAUSE	1000000000ULL

/* Pages of [@start, @end) at @location, the module's. */
int64_t hm_kmod_pages_at(int fd, uintptr_t start, uintptr_t end,
			 uint32_t location);

#endif /* HETMEM_PLATFORM_KMOD_HINT_H */
