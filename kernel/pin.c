// SPDX-License-Identifier: GPL-2.0
/*
 * Timed pins: holding pages on the host for a while, so that what makes them
 * bounce comes to rest.
 *
 * Design. MIGRATE with PIN takes references that no migration gets past
 * (FOLL_LONGTERM), in the caller's context only, charged to mm->pinned_vm
 * against RLIMIT_MEMLOCK, and to the user against caps/pinned_kb: RLIMIT_MEMLOCK
 * bounds a process, not a user. A context holds a page of its address space at most
 * once; pinning it again prolongs that. The pages held are kept in groups of
 * 64 neighbours, in a tree by address. So pinning and ending n pages costs
 * O(n log n), however calls overlap.
 *
 * A page ends when its time is up, when it is unmapped, when the address space
 * ends, by UNPIN, or with the context. pin_reap() alone drops references and
 * their charge. A notification only marks pages as ended and queues the work
 * item of the context. That looks at all groups, and so rests for longer the
 * more there are: it takes about 1% of a CPU at most. A notification marks the pages
 * of PIN_NOTIFY_MAX groups. The next group remembers how far the unmapping goes;
 * each pin_reap() marks that group and hands the rest to the one after it. Until
 * then nothing is pinned in the context: new pins would end with the old ones.
 *
 * A pin holds a page, not an address. Another page can take its place
 * (MADV_DONTNEED, truncation), and no notification is specific to that. Pinning
 * again finds the new page, and ends the first pin.
 *
 * Locking. hm->lock protects the groups. context->reap, a mutex, is held from
 * taking the pages of a group out until they are dropped: its holder knows that
 * no page is between the two. References are taken with neither, in a window
 * (notifier.c): if pages were unmapped since it was tried, the references are
 * dropped and taken again.
 */
#include <linux/capability.h>

#include "range.h"
#include "trace.h"

#define PIN_PAGES		64
#define PIN_BYTES		(PIN_PAGES * PAGE_SIZE)

/* How long the work rests, and in addition for this many groups a jiffy. */
#define PIN_PAUSE		msecs_to_jiffies(10)
#define PIN_GROUPS_PER_JIFFY	(100000 / HZ)

/* Groups that a notification marks. */
#define PIN_NOTIFY_MAX		64

/**
 * struct pin_group - pages held among 64 neighbours
 * @node: in context->pins: the addresses of all 64
 * @held: a bit for each page that is held
 * @ended: of these, a bit for each that is to be dropped
 * @ends_to: all up to this byte, here and in the groups behind, is to end; or 0
 * @next: jiffies, not later than when the next of the others ends
 * @expires: jiffies, for each page
 * @pages: the pages
 */
struct pin_group {
	struct interval_tree_node node;
	u64 held;
	u64 ended;
	unsigned long ends_to;
	unsigned long next;
	unsigned long expires[PIN_PAGES];
	struct page *pages[PIN_PAGES];
};

struct workqueue_struct *hetmem_wq;
unsigned int hetmem_pinned_kb;

/* The first group with addresses of [@start, @last], or NULL. */
static struct pin_group *pin_group_first(struct hetmem_context *ctx, unsigned long start,
					 unsigned long last)
{
	struct interval_tree_node *node = interval_tree_iter_first(&ctx->pins, start, last);

	return node ? container_of(node, struct pin_group, node) : NULL;
}

/* The pages of @group that are in [@start, @last]; 0: none. */
static u64 pin_group_mask(const struct pin_group *group, unsigned long start, unsigned long last)
{
	const unsigned long first = group->node.start;

	start = max(start, first);
	last = min(last, group->node.last);
	if (start > last)
		return 0;
	return GENMASK_ULL((last - first) >> PAGE_SHIFT, (start - first) >> PAGE_SHIFT);
}

