/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What ctl() is asked for by the functions of include/hetmem/snapshot.h.
 */
#ifndef HETMEM_CORE_SNAPSHOT_H
#define HETMEM_CORE_SNAPSHOT_H

#include "core/resource.h"

/* @result: out: what a callback returned. If it is not 0, nothing is done. */
struct hm_ctl_walk {
	const struct hetmem_walk *walk;
	int result;
};

/*
 * Whether bytes of a program's struct of @size bytes, behind the @known ones,
 * are not 0: a later version's member asks for what is not here.
 */
bool hm_has_more(const void *params, size_t known, size_t size);

#endif /* HETMEM_CORE_SNAPSHOT_H */
