/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Replays a trace in as many threads as were recorded, each as fast as it
 * can, and keeps what was ordered: a block is freed, or used by another thread,
 * after it was allocated, and what waits for an event comes after the event
 * was recorded. That is what a program must have had by some means of its
 * own; the rest may happen in any order.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "replay.h"

/**
 * struct crew - threads of one pass
 * @made: of each block; @recorded: of each event: its step is done
 * @uses: of each block, that come before its free and are not done
 */
struct crew {
	struct replay_world *world;
	struct hetmem_resource *res;
	unsigned char *made;
	unsigned char *recorded;
	uint32_t *uses;
	pthread_barrier_t start;
	uint64_t failures;
};

struct member {
	pthread_t thread;
	struct crew *crew;
	unsigned int index;
};

static void await(const unsigned char *flag)
{
	unsigned int spins = 0;

	while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
		if (++spins > 200)
			sched_yield();
}

static void set(unsigned char *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void do_step(struct crew *crew, const struct replay_step *s)
{
	switch (s->op) {
	case REPLAY_ALLOC:
		if (replay_step(crew->world, crew->res, s))
			__atomic_add_fetch(&crew->failures, 1,
					   __ATOMIC_RELAXED);
		set(&crew->made[s->block]);
		return;
	case REPLAY_FREE:
		await(&crew->made[s->block]);
		while (__atomic_load_n(&crew->uses[s->block],
				       __ATOMIC_ACQUIRE))
			sched_yield();
		break;
	case REPLAY_RECORD_STREAM:
		await(&crew->made[s->block]);
		break;
	case REPLAY_WAIT:
	case REPLAY_SYNC:
		if (s->block != REPLAY_NONE)
			await(&crew->recorded[s->block]);
		break;
	default:
		break;
	}
	replay_step(crew->world, crew->res, s);
	if (s->op == REPLAY_RECORD)
		set(&crew->recorded[s->block]);
	else if (s->op == REPLAY_RECORD_STREAM)
		__atomic_sub_fetch(&crew->uses[s->block], 1,
				   __ATOMIC_RELEASE);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct crew *crew = m->crew;
	const struct replay_trace *t = crew->world->trace;
	struct hm_context saved;
	size_t i;

	hm_context_enter(crew->world->hm, 0, &saved);
	pthread_barrier_wait(&crew->start);
	for (i = 0; i < t->nr; i++)
		if (t->steps[i].thread == m->index)
			do_step(crew, &t->steps[i]);
	return NULL;
}

uint64_t replay_pass_threads(struct replay_world *w,
			     struct hetmem_resource *res, uint64_t *failures)
{
	const struct replay_trace *t = w->trace;
	struct crew crew = { .world = w, .res = res };
	struct member *members = xcalloc(t->threads, sizeof(*members));
	uint64_t start, ns;
	unsigned int i;
	size_t n;

	crew.uses = xcalloc(t->blocks, sizeof(*crew.uses));
	for (n = 0; n < t->nr; n++)
		if (t->steps[n].op == REPLAY_RECORD_STREAM)
			crew.uses[t->steps[n].block]++;
	crew.made = xcalloc(t->blocks, 1);
	crew.recorded = xcalloc(t->events, 1);
	pthread_barrier_init(&crew.start, NULL, t->threads + 1);
	for (i = 0; i < t->threads; i++) {
		members[i].crew = &crew;
		members[i].index = i;
		if (pthread_create(&members[i].thread, NULL, member_main,
				   &members[i]))
			exit(complain(EXIT_FAILED, "replay",
				      "cannot start %u threads", t->threads));
	}
	pthread_barrier_wait(&crew.start);
	start = replay_now();
	for (i = 0; i < t->threads; i++)
		pthread_join(members[i].thread, NULL);
	ns = replay_now() - start;
	pthread_barrier_destroy(&crew.start);
	w->device_ns = replay_drain(w, res) - start;
	*failures += crew.failures;
	free(crew.uses);
	free(crew.made);
	free(crew.recorded);
	free(members);
	return ns;
}
