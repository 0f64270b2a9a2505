/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the subcommands share but tables: see util.h. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/core.h"
#include "util.h"

#define LINE_MAX_LEN	1024

char *escape(char *dst, size_t len, const char *src)
{
	size_t n = 0;

	for (; *src; src++) {
		unsigned char c = *src;

		if (c >= 0x20 && c < 0x7f) {
			if (n + 1 >= len)
				break;
			dst[n++] = c;
		} else {
			if (n + 4 >= len)
				break;
			snprintf(dst + n, 5, "\\x%02x", c);
			n += 4;
		}
	}
	dst[n] = '\0';
	return dst;
}

static void vcomplain(const char *sub, const char *tail, const char *fmt,
		      va_list ap)
{
	char raw[LINE_MAX_LEN], line[4 * LINE_MAX_LEN];

	vsnprintf(raw, sizeof(raw), fmt, ap);
	fflush(stdout);
	fprintf(stderr, "hetmem%s%s: %s%s\n", sub ? " " : "", sub ? sub : "",
		escape(line, sizeof(line), raw), tail);
}

int complain(int status, const char *sub, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vcomplain(sub, "", fmt, ap);
	va_end(ap);
	return status;
}

int usage_error(const char *sub, const char *fmt, ...)
{
	char tail[64];
	va_list ap;

	snprintf(tail, sizeof(tail), "; type 'hetmem %s%s--help'",
		 sub ? sub : "", sub ? " " : "");
	va_start(ap, fmt);
	vcomplain(sub, tail, fmt, ap);
	va_end(ap);
	return EXIT_USAGE;
}

int not_permitted(const char *sub, pid_t pid)
{
	if (geteuid())
		return complain(EXIT_FAILED, sub,
				"not permitted to look at process %d; type 'sudo hetmem %s %d'",
				pid, sub, pid);
	/* In a container root may lack the rights of ptrace. */
	return complain(EXIT_FAILED, sub,
			"not permitted to look at process %d, even as root: give the container CAP_SYS_PTRACE, or type this on the host",
			pid);
}

int no_command(const char *sub, const char *command)
{
	if (strchr(command, '/'))
		return complain(EXIT_NOT_FOUND, sub,
				"there is no file '%s'; give the path of a command, or a name that PATH has",
				command);
	return complain(EXIT_NOT_FOUND, sub,
			"there is no command '%s' in PATH; give its path, or set PATH", command);
}

int option_error(const char *sub, int c, char **argv)
{
	const char *option = argv[optind > 0 ? optind - 1 : 0];

	/* optopt is only set for short options and missing arguments. */
	if (c == ':')
		return usage_error(sub, "option '%s' needs a value", option);
	if (optopt > 0 && optopt < 0x80 && strncmp(option, "--", 2))
		return usage_error(sub, "unknown option '-%c'", optopt);
	if (!strncmp(option, "--json", 6) && (!option[6] || option[6] == '=')) {
		if (optopt == 'j')
			return usage_error(sub, "'--json' takes no value");
		return usage_error(sub, "%s has no '--json': " JSON_SUBCOMMANDS, sub);
	}
	return usage_error(sub, "unknown option '%s'", option);
}

static _Noreturn void no_memory(void)
{
	exit(complain(EXIT_FAILED, NULL, "out of memory"));
}

void *xcalloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		no_memory();
	return p;
}

void *xrealloc_array(void *p, size_t n, size_t size)
{
	p = reallocarray(p, n, size);
	if (!p)
		no_memory();
	return p;
}

char *xstrdup(const char *s)
{
	char *p = strdup(s);

	if (!p)
		no_memory();
	return p;
}

char *xasprintf(const char *fmt, ...)
{
	va_list ap;
	char *p;

	va_start(ap, fmt);
	if (vasprintf(&p, fmt, ap) < 0)
		no_memory();
	va_end(ap);
	return p;
}

char *xescape(const char *src)
{
	size_t len = 4 * strlen(src) + 1;

	return escape(xcalloc(len, 1), len, src);
}

bool is_driver(const char *s)
{
	return !strcmp(s, "cuda") || !strcmp(s, "soft");
}

