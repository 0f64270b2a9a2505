// SPDX-License-Identifier: GPL-2.0
/*
 * SET_ATTR and GET_ATTR: what userspace wants of a context or of a tracked
 * range. context->lock protects all of it.
 */
#include <linux/mm.h>

#include "hetmem.h"

static bool hetmem_attr_valid(u32 attr, u64 value)
{
	u32 kind = HETMEM_LOC_KIND((u32)value);

	switch (attr) {
	case HETMEM_ATTR_SHAREABLE:
	case HETMEM_ATTR_ALLOW_HINTS:
	case HETMEM_ATTR_NO_THRASH:
		return value <= 1;
	case HETMEM_ATTR_PREFERRED:
		/* The host, any node, or a device; or 0 for no preference. */
		return !value || (value <= U32_MAX && (kind == HETMEM_HOST ||
						       kind == HETMEM_DEVICE));
	default:
		return false;
	}
}

/*
 * Where the attribute of @ctx, or of its range at @addr, is kept, NULL if there
 * is no such range. context->lock is held.
 */
static u32 *hetmem_attr_find(struct hetmem_context *ctx, u32 attr,
			     unsigned long addr)
{
	struct hetmem_range *range;

	if (attr == HETMEM_ATTR_SHAREABLE)
		return &ctx->shareable;
	if (attr == HETMEM_ATTR_ALLOW_HINTS)
		return &ctx->allow_hints;
	range = hetmem_range_first(ctx, addr, addr);
	if (!range)
		return NULL;
	return attr == HETMEM_ATTR_NO_THRASH ? &range->no_thrash :
					       &range->preferred;
}

/* Both commands: @set says which. */
int hetmem_attr(struct hetmem_context *ctx, struct hetmem_cmd_attr *cmd,
		bool set)
{
	u32 *value;

	if (!hetmem_attr_valid(cmd->attr, set ? cmd->value : 0))
		return -EINVAL;
	if (cmd->start && (cmd->attr == HETMEM_ATTR_SHAREABLE ||
			   cmd->attr == HETMEM_ATTR_ALLOW_HINTS))
		return -EINVAL;

	spin_lock(&ctx->lock);
	value = hetmem_attr_find(ctx, cmd->attr, cmd->start);
	if (value && set)
		WRITE_ONCE(*value, cmd->value);
	else if (value)
		cmd->value = *value;
	spin_unlock(&ctx->lock);
	return value ? 0 : -ENOENT;
}
