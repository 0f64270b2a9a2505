// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Gates: providers that make and give back memory in threads, and fail at both, while
 * others look how much is left. Never is more made than the gate was opened to, and in the
 * end all of it can be made. The memory is a number here. Arguments: a seed, rounds.
 */
#include "provider/gate.h"
#include "provider/provider.h"
#include "tap.h"

#define UNIT	100
#define THREADS	4

/* Units that "the device" has, and the least that were ever left. */
static int64_t capacity, least;
static unsigned int seed = 1, rounds = 40000;
static __thread unsigned int state;

static unsigned int below(unsigned int n)
{
	state = state * 1103515245 + 12345;
	return (state >> 8) % n;
}

static int64_t left(void)
{
	return __atomic_load_n(&capacity, __ATOMIC_SEQ_CST);
}

static int make(struct hm_provider *self, size_t size, hetmem_stream stream, void **ptr)
{
	int64_t now, was;

	(void)self;
	(void)stream;
	if (!below(16))
		return -ENOMEM;
	now = __atomic_sub_fetch(&capacity, (int64_t)size, __ATOMIC_SEQ_CST);
	was = __atomic_load_n(&least, __ATOMIC_RELAXED);
	while (now < was && !__atomic_compare_exchange_n(&least, &was, now, true,
							 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	*ptr = NULL;
	return 0;
}

static int give(struct hm_provider *self, void *ptr, size_t size, hetmem_stream stream)
{
	(void)self;
	(void)ptr;
	(void)stream;
	if (!below(16))
		return -EIO;
	__atomic_add_fetch(&capacity, (int64_t)size, __ATOMIC_SEQ_CST);
	return 0;
}

static const struct hm_provider_ops ops = { .name = "test", .alloc = make, .free = give };

static struct hm_provider providers[2] = {
	{ .ops = &ops, .granularity = UNIT }, { .ops = &ops, .granularity = 2 * UNIT },
};

static void look(struct hm_gate *gate, int64_t keep)
{
	const int64_t made = hm_gate_made(gate);

	hm_gate_open_to(gate, made, left() - keep);
}

static void pass(struct hm_gate *gate, int nr, bool attach)
{
	const struct hm_ctl_gate arg = { .gate = gate, .attach = attach };
	int i;

	for (i = 0; i < nr; i++)
		hm_gate_ctl(&providers[i], &arg);
}

static struct hm_gate outer, inner;
static bool looks;

static void *look_on(void *arg)
{
	(void)arg;
	while (__atomic_load_n(&looks, __ATOMIC_ACQUIRE)) {
		look(&outer, 10 * UNIT);
		look(&inner, 30 * UNIT);
	}
	return NULL;
}

static void *work(void *arg)
{
	struct hm_provider *p = &providers[(uintptr_t)arg & 1];
	size_t held[8] = { 0 }, size;
	unsigned int i, k;
	void *ptr;

	state = seed * 7919 + (uintptr_t)arg;
	for (i = 0; i < rounds; i++) {
		k = below(8);
		size = p->granularity * (1 + below(10));
		if (!held[k] && !hm_provider_alloc_region(p, size, NULL, &ptr))
			held[k] = size;
		else if (held[k] && !hm_provider_free_region(p, NULL, held[k], NULL))
			held[k] = 0;
	}
	for (k = 0; k < 8; k++)
		while (held[k] && hm_provider_free_region(p, NULL, held[k], NULL))
			;
	return NULL;
}

/* Both providers pass the outer gate, the first one another before. */
static void threads(void)
{
	pthread_t looker, worker[THREADS];
	uintptr_t i;

	capacity = least = 100 * UNIT;
	outer = inner = (struct hm_gate){ 0 };
	pass(&inner, 1, true);
	pass(&outer, 2, true);
	look(&outer, 10 * UNIT);
	look(&inner, 30 * UNIT);
	looks = true;
	need(!pthread_create(&looker, NULL, look_on, NULL), "a thread");
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&worker[i], NULL, work, (void *)i), "a thread");
	for (i = 0; i < THREADS; i++)
		pthread_join(worker[i], NULL);
	__atomic_store_n(&looks, false, __ATOMIC_RELEASE);
	pthread_join(looker, NULL);
	is(left(), 100 * UNIT, "all is given back");
	ok(least >= 10 * UNIT, "never fewer than 10 units are left, but %lld",
	   (long long)least / UNIT);
	ok(least < 30 * UNIT, "and the provider behind one gate gets nearly as far");
	look(&outer, 10 * UNIT);
	look(&inner, 30 * UNIT);
	is(hm_gate_room(&outer), 90 * UNIT, "all can be made again");
	is(hm_gate_room(&inner), 70 * UNIT, "behind the inner gate, too");
	pass(&outer, 2, false);
	pass(&inner, 2, false);
	ok(!providers[0].gate && !providers[1].gate, "gates go");
}

