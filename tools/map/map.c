/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem map: where the pages of a process are. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "map.h"
#include "picture.h"
#include "options.h"
#include "util.h"

#define MIN_WIDTH	20
#define MAX_WIDTH	1000

struct options {
	bool self;
	bool json;
	bool all;
	long largest;
	pid_t pid;
	int width;
	enum colour_mode colour;
	uint64_t start;
	uint64_t end;
};

static int help(void)
{
	puts("Usage: hetmem map [OPTION]... PID | --self\n"
	     "Draws where the pages of a process are, one character a block.\n\n"
	     "  --self               this process, with memory of every kind\n"
	     "  --range START-END    only these addresses (hexadecimal, as in /proc/PID/maps)\n"
	     "  --largest N          only the N largest mappings\n"
	     "  --all                shared libraries, too\n"
	     "  --width COLUMNS      of the picture (the terminal's)\n"
	     "  --color=WHEN         auto, always or never\n"
	     "  --json               every run of pages, as JSON\n\n"
	     "Needs the rights of ptrace on the process. Of a process that has /dev/hetmem\n"
	     "open the kernel module is asked, with CAP_SYS_PTRACE; of others\n"
	     "/proc/PID/pagemap, where pages on a device look like swapped out ones.");
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct options *options, int argc, char **argv)
{
	long value;
	int c;

	while ((c = next_option("map", argc, argv)) != -1) {
		switch (c) {
		case 's':
			options->self = true;
			break;
		case 'r':
			if (!parse_range(optarg, &options->start,
					 &options->end))
				return usage_error("map", "'%s' is not a range START-END in hexadecimal",
						   optarg);
			break;
		case 'n':
			if (!parse_number(optarg, 1, INT32_MAX, &options->largest))
				return usage_error("map", "'%s' is not a number of mappings", optarg);
			break;
		case 'a':
			options->all = true;
			break;
		case 'w':
			if (!parse_number(optarg, MIN_WIDTH, MAX_WIDTH,
					  &value))
				return usage_error("map", "'%s' is not a width from %d to %d",
						   optarg, MIN_WIDTH,
						   MAX_WIDTH);
			options->width = value;
			break;
		case 'c':
			if (!colour_parse(optarg, &options->colour))
				return usage_error("map", "'%s' is not auto, always or never",
						   optarg);
			break;
		case 'j':
			options->json = true;
			break;
		case 'h':
			return -1;
		default:
			return option_error("map", c, argv);
		}
	}
	if (options->self) {
		if (optind < argc)
			return usage_error("map", "--self and a PID do not go together");
		options->pid = getpid();
		return 0;
	}
	if (optind == argc)
		return usage_error("map", "which process? Give a PID or --self");
	if (optind + 1 < argc)
		return usage_error("map", "one PID at a time, '%s' is too many",
				   argv[optind + 1]);
	if (!parse_number(argv[optind], 1, INT32_MAX, &value))
		return usage_error("map", "'%s' is not a PID", argv[optind]);
	options->pid = value;
	return 0;
}

/* The single letter that /proc/PID/stat has for the state, or 0. */
static char state_of(pid_t pid)
{
	char *path = xasprintf("/proc/%d/stat", pid);
	char *stat = read_file(NULL, path, 65536, NULL);
	char *close, state = 0;

	free(path);
	if (!stat)
		return 0;
	/* The name before it may contain anything, ')' included. */
	close = strrchr(stat, ')');
	if (close && close[1] == ' ')
		state = close[2];
	free(stat);
	return state;
}

/* The line for a process whose memory cannot be looked at. */
static int refused(pid_t pid, int error)
{
	switch (error) {
	case -ESRCH:
		return complain(EXIT_FAILED, "map",
				"there is no process %d; type 'ps -e' for those there are",
				pid);
	case -ENODATA:
		if (state_of(pid) == 'Z')
			return complain(EXIT_FAILED, "map",
					"process %d has ended and waits for its parent: it has no memory to show; give another PID",
					pid);
		return complain(EXIT_FAILED, "map",
				"process %d is a kernel thread: it has no memory of its own; give another PID",
				pid);
	case -EACCES:
	case -EPERM:
		return not_permitted("map", pid);
	default:
		return complain(EXIT_FAILED, "map", "process %d: %s", pid,
				strerror(-error));
	}
}

