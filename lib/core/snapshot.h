/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What ctl() is asked for by the functions of include/hetmem/snapshot.h.
 */
#ifndef HETMEM_CORE_SNAPSHOT_H
#define HETMEM_CORE_SNAPSHOT_H

#include "core/resource.h"

/*
 * @sums: in: pools add to it, and nothing else is done; or NULL.
 * @result: out: what a callback returned. If it is not 0, nothing is done. @regions: in:
 * resources without a pool tell their memory, too, by segments alone.
 */
struct hm_ctl_walk {
	struct hetmem_sums *sums;
	const struct hetmem_walk *walk;
	int result;
	bool regions;
};

/*
 * A wake of several pools is all or nothing: all of them make their memory, then all of
 * them load contents, then all of them are awake; or those that made memory give it back.
 * Finish cannot fail.
 */
enum hm_wake_step {
	HM_WAKE_ALL,		/* these three */
	HM_WAKE_MAKE,
	HM_WAKE_LOAD,
	HM_WAKE_FINISH,
	HM_WAKE_CANCEL,
};

/*
 * Contents of scratch blocks do not come back. So their pools fall asleep after those that can
 * refuse.
 */
enum hm_sleep_part {
	HM_SLEEP_ALL,
	HM_SLEEP_KEPT,
	HM_SLEEP_SCRATCH,
};

/*
 * @tag: of pools, NULL: all; @part: of them, in a sleep; @keep: a sleep keeps the contents. @call: number of the call
 * of hetmem_sleep(), never 0; @undo: a wake wakes only what that call put to sleep.
 * @asleep: adds the pools that sleep afterwards, whatever the result is. @refused: with
 * -EOPNOTSUPP: why a pool that can sleep cannot keep its contents.
 */
struct hm_ctl_sleep {
	const char *tag;
	enum hm_sleep_part part;
	bool keep;
	bool undo;
	enum hm_wake_step step;
	uint32_t call;
	unsigned int asleep;
	const char *refused;
};

/* @tag: as of a sleep; @sum, @nr: adds the counters and the number of the pools that it names. */
struct hm_ctl_tag_stats {
	const char *tag;
	struct hetmem_resource_stats *sum;
	unsigned int nr;
};

/* In the text of -ENOMEM, a pool's free bytes follow this, up to the end. */
#define HM_FREE_BYTES	"; free: "

void hm_stats_add(struct hetmem_resource_stats *sum, const struct hetmem_resource_stats *one);

/* @freed: adds the bytes that were given back. */
struct hm_ctl_private_trim {
	uint64_t id;
	size_t freed;
};

struct hm_ctl_history {
	struct hetmem_history_event *events;
	size_t nr;		/* in: room; out: filled */
};

/**
 * struct hm_saved - what a pool adds to a checkpoint; first member of its own
 * @next: of another pool
 * @pool: serial of the pool's order, never reused
 */
struct hm_saved {
	struct hm_saved *next;
	uint64_t pool;
};

/* @saved: last added first. Each is freed by free(). */
struct hetmem_checkpoint {
	uint64_t id;
	struct hm_saved *saved;
};

/* A block that is live in a private pool, at @nr of those that have room. */
struct hm_ctl_checkpoint {
	struct hetmem_checkpoint *checkpoint;
	void **ptrs;		/* in: room for @room; may be NULL */
	size_t room;
	size_t nr;		/* out: live blocks */
};

/*
 * A restore is planned in all pools, and then done in all, or cancelled in those
 * that planned it. Only a plan can fail. Each adds its blocks to @blocks in a
 * plan; to do or to cancel is to pass them, in the same order.
 */
enum hm_restore_step {
	HM_RESTORE_PLAN,
	HM_RESTORE_DO,
	HM_RESTORE_CANCEL,
};

struct hm_ctl_restore {
	const struct hetmem_checkpoint *checkpoint;
	enum hm_restore_step step;
	struct hetmem_restored *blocks;
	size_t nr;		/* plan: in @blocks */
	size_t at;		/* do, cancel: passed */
};

/*
 * For adaptors: asks the upstream. [*@from, *@to) in @arg->blocks are then what it
 * planned, or passes.
 */
int hm_restore_upstream(struct hetmem_resource *self,
			struct hm_ctl_restore *arg, size_t *from, size_t *to);
/* Takes back a plan that was made just now, from @from on. */
void hm_restore_cancel(struct hetmem_resource *self,
		       struct hm_ctl_restore *arg, size_t from);

/*
 * Whether bytes of a program's struct of @size bytes, behind the @known ones,
 * are not 0: a later version's member asks for what is not here.
 */
bool hm_has_more(const void *params, size_t known, size_t size);

#endif /* HETMEM_CORE_SNAPSHOT_H */
