// SPDX-License-Identifier: GPL-2.0
/*
 * SET_ATTR and GET_ATTR: what userspace wants of a context or of a tracked
 * range. context->lock protects all of it.
 */
#include <linux/export.h>
#include <linux/mm.h>

#include <linux/hetmem_device.h>
#include "hetmem.h"

/* HETMEM_LOC(HETMEM_HOST, any), a device, or 0 for no preference. */
static bool hetmem_preferred_valid(u64 value)
{
	u32 location = value;

	if (value != location)
		return false;
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_UNKNOWN:
		return !location;
	case HETMEM_HOST:
	case HETMEM_DEVICE:
		return true;
	default:
		return false;
	}
}

static bool hetmem_attr_valid(u32 attr, u64 value)
{
	switch (attr) {
	case HETMEM_ATTR_SHAREABLE:
	case HETMEM_ATTR_ALLOW_HINTS:
	case HETMEM_ATTR_NO_THRASH:
		return value <= 1;
	case HETMEM_ATTR_PREFERRED:
		return hetmem_preferred_valid(value);
	default:
		return false;
	}
}

static bool hetmem_attr_is_context(u32 attr)
{
	return attr == HETMEM_ATTR_SHAREABLE || attr == HETMEM_ATTR_ALLOW_HINTS;
}

/* Both commands: @set says which. */
int hetmem_attr(struct hetmem_context *ctx, struct hetmem_cmd_attr *cmd,
		bool set)
{
	struct hetmem_range *range = NULL;
	u64 value = 0;
	int ret = 0;

	if (!hetmem_attr_valid(cmd->attr, set ? cmd->value : 0))
		return -EINVAL;
	if (hetmem_attr_is_context(cmd->attr) && cmd->start)
		return -EINVAL;

	spin_lock(&ctx->lock);
	if (!hetmem_attr_is_context(cmd->attr)) {
		range = hetmem_range_first(ctx, cmd->start, cmd->start);
		if (!range) {
			ret = -ENOENT;
			goto out;
		}
	}
	switch (cmd->attr) {
	case HETMEM_ATTR_SHAREABLE:
		if (set)
			WRITE_ONCE(ctx->shareable, cmd->value);
		value = ctx->shareable;
		break;
	case HETMEM_ATTR_ALLOW_HINTS:
		if (set)
			WRITE_ONCE(ctx->allow_hints, cmd->value);
		value = ctx->allow_hints;
		break;
	case HETMEM_ATTR_NO_THRASH:
		if (set)
			range->no_thrash = cmd->value;
		value = range->no_thrash;
		break;
	case HETMEM_ATTR_PREFERRED:
		if (set)
			range->preferred = cmd->value;
		value = range->preferred;
		break;
	}
	cmd->value = value;
out:
	spin_unlock(&ctx->lock);
	return ret;
}

/* For hetmem_device_preferred(): what the range at @addr prefers, or 0. */
u32 hetmem_range_preferred(struct hetmem_context *ctx, unsigned long addr)
{
	struct hetmem_range *range;
	u32 location = 0;

	spin_lock(&ctx->lock);
	range = hetmem_range_first(ctx, addr, addr);
	if (range)
		location = range->preferred;
	spin_unlock(&ctx->lock);
	return location;
}
