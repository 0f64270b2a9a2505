/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Processes that a test leaves behind. */
#ifndef CHILDREN_H
#define CHILDREN_H

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What loses its parent becomes a child of this process, generation after generation. */
static int adopt_children(void)
{
	return prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/*
 * Kills all children of this process, which adopts them. A test of the harness has a process
 * group of its own, so killing groups does not reach all of them.
 */
static void kill_children(void)
{
	bool any = true;
	struct dirent *e;
	char path[64];
	int pid, ppid;
	DIR *proc;
	FILE *f;

	while (any) {
		any = false;
		proc = opendir("/proc");
		if (!proc)
			return;
		while ((e = readdir(proc))) {
			if (e->d_name[0] < '0' || e->d_name[0] > '9')
				continue;
			snprintf(path, sizeof(path), "/proc/%.20s/stat", e->d_name);
			f = fopen(path, "r");
			if (!f)
				continue;
			if (fscanf(f, "%d %*[^)]) %*c %d", &pid, &ppid) == 2 &&
			    ppid == getpid()) {
				any = true;
				kill(pid, SIGKILL);
				waitpid(pid, NULL, 0);
			}
			fclose(f);
		}
		closedir(proc);
	}
}

#endif
