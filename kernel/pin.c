// SPDX-License-Identifier: GPL-2.0
/*
 * Timed pins: holding pages on the host for a while, so that what makes them
 * bounce comes to rest.
 *
 * Design. MIGRATE with PIN moves pages to the host and takes references that
 * no migration gets past (FOLL_LONGTERM). References are taken in the ioctl's
 * context only and charged to mm->pinned_vm against RLIMIT_MEMLOCK. A page's
 * pin ends when its time is up, when the page is unmapped, when the address
 * space ends, or when the context is closed. Whoever notices marks the page
 * as gone and queues the one work item of the context, which alone drops
 * references and the charge.
 *
 * Locking. context->lock protects the tree of pins, what they hold and what
 * of it is gone; it is taken in notifier callbacks. A pin is in the tree
 * before its maker takes the first reference, so that what is unmapped
 * meanwhile is marked too; its pages are the maker's alone until it is made.
 */
#include <linux/bitmap.h>
#include <linux/capability.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "hetmem.h"
#include "trace.h"

/* References that the work drops at a time of pins that go on. */
#define HETMEM_PIN_BATCH	64

/* What ends within that time is looked for once. */
#define HETMEM_PIN_PAUSE	msecs_to_jiffies(10)

/**
 * struct hetmem_pin - pages pinned by one call
 * @node: where, in context->pins
 * @ended: in a list of the work's
 * @expires: jiffies
 * @making: pages are being pinned
 * @nr: pages from node.start on
 * @held: of them, those whose reference was not dropped
 * @gone: a bit a page: its pin has ended
 * @pages: the pages; NULL where the reference was dropped
 */
struct hetmem_pin {
	struct interval_tree_node node;
	struct list_head ended;
	unsigned long expires;
	bool making;
	unsigned int nr;
	unsigned int held;
	DECLARE_BITMAP(gone, HETMEM_BLOCK_PAGES);
	struct page *pages[];
};

static struct hetmem_pin *hetmem_pin_of(struct interval_tree_node *node)
{
	return node ? container_of(node, struct hetmem_pin, node) : NULL;
}

static struct hetmem_pin *hetmem_pin_first(struct hetmem_context *ctx,
					   unsigned long start,
					   unsigned long last)
{
	return hetmem_pin_of(interval_tree_iter_first(&ctx->pins, start, last));
}

static struct hetmem_pin *hetmem_pin_next(struct hetmem_pin *pin,
					  unsigned long start,
					  unsigned long last)
{
	return hetmem_pin_of(interval_tree_iter_next(&pin->node, start, last));
}

static void hetmem_pin_unpin(struct hetmem_context *ctx, struct page **pages,
			     unsigned int nr)
{
	unpin_user_pages(pages, nr);
	atomic64_sub(nr, &ctx->mm->pinned_vm);
}

/* A pin that has left the tree. */
static void hetmem_pin_free(struct hetmem_context *ctx, struct hetmem_pin *pin)
{
	unsigned int i, nr = 0;

	for (i = 0; i < pin->nr; i++) {
		if (pin->pages[i])
			pin->pages[nr++] = pin->pages[i];
	}
	hetmem_pin_unpin(ctx, pin->pages, nr);
	kvfree(pin);
}

static void hetmem_pin_free_list(struct hetmem_context *ctx,
				 struct list_head *list)
{
	struct hetmem_pin *pin, *next;

	list_for_each_entry_safe(pin, next, list, ended) {
		hetmem_pin_free(ctx, pin);
		cond_resched();
	}
}

/* Moves the pages that are gone from @pin to @batch. Return: how many. */
static unsigned int hetmem_pin_reap(struct hetmem_pin *pin,
				    struct page **batch, unsigned int room)
{
	unsigned int i, nr = 0;

	for_each_set_bit(i, pin->gone, pin->nr) {
		if (nr == room)
			break;
		if (!pin->pages[i])
			continue;
		batch[nr++] = pin->pages[i];
		pin->pages[i] = NULL;
	}
	pin->held -= nr;
	return nr;
}

