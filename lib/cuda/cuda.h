/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libhetmem-cuda.so: it stands between a program and libcuda.so.1, so that the program's
 * device memory comes from a spec.
 *
 * entry.c has what the linker sees: a symbol for each function of the driver (calls.h), behind
 * the gate of gate.c, and dlsym() and dlvsym(). reach.c finds the driver and replaces the
 * driver's functions wherever a program asks for them. alloc.c serves allocations, charge.c
 * charges what the driver allocates, handle.c what the program makes by cuMemCreate(), array.c
 * arrays. pool.c answers for the default pool, peer.c gives peers access, graph.c charges graphs.
 * context.c follows primary contexts and captures. world.c opens the library and the resource of
 * a device at the first served call; block.c knows what is allocated. listen.c answers other
 * processes: sleep.c lets the process sleep, ipc.c shares memory.
 *
 * libhetmem.a is part of this object, and calls the driver itself: it never calls in here.
 *
 * Rules. A served call first makes a call of the driver that cannot succeed, and returns its
 * error if that is not the expected one: so a failed context, a capture, a forked child and a
 * thread without a context get the driver's own error. What is not served goes to the driver.
 * Without HETMEM_CUDA_SPEC everything passes and nothing is counted.
 */
#ifndef HETMEM_CUDA_CUDA_H
#define HETMEM_CUDA_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "adaptor/adaptor.h"
#include "core/core.h"
#include "cuda/calls.h"
#include "cuda/gate.h"
#include "cuda/settings.h"
#include "driver/hetmem.h"

/*
 * A function that entry.c exports, behind the gate. The linker sees the C function by another
 * name, hm_served_NAME.
 */
#define HM_CUDA_EXPORT	__attribute__((visibility("default")))
#define HM_CUDA_NO_PRAGMA(name)
#define HM_CUDA_PRAGMA(text)	_Pragma(#text)
#define HM_CUDA_RENAME(name)	HM_CUDA_PRAGMA(redefine_extname name hm_served_##name)
HM_CUDA_CALLS(HM_CUDA_NO_PRAGMA, HM_CUDA_RENAME)

/* Indexes of names. */
enum hm_cuda_call {
#define CALL(name)	HM_CUDA_##name,
	HM_CUDA_CALLS(CALL, CALL)
#undef CALL
	HM_CUDA_NR
};

/* entry.c */

/* Calls by name. */
extern uint64_t hm_cuda_counts[HM_CUDA_NR];
/* The function behind each one here. Before its first call: a jump that finds it. */
extern void *hm_cuda_next[HM_CUDA_NR];

/* The functions of this object, for reach.c. */
extern void *const hm_cuda_own[HM_CUDA_NR];
extern const char *const hm_cuda_names[HM_CUDA_NR];

/* Where a call goes on that was not let in at once: at its beginning. */
void *hm_cuda_pause(unsigned int call);

/* reach.c */

/* Whether HETMEM_CUDA_SPEC is set. False: nothing is interposed. Constructors may call it. */
bool hm_cuda_is_active(void);
/* Functions that cuGetProcAddress() returned in a version that calls.h does not have. */
extern uint64_t hm_cuda_unknown;

/*
 * The next function of that name: of an interposer behind this one, else the driver's. Never
 * NULL: a function that is not there returns CUDA_ERROR_NOT_FOUND.
 */
void *hm_cuda_find(unsigned int call);

/* The next function, typed as the function of the same name in this object. */
#define HM_CUDA_NEXT(name)	HM_CUDA_NEXT_AS(name, __typeof__(&name))

