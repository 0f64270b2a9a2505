/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem sleep, hetmem wake: the driver moves what a process has on its GPUs to host memory,
 * and back. The process needs no change, and knows nothing of it: its next call of the driver
 * waits.
 *
 * With --served the process itself does it, by libhetmem-cuda.so: only memory that 'hetmem run
 * --device' serves goes. The driver needs no support. A wake first asks the process.
 *
 * Signals that would end this program wait until the process is in a state that the next
 * command can go on from.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda/ask.h"
#include "driver/hetmem.h"
#include "options.h"
#include "platform/memfd.h"
#include "process.h"
#include "util.h"

#define TIMEOUT_S	30
#define MAX_TIMEOUT_S	600
/* A process has this time to report its state. Afterwards the driver is asked. */
#define STATE_S		3

/**
 * struct target - the process, and what the driver says of it
 * @sub: "sleep", "wake"
 * @served: --served
 * @silent: it has a socket, and does not answer
 */
struct target {
	const char *sub;
	pid_t pid;
	struct process process;
	unsigned int timeout_s;
	bool served, silent;
	struct hm_driver driver;
};

static int help(bool wake)
{
	if (wake)
		puts("Usage: hetmem wake PID\n"
		     "Brings the memory of a process that sleeps back to its GPUs. It goes on then.\n\n"
		     "If the GPU has no room, the process sleeps on: try again later.");
	else
		printf("Usage: hetmem sleep [--served] [--timeout SECONDS] PID\n"
		       "Moves what a process has on its GPUs to host memory. Its calls of CUDA wait.\n\n"
		       "  --timeout SECONDS    how long its GPU work may take to finish (%d)\n"
		       "  --served             move only the memory that its spec serves ('hetmem run')\n\n"
		       "The process needs no change. It must be yours, or you must be root.\n"
		       "'hetmem wake' wakes it. The driver must be 570 or newer. It refuses memory that\n"
		       "other processes share (before 610) and, on many systems, managed memory.\n\n"
		       "With --served the process itself moves the memory, with every driver. It refuses\n"
		       "during a capture, and where it cannot follow the program's calls.\n",
		       TIMEOUT_S);
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct target *t, int argc, char **argv)
{
	long value;
	int c;

	while ((c = next_option(t->sub, argc, argv)) != -1) {
		switch (c) {
		case 't':
			if (!parse_number(optarg, 1, MAX_TIMEOUT_S, &value))
				return usage_error(t->sub, "'%s' is not a time from 1 to %d seconds",
						   optarg, MAX_TIMEOUT_S);
			t->timeout_s = value;
			break;
		case 's':
			t->served = true;
			break;
		case 'h':
			return -1;
		default:
			return option_error(t->sub, c, argv);
		}
	}
	if (optind == argc)
		return usage_error(t->sub, "which process? Give a PID");
	if (optind + 1 < argc)
		return usage_error(t->sub, "one PID at a time, '%s' is too many", argv[optind + 1]);
	if (!parse_number(argv[optind], 1, INT32_MAX, &value))
		return usage_error(t->sub, "'%s' is not a PID", argv[optind]);
	t->pid = value;
	return 0;
}

static int no_process(const struct target *t)
{
	return complain(EXIT_FAILED, t->sub, "there is no process %d; type 'ps -e' for those there are",
			t->pid);
}

/* The process is there, and this user's. 0, or the exit status. */
static int check_process(struct target *t)
{
	char *path = xasprintf("/proc/%d", t->pid);
	struct stat st;
	int err = process_read(&t->process, t->pid);

	if (!err && stat(path, &st))
		err = -ESRCH;
	free(path);
	if (err == -ESRCH || (!err && t->process.ended))
		return no_process(t);
	if (err)
		return not_permitted(t->sub, t->pid);
	if (geteuid() && st.st_uid != geteuid())
		return complain(EXIT_FAILED, t->sub, "process %d (%s) is another user's; become root",
				t->pid, t->process.name);
	return 0;
}

/* 0, or the exit status. */
static int open_driver(struct target *t)
{
	const char *wanted = secure_getenv("HETMEM_DRIVER");
	const struct hm_soft *soft;
	char reason[HM_REASON_LEN];
	int err;

	if (wanted && !strcmp(wanted, "soft"))
		err = hm_soft_open(&t->driver, &soft, NULL, reason, sizeof(reason));
	else
		err = hm_cuda_open(&t->driver, reason, sizeof(reason));
	if (err)
		return complain(EXIT_FAILED, t->sub, "%s", reason);
	if (!t->driver.cuCheckpointProcessLock || !t->driver.cuCheckpointProcessUnlock ||
	    !t->driver.cuCheckpointProcessCheckpoint || !t->driver.cuCheckpointProcessRestore ||
	    !t->driver.cuCheckpointProcessGetState)
		return complain(EXIT_FAILED, t->sub, "the driver is of CUDA %d.%d: a process can sleep with driver 570 (CUDA 12.8) or newer",
				t->driver.version / 1000, t->driver.version % 1000 / 10);
	return 0;
}

