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
#include <linux/highmem.h>
#include <linux/ioport.h>
#include <linux/kmemleak.h>
#include <linux/numa.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "emu.h"

/* The core has the last reference to @page's folio and gives it back. */
HETMEM_PAGE_FREE(emu_page_free)
{
	struct emu_device *dev = page->zone_device_data;
	unsigned long i = emu_page_index(dev, page);
	struct emu_page *p = &dev->pages[i];
	struct mm_struct *owner;

	spin_lock(&dev->lock);
	/* Also off the list of an evictor. */
	list_del_init(&p->order);
	p->mm = NULL;
	owner = p->owner;
	p->owner = NULL;
	bitmap_clear(dev->used_map, i, p->nr);
	dev->used -= p->nr;
	spin_unlock(&dev->lock);
	if (owner)
		mmdrop(owner);
}

#if HETMEM_HUGE
/*
 * The core has split @head; called for each piece behind it, then once with
 * NULL. @head is locked and nobody else finds it, with interrupts off.
 */
static void emu_folio_split(struct folio *head, struct folio *tail)
{
	struct emu_device *dev = head->page.zone_device_data;
	struct emu_page *first = &dev->pages[emu_page_index(dev, &head->page)];
	struct emu_page *p;

	spin_lock(&dev->lock);
	if (!tail) {
		first->nr = folio_nr_pages(head);
		spin_unlock(&dev->lock);
		emu_count(dev, EMU_HUGE_SPLIT, 1);
		return;
	}
	p = &dev->pages[emu_page_index(dev, &tail->page)];
	p->nr = folio_nr_pages(tail);
	if (first->owner)
		mmgrab(first->owner);
	p->owner = first->owner;
	p->mm = first->mm;
	p->addr = first->addr + ((p - first) << PAGE_SHIFT);
	/* Where the whole is, it may be an evictor's list, the pieces are. */
	if (!list_empty(&first->order))
		list_add_tail(&p->order, &first->order);
	spin_unlock(&dev->lock);

	tail->page.zone_device_data = dev;
	tail->page.mapping = head->page.mapping;
	tail->pgmap = head->pgmap;
}
#endif

static const struct dev_pagemap_ops emu_pgmap_ops = {
	HETMEM_PAGE_FREE_OP(emu_page_free),
	.migrate_to_ram = emu_migrate_to_ram,
#if HETMEM_HUGE
	.folio_split = emu_folio_split,
#endif
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

/*
 * Where the CPU kernel finds the bytes of a page of the device, or of the
 * host's, where secret memory has none; emu_unmap() ends it.
 */
void *emu_map(const struct emu_device *dev, unsigned long pfn)
{
	if (emu_has_pfn(dev, pfn))
		return emu_page_memory(dev, pfn);
	return kmap_local_page(pfn_to_page(pfn));
}

void emu_unmap(const struct emu_device *dev, unsigned long pfn, void *mapped)
{
	if (!emu_has_pfn(dev, pfn))
		kunmap_local(mapped);
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
 * A free page forgets what it was: active, dirty, unevictable and so on. The
 * page allocator does that to other pages; the core, which hands device pages
 * back to their driver as they are, does not.
 */
static void emu_forget(struct page *page)
{
	/* Of late in a struct of its own. */
	unsigned long *flags = (unsigned long *)&page->flags;

	*flags &= ~(PAGE_FLAGS_CHECK_AT_PREP & ~BIT(PG_reserved));
}

static struct page *emu_init_folio(struct emu_device *dev, unsigned long i,
				   unsigned int order)
{
	struct page *page = pfn_to_page(dev->first_pfn + i);
	unsigned int n;

	dev->pages[i].nr = 1U << order;
	for (n = 0; n < 1U << order; n++)
		emu_forget(page + n);
	hetmem_page_init(page, &dev->pgmap, order);
	page->zone_device_data = dev;
	return page;
}

/*
 * Takes one reserved page into use: locked, one reference. The search goes on
 * where the last one ended, so that pages that come together lie together
 * and can be evicted together.
 */
struct page *emu_alloc(struct emu_device *dev)
{
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
	return emu_init_folio(dev, i, 0);
}

/*
 * Takes EMU_HUGE reserved pages that lie together into use as one folio.
 * Return: NULL, and they are still reserved, if no free ones lie so.
 */
struct page *emu_alloc_huge(struct emu_device *dev)
{
	unsigned long i;

	spin_lock(&dev->lock);
	i = bitmap_find_next_zero_area(dev->used_map, dev->nr_pages, 0,
				       EMU_HUGE, EMU_HUGE - 1);
	if (i >= dev->nr_pages) {
		spin_unlock(&dev->lock);
		return NULL;
	}
	bitmap_set(dev->used_map, i, EMU_HUGE);
	dev->used += EMU_HUGE;
	dev->reserved -= EMU_HUGE;
	spin_unlock(&dev->lock);
	return emu_init_folio(dev, i, EMU_HUGE_ORDER);
}

/*
 * @page is mapped at @addr of @mm: the most recently migrated one. The caller
 * still has it locked, so that it cannot have left again.
 */
void emu_arrived(struct emu_device *dev, const struct page *page,
		 struct mm_struct *mm, unsigned long addr)
{
	struct emu_page *p = &dev->pages[emu_page_index(dev, page)];

	mmgrab(mm);
	spin_lock(&dev->lock);
	p->owner = mm;
	p->mm = mm;
	p->addr = addr;
	list_add_tail(&p->order, &dev->order);
	spin_unlock(&dev->lock);
}

/*
 * Whose the folio at @pfn is, which the caller has locked: the address space
 * is there, if empty, as long as the folio is in use. Return: false if it is
 * nobody's any more: it has left, and its last reference is about to go.
 */
bool emu_whose(struct emu_device *dev, unsigned long pfn,
	       struct mm_struct **mm, unsigned long *addr)
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

static bool emu_spared(const struct emu_page *p, const struct emu_range *spare)
{
	return spare && p->mm == spare->mm && p->addr < spare->end &&
	       p->addr + ((unsigned long)p->nr << PAGE_SHIFT) > spare->start;
}

/*
 * Takes the least recently migrated folios, at least @nr pages and at most
 * EMU_BATCH folios if there are so many, but none of @spare (which may be
 * NULL), out of the order and onto @taken; @runs says which, in that order.
 * They leave @taken when they become free, even before this returns; what is
 * still on it goes back with emu_put_back(). The caller puts emu_run.mm.
 * Return: how many folios.
 */
unsigned long emu_take_oldest(struct emu_device *dev, struct list_head *taken,
			      struct emu_run *runs, unsigned long nr,
			      const struct emu_range *spare)
{
	unsigned long found = 0, pages = 0;
	struct emu_page *p, *next;

	spin_lock(&dev->lock);
	list_for_each_entry_safe(p, next, &dev->order, order) {
		if (pages >= nr || found == EMU_BATCH)
			break;
		if (emu_spared(p, spare))
			continue;
		list_move_tail(&p->order, taken);
		runs[found].pfn = dev->first_pfn + (p - dev->pages);
		runs[found].nr = p->nr;
		runs[found].addr = p->addr;
		runs[found].mm = p->nr > 1 && mmget_not_zero(p->owner) ?
				 p->owner : NULL;
		found++;
		pages += p->nr;
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
