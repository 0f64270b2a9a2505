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

/* In the order of the report. */
enum doctor_use {
	USE_POOLS,
	USE_DEVICE,
	USE_PYTORCH,
	USE_CUPY,
	USE_MANAGED,
	USE_SLEEP,
	USE_UNIFIED,
	USE_HMM,
	USE_MOVES,
	USE_MODULE,
	USE_NR
};

/* What later checks need to know of earlier ones; -1 is "cannot be told". */
struct doctor {
	const char *root;	/* prefix of every file that is read */
	bool live;		/* this very machine: may be asked, not read */
	struct check *checks;
	size_t nr;
	struct {
		char *why;
		const char *gives;	/* NULL: as on other machines */
		bool works, required;
	} uses[USE_NR];
	bool require_all;	/* nothing may be missing */
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

/* uses.c: what a reader comes for. */
struct hetmem;

const char *doctor_use_name(enum doctor_use use);
/* What the reader gains by it. */
const char *doctor_use_gives(const struct doctor *doctor, enum doctor_use use);
void doctor_use(struct doctor *doctor, enum doctor_use use, bool works, const char *why);
/* Judges all uses. @hm NULL: from files, or the library's last error. */
void doctor_uses(struct doctor *doctor, struct hetmem *hm, bool moves);
/* Users whom the lack of the check @name concerns. */
const char *doctor_whom(const char *name);
/* Reads the words of --require. Returns 0 or the status of a wrong command line. */
int doctor_require(struct doctor *doctor, const char *typed);
/* Complains about each required use that does not work. Returns the exit status. */
int doctor_judge(const struct doctor *doctor, int missing);
struct json_object *doctor_uses_json(const struct doctor *doctor);

/* Devices as the library sees them, and the verdict: can memory move? */
bool doctor_devices(struct doctor *doctor);

#endif
