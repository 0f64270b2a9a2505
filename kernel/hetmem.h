/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem.ko: what its files share.
 *
 * Data flows main.c (commands) -> context.c (one open file), range.c (tracked
 * ranges), residency.c (where pages are), migrate.c (moving them) ->
 * device.c (who moves them).
 */
#ifndef _HETMEM_H
#define _HETMEM_H

#include <linux/atomic.h>
#include <linux/interval_tree.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/hetmem_device.h>
#include <uapi/linux/hetmem.h>

#include "compat.h"

struct attribute_group;
struct dev_pagemap;
struct device;
struct file;
struct hetmem_device;
struct hetmem_ring;
struct hetmem_walk;
struct mm_struct;
struct page;
struct pid_namespace;
struct poll_table_struct;
struct vm_area_struct;

/* The unit of walking and moving: what one PMD maps. */
#define HETMEM_BLOCK_SHIFT	21
#define HETMEM_BLOCK_SIZE	BIT(HETMEM_BLOCK_SHIFT)
#define HETMEM_BLOCK_PAGES	(HETMEM_BLOCK_SIZE >> PAGE_SHIFT)

/* About 30 MiB of kernel memory, charged to who tracks. */
#define HETMEM_MAX_RANGES	131072

/* Of all ranges of a context: 2 TiB, about 8 MiB of kernel memory. */
#define HETMEM_MAX_BLOCKS	1048576

/*
 * How long pages may be on their way between host and device, seen nowhere. A
 * migration of 2 MiB takes well under a millisecond; on a busy host, more.
 */
#define HETMEM_SETTLE		msecs_to_jiffies(100)

/* Devices that a context can name. */
#define HETMEM_MAX_BINDINGS	16

#define HETMEM_MAX_DEVICES	32

/* Pools of pages of other drivers' devices. */
#define HETMEM_MAX_POOLS	64

/* Owners of device pages: the registered devices' and the learned ones. */
#define HETMEM_MAX_LEARNED	16
#define HETMEM_MAX_OWNERS	(HETMEM_MAX_DEVICES + HETMEM_MAX_LEARNED)

enum hetmem_counter {
	HETMEM_COUNT_TO_DEVICE,
	HETMEM_COUNT_TO_HOST,
	HETMEM_COUNT_FAILED,
	HETMEM_COUNT_NR,
};

/* Counters of a range, or of a whole context. */
struct hetmem_counters {
	u64 notified[HETMEM_NOTIFY_NR];
	u64 pages[HETMEM_COUNT_NR];
};

/* What one user may have; set through sysfs. */
struct hetmem_caps {
	unsigned int max_contexts;	/* of one uid */
	unsigned int max_ranges;	/* of one context */
	unsigned int max_blocks;	/* of one context */
	unsigned int max_ring_entries;	/* of one context */
	unsigned int max_hints;		/* that wait for one executor */
	unsigned int max_pins;		/* of one context */
};

extern struct hetmem_caps hetmem_caps;

/* What happened since the module was loaded; shown by sysfs. */
enum hetmem_total_nr {
	HETMEM_TOTAL_CONTEXTS,	/* that there are */
	HETMEM_TOTAL_RANGES,	/* that there are */
	HETMEM_TOTAL_CALLBACKS,
	HETMEM_TOTAL_DECODES,
	HETMEM_TOTAL_TO_DEVICE,
	HETMEM_TOTAL_TO_HOST,
	HETMEM_TOTAL_FAILED,
	HETMEM_TOTAL_EVENTS,
	HETMEM_TOTAL_EVENTS_DROPPED,
	HETMEM_TOTAL_THRASHED,
	HETMEM_TOTAL_HINTS,
	HETMEM_TOTAL_NR,
};

/* For each CPU: who counts shares no cache line with others. */
struct hetmem_totals {
	s64 nr[HETMEM_TOTAL_NR];
};

DECLARE_PER_CPU(struct hetmem_totals, hetmem_totals);

