// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/trace.h"

#include <sys/mount.h>

bool trace_possible(void)
{
	if (access(TRACEFS "trace", F_OK))
		mount("none", TRACEFS, "tracefs", 0, NULL);
	return !access(TRACEFS "trace", F_OK);
}

int trace_start(void)
{
	int ret = write_text(TRACEFS "events/enable", "0");

	/* Writing nothing at all, with O_TRUNC, is what clears it. */
	if (!ret) {
		int fd = open(TRACEFS "trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

		ret = fd < 0 ? -errno : close(fd);
	}
	/*
	 * Names of tasks, which nobody reads, come from the scheduler: its code would be
	 * patched, under emulated processors that are at work in there.
	 */
	if (!ret)
		ret = write_text(TRACEFS "options/record-cmd", "0");
	return ret ? ret : write_text(TRACEFS "events/hetmem/enable", "1");
}

void trace_stop(void)
{
	write_text(TRACEFS "events/hetmem/enable", "0");
}

int trace_count(const char *event, const char *text)
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

void trace_print(void)
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
