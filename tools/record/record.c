/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem record: where the memory of a process is over time, to a file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "options.h"
#include "platform/platform.h"
#include "process.h"
#include "record.h"
#include "report.h"
#include "util.h"

#define FILE_NAME	"hetmem.record"
#define INTERVAL_MS	100
#define MAX_INTERVAL_MS	3600000
#define MAX_SECONDS	31536000
#define MAX		(64 << 20)
#define MIN_MAX		(64 << 10)
/* Seconds that a look may take, if the interval is not longer. */
#define BUDGET		0.5
/* ns that a process may take to exit. */
#define ENDING_NS	1000000000
/* ns between two reads of a process that is loading a program. */
#define LOADING_NS	2000000
/* ns between two looks into the buffers of tracepoints. */
#define EVENTS_NS	200000000

/* Seconds that a look may take beyond its budget, and after the recording should have ended. */
#define PATIENCE	5

/* As of shells. */
#define EXIT_SIGNAL	128

struct options {
	const char *path, *chrome;
	bool force;
	long interval_ms, seconds;
	uint64_t max;
	pid_t pid;
	char **command;
};

/**
 * struct recording - one that is under way
 * @chrome: the trace, which is written at the end
 * @pidfd: readable when the process has ended; -1: it is asked for by its PID
 * @process: as it was, so that another process with its PID is not taken for it
 * @child: @pid is ours to wait for
 * @end: of the recording, CLOCK_MONOTONIC in ns
 */
struct recording {
	const struct options *o;
	struct record_file file, chrome;
	struct record_taker *taker;
	struct record_trace *trace;
	pid_t pid;
	int pidfd, signals;
	bool child;
	uint64_t began, end, samples;
	struct process process;
};

