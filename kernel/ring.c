// SPDX-License-Identifier: GPL-2.0
/*
 * The event ring of a context.
 *
 * Design. A header page and an array of fixed-size entries, mapped by one
 * reader. The kernel keeps head, geometry and drop counters to itself and
 * only publishes them; of what the reader can write it reads one word, the
 * tail, once for each event, and clamps it. A reader that is slow or gone
 * costs the newest events, counted by type; one that writes rubbish reads
 * rubbish.
 *
 * Locking. Producers run in notifier callbacks: they hold context->lock,
 * which serializes them, and neither allocate nor sleep. Waking the reader is
 * left for after that lock, since it runs foreign wait queue functions. The
 * ring is made once, published under context->lock, and freed with the
 * context, when no callback and no mapping (which holds the file) is left.
 */
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>

#include "hetmem.h"
#include "trace.h"

struct hetmem_ring {
	struct hetmem_ring_header *header;
	struct hetmem_event *entries;
	struct eventfd_ctx *eventfd;
	unsigned long nr_pages;
	u64 head;
	u64 events;
	u64 dropped[HETMEM_EVENT_NR];
	u32 nr_entries;
	unsigned long untold;	/* bit 0: an event that nobody was woken for */
};

static void hetmem_ring_destroy(struct hetmem_ring *ring)
{
	vfree(ring->header);
	if (ring->eventfd)
		eventfd_ctx_put(ring->eventfd);
	kfree(ring);
}

static struct hetmem_ring *hetmem_ring_create(u32 nr_entries)
{
	const size_t size = PAGE_ALIGN((size_t)nr_entries *
				       sizeof(struct hetmem_event));
	struct hetmem_ring *ring;

	BUILD_BUG_ON(sizeof(struct hetmem_event) != 64);
	BUILD_BUG_ON(sizeof(struct hetmem_ring_header) > PAGE_SIZE);

	ring = kzalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);
	if (!ring)
		return NULL;
	ring->header = __vmalloc(PAGE_SIZE + size,
				 GFP_KERNEL_ACCOUNT | __GFP_ZERO |
				 __GFP_NOWARN);
	if (!ring->header) {
		kfree(ring);
		return NULL;
	}
	ring->nr_pages = 1 + (size >> PAGE_SHIFT);
	ring->entries = (void *)ring->header + PAGE_SIZE;
	ring->nr_entries = nr_entries;
	ring->header->version = HETMEM_RING_VERSION;
	ring->header->entry_size = sizeof(struct hetmem_event);
	ring->header->nr_entries = nr_entries;
	ring->header->data_offset = PAGE_SIZE;
	return ring;
}

/* HETMEM_IOC_RING, validated but for what is checked here. */
int hetmem_ring_setup(struct hetmem_context *ctx, struct hetmem_cmd_ring *cmd)
{
	struct hetmem_ring *ring;
	unsigned int max;
	int ret = 0;

	if (!is_power_of_2(cmd->nr_entries) ||
	    cmd->nr_entries < HETMEM_RING_MIN ||
	    cmd->nr_entries > HETMEM_RING_MAX)
		return -EINVAL;
	max = READ_ONCE(hetmem_caps.max_ring_entries);
	if (cmd->nr_entries > max) {
		trace_hetmem_limit_hit("max_ring_entries", max);
		return -EDQUOT;
	}
	if (!cmd->events || cmd->events >> HETMEM_EVENT_NR)
		return -EINVAL;

	ring = hetmem_ring_create(cmd->nr_entries);
	if (!ring)
		return -ENOMEM;
	ring->events = cmd->events;
	if (cmd->eventfd != -1) {
		struct eventfd_ctx *eventfd = eventfd_ctx_fdget(cmd->eventfd);

		if (IS_ERR(eventfd)) {
			ret = PTR_ERR(eventfd);
			goto out;
		}
		ring->eventfd = eventfd;
	}
	cmd->map_size = (u64)ring->nr_pages << PAGE_SHIFT;

	spin_lock(&ctx->lock);
	if (ctx->ring) {
		ret = -EEXIST;
	} else {
		/* Pairs with the acquire of who looks without the lock. */
		smp_store_release(&ctx->ring, ring);
		ring = NULL;
	}
	spin_unlock(&ctx->lock);
out:
	if (ring)
		hetmem_ring_destroy(ring);
	return ret;
}

