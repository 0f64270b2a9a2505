/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem report: what a recording tells, as text. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <hetmem.h>

#include "map/picture.h"
#include "map/source.h"
#include "options.h"
#include "report.h"
#include "util.h"

#define WIDTH		100
#define LEAST_WIDTH	60
#define LABEL		15	/* columns before the picture */
#define ROWS		24
#define SVG_ROWS	96
#define SVG_COLUMNS	400

struct options {
	const char *path, *svg, *chrome, *html;
	bool json;
	enum colour_mode colour;
};

static int help(void)
{
	puts("Usage: hetmem report [OPTION]... FILE\n"
	     "Shows what 'hetmem record' saw: where memory was over time, what moved, and\n"
	     "the three findings that matter first, each with what to do.\n\n"
	     "  --svg FILE.svg   draws the heat map and the timeline; replaces FILE.svg\n"
	     "  --html FILE      writes a page of all this for a browser, without network;\n"
	     "                   replaces FILE\n"
	     "  --chrome FILE    writes a Chrome trace, which Perfetto opens; replaces FILE\n"
	     "  --json           the same as JSON\n"
	     "  --color=WHEN     auto, always or never\n\n"
	     "A recording that was cut off is shown as far as it goes, with a note.");
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct options *o, int argc, char **argv)
{
	int c;

	while ((c = next_option("report", argc, argv)) != -1) {
		switch (c) {
		case 's':
			o->svg = optarg;
			break;
		case 'C':
			o->chrome = optarg;
			break;
		case 'H':
			o->html = optarg;
			break;
		case 'j':
			o->json = true;
			break;
		case 'c':
			if (!colour_parse(optarg, &o->colour))
				return usage_error("report", "'%s' is not auto, always or never",
						   optarg);
			break;
		case 'h':
			return -1;
		default:
			return option_error("report", c, argv);
		}
	}
	if (optind == argc)
		return usage_error("report", "which recording? Give a file of 'hetmem record'");
	if (optind + 1 < argc)
		return usage_error("report", "one recording at a time, '%s' is too many",
				   argv[optind + 1]);
	o->path = argv[optind];
	return 0;
}

/* What all forms of the report say. */

const char *report_way(const struct history *h, int way)
{
	switch (way) {
	case TO_DEVICE:
		return h->module ? "to device" : "to swap/dev";
	case TO_HOST:
		return "to host";
	default:
		return "other node";
	}
}

const char *report_reason(const struct history *h)
{
	if (!h->ended)
		return "the recording has no end";
	switch (h->end.reason) {
	case RECORD_EXITED:
		return "the process ended";
	case RECORD_STOPPED:
		return "stopped by a signal";
	case RECORD_TIME:
		return "its time was over";
	case RECORD_DENIED:
		return "the process may no longer be looked at";
	default:
		return "ended for an unknown reason";
	}
}

char *report_note(const struct history *h)
{
	const struct reader *r = h->reader;
	char *note = NULL, *more;

	if (r->damage)
		note = xasprintf("the file is %s at byte %" PRIu64 " of %" PRIu64 ": what comes before is shown",
				 r->damage, r->at, r->size);
	if (h->ended && (h->end.skipped || h->end.dropped)) {
		more = xasprintf("%s%s%" PRIu64 " looks found no room in the file, %" PRIu64
				 " events were lost: record with a larger --max",
				 note ? note : "", note ? "; " : "", h->end.skipped, h->end.dropped);
		free(note);
		note = more;
	}
	return note;
}