static int help(void)
{
	printf("Usage: hetmem record [OPTION]... PID | [--] COMMAND [ARGUMENT]...\n"
	       "Records where the memory of a process is over time, for 'hetmem report'.\n\n"
	       "  --output FILE, -o    the recording (" FILE_NAME ")\n"
	       "  --chrome FILE        also a Chrome trace, for ui.perfetto.dev\n"
	       "  --force              replaces FILE, if it is a regular file of your own\n"
	       "  --interval MS        between two looks (%d)\n"
	       "  --for SECONDS        ends the recording (until the process ends)\n"
	       "  --max SIZE           of the file (64M). As it fills, looks become rarer\n\n"
	       "A COMMAND goes on when its recording ends, and its exit status is the result.\n"
	       "Ctrl-C ends both. Children are not recorded: name one by its PID.\n\n"
	       "Needs the rights of ptrace on the process. The module's events need root.\n",
	       INTERVAL_MS);
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct options *o, int argc, char **argv)
{
	long value;
	int c;

	while ((c = next_option("record", argc, argv)) != -1) {
		switch (c) {
		case 'o':
			o->path = optarg;
			break;
		case 'C':
			o->chrome = optarg;
			break;
		case 'f':
			o->force = true;
			break;
		case 'i':
			if (!parse_number(optarg, 1, MAX_INTERVAL_MS, &o->interval_ms))
				return usage_error("record", "'%s' is not a time from 1 to %d milliseconds",
						   optarg, MAX_INTERVAL_MS);
			break;
		case 's':
			if (!parse_number(optarg, 1, MAX_SECONDS, &o->seconds))
				return usage_error("record", "'%s' is not a time from 1 to %d seconds",
						   optarg, MAX_SECONDS);
			break;
		case 'm':
			if (!hm_parse_size(optarg, &o->max) || o->max < MIN_MAX ||
			    o->max > RECORD_MOST)
				return usage_error("record", "--max: '%s' is not a size from 64K to 1G",
						   optarg);
			break;
		case 'h':
			return -1;
		default:
			return option_error("record", c, argv);
		}
	}
	if (!*o->path || !strcmp(o->path, "-"))
		return usage_error("record", "a recording needs a file: give -o FILE");
	if (o->chrome && (!*o->chrome || !strcmp(o->chrome, "-")))
		return usage_error("record", "a trace needs a file: give --chrome FILE");
	if (optind == argc)
		return usage_error("record", "which process? Give a PID or a COMMAND");
	if (strcmp(argv[optind - 1], "--") && strspn(argv[optind], "0123456789") ==
	    strlen(argv[optind])) {
		if (!parse_number(argv[optind], 1, INT32_MAX, &value))
			return usage_error("record", "'%s' is not a PID", argv[optind]);
		if (optind + 1 < argc)
			return usage_error("record", "one PID at a time, '%s' is too many",
					   argv[optind + 1]);
		o->pid = value;
	} else {
		o->command = argv + optind;
	}
	return 0;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* The line for a process that cannot be looked at. */
static int refused(pid_t pid, int err)
{
	switch (err) {
	case -ESRCH:
		return complain(EXIT_FAILED, "record",
				"there is no process %d; type 'ps -e' for those there are", pid);
	case -ENODATA:
		return complain(EXIT_FAILED, "record",
				"process %d has no memory: it is a kernel thread, or has ended; give another PID",
				pid);
	case -EACCES:
	case -EPERM:
		return not_permitted("record", pid);
	case -ETIMEDOUT:
		return complain(EXIT_FAILED, "record",
				"process %d keeps its memory locked, so nobody can look at it; try again later",
				pid);
	default:
		return complain(EXIT_FAILED, "record", "process %d: %s", pid, strerror(-err));
	}
}

static int add_process(struct recording *r, enum record_process_what what)
{
	struct record_process p = { .what = what, .time = clock_ns(CLOCK_MONOTONIC) - r->began };

	memcpy(p.name, r->process.name, sizeof(p.name));
	return record_file_add(&r->file, RECORD_PROCESS, &p, sizeof(p), NULL, 0);
}

/* execve(2) changes the stack more than once: reads until it stays the same. */
static int read_process(const struct recording *r, struct process *p)
{
	const struct timespec pause = { 0, LOADING_NS };
	uint64_t stack = r->process.stack;
	int err, tries;

	for (tries = 0; tries < 4; tries++) {
		err = process_read(p, r->pid);
		if (err || p->stack == stack)
			break;
		stack = p->stack;
		nanosleep(&pause, NULL);
	}
	return err;
}

/* 0, an exit status, or -1: the process has ended. */
static int look_for_exec(struct recording *r)
{
	struct process now, *was = &r->process;
	const uint64_t stack = was->stack;
	const int err = read_process(r, &now);

	if (err == -ESRCH || (!err && (now.ended || now.started != was->started)))
		return -1;
	if (err)
		return refused(r->pid, err);
	if (!strcmp(now.name, was->name) && now.stack == stack)
		return 0;
	*was = now;
	/* 0: the program is being loaded. Its own name it can change itself. */
	if (!now.stack)
		was->stack = stack;
	if (!stack || !now.stack || now.stack == stack)
		return 0;
	record_taker_exec(r->taker);
	return add_process(r, RECORD_EXEC);
}

/* Starts the command. 0, or an exit status. It runs when this returns. */
static int start(struct recording *r, const sigset_t *before)
{
	int channel[2], err = 0;
	ssize_t n;

	if (pipe2(channel, O_CLOEXEC))
		return complain(EXIT_FAILED, "record", "cannot make a pipe: %s", strerror(errno));
	r->pid = fork();
	if (!r->pid) {
		sigprocmask(SIG_SETMASK, before, NULL);
		signal(SIGXFSZ, SIG_DFL);
		execvp(r->o->command[0], r->o->command);
		err = errno;
		if (write(channel[1], &err, sizeof(err)) < 0)
			_exit(EXIT_FAILED);
		_exit(EXIT_FAILED);
	}
	close(channel[1]);
	if (r->pid < 0) {
		close(channel[0]);
		return complain(EXIT_FAILED, "record", "cannot start a process: %s", strerror(errno));
	}
	r->child = true;
	do
		n = read(channel[0], &err, sizeof(err));
	while (n < 0 && errno == EINTR);
	close(channel[0]);
	if (n != sizeof(err))
		return 0;
	waitpid(r->pid, NULL, 0);
	r->child = false;
	if (err == ENOENT)
		return no_command("record", r->o->command[0]);
	return complain(EXIT_CANNOT_RUN, "record", "cannot run '%s': %s", r->o->command[0],
			strerror(err));
}

/* A terminal's signals reach the whole process group: does not send them to the command again. */
static void pass_on(const struct recording *r, const struct signalfd_siginfo *info)
{
	if (r->child && (info->ssi_code != SI_KERNEL || getpgid(r->pid) != getpgrp()))
		kill(r->pid, info->ssi_signo);
}

/*
 * Waits until the time @until (CLOCK_MONOTONIC in ns). Returns 0, or a reason to end. A signal
 * for a command is passed on, and ends the recording with it.
 */
static int wait_until(struct recording *r, uint64_t until)
{
	struct pollfd fds[] = { { .fd = r->signals, .events = POLLIN },
				{ .fd = r->pidfd, .events = POLLIN } };
	struct signalfd_siginfo info;
	uint64_t time = clock_ns(CLOCK_MONOTONIC);
	const uint64_t left = until > time ? until - time : 0;
	const struct timespec timeout = { left / 1000000000, left % 1000000000 };

	if (ppoll(fds, 2, &timeout, NULL) <= 0)
		return 0;
	if (fds[0].revents & POLLIN && read(r->signals, &info, sizeof(info)) == sizeof(info)) {
		pass_on(r, &info);
		return RECORD_STOPPED;
	}
	return fds[1].revents ? RECORD_EXITED : 0;
}

/*
 * Waits for a look. The process can block a look for ever, so a signal or the end of the
 * recording ends the wait. The signal stays pending for wait_until().
 */
static void wait_for_look(void *arg, const struct bounded *call)
{
	const struct recording *r = arg;
	struct pollfd fds[] = { { .fd = bounded_fd(call), .events = POLLIN },
				{ .fd = r->signals, .events = POLLIN } };
	uint64_t end = r->end, time;

	while ((time = clock_ns(CLOCK_MONOTONIC)) < end) {
		const uint64_t left = end - time;
		const struct timespec timeout = { left / 1000000000, left % 1000000000 };

		if (ppoll(fds, ARRAY_SIZE(fds), &timeout, NULL) < 0 && errno != EINTR)
			break;
		if (fds[0].revents)
			return;
		if (fds[1].revents)
			break;
	}
	/* A look that is not blocked returns soon. */
	bounded_wait(call, now() + PATIENCE);
}

/* Looks once. 0, an exit status, or -1 with *@reason. */
static int look_once(struct recording *r, double budget, int *reason)
{
	const uint64_t sequence = r->file.sequence;
	int err, status = look_for_exec(r);

	*reason = RECORD_EXITED;
	if (status)
		return status;
	status = record_take(&r->taker, &r->file, clock_ns(CLOCK_MONOTONIC) - r->began, budget,
			     wait_for_look, r, &err);
	if (status)
		return status;
	r->samples += r->file.sequence != sequence;
	switch (err) {
	case -EACCES:
	case -EPERM:
		/* A process that exits refuses looks, too. */
		*reason = wait_until(r, clock_ns(CLOCK_MONOTONIC) + ENDING_NS);
		if (!*reason)
			*reason = RECORD_DENIED;
		return -1;
	case -ETIMEDOUT:
		*reason = wait_until(r, 0);
		if (!*reason)
			*reason = RECORD_TIME;
		return -1;
	case -ESRCH:
		/* It may be that only its program has changed. */
		return look_for_exec(r);
	case -EMFILE:
	case -ENFILE:
		return refused(r->pid, err);
	default:
		return 0;
	}
}

/* Until the recording ends. 0 or an exit status; *@reason. */
static int loop(struct recording *r, int *reason)
{
	const uint64_t end = r->end;
	uint64_t next, events, time = 0;
	int status;

	for (;;) {
		const uint64_t start = clock_ns(CLOCK_MONOTONIC);
		const double interval = r->file.interval_ms / 1000.0;

		status = look_once(r, interval > BUDGET ? interval : BUDGET, reason);
		if (status)
			return status < 0 ? 0 : status;
		time = clock_ns(CLOCK_MONOTONIC);
		next = start + r->file.interval_ms * 1000000ULL;
		/* The process has as much time as the looks at it take. */
		if (next < 2 * time - start)
			next = 2 * time - start;
		for (*reason = 0; !*reason && time < next && time < end;
		     time = clock_ns(CLOCK_MONOTONIC)) {
			events = time + EVENTS_NS;
			if (events > next)
				events = next;
			*reason = wait_until(r, events < end ? events : end);
			status = record_trace_read(r->trace, &r->file);
			if (status)
				return status;
			if (r->pidfd < 0 && !*reason)
				status = look_for_exec(r);
			if (status > 0)
				return status;
			if (status)
				*reason = RECORD_EXITED;
		}
		if (!*reason && time >= end)
			*reason = RECORD_TIME;
		if (*reason)
			return 0;
	}
}

/* The command's own status, as a shell has it. Signals still go to the command. */
static int wait_for_command(struct recording *r)
{
	int status;
	pid_t ended;

	/* Without a pidfd, only waitpid() reports the end. */
	while (!(ended = waitpid(r->pid, &status, WNOHANG)))
		wait_until(r, clock_ns(CLOCK_MONOTONIC) + EVENTS_NS);
	if (ended < 0)
		return EXIT_FAILED;
	return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static int end(struct recording *r, int reason)
{
	struct record_end e = {
		.time = clock_ns(CLOCK_MONOTONIC) - r->began, .reason = reason,
	};
	int status = record_trace_read(r->trace, &r->file);

	e.skipped = r->file.skipped;
	e.dropped = r->file.dropped;
	return status ? status : record_file_add(&r->file, RECORD_END, &e, sizeof(e), NULL, 0);
}

/* On a terminal, or where the file did not suffice: scripts see nothing else. */
static void tell(const struct recording *r)
{
	const bool full = r->file.skipped || r->file.interval_ms != r->o->interval_ms;
	char *path = xescape(r->o->path);

	if (full || isatty(STDERR_FILENO))
		fprintf(stderr, "hetmem record: %" PRIu64 " looks at process %d, %s in '%s'; type 'hetmem report %s'\n",
			r->samples, r->pid, size_text(r->file.used), path, path);
	if (full)
		fprintf(stderr, "hetmem record: the file fills: the interval grew to %u ms, %" PRIu64 " looks found no room; give a larger --max\n",
			r->file.interval_ms, r->file.skipped);
	free(path);
}

/* The process is known by now, and may be looked at. */
static int record(struct recording *r)
{
	struct record_header header = {
		.magic = RECORD_MAGIC, .version = RECORD_VERSION, .size = sizeof(header),
		.page_size = sysconf(_SC_PAGESIZE), .pid = r->pid,
		.realtime = clock_ns(CLOCK_REALTIME), .max = r->o->max,
		.interval_ms = r->o->interval_ms,
	};
	const char *why;
	int reason, status, err;

	header.crc = record_crc(0, &header, offsetof(struct record_header, crc));
	r->pidfd = syscall(SYS_pidfd_open, r->pid, 0);
	r->began = clock_ns(CLOCK_MONOTONIC);
	r->end = r->o->seconds ? r->began + r->o->seconds * 1000000000ULL : UINT64_MAX;
	err = process_read(&r->process, r->pid);
	if (err && err != -ESRCH)
		return refused(r->pid, err);
	status = record_file_begin(&r->file, &header);
	if (!status)
		status = add_process(r, RECORD_BEGAN);
	if (status)
		return status;
	r->trace = record_trace_open(r->pid, r->began, &why);
	if (why)
		fprintf(stderr, "hetmem record: %s\n", why);
	status = loop(r, &reason);
	if (!status)
		status = end(r, reason);
	if (!status)
		tell(r);
	return status;
}

/* The trace of a recording that has ended. 0, or an exit status. */
static int write_chrome(struct recording *r)
{
	int status = record_file_replace(&r->chrome), fd, err = 0;
	struct reader reader;
	FILE *f;

	if (!status)
		status = reader_open(&reader, "record", r->o->path);
	if (status)
		return status;
	fd = dup(r->chrome.fd);
	f = fd < 0 ? NULL : fdopen(fd, "w");
	if (f) {
		/* A process that ended before the first look has no trace. */
		if (report_chrome(f, &reader))
			status = EXIT_FAILED;
		if (fflush(f) || ferror(f))
			err = errno;
		fclose(f);
	} else {
		err = errno;
		if (fd >= 0)
			close(fd);
	}
	reader_close(&reader);
	if (!status && err)
		status = complain(EXIT_FAILED, "record", "cannot write '%s': %s; type 'hetmem report --chrome FILE' for the trace",
				  r->o->chrome, strerror(err));
	return status;
}

static void wait_briefly(void *arg, const struct bounded *call)
{
	(void)arg;
	bounded_wait(call, now() + PATIENCE);
}

/* 0, or an exit status: whether the process may be looked at. */
static int check_process(pid_t pid)
{
	struct record_file none = { .fd = -1 };
	struct record_taker *taker = record_taker_new(pid);
	int err, status;

	/* With no file, no frame has room. */
	status = record_take(&taker, &none, 0, 0, wait_briefly, NULL, &err);
	record_taker_free(taker);
	return status || !err ? status : refused(pid, err);
}

int cmd_record(int argc, char **argv)
{
	struct options o = { .path = FILE_NAME, .interval_ms = INTERVAL_MS, .max = MAX };
	struct recording r = {
		.o = &o, .pidfd = -1, .file = { .fd = -1 }, .chrome = { .fd = -1 },
	};
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction action;
	sigset_t stops, before;
	int status = parse(&o, argc, argv), result;
	size_t i;

	if (status)
		return status < 0 ? help() : status;
	r.pid = o.pid;
	if (o.pid)
		status = check_process(o.pid);
	if (!status)
		status = record_file_open(&r.file, "-o", o.path, o.force, o.max);
	if (!status && o.chrome)
		status = record_file_open(&r.chrome, "--chrome", o.chrome, o.force, UINT64_MAX);
	if (status) {
		record_file_close(&r.file, false);
		return status;
	}
	sigemptyset(&stops);
	/* Signals that nohup or a shell's & ignored stay ignored. */
	for (i = 0; i < ARRAY_SIZE(signals); i++)
		if (!sigaction(signals[i], NULL, &action) && action.sa_handler != SIG_IGN)
			sigaddset(&stops, signals[i]);
	sigprocmask(SIG_BLOCK, &stops, &before);
	/* A limit of the file's size is then an error of write(). */
	signal(SIGXFSZ, SIG_IGN);
	r.signals = signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
	/* Without it no signal but SIGKILL could end the recording. */
	if (r.signals < 0)
		status = complain(EXIT_FAILED, "record", "cannot wait for signals: %s", strerror(errno));
	else if (o.command)
		status = start(&r, &before);
	if (status) {
		record_file_close(&r.file, false);
		record_file_close(&r.chrome, false);
		if (r.signals >= 0)
			close(r.signals);
		return status;
	}
	r.taker = record_taker_new(r.pid);
	status = record(&r);
	if (!status && o.chrome)
		status = write_chrome(&r);
	record_file_close(&r.file, r.file.used);
	record_file_close(&r.chrome, !status);
	record_taker_free(r.taker);
	record_trace_close(r.trace);
	if (r.child) {
		result = wait_for_command(&r);
		status = status ? status : result;
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (r.pidfd >= 0)
		close(r.pidfd);
	close(r.signals);
	return status;
}
