/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The commands of hetmem.ko as plain functions. They go straight to ioctl(2): no library
 * lies between a test and the kernel.
 */
#ifndef LIBKTEST_COMMANDS_H
#define LIBKTEST_COMMANDS_H

#include "libktest/base.h"

#include <linux/hetmem.h>

#define DEV_HETMEM	"/dev/hetmem"
#define ANY_HOST	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define FOREIGN(n)	HETMEM_LOC(HETMEM_FOREIGN, n)

/* The descriptor, closed by execve() unless @flags say otherwise, or an errno. */
int hm_open(void);
int hm_open_flags(int flags);

int hm_ioctl(int fd, unsigned long nr, void *cmd);

int hm_info(int fd, struct hetmem_cmd_info *info);
int hm_track(int fd, const void *p, size_t size);
int hm_untrack(int fd, const void *p, size_t size);

/* Of the range that @p is in, and of the whole context. */
int hm_stats(int fd, const void *p, struct hetmem_cmd_stats *st);
int hm_stats_context(int fd, struct hetmem_cmd_stats *st);

/* Notifications of one type that a tracked range has seen, or an errno. */
long hm_notified(int fd, const void *p, enum hetmem_change type);

/* Dirty blocks of the range as STATS says, or a negative errno. */
long hm_dirty(int fd, const void *p);

int hm_residency(int fd, struct hetmem_cmd_residency *cmd);

/*
 * One MIGRATE. What comes back is checked for what always holds: the
 * counters add up to what was walked, and why_addr lies in it.
 */
int hm_migrate(int fd, const void *p, size_t size, uint32_t loc,
	       struct hetmem_cmd_migrate *cmd);

/* How often move_to() asks again for a page that was busy. */
#define MOVE_TRIES	50

/*
 * Move what can be moved to @loc. A page that is busy at the moment is no
 * failure of anybody's, so they are asked for again. @total, if not NULL:
 * moved is the sum, already what was there the first time, the rest is the
 * last call's. Return: pages that are there now, or a negative errno.
 */
long move_to(int fd, const void *p, size_t size, uint32_t loc,
	     struct hetmem_cmd_migrate *total);
long to_host(int fd, const void *p, size_t size);

/* MIGRATE with PIN. */
int hm_pin(int fd, const void *p, size_t size, unsigned int timeout_ms,
	   struct hetmem_cmd_migrate *cmd);

/* @unpinned may be NULL. */
int hm_unpin(int fd, const void *p, size_t size, uint64_t *unpinned);

/* Pages of this process that are pinned, by whoever, as the kernel shows it. */
long vm_pin(void);

/* References by which pages are pinned, by anybody, or a negative errno. For root. */
long pins_held(void);

/* One REFRESH; what @cmd holds before is rubbish. */
int hm_refresh(int fd, const void *p, struct hetmem_cmd_refresh *cmd);

/*
 * REFRESH until nothing is dirty: pages may be on their way. @cmd is the last
 * one's answer, but walked_blocks the sum.
 */
int hm_refresh_all(int fd, const void *p, struct hetmem_cmd_refresh *cmd);

int hm_allow(int fd, uint32_t allowed);

/* @uuid, 16 bytes, may be NULL. */
int hm_bind(int fd, uint32_t location, uint32_t flags, const void *uuid);
int hm_hint(int fd, const void *p, size_t size, uint32_t location,
	    unsigned int timeout_ms, struct hetmem_cmd_hint *cmd);
int hm_hint_uuid(int fd, const void *p, size_t size, uint32_t location,
		 const void *uuid, unsigned int timeout_ms,
		 struct hetmem_cmd_hint *cmd);
int hm_complete(int fd, uint64_t id, int result, uint64_t moved);

/* Contexts that the caller is shown, at most @room of them in @entries, or an errno. */
int hm_list(int fd, struct hetmem_list_entry *entries, unsigned int room);

#endif
