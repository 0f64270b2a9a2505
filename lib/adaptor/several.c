// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources over several others. What names a pointer goes to the one that
 * owns it; what concerns all is told to all, and succeeds if any of them
 * could do it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "adaptor/adaptor.h"
#include "core/move.h"
#include "core/parked.h"
#include "core/shrink.h"
#include "core/snapshot.h"

void *hm_adaptor_new(size_t bytes, const struct hm_resource_ops *ops,
		     struct hetmem_resource *upstream)
{
	struct hetmem_resource *res = calloc(1, bytes);

	if (!res) {
		hm_error(-ENOMEM, "%s: no memory", ops->name);
		return NULL;
	}
	*res = (struct hetmem_resource){
		.ops = ops,
		.hm = upstream->hm,
		.upstream = upstream,
		.device = upstream->device,
		.mixed = upstream->mixed,
	};
	return res;
}

int hm_adaptor_free(struct hetmem_resource *self, void *ptr, size_t *size,
		    hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;

	return up->ops->free(up, ptr, size, stream);
}

int hm_adaptor_access(struct hetmem_resource *self, struct hm_ctl_access *arg)
{
	int err = hm_ctl_upstream(self, HM_CTL_ACCESS, arg);

	arg->access->unit = 0;
	return err;
}

void *hm_several_new(size_t bytes, const struct hm_resource_ops *ops,
		     struct hetmem_resource **upstreams, int nr)
{
	struct hm_several *several = hm_adaptor_new(bytes, ops, upstreams[0]);
	int i;

	if (!several)
		return NULL;
	several->resource.upstream = NULL;
	several->nr = nr;
	for (i = 0; i < nr; i++) {
		several->upstreams[i] = upstreams[i];
		several->resource.mixed |= upstreams[i]->mixed ||
			(upstreams[i]->device < 0) !=
			(upstreams[0]->device < 0);
	}
	return several;
}

/*
 * Whose block begins at @ptr, or contains it if not @first. 0; -ENOENT; what
 * one of them failed with, such as -EOWNERDEAD, when none has it.
 */
static int owner(struct hm_several *s, const void *ptr, bool first,
		 struct hetmem_resource **up)
{
	int i, err, result = -ENOENT;

	for (i = 0; i < s->nr; i++) {
		struct hm_ctl_owns owns = { .ptr = ptr, .first = first };

		*up = s->upstreams[i];
		err = (*up)->ops->ctl(*up, HM_CTL_OWNS, &owns);
		if (!err && (!first || owns.base == ptr))
			return 0;
		if (err && err != -ENOENT)
			result = err;
	}
	*up = NULL;
	return result;
}

int hm_several_free(struct hetmem_resource *self, void *ptr, size_t *size,
		    hetmem_stream stream)
{
	struct hm_several *s = (struct hm_several *)self;
	struct hetmem_resource *up;
	int err = owner(s, ptr, true, &up);

	if (err == -ENOENT)
		return hm_error(-EINVAL, "free: %p is not allocated from this %s",
				ptr, self->ops->name);
	return err ? err : up->ops->free(up, ptr, size, stream);
}

/* Adds the upstreams' statistics. Those of the whole stack count once. */
static int sum_stats(struct hm_several *s,
		     struct hetmem_resource_stats *stats)
{
	int i, err, result = -EOPNOTSUPP;

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];
		struct hetmem_resource_stats one = { .size = sizeof(one) };

		err = up->ops->ctl(up, HM_CTL_STATS, &one);
		if (err) {
			if (result)
				result = err;
			continue;
		}
		result = 0;
		hm_stats_add(stats, &one);
	}
	return result;
}

/* Multiples of it are whole units of both; 0: there are none. */
static uint64_t common_unit(uint64_t a, uint64_t b)
{
	uint64_t x = a, y = b, rest;

	if (!a || !b)
		return a + b;
	while ((rest = x % y)) {
		x = y;
		y = rest;
	}
	return a / y * b;
}

