// SPDX-License-Identifier: GPL-2.0
/*
 * The device's memory: its struct pages, what stands behind them, which are
 * in use, and the order in which they came.
 *
 * A page's way: reserved (a promise of any page), allocated (locked, one
 * reference, by emu_alloc()), arrived (mapped somewhere and in the order, by
 * emu_arrived(), while it is still locked), left (by emu_left(), locked again,
 * or unmapped), and free when its last reference goes. An allocated page that
 * did not get mapped goes straight to the end.
 */
#include <linux/bitmap.h>
#include <linux/ioport.h>
#include <linux/kmemleak.h>
#include <linux/numa.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "compat.h"
#include "emu.h"

/* The core has the last reference to @page and gives it back. */
HETMEM_PAGE_FREE(emu_page_free)
{
	struct emu_device *dev = page->zone_device_data;
	unsigned long i = emu_page_index(dev, page);

	spin_lock(&dev->lock);
	/* Also off the list of an evictor. */
	list_del_init(&dev->pages[i].order);
	dev->pages[i].mm = NULL;
	__clear_bit(i, dev->used_map);
	dev->used--;
	spin_unlock(&dev->lock);
}

static const struct dev_pagemap_ops emu_pgmap_ops = {
	HETMEM_PAGE_FREE_OP(emu_page_free),
	.migrate_to_ram = emu_migrate_to_ram,
};

static int emu_pgmap_init(struct emu_device *dev)
{
	struct resource *region;
	void *mapped;

	region = request_free_mem_region(&iomem_resource,
					 dev->nr_pages << PAGE_SHIFT,
					 dev->name);
	if (IS_ERR(region))
		return PTR_ERR(region);

	/*
	 * The whole region, which is as large as a hotplug section asks for,
	 * gets struct pages; the device uses those of its capacity.
	 */
	dev->pgmap.type = MEMORY_DEVICE_PRIVATE;
	dev->pgmap.range.start = region->start;
	dev->pgmap.range.end = region->end;
	dev->pgmap.nr_range = 1;
	dev->pgmap.ops = &emu_pgmap_ops;
	dev->pgmap.owner = &emu_owner;
	mapped = memremap_pages(&dev->pgmap, NUMA_NO_NODE);
	if (IS_ERR(mapped)) {
		release_mem_region(region->start, resource_size(region));
		return PTR_ERR(mapped);
	}
	dev->first_pfn = PHYS_PFN(region->start);
	dev->region = region;
	return 0;
}

