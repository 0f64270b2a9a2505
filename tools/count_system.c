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
static int answer_fd;		/* its end that is read */
static pid_t tracer;

enum stop {
	STOP_OTHER,	/* a system call ends, or what is no call at all */
	STOP_CALL,	/* one begins */
	STOP_READY,	/* it begins to wait for our answer: nothing counts yet */
	STOP_END,	/* it is the one that says that it is over */
};

/* Why a thread that is at a system call has stopped. */
static enum stop why_stopped(pid_t tid)
{
	struct ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, (void *)sizeof(info),
		   &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return STOP_OTHER;
	if (info.entry.nr == SYS_write &&
	    (int)info.entry.args[0] == end_pipe[1])
		return STOP_END;
	if (info.entry.nr == SYS_read &&
	    (int)info.entry.args[0] == answer_fd)
		return STOP_READY;
	return STOP_CALL;
}

static bool wait_stopped(pid_t tid, int *status)
{
	return waitpid(tid, status, __WALL) == tid && WIFSTOPPED(*status);
}

/*
 * From its first stop to its end. That stop may be anywhere between the fork and
 * the read of our answer, which is begun again if it was in it.
 */
static int64_t trace(pid_t tid)
{
	int64_t count = 0;
	int status, signal = 0;

	for (;;) {
		if (ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(long)signal) ||
		    !wait_stopped(tid, &status))
			return -1;
		signal = 0;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			switch (why_stopped(tid)) {
			case STOP_END:
				ptrace(PTRACE_DETACH, tid, NULL, NULL);
				return count;
			case STOP_CALL:
				count++;
				break;
			case STOP_READY:
				count = 0;
				break;
			default:
				break;
			}
		} else if (status >> 16 != PTRACE_EVENT_STOP) {
			signal = WSTOPSIG(status);
		}
	}
}

static void answer(int64_t value)
{
	if (write(answer_pipe[1], &value, sizeof(value)) != sizeof(value))
		_exit(1);
}

/* The thread waits for an answer: it is stopped before it gets one. */
static _Noreturn void tracer_main(pid_t tid)
{
	int status;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(answer_pipe[0]);
	if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) ||
	    !wait_stopped(tid, &status)) {
		answer(-1);
		_exit(1);
	}
	answer(0);
	answer(trace(tid));
	_exit(0);
}

static void clean_up(void)
{
	prctl(PR_SET_PTRACER, 0);
	close(end_pipe[0]);
	close(end_pipe[1]);
	close(answer_pipe[0]);
	close(answer_pipe[1]);
	waitpid(tracer, NULL, 0);
}

static bool read_answer(int64_t *value)
{
	ssize_t n;

	do {
		n = read(answer_pipe[0], value, sizeof(*value));
	} while (n < 0 && errno == EINTR);
	return n == sizeof(*value);
}

bool count_system_begin(void)
{
	pid_t tid = syscall(SYS_gettid);
	int64_t ready;

	if (pipe(end_pipe))
		return false;
	if (pipe(answer_pipe)) {
		close(end_pipe[0]);
		close(end_pipe[1]);
		return false;
	}
	answer_fd = answer_pipe[0];
	/* Yama lets only parents trace, unless they are told otherwise. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	tracer = fork();
	if (!tracer)
		tracer_main(tid);
	close(answer_pipe[1]);
	answer_pipe[1] = -1;
	if (tracer > 0 && read_answer(&ready) && !ready)
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