/* What all can use, and what can use some. */
static int merge_access(struct hm_several *s, struct hm_ctl_access *arg)
{
	struct hetmem_access *all = arg->access;
	int i, err;

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];
		struct hetmem_access one = { .size = sizeof(one) };
		struct hm_ctl_access ask = {
			.access = &one, .whose = arg->whose,
		};

		err = up->ops->ctl(up, HM_CTL_ACCESS, &ask);
		if (err)
			return err;
		arg->found |= ask.found;
		all->host = one.host && (!i || all->host);
		all->devices = i ? all->devices & one.devices : one.devices;
		all->some_host |= one.some_host;
		all->some_devices |= one.some_devices;
		all->unit = common_unit(all->unit, one.unit);
	}
	return 0;
}

static int trim_all(struct hm_several *s, size_t *arg)
{
	size_t keep = *arg, freed = 0;
	int i, err, result = -EOPNOTSUPP;

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];
		size_t one = keep;

		err = up->ops->ctl(up, HM_CTL_TRIM, &one);
		if (!err) {
			freed += one;
			result = 0;
		} else if (err != -EOPNOTSUPP) {
			return err;
		}
	}
	*arg = freed;
	return result;
}

/*
 * What puts those that were told before one failed back: otherwise neither the
 * same nor the opposite could be done with all of them. What is not here can be
 * told again. A pool that slept before sleeps on. Without HETMEM_SLEEP_KEEP the others
 * have lost their contents.
 */
static bool opposite(enum hm_ctl op, enum hm_ctl *back)
{
	switch (op) {
	case HM_CTL_CAPTURE_BEGIN:
		*back = HM_CTL_CAPTURE_END;
		return true;
	case HM_CTL_CAPTURE_END:
		*back = HM_CTL_CAPTURE_BEGIN;
		return true;
	case HM_CTL_PRIVATE_RETAIN:
		*back = HM_CTL_PRIVATE_RELEASE;
		return true;
	case HM_CTL_SLEEP:
		*back = HM_CTL_WAKE;
		return true;
	case HM_CTL_OBSERVE:
		*back = HM_CTL_OBSERVE;
		return true;
	default:
		return false;
	}
}

/* The last error stays that of what failed. */
static void put_back(struct hm_several *s, uint64_t told, enum hm_ctl op,
		     void *arg)
{
	char text[256];
	enum hm_ctl back;
	int i;

	if (!opposite(op, &back))
		return;
	if (op == HM_CTL_SLEEP)
		((struct hm_ctl_sleep *)arg)->undo = true;
	if (op == HM_CTL_OBSERVE)
		((struct hm_ctl_observe *)arg)->add ^= true;
	snprintf(text, sizeof(text), "%s", hetmem_last_error());
	for (i = 0; i < s->nr; i++)
		if (told >> i & 1)
			s->upstreams[i]->ops->ctl(s->upstreams[i], back, arg);
	hm_error(0, "%s", text);
}

/* One that could sleep, and without the contents only: not one that has nothing to do. */
static bool is_refused(enum hm_ctl op, const void *arg)
{
	return op == HM_CTL_SLEEP && ((const struct hm_ctl_sleep *)arg)->refused;
}

static int tell_all(struct hm_several *s, enum hm_ctl op, void *arg)
{
	int i, err, result = -EOPNOTSUPP;
	uint64_t told = 0;

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];

		err = up->ops->ctl(up, op, arg);
		if (err && (err != -EOPNOTSUPP || is_refused(op, arg))) {
			/* A pool that could not give back all sleeps as well. */
			if (op == HM_CTL_SLEEP)
				told |= 1ULL << i;
			put_back(s, told, op, arg);
			return err;
		}
		if (!err) {
			result = 0;
			told |= 1ULL << i;
		}
	}
	return result;
}

/* Those with scratch blocks alone come last: what refuses the sleep comes first. */
static int sleep_all(struct hm_several *s, struct hm_ctl_sleep *arg)
{
	int err;

	if (arg->part != HM_SLEEP_ALL)
		return tell_all(s, HM_CTL_SLEEP, arg);
	arg->part = HM_SLEEP_KEPT;
	err = tell_all(s, HM_CTL_SLEEP, arg);
	if (!err) {
		arg->part = HM_SLEEP_SCRATCH;
		err = tell_all(s, HM_CTL_SLEEP, arg);
		if (err)
			put_back(s, UINT64_MAX, HM_CTL_SLEEP, arg);
	}
	arg->part = HM_SLEEP_ALL;
	return err;
}

