// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Contents of a pool that sleeps. */
#include "pool/source.h"

/* With both locks; releases pool->lock. */
static int read_saved(struct pool *p, const struct hm_ctl_parked *arg)
{
	if (!p->asleep)
		return hm_error(-ENODATA, "parked_read: the pool is awake: read the block itself");
	if (!p->saved)
		return hm_error(-ENODATA, "parked_read: the pool is asleep without its contents");
	return p->source->read(p, arg);
}

int hm_pool_parked_read(struct pool *p, const struct hm_ctl_parked *arg)
{
	int err;

	if (!p->source->read)
		return -EOPNOTSUPP;
	err = hm_pool_lock_moves(p);
	if (err)
		return err;
	err = read_saved(p, arg);
	hm_pool_unlock_moves(p);
	return err;
}
