/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Statistics that a process publishes: one memfd, which others find by its name in
 * /proc/PID/fd. This is its whole layout, for the library and for readers.
 *
 * A reader must not trust anything in it. It compares the file's size and seals before it
 * reads, and @pid before it believes: a child that was forked past the library's handlers has
 * the parent's descriptor. Names need not be terminated. Each number is read and written as a
 * whole; numbers beside each other can be of different moments.
 *
 * A change of meaning or of an offset changes HM_PUBLISH_VERSION. Members can be added in
 * @reserved, where older writers have 0.
 */
#ifndef HETMEM_CORE_PUBLISH_H
#define HETMEM_CORE_PUBLISH_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

/* As /proc/PID/fd/N has it: "/memfd:" and this and " (deleted)". */
#define HM_PUBLISH_NAME		"hetmem-statistics"
#define HM_PUBLISH_MAGIC	0x74736d68U
#define HM_PUBLISH_VERSION	1
#define HM_PUBLISH_POOLS	63
#define HM_PUBLISH_NAME_LEN	32
#define HM_PUBLISH_SEALS	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/**
 * struct hm_published_pool - one pool
 * @number: of the pool in its process, from 1, never reused; 0: there is none here
 * @device: ordinal of the driver's device, -1: the host
 * @flags: HM_PUBLISHED_*
 * @provider, @tag: as in a spec
 * @max: most bytes that it may hold, 0: no limit
 * @pressures: calls of the program by watermark()s above the pool
 * @uuid: of the device; zeroes: not known, or the host
 * The rest is as in struct hetmem_resource_stats. Of each stream the last
 * HM_PUBLISH_BATCH cached allocations, and the frees beside them, can be missing.
 */
struct hm_published_pool {
	uint64_t number;
	int32_t device;
	uint32_t flags;
	char provider[HM_PUBLISH_NAME_LEN];
	char tag[HM_PUBLISH_NAME_LEN];
	uint64_t max;
	uint64_t requested;
	uint64_t requested_peak;
	uint64_t reserved;
	uint64_t reserved_peak;
	uint64_t allocs;
	uint64_t frees;
	uint64_t failed;
	uint64_t driver_calls;
	uint64_t host_wait_ns;
	uint64_t parked;
	uint64_t spilled;
	uint64_t spill_host;
	uint64_t spilled_total;
	uint64_t fetched_total;
	uint64_t pressures;
	unsigned char uuid[16];
	uint64_t reserved_members[4];
};

#define HM_PUBLISHED_FORK	(1U << 0)	/* works in a forked child */
#define HM_PUBLISH_BATCH	1024

/**
 * struct hm_published - the whole file
 * @pid: of the publishing process, in its own pid namespace
 * @unlisted: pools, of all time, that found no entry
 */
struct hm_published {
	uint32_t magic;
	uint32_t version;
	uint32_t pid;
	uint32_t unlisted;
	uint64_t reserved[30];
	struct hm_published_pool pools[HM_PUBLISH_POOLS];
};

/* Whether other processes of the user may see what this one does: not HETMEM_PUBLISH=0. */
bool hm_publish_wanted(void);

_Static_assert(sizeof(struct hm_published_pool) == 256 && sizeof(struct hm_published) == 16384,
	       "the layout of version 1");

/*
 * Returns the entry of a new pool, its first members filled in. The caller writes the figures
 * with hm_publish_set() until hm_publish_remove(), in a forked child too. NULL: nothing is
 * published (HETMEM_PUBLISH=0, no entry is left, no descriptor).
 */
struct hm_published_pool *hm_publish_add(const char *provider, const char *tag, int device,
					 uint64_t max, uint32_t flags);
/* NULL does nothing. */
void hm_publish_remove(struct hm_published_pool *pool);

static inline void hm_publish_set(uint64_t *member, uint64_t value)
{
	__atomic_store_n(member, value, __ATOMIC_RELAXED);
}

#endif /* HETMEM_CORE_PUBLISH_H */