/* Which gate refuses, while others watch. */
static void watched(struct hm_gate *gate)
{
	struct hm_gate_watch first, second, other;

	hm_gate_watch(&first, gate);
	hm_gate_watch(&other, &inner);
	hm_gate_watch(&second, gate);
	is(hm_gate_enter(&providers[1], 100 * UNIT), -ENOMEM, "too much again");
	ok(hm_gate_unwatch(&second), "this gate");
	ok(!hm_gate_unwatch(&other), "not the other one");
	ok(hm_gate_unwatch(&first), "who watches it hears of it");
	hm_gate_watch(&first, gate);
	ok(!hm_gate_unwatch(&first), "and of no refusal before");
}

static bool wants;

static bool advises(struct hm_gate *gate)
{
	(void)gate;
	return wants;
}

/* A gate that advises lets through what nobody who watches it is to be asked about. */
static void advice(void)
{
	struct hm_gate gate = { .advises = advises };
	struct hm_provider *p = &providers[0];
	struct hm_gate_watch watch;

	pass(&gate, 1, true);
	hm_gate_bound(&gate, 10 * UNIT);
	wants = true;
	is(hm_gate_enter(p, 20 * UNIT), 0, "nobody watches");
	hm_gate_entered(p, 20 * UNIT, 0);
	hm_gate_watch(&watch, &gate);
	is(hm_gate_advice(p, UNIT), HM_UNDER_PRESSURE, "the advice for what is beyond");
	is(hm_gate_enter(p, UNIT), HM_UNDER_PRESSURE, "who watches is refused");
	ok(hm_gate_unwatch(&watch), "and hears of it");
	hm_gate_leave(p, 15 * UNIT);
	hm_gate_left(p, 15 * UNIT, 0);
	hm_gate_watch(&watch, &gate);
	is(hm_gate_advice(p, 5 * UNIT), 0, "no advice within the bound");
	is(hm_gate_enter(p, 5 * UNIT), 0, "as much as is left");
	hm_gate_entered(p, 5 * UNIT, -EIO);
	wants = false;
	is(hm_gate_enter(p, 50 * UNIT), 0, "the owner does not want to be asked");
	hm_gate_entered(p, 50 * UNIT, 0);
	is(hm_gate_enter(p, UINT64_MAX), -ENOMEM, "a size that would wrap");
	hm_gate_unwatch(&watch);
	pass(&gate, 1, false);
}

static void alone(void)
{
	struct hm_gate gate = { 0 };
	struct hm_provider *p = &providers[1];

	capacity = 50 * UNIT;
	state = 1;
	is(hm_gate_enter(p, 1 << 30), 0, "no gate");
	pass(&gate, 2, true);
	is(hm_gate_enter(p, UNIT), -ENOMEM, "a new gate is closed");
	is(hm_gate_room(&gate), 0, "nothing fits");
	look(&gate, 15 * UNIT);
	is(hm_gate_room(&gate), 34 * UNIT, "what fits is a multiple of the granule");
	is(hm_gate_enter(p, 36 * UNIT), -ENOMEM, "too much");
	is(hm_gate_enter(p, UINT64_MAX), -ENOMEM, "a size that would wrap");
	is(hm_gate_enter(p, 35 * UNIT), 0, "all of it");
	is(hm_gate_room(&gate), 0, "is taken");
	hm_gate_entered(p, 35 * UNIT, -ENOMEM);
	is(hm_gate_room(&gate), 34 * UNIT, "a failure takes nothing");
	is(hm_gate_enter(p, 20 * UNIT), 0, "a part");
	/* Made, but not yet said: it counts twice rather than not at all. */
	capacity -= 20 * UNIT;
	look(&gate, 15 * UNIT);
	is(hm_gate_room(&gate), 0, "is under way");
	hm_gate_entered(p, 20 * UNIT, 0);
	look(&gate, 15 * UNIT);
	is(hm_gate_room(&gate), 14 * UNIT, "is made");
	hm_gate_leave(p, 20 * UNIT);
	capacity += 20 * UNIT;
	look(&gate, 15 * UNIT);
	is(hm_gate_room(&gate), 14 * UNIT, "leaves");
	hm_gate_left(p, 20 * UNIT, 0);
	is(hm_gate_room(&gate), 34 * UNIT, "is gone");
	/* Others take it, and give it back. */
	capacity -= 40 * UNIT;
	look(&gate, 15 * UNIT);
	is(hm_gate_room(&gate), 0, "less than nothing");
	is(hm_gate_enter(p, 0), 0, "but no memory can be made");
	capacity += 40 * UNIT;
	look(&gate, 15 * UNIT);
	is(hm_gate_enter(p, 10 * UNIT), 0, "again");
	hm_gate_entered(p, 10 * UNIT, 0);
	hm_gate_leave(p, 10 * UNIT);
	hm_gate_left(p, 10 * UNIT, 12 * UNIT);
	is(hm_gate_room(&gate), 22 * UNIT, "what stays after all, and two more, counts");
	watched(&gate);
	pass(&gate, 2, false);
	is(hm_gate_enter(p, 1 << 30), 0, "the gate is gone");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %u\n", seed);
	alone();
	advice();
	threads();
	return tap_end();
}
