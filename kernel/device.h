/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Whose device a page belongs to: registered drivers' (device.c) and other
 * drivers' (foreign.c).
 */
#ifndef _HETMEM_DEVICE_PRIV_H
#define _HETMEM_DEVICE_PRIV_H

#include <linux/hetmem_device.h>

#include "hetmem.h"

#define HETMEM_MAX_DEVICES	32

/* Owners of device pages: the registered devices' and the learned ones. */
#define HETMEM_MAX_LEARNED	16
#define HETMEM_MAX_OWNERS	(HETMEM_MAX_DEVICES + HETMEM_MAX_LEARNED)

/* Pools of one of them that are told apart, and of all of them. */
#define HETMEM_OWNER_POOLS	4
#define HETMEM_MAX_POOLS	(HETMEM_MAX_LEARNED * HETMEM_OWNER_POOLS)

/*
 * How long pages may be on their way between host and device, seen nowhere. A
 * migration of 2 MiB takes well under a millisecond; on a busy host, more.
 */
#define HETMEM_SETTLE		msecs_to_jiffies(100)

/* device.c */
int hetmem_device_init(struct kobject *misc);
void hetmem_device_exit(void);
u32 hetmem_page_location(const struct page *page);
bool hetmem_owner_seen(void *owner);
unsigned int hetmem_owners(void **owners);
int hetmem_device_move(u32 id, struct vm_area_struct *vma, unsigned long start, unsigned long end,
		       bool to_host, int nid);
unsigned long hetmem_device_span(u32 id);
unsigned int hetmem_device_list(struct hetmem_device_info *info);

/* foreign.c */
extern const struct attribute_group hetmem_foreign_group;
int hetmem_foreign_init(void);
void hetmem_foreign_exit(void);
void hetmem_owner_learn(void *owner);
unsigned int hetmem_owners_learned(void **owners);
u32 hetmem_foreign_location(const struct page *page);
void hetmem_foreign_seen(struct hetmem_context *ctx, u32 location, long nr);
int hetmem_foreign_limit(struct hetmem_mm *hm, u32 location, const u8 uuid[16], u64 nr_pages);
unsigned int hetmem_foreign_list(struct hetmem_context *ctx, struct hetmem_pool_info *info);

static inline bool hetmem_is_foreign(u32 location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_FOREIGN ||
	       HETMEM_LOC_KIND(location) == HETMEM_COHERENT;
}

/* Whether pages there are on a device, of a registered driver or another. */
static inline bool hetmem_on_device(u32 location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_DEVICE || hetmem_is_foreign(location);
}

#endif /* _HETMEM_DEVICE_PRIV_H */