/**
 * hetmem_pin_collect - find what has ended
 * @ctx: context, its lock held
 * @list: for pins that ended as a whole
 * @batch: for pages that did, room for HETMEM_PIN_BATCH
 * @all: everything ends
 * @from: where to begin, moved to where to go on
 * @next: made earlier if a pin ends earlier, in jiffies
 *
 * Return: pages in @batch; if it is full there may be more.
 */
static unsigned int hetmem_pin_collect(struct hetmem_context *ctx,
				       struct list_head *list,
				       struct page **batch, bool all,
				       unsigned long *from,
				       unsigned long *next)
{
	struct hetmem_pin *pin, *following;
	unsigned int nr = 0, dropped;

	for (pin = hetmem_pin_first(ctx, *from, ULONG_MAX); pin;
	     pin = following) {
		following = hetmem_pin_next(pin, *from, ULONG_MAX);
		if (pin->making)
			continue;
		if (all || time_after_eq(jiffies, pin->expires) ||
		    bitmap_full(pin->gone, pin->nr)) {
			interval_tree_remove(&pin->node, &ctx->pins);
			ctx->nr_pins--;
			WRITE_ONCE(ctx->nr_pinned, ctx->nr_pinned - pin->held);
			list_add_tail(&pin->ended, list);
			continue;
		}
		dropped = hetmem_pin_reap(pin, batch + nr,
					  HETMEM_PIN_BATCH - nr);
		nr += dropped;
		WRITE_ONCE(ctx->nr_pinned, ctx->nr_pinned - dropped);
		if (time_before(pin->expires, *next))
			*next = pin->expires;
		if (nr == HETMEM_PIN_BATCH) {
			*from = max(*from, pin->node.start);
			break;
		}
	}
	return nr;
}

/*
 * The work is to run at @when, or a little later: each run looks at all pins.
 * context->lock is held.
 */
static void hetmem_pin_arm(struct hetmem_context *ctx, unsigned long when)
{
	unsigned long soon = jiffies + HETMEM_PIN_PAUSE;

	if (time_before(when, soon))
		when = soon;
	if (delayed_work_pending(&ctx->pin_work) &&
	    !time_before(when, ctx->pin_next))
		return;
	ctx->pin_next = when;
	mod_delayed_work(hetmem_wq, &ctx->pin_work, when - jiffies);
}

static void hetmem_pin_work(struct work_struct *work)
{
	struct hetmem_context *ctx = container_of(work, struct hetmem_context,
						  pin_work.work);
	struct page *batch[HETMEM_PIN_BATCH];
	unsigned long from = 0, next = jiffies + MAX_JIFFY_OFFSET;
	unsigned int nr;

	do {
		LIST_HEAD(ended);

		spin_lock(&ctx->lock);
		nr = hetmem_pin_collect(ctx, &ended, batch, false, &from,
					&next);
		if (nr < HETMEM_PIN_BATCH && !RB_EMPTY_ROOT(&ctx->pins.rb_root))
			hetmem_pin_arm(ctx, next);
		spin_unlock(&ctx->lock);
		hetmem_pin_unpin(ctx, batch, nr);
		hetmem_pin_free_list(ctx, &ended);
	} while (nr == HETMEM_PIN_BATCH);
}

void hetmem_pin_init(struct hetmem_context *ctx)
{
	ctx->pins = RB_ROOT_CACHED;
	INIT_DELAYED_WORK(&ctx->pin_work, hetmem_pin_work);
}

/* At close, when neither a callback nor a command can come any more. */
void hetmem_pin_drop_all(struct hetmem_context *ctx)
{
	unsigned long from = 0, next = 0;
	LIST_HEAD(ended);

	cancel_delayed_work_sync(&ctx->pin_work);
	hetmem_pin_collect(ctx, &ended, NULL, true, &from, &next);
	hetmem_pin_free_list(ctx, &ended);
}

