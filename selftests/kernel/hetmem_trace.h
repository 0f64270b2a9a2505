/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Reading the module's tracepoints through plain tracefs.
 */
#ifndef HETMEM_TRACE_H
#define HETMEM_TRACE_H

#include "hetmem_hint_test.h"

#define TRACEFS		"/sys/kernel/tracing/"

/* tracefs is there, mounted by us if need be; a kernel may be without. */
HELPER bool trace_possible(void)
{
	if (access(TRACEFS "trace", F_OK))
		mount("none", TRACEFS, "tracefs", 0, NULL);
	return !access(TRACEFS "trace", F_OK);
}

/* Starts anew: all events of hetmem and no others. */
HELPER int trace_start(void)
{
	int ret = write_text(TRACEFS "events/enable", "0");

	/* Writing nothing at all, with O_TRUNC, is what clears it. */
	if (!ret) {
		int fd = open(TRACEFS "trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

		ret = fd < 0 ? -errno : close(fd);
	}
	return ret ? ret : write_text(TRACEFS "events/hetmem/enable", "1");
}

HELPER void trace_stop(void)
{
	write_text(TRACEFS "events/hetmem/enable", "0");
}

/* How many lines have " @event: " and @text behind it. */
HELPER int trace_count(const char *event, const char *text)
{
	FILE *f = fopen(TRACEFS "trace", "r");
	char line[1024], name[64], *at;
	int nr = 0;

	if (!f)
		return -errno;
	snprintf(name, sizeof(name), " %s: ", event);
	while (fgets(line, sizeof(line), f)) {
		at = strstr(line, name);
		nr += at && line[0] != '#' &&
		      strstr(at + strlen(name), text) != NULL;
	}
	fclose(f);
	return nr;
}

HELPER void trace_print(void)
{
	FILE *f = fopen(TRACEFS "trace", "r");
	char line[1024];

	while (f && fgets(line, sizeof(line), f)) {
		if (line[0] != '#')
			fprintf(stderr, "# %s", line);
	}
	if (f)
		fclose(f);
}

/* One line, built as the test expects it, is there @nr times. */
#define EXPECT_TRACED(nr, event, ...)					\
	do {								\
		char text_[512];					\
									\
		snprintf(text_, sizeof(text_), __VA_ARGS__);		\
		EXPECT_EQ(nr, trace_count(event, text_)) {		\
			TH_LOG("%s: %s", event, text_);			\
			trace_print();					\
		}							\
	} while (0)

#endif /* HETMEM_TRACE_H */
