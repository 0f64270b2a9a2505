// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions of include/hetmem/snapshot.h: arguments are checked here, and
 * the pools of the stack do the rest.
 */
#include <errno.h>

#include "core/snapshot.h"

static int check_walk(const struct hetmem_walk *walk)
{
	if (!walk)
		return hm_error(-EINVAL, "walk: walk is NULL");
	if (walk->size < sizeof(*walk))
		return hm_error(-EINVAL, "walk: walk->size is %zu, set it to sizeof(struct hetmem_walk)",
				walk->size);
	if (hm_has_more(walk, sizeof(*walk), walk->size))
		return hm_error(-E2BIG, "walk: walk has members that this library does not know");
	return 0;
}

int hetmem_walk(struct hetmem_resource *res, const struct hetmem_walk *walk)
{
	struct hm_ctl_walk arg = { .walk = walk };
	int err = check_walk(walk);

	if (!err)
		err = hm_resource_ctl(res, "walk", HM_CTL_WALK, &arg);
	return err ? err : arg.result;
}
