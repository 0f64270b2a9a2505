// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Runs the tests of kselftest harness programs one at a time and reads the kernel's
 * log after each: a test passes only if the kernel had nothing to complain about.
 * With kmemleak, all of them together must not leak kernel memory either; if they do,
 * the one that does is looked for. Prints TAP 13.
 *
 * A skipped test fails, unless it was named as one that may be skipped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "children.h"
#include "clock.h"
#include "klog.h"
#include "tell.h"

#define KMEMLEAK	"/sys/kernel/debug/kmemleak"
#define MAX_NAMES	256
#define MAX_TESTS	4096
#define NAME_SIZE	256
#define OUT_SIZE	(1 << 16)
/* kmemleak ignores objects younger than 5 s. */
#define LEAK_AGE_MS	6500

enum result { PASS, FAIL, SKIP };

static struct {
	int limit;
	bool verbose, leaks, whole;
	char *may_skip[MAX_NAMES];
	int n_may_skip;
} opt = { .limit = 60 };

static char output[OUT_SIZE];
static size_t output_len;
static unsigned int count, failed, skipped;

static void die(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(2);
}

static void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	/* time: the pace of looks at its clock */
	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* If the guest dies now, the host can name the test that ran. */
static void tell_test(const char *program, const char *test)
{
	char text[2 * NAME_SIZE];

	if (!host_clock)
		return;
	snprintf(text, sizeof(text), "test %s%s%s\n", program, *test ? ": " : "", test);
	tell(text);
}

/* Prints lines as TAP diagnostics. */
static void diagnose(const char *text)
{
	const char *end;

	for (; *text; text = *end ? end + 1 : end) {
		end = strchrnul(text, '\n');
		if (end > text)
			printf("# %.*s\n", (int)(end - text), text);
	}
}

static void report(enum result r, const char *program, const char *test,
		   const char *note)
{
	count++;
	failed += r == FAIL;
	skipped += r == SKIP;
	printf("%sok %u - %s: %s%s%s\n", r == FAIL ? "not " : "", count, program,
	       test, r == SKIP ? " # SKIP " : *note ? " # " : "", note);
	fflush(stdout);
}

/*
 * Runs @argv for at most @limit seconds of clock_ms(); its output goes to output[].
 * Returns the status of waitpid(), or -1 when time was up.
 */
static int run(char **argv, int limit)
{
	long end = clock_ms() + limit * 1000L, left;
	bool done = false, late = false;
	struct pollfd pfd;
	int fds[2], status = 0;
	char drop[4096];
	pid_t pid;
	ssize_t n;

	output_len = 0;
	output[0] = '\0';
	if (pipe2(fds, O_CLOEXEC))
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		dup2(fds[1], STDOUT_FILENO);
		dup2(fds[1], STDERR_FILENO);
		execv(argv[0], argv);
		dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
		_exit(127);
	}
	close(fds[1]);
	pfd = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	for (;;) {
		left = end - clock_ms();
		if (left <= 0 && !late && !done) {
			late = true;
			kill(pid, SIGKILL);
		}
		n = 0;
		if (poll(&pfd, 1, done ? 0 : 20) > 0) {
			if (output_len < sizeof(output) - 1)
				n = read(fds[0], output + output_len,
					 sizeof(output) - 1 - output_len);
			else
				n = -read(fds[0], drop, sizeof(drop));
			if (n > 0)
				output_len += n;
		}
		if (done && n == 0)
			break;
		if (!done && waitpid(pid, &status, WNOHANG) == pid) {
			done = true;
			kill_children();
		}
		/* End of file before the end: do not spin. */
		if (!done && n == 0 && (pfd.revents & POLLHUP))
			sleep_ms(1);
	}
	close(fds[0]);
	output[output_len] = '\0';
	return late ? -1 : status;
}

/*
 * What the harness says of the one test: the line "ok 1 NAME" or "not ok 1 NAME", with
 * "# SKIP reason" behind it. No such line: nothing was run, or it died.
 */
static enum result result_of(int status, char *note, size_t size)
{
	const char *line, *end, *skip;

