// SPDX-License-Identifier: GPL-2.0
/*
 * One address space: its MMU notifier, which all its contexts share, and
 * looks at its pages; and LIST, which lists the contexts of all of them.
 *
 * Design. An mm has one plain mmu_notifier as long as it has contexts. Each
 * notification is handed to every context (range.c), and counts as an
 * invalidation in progress from its start to its end. HETMEM_BUSY_SLOTS of them
 * are kept with their ranges, the others are counted only, and then every look
 * waits. Two invalidations of equal ranges may end in each other's place; since
 * they are equal, that changes nothing.
 *
 * A look at pages is a window: at most one block, in a list of the mm. It is
 * good if no overlapping invalidation was in progress when it began, and none
 * has begun since (window->seq is current, under window->lock). While that lock
 * is held no overlapping invalidation gets past its start, so no page that was
 * seen can go away. An invalidation elsewhere in the mm does not disturb a look.
 *
 * An interval notifier would do this too, but mmu_interval_read_begin() and
 * mmu_interval_notifier_remove() wait, uninterruptibly, until no invalidation
 * of the whole mm is in progress: busy threads can put that off for ever.
 * hmm_range_fault() reads nothing of its interval notifier except mm and
 * invalidate_seq, so a window has one that was never inserted. It must not be
 * passed to mmu_interval_read_begin() or hmm_range_fault_unlocked_timeout().
 *
 * Registering a notifier visits all mappings of the mm and holds locks that other
 * processes need (mm_take_all_locks()). So a notifier outlives its last context by
 * HETMEM_MM_IDLE, and the next context uses it. hm->idle owns a reference while it
 * is pending. The end of the mm and of the module cancel it.
 *
 * mm_take_all_locks() gives way to any signal, and a timer can fire more often than it
 * takes. So the opener blocks all signals that it can. What interrupts it all the
 * same, for example a tracer, makes open() start over, HETMEM_OPEN_TRIES times at most.
 *
 * Waits. A look is tried HETMEM_LOOK_TRIES times. Each time it waits for
 * overlapping invalidations, killably, about 10 ms at most; and before, for one
 * of the HETMEM_MAX_WINDOWS of the mm, killably. Closing a context waits for
 * nothing: mmu_notifier_put() frees later.
 *
 * Locking, outermost first:
 *
 *	hetmem_mms_lock		the table of address spaces
 *	  hm->lock		all of an hm and of its contexts
 *	    window->lock	one look
 *	      hetmem_owners_lock (foreign.c)
 *
 * All are spinlocks. Notifications are sent for reclaim, KSM, khugepaged and
 * the OOM reaper too, with locks of theirs held. So nobody who holds one of
 * these locks sleeps, allocates, takes mmap_lock or calls hmm_range_fault() or
 * migrate_vma_*(). A notification takes at most 64 contexts, for each at most 64 of
 * its n ranges, O(log n) each, and a bit for each block, and 64 windows;
 * an unmapping also marks the pins of 64 groups (pin.c). It always succeeds. Readers
 * of the table hold RCU and then hm->lock, under which an hm that is being freed has
 * no contexts. An hm enters the table once and leaves it when it is freed: a reader
 * would see the contexts of one that comes back twice.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/pid_namespace.h>
#include <linux/wait_bit.h>

#include "device.h"
#include "range.h"
#include "trace.h"

#define HETMEM_LOOK_WAIT	msecs_to_jiffies(10)

/* Looks at one address space at a time. */
#define HETMEM_MAX_WINDOWS	64

/* Contexts of one address space. */
#define HETMEM_MAX_CONTEXTS	64

/* How often a look is tried. */
#define HETMEM_LOOK_TRIES	8

/* How often open() is tried, and how many tasks are counted at a time. */
#define HETMEM_OPEN_TRIES	64
#define HETMEM_OPEN_BITS	6

/* How long a notifier without contexts is kept. */
#define HETMEM_MM_IDLE		(60 * HZ)

static DEFINE_SPINLOCK(hetmem_mms_lock);
static DEFINE_HASHTABLE(hetmem_mms, 8);
static atomic_t hetmem_nr_mms;

