/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Sparse blocks of a pool: sparse.c. Without the lock. */
#ifndef HETMEM_POOL_SPARSE_H
#define HETMEM_POOL_SPARSE_H

#include "core/shrink.h"
#include "pool/source.h"

/* As HM_CTL_ALLOC_WITH, with HETMEM_ALLOC_SPARSE; as HM_CTL_SHRINK of a sparse block. */
int hm_pool_alloc_sparse(struct pool *p, struct hm_ctl_alloc *arg);
int hm_pool_commit(struct pool *p, struct hm_ctl_shrink *arg);

/* HM_CTL_ACCESS. Takes no lock. */
int hm_pool_access(struct pool *p, struct hm_ctl_access *arg);

/* pool.c: @s uses live @b, as others may. With the lock. */
int hm_pool_use(struct pool *p, struct block *b, struct pool_stream *s);

#endif /* HETMEM_POOL_SPARSE_H */
