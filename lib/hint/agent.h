/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The agent: agent.c has all of it, open.c starts and ends it. */
#ifndef HETMEM_HINT_AGENT_H
#define HETMEM_HINT_AGENT_H

#include "driver/hetmem.h"
#include "platform/kmod_hint.h"

/* Blocks that are known at a time; the one that was held longest ago makes room. */
#define HM_AGENT_BLOCKS		256

/**
 * struct hm_policy - how long a block is held
 * @first_ms: for the first time
 * @most_ms: at most, after it was doubled
 * @calm: a block that thrashes within so many holds after one was not calm
 * @neighbours: on each side that are held with a block
 */
struct hm_policy {
	const char *name;
	unsigned int first_ms;
	unsigned int most_ms;
	unsigned int calm;
	unsigned int neighbours;
};

/**
 * struct hm_block - memory that thrashed
 * @start, @end: of it; @start 0: the slot is free
 * @from, @to: what is held for it: neighbours may be, too
 * @ms: how long it was held the last time
 * @until: hm_now() when that is over
 * @holding: it is held, or left alone, until then
 * @pinned: by the module
 * @advised: the driver was told
 */
struct hm_block {
	uintptr_t start;
	uintptr_t end;
	uintptr_t from;
	uintptr_t to;
	unsigned int ms;
	uint64_t until;
	bool holding;
	bool pinned;
	bool advised;
};

/**
 * struct hm_agent - see agent.c
 * @fd: of hm->watching
 * @stop_fd: an eventfd that wakes @thread to end
 * @alive: @thread is to be joined
 * @told: it was said that the thread has ended
 * @refreshed: hm_now() of the last refresh()
 * @hints: NULL: hints are not carried out here
 */
struct hm_agent {
	struct hetmem *hm;
	unsigned int generation;
	const struct hm_policy *policy;
	unsigned int flags;
	void (*log)(void *arg, const char *line);
	void *arg;
	int fd;
	int stop_fd;
	bool stop;
	bool alive;
	bool told;
	uint64_t refreshed;
	pthread_t thread;
	struct hm_ring ring;
	struct hetmem_executor *hints;
	struct hm_block blocks[HM_AGENT_BLOCKS];
	struct hetmem_agent_stats stats;
};

/*
 * Starts the agent that HETMEM_AGENT of the environment asks for. Where it cannot run,
 * one line on stderr says why. -EINVAL: the variable is wrong.
 */
int hm_agent_open(struct hetmem *hm);

/* Stops and frees it. In a forked child it only releases memory and descriptors. */
void hm_agent_close(struct hetmem *hm);

#endif /* HETMEM_HINT_AGENT_H */
