/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Adaptors: resources over other resources. Each is one file; each of these
 * makes it, and the upstream (or upstreams) given is its own if it succeeds.
 * What they do and take is documented in Documentation/spec.md.
 *
 * An adaptor holds none of its locks while it calls upstream. So their order
 * among themselves and with the locks below does not matter.
 */
#ifndef HETMEM_RESOURCE_ADAPTOR_H
#define HETMEM_RESOURCE_ADAPTOR_H

#include "resource/resource.h"

/* The first thing of every adaptor's own struct. */
static inline void hm_adaptor_init(struct hetmem_resource *self,
				   const struct hm_resource_ops *ops,
				   struct hetmem_resource *upstream)
{
	*self = (struct hetmem_resource){
		.ops = ops,
		.hm = upstream->hm,
		.upstream = upstream,
		.device = upstream->device,
		.mixed = upstream->mixed,
	};
}

/*
 * door.c: the top of a stack that outlives it, so that a use after destroy is
 * told; hm_doors_free() when the library is closed.
 */
int hm_door_create(struct hetmem_resource *upstream,
		   struct hetmem_resource **res);
bool hm_door_gone(const struct hetmem_resource *res);
void hm_doors_free(struct hetmem *hm);

/* statistics.c: counters, which can be pushed and popped. */
int hm_statistics_create(struct hetmem_resource *upstream,
			 struct hetmem_resource **res);

/* limit.c: at most @max bytes as they were asked for. */
int hm_limit_create(struct hetmem_resource *upstream, uint64_t max,
		    struct hetmem_resource **res);

/*
 * log.c: every call a line of @file, in which %p is the process's id and %n
 * the log's number in it; @full: also what orders streams. -EBUSY: another log
 * of this process writes that file.
 */
int hm_log_create(struct hetmem_resource *upstream, const char *file,
		  bool full, struct hetmem_resource **res);

/*
 * retry.c: when upstream has no memory, up to @times: asks the callback if
 * there is one, else gives cached memory back and waits for @wait_ns.
 */
int hm_retry_create(struct hetmem_resource *upstream, unsigned int times,
		    uint64_t wait_ns, struct hetmem_resource **res);

/* fallback.c: the first of @nr that has memory. */
int hm_fallback_create(struct hetmem_resource **upstreams, int nr,
		       struct hetmem_resource **res);

/* binning.c: the first of @nr whose bound, @nr - 1 ascending, is not less. */
int hm_binning_create(struct hetmem_resource **upstreams, int nr,
		      const uint64_t *bounds, struct hetmem_resource **res);

/* align.c: blocks of @min bytes up at a multiple of @align. */
int hm_align_create(struct hetmem_resource *upstream, uint64_t align,
		    uint64_t min, struct hetmem_resource **res);

/*
 * guard.c: red zones on both sides, poison in what is allocated and freed.
 * -EINVAL: only some of @upstream's memory is the host's.
 */
int hm_guard_create(struct hetmem_resource *upstream, bool abort_on_damage,
		    struct hetmem_resource **res);

/* fixed.c: @count buffers of @size bytes, made at once. */
int hm_fixed_create(struct hetmem_resource *upstream, uint64_t size,
		    unsigned int count, bool comm,
		    struct hetmem_resource **res);

/* several.c: what those with several upstreams have in common. */

/**
 * struct hm_several - a resource with several upstreams
 * The first member of its own struct; resource.upstream is NULL.
 */
struct hm_several {
	struct hetmem_resource resource;
	int nr;
	struct hetmem_resource *upstreams[8];
};

void hm_several_init(struct hm_several *several,
		     const struct hm_resource_ops *ops,
		     struct hetmem_resource **upstreams, int nr);
int hm_several_free(struct hetmem_resource *self, void *ptr, size_t size,
		    hetmem_stream stream);
int hm_several_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg);
void hm_several_destroy(struct hetmem_resource *self);

/* blocks.c: what an adaptor knows of the blocks that went through it. */

/**
 * struct hm_known - one live block
 * @ptr: as the adaptor returned it, never NULL
 * @size: as it was asked for
 * @stream: it was allocated on, as @thread calls it, see hm_stream_here()
 * @extra: the adaptor's own
 */
struct hm_known {
	void *ptr;
	size_t size;
	hetmem_stream stream;
	uint64_t thread;
	uintptr_t extra;
};

/*
 * A table of them by address, in shards with a lock each, so that threads
 * seldom meet. Locks are leaves: nothing is called while one is held. They
 * are whole and free in a forked child.
 */
struct hm_blocks;

struct hm_blocks *hm_blocks_new(void);
/* Calls @each, if it is not NULL, for what is left. */
void hm_blocks_free(struct hm_blocks *blocks,
		    void (*each)(const struct hm_known *known, void *arg),
		    void *arg);
/* -ENOMEM. A block of that address must not be there. */
int hm_blocks_add(struct hm_blocks *blocks, const struct hm_known *known);
/*
 * Takes @ptr out if @size is 0 or as it was asked for. 0; -ENOENT; -EINVAL
 * and @known is what is there.
 */
int hm_blocks_take(struct hm_blocks *blocks, const void *ptr, size_t size,
		   struct hm_known *known);
bool hm_blocks_find(struct hm_blocks *blocks, const void *ptr,
		    struct hm_known *known);
/*
 * Changes it where it is, so that nobody misses it meanwhile: @size bytes, if
 * it has less, and @bits in extra. @was: before.
 */
bool hm_blocks_update(struct hm_blocks *blocks, const void *ptr, size_t size,
		      uintptr_t bits, struct hm_known *was);
/* Of every block: sets and clears bits in extra. */
void hm_blocks_update_all(struct hm_blocks *blocks, uintptr_t set,
			  uintptr_t clear);
/* Bytes of host memory it uses. */
size_t hm_blocks_bytes(struct hm_blocks *blocks);

/*
 * A lock for the owner's own use, whole and free in a forked child too. The
 * functions above may be called, the driver, and what the owner is upon, while
 * it is held.
 */
void hm_blocks_lock(struct hm_blocks *blocks);
void hm_blocks_unlock(struct hm_blocks *blocks);

/* hm_blocks_take() for a free, with the error's text. 0 or -EINVAL. */
int hm_blocks_take_freed(struct hm_blocks *blocks, const char *name,
			 const void *ptr, size_t size, struct hm_known *known);

#endif /* HETMEM_RESOURCE_ADAPTOR_H */
