// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The search for a block that a cache lacks, with all of its remedies. In a pool that moves
 * blocks it first looks where no handle gets blocks of several streams, and moves blocks
 * away: see hm_pool_is_apart(). The caller holds pool->lock, which the search releases.
 */
#include "pool/source.h"

/* What an allocation lacks: the block, once it was found. */
struct wanted {
	unsigned int zone;
	uint64_t units;
	struct block *block;
};

static int find_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	struct wanted *w = arg;
	int err = -ENOMEM;

	w->block = hm_pool_find_now(p, s, w->zone, w->units, &err);
	return w->block ? 0 : err;
}

/* Without handles of several streams, and without a wait for memory in use. */
static int find_apart(struct pool *p, struct pool_stream *s, struct wanted *w)
{
	int err = find_attempt(p, s, w);

	if (err == -ENOMEM && p->source->retry && p->source->retry(p))
		err = find_attempt(p, s, w);
	while (err == -ENOMEM && p->source->relieve(p, s, w->units << UNIT_SHIFT))
		err = find_attempt(p, s, w);
	return err;
}

struct block *hm_pool_find(struct pool *p, struct pool_stream *s,
			   unsigned int zone, uint64_t units, int *err,
			   struct hm_stream **waited)
{
	struct wanted w = { .zone = zone, .units = units };

	if (hm_pool_is_apart(p, zone)) {
		*err = find_apart(p, s, &w);
		if (*err != -ENOMEM)
			return *err ? NULL : w.block;
		/* Other threads may do so, too: it is no error, only worse. */
		p->mixing = true;
	}
	*err = hm_pool_attempt(p, s, units << UNIT_SHIFT, find_attempt, &w, waited);
	p->mixing = false;
	return *err ? NULL : w.block;
}
