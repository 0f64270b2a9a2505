/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What pictures of a run show: samples over its steps, and the blocks at its peak. */
#ifndef HETMEM_TOOLS_REPLAY_SAMPLES_H
#define HETMEM_TOOLS_REPLAY_SAMPLES_H

#include "replay.h"

#define REPLAY_SAMPLES	1200

enum line { REQUESTED, RESERVED, SPILLED, NR_LINES };

/* @moves: to the host, and back. */
struct replay_sample {
	uint64_t bytes[NR_LINES];
	uint32_t moves[2];
};

/* @spilled: some of it is on the host. */
struct replay_extent {
	uintptr_t start;
	size_t size;
	bool spilled;
};

/**
 * struct replay_samples - what one replay gave
 * @extents: blocks at the peak, by address
 */
struct replay_samples {
	size_t nr_samples;
	struct replay_sample samples[REPLAY_SAMPLES + 1];
	size_t nr_extents;
	struct replay_extent *extents;
};

/* Replays once more, in one thread. 0 or the exit status, and then one line was written. */
int replay_samples_take(struct replay_samples *p, struct hetmem *hm, const struct replay_result *r,
			const struct replay_how *how);
void replay_samples_free(struct replay_samples *p);

/*
 * Addresses from the extent @i to the next one, and of all of them. Addresses that are far
 * from the next block are another region; the space between regions is left out.
 */
uintptr_t replay_samples_step(const struct replay_samples *p, size_t i);
uintptr_t replay_samples_span(const struct replay_samples *p);

#endif
