// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool over vmm() whose blocks have tags: pool/tags.h has the design.
 *
 * Members are made with the first block of a tag, and stay until the pool is destroyed. The list
 * of members only grows, so readers take no lock. A member has addresses of its own: these tell
 * whose a pointer is. A request to all members goes through several.c.
 *
 * Locking: @moves is held by a sleep, a wake, a change of observers, and while a member is
 * made. So a sleep of everything misses no member. @making is held by requests that change
 * what a later member must copy: captures, private pools, options. Both come before the locks
 * of the pools. A thread in a function of hetmem_on_remap() holds a pool's sleep_lock: it is
 * refused @moves.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adaptor/adaptor.h"
#include "core/move.h"
#include "core/parked.h"
#include "core/shrink.h"
#include "core/snapshot.h"
#include "pool/source.h"
#include "vmm/vmm.h"

/**
 * struct member - a pool for the blocks of one tag
 * @res: the first one: struct tags.own, which asks the pool alone
 * @from, @to: its addresses; the first one has all others
 * @tag: "" for none; @scratch: for scratch blocks
 */
struct member {
	struct hetmem_resource *res;
	struct pool *pool;
	uintptr_t from, to;
	char tag[HM_TAG_LEN];
	bool scratch;
};

struct tags {
	struct hm_tags shared;
	struct hetmem_resource own;
	pthread_mutex_t moves, making;
	unsigned int nr;
	struct member members[HM_SEVERAL_MOST];
};

static struct tags *to_tags(struct hm_tags *shared)
{
	return hm_container(shared, struct tags, shared);
}

static unsigned int nr_members(const struct tags *t)
{
	return __atomic_load_n(&t->nr, __ATOMIC_ACQUIRE);
}

static struct member *owner_of(struct tags *t, const void *ptr)
{
	const unsigned int nr = nr_members(t);
	unsigned int i;

	for (i = 1; i < nr; i++)
		if ((uintptr_t)ptr - t->members[i].from < t->members[i].to - t->members[i].from)
			return &t->members[i];
	return &t->members[0];
}

static struct hetmem_resource *tags_owner(struct hm_tags *shared, const void *ptr)
{
	return &owner_of(to_tags(shared), ptr)->pool->res;
}

static int ask_owner(struct tags *t, const void *ptr, enum hm_ctl op, void *arg)
{
	return hm_pool_ctl(owner_of(t, ptr)->pool, op, arg);
}

/* The members for which @is_in (NULL: all) is true, as a resource over several. */
static void choose(struct tags *t, struct hm_several *s,
		   bool (*is_in)(struct tags *t, const struct member *m, const void *arg),
		   const void *arg)
{
	const unsigned int nr = nr_members(t);
	unsigned int i;

	s->resource = t->own;
	s->resource.ops = t->shared.pool->res.ops;
	s->nr = 0;
	for (i = 0; i < nr; i++)
		if (!is_in || is_in(t, &t->members[i], arg))
			s->upstreams[s->nr++] = t->members[i].res;
}

/* One member has nothing to undo for others: its own rules hold. */
static int ask(struct hm_several *s, enum hm_ctl op, void *arg)
{
	if (!s->nr)
		return 0;
	return s->nr == 1 ? s->upstreams[0]->ops->ctl(s->upstreams[0], op, arg) :
		hm_several_ctl(&s->resource, op, arg);
}

static int ask_all(struct tags *t, enum hm_ctl op, void *arg)
{
	struct hm_several s;

	choose(t, &s, NULL, NULL);
	return ask(&s, op, arg);
}

static int ask_all_locked(struct tags *t, pthread_mutex_t *lock, enum hm_ctl op, void *arg)
{
	int err;

	pthread_mutex_lock(lock);
	err = ask_all(t, op, arg);
	pthread_mutex_unlock(lock);
	return err;
}

/* -EDEADLK: this thread holds a lock that @moves comes before. */
static int lock_moves(struct tags *t)
{
	const unsigned int nr = nr_members(t);
	unsigned int i;
	int err = 0;

	for (i = 0; i < nr && !err; i++)
		err = hm_pool_in_observer(t->members[i].pool);
	if (!err)
		pthread_mutex_lock(&t->moves);
	return err;
}

static bool is_asleep(struct pool *p)
{
	bool asleep;

	pthread_mutex_lock(&p->lock);
	asleep = p->asleep;
	pthread_mutex_unlock(&p->lock);
	return asleep;
}