static inline void hetmem_total_add(enum hetmem_total_nr what, s64 nr)
{
	this_cpu_add(hetmem_totals.nr[what], nr);
}

/* A block that may go back and forth; see the top of thrash.c. */
#define HETMEM_THRASH_BITS	9
struct hetmem_thrash_slot {
	unsigned long block;
	unsigned long since;
	u32 count;
	u32 location;
	u8 what;
};

/**
 * struct hetmem_user - a user who has contexts
 * @node: in the table of users
 * @uid: of the user
 * @nr_contexts: that the user has; protected as the table is
 * @foreign: pages for each pool of other drivers: of the user's tracked ranges
 *	those that REFRESH last saw there, and those that hints under way to the
 *	user's contexts ask for
 */
struct hetmem_user {
	struct hlist_node node;
	kuid_t uid;
	unsigned int nr_contexts;
	atomic64_t foreign[HETMEM_MAX_POOLS];
};

/* A device that userspace has named, see BIND_DEVICE. */
struct hetmem_binding {
	u32 location;
	u8 uuid[16];
};

/**
 * struct hetmem_context - an open file of /dev/hetmem
 * @mm: the opener's, held by mmgrab() only
 * @opener: the process, for people to tell contexts apart
 * @notifier: over the whole address space of @mm
 * @lock: protects what follows; see the top of range.c
 * @ranges: tracked ranges, never overlapping
 * @nr_ranges: how many they are
 * @nr_blocks: of all of them
 * @last_id: that a range was given
 * @refresh: serializes REFRESH: an older look must not replace a newer one
 * @ring: of events, once userspace has asked for it
 * @wait: for events
 * @pins: of pages on the host, by address
 * @nr_pins: how many they are
 * @nr_pinned: pages in them
 * @pin_next: jiffies, when @pin_work looks at them
 * @pin_work: drops the ones that have ended
 * @thrash: 1 << HETMEM_THRASH_BITS slots for blocks that go back and forth
 * @shareable: queries from other address spaces are allowed
 * @allow_hints: hints from other address spaces are allowed
 * @total: counters of all memory of @mm, tracked or not
 * @by_mm: in the table by which others find their contexts
 * @id: differs from that of every other context there ever was
 * @user: the opener, as whom several contexts may count together
 * @hints_lock: protects what follows; see the top of hint.c
 * @roles: a bit for each of @bindings: it is executor for this device
 * @hints: told and not answered
 * @nr_hints: how many they are
 * @limited: the last one was refused because of an advisory limit
 * @nr_bindings: used entries of @bindings
 * @bindings: devices that userspace has named
 */
struct hetmem_context {
	struct mm_struct *mm;
	struct pid *opener;
	struct mmu_interval_notifier notifier;
	spinlock_t lock;	/* innermost */
	struct rb_root_cached ranges;
	unsigned int nr_ranges;
	unsigned long nr_blocks;
	u64 last_id;
	struct mutex refresh;	/* outside of mmap_lock and context->lock */
	struct hetmem_ring *ring;
	wait_queue_head_t wait;
	struct rb_root_cached pins;
	unsigned int nr_pins;
	unsigned long nr_pinned;
	unsigned long pin_next;
	struct delayed_work pin_work;
	struct hetmem_thrash_slot *thrash;
	u32 shareable;
	u32 allow_hints;
	struct hetmem_counters total;
	struct hlist_node by_mm;
	u64 id;
	struct hetmem_user *user;
	spinlock_t hints_lock;	/* outside of context->lock */
	unsigned long roles;
	struct list_head hints;
	unsigned int nr_hints;
	bool limited;
	unsigned int nr_bindings;
	struct hetmem_binding bindings[HETMEM_MAX_BINDINGS];
};

/* What was last known of a block of a tracked range. */
struct hetmem_block {
	u32 location;
	u16 on_device;
	u16 on_host;
};