void hetmem_ring_free(struct hetmem_context *ctx)
{
	if (ctx->ring)
		hetmem_ring_destroy(ctx->ring);
}

/* For who does not hold context->lock. */
static struct hetmem_ring *hetmem_ring_of(struct hetmem_context *ctx)
{
	/* Pairs with the release in hetmem_ring_setup(). */
	return smp_load_acquire(&ctx->ring);
}

/* Entries that the reader has not finished with, at most all. */
static u32 hetmem_ring_used(const struct hetmem_ring *ring)
{
	u64 used, tail;

	/* Acquire: what the reader read before it moved the tail is read. */
	tail = smp_load_acquire(&ring->header->tail);
	used = READ_ONCE(ring->head) - tail;
	return min_t(u64, used, ring->nr_entries);
}

/**
 * hetmem_ring_wants - whether anybody is told of a type of event
 * @ctx: context, its lock held
 * @type: enum hetmem_event_type
 */
bool hetmem_ring_wants(const struct hetmem_context *ctx, u32 type)
{
	return ctx->ring && (ctx->ring->events & BIT_ULL(type));
}

/**
 * hetmem_ring_add - add an event
 * @ctx: context, its lock held; hetmem_ring_wants() this type
 * @event: all but its time
 *
 * Call hetmem_ring_wake() afterwards, when the lock was dropped.
 *
 * Return: false if there was no room: the event is counted as dropped.
 */
bool hetmem_ring_add(struct hetmem_context *ctx,
		     const struct hetmem_event *event)
{
	struct hetmem_ring *ring = ctx->ring;
	struct hetmem_event *entry;

	lockdep_assert_held(&ctx->lock);
	if (hetmem_ring_used(ring) == ring->nr_entries) {
		ring->dropped[event->type]++;
		WRITE_ONCE(ring->header->dropped[event->type],
			   ring->dropped[event->type]);
		hetmem_total_add(HETMEM_TOTAL_EVENTS_DROPPED, 1);
		return false;
	}
	entry = &ring->entries[ring->head & (ring->nr_entries - 1)];
	*entry = *event;
	entry->time = ktime_get_ns();
	WRITE_ONCE(ring->head, ring->head + 1);
	/* The entry before the head that covers it. */
	smp_store_release(&ring->header->head, ring->head);
	/* The head before the bit: who clears it tells of that head. */
	smp_mb__before_atomic();
	set_bit(0, &ring->untold);
	hetmem_total_add(HETMEM_TOTAL_EVENTS, 1);
	return true;
}

/* Tells the reader if there is something new; without context->lock. */
void hetmem_ring_wake(struct hetmem_context *ctx)
{
	struct hetmem_ring *ring = hetmem_ring_of(ctx);

	/* Who clears the bit wakes, for others' events as well. */
	if (!ring || !test_bit(0, &ring->untold) ||
	    !test_and_clear_bit(0, &ring->untold))
		return;
	if (wq_has_sleeper(&ctx->wait))
		wake_up_interruptible_poll(&ctx->wait, EPOLLIN | EPOLLRDNORM);
	if (ring->eventfd)
		hetmem_eventfd_signal(ring->eventfd);
}

__poll_t hetmem_ring_poll(struct file *file, poll_table *wait)
{
	struct hetmem_context *ctx = file->private_data;
	struct hetmem_ring *ring;

	poll_wait(file, &ctx->wait, wait);
	ring = hetmem_ring_of(ctx);
	if (!ring)
		return EPOLLERR;
	return hetmem_ring_used(ring) ? EPOLLIN | EPOLLRDNORM : 0;
}

int hetmem_ring_mmap(struct hetmem_context *ctx, struct vm_area_struct *vma)
{
	struct hetmem_ring *ring = hetmem_ring_of(ctx);
	unsigned long i;
	int ret = 0;

	if (!ring)
		return -ENXIO;
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (vma->vm_pgoff || vma_pages(vma) != ring->nr_pages)
		return -EINVAL;
	/* One reader: a child shall not have it too. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	vm_flags_clear(vma, VM_MAYEXEC);
	for (i = 0; i < ring->nr_pages && !ret; i++)
		ret = vm_insert_page(vma, vma->vm_start + (i << PAGE_SHIFT),
				     vmalloc_to_page((void *)ring->header +
						     (i << PAGE_SHIFT)));
	return ret;
}