/* Tries of tasks that open. A task that takes the slot of another begins anew. */
static struct {
	const struct task_struct *task;
	unsigned int nr;
} hetmem_tries[BIT(HETMEM_OPEN_BITS)];

#define mm_of(_notifier)	container_of(_notifier, struct hetmem_mm, notifier)

static void busy_begin(struct hetmem_busy *busy, unsigned long start, unsigned long end)
{
	if (likely(busy->nr < HETMEM_BUSY_SLOTS))
		busy->slots[busy->nr++] = (struct hetmem_busy_slot){ start, end };
	else
		busy->nr_others++;
}

static void busy_end(struct hetmem_busy *busy, unsigned long start, unsigned long end)
{
	unsigned int i = busy->nr;

	while (i--) {
		if (busy->slots[i].start == start && busy->slots[i].end == end) {
			busy->slots[i] = busy->slots[--busy->nr];
			return;
		}
	}
	busy->nr_others--;
}

/* Whether an invalidation of pages of [@start, @end) is in progress. */
static bool busy_at(const struct hetmem_busy *busy, unsigned long start, unsigned long end)
{
	unsigned int i;

	for (i = 0; i < busy->nr; i++) {
		if (busy->slots[i].start < end && start < busy->slots[i].end)
			return true;
	}
	return busy->nr_others;
}

/*
 * Spoils the looks that @n overlaps. hm->lock is held. Return: whether it comes
 * from our own MIGRATE.
 */
static bool windows_spoil(struct hetmem_mm *hm, const struct hetmem_notification *n)
{
	struct hetmem_window *window;
	bool own = false;

	list_for_each_entry(window, &hm->windows, node) {
		if (n->start >= window->end || window->start > n->last)
			continue;
		own |= window->mover == current;
		window->unmapped |= n->change == HETMEM_CHANGE_UNMAP;
		guard(spinlock)(&window->lock);
		WRITE_ONCE(window->fake.invalidate_seq, window->fake.invalidate_seq + 1);
	}
	return own;
}

static enum hetmem_change change_of(enum mmu_notifier_event event)
{
	static const u8 changes[] = {
		[MMU_NOTIFY_UNMAP] = HETMEM_CHANGE_UNMAP,
		[MMU_NOTIFY_CLEAR] = HETMEM_CHANGE_REPLACE,
		[MMU_NOTIFY_PROTECTION_VMA] = HETMEM_CHANGE_PROTECT,
		[MMU_NOTIFY_PROTECTION_PAGE] = HETMEM_CHANGE_PROTECT,
		[MMU_NOTIFY_SOFT_DIRTY] = HETMEM_CHANGE_PROTECT,
		[MMU_NOTIFY_MIGRATE] = HETMEM_CHANGE_MIGRATE,
		[MMU_NOTIFY_EXCLUSIVE] = HETMEM_CHANGE_EXCLUSIVE,
	};

	return event < ARRAY_SIZE(changes) ? changes[event] : HETMEM_CHANGE_OTHER;
}

static int invalidate_start(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct hetmem_mm *hm = mm_of(notifier);
	struct hetmem_notification n = {
		.change = change_of(range->event),
		.start = range->start,
		.last = range->end - 1,
	};
	struct hetmem_context *ctx;

	hetmem_total_add(callbacks, 1);
	if (n.change == HETMEM_CHANGE_MIGRATE)
		n.attempt = hetmem_owner_seen(hetmem_notifier_owner(range));
	trace_hetmem_notify(hm->tgid, n.change, n.start, range->end);

	guard(spinlock)(&hm->lock);
	busy_begin(&hm->busy, range->start, range->end);
	if (windows_spoil(hm, &n))
		n.attempt = false;
	list_for_each_entry(ctx, &hm->contexts, siblings)
		hetmem_context_notify(ctx, &n);
	return 0;
}

static void invalidate_end(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct hetmem_mm *hm = mm_of(notifier);
	bool waiting;

	spin_lock(&hm->lock);
	busy_end(&hm->busy, range->start, range->end);
	/* A waiter joins the queue before it takes the lock. */
	waiting = waitqueue_active(&hm->quiet);
	spin_unlock(&hm->lock);
	if (waiting)
		wake_up_all(&hm->quiet);
}