/* Members. */

static struct member *find_member(struct tags *t, const char *tag, bool scratch)
{
	const unsigned int nr = nr_members(t);
	unsigned int i;

	for (i = 0; i < nr; i++)
		if (t->members[i].scratch == scratch && !strcmp(t->members[i].tag, tag))
			return &t->members[i];
	return NULL;
}

/*
 * The tag, or the whole pool. A member of @tag sleeps, and the other one, of its scratch blocks
 * or of the rest, may not be there yet.
 */
static bool sleeps(const struct tags *t, const char *tag)
{
	const unsigned int nr = nr_members(t);
	unsigned int i;

	for (i = 1; i < nr; i++)
		if (!strcmp(t->members[i].tag, tag) && is_asleep(t->members[i].pool))
			return true;
	return is_asleep(t->shared.pool);
}

/* A pool as the program's, which moves nothing by itself. */
static int make_pool(struct tags *t, struct member *m)
{
	struct pool *of = t->shared.pool;
	struct hm_pool_options options;
	int err;

	pthread_mutex_lock(&of->lock);
	options = of->opt;
	pthread_mutex_unlock(&of->lock);
	options.min = 0;
	options.spill = 0;
	options.min_host = 0;
	options.movable = 0;
	snprintf(options.tag, sizeof(options.tag), "%s", m->tag);
	err = hm_vmm_pool_create(of->provider, &options, &m->res);
	if (err)
		return err;
	m->pool = to_pool(m->res);
	m->pool->tags = &t->shared;
	m->pool->member = true;
	m->pool->scratch = m->scratch;
	hm_vmm_range(m->res, &m->from, &m->to);
	return 0;
}

/* @m knows all that the program's pool knows of captures and private pools. */
static int join_captures(struct tags *t, struct member *m)
{
	struct pool *of = t->shared.pool;
	int err = 0;

	pthread_mutex_lock(&of->lock);
	if (of->order.nr_captured)
		err = hm_error(-EBUSY, "alloc_with: a stream is captured: allocate from tag \"%s\" before hetmem_capture_begin()",
			       m->tag);
	if (!err)
		err = hm_private_copy(of, m->pool);
	if (!err)
		hm_tags_adopt(m->pool, of);
	pthread_mutex_unlock(&of->lock);
	return err;
}

/*
 * The caller holds @moves. The first block of the tag is allocated before others see the member, so that an
 * error leaves no member. @making is held meanwhile, for as long as an allocation waits.
 */
static int add_member(struct tags *t, struct member *m, struct hm_ctl_alloc *first)
{
	int err = make_pool(t, m);
	char text[512];

	if (err)
		return err;
	err = hm_vmm_copy_observers(&t->shared.pool->res, m->res);
	pthread_mutex_lock(&t->making);
	if (!err)
		err = join_captures(t, m);
	if (!err)
		err = hm_pool_ctl(m->pool, HM_CTL_ALLOC_WITH, first);
	if (!err) {
		t->members[t->nr] = *m;
		__atomic_store_n(&t->nr, t->nr + 1, __ATOMIC_RELEASE);
		__atomic_store_n(&t->shared.pool->tagged, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&t->making);
	if (err) {
		snprintf(text, sizeof(text), "%s", hetmem_last_error());
		m->res->ops->destroy(m->res);
		pthread_mutex_lock(&t->shared.pool->lock);
		t->shared.pool->failed++;
		pthread_mutex_unlock(&t->shared.pool->lock);
		hm_error(err, "%s", text);
	}
	return err;
}

/* The member of the tag: *@out, or if there is none a new one, which has the block @first. */
static int make_member(struct tags *t, const char *tag, bool scratch, struct hm_ctl_alloc *first,
		       struct member **out)
{
	struct member m = { .scratch = scratch };
	int err = lock_moves(t);

	if (err)
		return err;
	snprintf(m.tag, sizeof(m.tag), "%s", tag);
	*out = find_member(t, tag, scratch);
	if (*out) {
		/* Another thread was faster. */
	} else if (sleeps(t, tag)) {
		err = hm_pool_asleep();
	} else if (t->nr == HM_SEVERAL_MOST) {
		err = hm_error(-ENOSPC, "alloc_with: the pool has %u tags, as many as there can be",
			       t->nr - 1);
	} else {
		err = add_member(t, &m, first);
	}
	pthread_mutex_unlock(&t->moves);
	return err;
}

static int tags_alloc(struct tags *t, struct hm_ctl_alloc *arg)
{
	const bool scratch = arg->flags & HETMEM_ALLOC_SCRATCH;
	struct hm_ctl_alloc plain = *arg;
	struct member *m = &t->members[0];
	int err = 0;

	plain.tag = NULL;
	plain.flags &= ~HETMEM_ALLOC_SCRATCH;
	if (arg->tag || scratch)
		m = find_member(t, arg->tag ? arg->tag : "", scratch);
	if (!m)
		err = make_member(t, arg->tag ? arg->tag : "", scratch, &plain, &m);
	if (!err && m)
		err = hm_pool_ctl(m->pool, HM_CTL_ALLOC_WITH, &plain);
	if (!err)
		arg->ptr = plain.ptr;
	return err;
}

/* Free memory of the others. */

static bool tags_spare(struct hm_tags *shared, const struct pool *p, bool all)
{
	struct tags *t = to_tags(shared);
	const unsigned int nr = nr_members(t);
	bool more = false;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		struct pool *other = t->members[i].pool;

		if (other == p || is_asleep(other))
			continue;
		if (!all)
			hm_pool_spare(&other->res, 1);
		else if (hm_pool_trim_now(other))
			more = true;
	}
	return more;
}

