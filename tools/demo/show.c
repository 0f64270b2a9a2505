/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem demo: steps, progress, maps, counters, speeds. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/hetmem_emu.h>

#include "demo.h"
#include "map/picture.h"

#define NR_RUNS		4096
#define MAX_EMU		64

/* Residency is asked for at least so long, for a figure that is steady. */
#define MEASURE_SECONDS	0.3

static int steps;
static bool dots;
static char step_text[256];
static double step_begin, last_progress;

void demo_step(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(step_text, sizeof(step_text), fmt, ap);
	va_end(ap);
	steps++;
	dots = false;
	step_begin = now();
	last_progress = step_begin;
	printf("%2d %s ... ", steps, step_text);
	fflush(stdout);
}

/* On a terminal the line is rewritten; elsewhere a dot now and then. */
void demo_progress(size_t done, size_t all)
{
	double moment = now();

	if (moment - last_progress < 0.25)
		return;
	last_progress = moment;
	if (isatty(STDOUT_FILENO)) {
		printf("\r%2d %s ... %3d%% ", steps, step_text,
		       (int)(100.0 * done / all));
	} else if (moment - step_begin > 1) {
		putchar('.');
		dots = true;
	}
	fflush(stdout);
}

void demo_done(const char *fmt, ...)
{
	va_list ap;

	if (isatty(STDOUT_FILENO))
		printf("\r%2d %s ... ", steps, step_text);
	else if (dots)
		putchar(' ');
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf(" (%.2f s)\n", now() - step_begin);
	fflush(stdout);
}

int demo_fail(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	putchar('\n');
	return complain(EXIT_FAILED, "demo", "step %d, %s: %s", steps,
			step_text, text);
}

void demo_speed(struct demo *demo, const char *what, size_t bytes,
		double seconds)
{
	struct speed *speed = &demo->speeds[demo->nr_speeds];

	if (demo->nr_speeds == ARRAY_SIZE(demo->speeds))
		return;
	demo->nr_speeds++;
	speed->what = what;
	speed->bytes = bytes;
	speed->seconds = seconds;
}

/* Calls @fn for the runs of [@ptr, @ptr + @size). */
static int walk(struct demo *demo, const void *ptr, size_t size,
		int (*fn)(const struct hetmem_run *run, void *arg), void *arg)
{
	static struct hetmem_run runs[NR_RUNS];
	uintptr_t at = (uintptr_t)ptr, end = at + size, next;

	while (at < end) {
		ssize_t nr = hetmem_residency(demo->hm, (void *)at, end - at,
					      runs, NULL, NR_RUNS, &next), i;

		if (nr < 0)
			return nr;
		for (i = 0; fn && i < nr; i++)
			fn(&runs[i], arg);
		if (next <= at)
			return -EBUSY;
		at = next;
	}
	return 0;
}

int demo_map(struct demo *demo, const char *title, const void *ptr,
	     size_t size)
{
	uint64_t start = (uintptr_t)ptr, sizes[] = { size };
	struct picture picture;
	char location[64];
	size_t i;
	int ret;

	picture_init(&picture, terminal_width(), colour_wanted(demo->colour),
		     demo->page, sizes, 1);
	putchar('\n');
	picture_begin(&picture, start, start + size, "rw-p", title);
	ret = walk(demo, ptr, size, picture_run, &picture);
	picture_end(&picture, title);
	picture_legend(&picture);
	for (i = 0; i < picture.totals.nr_locations; i++) {
		const struct tally *tally = &picture.totals.locations[i];

		printf("%s%s: %" PRIu64 " pages (%s)", i ? ", " : "",
		       hetmem_location_name(demo->hm, tally->key, location,
					    sizeof(location)),
		       tally->pages, size_text(tally->pages * demo->page));
	}
	puts("\n");
	return ret ? demo_fail("residency: %s", hetmem_last_error()) : 0;
}

struct device_pages {
	uint32_t location;
	uint64_t bytes;
};