/* The work is to run at @when, or a little later. hm->lock is held. */
static void pin_arm(struct hetmem_context *ctx, unsigned long when)
{
	unsigned long soon = jiffies + PIN_PAUSE + ctx->nr_pin_groups / PIN_GROUPS_PER_JIFFY;

	if (time_before(when, soon))
		when = soon;
	if (delayed_work_pending(&ctx->pin_work) && !time_before(when, ctx->pin_next))
		return;
	ctx->pin_next = when;
	mod_delayed_work(hetmem_wq, &ctx->pin_work, when - jiffies);
}

/*
 * Takes pages out of @group: those of @mask, those that have ended, and, if
 * @mask is 0, those whose time is up. Return: how many, in @batch.
 */
static unsigned int pin_group_take(struct hetmem_context *ctx, struct pin_group *group, u64 mask,
				   struct page **batch)
{
	const u64 take = mask | group->ended;
	unsigned int i, nr = 0, live = 0;
	u64 left;

	group->next = jiffies + MAX_JIFFY_OFFSET;
	for (left = group->held; left; left &= left - 1) {
		i = __ffs64(left);
		if (take & BIT_ULL(i) || (!mask && time_after_eq(jiffies, group->expires[i]))) {
			live += !(group->ended & BIT_ULL(i));
			group->held &= ~BIT_ULL(i);
			batch[nr++] = group->pages[i];
		} else if (time_before(group->expires[i], group->next)) {
			group->next = group->expires[i];
		}
	}
	group->ended = 0;
	WRITE_ONCE(ctx->nr_pinned, ctx->nr_pinned - live);
	return nr;
}

/* The pages of @mask, as far as they are held, end. hm->lock is held. */
static void pin_group_end(struct hetmem_context *ctx, struct pin_group *group, u64 mask)
{
	mask &= group->held & ~group->ended;
	group->ended |= mask;
	WRITE_ONCE(ctx->nr_pinned, ctx->nr_pinned - hweight64(mask));
}

/* All from @group on up to @last is to end, later. hm->lock is held. */
static void pin_group_ends_to(struct hetmem_context *ctx, struct pin_group *group,
			      unsigned long last)
{
	WRITE_ONCE(ctx->nr_pin_ending, ctx->nr_pin_ending + !group->ends_to);
	group->ends_to = max(group->ends_to, last);
}

/* Does so in @group, and leaves the rest to the next one. hm->lock is held. */
static void pin_group_settle(struct hetmem_context *ctx, struct pin_group *group)
{
	struct pin_group *next;

	if (!group->ends_to)
		return;
	pin_group_end(ctx, group, pin_group_mask(group, 0, group->ends_to));
	next = pin_group_first(ctx, group->node.last + 1, group->ends_to);
	if (next)
		pin_group_ends_to(ctx, next, group->ends_to);
	group->ends_to = 0;
	WRITE_ONCE(ctx->nr_pin_ending, ctx->nr_pin_ending - 1);
}

static void pin_uncharge(struct hetmem_context *ctx, unsigned int nr)
{
	atomic64_sub(nr, &ctx->hm->notifier.mm->pinned_vm);
	atomic64_sub(nr, &ctx->user->pinned);
	hetmem_total_add(pages_pinned, -(s64)nr);
}

/**
 * pin_reap - drop pages
 * @ctx: context
 * @start: of the groups to look at, page-aligned
 * @last: of these
 * @all: drop the pages of [@start, @last], else those whose time is up, in all
 *	of each group; those that have ended are dropped anyway
 *
 * Return: pages that were dropped and had not been marked as ended.
 */