/* Memory is unmapped: its pins end. context->lock is held; in a callback. */
void hetmem_pin_unmapped(struct hetmem_context *ctx, unsigned long start,
			 unsigned long last)
{
	struct hetmem_pin *pin;
	bool any = false;

	for (pin = hetmem_pin_first(ctx, start, last); pin;
	     pin = hetmem_pin_next(pin, start, last)) {
		unsigned long from = max(start, pin->node.start);
		unsigned long to = min(last, pin->node.last);

		bitmap_set(pin->gone, (from - pin->node.start) >> PAGE_SHIFT,
			   (to >> PAGE_SHIFT) - (from >> PAGE_SHIFT) + 1);
		any = true;
	}
	if (any)
		hetmem_pin_arm(ctx, jiffies);
}

/* Whether @pin holds the page at @addr; @end: as far as that is so. */
static bool hetmem_pin_holds(const struct hetmem_pin *pin, unsigned long addr,
			     unsigned long *end)
{
	unsigned int i, until;
	bool held;

	if (pin->node.start > addr) {
		*end = min(*end, pin->node.start);
		return false;
	}
	if (pin->making) {
		*end = min(*end, pin->node.last + 1);
		return false;
	}
	i = (addr - pin->node.start) >> PAGE_SHIFT;
	held = !test_bit(i, pin->gone);
	until = held ? find_next_bit(pin->gone, pin->nr, i) :
		       find_next_zero_bit(pin->gone, pin->nr, i);
	*end = min(*end, pin->node.start + ((unsigned long)until << PAGE_SHIFT));
	return held;
}

/**
 * hetmem_pin_at - whether an address is pinned
 * @ctx: context
 * @addr: address
 * @end: shortened to where the answer may change
 */
bool hetmem_pin_at(struct hetmem_context *ctx, unsigned long addr,
		   unsigned long *end)
{
	unsigned long last = *end - 1, until;
	struct hetmem_pin *pin;
	bool pinned = false;

	/* Nobody who asks while pins come and go expects an exact answer. */
	if (!READ_ONCE(ctx->nr_pinned))
		return false;
	spin_lock(&ctx->lock);
	for (pin = hetmem_pin_first(ctx, addr, last); pin && !pinned;
	     pin = hetmem_pin_next(pin, addr, last)) {
		until = last + 1;
		pinned = hetmem_pin_holds(pin, addr, &until);
		/* One that holds it says how far, whatever others do. */
		*end = pinned ? until : min(*end, until);
		/* By where they begin: those behind it begin no earlier. */
		if (pin->node.start > addr)
			break;
	}
	spin_unlock(&ctx->lock);
	return pinned;
}

static int hetmem_pin_charge(struct mm_struct *mm, unsigned long nr)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(nr, &mm->pinned_vm) <= limit ||
	    capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(nr, &mm->pinned_vm);
	trace_hetmem_limit_hit("RLIMIT_MEMLOCK", rlimit(RLIMIT_MEMLOCK));
	return -EDQUOT;
}

/* Puts @pin into the tree, unless the context has enough of them. */
static int hetmem_pin_add(struct hetmem_context *ctx, struct hetmem_pin *pin)
{
	unsigned int max = READ_ONCE(hetmem_caps.max_pins);
	int ret = 0;

	spin_lock(&ctx->lock);
	if (ctx->nr_pins < max) {
		ctx->nr_pins++;
		interval_tree_insert(&pin->node, &ctx->pins);
	} else {
		ret = -EDQUOT;
	}
	spin_unlock(&ctx->lock);
	if (ret)
		trace_hetmem_limit_hit("max_pins", max);
	return ret;
}

/* Writable first, which settles copy-on-write; what may not be written too. */
static int hetmem_pin_get(unsigned long start, unsigned int nr,
			  struct page **pages)
{
	int ret;

	ret = pin_user_pages_fast(start, nr, FOLL_LONGTERM | FOLL_WRITE, pages);
	if (ret == -EFAULT)
		ret = pin_user_pages_fast(start, nr, FOLL_LONGTERM, pages);
	return ret;
}

/*
 * @pin is made: @nr pages from its start, what was unmapped meanwhile is marked
 * already. Return: whether it holds anything; else it has left the tree.
 */
