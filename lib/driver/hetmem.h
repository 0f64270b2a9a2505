/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The open library: its driver, its devices, the module's descriptor, and
 * what the folders above keep in it. The command includes this too, which
 * links the library statically.
 */
#ifndef HETMEM_DRIVER_HETMEM_H
#define HETMEM_DRIVER_HETMEM_H

#include "driver/driver.h"
#include "driver/memory.h"
#include "platform/kmod.h"
#include "platform/platform.h"

/**
 * struct hm_device - one device of the driver in use
 * @handle: the driver's
 * @ctx: its primary context, retained when it was first needed, else NULL
 * @platform: how it and the CPU share memory
 * @evidence: what @platform was made of; NULL only while the library is opened
 * @module_id: in hetmem.ko, or -1
 * @props: for hetmem_device_props()
 */
struct hm_device {
	CUdevice handle;
	CUcontext ctx;
	struct hetmem_platform platform;
	struct hm_platform *evidence;
	int module_id;
	struct hetmem_device_props props;
};

struct hm_place;
struct hm_attach;

/**
 * struct hm_memory_ops - what placement does about memory that the library frees
 * @gone: before the memory at @start is unmapped or freed. @hm->lock may be held.
 * @moved: after it was resized. No lock is held.
 */
struct hm_memory_ops {
	void (*gone)(struct hetmem *hm, uintptr_t start, size_t size);
	void (*moved)(struct hetmem *hm, uintptr_t start, size_t size,
		      uintptr_t new_start, size_t new_size);
};

/**
 * struct hetmem - the open library
 * @fork: holds @lock
 * @generation: hm_generation() at open; different in a forked child
 * @check: @soft in check mode, else NULL
 * @lock: protects @system and the context of each device
 * @system: tree of struct hm_range: live allocations of system memory
 * @current: resource that the program set for each device, from 1; 0: the
 *	host's; @own: that the library made; with @lock
 * @making: held while one of @own is made and while the agent starts or stops, outside
 *	of @lock and all others
 * @agent: see hint/agent.h; with @making
 * @start_agent: its start, for specs; @agent_wanted: policy that one asked for, 0: none
 * @watching: a second context that tracks what @system has; its fd is -1 if there
 *	is no agent. With @lock
 * @driver: its calls are NULL where there is no device
 * @soft: the soft driver, if that is in use
 * @kept: resources that outlive their destroy, see spec/build.c; with @lock
 * @place, @attach, @memory_ops: see place/place.h
 * @replicas: see place/replica.c; with @lock
 * @customs: registered providers of the program's own; with @lock
 * @arenas: of all resources with placement classes; with @arenas_lock, the last lock of all:
 *	placement asks what memory is with its own lock held
 * @keeps: of every headroom() of a device; with @lock
 * @pressures: calls of programs by watermark()s, of the host's memory and each device's
 * @imports: what hetmem_import() maps; with @lock
 * @imported: its bytes, for each device
 * @root: before the path of each file that memory.c reads, "" except in tests
 * @reserve: of HETMEM_RESERVE
 * The rest does not change after hetmem_open().
 */
struct hetmem {
	struct hm_fork fork;
	unsigned int generation;
	const struct hm_soft *check;
	pthread_mutex_t lock;
	pthread_mutex_t making;
	void *system;
	struct hetmem_resource *current[HM_MAX_DEVICES + 1];
	struct hetmem_resource *own[HM_MAX_DEVICES + 1];
	struct hm_kept *kept;
	struct hm_custom *customs;
	struct hm_place *place;
	struct hm_attach *attach;
	struct hm_replicas *replicas;
	const struct hm_memory_ops *memory_ops;
	struct hm_arenas *arenas;
	struct hm_lock arenas_lock;
	struct hm_keep *keeps;
	unsigned int pressures[HM_MAX_DEVICES + 1];
	struct hm_import *imports;
	uint64_t imported[HM_MAX_DEVICES];
	struct hm_agent *agent;
	void (*start_agent)(struct hetmem *hm, int policy);
	int agent_wanted;
	struct hm_kmod watching;
	struct hm_driver driver;
	const struct hm_soft *soft;
	struct hm_kmod kmod;
	size_t page_size;
	const char *root;
	struct hm_reserve reserve;
	int nr_devices;
	struct hm_device devices[HM_MAX_DEVICES];
	int available[HETMEM_FEATURE_NR];
	char reasons[HETMEM_FEATURE_NR][HM_REASON_LEN];
};

/* cuda.c */

/*
 * Loads libcuda.so.1 (again: cheap), fills *@driver and calls cuInit().
 * Returns 0 and the version and number of devices in @reason, or -ENODEV
 * and why there is no CUDA to use. The library stays loaded: a driver
 * cannot be unloaded safely.
 */
