/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Every command as a row of a table, with a call of it that is right, so
 * that a test can break one thing at a time in each.
 */
#ifndef LIBKTEST_TABLE_H
#define LIBKTEST_TABLE_H

#include "libktest/commands.h"

/* In the order of their numbers. */
enum command_id {
	CMD_INFO, CMD_TRACK, CMD_UNTRACK, CMD_RESIDENCY, CMD_MIGRATE,
	CMD_UNPIN, CMD_STATS, CMD_RING, CMD_REFRESH, CMD_ALLOW,
	CMD_BIND_DEVICE, CMD_HINT, CMD_COMPLETE, CMD_LIST,
	CMD_MIGRATE_VECTOR, CMD_BACKGROUND, CMD_NR,
};

struct command {
	const char *name;
	unsigned long nr;
	size_t size;
	bool range;		/* start and end come in */
	bool start;		/* start comes in */
	bool answers;		/* something comes back */
	bool looks;		/* works on a file that is open for reading */
	bool stranger;		/* CAP_SYS_PTRACE, or for HINT CAP_SYS_NICE, do */
	int right;		/* what command_valid()'s call returns */
	size_t reserved;	/* offset of a reserved member, or 0 */
	uint32_t known_flags;
};

extern const struct command commands[CMD_NR];

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
	struct hetmem_cmd_unpin unpin;
	struct hetmem_cmd_allow allow;
	struct hetmem_cmd_bind_device bind_device;
	struct hetmem_cmd_hint hint;
	struct hetmem_cmd_complete complete;
	struct hetmem_cmd_list list;
	struct hetmem_cmd_migrate_vector vector;
	struct hetmem_cmd_background background;
	unsigned char bytes[512];
};

/*
 * A call that returns what it should when the first half of [p, p + 2 * half)
 * is tracked, the second is not, and there is no ring. Arrays of answers lie
 * in command_runs and the like.
 */
void command_valid(enum command_id id, union any_command *c, const char *p,
		   size_t half);
int command_call(int fd, enum command_id id, void *c);

/* Where commands with arrays put their answers. */
extern struct hetmem_run command_runs[64];
extern struct hetmem_total command_totals[16];
extern struct hetmem_list_entry command_list[4];
/* The commands of a vector, and their results. */
extern struct hetmem_cmd_migrate command_moves[2];
extern int32_t command_results[2];

#endif