	note[0] = '\0';
	if (status == -1) {
		snprintf(note, size, "no end after %d s", opt.limit);
		return FAIL;
	}
	if (WIFSIGNALED(status)) {
		snprintf(note, size, "killed by signal %d", WTERMSIG(status));
		return FAIL;
	}
	for (line = output; *line; line = *end ? end + 1 : end) {
		end = strchrnul(line, '\n');
		if (strncmp(line, "ok 1 ", 5))
			continue;
		skip = memmem(line, end - line, "# SKIP", 6);
		if (skip) {
			skip += 6 + strspn(skip + 6, " ");
			snprintf(note, size, "%.*s", (int)(end - skip), skip);
			return SKIP;
		}
		if (!WEXITSTATUS(status))
			return PASS;
	}
	snprintf(note, size, "exit status %d", WEXITSTATUS(status));
	return FAIL;
}

static bool may_skip(const char *program, const char *test)
{
	char name[2 * NAME_SIZE];
	int i;

	snprintf(name, sizeof(name), "%s: %s", program, test);
	for (i = 0; i < opt.n_may_skip; i++)
		if (!fnmatch(opt.may_skip[i], name, 0))
			return true;
	return false;
}

static void run_test(char *path, const char *program, char *test)
{
	char *argv[] = { path, "-r", test, NULL };
	char note[NAME_SIZE];
	const char *line;
	enum result r;

	tell_test(program, test);
	r = result_of(run(argv, opt.limit), note, sizeof(note));
	if (r == SKIP && !may_skip(program, test)) {
		r = FAIL;
		memmove(note + 9, note, sizeof(note) - 9);
		memcpy(note, "skipped: ", 9);
		note[sizeof(note) - 1] = '\0';
	}
	line = read_log();
	if (line) {
		r = FAIL;
		snprintf(note, sizeof(note), "the kernel complained");
	}
	report(r, program, test, note);
	if (r == FAIL || opt.verbose)
		diagnose(output);
	if (line)
		diagnose(line);
	else if (r == FAIL)
		diagnose(klog_len ? klog : "");
	fflush(stdout);
}

/*
 * The first complaint of many kinds turns lockdep off, and what comes later is not
 * checked. That must not happen unseen.
 */
static void check_lockdep(void)
{
	char line[256];
	int on = -1;
	FILE *f = fopen("/proc/lockdep_stats", "r");

	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		sscanf(line, " debug_locks: %d", &on);
	fclose(f);
	report(on == 1 ? PASS : FAIL, "kernel", "lockdep is still on", "");
}

static void leak_command(const char *command)
{
	int fd = open(KMEMLEAK, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, command, strlen(command)) < 0)
		die("kmemleak");
	close(fd);
}

/* Forgets the leaks known so far. */
static void leaks_clear(void)
{
	leak_command("scan");
	leak_command("clear");
}

