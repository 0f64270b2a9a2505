/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Every command as a row of a table, with a call of it that is right, so
 * that a test can break one thing at a time in each.
 */
#ifndef HETMEM_COMMANDS_H
#define HETMEM_COMMANDS_H

#include "hetmem_test.h"

enum command_id {
	CMD_INFO, CMD_TRACK, CMD_UNTRACK, CMD_RESIDENCY, CMD_MIGRATE,
	CMD_STATS, CMD_NR,
};

struct command {
	const char *name;
	unsigned long nr;
	size_t size;
	bool range;		/* start and end come in */
	bool start;		/* start comes in */
	bool query;		/* allowed with CAP_SYS_PTRACE */
	uint32_t known_flags;
};

static const struct command commands[CMD_NR] __attribute__((unused)) = {
	[CMD_INFO] = {
		"INFO", HETMEM_IOC_INFO, sizeof(struct hetmem_cmd_info),
		false, false, true, 0,
	},
	[CMD_TRACK] = {
		"TRACK", HETMEM_IOC_TRACK, sizeof(struct hetmem_cmd_track),
		true, true, false, 0,
	},
	[CMD_UNTRACK] = {
		"UNTRACK", HETMEM_IOC_UNTRACK,
		sizeof(struct hetmem_cmd_untrack), true, true, false, 0,
	},
	[CMD_RESIDENCY] = {
		"RESIDENCY", HETMEM_IOC_RESIDENCY,
		sizeof(struct hetmem_cmd_residency), true, true, true, 0,
	},
	[CMD_MIGRATE] = {
		"MIGRATE", HETMEM_IOC_MIGRATE,
		sizeof(struct hetmem_cmd_migrate), true, true, false,
		HETMEM_MIGRATE_POPULATE,
	},
	[CMD_STATS] = {
		"STATS", HETMEM_IOC_STATS, sizeof(struct hetmem_cmd_stats),
		false, true, true, HETMEM_STATS_CONTEXT,
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
	unsigned char bytes[512];
};

/* Where commands with arrays put their answers. */
static struct hetmem_run command_runs[64] __attribute__((unused));
static struct hetmem_total command_totals[16] __attribute__((unused));

/*
 * A call that succeeds when the first half of [p, p + 2 * half) is tracked
 * and the second is not.
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
	default:
		break;
	}
}

HELPER int command_call(int fd, enum command_id id, void *c)
{
	return hm_ioctl(fd, commands[id].nr, c);
}

#endif /* HETMEM_COMMANDS_H */