/**
 * struct hetmem_range - a tracked range
 * @node: where, in context->ranges
 * @id: differs from that of every other range the context ever had
 * @count: what happened to it
 * @nr_blocks: that it touches
 * @blocks: what was last known of them
 * @dirty: a bit for each: notified since
 * @all_dirty: as if all bits of @dirty were set
 * @looking: block that REFRESH is looking at, @nr_blocks if none: not clean yet
 * @on_device: sum over @blocks
 * @as_of: ns, when the last complete REFRESH began
 * @moving: jiffies when pages of it were last seen to begin a way between host
 *	and device
 * @thrashed: THRASH events, told or not
 * @preferred: location that userspace prefers, or 0
 * @no_thrash: userspace does not want to know
 */
struct hetmem_range {
	struct interval_tree_node node;
	u64 id;
	struct hetmem_counters count;
	unsigned long nr_blocks;
	struct hetmem_block *blocks;
	unsigned long *dirty;
	bool all_dirty;
	unsigned long looking;
	u64 on_device;
	u64 as_of;
	unsigned long moving;
	u64 thrashed;
	u32 preferred;
	u32 no_thrash;
};

/* The block of a range that @addr, which lies in the range, is in. */
static inline unsigned long hetmem_range_block(const struct hetmem_range *range,
					       unsigned long addr)
{
	return (addr >> HETMEM_BLOCK_SHIFT) -
	       (range->node.start >> HETMEM_BLOCK_SHIFT);
}

/* Where the range's part of its block @i begins, and ends (exclusive). */
static inline unsigned long
hetmem_range_block_start(const struct hetmem_range *range, unsigned long i)
{
	return max(ALIGN_DOWN(range->node.start, HETMEM_BLOCK_SIZE) +
		   (i << HETMEM_BLOCK_SHIFT), range->node.start);
}

static inline unsigned long
hetmem_range_block_end(const struct hetmem_range *range, unsigned long i)
{
	return min(ALIGN_DOWN(range->node.start, HETMEM_BLOCK_SIZE) +
		   ((i + 1) << HETMEM_BLOCK_SHIFT) - 1, range->node.last) + 1;
}

/* context.c */
int hetmem_contexts_enter(void);
void hetmem_contexts_leave(int idx);
struct hetmem_context *hetmem_context_next(const struct mm_struct *mm,
					   struct hetmem_context *ctx);
struct hetmem_context *hetmem_context_open(void);
void hetmem_context_close(struct hetmem_context *ctx);
pid_t hetmem_context_pid(const struct hetmem_context *ctx,
			 struct pid_namespace *ns);
void hetmem_mm_count(const struct mm_struct *mm, unsigned long start,
		     unsigned long last, enum hetmem_counter what,
		     u32 location);

int hetmem_context_list(struct hetmem_cmd_list *cmd);

/* range.c */
int hetmem_range_init(void);
void hetmem_range_exit(void);
extern const struct mmu_interval_notifier_ops hetmem_notifier_ops;
int hetmem_range_add(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end);
int hetmem_range_del(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end);
void hetmem_range_del_all(struct hetmem_context *ctx);
int hetmem_range_stats(struct hetmem_context *ctx,
		       struct hetmem_cmd_stats *stats);
void hetmem_range_count(struct hetmem_context *ctx, unsigned long start,
			unsigned long last, enum hetmem_counter what,
			u32 location);
struct hetmem_range *hetmem_range_first(struct hetmem_context *ctx,
					unsigned long start,
					unsigned long last);
void hetmem_range_on_device(struct hetmem_context *ctx,
			    struct hetmem_range *range, unsigned long i,
			    u32 location, unsigned int nr_pages);
u64 hetmem_range_nr_dirty(const struct hetmem_range *range);

/* pin.c */
void hetmem_pin_init(struct hetmem_context *ctx);
void hetmem_pin_drop_all(struct hetmem_context *ctx);
void hetmem_pin_unmapped(struct hetmem_context *ctx, unsigned long start,
			 unsigned long last);
