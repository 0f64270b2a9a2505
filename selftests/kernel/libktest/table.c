// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <sys/eventfd.h>

#include "libktest/table.h"

#define COMMAND(NAME, name_)						\
	.name = #NAME, .nr = HETMEM_IOC_##NAME,				\
	.size = sizeof(struct hetmem_cmd_##name_)
#define COMMAND_RESERVED(name_)						\
	.reserved = offsetof(struct hetmem_cmd_##name_, reserved)

const struct command commands[CMD_NR] = {
	[CMD_INFO] = {
		COMMAND(INFO, info), COMMAND_RESERVED(info),
		.answers = true, .looks = true, .stranger = true,
	},
	[CMD_TRACK] = {
		COMMAND(TRACK, track), .range = true, .start = true,
	},
	[CMD_UNTRACK] = {
		COMMAND(UNTRACK, untrack), .range = true, .start = true,
	},
	[CMD_RESIDENCY] = {
		COMMAND(RESIDENCY, residency),
		.range = true, .start = true, .answers = true,
		.looks = true, .stranger = true,
	},
	[CMD_MIGRATE] = {
		COMMAND(MIGRATE, migrate), .range = true, .start = true,
		.answers = true, .known_flags = HETMEM_MIGRATE_PIN,
	},
	[CMD_UNPIN] = {
		COMMAND(UNPIN, unpin), .range = true, .start = true,
		.answers = true,
	},
	[CMD_STATS] = {
		COMMAND(STATS, stats), COMMAND_RESERVED(stats),
		.start = true, .answers = true, .looks = true,
		.stranger = true,
		.known_flags = HETMEM_STATS_CONTEXT | HETMEM_STATS_NEXT,
	},
	[CMD_RING] = {
		COMMAND(RING, ring), COMMAND_RESERVED(ring), .answers = true,
	},
	[CMD_REFRESH] = {
		COMMAND(REFRESH, refresh), .start = true, .answers = true,
		.looks = true, .stranger = true,
	},
	[CMD_ALLOW] = {
		COMMAND(ALLOW, allow), COMMAND_RESERVED(allow),
	},
	[CMD_BIND_DEVICE] = {
		COMMAND(BIND_DEVICE, bind_device),
		COMMAND_RESERVED(bind_device),
		.known_flags = HETMEM_BIND_EXECUTOR,
	},
	/* Nobody is there to be asked, and nobody has asked. */
	[CMD_HINT] = {
		COMMAND(HINT, hint), COMMAND_RESERVED(hint),
		.range = true, .start = true, .stranger = true,
		.right = -ENXIO,
	},
	[CMD_COMPLETE] = {
		COMMAND(COMPLETE, complete), COMMAND_RESERVED(complete),
		.right = -ENOENT,
	},
	[CMD_LIST] = {
		COMMAND(LIST, list), .answers = true, .looks = true,
	},
	[CMD_MIGRATE_VECTOR] = {
		COMMAND(MIGRATE_VECTOR, migrate_vector), COMMAND_RESERVED(migrate_vector),
		.answers = true,
	},
	[CMD_BACKGROUND] = {
		COMMAND(BACKGROUND, background), COMMAND_RESERVED(background),
		.answers = true, .known_flags = HETMEM_BACKGROUND_COLLECT,
	},
};

struct hetmem_run command_runs[64];
struct hetmem_total command_totals[16];
struct hetmem_list_entry command_list[4];
struct hetmem_cmd_migrate command_moves[2];
int32_t command_results[2];

/* One for all commands of a process. */
static int command_eventfd(void)
{
	static int fd = -1;

	if (fd < 0)
		fd = eventfd(0, EFD_CLOEXEC);
	return fd;
}

void command_valid(enum command_id id, union any_command *c,
		   const char *p, size_t half)
{
	size_t i;

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
		c->residency.run_size = sizeof(command_runs[0]);
		c->residency.totals = (uintptr_t)command_totals;
		c->residency.nr_totals = ARRAY_SIZE(command_totals);
		c->residency.total_size = sizeof(command_totals[0]);
		break;
	case CMD_MIGRATE:
		c->migrate.location = ANY_HOST;
		break;
	case CMD_RING:
		c->ring.nr_entries = HETMEM_RING_MIN;
		c->ring.events = 1;
		break;
	case CMD_BIND_DEVICE:
		c->bind_device.location = HETMEM_LOC(HETMEM_FOREIGN, 3);
		c->bind_device.uuid[0] = 1;
		break;
	case CMD_HINT:
		c->hint.location = ANY_HOST;
		c->hint.timeout_ms = 1000;
		break;
	case CMD_COMPLETE:
		c->complete.id = ~0ULL;
		break;
	case CMD_LIST:
		c->list.entries = (uintptr_t)command_list;
		c->list.entry_size = sizeof(command_list[0]);
		c->list.nr = ARRAY_SIZE(command_list);
		break;
	case CMD_MIGRATE_VECTOR:
		for (i = 0; i < ARRAY_SIZE(command_moves); i++)
			command_moves[i] = (struct hetmem_cmd_migrate){
				.start = (uintptr_t)p + i * half,
				.end = (uintptr_t)p + (i + 1) * half,
				.location = ANY_HOST,
			};
		c->vector.commands = (uintptr_t)command_moves;
		c->vector.results = (uintptr_t)command_results;
		c->vector.command_size = sizeof(command_moves[0]);
		c->vector.nr = ARRAY_SIZE(command_moves);
		break;
	case CMD_BACKGROUND:
		command_moves[0] = (struct hetmem_cmd_migrate){
			.start = (uintptr_t)p,
			.end = (uintptr_t)p + half,
			.location = ANY_HOST,
		};
		c->background.command = (uintptr_t)command_moves;
		c->background.command_size = sizeof(command_moves[0]);
		c->background.eventfd = command_eventfd();
		break;
	default:
		break;
	}
}

int command_call(int fd, enum command_id id, void *c)
{
	return hm_ioctl(fd, commands[id].nr, c);
}
