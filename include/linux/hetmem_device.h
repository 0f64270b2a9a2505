/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem: the in-kernel device interface, for drivers whose device has
 * device-private struct pages.
 *
 * A driver registers one struct hetmem_device_desc per pool of pages (one
 * per GPU). Afterwards hetmem knows its pages by their dev_pagemap, shows
 * them to userspace as location (HETMEM_DEVICE, id), and carries MIGRATE to
 * the driver. hetmem never touches a page itself: moving is the driver's
 * business, migrate_vma_*() included.
 *
 * Lifetime: between hetmem_device_register() and the return of
 * hetmem_device_unregister() the operations may be called from any number
 * of threads at once. The module that owns them is pinned while one runs.
 * Unregister before the pages go away; it waits for running operations,
 * for walkers that look at the pages too, and must not be called from an
 * operation.
 */
#ifndef _LINUX_HETMEM_DEVICE_H
#define _LINUX_HETMEM_DEVICE_H

#include <linux/types.h>

struct dev_pagemap;
struct hetmem_device;
struct mm_struct;
struct module;
struct vm_area_struct;

/* Bytes that one call of an operation moves at most. */
#define HETMEM_DEVICE_SPAN	(16UL << 20)

/**
 * struct hetmem_device_ops - what a driver does for hetmem
 *
 * Both move operations run in the context of the process that asked, with
 * mmap_lock of vma->vm_mm held for reading; they keep it. [start, end) is
 * page-aligned and lies inside @vma. It is at most 2 MiB and does not cross a
 * 2 MiB boundary; or, where a moment ago there were small pages in each 2 MiB
 * and nothing huge, it is at most HETMEM_DEVICE_SPAN, and for to_device at
 * most an eighth of the device. @vma is neither hugetlb nor special
 * (VM_SPECIAL, DAX, memfd_secret(2)) nor armed for userfaultfd nor, towards
 * the device, VM_MERGEABLE, and a moment ago no page of the range was merged
 * by KSM; before it moves pages of its own accord a driver has to look for all
 * that itself. They may sleep, must not wait for user space, and return early
 * on a fatal signal. A moment is short: a driver that has evicted pages does
 * not go on with to_device, but returns -EAGAIN and is called again for what is
 * left, up to eight times.
 *
 * Return: 0, also when some or all pages did not move (hetmem looks for
 * itself where they are), -ENOMEM if there was no room (on the device nor by
 * evicting, or on the host), -EAGAIN of to_device, -EINTR on a fatal signal,
 * another negative errno if the device failed.
 */
struct hetmem_device_ops {
	struct module *owner;

	/* Move the pages of the range to the device. */
	int (*to_device)(void *drvdata, struct vm_area_struct *vma,
			 unsigned long start, unsigned long end);

	/*
	 * Move the device's pages of the range to the host, to @nid if it is
	 * a node and the device has HETMEM_DEVICE_TO_NODE, else anywhere.
	 */
	int (*to_host)(void *drvdata, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end, int nid);

	/*
	 * Move at least @nr_pages of whoever's pages to the host, the least
	 * recently migrated ones first, without mmap_lock. Return: how many
	 * were moved, or a negative errno.
	 */
	long (*evict)(void *drvdata, unsigned long nr_pages);

	/* Bytes in use. Called from any context that may not sleep. */
	u64 (*used)(void *drvdata);
};

/**
 * struct hetmem_device_desc - a device as its driver describes it
 * @name: at most 31 characters, copied
 * @pgmap: of its device-private pages; identifies them
 * @owner: pgmap->owner; several devices of one driver may share it
 * @capacity: bytes
 * @caps: HETMEM_DEVICE_* of the uapi header
 * @ops: lives until unregistered
 * @drvdata: handed to every operation
 */
struct hetmem_device_desc {
	const char *name;
	const struct dev_pagemap *pgmap;
	void *owner;
	u64 capacity;
	u32 caps;
	const struct hetmem_device_ops *ops;
	void *drvdata;
};

enum hetmem_direction {
	HETMEM_TO_DEVICE,
	HETMEM_TO_HOST,
};

struct hetmem_device *
hetmem_device_register(const struct hetmem_device_desc *desc);
void hetmem_device_unregister(struct hetmem_device *dev);
u32 hetmem_device_id(const struct hetmem_device *dev);
u64 hetmem_device_limit(const struct hetmem_device *dev);

/**
 * hetmem_device_moved - tell hetmem that pages have arrived
 * @dev: the device they went to or came from
 * @mm: whose pages; only compared, never followed: it need not have users
 * @addr: of the first page in @mm
 * @nr_pages: consecutive base pages
 * @dir: which way
 *
 * For every page that moved, whoever wanted it: to_device, to_host, CPU
 * fault, eviction. Takes spinlocks only; call it with page locks held or
 * not.
 *
 * A driver that remembers @mm with a page, for the eviction, holds it by
 * mmgrab() until it has told: a struct mm_struct that is freed becomes another
 * process's, who would be told of this one's addresses.
 */
void hetmem_device_moved(struct hetmem_device *dev, const struct mm_struct *mm,
			 unsigned long addr, unsigned long nr_pages,
			 enum hetmem_direction dir);

u32 hetmem_device_preferred(const struct mm_struct *mm, unsigned long addr);

#endif /* _LINUX_HETMEM_DEVICE_H */