static u64 pin_reap(struct hetmem_context *ctx, unsigned long start, unsigned long last, bool all)
{
	unsigned long at = READ_ONCE(ctx->nr_pin_ending) ? 0 : start, next;
	struct page *batch[PIN_PAGES];
	struct pin_group *group;
	u64 dropped = 0, mask;
	unsigned int nr;

	for (;;) {
		nr = 0;
		mutex_lock(&ctx->reap);
		spin_lock(&ctx->hm->lock);
		group = pin_group_first(ctx, at, last);
		if (!group)
			break;
		at = group->node.last + 1;
		pin_group_settle(ctx, group);
		mask = all ? pin_group_mask(group, start, last) : 0;
		if (mask || group->ended || time_after_eq(jiffies, group->next)) {
			dropped += ctx->nr_pinned;
			nr = pin_group_take(ctx, group, mask, batch);
			dropped -= ctx->nr_pinned;
		}
		next = group->next;
		if (group->held) {
			group = NULL;
			pin_arm(ctx, next);
		} else {
			interval_tree_remove(&group->node, &ctx->pins);
			ctx->nr_pin_groups--;
		}
		spin_unlock(&ctx->hm->lock);
		unpin_user_pages(batch, nr);
		pin_uncharge(ctx, nr);
		mutex_unlock(&ctx->reap);
		if (group)
			hetmem_free(ctx->user, group, sizeof(*group));
		cond_resched();
	}
	spin_unlock(&ctx->hm->lock);
	mutex_unlock(&ctx->reap);
	return dropped;
}

static void pin_work(struct work_struct *work)
{
	pin_reap(container_of(work, struct hetmem_context, pin_work.work), 0, ULONG_MAX, false);
}

void hetmem_pin_open(struct hetmem_context *ctx)
{
	mutex_init(&ctx->reap);
	INIT_DELAYED_WORK(&ctx->pin_work, pin_work);
}

/* At close, when neither a notification nor a command can come any more. */
void hetmem_pin_close(struct hetmem_context *ctx)
{
	cancel_delayed_work_sync(&ctx->pin_work);
	pin_reap(ctx, 0, ULONG_MAX, true);
	cancel_delayed_work_sync(&ctx->pin_work);
}

/*
 * [@start, @last] is about to be unmapped: its pins end. hm->lock is held; in a
 * notification.
 */
void hetmem_pin_unmapped(struct hetmem_context *ctx, unsigned long start, unsigned long last)
{
	unsigned long at = start;
	struct pin_group *group;
	unsigned int nr;

	for (nr = 0; (group = pin_group_first(ctx, at, last)); nr++) {
		if (!nr)
			pin_arm(ctx, jiffies);
		if (nr == PIN_NOTIFY_MAX) {
			pin_group_ends_to(ctx, group, last);
			break;
		}
		pin_group_end(ctx, group, pin_group_mask(group, start, last));
		at = group->node.last + 1;
	}
}

/**
 * hetmem_pin_at - whether an address is pinned
 * @ctx: context
 * @addr: address
 * @end: shortened to where the answer may change
 */
bool hetmem_pin_at(struct hetmem_context *ctx, unsigned long addr, unsigned long *end)
{
	unsigned int i = (addr >> PAGE_SHIFT) % PIN_PAGES;
	unsigned long stop = ULONG_MAX;
	struct pin_group *group;
	bool pinned = false;
	u64 held;

	if (READ_ONCE(ctx->nr_pin_ending))
		pin_reap(ctx, 0, ULONG_MAX, false);
	guard(spinlock)(&ctx->hm->lock);
	group = pin_group_first(ctx, addr, ULONG_MAX);
	if (group && group->node.start > addr) {
		stop = group->node.start;
	} else if (group) {
		held = group->held & ~group->ended;
		pinned = held & BIT_ULL(i);
		/* The first page behind it for which that is otherwise. */
		held = (pinned ? ~held : held) & ~GENMASK_ULL(i, 0);
		stop = group->node.start + ((held ? __ffs64(held) : PIN_PAGES) << PAGE_SHIFT);
	}
	*end = min(*end, stop);
	return pinned;
}

