/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem.ko: contexts, what they share, and the commands.
 *
 * Data flows one way: main.c (commands) -> one file for each command group
 * -> walk.c (looking at pages) -> notifier.c (one address space), device.c
 * and foreign.c (whose pages they are). context.c has what one open file is.
 * range.h, walk.h and device.h declare the rest.
 */
#ifndef _HETMEM_H
#define _HETMEM_H

#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <uapi/linux/hetmem.h>

#include "compat.h"

struct eventfd_ctx;
struct hetmem_mm;
struct hetmem_thrash_slot;
struct poll_table_struct;

/* The unit of looking and moving: what one PMD maps. */
#define HETMEM_BLOCK_SHIFT	21
#define HETMEM_BLOCK_SIZE	BIT(HETMEM_BLOCK_SHIFT)
#define HETMEM_BLOCK_PAGES	(HETMEM_BLOCK_SIZE >> PAGE_SHIFT)

/*
 * For memory that a command asks for: charged to the caller's cgroup, and a
 * limit there is -ENOMEM, not a reason to kill the caller.
 */
#define HETMEM_GFP	(GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

enum hetmem_counter {
	HETMEM_COUNT_TO_DEVICE,
	HETMEM_COUNT_TO_HOST,
	HETMEM_COUNT_FAILED,
	HETMEM_COUNT_NR,
};

/* Counters of a range, or of a whole context. */
struct hetmem_counters {
	u64 changes[HETMEM_CHANGE_NR];
	u64 pages[HETMEM_COUNT_NR];
};

/*
 * Caps, set through sysfs: hints of one user at one executor; kernel memory of
 * one user, and of all users; memory that one user has pinned.
 */
extern unsigned int hetmem_max_hints, hetmem_user_kb, hetmem_total_kb, hetmem_pinned_kb;

/* Statistics, as sysfs names them: objects that exist, and events since loading. */
struct hetmem_totals {
	s64 contexts, ranges, pages_pinned; /* that exist */
	s64 callbacks, decodes, moving;
	s64 pages_to_device, pages_to_host, pages_failed;
	s64 events, events_dropped, thrashed, hints;
};

/* For each CPU: counting shares no cache line with others. */
DECLARE_PER_CPU(struct hetmem_totals, hetmem_totals);

#define hetmem_total_add(_what, _nr)	this_cpu_add(hetmem_totals._what, _nr)
#define hetmem_total(_what)	hetmem_total_at(offsetof(struct hetmem_totals, _what))

/**
 * struct hetmem_user - a user who has contexts
 * @node: in the table of users
 * @uid: as hetmem_current_user() returns it
 * @nr_contexts: that the user has; protected as the table is
 * @bytes: of kernel memory that they and what belongs to them use
 * @pinned: pages that they hold
 * @nr_jobs: moves in the background that run for the user, see background.c
 */
struct hetmem_user {
	struct hlist_node node;
	kuid_t uid;
	unsigned int nr_contexts;
	atomic64_t bytes;
	atomic64_t pinned;
	atomic_t nr_jobs;
};

/**
 * struct hetmem_binding - a device that userspace has named
 * @location: HETMEM_LOC()
 * @uuid: of the device
 * @executor: hints for it come here
 */
struct hetmem_binding {
	u32 location;
	u8 uuid[16];
	bool executor;
};

/* Pages of tracked ranges that REFRESH saw in a pool of another driver's. */
struct hetmem_seen {
	u32 location;
	u64 pages;
};

/**
 * struct hetmem_ring - the kernel's side of a ring
 * @header: of the mapping, whose second page begins the entries; NULL: there is none
 * @size: of the mapping, bytes
 * @head: entries ever added
 * @events: types that are wanted
 * @dropped: by type
 * @nr_entries: a power of two
 * @wake: wakes the readers that wait
 */
struct hetmem_ring {
	struct hetmem_ring_header *header;
	size_t size;
	u64 head;
	u64 events;
	u64 dropped[HETMEM_EVENT_NR];
	u32 nr_entries;
	struct work_struct wake;
};

