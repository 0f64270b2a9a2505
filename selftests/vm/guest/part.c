// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Runs one of several parts that share a guest. A part's output stands between the lines
 * "PART NAME" and "PART-END STATUS". Processes that it leaves behind are killed. If the kernel
 * wrote a complaint while it ran, lines "COMPLAINT ..." precede the end. The kernel's log is
 * cleared, so the next part sees its own lines only.
 *
 * usage: part NAME COMMAND [ARGUMENT]...
 */
#define _GNU_SOURCE
#include <sys/klog.h>

#include "children.h"
#include "klog.h"
#include "tell.h"

#define LOG_CLEAR	5

int main(int argc, char **argv)
{
	const char *complaint;
	char text[256];
	int status = 0;
	pid_t pid;

	if (argc < 3) {
		fputs("usage: part NAME COMMAND [ARGUMENT]...\n", stderr);
		return 2;
	}
	if (adopt_children() || open_log()) {
		perror("part");
		return 1;
	}
	snprintf(text, sizeof(text), "test %s\n", argv[1]);
	tell(text);
	printf("PART %s\n", argv[1]);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		setsid();
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		perror("part");
		return 1;
	}
	kill_children();
	complaint = read_log();
	if (complaint) {
		printf("COMPLAINT %.*s\n", (int)strcspn(complaint, "\n"), complaint);
		for (complaint = strtok(klog, "\n"); complaint; complaint = strtok(NULL, "\n"))
			printf("COMPLAINT | %s\n", complaint);
	}
	klogctl(LOG_CLEAR, NULL, 0);
	printf("PART-END %d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
	return 0;
}
