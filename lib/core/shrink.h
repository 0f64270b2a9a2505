/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem_shrink() of a range inside a block asks ctl() for this, and so do hetmem_commit() and
 * hetmem_decommit() of a sparse block. A range that ends with the
 * block is a struct hm_ctl_grow.
 */
#ifndef HETMEM_CORE_SHRINK_H
#define HETMEM_CORE_SHRINK_H

#include "core/resource.h"

/* HM_PART_SHRINK: the block has bytes behind these. */
enum hm_part {
	HM_PART_SHRINK,
	HM_PART_COMMIT,
	HM_PART_DECOMMIT,
};

struct hm_ctl_shrink {
	enum hm_part what;
	void *ptr;
	size_t offset;
	size_t length;
	hetmem_stream stream;
};

#endif /* HETMEM_CORE_SHRINK_H */