/**
 * struct hetmem_job - a MIGRATE in the background
 * @work: carries it out
 * @cmd: the command, and its answer; all zeroes: there was none
 * @eventfd: to be signalled at its end
 * @result: what MIGRATE returned
 * @runs: it has not ended
 * @stop: the context closes
 */
struct hetmem_job {
	struct work_struct work;
	struct hetmem_cmd_migrate cmd;
	struct eventfd_ctx *eventfd;
	int result;
	bool runs;
	bool stop;
};

/**
 * struct hetmem_context - an open file of /dev/hetmem
 * @user: that it is charged to
 * @uid: effective uid of the opener
 * @opener: the process, for people to tell contexts apart
 * @hm: the opener's address space, which keeps the mm_struct
 * @siblings: in hm->contexts
 *
 * hm->lock protects what follows, unless it says otherwise.
 * @allowed: HETMEM_SHAREABLE, HETMEM_ALLOW_HINTS; read without the lock
 * @total: counters of all memory of the address space, tracked or not
 * @ranges: tracked ranges, never overlapping
 * @nr_ranges: how many they are
 * @all_dirty: grows when all ranges become dirty, see range.c
 * @moving: as hetmem_range.moving, for all ranges
 * @refresh: held by REFRESH and UNTRACK, outside of mmap_lock and hm->lock
 * @seen: what REFRESH saw of other drivers' pools
 * @thrash: slots for blocks that go back and forth, see thrash.c
 * @ring: of events, once userspace has asked for it, see ring.c
 * @wait: for events
 * @pins: pages held on the host, by address, see pin.c
 * @nr_pin_groups: in @pins
 * @nr_pin_ending: of these, that have an end to hand on
 * @nr_pinned: pages held
 * @reap: held while pages of @pins are dropped, outside of hm->lock
 * @pin_next: jiffies, when @pin_work is to look at them
 * @pin_work: drops the pages that have ended
 * @job: the move that a worker carries out, or has
 * @bindings: devices that userspace has named
 * @nr_bindings: used entries of @bindings
 * @hints: waiting for this executor, see hint.c
 * @nr_hints: how many they are
 * @parked: hints made through this context whose threads have left, see hint.c
 */
struct hetmem_context {
	struct hetmem_user *user;
	kuid_t uid;
	struct pid *opener;
	struct hetmem_mm *hm;
	struct list_head siblings;

	u32 allowed;
	struct hetmem_counters total;
	struct rb_root_cached ranges;
	unsigned int nr_ranges;
	u64 all_dirty;
	unsigned long moving;
	struct mutex refresh; /* REFRESH, UNTRACK */
	struct hetmem_seen seen[HETMEM_MAX_BINDINGS];
	struct hetmem_thrash_slot *thrash;
	struct hetmem_ring ring;
	wait_queue_head_t wait;
	struct rb_root_cached pins;
	unsigned int nr_pin_groups;
	unsigned int nr_pin_ending;
	unsigned long nr_pinned;
	struct mutex reap; /* see pin.c */
	unsigned long pin_next;
	struct delayed_work pin_work;
	struct hetmem_job job;
	struct hetmem_binding bindings[HETMEM_MAX_BINDINGS];
	unsigned int nr_bindings;
	struct list_head hints;
	unsigned int nr_hints;
	struct list_head parked;
};

/*
 * Copies a struct of @ksize bytes to a caller whose own has @usize: bytes that
 * the caller lacks are left out, bytes beyond @ksize are cleared.
 */
static inline int hetmem_copy_out(void __user *to, size_t usize, const void *from, size_t ksize)
{
	if (copy_to_user(to, from, min(ksize, usize)) ||
	    (usize > ksize && clear_user(to + ksize, usize - ksize)))
		return -EFAULT;
	return 0;
}

/* Whether the caller's array of @nr entries of @size bytes is well-formed. */
static inline int hetmem_check_array(u32 nr, u32 size, size_t ksize)
{
	if (!nr)
		return 0;
	if (size < ksize)
		return -EINVAL;
	return size > PAGE_SIZE ? -E2BIG : 0;
}