/* The line for an error of the driver. @doing: "be locked". Returns EXIT_FAILED. */
static int refused(const struct target *t, const char *doing, CUresult res)
{
	struct process now;

	if (process_read(&now, t->pid) == -ESRCH || now.ended ||
	    now.started != t->process.started)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) has ended", t->pid,
				t->process.name);
	switch (res) {
	case CUDA_ERROR_NOT_READY:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) did not finish its GPU work within %u s, and runs on; give more with '--timeout'",
				t->pid, t->process.name, t->timeout_s);
	case CUDA_ERROR_NOT_SUPPORTED:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot %s: it has managed memory, memory that it shares with other processes, or a GPU that cannot do this",
				t->pid, t->process.name, doing);
	case CUDA_ERROR_OUT_OF_MEMORY:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot %s: there is too little memory %s; try again later",
				t->pid, t->process.name, doing,
				strcmp(t->sub, "wake") ? "of the host" : "on the GPU");
	case CUDA_ERROR_NOT_PERMITTED:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot %s: the driver does not permit it; become root",
				t->pid, t->process.name, doing);
	case CUDA_ERROR_OPERATING_SYSTEM:
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_INVALID_VALUE:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot %s: it does not use CUDA, or is in another PID namespace (%s)",
				t->pid, t->process.name, doing, hm_cuda_name(&t->driver, res));
	default:
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot %s: %s", t->pid,
				t->process.name, doing, hm_cuda_name(&t->driver, res));
	}
}

/* A socket of the process itself; -1: it has none. */
static int reach(const struct target *t)
{
	char *root = xasprintf("/proc/%d/root", t->pid);
	const struct sockaddr_un name = hm_cuda_ask_name(root, hm_inner_pid(t->pid));
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const struct timeval patience = { .tv_sec = STATE_S };
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);

	free(root);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (!connect(fd, (const struct sockaddr *)&name, sizeof(name)) &&
	    !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) && who.pid == t->pid)
		return fd;
	close(fd);
	return -1;
}

enum asked { ANSWERED, SILENT, NO_SOCKET };

/* Asks the process, which may take any time to sleep or to wake. */
static enum asked ask(const struct target *t, enum hm_cuda_ask_op op,
		      struct hm_cuda_answer *answer)
{
	const struct hm_cuda_ask request = {
		HM_CUDA_ASK_MAGIC, HM_CUDA_ASK_VERSION, op, 1000 * t->timeout_s,
	};
	const struct timeval patience = { .tv_sec = STATE_S };
	const int fd = reach(t);
	bool good;

	if (fd < 0)
		return NO_SOCKET;
	if (op == HM_CUDA_ASK_STATE)
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	good = send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request) &&
		recv(fd, answer, sizeof(*answer), MSG_TRUNC) == sizeof(*answer) &&
		answer->magic == HM_CUDA_ASK_MAGIC;
	close(fd);
	answer->text[sizeof(answer->text) - 1] = '\0';
	return good ? ANSWERED : SILENT;
}

static int no_answer(const struct target *t)
{
	struct pollfd ended = { .fd = syscall(SYS_pidfd_open, t->pid, 0), .events = POLLIN };
	struct process now;

	/* Its sockets close a moment before it has ended. */
	if (ended.fd >= 0) {
		poll(&ended, 1, 1000);
		close(ended.fd);
	}
	if (process_read(&now, t->pid) == -ESRCH || now.ended)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) has ended", t->pid,
				t->process.name);
	return complain(EXIT_FAILED, t->sub, "process %d (%s) did not answer; look whether it is stopped, then try again",
			t->pid, t->process.name);
}

static int sleeps_already(const struct target *t)
{
	return complain(EXIT_FAILED, t->sub, "process %d (%s) sleeps already; 'hetmem wake %d' wakes it",
			t->pid, t->process.name, t->pid);
}

/* The process itself moves the memory that the spec serves. */
static int sleep_served(const struct target *t)
{
	struct hm_cuda_answer answer;
	const double start = now();

	if (ask(t, HM_CUDA_ASK_SLEEP, &answer))
		return no_answer(t);
	if (answer.err == -EALREADY)
		return sleeps_already(t);
	if (answer.err)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot sleep with --served: %s", t->pid,
				t->process.name, answer.text);
	printf("process %d (%s) sleeps: %llu bytes left the GPU, %llu bytes that it knows of stay, after %.1f s; 'hetmem wake %d' wakes it\n",
	       t->pid, t->process.name, (unsigned long long)answer.moved,
	       (unsigned long long)answer.stays, now() - start, t->pid);
	return EXIT_OK;
}