/* All that have the parameter, if none of them refuses. */
static int set_all(struct hm_several *s, struct hm_ctl_set *set)
{
	const bool try = set->try;
	int err;

	set->try = true;
	err = tell_all(s, HM_CTL_SET, set);
	set->try = try;
	return err || try ? err : tell_all(s, HM_CTL_SET, set);
}

/* All of them plan a restore, or none. Those that planned it do it, or cancel. */
static int restore_all(struct hm_several *s, struct hm_ctl_restore *arg)
{
	const size_t from = arg->nr;
	int i, j, err = 0, result = -EOPNOTSUPP;

	for (i = 0; i < s->nr; i++) {
		err = s->upstreams[i]->ops->ctl(s->upstreams[i], HM_CTL_RESTORE,
						arg);
		if (err && err != -EOPNOTSUPP)
			break;
		result = err ? result : 0;
	}
	if (i == s->nr)
		return result;
	arg->step = HM_RESTORE_CANCEL;
	arg->at = from;
	for (j = 0; j < i; j++)
		s->upstreams[j]->ops->ctl(s->upstreams[j], HM_CTL_RESTORE, arg);
	arg->step = HM_RESTORE_PLAN;
	arg->nr = from;
	return err;
}

/* One step of a wake, of all. @asleep: pools of others. *@nr: how many were asked. */
static int wake_step(struct hm_several *s, struct hm_ctl_sleep *arg, enum hm_wake_step step,
		     unsigned int asleep, int *nr)
{
	int i, err, result = -EOPNOTSUPP;

	arg->step = step;
	arg->asleep = asleep;
	for (i = 0; i < s->nr; i++) {
		err = s->upstreams[i]->ops->ctl(s->upstreams[i], HM_CTL_WAKE, arg);
		if (err && err != -EOPNOTSUPP) {
			*nr = i;
			return err;
		}
		result = err ? result : 0;
	}
	*nr = s->nr;
	return result;
}

/* Those that made memory give it back. The error and its text stay. */
static int wake_cancel(struct hm_several *s, struct hm_ctl_sleep *arg, int nr, int err)
{
	char text[256];
	int i;

	snprintf(text, sizeof(text), "%s", hetmem_last_error());
	arg->step = HM_WAKE_CANCEL;
	for (i = 0; i < nr; i++)
		s->upstreams[i]->ops->ctl(s->upstreams[i], HM_CTL_WAKE, arg);
	return hm_error(err, "%s", text);
}

/* All of them make their memory, load it and are awake; or none. */
static int wake_all(struct hm_several *s, struct hm_ctl_sleep *arg)
{
	const enum hm_wake_step step = arg->step;
	const unsigned int asleep = arg->asleep;
	int nr, err;

	err = wake_step(s, arg, step == HM_WAKE_ALL ? HM_WAKE_MAKE : step, asleep, &nr);
	if (!err && step == HM_WAKE_ALL)
		err = wake_step(s, arg, HM_WAKE_LOAD, asleep, &nr);
	if (!err && step == HM_WAKE_ALL)
		err = wake_step(s, arg, HM_WAKE_FINISH, asleep, &nr);
	else if (err && err != -EOPNOTSUPP)
		err = wake_cancel(s, arg, arg->step == HM_WAKE_MAKE ? nr : s->nr, err);
	arg->step = step;
	return err;
}

/* All of them, whatever one says: what it did is not to be done again. */
static int release_all(struct hm_several *s, enum hm_ctl op, void *arg)
{
	int i, err, result = -EOPNOTSUPP, unknown = 0, failed = 0;

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];

		err = up->ops->ctl(up, op, arg);
		if (!err)
			result = 0;
		else if (err == -ENOENT)
			unknown = err;
		else if (err != -EOPNOTSUPP && !failed)
			failed = err;
	}
	return failed ? failed : result && unknown ? unknown : result;
}

int hm_several_no_memory(const char *first)
{
	char last[384];

	if (!first[0])
		return -ENOMEM;
	snprintf(last, sizeof(last), "%s", hetmem_last_error());
	return hm_error(-ENOMEM, "%s; before that: %s", last, first);
}

