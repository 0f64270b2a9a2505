/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The pool: one resource that cuts the regions of a provider into blocks, in
 * stream order. Over a mappable provider it is the VMM pool, over any other
 * the classic coalescing one; the provider's caps decide.
 */
#ifndef HETMEM_POOL_POOL_H
#define HETMEM_POOL_POOL_H

#include "provider/provider.h"
#include "core/resource.h"

/**
 * struct hm_pool_options - of one pool; zero is the default of each
 * @max: most bytes of physical memory to hold, 0: what there is. A percentage
 *	is of provider->total, taken when the pool is created.
 * @most: @max of the spec, or of the last hetmem_resource_set(). hetmem_torch_set_limit()
 *	stays within it
 * @min: bytes that are there from the start and never given back
 * @handle: bytes of a handle (of a region, if the provider is not mappable), a
 *	power of two; 0: grows with the pool
 * @unit: bytes of a unit of sparse blocks, a multiple of 2 MiB; 0: HM_POOL_UNIT,
 *	or the provider's granularity if that is more
 * @reserve: bytes of addresses to reserve, 0: enough. Mappable providers only
 * @wait_ms: most milliseconds that one allocation waits for memory in use
 *	before it is -ENOMEM; 0: HM_POOL_WAIT_MS, on the host's own stream
 *	HM_POOL_HOST_WAIT_MS, for a program that synchronized would wait there as
 *	long as the work takes; HM_POOL_NO_WAIT: none
 * @decay_ms: gives back what was not used that long, when called anyway;
 *	0: only when asked to
 * @give: most bytes that it gives back for one request of another process, if @gives_part
 * @cache: most bytes of free blocks that a stream keeps for itself, 0: chosen
 * @comm: RDMA-capable memory that keeps its addresses until destroy
 * @retired: streams are retired before they are destroyed, by every user of
 *	them: a handle is believed until then
 * @reuse_order: memory of other streams whose work is not complete is used
 *	before new memory is made: streams then wait for each other, and the
 *	pool is smaller
 * @prefer_time: handles are larger: fewer calls of the driver, more memory
 * @check: two threads that free one block at the same time are told apart
 * @tag: for sleep and wake, "" for none
 * @park: bytes of host memory kept after a wake, if @park_given; else a share of what
 *	is available
 * @park_dir: a directory instead, NULL: host memory. The pool copies it
 * @max_host: most bytes of host memory for contents; 0: what there is
 * @spill: most bytes of host memory for spilled blocks; 0: the pool moves none by itself,
 *	and the program as many as there is memory for
 * @min_host: of these, made when the pool is created
 * @movable: blocks of so many bytes are movable; 0: those that are declared
 * @single_launcher: blocks of the legacy stream move, too
 */
struct hm_pool_options {
	uint64_t max;
	uint64_t most;
	uint64_t min;
	uint64_t handle;
	uint64_t unit;
	uint64_t reserve;
	unsigned int wait_ms;
	unsigned int decay_ms;
	uint64_t give;
	bool gives_part;
	uint64_t cache;
	bool comm;
	bool retired;
	bool reuse_order;
	bool prefer_time;
	bool check;
	char tag[HM_TAG_LEN];
	uint64_t park;
	bool park_given;
	const char *park_dir;
	uint64_t max_host;
	uint64_t spill;
	uint64_t min_host;
	uint64_t movable;
	bool single_launcher;
};

#define HM_POOL_WAIT_MS		1000
#define HM_POOL_UNIT		((uint64_t)2 << 20)
#define HM_POOL_UNIT_MAX	((uint64_t)1 << 30)
#define HM_POOL_HOST_WAIT_MS	30000
/*
 * The handle size with spill=. While memory is copied to the host, a change of mappings takes
 * 1 ms on an H200, whatever the size of the handle. A copy of 32 MiB takes 0.6 ms. Training at
 * 60% of its peak took 5.1 times as long with handles of 8 MiB, 4.9 with 16, 3.8 with 32 and
 * 4.3 with 64. A handle has at most the given share of the device or of max=, because a
 * returning handle displaces as many bytes.
 */
#define HM_POOL_SPILL_HANDLE	((uint64_t)32 << 20)
#define HM_POOL_SPILL_SHARE	64
#define HM_POOL_NO_WAIT		(~0U)

/*
 * Makes a pool over @provider, which belongs to it from then on and is
 * destroyed with it; on an error it stays the caller's. @options may be NULL
 * and is copied. -EINVAL an option makes no sense, and the text says which;
 * -ENOMEM; -EOPNOTSUPP the provider cannot do what is asked for; -EOWNERDEAD.
 */
int hm_pool_create(struct hm_provider *provider,
		   const struct hm_pool_options *options,
		   struct hetmem_resource **out);

/*
 * Gives regions that are free and complete back to the provider, if there are @bytes
 * of free memory. Waits for nothing. @res is a pool.
 */
void hm_pool_spare(struct hetmem_resource *res, size_t bytes);

/*
 * Whether live blocks of the pool @res begin at @left and @right, and all memory between
 * these two is the pool's and free. May return false if there are thousands of free
 * blocks.
 */
bool hm_pool_is_gap(struct hetmem_resource *res, uintptr_t left, uintptr_t right);

#endif /* HETMEM_POOL_POOL_H */
