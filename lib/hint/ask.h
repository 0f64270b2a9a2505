/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Requests to pools of other processes (core/asked.h). The command uses it too. */
#ifndef HETMEM_HINT_ASK_H
#define HETMEM_HINT_ASK_H

#include <sys/types.h>

#include "core/asked.h"

/**
 * struct hm_target - a process that can be asked
 * @fd: its requests, which this process holds the lock of
 * @asked: they, mapped
 * @figures: a copy of its figures
 */
struct hm_target {
	pid_t pid;
	int fd;
	struct hm_asked *asked;
	struct hm_published figures;
};

/*
 * Opens @pid, and waits until @deadline, of hm_now(), while another process asks it. Errors:
 * -ESRCH: there is no such process;
 * -EPERM: it is another user's, or may not be looked at;
 * -ENXIO: it publishes no pools;
 * -EBUSY: another process asks it all that time;
 * -ENOMEM, -EMFILE.
 */
int hm_target_open(pid_t pid, uint64_t deadline, struct hm_target *target);
/* Withdraws what was not answered. */
void hm_target_close(struct hm_target *target);

/* Asks its pool @i. Returns the number of the request. */
uint32_t hm_target_ask(struct hm_target *target, unsigned int i, enum hm_asked_op op,
		       uint64_t bytes);
/* Waits until it has answered that request, or @deadline of hm_now(); whether it has. */
bool hm_target_wait(const struct hm_target *target, unsigned int i, uint32_t request,
		    uint64_t deadline, struct hm_asked_pool *answer);
/* Whether the pool has answered that request; *@answer is a copy then, with a text that ends. */
bool hm_target_answered(const struct hm_target *target, unsigned int i, uint32_t request,
			struct hm_asked_pool *answer);

#endif /* HETMEM_HINT_ASK_H */