static int tags_trim(struct tags *t, size_t *arg)
{
	const unsigned int nr = nr_members(t);
	const size_t keep = *arg;
	uint64_t held, mine;
	unsigned int i;
	size_t one;
	int err = 0;

	*arg = 0;
	for (i = 0; i < nr && !err; i++) {
		struct pool *p = t->members[i].pool;

		pthread_mutex_lock(&p->lock);
		mine = p->reserved;
		pthread_mutex_unlock(&p->lock);
		held = hm_tags_held(&t->shared);
		held = held > mine ? held - mine : 0;
		one = keep > held ? keep - held : 0;
		err = hm_pool_ctl(p, HM_CTL_TRIM, &one);
		*arg += err ? 0 : one;
	}
	return err;
}

static int tags_stats(struct tags *t, struct hetmem_resource_stats *stats)
{
	int err = ask_all(t, HM_CTL_STATS, stats);

	if (nr_members(t) > 1)
		stats->reserved_peak = __atomic_load_n(&t->shared.held_peak, __ATOMIC_RELAXED);
	return err;
}

/* Whether a request about @arg, a tag, includes @m. */
static bool is_tagged(struct tags *t, const struct member *m, const void *arg)
{
	const char *tag = arg;

	return !tag || !strcmp(tag, t->shared.pool->opt.tag) || (*tag && !strcmp(tag, m->tag));
}

static int tags_tag_stats(struct tags *t, struct hm_ctl_tag_stats *arg)
{
	struct hm_ctl_tag_stats one = { .sum = arg->sum };
	const unsigned int nr = nr_members(t);
	unsigned int i;
	int err = 0;

	for (i = 0; i < nr && !err; i++)
		if (is_tagged(t, &t->members[i], arg->tag))
			err = hm_pool_tag_stats(t->members[i].pool, &one);
	arg->nr += one.nr;
	return err;
}

/* A max that all of them can hold together. */
static int tags_set(struct tags *t, struct hm_ctl_set *set)
{
	struct pool *p = t->shared.pool;
	size_t keep;
	uint64_t max;
	int err = ask_all_locked(t, &t->making, HM_CTL_SET, set);

	if (err || set->try || nr_members(t) == 1)
		return err;
	pthread_mutex_lock(&p->lock);
	max = p->opt.max;
	pthread_mutex_unlock(&p->lock);
	keep = max;
	return max && hm_tags_held(&t->shared) > max ? tags_trim(t, &keep) : 0;
}

/* Sleep and wake. */

/* The pools that sleep, of those that @tag does not name. *@awake: any member is. */
static unsigned int count_asleep(struct tags *t, const char *tag, bool *awake)
{
	const unsigned int nr = nr_members(t);
	unsigned int i, asleep = 0;

	*awake = false;
	for (i = 0; i < nr; i++) {
		if (!is_asleep(t->members[i].pool))
			*awake = true;
		else if (!is_tagged(t, &t->members[i], tag))
			asleep++;
	}
	return asleep;
}

