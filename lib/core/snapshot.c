// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions of include/hetmem/snapshot.h: arguments are checked here, and
 * the pools of the stack do the rest.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/snapshot.h"

static int check_walk(const struct hetmem_walk *walk)
{
	if (!walk)
		return hm_error(-EINVAL, "walk: walk is NULL");
	if (walk->size < sizeof(*walk))
		return hm_error(-EINVAL, "walk: walk->size is %zu, set it to sizeof(struct hetmem_walk)",
				walk->size);
	if (hm_has_more(walk, sizeof(*walk), walk->size))
		return hm_error(-E2BIG, "walk: walk has members that this library does not know");
	return 0;
}

int hetmem_walk(struct hetmem_resource *res, const struct hetmem_walk *walk)
{
	struct hm_ctl_walk arg = { .walk = walk };
	int err = check_walk(walk);

	if (!err)
		err = hm_resource_ctl(res, "walk", HM_CTL_WALK, &arg);
	return err ? err : arg.result;
}

int hetmem_pool_sums(struct hetmem_resource *res, struct hetmem_sums *sums)
{
	struct hetmem_sums made = { .size = sizeof(made) };
	struct hm_ctl_walk arg = { .sums = &made };
	int err;

	if (!sums)
		return hm_error(-EINVAL, "pool_sums: sums is NULL");
	if (sums->size < sizeof(*sums))
		return hm_error(-EINVAL, "pool_sums: sums->size is %zu, set it to sizeof(struct hetmem_sums)",
				sums->size);
	if (sums->size > sizeof(*sums))
		return hm_error(-E2BIG, "pool_sums: sums has members that this library does not know");
	err = hm_resource_ctl(res, "pool_sums", HM_CTL_WALK, &arg);
	if (!err)
		*sums = made;
	return err;
}

void hm_stats_add(struct hetmem_resource_stats *sum, const struct hetmem_resource_stats *one)
{
	sum->live += one->live;
	sum->requested += one->requested;
	sum->requested_peak += one->requested_peak;
	sum->reserved += one->reserved;
	sum->reserved_peak += one->reserved_peak;
	sum->metadata += one->metadata;
	sum->allocs += one->allocs;
	sum->frees += one->frees;
	sum->failed += one->failed;
	sum->driver_calls += one->driver_calls;
	sum->host_wait_ns += one->host_wait_ns;
	sum->parked += one->parked;
	sum->spilled += one->spilled;
	sum->spill_host += one->spill_host;
	sum->spill_host_peak += one->spill_host_peak;
	sum->spilled_total += one->spilled_total;
	sum->fetched_total += one->fetched_total;
	sum->spilled_peak += one->spilled_peak;
	sum->parked_file += one->parked_file;
	sum->pressures += one->pressures;
	sum->addresses += one->addresses;
	sum->replicas += one->replicas;
}

int hetmem_tag_stats(struct hetmem_resource *res, const char *tag,
		     struct hetmem_resource_stats *stats)
{
	struct hetmem_resource_stats sum = { .size = sizeof(sum) };
	struct hm_ctl_tag_stats arg = { .tag = tag, .sum = &sum };
	int err;

	if (!stats)
		return hm_error(-EINVAL, "tag_stats: stats is NULL");
	if (stats->size < sizeof(sum))
		return hm_error(-EINVAL, "tag_stats: stats->size is %zu, set it to sizeof(struct hetmem_resource_stats)",
				stats->size);
	if (stats->size > sizeof(sum))
		return hm_error(-E2BIG, "tag_stats: stats has members that this library does not know");
	err = hm_resource_ctl(res, "tag_stats", HM_CTL_TAG_STATS, &arg);
	if (!err && !arg.nr)
		err = hm_error(-ENOENT, "tag_stats: nothing has the tag \"%s\"", tag ? tag : "");
	if (!err)
		*stats = sum;
	return err;
}