/* One block, of the first that can make one with these options. */
static int alloc_with_first(struct hm_several *s, struct hm_ctl_alloc *arg)
{
	int i, err = -EOPNOTSUPP;
	char text[HM_SEVERAL_TEXT] = "";

	for (i = 0; i < s->nr; i++) {
		struct hetmem_resource *up = s->upstreams[i];

		if (i == 1 && err == -ENOMEM)
			snprintf(text, sizeof(text), "%s", hetmem_last_error());
		err = up->ops->ctl(up, HM_CTL_ALLOC_WITH, arg);
		if (err != -EOPNOTSUPP && err != -ENOMEM)
			break;
	}
	return err == -ENOMEM ? hm_several_no_memory(text) : err;
}

static int ask_first(struct hm_several *s, enum hm_ctl op, void *arg)
{
	int i, err = -EOPNOTSUPP;

	for (i = 0; err == -EOPNOTSUPP && i < s->nr; i++)
		err = s->upstreams[i]->ops->ctl(s->upstreams[i], op, arg);
	return err;
}

static int ask_owner(struct hm_several *s, const void *ptr, bool first,
		     enum hm_ctl op, void *arg)
{
	struct hetmem_resource *up;
	int err = owner(s, ptr, first, &up);

	if (err == -ENOENT && op != HM_CTL_OWNS)
		return hm_error(-EINVAL, "%p is not allocated from this %s",
				ptr, s->resource.ops->name);
	return err ? err : up->ops->ctl(up, op, arg);
}

int hm_several_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct hm_several *s = (struct hm_several *)self;
	const struct hm_ctl_owns *owns = arg;

	switch (op) {
	case HM_CTL_OWNS:
		return ask_owner(s, owns->ptr, owns->first, op, arg);
	case HM_CTL_PIN_COMM:
	case HM_CTL_UNPIN_COMM:
		return ask_owner(s, ((struct hm_ctl_stream *)arg)->ptr, false,
				 op, arg);
	case HM_CTL_RECORD:
		return ask_owner(s, ((struct hm_ctl_stream *)arg)->ptr, true,
				 op, arg);
	case HM_CTL_MOVE:
		return ask_owner(s, ((struct hm_ctl_move *)arg)->ptr, true, op, arg);
	case HM_CTL_GROW:
		return ask_owner(s, ((struct hm_ctl_grow *)arg)->ptr, true, op,
				 arg);
	case HM_CTL_SHRINK:
		return ask_owner(s, ((struct hm_ctl_shrink *)arg)->ptr, true, op, arg);
	case HM_CTL_PARKED_READ:
		return ask_owner(s, ((struct hm_ctl_parked *)arg)->ptr, false, op, arg);
	case HM_CTL_SEGMENTS:
		return ask_owner(s, ((struct hm_ctl_segments *)arg)->ptr,
				 false, op, arg);
	case HM_CTL_EXPORT:
		return ask_owner(s, ((struct hm_ctl_export *)arg)->ptr, true,
				 op, arg);
	case HM_CTL_STATS:
		return sum_stats(s, arg);
	case HM_CTL_ACCESS:
		return merge_access(s, arg);
	case HM_CTL_TRIM:
		return trim_all(s, arg);
	case HM_CTL_HISTORY:
	case HM_CTL_CHARGE:
		return ask_first(s, op, arg);
	case HM_CTL_SET:
		return set_all(s, arg);
	case HM_CTL_RESTORE:
		return restore_all(s, arg);
	case HM_CTL_SLEEP:
		return sleep_all(s, arg);
	case HM_CTL_WAKE:
		return wake_all(s, arg);
	case HM_CTL_ALLOC_WITH:
		return alloc_with_first(s, arg);
	case HM_CTL_CAPTURE_RELEASE:
	case HM_CTL_PRIVATE_RELEASE:
	case HM_CTL_PRIVATE_TRIM:
		return release_all(s, op, arg);
	default:
		return tell_all(s, op, arg);
	}
}

void hm_several_destroy(struct hetmem_resource *self)
{
	struct hm_several *s = (struct hm_several *)self;
	int i;

	for (i = 0; i < s->nr; i++)
		hm_resource_put(s->upstreams[i]);
	hm_resource_free(self);
}
