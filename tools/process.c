/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What a process is called, and when it began: see process.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "util.h"

/* Fields as proc(5) numbers them. */
enum { FIELD_STATE = 3, FIELD_STARTED = 22, FIELD_STACK = 28 };

/* @at: the state. */
static int parse(struct process *p, const char *at)
{
	int field;

	p->ended = *at && strchr("XxZ", *at);
	for (field = FIELD_STATE + 1; field <= FIELD_STACK; field++) {
		at = strchr(at, ' ');
		if (!at++)
			return -EIO;
		if (field == FIELD_STARTED)
			p->started = strtoull(at, NULL, 10);
	}
	p->stack = strtoull(at, NULL, 10);
	return 0;
}

int process_read(struct process *p, pid_t pid)
{
	char *path = xasprintf("/proc/%d/stat", pid), *text, *name, *end;
	int err;

	errno = 0;
	text = read_file(NULL, path, 65536, NULL);
	err = text ? -EIO : errno == ENOENT ? -ESRCH : -errno;
	/* The name can contain anything, ')' included. */
	name = text ? strchr(text, '(') : NULL;
	end = name ? strrchr(name, ')') : NULL;
	if (end && end[1] == ' ') {
		*end = '\0';
		escape(p->name, sizeof(p->name), name + 1);
		err = parse(p, end + 2);
	}
	free(text);
	free(path);
	return err;
}