int hm_cuda_open(struct hm_driver *driver, char *reason, size_t len);

/*
 * The same of libhetmem-soft.so, from this library's own directory, else from
 * ../lib beside it, else where the loader looks; see driver/check.h.
 * @soft->close() ends it.
 * -ENODEV, -EINVAL, -ENOMEM, -EIO; @reason is set in either case.
 */
int hm_soft_open(struct hm_driver *driver, const struct hm_soft **soft,
		 const char *module_path, char *reason, size_t len);

/* device.c */

/*
 * Fills the devices of @hm from its driver. 0, -EIO or -ENOMEM;
 * hm_forget_devices() in each case.
 */
int hm_probe_devices(struct hetmem *hm);
void hm_forget_devices(struct hetmem *hm);

/*
 * Whether the memory of @device is the host's own: to copy one to the other frees nothing.
 * @device -1 is the host. HM_ONE_MEMORY: the same for users.
 */
static inline bool hm_has_one_memory(const struct hetmem *hm, int device)
{
	return device >= 0 && hm->devices[device].platform.kind == HETMEM_PLATFORM_INTEGRATED;
}

#define HM_ONE_MEMORY	"the device and the CPU have one memory, so a copy in host memory frees nothing"

/* The first device of which @node is the memory, or -1. */
int hm_device_of_node(const struct hetmem *hm, int node);

/* Whether there is a device for whose verdict @test holds. */
bool hm_any_platform(const struct hetmem *hm, bool (*test)(const struct hetmem_platform *p));

/* context.c */

/* The driver in use, as it was filled; valid until hetmem_close(). */
const struct hm_driver *hetmem_driver_table(struct hetmem *hm);

/* The module behind @hm; its fd is -1 if there is none. */
const struct hm_kmod *hetmem_kmod(struct hetmem *hm);

/* 0, or -EOWNERDEAD with its text in a forked child. */
int hm_check_owner(struct hetmem *hm);

/* What was before hm_context_enter(). All 0: nothing to put back. */
struct hm_context {
	CUcontext before;
	bool changed;
	bool relaxed;		/* and the mode it had before */
	CUstreamCaptureMode mode;
};

/*
 * Sets the error's text: why there is no such device, and what to do. @what may
 * be NULL. -ENODEV.
 */
int hm_no_device(const struct hetmem *hm, const char *what, int device);

/* The device's primary context, retained until hetmem_close(). */
int hm_device_context(struct hetmem *hm, int device, CUcontext *ctx);

/* Releases it before that: nothing of the library may use the device's memory any more. */
void hm_device_release(struct hetmem *hm, int device);

/*
 * Makes it the calling thread's; hm_context_leave() puts back what was. 0,
 * -ENODEV no such device, or the driver's error: nothing has changed then.
 */
int hm_context_enter(struct hetmem *hm, int device, struct hm_context *saved);
void hm_context_leave(struct hetmem *hm, const struct hm_context *saved);

/*
 * The same for a thread that has no context; others keep theirs, of which special
 * handles are streams.
 */
int hm_context_default(struct hetmem *hm, int device, struct hm_context *saved);

/*
 * After hm_context_enter(), until hm_context_leave(): calls that are illegal
 * while some stream is captured are not. Captured streams themselves are not
 * for them.
 */
void hm_context_relax(struct hetmem *hm, struct hm_context *saved);

/* 0, or -EINVAL: @stream is none, or of another context than the device's. */
int hm_stream_of_device(struct hetmem *hm, int device, hetmem_stream stream);

/* The same of any context, without the texts; @before is what was. */
CUresult hm_current_enter(const struct hm_driver *d, CUcontext ctx, CUcontext *before);
void hm_current_leave(const struct hm_driver *d, CUcontext ctx, CUcontext before);

/*
 * Lets the calling thread make calls that are illegal while some stream is
 * captured; returns what to hand to hm_capture_mode() afterwards.
 */
CUstreamCaptureMode hm_capture_relaxed(struct hetmem *hm);
void hm_capture_mode(struct hetmem *hm, CUstreamCaptureMode mode);
bool hm_capture_active(struct hetmem *hm, hetmem_stream stream);
/* 1: @stream is captured, or waits for one that is; 0: it is not; an errno: nobody knows. */
int hm_capture_ask(struct hetmem *hm, hetmem_stream stream);

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

/* Name of a driver's error, "CUDA_ERROR_..."; never NULL. */
const char *hm_cuda_name(const struct hm_driver *driver, CUresult res);

/* -ENOMEM, -EINTR, ... for a driver's error, with "@call: NAME" as text. */
int hm_driver_error(const struct hm_driver *driver, const char *call, CUresult res);

#endif /* HETMEM_DRIVER_HETMEM_H */
