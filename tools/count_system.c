/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A tracer for one thread: see count_system.h.
 *
 * The tracer is a child that seizes the thread, lets it run from system call
 * to system call, and counts their entries until it sees the thread write to
 * the pipe that ends it. The child calls nothing but the kernel, since the
 * parent may have threads that held locks when it forked.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not in every libc's <sys/ptrace.h>. */
#include <linux/ptrace.h>

#include "count_system.h"

static int end_pipe[2];		/* written by the traced thread */
static int answer_pipe[2];	/* by the tracer */
static pid_t tracer;

/* Whether the stopped thread is about to say that it is over. */
static bool is_end(pid_t tid, bool *entry)
{
	struct ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, (void *)sizeof(info),
		   &info) <= 0)
		return false;
	*entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
	return *entry && info.entry.nr == SYS_write &&
	       (int)info.entry.args[0] == end_pipe[1];
}

static int64_t trace(pid_t tid)
{
	int64_t count = 0;
	int status, signal;
	bool entry;

	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
		return -1;
	for (;;) {
		if (waitpid(tid, &status, __WALL) != tid ||
		    !WIFSTOPPED(status))
			return -1;
		signal = 0;
		entry = false;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			if (is_end(tid, &entry)) {
				ptrace(PTRACE_DETACH, tid, NULL, NULL);
				return count;
			}
			count += entry;
		} else if (status >> 16 != PTRACE_EVENT_STOP) {
			signal = WSTOPSIG(status);
		}
		if (ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(long)signal))
			return -1;
	}
}

static _Noreturn void tracer_main(pid_t tid)
{
	int64_t result = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(answer_pipe[0]);
	if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD))
		result = -1;
	if (write(answer_pipe[1], &result, sizeof(result)) != sizeof(result) ||
	    result < 0)
		_exit(1);
	result = trace(tid);
	if (write(answer_pipe[1], &result, sizeof(result)) != sizeof(result))
		_exit(1);
	_exit(0);
}

static void clean_up(void)
{
	close(end_pipe[0]);
	close(end_pipe[1]);
	close(answer_pipe[0]);
	close(answer_pipe[1]);
	waitpid(tracer, NULL, 0);
}

static bool read_answer(int64_t *answer)
{
	ssize_t n;

	do {
		n = read(answer_pipe[0], answer, sizeof(*answer));
	} while (n < 0 && errno == EINTR);
	return n == sizeof(*answer);
}

bool count_system_begin(void)
{
	pid_t tid = syscall(SYS_gettid);
	int64_t answer;

	if (pipe(end_pipe))
		return false;
	if (pipe(answer_pipe)) {
		close(end_pipe[0]);
		close(end_pipe[1]);
		return false;
	}
	tracer = fork();
	if (!tracer)
		tracer_main(tid);
	if (tracer > 0)
		/* Where Yama restricts tracing to parents. */
		prctl(PR_SET_PTRACER, tracer);
	close(answer_pipe[1]);
	answer_pipe[1] = -1;
	if (tracer > 0 && read_answer(&answer) && answer >= 0)
		return true;
	clean_up();
	return false;
}

int64_t count_system_end(void)
{
	int64_t count = -1;

	if (write(end_pipe[1], "", 1) != 1 || !read_answer(&count))
		count = -1;
	clean_up();
	return count;
}