static int pin_charge(struct hetmem_context *ctx, unsigned int nr, bool tell)
{
	const u64 user_max = READ_ONCE(hetmem_pinned_kb) >> (PAGE_SHIFT - 10);
	atomic64_t *pinned = &ctx->hm->notifier.mm->pinned_vm;
	const unsigned long limit = rlimit(RLIMIT_MEMLOCK);

	if (!hetmem_add_capped(&ctx->user->pinned, nr, user_max, CAP_SYS_RESOURCE)) {
		if (tell)
			trace_hetmem_limit_hit("pinned_kb", user_max << (PAGE_SHIFT - 10));
		return -EDQUOT;
	}
	if (!hetmem_add_capped(pinned, nr, limit >> PAGE_SHIFT, CAP_IPC_LOCK)) {
		if (tell)
			trace_hetmem_limit_hit("RLIMIT_MEMLOCK", limit);
		atomic64_sub(nr, &ctx->user->pinned);
		return -EDQUOT;
	}
	hetmem_total_add(pages_pinned, nr);
	return 0;
}

/**
 * struct pinning - pages of one group that are being pinned
 * @ctx: context
 * @window: over them
 * @start: of the first
 * @nr: how many
 * @expires: jiffies
 * @write: as if to write there
 * @reaped: pins that have ended were dropped, to release their charge
 * @pages: the references taken, then NULL
 * @spare: for the group, if there is none; or NULL
 */
struct pinning {
	struct hetmem_context *ctx;
	struct hetmem_window window;
	unsigned long start;
	unsigned int nr;
	unsigned long expires;
	bool write;
	bool reaped;
	struct page *pages[PIN_PAGES];
	struct pin_group *spare;
};

/*
 * Keeps the @got references in p->pages of pages that are not held yet, and
 * prolongs the others. hm->lock is held. Return: 0; -EBUSY the pages were
 * unmapped, or some are still to be dropped; -EDQUOT.
 */
static int pin_keep(struct pinning *p, unsigned int got)
{
	struct pin_group *group = pin_group_first(p->ctx, p->start, p->start);
	unsigned int i, first = (p->start >> PAGE_SHIFT) % PIN_PAGES;
	u64 mask = GENMASK_ULL(first + got - 1, first);
	int ret;

	if (!group)
		group = p->spare;
	for (i = first; i < first + got; i++) {
		if ((group->held & ~group->ended & BIT_ULL(i)) &&
		    group->pages[i] != p->pages[i - first])
			pin_group_end(p->ctx, group, BIT_ULL(i));
	}
	if (p->window.unmapped || group->ended & mask || p->ctx->nr_pin_ending)
		return -EBUSY;
	mask &= ~group->held;
	ret = mask ? pin_charge(p->ctx, hweight64(mask), p->reaped && p->nr == 1) : 0;
	if (ret)
		return ret;
	if (group == p->spare) {
		p->spare = NULL;
		group->node.start = ALIGN_DOWN(p->start, PIN_BYTES);
		group->node.last = group->node.start + PIN_BYTES - 1;
		group->next = p->expires;
		interval_tree_insert(&group->node, &p->ctx->pins);
		p->ctx->nr_pin_groups++;
	}
	for (i = first; i < first + got; i++) {
		if (!(group->held & BIT_ULL(i))) {
			group->expires[i] = p->expires;
			group->pages[i] = p->pages[i - first];
			p->pages[i - first] = NULL;
			p->ctx->nr_pinned++;
		} else if (time_before(group->expires[i], p->expires)) {
			group->expires[i] = p->expires;
		}
	}
	group->held |= mask;
	if (time_before(p->expires, group->next))
		group->next = p->expires;
	pin_arm(p->ctx, group->next);
	return 0;
}

/*
 * Writable first, which settles copy-on-write; what may not be written too.
 * Return: as pin_look().
 */
static int pin_get(struct pinning *p)
{
	int ret = -EFAULT;

	if (p->write)
		ret = pin_user_pages_fast(p->start, p->nr, FOLL_LONGTERM | FOLL_WRITE, p->pages);
	if (ret == -EFAULT)
		ret = pin_user_pages_fast(p->start, p->nr, FOLL_LONGTERM, p->pages);
	/* Also one that could not be brought where it may be pinned. */
	if (ret <= 0)
		ret = fatal_signal_pending(current) ? -EINTR : -EFAULT;
	return ret;
}

/*
 * Return: pages that are held now; -EBUSY try again; -EFAULT the first one cannot
 * be held; or another errno.
 */
