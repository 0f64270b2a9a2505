/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of the library share, and the command, which links it
 * statically: the open library, the module's descriptor, errors, ranges.
 *
 * Dependencies point one way: open.c -> place.c, system.c -> kmod.c ->
 * numa.c, driver/. Only kmod*.c issue ioctls of /dev/hetmem, only driver/ knows
 * how a driver works.
 */
#ifndef HETMEM_INTERNAL_H
#define HETMEM_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Everything else is compiled hidden. */
#pragma GCC visibility push(default)
#include <hetmem.h>
#pragma GCC visibility pop

#include "driver/driver.h"

#define HM_MAX_DEVICES	64
#define HM_REASON_LEN	224
#define HM_HUGE_SIZE	((size_t)2 << 20)

#define hm_unlikely(x)	__builtin_expect(!!(x), 0)

/* Between two looks at a lock that another CPU is about to give away. */
static inline void hm_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * A device of the module that is none of the driver's has this added to its
 * id where an ordinal is expected; hetmem_prefetch() takes it back.
 */
#define HM_KERNEL_DEVICE	0x8000U

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

/**
 * struct hm_range - [@start, @end) in a search tree of disjoint ranges
 * The first member of what is kept there.
 */
struct hm_range {
	uintptr_t start;
	uintptr_t end;
};

/**
 * struct hm_device - one device of the driver in use
 * @handle: the driver's
 * @ctx: its primary context, retained when it was first needed, else NULL
 * @pageable: reaches all memory of the process
 * @module_id: in hetmem.ko, or -1
 * @props: for hetmem_device_props()
 */
struct hm_device {
	CUdevice handle;
	CUcontext ctx;
	bool pageable;
	int module_id;
	struct hetmem_device_props props;
};

/**
 * struct hetmem - the open library
 * @generation: hm_generation() at open; different in a forked child
 * @lock: protects @system and the context of each device
 * @system: tree of struct hm_range: live allocations of system memory
 * @next: list of all that are open, for fork()
 * @current: resource that the program set for each device, from 1; 0: the
 *	host's; @own: that the library made; with @lock
 * @making: held while one of @own is made, outside of @lock and all others
 * @doors: of resources that were destroyed, see resource/door.c; atomic
 * The rest does not change after hetmem_open().
 */
struct hetmem {
	unsigned int generation;
	pthread_mutex_t lock;
	pthread_mutex_t making;
	void *system;
	struct hetmem *next;
	struct hetmem_resource *current[HM_MAX_DEVICES + 1];
	struct hetmem_resource *own[HM_MAX_DEVICES + 1];
	struct hm_door *doors;
	struct hm_driver driver;
	bool soft;
	struct hm_kmod kmod;
	size_t page_size;
	int nr_devices;
	struct hm_device devices[HM_MAX_DEVICES];
	int available[HETMEM_FEATURE_NR];
	char reasons[HETMEM_FEATURE_NR][HM_REASON_LEN];
};

/* The driver in use, as it was filled; valid until hetmem_close(). */
const struct hm_driver *hetmem_driver_table(struct hetmem *hm);

/* The module behind @hm; its fd is -1 if there is none. */
const struct hm_kmod *hetmem_kmod(struct hetmem *hm);

/* open.c */

/* Goes up in every forked child. */
unsigned int hm_generation(void);

/* Held across fork(): for what must be whole in a child. Ordered first. */
void hm_fork_lock(void);
void hm_fork_unlock(void);

/* 0, or -EOWNERDEAD with its text in a forked child. */
int hm_check_owner(struct hetmem *hm);

/* features.c */

/* Fills the devices of @hm from its driver. 0 or -EIO. */
int hm_probe_devices(struct hetmem *hm);

/* Fills what this machine can do; @cuda, @module: what their open said. */
void hm_probe_features(struct hetmem *hm, const char *cuda, bool has_cuda,
		       const char *module);

/* create.c */

/* Destroys the current resources that the library made. */
void hm_current_close(struct hetmem *hm);

/* context.c */

/* What was before hm_context_enter(). All 0: nothing to put back. */
struct hm_context {
	CUcontext before;
	bool changed;
	bool relaxed;		/* and the mode it had before */
	CUstreamCaptureMode mode;
};

