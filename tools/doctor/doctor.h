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
 * @shown: without --verbose, too
 */
struct check {
	enum check_state state;
	char *name;
	char *why;
	char *todo;
	bool shown;
};

/* What later checks need to know of earlier ones; -1 is "cannot be told". */
struct doctor {
	const char *root;	/* prefix of every file that is read */
	bool live;		/* this very machine: may be asked, not read */
	struct check *checks;
	size_t nr;
	struct json_object *devices;	/* for --json; NULL: there are none */
	char *release;
	char *tree;		/* hetmem's source, "": here; NULL: there is none */
	char *demo;		/* how to see it in a virtual machine; NULL */
	bool loads;		/* the kernel loads modules, as far as can be told */
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

/* What was reported last is shown without --verbose. What is missing is in any case. */
void doctor_show(struct doctor *doctor);

/* Whether @path is there, below the root. */
bool doctor_exists(const struct doctor *doctor, const char *path);

/* read_line() below the root. */
char *doctor_line(const struct doctor *doctor, const char *path);

/* advice.c: only what this machine has. Copies for the caller, or NULL. */
void doctor_advice_begin(struct doctor *doctor);
void doctor_advice_end(struct doctor *doctor);
bool doctor_has_command(const struct doctor *doctor, const char *name);
bool doctor_has_headers(const struct doctor *doctor);
/* Whether FILE.ko is installed for this kernel. */
bool doctor_has_module(const struct doctor *doctor, const char *file);
bool doctor_is_debian(const struct doctor *doctor);
char *doctor_other_kernel(const struct doctor *doctor);
char *doctor_load(const struct doctor *doctor, const char *module);

void doctor_kernel(struct doctor *doctor);	/* release, configuration */
void doctor_module(struct doctor *doctor);	/* ours, and its node */
void doctor_nvidia(struct doctor *doctor);
void doctor_memory(struct doctor *doctor);	/* pages, nodes, limits */

/* Devices as the library sees them, and the verdict: can memory move? */
bool doctor_devices(struct doctor *doctor);

#endif