/* The address space ends. It has no users, so nobody looks at it any more. */
static void notifier_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct hetmem_mm *hm = mm_of(notifier);
	const struct hetmem_notification n = {
		.change = HETMEM_CHANGE_EXIT,
		.last = TASK_SIZE_MAX - 1,
	};
	struct hetmem_context *ctx;
	bool idle;

	trace_hetmem_notify(hm->tgid, n.change, n.start, n.last + 1);
	spin_lock(&hm->lock);
	hm->ended = true;
	idle = cancel_delayed_work(&hm->idle);
	list_for_each_entry(ctx, &hm->contexts, siblings) {
		hetmem_context_notify(ctx, &n);
		hetmem_hints_fail(ctx);
	}
	spin_unlock(&hm->lock);
	if (idle)
		mmu_notifier_put(notifier);
}

static void idle_work(struct work_struct *work)
{
	mmu_notifier_put(&container_of(work, struct hetmem_mm, idle.work)->notifier);
}

static struct mmu_notifier *notifier_alloc(struct mm_struct *mm)
{
	struct hetmem_mm *hm = kzalloc(sizeof(*hm), HETMEM_GFP);

	if (!hm)
		return ERR_PTR(-ENOMEM);
	hm->tgid = task_tgid_nr(current);
	sema_init(&hm->looks, HETMEM_MAX_WINDOWS);
	init_waitqueue_head(&hm->quiet);
	spin_lock_init(&hm->lock);
	INIT_LIST_HEAD(&hm->contexts);
	INIT_LIST_HEAD(&hm->windows);
	INIT_DELAYED_WORK(&hm->idle, idle_work);
	atomic_inc(&hetmem_nr_mms);
	return &hm->notifier;
}

static void notifier_free(struct mmu_notifier *notifier)
{
	struct hetmem_mm *hm = mm_of(notifier);

	scoped_guard(spinlock, &hetmem_mms_lock)
		hash_del_rcu(&hm->node);
	kfree_rcu(hm, rcu);
	if (atomic_dec_and_test(&hetmem_nr_mms))
		wake_up_var(&hetmem_nr_mms);
}

static const struct mmu_notifier_ops hetmem_notifier_ops = {
	.invalidate_range_start = invalidate_start,
	.invalidate_range_end = invalidate_end,
	.release = notifier_release,
	.alloc_notifier = notifier_alloc,
	.free_notifier = notifier_free,
};

/* Whether current may start over with open(), which then has not come back yet. */
static bool open_again(void)
{
	unsigned int i = hash_ptr(current, HETMEM_OPEN_BITS);
	bool again;

	guard(spinlock)(&hetmem_mms_lock);
	if (hetmem_tries[i].task != current)
		hetmem_tries[i].nr = 0;
	again = ++hetmem_tries[i].nr < HETMEM_OPEN_TRIES;
	hetmem_tries[i].task = again ? current : NULL;
	return again;
}

/* A reference to the notifier of current's @mm, made if need be; or ERR_PTR. */
static struct mmu_notifier *notifier_get(struct mm_struct *mm)
{
	struct mmu_notifier *notifier = ERR_PTR(-EINTR);
	sigset_t most, old;

