/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Askers: threads that wait in HINT, since that waits for the answer. */
#ifndef LIBKTEST_ASKER_H
#define LIBKTEST_ASKER_H

#include "libktest/ring.h"

#include <pthread.h>

struct asker {
	pthread_t thread;
	int fd;
	struct hetmem_cmd_hint cmd;	/* the answer, after asker_end() */
	int ret;
};

/* HINT with a timeout that only a test that fails waits for. @uuid may be NULL. */
int asker_start(struct asker *a, int fd, const void *p, size_t size,
		uint32_t location, const void *uuid);

/* Waits for the end of HINT and returns what it returned. */
int asker_end(struct asker *a);

/* Hints that wait for the contexts of process @pid, as LIST says, or an errno. */
long hints_waiting(int fd, pid_t pid);

#endif