/*
 * Members give back free memory until less than @held is held, or hm_now() is @until: free memory
 * can be in use by earlier work. Returns whether less is held.
 */
static bool make_room(struct tags *t, uint64_t held, uint64_t until)
{
	struct pool *p = t->shared.pool;
	unsigned int naps = 0;
	bool more;

	tags_spare(&t->shared, NULL, false);
	while (hm_tags_held(&t->shared) >= held) {
		more = tags_spare(&t->shared, NULL, true);
		if (hm_tags_held(&t->shared) < held)
			break;
		if (!more || hm_now() >= until)
			return false;
		pthread_mutex_lock(&p->lock);
		hm_nap(&p->lock, &naps);
		pthread_mutex_unlock(&p->lock);
	}
	return true;
}

/*
 * @one is of @s. What other members have free is room for a wake, which waits for it as long as
 * an allocation does.
 */
static int sleep_or_wake(struct tags *t, struct hm_several *s, enum hm_ctl op,
			 struct hm_ctl_sleep *one)
{
	const uint64_t until = hm_now() + hm_pool_most_wait(t->shared.pool);
	uint64_t held;
	char text[256];
	int err;

	for (;;) {
		held = hm_tags_held(&t->shared);
		one->asleep = 0;
		err = ask(s, op, one);
		if (err != -ENOMEM || op != HM_CTL_WAKE || nr_members(t) == 1)
			return err;
		snprintf(text, sizeof(text), "%s", hetmem_last_error());
		if (!make_room(t, held, until))
			return hm_error(err, "%s", text);
	}
}

static int tags_sleep(struct tags *t, enum hm_ctl op, struct hm_ctl_sleep *arg)
{
	struct hm_ctl_sleep one = *arg;
	unsigned int others;
	struct hm_several s;
	int err = lock_moves(t);

	if (err)
		return err;
	one.tag = NULL;
	others = count_asleep(t, arg->tag, &t->shared.bounded);
	choose(t, &s, is_tagged, arg->tag);
	one.asleep = 0;
	err = sleep_or_wake(t, &s, op, &one);
	pthread_mutex_unlock(&t->moves);
	arg->asleep += others + one.asleep;
	arg->refused = one.refused;
	return err;
}

static uint64_t tags_parked(struct hm_tags *shared, const struct pool *p)
{
	struct tags *t = to_tags(shared);
	const unsigned int nr = nr_members(t);
	uint64_t bytes = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		struct pool *other = t->members[i].pool;

		if (other != p)
			bytes += hm_vmm_parked(&other->res);
	}
	return bytes;
}

/* A member that was made after a checkpoint has nothing to restore. */
static bool is_saved(struct tags *t, const struct member *m, const void *arg)
{
	const struct hm_saved *s = arg;

	(void)t;
	while (s && s->pool != m->pool->order.serial)
		s = s->next;
	return s;
}

static int tags_restore(struct tags *t, struct hm_ctl_restore *arg)
{
	struct hm_several s;

	choose(t, &s, is_saved, arg->checkpoint->saved);
	return s.nr ? ask(&s, HM_CTL_RESTORE, arg) :
		hm_pool_ctl(t->shared.pool, HM_CTL_RESTORE, arg);
}