	siginitsetinv(&most, sigmask(SIGKILL));
	sigprocmask(SIG_BLOCK, &most, &old);
	if (!mmap_write_lock_killable(mm)) {
		notifier = mmu_notifier_get_locked(&hetmem_notifier_ops, mm);
		mmap_write_unlock(mm);
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (notifier == ERR_PTR(-EINTR) && !fatal_signal_pending(current))
		notifier = ERR_PTR(open_again() ? -ERESTARTNOINTR : -EAGAIN);
	return notifier;
}

/**
 * hetmem_mm_attach - make a context one of current's address space
 * @ctx: ready for notifications; gets its hm
 *
 * Return: 0, or -EDQUOT, -EINTR, -EAGAIN, -ERESTARTNOINTR, -ENOMEM.
 */
int hetmem_mm_attach(struct hetmem_context *ctx)
{
	struct mm_struct *mm = current->mm;
	struct mmu_notifier *notifier;
	struct hetmem_mm *hm;
	bool pays, room;
	int ret;

	ret = hetmem_charge(ctx->user, sizeof(*hm));
	if (ret)
		return ret;
	notifier = notifier_get(mm);
	if (IS_ERR(notifier)) {
		ret = PTR_ERR(notifier);
		goto uncharge;
	}

	hm = mm_of(notifier);
	ctx->hm = hm;
	spin_lock(&hetmem_mms_lock);
	if (!hash_hashed(&hm->node))
		hash_add_rcu(hetmem_mms, &hm->node, (unsigned long)mm);
	spin_unlock(&hetmem_mms_lock);
	spin_lock(&hm->lock);
	room = hm->nr_contexts < HETMEM_MAX_CONTEXTS;
	pays = !hm->nr_contexts;
	if (room) {
		list_add_tail(&ctx->siblings, &hm->contexts);
		WRITE_ONCE(hm->nr_contexts, hm->nr_contexts + 1);
	}
	spin_unlock(&hm->lock);
	if (!room) {
		mmu_notifier_put(notifier);
		ret = -EDQUOT;
	}
	if (pays)
		return 0;
uncharge:
	hetmem_account(ctx->user, sizeof(*hm), -1);
	return ret;
}

/* Afterwards nobody finds the context. hetmem_mm_put() is the caller's. */
void hetmem_mm_detach(struct hetmem_context *ctx)
{
	struct hetmem_mm *hm = ctx->hm;
	bool pays;

	guard(spinlock)(&hm->lock);
	pays = list_is_first(&ctx->siblings, &hm->contexts);
	list_del(&ctx->siblings);
	WRITE_ONCE(hm->nr_contexts, hm->nr_contexts - 1);
	if (pays)
		hetmem_account(ctx->user, sizeof(*hm), -1);
	if (pays && hm->nr_contexts)
		hetmem_account(list_first_entry(&hm->contexts, struct hetmem_context,
						siblings)->user, sizeof(*hm), 1);
	hetmem_hints_fail(ctx);
	hetmem_hints_drop(ctx);
}

/* Drops the reference of a context that was detached, or leaves it to hm->idle. */
void hetmem_mm_put(struct hetmem_mm *hm)
{
	bool put = true;

	scoped_guard(spinlock, &hm->lock) {
		if (!hm->nr_contexts && !hm->ended)
			put = mod_delayed_work(hetmem_wq, &hm->idle, HETMEM_MM_IDLE);
	}
	if (put)
		mmu_notifier_put(&hm->notifier);
}

/*
 * When the module goes: no context is left. mmu_notifier_synchronize() waits for
 * a grace period, not for the callbacks behind it on other CPUs, which call
 * notifier_free(); they run with bottom halves off, for which
 * synchronize_rcu() waits.
 */
void hetmem_mm_exit(void)
{
	struct hetmem_mm *hm;
	int bucket;

	spin_lock(&hetmem_mms_lock);
	hash_for_each(hetmem_mms, bucket, hm, node) {
		if (cancel_delayed_work(&hm->idle))
			mmu_notifier_put(&hm->notifier);
	}
	spin_unlock(&hetmem_mms_lock);
	mmu_notifier_synchronize();
	wait_var_event(&hetmem_nr_mms, !atomic_read(&hetmem_nr_mms));
	synchronize_rcu();
}

/* The address space @mm, or NULL if it has no contexts; under RCU. */
struct hetmem_mm *hetmem_mm_find(const struct mm_struct *mm)
{
	struct hetmem_mm *hm;

