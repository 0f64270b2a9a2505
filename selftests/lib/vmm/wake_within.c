// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_wake_within(): a wake that waits for room tries again until there is some, holds
 * nothing between two attempts, and ends at its time. Pools that fit one at a time take turns.
 */
#include <limits.h>
#include <pthread.h>

#include "below.h"
#include "by_spec.h"
#include "driver_calls.h"
#include "wait.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST
#define SIDES	3
#define TURNS	4

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A resource whose block @p of @size bytes is full of @byte; @attempts of a wake were seen. */
struct side {
	struct hetmem_resource *res;
	unsigned char *p;
	size_t size;
	int byte, err;
	unsigned int attempts;
	bool done, intact;
};

static void seen(const struct hetmem_remap *remap, void *arg)
{
	struct side *s = arg;

	if (remap->cause == HETMEM_REMAP_WAKE && !remap->after)
		__atomic_add_fetch(&s->attempts, 1, __ATOMIC_RELAXED);
}

static void fall_asleep(struct side *s, const char *spec, size_t size, int byte)
{
	*s = (struct side){ .res = make(spec), .size = size, .byte = byte };
	s->p = get(s->res, size, HOST);
	need(s->p, "%zu bytes: %s", size, hetmem_last_error());
	memset(s->p, byte, size);
	need(!hetmem_sleep(s->res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
}

static void drop(struct side *s)
{
	need(!hetmem_free(s->res, s->p, 0, HOST), "free");
	need(!hetmem_resource_destroy(s->res), "destroy");
}

static void *wake_it(void *arg)
{
	struct side *s = arg;

	s->err = hetmem_wake_within(s->res, NULL, UINT_MAX);
	__atomic_store_n(&s->done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* The time ends, and all is as before. */
static void time_ends(const char *spec)
{
	struct hetmem_resource *other = make("pool(vmm)");
	struct side s;
	uint64_t began;
	size_t used;
	void *taken;

	fall_asleep(&s, spec, 38 * MIB, 3);
	taken = get(other, 36 * MIB, HOST);
	used = device_used();
	is(hetmem_wake_within(s.res, NULL, 0), -ENOMEM, "%s: no time", spec);
	began = now_ms();
	is(hetmem_wake_within(s.res, NULL, 120), -ENOMEM, "and too little time");
	ok(now_ms() - began >= 119, "which it waited for");
	ok(strstr(hetmem_last_error(), "missing") || strstr(hetmem_last_error(), "fit"),
	   "%s", hetmem_last_error());
	is(device_used(), used, "nothing is held");
	ok(!stats(s.res).reserved && stats(s.res).parked >= s.size, "the contents are parked");
	need(!hetmem_free(other, taken, 0, HOST), "free");
	hetmem_resource_destroy(other);
	is(hetmem_wake_within(s.res, NULL, 0), 0, "with room it needs no time");
	is(hetmem_wake_within(s.res, NULL, UINT_MAX), 0, "an awake pool does not wait");
	ok(all_bytes(s.p, 3, s.size), "contents");
	drop(&s);
}

/* A waiting wake leaves room that is too small for it to others. */
static void holds_nothing(const char *spec)
{
	struct hetmem_resource *other = make("pool(vmm)");
	void *taken, *more = NULL;
	pthread_t thread;
	struct side s;

	fall_asleep(&s, spec, 34 * MIB, 9);
	need(!hetmem_on_remap(s.res, seen, &s), "an observer");
	taken = get(other, 36 * MIB, HOST);
	need(!pthread_create(&thread, NULL, wake_it, &s), "a thread");
	ok(wait_until(__atomic_load_n(&s.attempts, __ATOMIC_RELAXED) > 3), "%s: it tries again", spec);
	ok(wait_until(!hetmem_alloc(other, 22 * MIB, 0, HOST, &more)),
	   "what is left is there for others");
	ok(!__atomic_load_n(&s.done, __ATOMIC_ACQUIRE), "it waits on");
	need(!hetmem_free(other, taken, 0, HOST), "free");
	if (more)
		need(!hetmem_free(other, more, 0, HOST), "free");
	hetmem_resource_destroy(other);
	pthread_join(thread, NULL);
	is(s.err, 0, "then it wakes");
	ok(all_bytes(s.p, 9, s.size), "contents");
	need(!hetmem_off_remap(s.res, seen, &s), "no observer");
	drop(&s);
}

static void *take_turns(void *arg)
{
	struct side *s = arg;
	unsigned int i;

	s->intact = true;
	for (i = 0; i < TURNS && !s->err; i++) {
		s->err = hetmem_wake_within(s->res, NULL, UINT_MAX);
		if (!s->err) {
			s->intact &= all_bytes(s->p, s->byte, s->size);
			s->err = hetmem_sleep(s->res, NULL, HETMEM_SLEEP_KEEP);
		}
	}
	return NULL;
}

/* Each of them needs more than half of the device. */
static void turns(uint64_t round)
{
	static const char *const specs[] = {
		"pool(vmm)", "pool(vmm,handle=2M,park=keep)",
		"binning(pool(vmm,handle=8M),pool(vmm),at=2M)",
	};
	struct side sides[SIDES];
	pthread_t threads[SIDES];
	int i;

	seed = round;
	for (i = 0; i < SIDES; i++)
		fall_asleep(&sides[i], specs[below(3)], (34 + below(20)) * MIB, i + 1);
	for (i = 0; i < SIDES; i++)
		need(!pthread_create(&threads[i], NULL, take_turns, &sides[i]), "a thread");
	for (i = 0; i < SIDES; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < SIDES; i++) {
		is(sides[i].err, 0, "round %d: side %d had its turns", (int)round, i);
		ok(sides[i].intact, "contents");
		drop(&sides[i]);
	}
}

/* Only a lack of memory is waited for. */
static void errors(void)
{
	struct hetmem_resource *host = make("system");
	struct side s;

	is(hetmem_wake_within(NULL, NULL, UINT_MAX), -EINVAL, "no resource");
	is(hetmem_wake_within(host, NULL, UINT_MAX), -EOPNOTSUPP, "one that cannot sleep");
	hetmem_resource_destroy(host);
	fall_asleep(&s, "pool(vmm)", 20 * MIB, 5);
	need(!soft_rules("cuMemMap:1", NULL), "a rule");
	ok(hetmem_wake_within(s.res, NULL, UINT_MAX) == -EIO, "a failing call: %s", hetmem_last_error());
	need(!soft_rules("cuMemCreate:1", NULL), "a rule");
	is(hetmem_wake_within(s.res, NULL, 0), -ENOMEM, "a lack of memory");
	need(!soft_rules("cuMemCreate:1", NULL), "a rule");
	is(hetmem_wake_within(s.res, NULL, UINT_MAX), 0, "that is gone at the next attempt");
	soft_rules(NULL, NULL);
	ok(all_bytes(s.p, 5, s.size), "contents");
	is(hetmem_wake_within(s.res, "none", UINT_MAX), 0, "a tag of no pool");
	drop(&s);
}

int main(void)
{
	uint64_t round;

	setenv("HETMEM_SOFT_MEMORY", "64M", 1);
	setenv("HETMEM_RESERVE", "2M", 1);
	open_soft("");
	time_ends("pool(vmm)");
	time_ends("headroom(pool(vmm,handle=4M))");
	holds_nothing("pool(vmm)");
	holds_nothing("pool(vmm,handle=2M,park=keep)");
	for (round = 1; round <= 2; round++)
		turns(round);
	errors();
	close_soft();
	return tap_end();
}