/* Copies @nr entries to such an array, from entry @first on. */
static inline int hetmem_copy_array(u64 to, u32 size, u32 first, const void *from, size_t ksize,
				    u32 nr)
{
	int ret = 0;

	to += (u64)first * size;
	if (size == ksize)
		return copy_to_user(u64_to_user_ptr(to), from, nr * ksize) ? -EFAULT : 0;
	for (; nr && !ret; nr--, to += size, from += ksize)
		ret = hetmem_copy_out(u64_to_user_ptr(to), size, from, ksize);
	return ret;
}

/* context.c */
extern atomic64_t hetmem_total_bytes;	/* what all users use */
struct hetmem_context *hetmem_context_open(void);
int hetmem_context_close(struct inode *inode, struct file *file);
pid_t hetmem_context_pid(const struct hetmem_context *ctx, struct pid_namespace *ns);
bool hetmem_add_capped(atomic64_t *sum, s64 nr, s64 max, int cap);
kuid_t hetmem_current_user(void);
int hetmem_charge(struct hetmem_user *user, size_t bytes);
void hetmem_account(struct hetmem_user *user, size_t bytes, int sign);
void *hetmem_alloc(struct hetmem_user *user, size_t bytes);
void hetmem_free(struct hetmem_user *user, void *memory, size_t bytes);
int hetmem_info(struct hetmem_context *ctx, void *cmd);
int hetmem_allow(struct hetmem_context *ctx, void *cmd);

/* main.c */
int hetmem_read_migrate(struct hetmem_cmd_migrate *cmd, const void __user *uarg, u32 usize);

/* background.c */
bool hetmem_job_stops(struct hetmem_context *ctx);
void hetmem_job_open(struct hetmem_context *ctx);
void hetmem_job_close(struct hetmem_context *ctx);
int hetmem_job_init(void);
void hetmem_job_exit(void);
int hetmem_background(struct hetmem_context *ctx, void *cmd);

/* notifier.c, residency.c, migrate.c, refresh.c */
int hetmem_list(struct hetmem_context *ctx, void *cmd);
int hetmem_residency(struct hetmem_context *ctx, void *cmd);
int hetmem_migrate(struct hetmem_context *ctx, void *cmd);
int hetmem_refresh(struct hetmem_context *ctx, void *cmd);

/* pin.c */
extern struct workqueue_struct *hetmem_wq;
int hetmem_pin_init(void);
void hetmem_pin_exit(void);
void hetmem_pin_open(struct hetmem_context *ctx);
void hetmem_pin_close(struct hetmem_context *ctx);
void hetmem_pin_unmapped(struct hetmem_context *ctx, unsigned long start, unsigned long last);
bool hetmem_pin_at(struct hetmem_context *ctx, unsigned long addr, unsigned long *end);
int hetmem_pin(struct hetmem_context *ctx, unsigned long start, unsigned long *end,
	       unsigned int timeout_ms, bool write, u64 *pinned);
int hetmem_unpin(struct hetmem_context *ctx, void *cmd);

/* hint.c */
void hetmem_hints_fail(struct hetmem_context *ctx);
void hetmem_hints_drop(struct hetmem_context *ctx);
int hetmem_bind_device(struct hetmem_context *ctx, void *cmd);
int hetmem_hint(struct hetmem_context *ctx, void *cmd);
int hetmem_complete(struct hetmem_context *ctx, void *cmd);

/* ring.c */
int hetmem_ring(struct hetmem_context *ctx, void *cmd);
void hetmem_ring_free(struct hetmem_context *ctx);
bool hetmem_ring_wants(const struct hetmem_context *ctx, u32 type);
bool hetmem_ring_add(struct hetmem_context *ctx, const struct hetmem_event *event);
__poll_t hetmem_ring_poll(struct file *file, struct poll_table_struct *wait);
int hetmem_ring_mmap(struct file *file, struct vm_area_struct *vma);

/* sysfs.c */
s64 hetmem_total_at(size_t offset);
extern const struct attribute_group *hetmem_sysfs_groups[];

#endif /* _HETMEM_H */