const char *report_remedy(unsigned int bit)
{
	switch (1U << bit) {
	case HETMEM_WHY_FILE:
		return "read the file into memory of hetmem_system_alloc() or malloc(), instead of mmap()";
	case HETMEM_WHY_SHMEM:
		return "use private memory, of hetmem_system_alloc(), for what devices use";
	case HETMEM_WHY_HUGETLB:
		return "use transparent huge pages instead: 'hetmem run -- COMMAND'";
	case HETMEM_WHY_SPECIAL:
		return "these are mappings of drivers and of the kernel: nothing to do";
	case HETMEM_WHY_UFFD:
		return "end userfaultfd on it: UFFDIO_UNREGISTER";
	case HETMEM_WHY_MLOCKED:
		return "munlock(2) it; 'ulimit -l' shows what the process may lock";
	case HETMEM_WHY_NOT_READABLE:
		return "mprotect(2) it with PROT_READ";
	case HETMEM_WHY_MERGEABLE:
		return "madvise(2) it with MADV_UNMERGEABLE, and no PR_SET_MEMORY_MERGE";
	case HETMEM_WHY_MOVING:
		return "it changed all the time: see the blocks that bounced";
	case HETMEM_WHY_EXCLUSIVE_SEEN:
		return "a device uses atomics there: keep what both use on the host, with hetmem_advise()";
	case HETMEM_WHY_PINNED_BY_US:
		return "MIGRATE holds it for a time: 'hetmem list PID' shows by whom";
	case HETMEM_WHY_BUSY:
		return "others hold the pages (I/O, RDMA): move before it begins, and try again";
	case HETMEM_WHY_NO_MEMORY:
		return "make room: 'hetmem pullback PID', or 'hetmem tune devices/0/limit=SIZE'";
	case HETMEM_WHY_OTHER_NODE:
		return "it is on another node: 'migratepages PID FROM TO'";
	case HETMEM_WHY_LARGE_FOLIO:
		return "madvise(2) a page of it with MADV_COLD, or use Linux 7";
	case HETMEM_WHY_SWAPPED:
		return "it is swapped out: make room in memory, or mlock(2) it";
	default:
		return "'hetmem map PID' shows where";
	}
}

unsigned int report_whys(const struct history *h, unsigned int bits[HISTORY_WHYS])
{
	const uint64_t page = h->reader->header.page_size;
	unsigned int nr = 0, bit, i;

	for (bit = 0; bit < HISTORY_WHYS; bit++) {
		const double weight = (double)h->failed[bit] * page + h->whys[bit].peak;

		/* No page is no reason. */
		if (weight <= 0 || 1U << bit == HETMEM_WHY_ABSENT ||
		    1U << bit == HETMEM_WHY_UNMAPPED)
			continue;
		for (i = nr++; i; i--) {
			const unsigned int other = bits[i - 1];

			if ((double)h->failed[other] * page + h->whys[other].peak >= weight)
				break;
			bits[i] = other;
		}
		bits[i] = bit;
	}
	return nr;
}

/* What names the process to a command; a static buffer. */
static const char *target(const struct history *h)
{
	static char pid[16];

	if (h->ended && h->end.reason == RECORD_EXITED)
		return "PID";
	snprintf(pid, sizeof(pid), "%u", h->reader->header.pid);
	return pid;
}

/* A device of the recording, or the first one. */
static uint32_t a_device(const struct history *h)
{
	unsigned int i;

	for (i = 0; i < h->nr_locations; i++)
		if (HETMEM_LOC_KIND(h->locations[i]) == HETMEM_DEVICE)
			return HETMEM_LOC_INDEX(h->locations[i]);
	return 0;
}

static bool has_device(const struct history *h)
{
	unsigned int i;

	for (i = 0; i < h->nr_locations; i++)
		if (report_is_device(h->locations[i]))
			return true;
	return false;
}

char *report_advice_bounced(const struct history *h)
{
	const struct found *f = &h->bounced[0];

	if (!has_device(h) && h->moved[BETWEEN] > h->moved[TO_DEVICE])
		return xstrdup("bind the program to a node: 'hetmem run --policy bind=NODE -- COMMAND'");
	if (!has_device(h))
		return xstrdup("it is swapped, or on a device: record with hetmem.ko loaded, as root, to know");
	return xasprintf("keep it on the side that uses it most: 'hetmem advise %s %" PRIx64 "-%" PRIx64
			 " host', or hetmem_advise(); an agent does that itself: 'hetmem run --agent -- COMMAND'",
			 target(h), f->start, f->end);
}