static int wake_served(const struct target *t)
{
	struct hm_cuda_answer answer;
	const double start = now();

	if (ask(t, HM_CUDA_ASK_WAKE, &answer))
		return no_answer(t);
	if (answer.err)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) cannot wake, and sleeps on: %s",
				t->pid, t->process.name, answer.text);
	printf("process %d (%s) is awake after %.1f s\n", t->pid, t->process.name,
	       now() - start);
	return EXIT_OK;
}

/* The exit status; -1: the driver has to do it. */
static int try_served(struct target *t, bool wake)
{
	struct hm_cuda_answer state = { 0 };
	const enum asked asked = ask(t, HM_CUDA_ASK_STATE, &state);

	t->silent = asked == SILENT;
	if (asked == ANSWERED && state.asleep)
		return wake ? wake_served(t) : sleeps_already(t);
	if (!t->served)
		return -1;
	if (asked == SILENT)
		return no_answer(t);
	if (asked == NO_SOCKET)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) has no memory of 'hetmem run --device'; leave out '--served'",
				t->pid, t->process.name);
	return sleep_served(t);
}

static int failed_for_good(const struct target *t)
{
	return complain(EXIT_FAILED, t->sub, "process %d (%s) has lost its GPU state: the driver says FAILED; end the process",
			t->pid, t->process.name);
}

static int go_to_sleep(const struct target *t)
{
	CUcheckpointLockArgs args = { .timeoutMs = 1000 * t->timeout_s };
	CUprocessState state = CU_PROCESS_STATE_RUNNING;
	const double start = now();
	CUresult res = t->driver.cuCheckpointProcessGetState(t->pid, &state);
	int status;

	if (res)
		return refused(t, "sleep", res);
	if (state == CU_PROCESS_STATE_CHECKPOINTED)
		return sleeps_already(t);
	if (state == CU_PROCESS_STATE_FAILED)
		return failed_for_good(t);
	/* A command that was killed can have left it locked. */
	if (state == CU_PROCESS_STATE_RUNNING)
		res = t->driver.cuCheckpointProcessLock(t->pid, &args);
	if (res)
		return refused(t, "be locked", res);
	res = t->driver.cuCheckpointProcessCheckpoint(t->pid, NULL);
	if (res) {
		status = refused(t, "sleep", res);
		/* It runs on, unless it was lost or has ended. */
		t->driver.cuCheckpointProcessUnlock(t->pid, NULL);
		return status;
	}
	printf("process %d (%s) sleeps: its GPU memory is in host memory, after %.1f s; 'hetmem wake %d' wakes it\n",
	       t->pid, t->process.name, now() - start, t->pid);
	return EXIT_OK;
}

static int wake_up(const struct target *t)
{
	CUprocessState state = CU_PROCESS_STATE_RUNNING;
	const double start = now();
	CUresult res = t->driver.cuCheckpointProcessGetState(t->pid, &state);

	if (res)
		return refused(t, "wake", res);
	if (state == CU_PROCESS_STATE_RUNNING && t->silent)
		return no_answer(t);
	if (state == CU_PROCESS_STATE_RUNNING)
		return complain(EXIT_FAILED, t->sub, "process %d (%s) does not sleep", t->pid,
				t->process.name);
	if (state == CU_PROCESS_STATE_FAILED)
		return failed_for_good(t);
	if (state == CU_PROCESS_STATE_CHECKPOINTED)
		res = t->driver.cuCheckpointProcessRestore(t->pid, NULL);
	if (!res)
		res = t->driver.cuCheckpointProcessUnlock(t->pid, NULL);
	if (res)
		return refused(t, "wake", res);
	printf("process %d (%s) is awake after %.1f s\n", t->pid, t->process.name,
	       now() - start);
	return EXIT_OK;
}

static int run(const char *sub, bool wake, int argc, char **argv)
{
	struct target t = { .sub = sub, .timeout_s = TIMEOUT_S };
	sigset_t ending;
	int status = parse(&t, argc, argv);

	if (status)
		return status < 0 ? help(wake) : status;
	status = check_process(&t);
	if (status)
		return status;
	status = try_served(&t, wake);
	if (status >= 0)
		return status;
	status = open_driver(&t);
	if (status)
		return status;
	sigemptyset(&ending);
	sigaddset(&ending, SIGINT);
	sigaddset(&ending, SIGTERM);
	sigaddset(&ending, SIGHUP);
	sigprocmask(SIG_BLOCK, &ending, NULL);
	status = wake ? wake_up(&t) : go_to_sleep(&t);
	fflush(stdout);
	sigprocmask(SIG_UNBLOCK, &ending, NULL);
	return status;
}

int cmd_sleep(int argc, char **argv)
{
	return run("sleep", false, argc, argv);
}

int cmd_wake(int argc, char **argv)
{
	return run("wake", true, argc, argv);
}
