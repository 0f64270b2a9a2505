/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem demo`. */
#ifndef HETMEM_TOOLS_DEMO_H
#define HETMEM_TOOLS_DEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "digest.h"
#include "driver/hetmem.h"
#include "util.h"

#define DEMO_MIN_FILE	((size_t)64 << 20)
#define DEMO_PIECE	((size_t)4 << 20)	/* of input, of device work */
#define DEMO_HUGE	((size_t)2 << 20)

/* What the device writes. */
#define DEMO_VALUE	0x5a

/* Gigabytes a second; GB is 1e9 bytes. */
struct speed {
	const char *what;
	double bytes;
	double seconds;
};

/**
 * struct demo - the demonstration
 * @file: name of the input; NULL: made from the files below /usr
 * @fd: it, open
 * @hm: the library
 * @driver: its driver, with @ctx current and @stream of our own
 * @device: ordinal of the device, @handle the driver's
 * @capacity: bytes it has for pages of ordinary memory
 * @page: page size
 * @data: hetmem memory that holds the input
 * @size: bytes of the input
 * @mapped: @size in whole huge pages
 * @change, @change_size: what the device overwrites, from @data
 * @sum, @changed_sum: SHA-256 of the input, as read and with the change,
 *	never computed from @data
 */
struct demo {
	const char *file;
	int fd;
	struct hetmem *hm;
	const struct hm_driver *driver;
	CUdevice handle;
	CUcontext ctx;
	CUstream stream;
	int device;
	struct hetmem_device_props props;
	uint64_t capacity;
	size_t page;
	char *data;
	size_t size;
	size_t mapped;
	size_t change;
	size_t change_size;
	char sum[DIGEST_TEXT];
	char changed_sum[DIGEST_TEXT];
	enum colour_mode colour;
	struct speed speeds[16];
	size_t nr_speeds;
};

/* Steps return 0 or an exit status, after one line on stderr. */

/* input.c */
int demo_input_open(struct demo *demo);
int demo_input_read(struct demo *demo);

/* work.c */
int demo_sum(struct demo *demo, const char *what, const char *expected);
int demo_prefetch(struct demo *demo, const char *what, void *ptr, size_t size,
		  uint32_t location, bool speed);
int demo_device_reads(struct demo *demo);
int demo_device_fills(struct demo *demo, void *ptr, size_t size);
int demo_device_waits(struct demo *demo, const char *call, CUresult result);
int demo_fault_back(struct demo *demo, size_t size);

/* full.c: twice what the device holds */
int demo_oversubscribe(struct demo *demo);

/* show.c */

/* "  N text ... " and, from demo_done(), the rest of the line. */
void demo_step(const char *fmt, ...) printf_like(1, 2);
void demo_progress(size_t done, size_t all);
void demo_done(const char *fmt, ...) printf_like(1, 2);
int demo_fail(const char *fmt, ...) printf_like(1, 2);

void demo_speed(struct demo *demo, const char *what, size_t bytes,
		double seconds);
int demo_map(struct demo *demo, const char *title, const void *ptr,
	     size_t size);

/* Pages of [@ptr, @ptr + @size) on @demo's device; negative errno. */
ssize_t demo_on_device(struct demo *demo, const void *ptr, size_t size);
int demo_residency_speed(struct demo *demo);
void demo_counts(struct demo *demo, const char *what, const void *ptr);
void demo_summary(struct demo *demo);

#endif
