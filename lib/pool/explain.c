// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Why an allocation of a pool failed: what is free where, and what would help. The caller
 * holds pool->lock. Looks release it in between, so that the figures are not of one moment.
 */
#include <stdio.h>

#include "pool/graph.h"
#include "pool/source.h"

/* Descriptors that one error looks at: it stays cheap where errors are usual. */
#define MOST_LOOKS	(1U << 16)
/* Instructions of a look, about. */
#define LOOK_WORK	40

/**
 * struct free_bytes - by what keeps them from others
 * @private: of private pools; @captured: of captures that were not released
 * @cached: in caches of streams, blocks of up to 1 MiB
 * @in_use: freed, but work on other streams uses them
 * @pieces: beside live blocks; @largest: of these
 */
struct free_bytes {
	uint64_t private, captured, cached, in_use, pieces, largest;
};

static void count(struct pool *p, struct free_bytes *f, const struct block *b)
{
	const uint64_t bytes = block_bytes(b);
	const enum block_state state = block_state(b);

	/* Parked blocks of a capture are BUSY. */
	if (b->flags & BLOCK_GRAPH && (state == BLOCK_FREE || state == BLOCK_BUSY)) {
		if (hm_graph_at(p, b->stream) && hm_graph_at(p, b->stream)->of->private)
			f->private += bytes;
		else
			f->captured += bytes;
	} else if (state == BLOCK_CACHED) {
		f->cached += bytes;
	} else if (state == BLOCK_PENDING || (state == BLOCK_FREE && !hm_block_done(p, b))) {
		f->in_use += bytes;
	} else if (state == BLOCK_FREE) {
		f->pieces += bytes;
		if (bytes > f->largest)
			f->largest = bytes;
	}
}

static size_t add(char *text, size_t size, size_t at, const char *where, uint64_t bytes)
{
	if (!bytes || at >= size)
		return at;
	return at + snprintf(text + at, size - at, "%s%llu %s", at ? ", " : HM_FREE_BYTES,
			     (unsigned long long)bytes, where);
}

void hm_pool_tell_free_bytes(struct pool *p, char *text, size_t size)
{
	struct free_bytes f = { 0 };
	uint32_t id;
	size_t at;

	for (id = 1; id < p->blocks.nr && id < MOST_LOOKS; id++) {
		count(p, &f, block_at(p, id));
		hm_pool_step(p, LOOK_WORK);
	}
	text[0] = '\0';
	at = add(text, size, 0, "in private pools until hetmem_private_release()", f.private);
	at = add(text, size, at, "of captures until hetmem_capture_release()", f.captured);
	at = add(text, size, at, "in caches: hetmem_trim()", f.cached);
	at = add(text, size, at, "in use by earlier work: synchronize, or a larger wait=", f.in_use);
	at = add(text, size, at, "in pieces beside live blocks", f.pieces);
	if (f.pieces && at < size)
		snprintf(text + at, size - at, " (the largest has %llu)",
			 (unsigned long long)f.largest);
}

int hm_pool_explain(struct pool *p, const struct pool_stream *s, const char *what, size_t size,
		    int err, uint64_t waited, const struct hm_stream *on)
{
	char reason[256], wait[128] = "", room[384] = "", others[64] = "", more[384] = "";

	snprintf(reason, sizeof(reason), "%s", hetmem_last_error());
	if (on)
		snprintf(wait, sizeof(wait), ", waited %llu of at most %llu ms (wait=), at last for memory in use on stream %llu",
			 (unsigned long long)waited / 1000000,
			 (unsigned long long)hm_pool_most_wait_on(p, s) / 1000000,
			 (unsigned long long)on->id);
	if (err == -ENOMEM)
		hm_pool_tell_free_bytes(p, room, sizeof(room));
	if (hm_pool_held(p) > p->reserved)
		snprintf(others, sizeof(others), ", %llu more held for other tags",
			 (unsigned long long)(hm_pool_held(p) - p->reserved));
	if (err == -ENOMEM && others[0]) {
		pthread_mutex_unlock(&p->lock);
		p->tags->ops->tell(p->tags, p, more, sizeof(more));
		pthread_mutex_lock(&p->lock);
	}
	return hm_error(err, "%s %zu bytes: %s; %llu bytes held, %lld live%s%s%s%s",
			what, size, reason, (unsigned long long)p->reserved,
			(long long)p->requested, others, wait, room, more);
}
