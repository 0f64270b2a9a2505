/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Every command as a row of a table, with a call of it that is right, so
 * that a test can break one thing at a time in each.
 */
#ifndef HETMEM_COMMANDS_H
#define HETMEM_COMMANDS_H

#include "hetmem_test.h"

#include <stddef.h>

/* In the order of their numbers. */
enum command_id {
	CMD_INFO, CMD_TRACK, CMD_UNTRACK, CMD_RESIDENCY, CMD_MIGRATE,
	CMD_STATS, CMD_RING, CMD_REFRESH, CMD_SET_ATTR, CMD_GET_ATTR,
	CMD_BIND_DEVICE, CMD_HINT, CMD_COMPLETE, CMD_LIST, CMD_NR,
};

struct command {
	const char *name;
	unsigned long nr;
	size_t size;
	size_t first_size;	/* of the struct's first version; 0: the same */
	bool range;		/* start and end come in */
	bool start;		/* start comes in */
	bool answers;		/* something comes back */
	bool stranger;		/* CAP_SYS_PTRACE, or for HINT CAP_SYS_NICE, do */
	int right;		/* what command_valid()'s call returns */
	size_t reserved;	/* offset of a reserved member, or 0 */
	uint32_t known_flags;
};

#define COMMAND(NAME, name_)						\
	.name = #NAME, .nr = HETMEM_IOC_##NAME,				\
	.size = sizeof(struct hetmem_cmd_##name_)
#define COMMAND_RESERVED(name_)						\
	.reserved = offsetof(struct hetmem_cmd_##name_, reserved)

static const struct command commands[CMD_NR] __attribute__((unused)) = {
	[CMD_INFO] = {
		COMMAND(INFO, info), .answers = true, .stranger = true,
	},
	[CMD_TRACK] = {
		COMMAND(TRACK, track), .range = true, .start = true,
	},
	[CMD_UNTRACK] = {
		COMMAND(UNTRACK, untrack), .range = true, .start = true,
	},
	[CMD_RESIDENCY] = {
		COMMAND(RESIDENCY, residency), COMMAND_RESERVED(residency),
		.range = true, .start = true, .answers = true,
		.stranger = true,
	},
	[CMD_MIGRATE] = {
		COMMAND(MIGRATE, migrate), COMMAND_RESERVED(migrate),
		.first_size = 72, .range = true, .start = true,
		.answers = true,
		.known_flags = HETMEM_MIGRATE_POPULATE | HETMEM_MIGRATE_PIN,
	},
	[CMD_STATS] = {
		COMMAND(STATS, stats), .first_size = 112, .start = true,
		.answers = true, .stranger = true,
		.known_flags = HETMEM_STATS_CONTEXT,
	},
	[CMD_RING] = {
		COMMAND(RING, ring), .answers = true,
	},
	[CMD_REFRESH] = {
		COMMAND(REFRESH, refresh), .start = true, .answers = true,
	},
	[CMD_SET_ATTR] = {
		COMMAND(SET_ATTR, attr), COMMAND_RESERVED(attr),
		.start = true,
	},
	[CMD_GET_ATTR] = {
		COMMAND(GET_ATTR, attr), COMMAND_RESERVED(attr),
		.start = true, .answers = true, .stranger = true,
	},
	[CMD_BIND_DEVICE] = {
		COMMAND(BIND_DEVICE, bind_device),
		COMMAND_RESERVED(bind_device), .answers = true,
		.known_flags = HETMEM_BIND_EXECUTOR | HETMEM_BIND_GET,
	},
	/* Nobody is there to be asked, and nobody has asked. */
	[CMD_HINT] = {
		COMMAND(HINT, hint), .range = true, .start = true,
		.stranger = true, .right = -ENXIO,
	},
	[CMD_COMPLETE] = {
		COMMAND(COMPLETE, complete), COMMAND_RESERVED(complete),
		.right = -ENOENT,
	},
	[CMD_LIST] = {
		COMMAND(LIST, list), .answers = true,
	},
};

/* size, flags, start and end are in the same place in all that have them. */
struct command_head {
	uint32_t size;
	uint32_t flags;
	__aligned_u64 start;
	__aligned_u64 end;
};

union any_command {
	struct command_head head;
	struct hetmem_cmd_info info;
	struct hetmem_cmd_track track;
	struct hetmem_cmd_untrack untrack;
	struct hetmem_cmd_residency residency;
	struct hetmem_cmd_migrate migrate;
	struct hetmem_cmd_stats stats;
	struct hetmem_cmd_ring ring;
	struct hetmem_cmd_refresh refresh;
	struct hetmem_cmd_attr attr;
	struct hetmem_cmd_bind_device bind_device;
	struct hetmem_cmd_hint hint;
	struct hetmem_cmd_complete complete;
	struct hetmem_cmd_list list;
	unsigned char bytes[512];
};

/* Where commands with arrays put their answers. */
static struct hetmem_run command_runs[64] __attribute__((unused));
static struct hetmem_total command_totals[16] __attribute__((unused));
static struct hetmem_list_entry command_list[4] __attribute__((unused));

HELPER size_t command_first_size(enum command_id id)
{
	return commands[id].first_size ? commands[id].first_size :
					 commands[id].size;
}

/*
 * A call that returns what it should when the first half of [p, p + 2 * half)
 * is tracked, the second is not, and there is no ring.
 */
HELPER void command_valid(enum command_id id, union any_command *c,
			  const char *p, size_t half)
{
	memset(c, 0, sizeof(*c));
	c->head.size = commands[id].size;
	if (commands[id].start)
		c->head.start = (uintptr_t)p;
	if (commands[id].range)
		c->head.end = (uintptr_t)p + half;
	switch (id) {
	case CMD_TRACK:
		c->track.start += half;
		c->track.end += half;
		break;
	case CMD_RESIDENCY:
		c->residency.runs = (uintptr_t)command_runs;
		c->residency.nr_runs = ARRAY_SIZE(command_runs);
		c->residency.totals = (uintptr_t)command_totals;
		c->residency.nr_totals = ARRAY_SIZE(command_totals);
		break;
	case CMD_MIGRATE:
		c->migrate.location = ANY_HOST;
		break;
	case CMD_RING:
		c->ring.nr_entries = HETMEM_RING_MIN;
		c->ring.eventfd = -1;
		c->ring.events = 1;
		break;
	case CMD_SET_ATTR:
	case CMD_GET_ATTR:
		c->attr.attr = HETMEM_ATTR_NO_THRASH;
		break;
	case CMD_BIND_DEVICE:
		c->bind_device.location = HETMEM_LOC(HETMEM_FOREIGN, 3);
		break;
	case CMD_HINT:
		c->hint.location = ANY_HOST;
		c->hint.timeout_ms = 1000;
		c->hint.reply_fd = -1;
		break;
	case CMD_COMPLETE:
		c->complete.id = ~0ULL;
		break;
	case CMD_LIST:
		c->list.entries = (uintptr_t)command_list;
		c->list.entry_size = sizeof(command_list[0]);
		c->list.nr = ARRAY_SIZE(command_list);
		break;
	default:
		break;
	}
}

HELPER int command_call(int fd, enum command_id id, void *c)
{
	return hm_ioctl(fd, commands[id].nr, c);
}

#endif /* HETMEM_COMMANDS_H */
