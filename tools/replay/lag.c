/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Streams that lag behind the CPU, as when it runs ahead of a busy device:
 * every now and then a host function is put on the stream that does not
 * return before the lag is over since it was put there. What is given to the
 * stream after it, a free's event among it, completes that much later.
 *
 * The driver may run the host functions of all streams on one thread. They
 * were put there in the order in which they end, so none waits for longer
 * than its own time because of another.
 */
#include <stdlib.h>
#include <time.h>

#include "replay.h"

#define GATES_A_LAG	8

/* A gate: until when. Freed by the driver's thread. */
struct gate {
	uint64_t until;
};

struct replay_lag {
	struct replay_world *world;
	uint64_t lag_ns;
	uint64_t *next;		/* of each stream, when the next gate is due */
};

static void pass_gate(void *data)
{
	struct gate *gate = data;
	struct timespec until = {
		.tv_sec = gate->until / 1000000000,
		.tv_nsec = gate->until % 1000000000,
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
	free(gate);
}

struct replay_lag *replay_lag_new(struct replay_world *world)
{
	struct replay_lag *lag;

	if (!world->how.lag_us || !world->drv->cuLaunchHostFunc)
		return NULL;
	lag = xcalloc(1, sizeof(*lag));
	lag->world = world;
	lag->lag_ns = world->how.lag_us * 1000ULL;
	lag->next = xcalloc(world->trace->streams, sizeof(*lag->next));
	return lag;
}

void replay_lag_step(struct replay_lag *lag, unsigned int stream)
{
	struct replay_world *w = lag->world;
	uint64_t now;
	struct gate *gate;

	if (stream >= w->trace->streams)
		return;
	now = replay_now();
	if (now < __atomic_load_n(&lag->next[stream], __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&lag->next[stream], now + lag->lag_ns / GATES_A_LAG,
			 __ATOMIC_RELAXED);
	gate = xcalloc(1, sizeof(*gate));
	gate->until = now + lag->lag_ns;
	if (w->drv->cuLaunchHostFunc(w->streams[stream], pass_gate, gate))
		free(gate);
}

void replay_lag_free(struct replay_lag *lag)
{
	if (!lag)
		return;
	free(lag->next);
	free(lag);
}