static bool hetmem_pin_made(struct hetmem_context *ctx, struct hetmem_pin *pin,
			    unsigned int nr)
{
	spin_lock(&ctx->lock);
	interval_tree_remove(&pin->node, &ctx->pins);
	pin->making = false;
	if (nr) {
		pin->nr = nr;
		pin->held = nr;
		pin->node.last = pin->node.start +
				 ((unsigned long)nr << PAGE_SHIFT) - 1;
		interval_tree_insert(&pin->node, &ctx->pins);
		WRITE_ONCE(ctx->nr_pinned, ctx->nr_pinned + nr);
		hetmem_pin_arm(ctx, bitmap_empty(pin->gone, nr) ?
			       pin->expires : jiffies);
	} else {
		ctx->nr_pins--;
	}
	spin_unlock(&ctx->lock);
	return nr;
}

/*
 * Holds [@start, @end), at most a block, for a time. What is pinned already is
 * pinned a second time. Pages that are not there are faulted in. Return: pages
 * pinned, fewer if one cannot be, or a negative errno: -EFAULT none can be,
 * others as hetmem_pin_walk() has them.
 */
static int hetmem_pin_range(struct hetmem_context *ctx, unsigned long start,
			    unsigned long end, unsigned int timeout_ms)
{
	unsigned int nr = (end - start) >> PAGE_SHIFT;
	struct hetmem_pin *pin;
	int ret;

	pin = kvzalloc(struct_size(pin, pages, nr), GFP_KERNEL_ACCOUNT);
	if (!pin)
		return -ENOMEM;
	ret = hetmem_pin_charge(ctx->mm, nr);
	if (ret)
		goto free;
	pin->making = true;
	pin->nr = nr;
	pin->node.start = start;
	pin->node.last = end - 1;
	pin->expires = jiffies + msecs_to_jiffies(timeout_ms);
	ret = hetmem_pin_add(ctx, pin);
	if (ret) {
		atomic64_sub(nr, &ctx->mm->pinned_vm);
		goto free;
	}

	ret = hetmem_pin_get(start, nr, pin->pages);
	/* Charged was what was asked for. */
	atomic64_sub(nr - max(ret, 0), &ctx->mm->pinned_vm);
	if (hetmem_pin_made(ctx, pin, max(ret, 0)))
		return ret;
free:
	kvfree(pin);
	return ret;
}

/* A hole ends what one call of hetmem_pin_range() does, so it is passed by. */
static int hetmem_pin_piece(struct hetmem_context *ctx,
			    struct hetmem_cmd_migrate *cmd,
			    unsigned long start, unsigned long end)
{
	int ret;

	while (start < end) {
		ret = hetmem_pin_range(ctx, start, end, cmd->timeout_ms);
		if (ret < 0 && ret != -EFAULT)
			return ret;
		if (ret > 0)
			cmd->pinned += ret;
		start += (unsigned long)max(ret, 1) << PAGE_SHIFT;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

/**
 * hetmem_pin_walk - hold what is mapped, may be read, and is on the host
 * @ctx: of the caller
 * @walk: of the caller's memory
 * @cmd: whose pages are held from @start to its walk_end, for its timeout, and
 *	counted there; those that cannot be are left out
 * @start: page-aligned
 *
 * Return: 0, or -EDQUOT RLIMIT_MEMLOCK or caps/max_pins, -EBUSY, -ENOMEM,
 * -EINTR.
 */
int hetmem_pin_walk(struct hetmem_context *ctx, struct hetmem_walk *walk,
		    struct hetmem_cmd_migrate *cmd, unsigned long start)
{
	unsigned long at, next;
	unsigned int i;
	int ret;

	for (; start < cmd->walk_end; start = walk->end) {
		ret = hetmem_walk_step(walk, start, cmd->walk_end);
		if (ret)
			return ret;
		if (walk->why & HETMEM_WHY_LEAVE)
			continue;
		for (i = 0, at = start; i < walk->nr; i++, at = next) {
			next = hetmem_piece_end(walk, i, at);
			if (HETMEM_LOC_KIND(walk->pieces[i].location) !=
			    HETMEM_HOST)
				continue;
			ret = hetmem_pin_piece(ctx, cmd, at, next);
			if (ret)
				return ret;
		}
	}
	return 0;
}
