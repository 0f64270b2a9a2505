/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem doctor`. */
#ifndef HETMEM_TOOLS_DOCTOR_H
#define HETMEM_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "util.h"

enum check_state {
	CHECK_OK,
	CHECK_MISSING,	/* this machine could have it, or memory cannot move */
	CHECK_NOTE,	/* good to know; does not count */
};

/**
 * struct check - one line of the report
 * @name: what was looked at
 * @why: what was found
 * @todo: what to type or to change, NULL if nothing
 */
struct check {
	enum check_state state;
	char *name;
	char *why;
	char *todo;
};

/* What later checks need to know of earlier ones; -1 is "cannot be told". */
struct doctor {
	const char *root;	/* prefix of every file that is read */
	bool live;		/* this very machine: may be asked, not read */
	struct check *checks;
	size_t nr;
	struct json_object *devices;	/* for --json; NULL: there are none */
	char *release;
	int modules;		/* the kernel can load modules at all */
	int device_private;
	bool module_loaded;
	bool emu_loaded;
	bool node_usable;
	bool gpu;		/* an NVIDIA GPU is there */
	bool gpu_hmm;		/* its driver could move ordinary memory */
};

void doctor_report(struct doctor *doctor, enum check_state state,
		   const char *name, const char *todo, const char *fmt, ...)
	printf_like(5, 6);

/* Whether @path is there, below the root. */
bool doctor_exists(const struct doctor *doctor, const char *path);

/* read_line() below the root. */
char *doctor_line(const struct doctor *doctor, const char *path);

void doctor_kernel(struct doctor *doctor);	/* release, configuration */
void doctor_module(struct doctor *doctor);	/* ours, and its node */
void doctor_nvidia(struct doctor *doctor);
void doctor_memory(struct doctor *doctor);	/* pages, nodes, limits */

/* Devices as the library sees them, and the verdict: can memory move? */
bool doctor_devices(struct doctor *doctor);

#endif
