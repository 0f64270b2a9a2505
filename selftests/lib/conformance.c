// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every resource over the soft driver in check mode: memory that is given out
 * too early aborts, and nothing is left when it is destroyed. An argument:
 * only rows that contain it, or if there are none, that spec itself.
 */
#include <fcntl.h>

#include "conformance.h"

/* Closes the library and reads what it says on stderr: leaks, in debug mode. */
static bool nothing_leaks(void)
{
	char path[] = "/tmp/hetmem-conformance-XXXXXX", text[4096];
	int fd = mkstemp(path), saved = dup(STDERR_FILENO);
	ssize_t n;

	unlink(path);
	dup2(fd, STDERR_FILENO);
	close_driver();
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = pread(fd, text, sizeof(text) - 1, 0);
	close(fd);
	if (n <= 0)
		return n == 0;
	text[n] = '\0';
	printf("# %s", text);
	return false;
}

static void run(void)
{
	size_t available, total;

	open_driver("soft");
	run_row();
	need(!drv->cuMemGetInfo(&available, &total), "memory");
	is(total - available, 0, "%s: all memory was given back", row->spec);
	ok(nothing_leaks(), "%s: nothing leaks", row->spec);
}

int main(int argc, char **argv)
{
	struct row own = { .spec = argc > 1 ? argv[1] : NULL };
	int nr = 0;

	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	for (row = rows; row < rows + NR_ROWS; row++) {
		if (argc > 1 && !strstr(row->spec, argv[1]))
			continue;
		run();
		nr++;
	}
	if (!nr) {
		row = &own;
		run();
	}
	return tap_end();
}