char *report_advice_stayed(const struct history *h, int device)
{
	const struct found *f = &h->stayed[device][0];

	if (device)
		return xasprintf("if the device is full and does not use it: 'hetmem pullback %s --range %" PRIx64 "-%" PRIx64 "', or hetmem_prefetch() to the host",
				 target(h), f->start, f->end);
	if (!h->module)
		return xasprintf("the process has no /dev/hetmem open; for a device to use it, call hetmem_prefetch(); 'hetmem map %s' shows what it is",
				 target(h));
	return xasprintf("if a device uses it: 'hetmem prefetch %s --to device:%u --range %" PRIx64 "-%" PRIx64 "', or hetmem_prefetch()",
			 target(h), a_device(h), f->start, f->end);
}

/* As text. */

static void set_ink(bool colour, const char **now, const char *ink)
{
	if (!colour || *now == ink)
		return;
	fputs(ink ? ink : "\033[0m", stdout);
	*now = ink;
}

static void print_map(const struct history *h, const struct grid *g, bool colour)
{
	const char *ink = NULL;
	bool mixed = false;
	unsigned int row, c, i;
	char text[64];
	char *left, *right;

	left = xstrdup("0 s");
	right = xasprintf("%.3g s", h->seconds);
	printf("%-*s%s%*s\n", LABEL, "address", left, (int)(g->columns - strlen(left)), right);
	free(left);
	free(right);
	for (row = 0; row < g->rows; row++) {
		printf("%012" PRIx64 "%*s", history_address(h, g, row), LABEL - 12, "");
		for (c = 0; c < g->columns; c++) {
			const int cell = grid_cell(g, row, c);

			mixed |= cell == CELL_MIXED;
			if (cell < 0) {
				set_ink(colour, &ink, NULL);
				putchar(cell == CELL_EMPTY ? '.' : '%');
				continue;
			}
			set_ink(colour, &ink, picture_ink(h->locations[cell]));
			putchar(picture_mark(h->locations[cell]));
		}
		set_ink(colour, &ink, NULL);
		putchar('\n');
	}
	printf("One character: %s x %.3g s.", size_text(h->nr_blocks * h->block / g->rows),
	       h->seconds / g->columns);
	for (i = 0; i < h->nr_locations; i++)
		printf("  %s%c%s %s", colour ? picture_ink(h->locations[i]) : "",
		       picture_mark(h->locations[i]), colour ? "\033[0m" : "",
		       i == HISTORY_LOCATIONS - 1 ? "others" :
		       location_text(h->locations[i], text, sizeof(text)));
	printf("%s  . none\n", mixed ? "  % several" : "");
}

/* From '1' for little to '9' for the most; ' ' for nothing. */
static char level(uint64_t value, uint64_t most)
{
	return value ? '1' + (int)(8.999 * value / most) : ' ';
}

static void print_timeline(const struct history *h, const struct grid *g)
{
	static const char *const events[] = {
		[RECORD_MIGRATE] = "MIGRATE", [RECORD_THRASH] = "thrash", [RECORD_HINT] = "hints",
	};
	unsigned int c, what;
	bool any = false;
	int way;

	printf("\nMoves, %s; 9 is the most of a column:\n",
	       h->counted && !h->foreign ? "as the module counted" :
	       "estimated from what two looks saw: at least that much");
	for (way = 0; way < NR_WAYS; way++) {
		if (!h->moved[way])
			continue;
		any = true;
		printf("%-*s", LABEL, report_way(h, way));
		for (c = 0; c < g->columns; c++)
			putchar(level(g->moved[way][c], grid_most(g, way)));
		printf("\n%*s%s in all, 9 is %s\n", LABEL, "", size_text(h->moved[way]),
		       size_text(grid_most(g, way)));
	}
	for (what = RECORD_MIGRATE; what <= RECORD_HINT; what++) {
		uint32_t most = 1;

		if (!h->events[what])
			continue;
		any = true;
		for (c = 0; c < g->columns; c++)
			if (g->events[c * GRID_EVENTS + what] > most)
				most = g->events[c * GRID_EVENTS + what];
		printf("%-*s", LABEL, events[what]);
		for (c = 0; c < g->columns; c++)
			putchar(level(g->events[c * GRID_EVENTS + what], most));
		printf("\n%*s%" PRIu64 " in all, 9 is %u\n", LABEL, "", h->events[what], most);
	}
	if (!any)
		printf("%-*snothing moved\n", LABEL, "");
}

