/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What ctl() is asked for by the functions of include/hetmem/move.h.
 */
#ifndef HETMEM_CORE_MOVE_H
#define HETMEM_CORE_MOVE_H

#include "core/alias.h"
#include "core/resource.h"

enum hm_move {
	HM_MOVE_SPILL,
	HM_MOVE_FETCH,
	HM_MOVE_HOST_ACCESS,
	HM_MOVE_PRIORITY,
	HM_MOVE_ALIAS,		/* no move: the block gets another address */
	HM_MOVE_PIN,		/* no move: the block has replicas */
};

/*
 * @begin: the move ends later. @refused: with -EOPNOTSUPP: the reason, if there is one.
 * HM_MOVE_ALIAS: @size bytes of the block, @flags of hetmem_alias(); @alias: out.
 * HM_MOVE_PIN: all of the block, for a copy on @device; @size: out: its bytes; @device: out: the
 * pool's; @alias: out: no address, and its free() ends the pin.
 */
struct hm_ctl_move {
	void *ptr;
	enum hm_move move;
	bool begin;
	int priority;
	const char *refused;
	size_t size;
	unsigned int flags;
	int device;
	struct hm_alias *alias;
};

/* @add: or remove. */
struct hm_ctl_observe {
	hetmem_remap_fn fn;
	void *arg;
	bool add;
};

#endif /* HETMEM_CORE_MOVE_H */
