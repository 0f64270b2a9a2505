/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counts instructions of a child process. The child shares memory with its parent, which
 * single-steps it while the child wants that and looks at that memory before each
 * instruction. Otherwise the child runs freely.
 */
#ifndef HETMEM_SELFTESTS_SINGLE_STEP_H
#define HETMEM_SELFTESTS_SINGLE_STEP_H

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

/* Memory that parent and child share, zeroed. */
__attribute__((unused))
static void *step_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	need(p != MAP_FAILED, "memory");
	return p;
}

/* In the child: from here on the parent looks whether to step. */
__attribute__((unused))
static void step_here(void)
{
	raise(SIGSTOP);
}

/*
 * Runs @work(@arg) in a child. After each stop of the child the parent calls @look(),
 * which returns whether to stop after the next instruction as well. Returns whether the
 * child ended by exit(0). False also means that no process can be traced here.
 */
__attribute__((unused))
static bool single_step(void (*work)(const void *arg), bool (*look)(void), const void *arg)
{
	int status, sig;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		if (!ptrace(PTRACE_TRACEME, 0, NULL, NULL)) {
			work(arg);
			_exit(0);
		}
		_exit(1);
	}
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		sig = WSTOPSIG(status);
		sig = sig == SIGTRAP || sig == SIGSTOP ? 0 : sig;
		if (ptrace(look() ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL,
			   (void *)(long)sig)) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return false;
		}
	}
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static unsigned int step_looks;

static bool step_once(void)
{
	return !step_looks++;
}

static void step_nothing(const void *arg)
{
	(void)arg;
	step_here();
}

/* Whether the kernel lets a process single-step its child. */
__attribute__((unused))
static bool can_single_step(void)
{
	step_looks = 0;
	return single_step(step_nothing, step_once, NULL) && step_looks == 2;
}

#endif /* HETMEM_SELFTESTS_SINGLE_STEP_H */