static void print_locations(const struct history *h)
{
	static const struct table_column columns[] = {
		{ "LOCATION", false }, { "AVERAGE", true }, { "MOST", true },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	unsigned int i;
	char text[64];

	for (i = 0; i < h->nr_locations; i++) {
		const struct history_sum *s = &h->sums[i];
		const char *cells[] = {
			i == HISTORY_LOCATIONS - 1 ? "others" :
			location_text(h->locations[i], text, sizeof(text)),
			size_text(h->seconds > 0 ? s->integral / h->seconds : s->bytes),
			size_text(s->peak),
		};

		table_row(table, cells);
	}
	putchar('\n');
	table_print(table);
}

static void print_advice(const char *advice, int width)
{
	fputs("   -> ", stdout);
	print_words(advice, 6, width);
}

static void print_found(const struct found *f, bool moves)
{
	char text[64];

	printf("   %" PRIx64 "-%" PRIx64 "  %s", f->start, f->end, size_text(f->bytes));
	if (moves)
		printf(", each block moved %u times, then was at", f->moves);
	printf(" %s\n", location_text(f->location, text, sizeof(text)));
}

static void print_bounced(const struct history *h, int width)
{
	char *advice;
	int i;

	if (!h->nr_bounced) {
		puts("1. Blocks that bounced: none");
		return;
	}
	printf("1. Blocks that bounced: %" PRIu64 " blocks of %s moved twice or more\n",
	       h->nr_bounced, size_text(h->block));
	for (i = 0; i < HISTORY_FOUND && h->bounced[i].moves; i++)
		print_found(&h->bounced[i], true);
	advice = report_advice_bounced(h);
	print_advice(advice, width);
	free(advice);
}

static void print_stayed(const struct history *h, int width)
{
	static const char *const sides[] = { "the host", "a device" };
	char *advice;
	int side, i;

	puts("2. Pages that never left, and are there at the end:");
	for (side = 0; side < 2; side++) {
		if (!h->stayed_bytes[side])
			continue;
		printf("   %s: %s; the largest ranges:\n", sides[side],
		       size_text(h->stayed_bytes[side]));
		for (i = 0; i < HISTORY_FOUND && h->stayed[side][i].bytes; i++)
			print_found(&h->stayed[side][i], false);
		advice = report_advice_stayed(h, side);
		print_advice(advice, width);
		free(advice);
	}
	if (!h->stayed_bytes[0] && !h->stayed_bytes[1])
		puts("   none");
}

static void print_whys(const struct history *h, int width)
{
	unsigned int bits[HISTORY_WHYS], nr = report_whys(h, bits), i;
	char text[128];

	puts(nr ? "3. What hinders moves to a device:" : "3. What hinders moves to a device: nothing was seen");
	for (i = 0; i < nr && i < HISTORY_FOUND; i++) {
		printf("   %s: %s at most", hetmem_why_names(1U << bits[i], text, sizeof(text)),
		       size_text(h->whys[bits[i]].peak));
		if (h->failed[bits[i]])
			printf("; MIGRATE left %" PRIu64 " pages", h->failed[bits[i]]);
		putchar('\n');
		print_advice(report_remedy(bits[i]), width);
	}
}

static void print_head(const struct history *h, int width)
{
	const time_t began = h->reader->header.realtime / 1000000000;
	char *note = report_note(h), date[64] = "an unknown time";
	struct tm tm;

	if (localtime_r(&began, &tm))
		strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm);
	printf("process %u (%s), from %s: %.3g s, %" PRIu64 " looks %s; %s\n",
	       h->reader->header.pid, h->name, date, h->seconds, h->samples,
	       !h->module ? "at pagemap" : h->pagemap ? "at the module and pagemap" :
	       "at the module", report_reason(h));
	if (h->execs)
		printf("it began another program %" PRIu64 " %s\n", h->execs,
		       h->execs == 1 ? "time" : "times");
	if (!h->module)
		puts("without /dev/hetmem open, pages on a device look like swap");
	if (note) {
		fputs("note: ", stdout);
		print_words(note, 6, width);
	}
	free(note);
	putchar('\n');
}