	hash_for_each_possible_rcu(hetmem_mms, hm, node, (unsigned long)mm) {
		/* One that is being freed has none; the next may be there already. */
		if (hm->notifier.mm == mm && READ_ONCE(hm->nr_contexts))
			return hm;
	}
	return NULL;
}

/* The lock of its hm is held. */
static void list_entry_fill(struct hetmem_list_entry *entry, const struct hetmem_context *ctx)
{
	unsigned int i;

	entry->pid = hetmem_context_pid(ctx, task_active_pid_ns(current));
	entry->uid = from_kuid_munged(current_user_ns(), ctx->uid);
	entry->flags = READ_ONCE(ctx->allowed);
	for (i = 0; i < ctx->nr_bindings; i++)
		entry->flags |= ctx->bindings[i].executor ? HETMEM_LIST_EXECUTOR : 0;
	entry->nr_ranges = ctx->nr_ranges;
	entry->nr_pinned = ctx->nr_pinned;
	entry->nr_hints = ctx->nr_hints;
}

/* HETMEM_IOC_LIST */
int hetmem_list(struct hetmem_context *ctx, void *arg)
{
	const bool all = ns_capable_noaudit(&init_user_ns, CAP_SYS_PTRACE);
	struct hetmem_cmd_list *cmd = arg;
	/* More than there are need no memory. */
	const u32 room = min_t(u64, cmd->nr, max(hetmem_total(contexts), 0LL) + 16);
	struct hetmem_list_entry *entries;
	struct hetmem_mm *hm;
	u32 nr = 0;
	int bucket, ret;

	ret = hetmem_check_array(cmd->nr, cmd->entry_size, sizeof(*entries));
	if (ret)
		return ret;
	entries = kvcalloc(room, sizeof(*entries), HETMEM_GFP);
	if (!entries)
		return -ENOMEM;
	rcu_read_lock();
	hash_for_each_rcu(hetmem_mms, bucket, hm, node) {
		guard(spinlock)(&hm->lock);
		list_for_each_entry(ctx, &hm->contexts, siblings) {
			if (!all && !uid_eq(ctx->uid, current_euid()))
				continue;
			if (nr < room)
				list_entry_fill(&entries[nr], ctx);
			nr++;
		}
	}
	rcu_read_unlock();
	ret = hetmem_copy_array(cmd->entries, cmd->entry_size, 0, entries, sizeof(*entries),
				min(nr, room));
	kvfree(entries);
	cmd->nr = nr;
	return ret;
}

/* A try begins, unless an invalidation is in progress. */
static bool window_begin(struct hetmem_mm *hm, struct hetmem_window *window)
{
	guard(spinlock)(&hm->lock);
	if (list_empty(&window->node))
		list_add(&window->node, &hm->windows);
	window->seq = window->fake.invalidate_seq;
	window->unmapped = false;
	return !busy_at(&hm->busy, window->start, window->end);
}

/* Begins a try. Return: 0; -EBUSY not within about 10 ms; or -EINTR. */
static int window_wait(struct hetmem_mm *hm, struct hetmem_window *window)
{
	long left;

	if (likely(window_begin(hm, window)))
		return 0;
	left = wait_event_killable_timeout(hm->quiet, window_begin(hm, window), HETMEM_LOOK_WAIT);
	if (left < 0)
		return -EINTR;
	return left ? 0 : -EBUSY;
}

/**
 * hetmem_look - look at pages
 * @hm: address space; the caller holds a reference to the users of its mm
 * @window: its @mover is the caller's, all else is set here
 * @start: first byte
 * @end: first byte behind it, in the same block
 * @look: looks, and returns -EBUSY if the window turns out to be spoilt
 *
 * Return: what @look returns; -EBUSY if it did so each time, or the pages were
 * being changed all the time; -EINTR on a fatal signal.
 */
int hetmem_look(struct hetmem_mm *hm, struct hetmem_window *window, unsigned long start,
		unsigned long end, int (*look)(struct hetmem_window *window))
{
	unsigned int tries = 0;
	int ret;

	if (down_killable(&hm->looks))
		return -EINTR;
	window->start = start;
	window->end = end;
	window->fake.mm = hm->notifier.mm;
	window->fake.invalidate_seq = 0;
	spin_lock_init(&window->lock);
	INIT_LIST_HEAD(&window->node);
	do {
		ret = window_wait(hm, window);
		if (!ret)
			ret = look(window);
		if (ret == -EBUSY && fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	} while (ret == -EBUSY && ++tries < HETMEM_LOOK_TRIES);
	scoped_guard(spinlock, &hm->lock)
		list_del(&window->node);
	up(&hm->looks);
	return ret;
}