/* The device's primary context, retained until hetmem_close(). */
int hm_device_context(struct hetmem *hm, int device, CUcontext *ctx);

/*
 * Makes it the calling thread's; hm_context_leave() puts back what was. 0,
 * -ENODEV no such device, or the driver's error: nothing has changed then.
 */
int hm_context_enter(struct hetmem *hm, int device, struct hm_context *saved);
void hm_context_leave(struct hetmem *hm, const struct hm_context *saved);

/*
 * After hm_context_enter(), until hm_context_leave(): calls that are illegal
 * while some stream is captured are not. Captured streams themselves are not
 * for them.
 */
void hm_context_relax(struct hetmem *hm, struct hm_context *saved);

/* 0, or -EINVAL: @stream is none, or of another context than the device's. */
int hm_stream_of_device(struct hetmem *hm, int device, hetmem_stream stream);

/* The same of any context, without the texts; @before is what was. */
CUresult hm_current_enter(const struct hm_driver *d, CUcontext ctx,
			  CUcontext *before);
void hm_current_leave(const struct hm_driver *d, CUcontext ctx,
		      CUcontext before);

/* A number of the calling thread's, never used twice, not 0. */
uint64_t hm_thread(void);

/* Handles of a stream of the current context, or of the calling thread there. */
static inline bool hm_stream_special(hetmem_stream stream)
{
	return !stream || stream == HETMEM_STREAM_LEGACY ||
	       stream == HETMEM_STREAM_PER_THREAD;
}

/*
 * What reaches the stream that @thread calls @stream from the calling thread,
 * in the stream's context. Another thread's own stream has no handle here: the
 * legacy stream stands for it, which is behind all that it was given and ahead
 * of all that it will be.
 */
hetmem_stream hm_stream_here(hetmem_stream stream, uint64_t thread);

/* names.c */

/* Sets the thread's error text and returns @err. */
__attribute__((format(printf, 2, 3)))
int hm_error(int err, const char *fmt, ...);

/* Name of a driver's error, "CUDA_ERROR_..."; never NULL. */
const char *hm_cuda_name(const struct hm_driver *driver, CUresult res);

/* -ENOMEM, -EINTR, ... for a driver's error, with "@call: NAME" as text. */
int hm_driver_error(const struct hm_driver *driver, const char *call,
		    CUresult res);

/* kmod.c: all return 0 or a negative errno and set the error's text. */

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
 * where to go on. Locations are the module's.
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

/* @addr: in a tracked range, or NULL for the whole context. */
int hm_kmod_stats(const struct hm_kmod *kmod, const void *addr,
		  struct hetmem_cmd_stats *stats);

/* A fresh INFO; *@devices (to be freed) and *@nr as there are now. */
int hm_kmod_devices(const struct hm_kmod *kmod,
		    struct hetmem_device_info **devices, unsigned int *nr);

/* numa.c: host nodes by move_pages(2). */

bool hm_numa_there(void);
bool hm_numa_has_node(int node);
int hm_numa_nodes(void);
ssize_t hm_numa_residency(uintptr_t start, uintptr_t end, size_t page_size,
			  struct hetmem_run *runs, size_t nr, uintptr_t *next);
int hm_numa_move(uintptr_t start, uintptr_t end, size_t page_size, int node,
		 struct hetmem_moved *moved);

/* system.c */

/* Forgets all allocations; their memory stays. */
void hm_system_forget(struct hetmem *hm);

/* range.c */

/* -EEXIST it overlaps one that is there, -ENOMEM. */
int hm_range_insert(void **root, struct hm_range *range);
/* Any that overlaps [@start, @start + @size), NULL if there is none. */
struct hm_range *hm_range_find(void *const *root, uintptr_t start,
			       size_t size);
void hm_range_erase(void **root, struct hm_range *range);
/* Any one, NULL if there is none. */
struct hm_range *hm_range_any(void *const *root);

/*
 * Appends to @runs, merging with the last one if it goes on the same.
 * False: full.
 */
bool hm_run_add(struct hetmem_run *runs, size_t nr, size_t *filled,
		const struct hetmem_run *run);

#endif /* HETMEM_INTERNAL_H */
