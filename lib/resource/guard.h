/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The guard's zones, between the adaptor (guard.c) and what fills them and
 * looks at them (guard_zones.c).
 */
#ifndef HETMEM_RESOURCE_GUARD_H
#define HETMEM_RESOURCE_GUARD_H

#include "resource/adaptor.h"

#define ZONE		((size_t)512)

/* In hm_known.extra, below the front's bits. */
#define BARE		((uintptr_t)1)	/* zones: not filled, or in no order */
#define RECORDED	((uintptr_t)2)
#define SLEPT		((uintptr_t)4)	/* what was in it may be gone */
#define FLAGS		(BARE | RECORDED | SLEPT)

struct look;

/**
 * struct guard - the adaptor
 * The lock of @blocks protects what follows it.
 * @stream: for what happens on HETMEM_STREAM_HOST, made when it is needed
 * @looks: free slots; @chunks: first slots of all chunks
 * @pending: slots in use
 * @damage: text of the first that hetmem_poll() has not told yet
 */
struct guard {
	struct hetmem_resource resource;
	bool abort;
	struct hm_blocks *blocks;
	CUstream stream;
	struct look *looks;
	struct look *chunks;
	unsigned int pending;
	char damage[256];
};

/* Host memory that the CPU uses at once. */
static inline bool hm_guard_by_cpu(const struct guard *g, hetmem_stream stream)
{
	return g->resource.device < 0 &&
	       (stream == HETMEM_STREAM_HOST || !g->resource.hm->nr_devices);
}

/*
 * With the context current, unless it is by the CPU. @front: bytes before the
 * block, at whose end a zone is.
 */
int hm_guard_fill(struct guard *g, unsigned char *base, size_t front,
		  struct hm_known *known);

/* Has the zones looked at, and lays poison, in the order of @stream. */
int hm_guard_check(struct guard *g, const struct hm_known *known,
		   hetmem_stream stream);

/* @ours: the memory is this process's, not the parent's. */
void hm_guard_free_chunks(struct guard *g, bool ours);

#endif /* HETMEM_RESOURCE_GUARD_H */