/* Two scans: an object must be seen unreferenced twice. Fills output[]. */
static bool leaks_seen(void)
{
	ssize_t n;
	int fd;

	sleep_ms(LEAK_AGE_MS);
	leak_command("scan");
	leak_command("scan");
	/* Its line of the log ("new suspected") is what is being reported here. */
	fd = open(KMEMLEAK, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("kmemleak");
	output_len = 0;
	while (output_len < sizeof(output) - 1 &&
	       (n = read(fd, output + output_len,
			 sizeof(output) - 1 - output_len)) > 0)
		output_len += n;
	output[output_len] = '\0';
	close(fd);
	read_log();
	return strstr(output, "unreferenced object");
}

/* Takes a column of the list: padded to @width, one space behind. */
static char *column(char **line, size_t width, char *name)
{
	size_t len = strcspn(*line, " "), total = strlen(*line);

	snprintf(name, NAME_SIZE, "%.*s", (int)len, *line);
	width = len > width ? len : width;
	*line += width + 1 < total ? width + 1 : total;
	return name;
}

/*
 * Lists a program's tests. The harness prints a table of fixtures in which a row holds
 * the i-th variant and the i-th test, which have nothing else to do with each other.
 */
static int list_tests(char *path, char (*tests)[NAME_SIZE], int max)
{
	static char fixture[NAME_SIZE], variants[MAX_NAMES][NAME_SIZE],
		    names[MAX_NAMES][NAME_SIZE];
	char *argv[] = { path, "-l", NULL };
	char word[NAME_SIZE], *line, *next;
	int nv = 0, nt = 0, n = 0, v, t;

	fixture[0] = '\0';
	run(argv, opt.limit);
	for (line = output; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (line[0] && strncmp(line, "---", 3)) {
			if (line[0] == '#')
				continue;
			if (column(&line, 20, word)[0])
				strcpy(fixture, word);
			if (column(&line, 25, word)[0] && nv < MAX_NAMES)
				strcpy(variants[nv++], word);
			if (line[0] && nt < MAX_NAMES)
				snprintf(names[nt++], NAME_SIZE, "%s", line);
			if (next && *next)
				continue;
		}
		for (v = 0; v < (nv ? nv : 1); v++)
			for (t = 0; t < nt && n < max; t++)
				snprintf(tests[n++], NAME_SIZE, "%.80s%s%.80s.%.90s",
					 fixture, nv ? "." : "",
					 nv ? variants[v] : "", names[t]);
		nv = 0;
		nt = 0;
	}
	return n;
}

static void run_program(char *path)
{
	static char tests[MAX_TESTS][NAME_SIZE];
	const char *program = strrchr(path, '/');
	int i, n;

	program = program ? program + 1 : path;
	n = list_tests(path, tests, MAX_TESTS);
	if (!n) {
		report(FAIL, program, "list of tests", "empty");
		diagnose(output);
		return;
	}
	for (i = 0; i < n; i++)
		run_test(path, program, tests[i]);
}

/* Names or patterns, one a line, '#' begins a comment. */
static void read_may_skip(const char *path)
{
	char line[NAME_SIZE], *p;
	FILE *f = fopen(path, "r");

	if (!f)
		die(path);
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "#\n")] = '\0';
		for (p = line + strlen(line); p > line && p[-1] == ' '; )
			*--p = '\0';
		if (line[0] && opt.n_may_skip < MAX_NAMES)
			opt.may_skip[opt.n_may_skip++] = strdup(line);
	}
	fclose(f);
}

/* One line of a program's TAP: "ok 12 - name # SKIP reason". */
static void pass_on(const char *program, const char *line, size_t len)
{
	char text[NAME_SIZE], *name, *note;
	enum result r = strncmp(line, "ok", 2) ? FAIL : PASS;

	snprintf(text, sizeof(text), "%.*s", (int)len, line);
	name = text + (r == PASS ? 2 : 6);
	name += strspn(name, " 0123456789");
	name += strspn(name, "- ");
	note = strstr(name, " # ");
	if (note) {
		*note = '\0';
		note += 3;
		if (r == PASS && !strncasecmp(note, "skip", 4)) {
			r = may_skip(program, name) ? SKIP : FAIL;
			note += 4 + strspn(note + 4, " ");
		}
	}
	report(r, program, name, note ? note : "");
}

/*
 * A program that writes TAP itself runs as a whole; the kernel's log is read once.
 */
static void run_whole(char *path)
{
	char *argv[] = { path, NULL }, note[NAME_SIZE] = "";
	unsigned int plan = 0, seen = count, bad_before = failed;
	const char *program, *line, *end;
	int status;

	program = strrchr(path, '/');
	program = program ? program + 1 : path;
	tell_test(program, "");
	status = run(argv, opt.limit);
	for (line = output; *line; line = *end ? end + 1 : end) {
		end = strchrnul(line, '\n');
		if (!strncmp(line, "ok", 2) || !strncmp(line, "not ok", 6))
			pass_on(program, line, end - line);
		else if (!strncmp(line, "1..", 3))
			plan = atoi(line + 3);
	}
	seen = count - seen;
	if (status == -1)
		snprintf(note, sizeof(note), "no end after %d s", opt.limit);
	else if (WIFSIGNALED(status))
		snprintf(note, sizeof(note), "killed by signal %d", WTERMSIG(status));
	else if (!plan || seen != plan)
		snprintf(note, sizeof(note), "planned %u, seen %u", plan, seen);
	else if (WEXITSTATUS(status) && failed == bad_before)
		snprintf(note, sizeof(note), "exit status %d", WEXITSTATUS(status));
	report(*note ? FAIL : PASS, program, "ran to its end", note);
	if (failed != bad_before || opt.verbose)
		diagnose(output);

	line = read_log();
	report(line ? FAIL : PASS, program, "kernel log", "");
	if (line)
		diagnose(klog);
}

