/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Parts of a block: hetmem_shrink() of a range inside it; hetmem_commit(), hetmem_decommit()
 * and hetmem_committed() of a sparse one. A range to shrink that ends with the block is a
 * struct hm_ctl_grow instead.
 */
#ifndef HETMEM_CORE_SHRINK_H
#define HETMEM_CORE_SHRINK_H

#include "core/resource.h"

enum hm_part {
	HM_PART_SHRINK,		/* the block has bytes after these */
	HM_PART_COMMIT,
	HM_PART_DECOMMIT,
	HM_PART_COMMITTED,
};

/**
 * struct hm_ctl_shrink - a part of a block
 * @flags: of hetmem_commit_with()
 * @counted: out: by how many bytes a commit or decommit changed the requested ones
 * @extents, @nr: HM_PART_COMMITTED: room, and for how many; out: how many there are
 */
struct hm_ctl_shrink {
	enum hm_part what;
	void *ptr;
	size_t offset;
	size_t length;
	hetmem_stream stream;
	unsigned int flags;
	size_t counted;
	struct hetmem_extent *extents;
	size_t nr;
};

/* Memory for a commit on a stream. */
enum hm_commit {
	HM_COMMIT_HERE,		/* where units are parked: no memory is made or moved */
	HM_COMMIT_FREE,		/* of memory that the stream may have, or new */
	HM_COMMIT_ANY,		/* also of memory that it has to be ordered after */
};

#endif /* HETMEM_CORE_SHRINK_H */
