/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A gate: bounds the memory that a group of providers makes. Providers pass it where memory
 * is made and given back; what a pool has cached does not. So a cached block costs
 * nothing, and the bound is exact.
 *
 * The owner of the gate tells it how much is usable, see hm_gate_open_to(). Until it does
 * so again, the gate lets the providers hold that much more than they held then. Others may
 * take memory meanwhile: so a gate with usable() asks again once memory was made. What left
 * too little usable is given back at once, and refused.
 *
 * There is no lock. Four counters only grow: @asked before memory is made, @made after
 * that, @leaving before it is given back, @left after that. So @asked - @left is at least
 * what the providers hold, and @made - @leaving at most. The first is compared with the
 * bound and the second makes it: the bound can be too low for a moment, never too high.
 *
 * A gate can also only advise: it then refuses a thread that watches it, while its owner
 * wants to be asked first, and lets all others through.
 */
#ifndef HETMEM_PROVIDER_GATE_H
#define HETMEM_PROVIDER_GATE_H

#include <errno.h>

#include "core/resource.h"

/* A gate that advises has refused: no memory is missing, and nothing is tried instead. */
#define HM_UNDER_PRESSURE	(-EDQUOT)

struct hm_provider;

/**
 * struct hm_gate - zeroed, it lets nothing through
 * @outer: a gate behind this one
 * @limit: bound of @asked - @left
 * @asked, @made, @leaving, @left: bytes
 * @granule: the largest granularity of the providers: they make multiples of it
 * @drifts: a provider does not report when memory leaves it: @left is too low
 * @usable: bytes that are usable, negative: too much was made; any thread, with any lock.
 *	NULL: nobody asks
 * @advises: whether memory beyond the bound is refused with HM_UNDER_PRESSURE. Called in
 *	threads that watch the gate, with any lock. NULL: always refused, with -ENOMEM
 */
struct hm_gate {
	struct hm_gate *outer;
	int64_t limit;
	int64_t asked, made, leaving, left;
	size_t granule;
	bool drifts;
	int64_t (*usable)(struct hm_gate *gate);
	bool (*advises)(struct hm_gate *gate);
};

/* HM_CTL_GATE: the memory of a resource passes @gate, or, not @attach, no longer does. */
struct hm_ctl_gate {
	struct hm_gate *gate;
	bool attach;
};

/* HM_CTL_GATE of a resource that is made of @p's memory, which nobody uses meanwhile. */
int hm_gate_ctl(struct hm_provider *p, const struct hm_ctl_gate *arg);

/*
 * Bytes that the providers hold at least, to be read before the usable bytes are, and the
 * new bound for this many usable bytes (can be negative). Any thread, at any time.
 */
int64_t hm_gate_made(const struct hm_gate *gate);
void hm_gate_open_to(struct hm_gate *gate, int64_t made, int64_t usable);

/* Bounds what the providers hold by @bytes, without what they held before @gate was attached. */
void hm_gate_bound(struct hm_gate *gate, int64_t bytes);

/*
 * Bytes that the providers had at any time since hm_gate_gone() returned @gone, at most:
 * what none of several looks at their memory finds is in the rest of these.
 */
int64_t hm_gate_gone(const struct hm_gate *gate);
int64_t hm_gate_had(const struct hm_gate *gate, int64_t gone);

/**
 * struct hm_gate_watch - whether @gate refuses a call of this thread
 * @outer: began before this one
 */
struct hm_gate_watch {
	struct hm_gate_watch *outer;
	const struct hm_gate *gate;
	bool refused;
};

/* Around a call; the watches of a thread are nested. Returns whether @w->gate refused. */
void hm_gate_watch(struct hm_gate_watch *w, const struct hm_gate *gate);
bool hm_gate_unwatch(struct hm_gate_watch *w);

/* Bytes that may still be made, a multiple of the granule; 0: none. */
uint64_t hm_gate_room(const struct hm_gate *gate);

/*
 * HM_UNDER_PRESSURE, if a gate that advises would refuse @bytes by @p, else 0. A caller that
 * has no memory for a reason of its own asks before it tries anything else.
 */
int hm_gate_advice(const struct hm_provider *p, uint64_t bytes);

/*
 * Around the making of @bytes by @p: -ENOMEM or HM_UNDER_PRESSURE if a gate refuses, else
 * hm_gate_entered() must follow, with the result of the making. No gate refuses 0 bytes.
 */
int hm_gate_enter(const struct hm_provider *p, uint64_t bytes);
void hm_gate_entered(const struct hm_provider *p, uint64_t bytes, int err);

/*
 * After hm_gate_entered() without an error: -ENOMEM if a gate finds that too little is
 * usable, and the caller gives the memory back.
 */
int hm_gate_verify(const struct hm_provider *p);

/* Around the giving back of @bytes by @p, of which @kept are held after all. */
void hm_gate_leave(const struct hm_provider *p, uint64_t bytes);
void hm_gate_left(const struct hm_provider *p, uint64_t bytes, uint64_t kept);

#endif /* HETMEM_PROVIDER_GATE_H */