/*
 * Whether @n tests of a program leak, or, if @n is 0, the program as a whole. Something
 * runs behind them: a stale pointer on some stack would hide what leaked last.
 */
static bool leak_again(char *path, char (*tests)[NAME_SIZE], int n)
{
	char *argv[] = { path, n ? "-r" : NULL, NULL, NULL };
	char *list[] = { path, "-l", NULL };
	int i;

	leaks_clear();
	for (i = 0; i < (n ? n : 1); i++) {
		argv[2] = n ? tests[i] : NULL;
		run(argv, opt.limit);
	}
	for (i = 0; i < 4; i++)
		run(list, opt.limit);
	return leaks_seen();
}

/*
 * To look for leaks takes many seconds: it is done once, for all programs, and only if
 * there are any for each program, and for each test of one that leaks.
 */
static void check_leaks(char **paths)
{
	static char tests[MAX_TESTS][NAME_SIZE];
	char name[NAME_SIZE];
	const char *program;
	bool leaked;
	int i, n;

	tell_test("kernel", "kmemleak");
	leaked = leaks_seen();
	report(leaked ? FAIL : PASS, "kernel", "kmemleak", "");
	if (!leaked)
		return;
	diagnose(output);
	for (; *paths; paths++) {
		program = strrchr(*paths, '/');
		program = program ? program + 1 : *paths;
		n = opt.whole ? 0 : list_tests(*paths, tests, MAX_TESTS);
		if (!leak_again(*paths, tests, n))
			continue;
		report(FAIL, program, "leaks", "");
		diagnose(output);
		for (i = 0; i < n; i++) {
			if (!leak_again(*paths, tests + i, 1))
				continue;
			snprintf(name, sizeof(name), "%.240s leaks", tests[i]);
			report(FAIL, program, name, "");
		}
	}
}

/* Where the time of a run went. */
static void run_timed(char *path)
{
	long begin = clock_ms();

	if (opt.whole)
		run_whole(path);
	else
		run_program(path);
	printf("# %s: %.1f s\n", path, (clock_ms() - begin) / 1000.);
}

static void usage(FILE *f)
{
	fputs("usage: ktest [options] PROGRAM...\n"
	      "  -p           the programs write TAP themselves and run as a whole\n"
	      "  -t SECONDS   limit of one test, of time that the machine had (default 60)\n"
	      "  -s PATTERN   tests that may be skipped, \"program: fixture.test\"\n"
	      "  -S FILE      the same, a pattern a line\n"
	      "  -n           does not look for leaks\n"
	      "  -v           prints the output of tests that pass too\n", f);
}

int main(int argc, char **argv)
{
	const char *line;
	int c, i;

	opt.leaks = !access(KMEMLEAK, W_OK);
	while ((c = getopt(argc, argv, "pt:s:S:nvh")) != -1) {
		switch (c) {
		case 'p':
			opt.whole = true;
			break;
		case 't':
			opt.limit = atoi(optarg);
			break;
		case 's':
			if (opt.n_may_skip < MAX_NAMES)
				opt.may_skip[opt.n_may_skip++] = optarg;
			break;
		case 'S':
			read_may_skip(optarg);
			break;
		case 'n':
			opt.leaks = false;
			break;
		case 'v':
			opt.verbose = true;
			break;
		default:
			usage(c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	if (optind == argc || opt.limit <= 0) {
		usage(stderr);
		return 2;
	}
	if (adopt_children())
		die("subreaper");
	if (open_log())
		die("/dev/kmsg");
	open_clock();

	puts("TAP version 13");
	line = read_log();
	report(line ? FAIL : PASS, "kernel", "log is clean before the tests", "");
	if (line)
		diagnose(line);
	report(host_clock ? PASS : FAIL, "kernel", "the host's clock is there", "");
	if (opt.leaks)
		leaks_clear();
	read_log();
	for (i = optind; i < argc; i++)
		run_timed(argv[i]);
	if (opt.leaks)
		check_leaks(argv + optind);
	check_lockdep();
	printf("1..%u\n# %u passed, %u failed, %u skipped\n", count,
	       count - failed - skipped, failed, skipped);
	return failed ? 1 : 0;
}
