// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Gates: see gate.h. */
#include "provider/gate.h"
#include "provider/provider.h"

static __thread struct hm_gate_watch *watches;

static void add(int64_t *counter, uint64_t bytes)
{
	__atomic_add_fetch(counter, (int64_t)bytes, __ATOMIC_SEQ_CST);
}

static int64_t get(const int64_t *counter)
{
	return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

static void attach(struct hm_provider *p, struct hm_gate *gate)
{
	struct hm_gate **last = &p->gate;

	while (*last && *last != gate)
		last = &(*last)->outer;
	*last = gate;
	if (p->granularity > gate->granule)
		gate->granule = p->granularity;
	gate->drifts |= p->caps & HM_PROVIDER_STREAMED;
}

static void detach(struct hm_provider *p, const struct hm_gate *gate)
{
	struct hm_gate **link = &p->gate;

	while (*link && *link != gate)
		link = &(*link)->outer;
	if (*link)
		*link = gate->outer;
}

int hm_gate_ctl(struct hm_provider *p, const struct hm_ctl_gate *arg)
{
	if (arg->attach)
		attach(p, arg->gate);
	else
		detach(p, arg->gate);
	return 0;
}

int64_t hm_gate_made(const struct hm_gate *gate)
{
	return get(&gate->made);
}

void hm_gate_open_to(struct hm_gate *gate, int64_t made, int64_t usable)
{
	__atomic_store_n(&gate->limit, usable + made - get(&gate->leaving),
			 __ATOMIC_SEQ_CST);
}

void hm_gate_bound(struct hm_gate *gate, int64_t bytes)
{
	__atomic_store_n(&gate->limit, bytes, __ATOMIC_SEQ_CST);
}

int64_t hm_gate_gone(const struct hm_gate *gate)
{
	return get(&gate->left);
}

int64_t hm_gate_had(const struct hm_gate *gate, int64_t gone)
{
	return get(&gate->asked) - gone;
}

void hm_gate_watch(struct hm_gate_watch *w, const struct hm_gate *gate)
{
	*w = (struct hm_gate_watch){ .outer = watches, .gate = gate };
	watches = w;
}

bool hm_gate_unwatch(struct hm_gate_watch *w)
{
	watches = w->outer;
	return w->refused;
}

/* Returns whether this thread watches @gate. */
static bool tell_refused(const struct hm_gate *gate)
{
	struct hm_gate_watch *w;
	bool any = false;

	for (w = watches; w; w = w->outer) {
		w->refused |= w->gate == gate;
		any |= w->gate == gate;
	}
	return any;
}

uint64_t hm_gate_room(const struct hm_gate *gate)
{
	const int64_t left = get(&gate->left);
	const int64_t room = get(&gate->limit) - (get(&gate->asked) - left);

	return room > 0 ? room / gate->granule * gate->granule : 0;
}

/* Of bytes beyond the bound. */
static int refuse(struct hm_gate *gate)
{
	if (!gate->advises) {
		tell_refused(gate);
		return -ENOMEM;
	}
	return watches && gate->advises(gate) && tell_refused(gate) ? HM_UNDER_PRESSURE : 0;
}

static int enter(struct hm_gate *gate, uint64_t bytes)
{
	/* Read first: less has left than by the time @asked is compared. */
	const int64_t left = get(&gate->left);
	int64_t asked = get(&gate->asked);
	bool asks = true;
	int err;

	/* No provider has as much: it fails, and the sums do not wrap. */
	if (bytes > INT64_MAX / 4) {
		tell_refused(gate);
		return -ENOMEM;
	}
	do {
		if (asks && asked - left + (int64_t)bytes > get(&gate->limit)) {
			err = refuse(gate);
			if (err)
				return err;
			/* Once: the owner can be asked by another thread meanwhile. */
			asks = false;
		}
	} while (!__atomic_compare_exchange_n(&gate->asked, &asked, asked + (int64_t)bytes,
					      false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return 0;
}

int hm_gate_advice(const struct hm_provider *p, uint64_t bytes)
{
	struct hm_gate *gate;

	for (gate = p->gate; gate; gate = gate->outer)
		if (gate->advises && (bytes > INT64_MAX / 4 ||
				      get(&gate->asked) - get(&gate->left) + (int64_t)bytes >
				      get(&gate->limit)) && refuse(gate))
			return hm_error(HM_UNDER_PRESSURE, "%s: under pressure", p->ops->name);
	return 0;
}

int hm_gate_enter(const struct hm_provider *p, uint64_t bytes)
{
	struct hm_gate *gate, *taken;
	int err;

	/* Others may have taken what was usable: memory that is held serves all the same. */
	if (!bytes)
		return 0;
	for (gate = p->gate; gate; gate = gate->outer) {
		err = enter(gate, bytes);
		if (!err)
			continue;
		for (taken = p->gate; taken != gate; taken = taken->outer)
			add(&taken->left, bytes);
		if (err == HM_UNDER_PRESSURE)
			return hm_error(err, "%s: under pressure", p->ops->name);
		return hm_error(-ENOMEM, "%s: headroom: %llu bytes more would leave too little usable",
				p->ops->name, (unsigned long long)bytes);
	}
	return 0;
}

void hm_gate_entered(const struct hm_provider *p, uint64_t bytes, int err)
{
	struct hm_gate *gate;

	for (gate = p->gate; gate; gate = gate->outer)
		add(err ? &gate->left : &gate->made, bytes);
}

int hm_gate_verify(const struct hm_provider *p)
{
	struct hm_gate *gate;
	int64_t made, usable;
	int err = 0;

	for (gate = p->gate; gate; gate = gate->outer) {
		if (!gate->usable)
			continue;
		made = get(&gate->made);
		usable = gate->usable(gate);
		hm_gate_open_to(gate, made, usable);
		if (usable >= 0)
			continue;
		tell_refused(gate);
		err = hm_error(-ENOMEM, "%s: headroom: %lld bytes more than is usable were made",
			       p->ops->name, -(long long)usable);
	}
	return err;
}

void hm_gate_leave(const struct hm_provider *p, uint64_t bytes)
{
	struct hm_gate *gate;

	for (gate = p->gate; gate; gate = gate->outer)
		add(&gate->leaving, bytes);
}

void hm_gate_left(const struct hm_provider *p, uint64_t bytes, uint64_t kept)
{
	struct hm_gate *gate;

	/* As if all had left and @kept were made again, which counts first. */
	for (gate = p->gate; gate; gate = gate->outer) {
		add(&gate->asked, kept);
		add(&gate->made, kept);
		add(&gate->left, bytes);
	}
}