static int pin_look(struct hetmem_window *window)
{
	struct pinning *p = container_of(window, struct pinning, window);
	struct hetmem_context *ctx = p->ctx;
	int i, ret, got;

	got = pin_get(p);
	if (got < 0)
		return got;
	scoped_guard(spinlock, &ctx->hm->lock)
		ret = pin_keep(p, got);
	for (i = 0; i < got; i++) {
		if (p->pages[i])
			unpin_user_page(p->pages[i]);
	}
	/* Where a page is still to be dropped another one cannot be kept. */
	if (ret == -EBUSY)
		pin_reap(ctx, p->start, READ_ONCE(ctx->nr_pin_ending) ? ULONG_MAX : p->start,
			 false);
	if (ret != -EDQUOT || p->reaped)
		return ret ? ret : got;
	/* Pins that have ended can still be charged. */
	pin_reap(ctx, 0, ULONG_MAX, false);
	p->reaped = true;
	return -EBUSY;
}

/* Holds pages of one group. Return: as pin_look(). */
static int pin_pages(struct pinning *p)
{
	struct pin_group *spare = p->spare;

	if (!spare)
		spare = hetmem_alloc(p->ctx->user, sizeof(*spare));
	if (IS_ERR(spare))
		return PTR_ERR(spare);
	p->spare = spare;
	return hetmem_look(p->ctx->hm, &p->window, p->start,
			   p->start + ((unsigned long)p->nr << PAGE_SHIFT), pin_look);
}

/**
 * hetmem_pin - hold pages
 * @ctx: of current, whose memory it is
 * @start: page-aligned
 * @end: page-aligned; on failure, shortened to where the first page is that is
 *	not held
 * @timeout_ms: for how long
 * @write: as if to write there: the page is the mapping's own, and dirty
 * @pinned: grows by the pages that are held
 *
 * Pages that cannot be held are left out; so are those of a group some of which
 * are unmapped all the time.
 *
 * Return: 0, or -EDQUOT, -ENOMEM, -EINTR.
 */
int hetmem_pin(struct hetmem_context *ctx, unsigned long start, unsigned long *end,
	       unsigned int timeout_ms, bool write, u64 *pinned)
{
	struct pinning p = {
		.ctx = ctx,
		.window.mover = current,
		.write = write,
		.start = start,
		.expires = jiffies + msecs_to_jiffies(timeout_ms),
	};
	unsigned long stop, single = 0;
	int ret = 0;

	while (p.start < *end) {
		stop = min(*end, ALIGN(p.start + 1, PIN_BYTES));
		p.nr = p.start < single ? 1 : (stop - p.start) >> PAGE_SHIFT;
		ret = pin_pages(&p);
		if (ret > 0) {
			*pinned += ret;
			p.start += (unsigned long)ret << PAGE_SHIFT;
			continue;
		}
		/* Each page of a group that is busy would take as long. */
		if (ret == -EBUSY)
			p.start = stop;
		else if (ret != -EFAULT && (ret != -EDQUOT || p.nr == 1))
			break;
		/* One page that cannot be held can have stopped those before it. */
		else if (p.nr > 1)
			single = stop;
		else
			p.start += PAGE_SIZE;
		ret = 0;
	}
	if (p.spare)
		hetmem_free(ctx->user, p.spare, sizeof(*p.spare));
	*end = p.start;
	return min(ret, 0);
}

/* HETMEM_IOC_UNPIN */
int hetmem_unpin(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_unpin *cmd = arg;

	cmd->unpinned = pin_reap(ctx, cmd->start, cmd->end - 1, true);
	return 0;
}

int hetmem_pin_init(void)
{
	hetmem_pinned_kb = min((u64)totalram_pages() << (PAGE_SHIFT - 10) >> 6, (u64)UINT_MAX);
	hetmem_wq = alloc_workqueue("hetmem", WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	return hetmem_wq ? 0 : -ENOMEM;
}

void hetmem_pin_exit(void)
{
	destroy_workqueue(hetmem_wq);
}