static void print_text(const struct history *h, const struct grid *g, const struct options *o,
		       int width)
{
	print_head(h, width);
	print_map(h, g, colour_wanted(o->colour));
	print_timeline(h, g);
	print_locations(h);
	putchar('\n');
	print_bounced(h, width);
	print_stayed(h, width);
	print_whys(h, width);
}

static int text_width(void)
{
	const int width = isatty(STDOUT_FILENO) || getenv("COLUMNS") ? terminal_width() : WIDTH;

	return width > WIDTH ? WIDTH : width < LEAST_WIDTH ? LEAST_WIDTH : width;
}

/* Opening the recording as an output would empty it. 0, or an exit status. */
static int check_output(const char *option, const char *path, const struct reader *reader)
{
	struct stat output, recording;

	if (!path || stat(path, &output) || fstat(reader->fd, &recording) ||
	    output.st_dev != recording.st_dev || output.st_ino != recording.st_ino)
		return 0;
	return complain(EXIT_USAGE, "report", "'%s' is the recording; name another file with %s",
			path, option);
}

static int cannot_write(const char *path, int err)
{
	return complain(EXIT_FAILED, "report", "cannot write '%s': %s; name another file", path,
			strerror(err));
}

/* Ends an output. 0, or an exit status. */
static int close_output(FILE *f, const char *path)
{
	int err = fflush(f) || ferror(f) ? errno : 0;

	if (fclose(f) && !err)
		err = errno;
	return err ? cannot_write(path, err) : 0;
}

static int write_picture(const char *path, const struct history *h, const struct grid *g,
			 void (*write)(FILE *f, const struct history *h, const struct grid *g))
{
	FILE *f = fopen(path, "we");

	if (!f)
		return cannot_write(path, errno);
	write(f, h, g);
	return close_output(f, path);
}

static int write_chrome(const char *path, struct reader *reader)
{
	FILE *f = fopen(path, "we");
	int status, closed;

	if (!f)
		return cannot_write(path, errno);
	status = report_chrome(f, reader);
	closed = close_output(f, path);
	return status ? status : closed;
}

int cmd_report(int argc, char **argv)
{
	struct options o = { .path = NULL };
	int status = parse(&o, argc, argv), width;
	struct grid text, svg, *grids[] = { &text, &svg };
	struct history history;
	struct reader reader;

	if (status)
		return status < 0 ? help() : status;
#ifndef HAVE_JSON_C
	if (o.json)
		return complain(EXIT_USAGE, "report",
				"built without json-c; type 'apt-get install libjson-c-dev' and build again");
#endif
	status = reader_open(&reader, "report", o.path);
	if (status)
		return status;
	status = check_output("--svg", o.svg, &reader);
	if (!status)
		status = check_output("--chrome", o.chrome, &reader);
	if (!status)
		status = check_output("--html", o.html, &reader);
	if (status) {
		reader_close(&reader);
		return status;
	}
	/* A file beyond RLIMIT_FSIZE is an error like any other. */
	signal(SIGXFSZ, SIG_IGN);
	width = text_width();
	grid_init(&text, ROWS, width - LABEL - 1);
	grid_init(&svg, SVG_ROWS, SVG_COLUMNS);
	status = history_read(&history, &reader, grids, o.svg || o.html ? 2 : 1, NULL);
	if (!status && o.svg)
		status = write_picture(o.svg, &history, &svg, report_svg);
	if (!status && o.html)
		status = write_picture(o.html, &history, &svg, report_html);
	if (!status && o.chrome)
		status = write_chrome(o.chrome, &reader);
	if (!status && o.json)
		report_json(&history, &text);
	else if (!status)
		print_text(&history, &text, &o, width);
	history_free(&history);
	grid_free(&text);
	grid_free(&svg);
	reader_close(&reader);
	return status;
}
