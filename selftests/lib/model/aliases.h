/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Operations with a second address of a block: an alias, and a replica. Each is used and given
 * back in one step.
 */
#ifndef HETMEM_SELFTESTS_MODEL_ALIASES_H
#define HETMEM_SELFTESTS_MODEL_ALIASES_H

#include "model/operations.h"

/* A copy of a block on device 1, which is read and given back. */
static void replicate(const struct op *op, struct block *b)
{
	const hetmem_stream s = b->home == MODEL_HOST ? aux : handle_of(b->home);
	struct block there = *b;
	void *other = NULL;
	int err = LIB(hetmem_replicate(res, b->p, 1, &other));

	if (err) {
		must(injected || err == -EOPNOTSUPP || err == -ENOMEM ||
		     (err == -EBUSY && (b->id || b->capture || b->movable || has("movable=") ||
					has("spill="))), "errno", "replicate: %d", err);
		must(!other, "all or nothing", "replicate: %d", err);
		return;
	}
	held_back = true;
	order_after(b->home, b);
	err = LIB(hetmem_refresh(res, b->p, s));
	must(!err || injected, "refresh", "%d", err);
	if (err)
		err = hetmem_refresh(res, b->p, s);
	must(!err, "refresh", "again: %d", err);
	if (b->home == MODEL_HOST)
		driver_must(drv->cuStreamSynchronize(aux));
	there.p = other;
	verify(&there);
	err = LIB(hetmem_free(res, other, op->x % 2 ? b->size : 0, handle_of(b->home)));
	must(!err || injected, "free", "of a replica: %d", err);
	if (err)
		err = hetmem_free(res, other, b->size, handle_of(b->home));
	must(!err, "free", "again, of a replica: %d", err);
	pinned |= injected;
}

/* A second address of a block: it is read and written there, and the address is given back. */
static void op_alias(const struct op *op)
{
	struct block *b = &slots[op->slot];
	const uint32_t value = new_value();
	struct block there;
	void *other = NULL;
	int err;

	if (!may_use(b) || on_cpu() || any_capturing())
		return;
	settle(b);
	if (op->x / 2 % 4 == 3) {
		replicate(op, b);
		return;
	}
	err = LIB(hetmem_alias(res, b->p, b->size, 0, &other));
	if (err) {
		must(injected || err == -EOPNOTSUPP || err == -ENOMEM ||
		     (err == -EBUSY && (b->id || b->capture || b->movable || has("movable=") ||
					has("spill="))), "errno", "alias: %d", err);
		must(!other, "all or nothing", "alias: %d", err);
		return;
	}
	/* Its handles stay where they are until it is unmapped. */
	held_back = true;
	there = *b;
	there.p = other;
	verify(&there);
	order_after(b->home, b);
	b->mask = 0;
	write_pattern(other, usable(b), value, worker_of(b->home));
	if (b->home == MODEL_HOST)
		driver_must(drv->cuStreamSynchronize(aux));
	b->value = value;
	b->written = usable(b);
	err = LIB(hetmem_free(res, other, op->x % 2 ? b->size : 0, handle_of(b->home)));
	must(!err || injected, "free", "of an alias: %d", err);
	pinned |= injected;
	if (err)
		err = hetmem_free(res, other, b->size, handle_of(b->home));
	must(!err, "free", "again, of an alias: %d", err);
}

#endif /* HETMEM_SELFTESTS_MODEL_ALIASES_H */
