// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The first process of the virtual machine: mounts, runs /vm/setup, then the command
 * of /vm/argv, and reports its exit status to the host.
 *
 * The kernel's console is ttyS0; the command's output goes through the debug port 0xe8,
 * or, if the host has a terminal, through ttyS1, which is the command's alone. The status goes out as text through the debug port 0xe9, because the
 * exit port 0xf4 carries seven bits only; before it a line says that this process runs.
 * A host that sees no status knows that the kernel died.
 *
 * The guest's clock is compared with the host's before the command and after it. If it
 * deviates, a line "clock WHEN GUEST HOST", in microseconds, precedes the status, and no
 * command is started.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "tell.h"
#include "timer.h"

#define OUTPUT_PORT	0xe8
#define EXIT_PORT	0xf4
#define MAX_WORDS	4096

static const struct {
	const char *type, *dir, *options;
	mode_t mode;
} mounts[] = {
	{ "devtmpfs", "/dev", NULL, 0755 },
	{ "proc", "/proc", NULL, 0755 },
	{ "sysfs", "/sys", NULL, 0755 },
	{ "tmpfs", "/tmp", "mode=1777", 0755 },
	{ "tmpfs", "/dev/shm", "mode=1777", 0755 },
	{ "devpts", "/dev/pts", NULL, 0755 },
	{ "debugfs", "/sys/kernel/debug", NULL, 0 },
	{ "tracefs", "/sys/kernel/tracing", NULL, 0 },
	{ "cgroup2", "/sys/fs/cgroup", NULL, 0 },
	{ "hugetlbfs", "/dev/hugepages", NULL, 0755 },
};

/* Bytes passed on from the command's pipe: the host counts what arrives. */
static unsigned long passed_on;

/* From here on what happens is ours: before, it is the kernel's booting. */
static void tell_start(void)
{
	tell("started\n");
}

static void leave(int status) __attribute__((noreturn));

static struct look first_look;

/* Tells the host if the clock deviated since the first look. */
static bool clock_is_right(const char *when)
{
	struct look look;
	char text[96];

	if (take_look(&look) && clocks_agree(&first_look, &look))
		return true;
	snprintf(text, sizeof(text), "clock %s %lld %lld\n", when,
		 (long long)(look.guest_us - first_look.guest_us),
		 (long long)host_us(&first_look, &look));
	tell(text);
	return false;
}

/*
 * A tenth of a second of the host shows how the clock runs. This waits for what is left of
 * it: what the clock itself says is not to be trusted yet.
 */
static void check_clock(void)
{
	struct look look;

	do {
		/* time: the pace of looks */
		usleep(5000);
		if (!take_look(&look))
			leave(125);
	} while (host_us(&first_look, &look) < 100000);
	if (!clock_is_right("boot"))
		leave(125);
}