bool parse_range(const char *s, uint64_t *start, uint64_t *end)
{
	const uint64_t mask = sysconf(_SC_PAGESIZE) - 1;
	char *rest;

	if (!strchr("0123456789abcdefABCDEF", *s) || !*s)
		return false;
	errno = 0;
	*start = strtoull(s, &rest, 16);
	if (errno || *rest != '-' || !rest[1] ||
	    !strchr("0123456789abcdefABCDEF", rest[1]))
		return false;
	*end = strtoull(rest + 1, &rest, 16);
	if (errno || *rest || *start >= *end)
		return false;
	*start &= ~mask;
	*end = *end > ~mask ? ~mask : (*end + mask) & ~mask;
	return true;
}

bool parse_number(const char *s, long min, long max, long *value)
{
	char *rest;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*value = strtol(s, &rest, 10);
	return !errno && !*rest && *value >= min && *value <= max;
}

bool parse_mib(const char *s, uint64_t min, uint64_t max, uint64_t *bytes)
{
	uint64_t size;

	if (!hm_parse_size(s, &size))
		return false;
	if (s[strspn(s, "0123456789")] == '\0' && __builtin_mul_overflow(size, 1 << 20, &size))
		return false;
	*bytes = size;
	return size >= min << 20 && size <= max << 20;
}

const char *size_text(uint64_t bytes)
{
	static const char *const units[] = {
		"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB",
	};
	static char buffers[8][32];
	static unsigned int turn;
	char *buffer = buffers[turn++ % ARRAY_SIZE(buffers)];
	double value = bytes;
	size_t unit = 0;

	while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(buffer, sizeof(buffers[0]),
		 value == (uint64_t)value ? "%.0f %s" : "%.1f %s", value,
		 units[unit]);
	return buffer;
}

double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

char *read_file(const char *root, const char *path, size_t max, size_t *len)
{
	char *full = xasprintf("%s%s", root ? root : "", path);
	size_t used = 0, room = 0;
	char *buffer = NULL;
	ssize_t n;
	int fd, error;

	/* A fifo in the place of a file must not make us wait. */
	fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	free(full);
	if (fd < 0)
		return NULL;
	/* Files of /proc and /sys do not tell their size. */
	do {
		if (room - used < 4096) {
			room = room ? 2 * room : 8192;
			buffer = xrealloc_array(buffer, room, 1);
		}
		n = read(fd, buffer + used, room - used - 1);
		if (n > 0)
			used += n;
		if (used > max) {
			n = -1;
			errno = EFBIG;
		}
	} while (n > 0 || (n < 0 && errno == EINTR));
	error = errno;
	close(fd);
	if (n < 0) {
		free(buffer);
		errno = error;
		return NULL;
	}
	buffer[used] = '\0';
	if (len)
		*len = used;
	return buffer;
}

char *read_line(const char *root, const char *path)
{
	char *raw = read_file(root, path, 65536, NULL);
	char *line;

	if (!raw)
		return NULL;
	raw[strcspn(raw, "\n")] = '\0';
	line = xescape(raw);
	free(raw);
	return line;
}

bool colour_parse(const char *s, enum colour_mode *mode)
{
	if (!strcmp(s, "auto"))
		*mode = COLOUR_AUTO;
	else if (!strcmp(s, "always"))
		*mode = COLOUR_ALWAYS;
	else if (!strcmp(s, "never"))
		*mode = COLOUR_NEVER;
	else
		return false;
	return true;
}

bool colour_wanted(enum colour_mode mode)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	if (mode != COLOUR_AUTO)
		return mode == COLOUR_ALWAYS;
	return isatty(STDOUT_FILENO) && !(no_color && *no_color) && term &&
	       *term && strcmp(term, "dumb");
}

int terminal_width(void)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	int width;

	if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		return size.ws_col;
	width = columns ? atoi(columns) : 0;
	return width >= 20 && width <= 1000 ? width : 80;
}

size_t available_memory(void)
{
	char *info = read_file(NULL, "/proc/meminfo", 65536, NULL);
	char *at = info ? strstr(info, "MemAvailable:") : NULL;
	size_t kib = at ? strtoull(at + strlen("MemAvailable:"), NULL, 10) : 0;

	free(info);
	return kib << 10;
}