static int tags_ctl(struct hm_tags *shared, enum hm_ctl op, void *arg)
{
	struct tags *t = to_tags(shared);

	switch (op) {
	case HM_CTL_OWNS:
		return ask_owner(t, ((struct hm_ctl_owns *)arg)->ptr, op, arg);
	case HM_CTL_RECORD:
	case HM_CTL_PIN_COMM:
	case HM_CTL_UNPIN_COMM:
		return ask_owner(t, ((struct hm_ctl_stream *)arg)->ptr, op, arg);
	case HM_CTL_MOVE:
		return ask_owner(t, ((struct hm_ctl_move *)arg)->ptr, op, arg);
	case HM_CTL_GROW:
		return ask_owner(t, ((struct hm_ctl_grow *)arg)->ptr, op, arg);
	case HM_CTL_SHRINK:
		return ask_owner(t, ((struct hm_ctl_shrink *)arg)->ptr, op, arg);
	case HM_CTL_PARKED_READ:
		return ask_owner(t, ((struct hm_ctl_parked *)arg)->ptr, op, arg);
	case HM_CTL_SEGMENTS:
		return ask_owner(t, ((struct hm_ctl_segments *)arg)->ptr, op, arg);
	case HM_CTL_EXPORT:
		return ask_owner(t, ((struct hm_ctl_export *)arg)->ptr, op, arg);
	case HM_CTL_ALLOC_WITH:
		return tags_alloc(t, arg);
	case HM_CTL_SLEEP:
	case HM_CTL_WAKE:
		return tags_sleep(t, op, arg);
	case HM_CTL_TRIM:
		return tags_trim(t, arg);
	case HM_CTL_STATS:
		return tags_stats(t, arg);
	case HM_CTL_TAG_STATS:
		return tags_tag_stats(t, arg);
	case HM_CTL_SET:
		return tags_set(t, arg);
	case HM_CTL_RESTORE:
		return tags_restore(t, arg);
	case HM_CTL_ACCESS:
	case HM_CTL_GATE:
	case HM_CTL_PRESSURE:
		return hm_pool_ctl(shared->pool, op, arg);
	case HM_CTL_CAPTURE_BEGIN:
	case HM_CTL_CAPTURE_END:
	case HM_CTL_CAPTURE_RELEASE:
	case HM_CTL_PRIVATE_RETAIN:
	case HM_CTL_PRIVATE_RELEASE:
		return ask_all_locked(t, &t->making, op, arg);
	case HM_CTL_OBSERVE: {
		int err = lock_moves(t);

		if (err)
			return err;
		err = ask_all(t, op, arg);
		pthread_mutex_unlock(&t->moves);
		return err;
	}
	default:
		return ask_all(t, op, arg);
	}
}

static void tags_destroy(struct hm_tags *shared)
{
	struct tags *t = to_tags(shared);

	while (t->nr > 1) {
		t->nr--;
		t->members[t->nr].res->ops->destroy(t->members[t->nr].res);
	}
	pthread_mutex_destroy(&t->moves);
	pthread_mutex_destroy(&t->making);
	pthread_mutex_destroy(&shared->limit);
}

static void tags_tell(struct hm_tags *shared, const struct pool *p, char *text, size_t size)
{
	struct tags *t = to_tags(shared);
	const unsigned int nr = nr_members(t);
	char one[384];
	size_t at = 0;
	unsigned int i;

	for (i = 0; i < nr && at < size; i++) {
		struct pool *other = t->members[i].pool;

		if (other == p)
			continue;
		pthread_mutex_lock(&other->lock);
		hm_pool_tell_free_bytes(other, one, sizeof(one));
		pthread_mutex_unlock(&other->lock);
		if (one[0])
			at += snprintf(text + at, size - at, "; tag \"%s\"%s", t->members[i].tag, one);
	}
}

static const struct hm_tags_ops tags_ops = {
	.ctl = tags_ctl,
	.owner = tags_owner,
	.spare = tags_spare,
	.parked = tags_parked,
	.tell = tags_tell,
	.destroy = tags_destroy,
};

static int own_ctl(struct hetmem_resource *res, enum hm_ctl op, void *arg)
{
	return hm_pool_ctl(hm_container(res, struct tags, own)->shared.pool, op, arg);
}

static const struct hm_resource_ops own_ops = {
	.name = "pool",
	.ctl = own_ctl,
};

_Static_assert(offsetof(struct tags, shared) == 0, "the pool frees it");

int hm_tagged_pool_create(struct hm_provider *provider, const struct hm_pool_options *options,
			  struct hetmem_resource **res)
{
	struct tags *t = calloc(1, sizeof(*t));
	struct pool *p;
	int err;

	if (!t)
		return hm_error(-ENOMEM, "pool: no host memory");
	err = hm_vmm_pool_create(provider, options, res);
	if (err) {
		free(t);
		return err;
	}
	p = to_pool(*res);
	t->shared.ops = &tags_ops;
	t->shared.pool = p;
	t->shared.held = p->reserved;
	t->shared.held_peak = p->reserved_peak;
	pthread_mutex_init(&t->shared.limit, NULL);
	pthread_mutex_init(&t->moves, NULL);
	pthread_mutex_init(&t->making, NULL);
	t->own = p->res;
	t->own.ops = &own_ops;
	t->members[0] = (struct member){ .res = &t->own, .pool = p };
	t->nr = 1;
	p->tags = &t->shared;
	return 0;
}