static void leave(int status)
{
	char text[48];

	tcdrain(STDOUT_FILENO);
	snprintf(text, sizeof(text), "%d %lu\n", status, passed_on);
	tell(text);
	if (!ioperm(EXIT_PORT, 1, 1))
		outb(0, EXIT_PORT);
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

/* Not every kernel has each of them: what is missing the command will notice. */
static void mount_all(void)
{
	size_t i;

	for (i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		if (mounts[i].mode)
			mkdir(mounts[i].dir, mounts[i].mode);
		mount(mounts[i].type, mounts[i].dir, mounts[i].type, 0,
		      mounts[i].options);
	}
	symlink("/proc/self/fd", "/dev/fd");
	symlink("/proc/self/fd/0", "/dev/stdin");
	symlink("/proc/self/fd/1", "/dev/stdout");
	symlink("/proc/self/fd/2", "/dev/stderr");
}

/* Opens ttyS1 as descriptors 1 and 2: raw, so that no CR is added. */
static void open_tty(void)
{
	struct termios t;
	int fd, null;

	null = open("/dev/null", O_RDONLY);
	dup2(null, STDIN_FILENO);
	fd = open("/dev/ttyS1", O_RDWR | O_NOCTTY);
	if (fd < 0)
		leave(125);
	if (!tcgetattr(fd, &t)) {
		cfmakeraw(&t);
		t.c_cflag |= CLOCAL;
		t.c_cflag &= ~(CRTSCTS | HUPCL);
		cfsetspeed(&t, B115200);
		tcsetattr(fd, TCSANOW, &t);
	}
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
	if (null > STDERR_FILENO)
		close(null);
}

/* Splits a file of NUL-terminated words; the array ends with NULL. */
static char **read_words(const char *path)
{
	static char *none[1];
	char **words, *buf, *p;
	struct stat st;
	ssize_t len;
	int fd, n = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return none;
	buf = malloc(st.st_size + 1);
	words = calloc(MAX_WORDS, sizeof(*words));
	if (!buf || !words)
		leave(125);
	len = read(fd, buf, st.st_size);
	close(fd);
	if (len < 0)
		len = 0;
	buf[len] = '\0';
	for (p = buf; p < buf + len && n < MAX_WORDS - 1; p += strlen(p) + 1)
		words[n++] = p;
	return words;
}

/*
 * The end of a session leader hangs its terminal up, for us as well: only the last
 * command may have it.
 */
static pid_t start(char **argv, int out, int terminal)
{
	pid_t pid;

	pid = fork();
	if (pid)
		return pid;
	/*
	 * No controlling terminal: at its leader's end the tty would be hung up, and
	 * what is still on its way be lost.
	 */
	setsid();
	if (out >= 0) {
		dup2(out, STDOUT_FILENO);
		dup2(out, STDERR_FILENO);
		close(out);
	} else if (terminal) {
		ioctl(STDOUT_FILENO, TIOCSCTTY, 0);
	}
	execvp(argv[0], argv);
	dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

/*
 * Through a port that qemu reads byte by byte and waits for: a serial line drops what
 * the host is not ready for.
 */
static void write_all(const char *buf, ssize_t len)
{
	if (len <= 0)
		return;
	passed_on += len;
	outsb(OUTPUT_PORT, buf, len);
}

/*
 * Runs a command to its end, passing on what comes from @in, and reaps orphans. The
 * end of the command counts, not the end of the pipe: a process that it left behind
 * may hold that open.
 */
static int run(char **argv, int in, int out, int terminal)
{
	struct pollfd pfd = { .fd = in, .events = POLLIN };
	static char buf[65536];
	int status = 0, s;
	pid_t pid, child;
	ssize_t n;

	child = start(argv, out, terminal);
	if (child < 0)
		return 125;
	if (out >= 0)
		close(out);
	for (;;) {
		if (in < 0) {
			pid = waitpid(-1, &s, 0);
		} else {
			n = 0;
			if (poll(&pfd, 1, 10) > 0 && (pfd.revents & POLLIN))
				n = read(in, buf, sizeof(buf));
			write_all(buf, n);
			if (n > 0)
				continue;
			if (pfd.revents & POLLHUP)
				in = -1;
			pid = child ? waitpid(-1, &s, WNOHANG) : -1;
		}
		if (pid == child && child) {
			status = s;
			child = 0;
			if (in < 0)
				break;
		} else if (!child) {
			break;
		}
	}
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status)
				   : WEXITSTATUS(status);
}

/* Output goes into a pipe to us, or to the terminal. */
static int run_command(char **argv, int terminal, int last)
{
	int fds[2] = { -1, -1 };

	if (!terminal && pipe2(fds, O_CLOEXEC))
		leave(125);
	return run(argv, fds[0], fds[1], terminal && last);
}

int main(void)
{
	char *setup[] = { "/bin/sh", "/vm/setup", NULL };
	int terminal, status;
	struct winsize ws = { 0 };
	char **argv, **env;

	tell_start();
	if (!take_look(&first_look))
		leave(125);
	mount_all();
	open_tty();
	check_clock();

	env = read_words("/vm/env");
	for (; *env; env++)
		putenv(*env);
	/* No terminal on the host: the command shall see none either. */
	terminal = !!access("/vm/pipe", F_OK);
	if (!terminal && ioperm(OUTPUT_PORT, 1, 1))
		leave(125);
	if (!access("/vm/setup", F_OK) && run_command(setup, terminal, 0))
		leave(125);

	argv = read_words("/vm/argv");
	if (!argv[0])
		leave(125);
	if (getenv("COLUMNS") && getenv("LINES")) {
		ws.ws_col = atoi(getenv("COLUMNS"));
		ws.ws_row = atoi(getenv("LINES"));
		ioctl(STDOUT_FILENO, TIOCSWINSZ, &ws);
	}
	if (chdir("/tmp"))
		leave(125);
	status = run_command(argv, terminal, 1);
	leave(clock_is_right("end") ? status : 125);
}
