/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * TAP 13 for the small programs of this directory: ok() once a behaviour,
 * tap_end() last. Any thread may call them.
 */
#ifndef HETMEM_SELFTESTS_TAP_H
#define HETMEM_SELFTESTS_TAP_H

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wait.h"

static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int tap_count, tap_failed;

__attribute__((unused, format(printf, 4, 5)))
static bool tap_ok(bool good, const char *what, int line, const char *fmt, ...)
{
	va_list args;

	pthread_mutex_lock(&tap_lock);
	if (!tap_count)
		printf("TAP version 13\n");
	printf("%sok %u - ", good ? "" : "not ", ++tap_count);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	if (!good) {
		tap_failed++;
		printf("# line %d: %s\n", line, what);
	}
	fflush(stdout);
	pthread_mutex_unlock(&tap_lock);
	return good;
}

/* ok(condition, name as for printf) */
#define ok(cond, ...)	tap_ok(!!(cond), #cond, __LINE__, __VA_ARGS__)

/* is(number, expected, name): tells both when they differ. */
#define is(have, want, ...) do {					\
	long long tap_have = (have), tap_want = (want);			\
									\
	if (!tap_ok(tap_have == tap_want, #have, __LINE__, __VA_ARGS__)) \
		printf("# is %lld, not %lld\n", tap_have, tap_want);	\
} while (0)

/* What the rest needs: ends the program with a failed test. */
#define need(cond, ...) do {						\
	if (!(cond)) {							\
		tap_ok(false, #cond, __LINE__, __VA_ARGS__);		\
		exit(tap_end());					\
	}								\
} while (0)

__attribute__((unused))
static int tap_end(void)
{
	printf("1..%u\n", tap_count);
	fflush(stdout);
	return tap_failed ? 1 : 0;
}

/*
 * What @call says on stderr, by way of the file @fd, into @text of @size bytes. Its
 * length, -1: it is not known.
 */
__attribute__((unused))
static ssize_t tap_stderr_of(void (*call)(void), int fd, char *text, size_t size)
{
	int saved;
	ssize_t n;

	if (ftruncate(fd, 0))
		return -1;
	saved = dup(STDERR_FILENO);
	lseek(fd, 0, SEEK_SET);
	dup2(fd, STDERR_FILENO);
	call();
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = pread(fd, text, size - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	return n;
}

#endif /* HETMEM_SELFTESTS_TAP_H */
