/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The program of Documentation/kernel-interface.md, as make has taken it from there:
 * its main() is a function, and where it says that threads start it calls
 * example_threads(), which each test has.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include "libktest/harness.h"

static void example_threads(char *p, size_t size);

#define main example_main
#include "interface_example.c"
#undef main

/*
 * Runs it in a child to its end, which comes when there was no event for a second.
 * Return: its status; what it wrote is in @text.
 */
static int example_run(char *text, size_t room)
{
	int out[2];
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	if (pipe(out))
		return -errno;
	/* What the harness wrote is not the program's. */
	fflush(stdout);
	pid = fork();
	if (!pid) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		exit(example_main());
	}
	close(out[1]);
	while ((got = read(out[0], text + n, room - 1 - n)) > 0)
		n += got;
	text[n] = 0;
	close(out[0]);
	return pid < 0 ? -errno : child_status(pid);
}

#endif