bool hetmem_pin_at(struct hetmem_context *ctx, unsigned long addr,
		   unsigned long *end);
int hetmem_pin_walk(struct hetmem_context *ctx, struct hetmem_walk *walk,
		    struct hetmem_cmd_migrate *cmd, unsigned long start);

/* thrash.c */
extern unsigned int hetmem_thrash_count;
extern unsigned int hetmem_thrash_window_ms;
void hetmem_thrash_seen(struct hetmem_context *ctx, struct hetmem_range *range,
			unsigned long start, unsigned long last, u8 what,
			u32 location, bool bounce);

/* attr.c */
int hetmem_attr(struct hetmem_context *ctx, struct hetmem_cmd_attr *cmd,
		bool set);

/* hint.c */
void hetmem_hints_fail(struct hetmem_context *ctx);
int hetmem_bind_device(struct hetmem_context *ctx,
		       struct hetmem_cmd_bind_device *cmd);
int hetmem_hint(struct hetmem_context *ctx, struct hetmem_cmd_hint *cmd);
int hetmem_complete(struct hetmem_context *ctx,
		    struct hetmem_cmd_complete *cmd);

/* A file of one of our directories in sysfs shows @_value, of its @kobj. */
#define HETMEM_SHOW(_name, _format, _value)				\
static ssize_t _name##_show(struct kobject *kobj,			\
			    struct kobj_attribute *attr, char *buf)	\
{									\
	return sysfs_emit(buf, _format "\n", _value);			\
}

