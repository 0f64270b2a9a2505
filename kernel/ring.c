// SPDX-License-Identifier: GPL-2.0
/*
 * The event ring of a context.
 *
 * Design. A header page and an array of fixed-size entries, mapped by one
 * reader. The kernel keeps head, geometry and drop counters to itself and
 * only publishes them. Of what the reader can write it reads one word, the
 * tail, once for each event, and clamps it. If the reader is slow or gone, the
 * newest events are lost, counted by type; if it writes rubbish, it reads
 * rubbish.
 *
 * Locking. Producers run in notifications: they hold hm->lock, which serializes
 * them, and neither allocate nor sleep. A worker wakes the reader: a process can
 * wait for the file in as many places as it has descriptors, and a wake-up
 * visits all of them. The ring is made once, published under hm->lock, and freed
 * with the context, when no mapping (which holds the file) is left.
 */
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/personality.h>
#include <linux/poll.h>
#include <linux/ktime.h>
#include <linux/vmalloc.h>

#include "range.h"

static void ring_wake_work(struct work_struct *work)
{
	struct hetmem_context *ctx = container_of(work, struct hetmem_context, ring.wake);

	wake_up_interruptible_poll(&ctx->wait, EPOLLIN | EPOLLRDNORM);
}

/* HETMEM_IOC_RING */
int hetmem_ring(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_ring_header *header;
	struct hetmem_cmd_ring *cmd = arg;
	struct hetmem_ring *ring = &ctx->ring;

	BUILD_BUG_ON(sizeof(*header) > PAGE_SIZE);
	if (!is_power_of_2(cmd->nr_entries) || cmd->nr_entries < HETMEM_RING_MIN ||
	    cmd->nr_entries > HETMEM_RING_MAX || !cmd->events || cmd->events >> HETMEM_EVENT_NR)
		return -EINVAL;

	/* Two pages at least: from vmalloc, which can be mapped. */
	cmd->map_size = PAGE_ALIGN(cmd->nr_entries * sizeof(struct hetmem_event)) + PAGE_SIZE;
	header = hetmem_alloc(ctx->user, cmd->map_size);
	if (IS_ERR(header))
		return PTR_ERR(header);
	header->version = HETMEM_RING_VERSION;
	header->entry_size = sizeof(struct hetmem_event);
	header->nr_entries = cmd->nr_entries;
	header->data_offset = PAGE_SIZE;
	scoped_guard(spinlock, &ctx->hm->lock) {
		if (!ring->header) {
			ring->size = cmd->map_size;
			ring->nr_entries = cmd->nr_entries;
			ring->events = cmd->events;
			INIT_WORK(&ring->wake, ring_wake_work);
			/* Pairs with loads without the lock. */
			smp_store_release(&ring->header, header);
			return 0;
		}
	}
	hetmem_free(ctx->user, header, cmd->map_size);
	return -EEXIST;
}

void hetmem_ring_free(struct hetmem_context *ctx)
{
	if (!ctx->ring.header)
		return;
	cancel_work_sync(&ctx->ring.wake);
	hetmem_free(ctx->user, ctx->ring.header, ctx->ring.size);
}

/* Entries that the reader has not finished with, at most all. */
static u32 ring_used(const struct hetmem_ring *ring)
{
	u64 used, tail;

	/* Acquire: what the reader read before it moved the tail is read. */
	tail = smp_load_acquire(&ring->header->tail);
	used = READ_ONCE(ring->head) - tail;
	return min_t(u64, used, ring->nr_entries);
}

/**
 * hetmem_ring_wants - whether anybody is told of a type of event
 * @ctx: context, hm->lock held
 * @type: enum hetmem_event_type
 */
bool hetmem_ring_wants(const struct hetmem_context *ctx, u32 type)
{
	return ctx->ring.events & BIT_ULL(type);
}

/**
 * hetmem_ring_add - add an event
 * @ctx: context, hm->lock held
 * @event: all but its time
 *
 * Return: false if nobody wants it, or there was no room: then it counts as dropped.
 */
bool hetmem_ring_add(struct hetmem_context *ctx, const struct hetmem_event *event)
{
	struct hetmem_ring *ring = &ctx->ring;
	struct hetmem_event *entries = (void *)ring->header + PAGE_SIZE, *entry;

	lockdep_assert_held(&ctx->hm->lock);
	if (!hetmem_ring_wants(ctx, event->type))
		return false;
	if (ring_used(ring) == ring->nr_entries) {
		ring->dropped[event->type]++;
		WRITE_ONCE(ring->header->dropped[event->type], ring->dropped[event->type]);
		hetmem_total_add(events_dropped, 1);
		return false;
	}
	entry = &entries[ring->head & (ring->nr_entries - 1)];
	*entry = *event;
	entry->time = ktime_get_ns();
	WRITE_ONCE(ring->head, ring->head + 1);
	/* The entry before the head that covers it. */
	smp_store_release(&ring->header->head, ring->head);
	hetmem_total_add(events, 1);
	if (wq_has_sleeper(&ctx->wait))
		queue_work(hetmem_wq, &ring->wake);
	return true;
}

__poll_t hetmem_ring_poll(struct file *file, poll_table *wait)
{
	struct hetmem_context *ctx = file->private_data;

	poll_wait(file, &ctx->wait, wait);
	/* Pairs with the release in hetmem_ring(). */
	if (!smp_load_acquire(&ctx->ring.header))
		return EPOLLERR;
	return ring_used(&ctx->ring) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* Events are for the process whose memory they tell of. */
int hetmem_ring_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct hetmem_context *ctx = file->private_data;
	/* Pairs with the release in hetmem_ring(). */
	struct hetmem_ring_header *header = smp_load_acquire(&ctx->ring.header);
	struct page *page;
	unsigned long at;
	int ret = 0;

	if (current->mm != ctx->hm->notifier.mm)
		return -EPERM;
	if (!header)
		return -ENXIO;
	/* mmap() adds PROT_EXEC itself in a process with READ_IMPLIES_EXEC. */
	if ((vma->vm_flags & VM_EXEC) && !(current->personality & READ_IMPLIES_EXEC))
		return -EINVAL;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff ||
	    vma->vm_end - vma->vm_start != ctx->ring.size)
		return -EINVAL;
	/*
	 * One reader: a child shall not have it too. VM_IO alone makes all kernels
	 * refuse MADV_DOFORK.
	 */
	vm_flags_set(vma, VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	vm_flags_clear(vma, VM_EXEC | VM_MAYEXEC);
	/* The pages are inserted with it. */
	vma->vm_page_prot = vm_get_page_prot(vma->vm_flags);
	for (at = 0; at < ctx->ring.size && !ret; at += PAGE_SIZE) {
		page = vmalloc_to_page((void *)header + at);
		ret = hetmem_insert_page(vma, vma->vm_start + at, page);
	}
	return ret;
}
