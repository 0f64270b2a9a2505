/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Which block of a resource contains a pointer.
 */
#ifndef BLOCK_OF_H
#define BLOCK_OF_H

#include "core/resource.h"

/* 0 and @block, or -ENOENT. */
static inline int block_of(struct hetmem_resource *res, const void *ptr,
			   struct hm_ctl_owns *block)
{
	*block = (struct hm_ctl_owns){ .ptr = ptr };
	return res->ops->ctl(res, HM_CTL_OWNS, block);
}

#endif /* BLOCK_OF_H */
