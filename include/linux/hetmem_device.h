/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem: the in-kernel device interface, for drivers whose device has
 * device-private struct pages.
 *
 * What a driver must do:
 *  1. Register one struct hetmem_device_desc for each dev_pagemap whose pages
 *     are one device's. Afterwards hetmem knows its pages by that pgmap, shows
 *     them to userspace as location (HETMEM_DEVICE, id), and carries MIGRATE
 *     to the driver.
 *  2. Move pages itself, migrate_vma_*() included: hetmem never touches them.
 *  3. Call hetmem_device_moved() for every page that arrived, whoever wanted
 *     it: an operation, a CPU fault, an eviction.
 *  4. Keep within hetmem_device_limit(), by evicting.
 *  5. Unregister before the pages, or the module, go away. That waits for
 *     operations that run, so it must not be called from one.
 *  6. Before it moves pages of its own accord (a device fault), leave alone
 *     what hetmem leaves alone: mappings that are hugetlb, special (VM_SPECIAL,
 *     DAX, memfd_secret(2)), armed for userfaultfd, or, towards the device,
 *     VM_MERGEABLE.
 */
#ifndef _LINUX_HETMEM_DEVICE_H
#define _LINUX_HETMEM_DEVICE_H

#include <linux/types.h>

struct dev_pagemap;
struct hetmem_device;
struct mm_struct;
struct vm_area_struct;

/* Bytes that one call of an operation moves at most. */
#define HETMEM_DEVICE_SPAN	(16UL << 20)

/**
 * struct hetmem_device_ops - what a driver does for hetmem
 *
 * Operations may be called from any number of threads at once. Both move
 * operations run in the context of the process that asked, with mmap_lock of
 * vma->vm_mm held for reading; they keep it. [start, end) is page-aligned and
 * lies inside @vma, which is none of the mappings of point 6 above. The range
 * lies within one aligned 2 MiB block. Exception: if every block of it was just
 * seen to hold only small pages, it may be up to HETMEM_DEVICE_SPAN long, and
 * for to_device up to an eighth of the device.
 *
 * Operations may sleep, must not wait for user space, and return early on a
 * fatal signal. A driver that makes room for to_device does so in a bounded
 * number of rounds.
 *
 * Return: 0, also when some or all pages did not move (hetmem looks itself
 * where they are); -ENOMEM no room, on the device nor by evicting, or on the
 * host; -EINTR a fatal signal; another negative errno if the device failed.
 */
struct hetmem_device_ops {
	/* Move the pages of the range to the device. */
	int (*to_device)(void *drvdata, struct vm_area_struct *vma,
			 unsigned long start, unsigned long end);

	/*
	 * Move the device's pages of the range to the host. @nid is the node that
	 * the caller wants, or NUMA_NO_NODE; another node is no error.
	 */
	int (*to_host)(void *drvdata, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end, int nid);

	/*
	 * Move at least @nr_pages of any process's pages to the host, the least
	 * recently migrated ones first, without mmap_lock. Return: how many
	 * were moved, or a negative errno. Optional.
	 */
	long (*evict)(void *drvdata, unsigned long nr_pages);

	/* Bytes in use. Does not sleep. Optional. */
	u64 (*used)(void *drvdata);
};

/**
 * struct hetmem_device_desc - a device as its driver describes it
 * @name: at most 31 characters, copied
 * @pgmap: of its device-private pages; identifies them
 * @owner: pgmap->owner; several devices of one driver may share it
 * @capacity: bytes
 * @ops: lives until unregistered
 * @drvdata: handed to every operation; ready before the device is registered
 */
struct hetmem_device_desc {
	const char *name;
	const struct dev_pagemap *pgmap;
	void *owner;
	u64 capacity;
	const struct hetmem_device_ops *ops;
	void *drvdata;
};

enum hetmem_direction {
	HETMEM_TO_DEVICE,
	HETMEM_TO_HOST,
};

/*
 * Makes a device known; may sleep. ERR_PTR: -EINVAL a member is missing, -EEXIST
 * the pgmap is registered, -ENOSPC there are 32 devices, -ENOMEM.
 */
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
 * Takes spinlocks only; call it with page locks held or not.
 *
 * A driver that remembers @mm with a page, for the eviction, holds it by
 * mmgrab() until it has called this. Otherwise a struct mm_struct that is freed
 * could become another process's, which would get this one's addresses.
 */
void hetmem_device_moved(struct hetmem_device *dev, const struct mm_struct *mm,
			 unsigned long addr, unsigned long nr_pages,
			 enum hetmem_direction dir);

#endif /* _LINUX_HETMEM_DEVICE_H */
