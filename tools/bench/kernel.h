/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem bench kernel`. */
#ifndef HETMEM_TOOLS_BENCH_KERNEL_H
#define HETMEM_TOOLS_BENCH_KERNEL_H

#include <linux/hetmem.h>

#include "bench.h"

#define HUGE_SIZE	(2UL << 20)

/**
 * struct kernel_bench - a run
 * @report: gets the rows
 * @fd: a context of this process
 * @size: bytes that are walked or moved, a multiple of HUGE_SIZE
 * @page: size of a base page
 * @quick: once each, as far as that does for what is counted
 */
struct kernel_bench {
	struct bench_report *report;
	int fd;
	size_t size;
	size_t page;
	bool quick;
};

void bench_kernel_residency(struct kernel_bench *kb);
void bench_kernel_track(struct kernel_bench *kb);
void bench_kernel_busy(struct kernel_bench *kb);
void bench_kernel_device(struct kernel_bench *kb);
void bench_kernel_events(struct kernel_bench *kb);

/* These return 0 or a negative errno. */
int kb_open(void);
int kb_ioctl(int fd, unsigned long nr, void *cmd);
int kb_track(int fd, uint64_t start, uint64_t end);
int kb_untrack(int fd, uint64_t start, uint64_t end);

/* Notifications that the context has seen, of all types or of one. */
int kb_notified(int fd, uint64_t *all);
int kb_notified_type(int fd, enum hetmem_change type, uint64_t *nr);

/* A file of /sys/class/misc/hetmem/stats/. */
int kb_statistic(const char *name, uint64_t *value);

/*
 * Anonymous memory, every page written, aligned to HUGE_SIZE: in huge pages or
 * without any. NULL if there is none. kb_unmap() wants the same size.
 */
char *kb_map(size_t size, bool huge);
void kb_unmap(char *p, size_t size);

/* The median and the 99th percentile of @nr values, which get sorted. */
double kb_median(uint64_t *values, size_t nr);
double kb_p99(uint64_t *values, size_t nr);

#endif
