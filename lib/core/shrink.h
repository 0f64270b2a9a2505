/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem_shrink() of a range inside a block asks ctl() for this. A range that ends with the
 * block is a struct hm_ctl_grow.
 */
#ifndef HETMEM_CORE_SHRINK_H
#define HETMEM_CORE_SHRINK_H

#include "core/resource.h"

/* The block has bytes behind these. */
struct hm_ctl_shrink {
	void *ptr;
	size_t offset;
	size_t length;
	hetmem_stream stream;
};

#endif /* HETMEM_CORE_SHRINK_H */