/* That file; _mode is RO or RW. */
#define HETMEM_ATTR(_mode, _name)					\
	(&((struct kobj_attribute)__ATTR_##_mode(_name)).attr)

/* sysfs.c */
s64 hetmem_total(enum hetmem_total_nr what);
extern const struct attribute_group *hetmem_sysfs_groups[];
int hetmem_sysfs_init(struct device *misc);
void hetmem_sysfs_exit(void);
int hetmem_sysfs_add(struct hetmem_device *dev);
void hetmem_sysfs_del(struct hetmem_device *dev);

/* main.c */
extern struct workqueue_struct *hetmem_wq;
struct hetmem_context *hetmem_context_of(const struct file *file);
int hetmem_copy_out(void __user *to, size_t usize, const void *from,
		    size_t ksize);

/* refresh.c */
int hetmem_refresh(struct hetmem_context *ctx, struct hetmem_cmd_refresh *cmd,
		   bool *partial);

/* ring.c */
int hetmem_ring_setup(struct hetmem_context *ctx, struct hetmem_cmd_ring *cmd);
void hetmem_ring_free(struct hetmem_context *ctx);
bool hetmem_ring_wants(const struct hetmem_context *ctx, u32 type);
bool hetmem_ring_add(struct hetmem_context *ctx,
		     const struct hetmem_event *event);
void hetmem_ring_wake(struct hetmem_context *ctx);
__poll_t hetmem_ring_poll(struct file *file, struct poll_table_struct *wait);
int hetmem_ring_mmap(struct hetmem_context *ctx, struct vm_area_struct *vma);

/**
 * struct hetmem_piece - pages of a step that have everything in common
 * @location: HETMEM_LOC()
 * @order: of the page table entries that map them
 * @traits: HETMEM_TRAIT_*, of those in hetmem_walk.look_for
 * @nr_pages: how many; not valid for the last piece of a step, which goes
 *	to the step's end (and may be much longer than a block)
 */
struct hetmem_piece {
	u32 location;
	u8 order;
	u8 traits;
	u16 nr_pages;
};

/* What a page of the host that is mapped alone can be besides. */
#define HETMEM_TRAIT_PART	BIT(0)	/* of a large folio */
#define HETMEM_TRAIT_MERGED	BIT(1)	/* by KSM */

/* Mappings that hetmem leaves alone. */
#define HETMEM_WHY_LEAVE (HETMEM_WHY_HUGETLB | HETMEM_WHY_SPECIAL |	\
			  HETMEM_WHY_UFFD | HETMEM_WHY_NOT_READABLE |	\
			  HETMEM_WHY_UNMAPPED)

/**
 * struct hetmem_walk - finding out where pages are, step by step
 * @mm: whose; the caller holds a reference to its users
 * @notifier: over the step at work only, so that what happens elsewhere in
 *	the address space cannot starve the walk
 * @lock: serializes decoding with @notifier's invalidations
 * @pfns: of one block; clear but for what hmm_range_fault() has written
 * @more: the same block as another owner of device pages sees it
 * @pieces: what a block is made of
 * @start: of the last step
 * @end: of the last step
 * @vma_end: of the mapping that the last step looked into
 * @why: HETMEM_WHY_*, of the mapping that the last step looked at
 * @look_for: traits to tell pages apart by
 * @shared: with @look_for: other address spaces have pages of the last step
 * @nr: pieces of the last step
 */
struct hetmem_walk {
	struct mm_struct *mm;
	struct mmu_interval_notifier notifier;
	spinlock_t lock;	/* innermost */
	unsigned long *pfns;
	unsigned long *more;
	struct hetmem_piece *pieces;
	unsigned long start;
	unsigned long end;
	unsigned long vma_end;
	u32 why;
	u8 look_for;
	bool shared;
	unsigned int nr;
};

/* residency.c */
int hetmem_walk_init(struct hetmem_walk *walk, struct mm_struct *mm);
void hetmem_walk_exit(struct hetmem_walk *walk);
int hetmem_walk_step(struct hetmem_walk *walk, unsigned long start,
		     unsigned long end);
int hetmem_walk_fault(struct hetmem_walk *walk, unsigned long start,
		      unsigned long end);
unsigned long hetmem_piece_end(const struct hetmem_walk *walk, unsigned int i,
			       unsigned long start);
u32 hetmem_vma_why(struct vm_area_struct *vma);

/* report.c */
int hetmem_residency(struct hetmem_context *ctx,
		     struct hetmem_cmd_residency *cmd, bool *partial);

/* migrate.c */
int hetmem_migrate(struct hetmem_context *ctx, struct hetmem_cmd_migrate *cmd,
		   bool *partial);

/**
 * struct hetmem_device - a registered device
 * @id: by which userspace knows it
 * @desc: as its driver described it
 * @name: of @desc
 * @limit: bytes of it that may be used, set through sysfs
 * @kobj: its directory in sysfs; frees the device
 */
struct hetmem_device {
	u32 id;
	struct hetmem_device_desc desc;
	char name[sizeof_field(struct hetmem_device_info, name)];
	u64 limit;
	struct kobject kobj;
};

/* device.c */
u64 hetmem_device_used(const struct hetmem_device *dev);
int hetmem_device_set_limit(struct hetmem_device *dev, u64 limit);
int hetmem_device_lock(void);
void hetmem_device_unlock(int idx);
struct hetmem_device *hetmem_device_find(u32 id);
u32 hetmem_device_location(const struct page *page);
bool hetmem_owner_is_registered(const void *owner);
unsigned int hetmem_device_owners(void **owners);
int hetmem_device_move(struct hetmem_device *dev, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end, bool to_host,
		       int nid);
int hetmem_device_list(struct hetmem_cmd_info *cmd);

/* foreign.c */
int hetmem_foreign_init(struct kobject *misc);
void hetmem_foreign_exit(void);
void hetmem_owner_learn(void *owner);
void *hetmem_owner_learned(unsigned int i);
u32 hetmem_foreign_location(const struct dev_pagemap *pgmap);
void hetmem_foreign_seen(struct hetmem_user *user, u32 location, long nr_pages);
int hetmem_foreign_ask(struct hetmem_user *user, u32 location, u64 nr_pages);
void hetmem_foreign_answered(struct hetmem_user *user, u32 location,
			     u64 nr_pages);

#endif /* _HETMEM_H */
