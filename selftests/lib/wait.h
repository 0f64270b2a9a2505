/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Waiting in tests: for a state, and never for time. A limit counts looks, and not the clock:
 * on a busy machine looks come late, and the limit with them. source.t refuses other sleeps
 * and timeouts, unless the line or the one above tells in a comment why it needs time.
 */
#ifndef HETMEM_SELFTESTS_WAIT_H
#define HETMEM_SELFTESTS_WAIT_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Looks of wait_until(): a minute on an idle machine. Only a test that fails takes it. */
#define WAIT_LOOKS	60000

/* Lets other threads and processes run between two looks. */
__attribute__((unused))
static void wait_nap(void)
{
	/* time: the pace of looks, which no result depends on */
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Waits until @cond holds. Returns whether it does. */
#define wait_until(cond) __extension__ ({				\
	unsigned int wait_looks = 0;					\
	bool wait_holds;						\
									\
	while (!(wait_holds = (cond)) && wait_looks++ < WAIT_LOOKS)	\
		wait_nap();						\
	wait_holds;							\
})

/* The same without a limit, in a thread that the test lets go. */
#define stay_until(cond) do {						\
	while (!(cond))							\
		wait_nap();						\
} while (0)

/*
 * Whether the thread @tid of the process @pid sleeps: it waits for another one, or for the
 * driver. Three looks, as a thread can also sleep for a moment on its way.
 */
__attribute__((unused))
static bool thread_sleeps(pid_t pid, pid_t tid)
{
	char path[64], text[256], *state;
	unsigned int i;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
	for (i = 0; i < 3; i++) {
		f = fopen(path, "re");
		if (!f)
			return false;
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		text[n] = '\0';
		state = strrchr(text, ')');
		if (!state || strncmp(state, ") S ", 4))
			return false;
		wait_nap();
	}
	return true;
}

/* Ends a process that hangs, on a machine that is twenty times slower than an idle one, too. */
__attribute__((unused))
static void hang_limit(bool on)
{
	/* time: only a test that fails gets so far */
	alarm(on ? 900 : 0);
}

#endif /* HETMEM_SELFTESTS_WAIT_H */
