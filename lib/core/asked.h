/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Requests to a process: a memfd beside its statistics (publish.h), found in the same way, and
 * written by other processes. Its mode is 0600, and /proc/PID/fd is checked as for ptrace(2), so
 * only the process's own user and root ask.
 *
 * An asking process holds flock(2) on the file, so that one asks at a time, and a killed one
 * leaves no lock. It sets the members of a pool's entry, then @request to another number. The
 * pool answers at its next call, or the agent's thread does: it sets @err, @done and @text, then
 * @answered to that number. No request is waited for by the pool, and none is carried out twice.
 *
 * Neither side trusts the other: a pool copies a request before it checks it.
 */
#ifndef HETMEM_CORE_ASKED_H
#define HETMEM_CORE_ASKED_H

#include "core/publish.h"

#define HM_ASKED_NAME		"hetmem-requests"
#define HM_ASKED_MAGIC		0x71736d68U
#define HM_ASKED_VERSION	1
#define HM_ASKED_TEXT		152

enum hm_asked_op {
	HM_ASKED_NOTHING,	/* withdrawn: answered by -ECANCELED */
	HM_ASKED_RECLAIM,	/* give back @bytes of free memory at most */
	HM_ASKED_MAX,		/* hold @bytes at most from now on */
};

/**
 * struct hm_asked_pool - the last request to a pool
 * @number: of the pool, as published; an entry can be another pool's later
 * @request: its number, written last
 * @answered: the last request that was answered, written last
 * @op: enum hm_asked_op
 * @err: 0, or a negative errno and a reason in @text. -EXDEV: the pool is a part of another pool,
 *	which is asked too
 * @done: HM_ASKED_RECLAIM: bytes that were given back
 */
struct hm_asked_pool {
	uint64_t number;
	uint32_t request;
	uint32_t answered;
	uint32_t op;
	int32_t err;
	uint64_t bytes;
	uint64_t done;
	char text[HM_ASKED_TEXT];
};

/* struct hm_asked - the whole file; @pools[i] is asked by what struct hm_published has there */
struct hm_asked {
	uint32_t magic;
	uint32_t version;
	uint32_t pid;
	uint32_t reserved[45];
	struct hm_asked_pool pools[HM_PUBLISH_POOLS];
};

_Static_assert(sizeof(struct hm_asked_pool) == 192 && sizeof(struct hm_asked) == 12288,
	       "the layout of version 1");

/*
 * Has @answer(@arg) called by hm_publish_answer() when others ask @pool, and returns its entry;
 * NULL: nobody can ask (no memory, no descriptor). It is called until hm_publish_unasked(), which
 * waits for calls of other threads.
 */
struct hm_asked_pool *hm_publish_asked(struct hm_published_pool *pool, void (*answer)(void *arg),
				       void *arg);

void hm_publish_unasked(struct hm_published_pool *pool);

/* Whether the file is this process's. A forked child without memory can have its parent's. */
bool hm_publish_hears(void);

/* Answers for all pools of the process that were asked. For the agent's thread. */
void hm_publish_answer(void);

#endif /* HETMEM_CORE_ASKED_H */