/* The same, with a type. */
#define HM_CUDA_NEXT_AS(name, type)	\
	((type)__atomic_load_n(&hm_cuda_next[HM_CUDA_##name], __ATOMIC_RELAXED))

/* Counts a call of a function of this object. */
#define HM_CUDA_COUNT(name)	\
	__atomic_add_fetch(&hm_cuda_counts[HM_CUDA_##name], 1, __ATOMIC_RELAXED)

/* world.c */

/**
 * struct hm_cuda_device - a device whose primary context a program uses
 * @hm: the library, NULL until the device is opened
 * @resource: of the spec, for this device
 * @ctx: the primary context; NULL: the device is not open
 * @handle: the driver's
 */
struct hm_cuda_device {
	struct hetmem *hm;
	struct hetmem_resource *resource;
	CUcontext ctx;
	CUdevice handle;
};

/* One line on stderr, "hetmem: cuda: " before it. */
__attribute__((format(printf, 1, 2)))
void hm_cuda_say(const char *fmt, ...);

/*
 * HETMEM_CUDA_SET. sync: cuMemFree() waits for earlier work. managed: cuMemAllocManaged() is
 * served. ipc: the driver makes all memory of cuMemAlloc().
 */
#define HM_CUDA_DECLARE(name)	extern bool hm_cuda_##name;
HM_CUDA_SWITCHES(HM_CUDA_DECLARE)
#undef HM_CUDA_DECLARE

/* Reads the variables. True: programs are served. A spec that is wrong ends the process. */
bool hm_cuda_read_settings(void);

/* Whether this process is a forked child of the process that opened a device. */
bool hm_cuda_is_child(void);

/*
 * The device whose primary context @ctx is, opened if it is not yet. NULL: @ctx is another
 * context, NULL, or in a forked child; the call passes. *@error: CUDA_SUCCESS, or what the
 * call returns because the spec has no resource on this device.
 */
struct hm_cuda_device *hm_cuda_device(CUcontext ctx, CUresult *error);

/* The device of that handle, opened if it is not yet. NULL: no such device, or as above. */
struct hm_cuda_device *hm_cuda_device_of(CUdevice handle, CUresult *error);

/* The device if it is open, by the driver's handle. */
struct hm_cuda_device *hm_cuda_open_device(CUdevice handle);

/* The driver's handle of the device of @ctx. False: it has none. */
bool hm_cuda_device_of_context(CUcontext ctx, CUdevice *handle);

/* The library's number of the device. */
int hm_cuda_ordinal(const struct hm_cuda_device *device);

/* Calls @each for all open devices. */
void hm_cuda_each_device(void (*each)(struct hm_cuda_device *device, void *arg), void *arg);

/*
 * Frees all blocks of the device and forgets its context, which the driver is about to
 * destroy. The next served call opens the device again.
 */
void hm_cuda_end_device(CUdevice handle);

/* block.c */

enum hm_cuda_kind {
	HM_CUDA_SERVED,		/* allocated by cuMemAlloc() and the like */
	HM_CUDA_ASYNC,		/* allocated by cuMemAllocAsync() and the like */
	HM_CUDA_MANAGED,	/* allocated by cuMemAllocManaged() */
	HM_CUDA_CHARGED,	/* the driver's, charged to the limit */
	HM_CUDA_OPENED,		/* another process's, by cuIpcOpenMemHandle() */
};

/**
 * struct hm_cuda_block - memory of a device
 * @range: the bytes that were asked for
 * @next: for hm_cuda_block_drop()
 * @device: that it is charged to
 * @ctx: that it was allocated in
 * @pool: of HM_CUDA_ASYNC: the driver's pool that the program asked, NULL: the default one
 * @id: CU_POINTER_ATTRIBUTE_BUFFER_ID
 */
struct hm_cuda_block {
	struct hm_range range;
	struct hm_cuda_block *next;
	enum hm_cuda_kind kind;
	CUdevice device;
	CUcontext ctx;
	CUmemoryPool pool;
	unsigned long long id;
};

/* Adds a copy of @block with an id of its own. False: no host memory, or it overlaps. */
bool hm_cuda_block_add(const struct hm_cuda_block *block);
/* Copies the block around @ptr. */
bool hm_cuda_block_find(CUdeviceptr ptr, struct hm_cuda_block *block);
/* Removes the block that begins at @ptr, if it is of a kind in @kinds (1 << kind). */
bool hm_cuda_block_take(CUdeviceptr ptr, unsigned int kinds, struct hm_cuda_block *block);
/* Puts back a block that hm_cuda_block_take() removed. */
void hm_cuda_block_put(const struct hm_cuda_block *block);
/* Removes all blocks of the device, or of @ctx if that is not NULL, and calls @each for them. */
void hm_cuda_block_drop(CUdevice device, CUcontext ctx,
			void (*each)(const struct hm_cuda_block *block));

/* Bytes of blocks that the driver allocated for the program. */
uint64_t hm_cuda_block_charged(void);

/* Memory that the library has from the driver: a program must not free it by its address. */
void hm_cuda_region_add(CUdeviceptr ptr);
void hm_cuda_region_remove(CUdeviceptr ptr);
bool hm_cuda_is_region(CUdeviceptr ptr);

/* An address that no allocation has. */
#define HM_CUDA_NO_ADDRESS	((CUdeviceptr)1)

/* What cuMemFreeAsync() frees, and what cuMemFree() does. */
#define HM_CUDA_KINDS_ORDERED	(1U << HM_CUDA_SERVED | 1U << HM_CUDA_ASYNC)
#define HM_CUDA_KINDS_SERVED	(HM_CUDA_KINDS_ORDERED | 1U << HM_CUDA_MANAGED)

/* context.c */

/* Whether a stream of the process may be captured now. */
bool hm_cuda_is_capturing(void);

/* The current context; NULL: none, or an error. */
CUcontext hm_cuda_current(void);

/* alloc.c */

/* Allocates from the device's resource, and notes the block. */
CUresult hm_cuda_alloc(struct hm_cuda_device *device, enum hm_cuda_kind kind, size_t size,
		       CUstream stream, CUmemoryPool pool, CUdeviceptr *ptr);
/* CUDA_SUCCESS: a correct cuMemAlloc() would succeed here. */
CUresult hm_cuda_probe_alloc(void);
/* Waits for all earlier work of the device's context @ctx, also during a capture. */
CUresult hm_cuda_wait_for_work(CUcontext ctx);
/* Gives a block back that was taken from the table. */
CUresult hm_cuda_free(const struct hm_cuda_block *block, CUstream stream);

/* peer.c */

/* From here on the peers of a device get access to what the library maps there. */
void hm_cuda_peer_wrap(struct hm_driver *driver);
/* The device's context ends, and with it the access that it gave and was given. */
void hm_cuda_peer_forget(CUdevice device);

#include "cuda/charge.h"

#endif /* HETMEM_CUDA_CUDA_H */