/* Return: 0 or a negative errno, with nothing left behind. */
int emu_memory_init(struct emu_device *dev, unsigned long nr_pages)
{
	unsigned long i;
	int ret = -ENOMEM;

	spin_lock_init(&dev->lock);
	INIT_LIST_HEAD(&dev->order);
	dev->nr_pages = nr_pages;

	/* Too much is an error, not a reason to kill somebody. */
	dev->memory = __vmalloc(nr_pages << PAGE_SHIFT, GFP_KERNEL |
				__GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (!dev->memory)
		return -ENOMEM;
	/* Users' data: nothing in it is a pointer to what we allocate. */
	kmemleak_no_scan(dev->memory);

	dev->pages = kvcalloc(nr_pages, sizeof(*dev->pages), GFP_KERNEL);
	dev->used_map = kvcalloc(BITS_TO_LONGS(nr_pages), sizeof(long),
				 GFP_KERNEL);
	dev->faulting = kvcalloc(BITS_TO_LONGS(nr_pages), sizeof(long),
				 GFP_KERNEL);
	if (!dev->pages || !dev->used_map || !dev->faulting)
		goto err_free;
	for (i = 0; i < nr_pages; i++)
		INIT_LIST_HEAD(&dev->pages[i].order);

	ret = emu_pgmap_init(dev);
	if (ret)
		goto err_free;
	return 0;

err_free:
	kvfree(dev->faulting);
	kvfree(dev->used_map);
	kvfree(dev->pages);
	vfree(dev->memory);
	return ret;
}

/* No page may be in use: memunmap_pages() waits for the last reference. */
void emu_memory_exit(struct emu_device *dev)
{
	struct resource *region = dev->region;

	memunmap_pages(&dev->pgmap);
	release_mem_region(region->start, resource_size(region));
	kvfree(dev->faulting);
	kvfree(dev->used_map);
	kvfree(dev->pages);
	vfree(dev->memory);
}

/* Pages that the administrator lets it use. */
static unsigned long emu_limit(struct emu_device *dev)
{
	struct hetmem_device *registered;
	unsigned long limit = dev->nr_pages;

	rcu_read_lock();
	registered = rcu_dereference(dev->registered);
	if (registered)
		limit = min_t(u64, limit,
			      hetmem_device_limit(registered) >> PAGE_SHIFT);
	rcu_read_unlock();
	return limit;
}

/*
 * How many pages must go before @nr more can come: also those beyond a limit
 * that was lowered.
 */
unsigned long emu_lacking(struct emu_device *dev, unsigned long nr)
{
	unsigned long limit = emu_limit(dev), want;

	spin_lock(&dev->lock);
	want = dev->used + dev->reserved + nr;
	spin_unlock(&dev->lock);
	return want > limit ? want - limit : 0;
}

/*
 * Promises up to @nr free pages, which emu_alloc() then hands out without
 * fail. Return: how many, maybe 0. What is not allocated goes back with
 * emu_unreserve().
 */
unsigned long emu_reserve(struct emu_device *dev, unsigned long nr)
{
	unsigned long limit = emu_limit(dev), taken;

	spin_lock(&dev->lock);
	taken = dev->used + dev->reserved;
	nr = min(nr, limit > taken ? limit - taken : 0);
	dev->reserved += nr;
	spin_unlock(&dev->lock);
	return nr;
}

void emu_unreserve(struct emu_device *dev, unsigned long nr)
{
	if (!nr)
		return;
	spin_lock(&dev->lock);
	dev->reserved -= nr;
	spin_unlock(&dev->lock);
}

/*
 * Takes one reserved page into use: locked, one reference. The search goes on
 * where the last one ended, so that pages that come together lie together
 * and can be evicted together.
 */
struct page *emu_alloc(struct emu_device *dev)
{
	struct page *page;
	unsigned long i;

	spin_lock(&dev->lock);
	i = find_next_zero_bit(dev->used_map, dev->nr_pages, dev->next);
	if (i == dev->nr_pages)
		i = find_first_zero_bit(dev->used_map, dev->nr_pages);
	__set_bit(i, dev->used_map);
	dev->next = i + 1;
	dev->used++;
	dev->reserved--;
	spin_unlock(&dev->lock);

	page = pfn_to_page(dev->first_pfn + i);
	hetmem_page_init(page, &dev->pgmap);
	page->zone_device_data = dev;
	return page;
}

/*
 * @page is mapped at @addr of @mm: the most recently migrated one. The caller
 * still has it locked, so that it cannot have left again.
 */
void emu_arrived(struct emu_device *dev, const struct page *page,
		 const struct mm_struct *mm, unsigned long addr)
{
	struct emu_page *p = &dev->pages[emu_page_index(dev, page)];

	spin_lock(&dev->lock);
	p->mm = mm;
	p->addr = addr;
	list_add_tail(&p->order, &dev->order);
	spin_unlock(&dev->lock);
}

/*
 * Whose @pfn is, which the caller has locked. Return: false if nobody's any
 * more: it has left, and its last reference is about to go.
 */
bool emu_whose(struct emu_device *dev, unsigned long pfn,
	       const struct mm_struct **mm, unsigned long *addr)
{
	const struct emu_page *p = &dev->pages[pfn - dev->first_pfn];

	spin_lock(&dev->lock);
	*mm = p->mm;
	*addr = p->addr;
	spin_unlock(&dev->lock);
	return *mm;
}

/*
 * What was on @pfn is mapped elsewhere from now on. The caller still has it
 * locked: until it is free, evictors can find it, and must not take it for a
 * page in use.
 */
void emu_left(struct emu_device *dev, unsigned long pfn)
{
	struct emu_page *p = &dev->pages[pfn - dev->first_pfn];

	spin_lock(&dev->lock);
	list_del_init(&p->order);
	p->mm = NULL;
	spin_unlock(&dev->lock);
}

/*
 * Takes up to @nr of the least recently migrated pages, but none of @spare
 * (which may be NULL), out of the order and onto @taken; @pfns says which, in
 * that order. They leave @taken when they become free, even before this
 * returns; what is still on it goes back with emu_put_back().
 */
unsigned long emu_take_oldest(struct emu_device *dev, struct list_head *taken,
			      unsigned long *pfns, unsigned long nr,
			      const struct emu_range *spare)
{
	struct emu_page *p, *next;
	unsigned long found = 0;

	spin_lock(&dev->lock);
	list_for_each_entry_safe(p, next, &dev->order, order) {
		if (found == nr)
			break;
		if (spare && p->mm == spare->mm && p->addr >= spare->start &&
		    p->addr < spare->end)
			continue;
		list_move_tail(&p->order, taken);
		pfns[found++] = dev->first_pfn + (p - dev->pages);
	}
	spin_unlock(&dev->lock);
	return found;
}

/* What is left of @taken is the oldest again. */
void emu_put_back(struct emu_device *dev, struct list_head *taken)
{
	spin_lock(&dev->lock);
	list_splice_init(taken, &dev->order);
	spin_unlock(&dev->lock);
}