static int add_device_pages(const struct hetmem_run *run, void *arg)
{
	struct device_pages *pages = arg;

	if (run->location == pages->location)
		pages->bytes += run->end - run->start;
	return 0;
}

ssize_t demo_on_device(struct demo *demo, const void *ptr, size_t size)
{
	struct device_pages pages = {
		.location = HETMEM_LOC(HETMEM_DEVICE, demo->device),
	};
	int ret = walk(demo, ptr, size, add_device_pages, &pages);

	return ret ? ret : (ssize_t)(pages.bytes / demo->page);
}

int demo_residency_speed(struct demo *demo)
{
	double begin, seconds;
	uint64_t rounds = 0;
	int ret = 0;

	demo_step("residency of %s, over and over", size_text(demo->mapped));
	begin = now();
	do {
		ret = walk(demo, demo->data, demo->mapped, NULL, NULL);
		rounds++;
		seconds = now() - begin;
	} while (!ret && seconds < MEASURE_SECONDS);
	if (ret)
		return demo_fail("%s", hetmem_last_error());
	demo_done("%.1f ns a page", seconds * 1e9 /
		  (rounds * (demo->mapped / demo->page)));
	return 0;
}

void demo_counts(struct demo *demo, const char *what, const void *ptr)
{
	static const char *const names[HETMEM_CHANGE_NR] = {
		[HETMEM_CHANGE_OTHER] = "other", [HETMEM_CHANGE_UNMAP] = "unmap",
		[HETMEM_CHANGE_REPLACE] = "replace", [HETMEM_CHANGE_PROTECT] = "protect",
		[HETMEM_CHANGE_MIGRATE] = "migrate", [HETMEM_CHANGE_EXCLUSIVE] = "exclusive",
		[HETMEM_CHANGE_EXIT] = "exit",
	};
	struct hetmem_cmd_stats stats = { .size = sizeof(stats) };
	int i;

	if (!hm_kmod_there(hetmem_kmod(demo->hm)))
		return;
	if (hm_kmod_stats(hetmem_kmod(demo->hm), ptr, &stats)) {
		printf("The kernel counted nothing for %s: %s\n", what,
		       hetmem_last_error());
		return;
	}
	printf("The kernel counted (%s): %llu pages to devices, %llu to the host, %llu failed; notifications:",
	       what, stats.to_device, stats.to_host, stats.failed);
	for (i = 0; i < HETMEM_CHANGE_NR; i++)
		if (stats.changes[i])
			printf(" %s %llu", names[i], stats.changes[i]);
	putchar('\n');
}

static void emu_counts(const struct demo *demo)
{
	char path[64];
	int i;

	for (i = 0; i < MAX_EMU; i++) {
		struct hetmem_emu_cmd_info info = { .size = sizeof(info) };
		int fd, ret;

		snprintf(path, sizeof(path), "/dev/hetmem_emu%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		ret = ioctl(fd, HETMEM_EMU_IOC_INFO, &info);
		close(fd);
		if (ret || (int)info.id != demo->props.module_id)
			continue;
		printf("The emulated device counted: %llu pages in, %llu out, %llu evicted; CPU faults %llu (%llu failed), device faults %llu (%llu failed)\n",
		       info.to_device, info.to_host, info.evicted,
		       info.cpu_faults, info.cpu_fault_failures,
		       info.device_faults, info.device_fault_failures);
	}
}

void demo_summary(struct demo *demo)
{
	const struct table_column columns[] = {
		{ "WHAT MOVED", false }, { "HOW MUCH", true },
		{ "GB/s", true },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	size_t i;

	for (i = 0; i < demo->nr_speeds; i++) {
		const struct speed *speed = &demo->speeds[i];
		char rate[32];
		const char *cells[] = {
			speed->what, size_text(speed->bytes), rate,
		};

		snprintf(rate, sizeof(rate), "%.3f",
			 speed->bytes / speed->seconds / 1e9);
		table_row(table, cells);
	}
	emu_counts(demo);
	putchar('\n');
	table_print(table);
}
