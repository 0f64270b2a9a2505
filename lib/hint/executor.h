/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Between the two halves of the executor of hints: executor.c (what it is,
 * which devices, its thread) and executor_work.c (what is waiting, how it is
 * carried out and answered).
 */
#ifndef HETMEM_HINT_EXECUTOR_H
#define HETMEM_HINT_EXECUTOR_H

#include "driver/hetmem.h"
#include "platform/kmod_hint.h"

/**
 * struct hm_binding - a device that hints are carried out for
 * @location: in the module's words
 * @uuid: of the driver's device; zeroes for one that only the module knows
 * @target: for hetmem_prefetch()
 * @device: the driver's, whose stream @stream is; -1: the module moves
 * @stream: for this alone, so that no work of the program is waited for
 */
struct hm_binding {
	uint32_t location;
	unsigned char uuid[16];
	uint32_t target;
	int device;
	CUstream stream;
};

/**
 * struct hm_pending - a hint that was read and not answered
 * @before: pages that were at the target, where that must be counted
 * @result: 0 or a negative errno
 * @moved: pages
 */
struct hm_pending {
	uint64_t id;
	uintptr_t start;
	uintptr_t end;
	uint32_t location;
	unsigned char uuid[16];
	int32_t result;
	int64_t before;
	uint64_t moved;
};

/**
 * struct hetmem_executor - see hetmem.h
 * @fd: its context, which has @ring
 * @pending: the hints read, @nr of them, oldest first, room for @room
 * @stop_fd: an eventfd that wakes @thread to end; -1: there is no thread
 * @stop: set before that, and looked at between pieces of work
 * One thread, its own or the caller's, uses the ring, @pending and @stats;
 * @stats is read by any.
 */
struct hetmem_executor {
	struct hetmem *hm;
	unsigned int generation;
	unsigned int nr_bindings;
	struct hm_binding bindings[2 * HM_MAX_DEVICES];
	int fd;
	int stop_fd;
	bool stop;
	struct hm_ring ring;
	struct hm_pending *pending;
	size_t nr;
	size_t room;
	pthread_t thread;
	int (*accept)(void *arg, const void *ptr, size_t size,
		      uint32_t location);
	void *arg;
	struct hetmem_executor_stats stats;
};

/* Carries out and answers what is waiting; how many hints that was. */
size_t hm_executor_work(struct hetmem_executor *x);

#endif /* HETMEM_HINT_EXECUTOR_H */