/*
 * Drops what the reader did not ask for. A range and JSON are whole. Returns the bytes that
 * were dropped.
 */
static uint64_t choose(struct vmas *vmas, const struct options *options)
{
	const bool ranged = options->start || options->end != UINT64_MAX;
	uint64_t dropped = 0;

	if (!options->all && !options->json && !ranged && !options->self)
		dropped = vmas_drop_libraries(vmas);
	if (options->largest)
		dropped += vmas_keep_largest(vmas, options->largest);
	return dropped;
}

static int draw(struct source *source, const struct vmas *vmas,
		const struct options *options)
{
	uint64_t *sizes = xcalloc(vmas->nr, sizeof(*sizes));
	struct picture picture;
	int ret = 0;
	size_t i;

	for (i = 0; i < vmas->nr; i++)
		sizes[i] = vmas->vma[i].end - vmas->vma[i].start;
	picture_init(&picture,
		     options->width ? options->width : terminal_width(),
		     colour_wanted(options->colour), source->page_size, sizes,
		     vmas->nr);
	free(sizes);
	for (i = 0; i < vmas->nr && !ret; i++) {
		const struct vma *vma = &vmas->vma[i];

		picture_begin(&picture, vma->start, vma->end, vma->perms,
			      vma->name);
		ret = source_walk(source, vma, vma->start, vma->end,
				  picture_run, &picture);
		picture_end(&picture, vma->name);
	}
	putchar('\n');
	picture_legend(&picture);
	putchar('\n');
	totals_print(&picture.totals);
	return ret;
}

int cmd_map(int argc, char **argv)
{
	struct options options = { .end = UINT64_MAX };
	struct source source;
	uint64_t dropped;
	struct vmas vmas;
	size_t nr;
	int ret;

	ret = parse(&options, argc, argv);
	if (ret)
		return ret < 0 ? help() : ret;
#ifndef HAVE_JSON_C
	if (options.json)
		return complain(EXIT_USAGE, "map",
				"built without json-c; type 'apt-get install libjson-c-dev' and build again");
#endif
	if (options.self) {
		map_self_make(&vmas);
		ret = vmas.nr ? 0 : -ENOMEM;
	} else {
		ret = vmas_read(&vmas, options.pid);
	}
	if (ret) {
		vmas_free(&vmas);
		return refused(options.pid, ret);
	}
	vmas_clip(&vmas, options.start, options.end);
	if (!vmas.nr) {
		vmas_free(&vmas);
		return complain(EXIT_FAILED, "map",
				"nothing is mapped from %" PRIx64 " to %" PRIx64 " in process %d; see /proc/%d/maps",
				options.start, options.end, options.pid,
				options.pid);
	}
	nr = vmas.nr;
	dropped = choose(&vmas, &options);
	ret = source_open(&source, options.pid);
	if (ret) {
		ret = refused(options.pid, ret);
		goto out;
	}
	if (options.json) {
		ret = map_json(&source, &vmas);
	} else {
		printf("process %d, %zu mappings, %s\n", options.pid, nr,
		       source.note ? source.note : "from the kernel module");
		if (nr > vmas.nr)
			printf("%zu of them are not shown, %s%s\n", nr - vmas.nr, size_text(dropped),
			       options.largest ? "" : ": libraries; --all shows them");
		ret = draw(&source, &vmas, &options);
	}
	if (ret == -ESRCH)
		ret = complain(EXIT_FAILED, "map",
			       "process %d ended while it was looked at",
			       options.pid);
	else if (ret)
		ret = complain(EXIT_FAILED, "map", "process %d: %s",
			       options.pid, strerror(-ret));
out:
	source_close(&source);
	vmas_free(&vmas);
	return ret;
}
