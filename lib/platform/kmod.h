/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The kernel module. All functions return 0 or a negative errno and set the
 * error's text. Locations are the module's.
 */
#ifndef HETMEM_PLATFORM_KMOD_H
#define HETMEM_PLATFORM_KMOD_H

#include "core/core.h"

/**
 * struct hm_kmod - an open /dev/hetmem
 * @fd: -1 if there is none
 * @devices: as they were registered at open
 * @nr_devices: entries of it
 * @info: what INFO said
 */
struct hm_kmod {
	int fd;
	unsigned int nr_devices;
	struct hetmem_device_info *devices;
	struct hetmem_cmd_info info;
};

/*
 * Opens @path (NULL: /dev/hetmem; "": none). On failure @kmod->fd is -1 and
 * hm_kmod_close() harmless; @reason is set in either case.
 */
int hm_kmod_open(struct hm_kmod *kmod, const char *path, char *reason,
		 size_t len);
void hm_kmod_close(struct hm_kmod *kmod);
bool hm_kmod_there(const struct hm_kmod *kmod);
int hm_kmod_track(const struct hm_kmod *kmod, uintptr_t start, uintptr_t end);
int hm_kmod_untrack(const struct hm_kmod *kmod, uintptr_t start,
		    uintptr_t end);

/*
 * Goes on until all of [@start, @end) was looked at or @runs is full; merges
 * what was only split by going on. Returns the number of runs; *@next is
 * where to go on.
 */
ssize_t hm_kmod_residency(const struct hm_kmod *kmod, uintptr_t start,
			  uintptr_t end, struct hetmem_run *runs, size_t nr,
			  uintptr_t *next);

/*
 * Goes on until all was tried; adds to the counters of @moved. What the
 * kernel leaves because it is on another host node move_pages(2) brings.
 */
int hm_kmod_migrate(const struct hm_kmod *kmod, uintptr_t start,
		    uintptr_t end, uint32_t location, uint32_t flags,
		    struct hetmem_moved *moved);

/*
 * Carries out each of @cmds once, and sets results[] to 0 or an errno. -errno: the kernel
 * refused a call; results that it did not write are that errno.
 */
int hm_kmod_migrate_vector(const struct hm_kmod *kmod, struct hetmem_cmd_migrate *cmds,
			   int32_t *results, size_t nr);

/*
 * Bytes that the registered device @id has for pages, and that are in use now.
 * -ENODEV: it is gone.
 */
int hm_kmod_device_memory(const struct hm_kmod *kmod, unsigned int id,
			  uint64_t *capacity, uint64_t *used);

/* @addr: in a tracked range, or NULL for the whole context. */
int hm_kmod_stats(const struct hm_kmod *kmod, const void *addr,
		  struct hetmem_cmd_stats *stats);

#endif /* HETMEM_PLATFORM_KMOD_H */