void hetmem_checkpoint_free(struct hetmem_checkpoint *checkpoint)
{
	struct hm_saved *s, *next;

	for (s = checkpoint ? checkpoint->saved : NULL; s; s = next) {
		next = s->next;
		free(s);
	}
	free(checkpoint);
}

static int checkpoint(struct hetmem_resource *res, const char *what,
		      uint64_t id, struct hm_ctl_checkpoint *arg)
{
	int err;

	if (!id)
		return hm_error(-EINVAL, "%s: id is 0", what);
	arg->checkpoint = calloc(1, sizeof(*arg->checkpoint));
	if (!arg->checkpoint)
		return hm_error(-ENOMEM, "%s: no host memory", what);
	arg->checkpoint->id = id;
	err = hm_resource_ctl(res, what, HM_CTL_CHECKPOINT, arg);
	if (err)
		hetmem_checkpoint_free(arg->checkpoint);
	return err;
}

ssize_t hetmem_private_live(struct hetmem_resource *res, uint64_t id,
			    void **ptrs, size_t nr)
{
	struct hm_ctl_checkpoint arg = { .ptrs = ptrs, .room = nr };
	int err;

	if (nr && !ptrs)
		return hm_error(-EINVAL, "private_live: ptrs is NULL");
	err = checkpoint(res, "private_live", id, &arg);
	if (err)
		return err;
	hetmem_checkpoint_free(arg.checkpoint);
	return arg.nr;
}

int hetmem_private_checkpoint(struct hetmem_resource *res, uint64_t id,
			      struct hetmem_checkpoint **out)
{
	struct hm_ctl_checkpoint arg = { 0 };
	int err;

	if (!out)
		return hm_error(-EINVAL, "private_checkpoint: checkpoint is NULL");
	err = checkpoint(res, "private_checkpoint", id, &arg);
	if (!err)
		*out = arg.checkpoint;
	return err;
}

int hm_restore_upstream(struct hetmem_resource *self,
			struct hm_ctl_restore *arg, size_t *from, size_t *to)
{
	const bool plan = arg->step == HM_RESTORE_PLAN;
	int err;

	*from = plan ? arg->nr : arg->at;
	err = hm_ctl_upstream(self, HM_CTL_RESTORE, arg);
	*to = plan ? arg->nr : arg->at;
	return err;
}

void hm_restore_cancel(struct hetmem_resource *self,
		       struct hm_ctl_restore *arg, size_t from)
{
	arg->step = HM_RESTORE_CANCEL;
	arg->at = from;
	hm_ctl_upstream(self, HM_CTL_RESTORE, arg);
	arg->step = HM_RESTORE_PLAN;
	arg->nr = from;
}

static void tell(const struct hm_ctl_restore *arg,
		 int kind,
		 void (*fn)(void *data, const struct hetmem_restored *block),
		 void *data)
{
	size_t i;

	for (i = 0; i < arg->nr; i++)
		if (arg->blocks[i].kind == kind)
			fn(data, &arg->blocks[i]);
}

int hetmem_private_restore(struct hetmem_resource *res,
			   const struct hetmem_checkpoint *checkpoint,
			   void (*fn)(void *data,
				      const struct hetmem_restored *block),
			   void *data)
{
	struct hm_ctl_restore arg = {
		.checkpoint = checkpoint, .step = HM_RESTORE_PLAN,
	};
	int err;

	if (!checkpoint)
		return hm_error(-EINVAL, "private_restore: checkpoint is NULL");
	err = hm_resource_ctl(res, "private_restore", HM_CTL_RESTORE, &arg);
	if (!err) {
		arg.step = HM_RESTORE_DO;
		err = res->ops->ctl(res, HM_CTL_RESTORE, &arg);
	}
	if (!err && fn) {
		tell(&arg, HETMEM_RESTORED_FREED, fn, data);
		tell(&arg, HETMEM_RESTORED_ALLOCATED, fn, data);
		tell(&arg, HETMEM_RESTORED_KEPT, fn, data);
	}
	free(arg.blocks);
	return err;
}
