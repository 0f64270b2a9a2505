/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Providers: where regions of memory come from. One file a provider; a pool
 * cuts regions into blocks (../resource/), and a provider alone is a resource
 * too, whose every allocation is a region (region.c).
 *
 * Two kinds. A mappable provider (vmm) has addresses and memory apart:
 * reserve addresses, create handles, map them. Every other has alloc and free
 * of whole regions. caps says which; the ops of the other kind are NULL.
 *
 * No call here is on a cached path: each may take a lock and call the driver.
 * All may be called from any thread; they make the device's context current
 * themselves and put back what was. On an error nothing has changed, and a
 * driver's call that fails half-way is undone.
 */
#ifndef HETMEM_PROVIDER_PROVIDER_H
#define HETMEM_PROVIDER_PROVIDER_H

#include "core/resource.h"
#include "driver/hetmem.h"

struct hm_provider;
struct hm_gate;

#define HM_PROVIDER_MAPPABLE	(1U << 0)	/* reserve, create, map */
#define HM_PROVIDER_HOST	(1U << 1)	/* the CPU can use it */
#define HM_PROVIDER_DEVICE	(1U << 2)	/* the device can */
#define HM_PROVIDER_STREAMED	(1U << 3)	/* alloc, free in stream order */
#define HM_PROVIDER_FORK	(1U << 4)	/* a child has it, copy-on-write */
#define HM_PROVIDER_EXPORT	(1U << 5)	/* handles can be exported */
#define HM_PROVIDER_LAZY	(1U << 6)	/* pages are there once touched */
#define HM_PROVIDER_PAGES	(1U << 7)	/* MADV_DONTNEED gives them back */
#define HM_PROVIDER_MOVES	(1U << 8)	/* a prefetch moves them */

/**
 * struct hm_provider_ops - what a kind of provider can do
 * @name: as in a spec
 * @alloc: @size bytes, a multiple of the granularity, aligned to 512; only a
 *	STREAMED provider looks at @stream
 * @free: a region, whole; all uses are complete (STREAMED: ordered)
 * @ring: @size bytes, a multiple of the granularity, mapped twice in a row; @free gets twice
 *	@size then. May be NULL
 * @held: bytes that the driver holds for it now and held at most; NULL, and
 *	false: nothing but what is allocated
 * @trim: gives back what it holds beyond that, until @keep bytes in all are left
 * @reserve: @size bytes of addresses, aligned to @align
 * @unreserve: exactly what was reserved, with nothing mapped in it
 * @create: a handle of @size bytes, a multiple of the granularity
 * @release: its memory goes when the last mapping of it does
 * @map: a whole handle, readable and writable for the device and its peers;
 *	a handle may be mapped at several addresses at once. -EUCLEAN: it has
 *	failed and so has undoing it: the handle is mapped, without access
 * @map_read: likewise, only readable. May be NULL.
 * @unmap: whole mappings; needs nothing complete on the device that does not
 *	use these addresses
 * @device: which device has the memory at @offset of a handle, and *@length: for so many
 *	bytes. NULL: the provider's
 * @export_fd: a descriptor of the caller's for a handle
 * @create_shared: as @create, with a descriptor that other processes can open, RDMA-capable where
 *	@create can make such; -EOPNOTSUPP: the driver makes none. May be NULL
 * @create_host: a handle of host memory near the device, which @map and @unmap take, too;
 *	it passes no gate. @access_host: the CPU can use a mapping of it. Both may be NULL.
 * @destroy: frees @self; what is live is the caller's mistake
 * All return 0 or a negative errno: -ENOMEM, -EOWNERDEAD in a forked child,
 * -EIO and the text names the driver's error.
 */
struct hm_provider_ops {
	const char *name;
	int (*alloc)(struct hm_provider *self, size_t size,
		     hetmem_stream stream, void **ptr);
	int (*free)(struct hm_provider *self, void *ptr, size_t size,
		    hetmem_stream stream);
	int (*ring)(struct hm_provider *self, size_t size, void **ptr);
	bool (*held)(struct hm_provider *self, uint64_t *now, uint64_t *most);
	void (*trim)(struct hm_provider *self, size_t keep);
	int (*reserve)(struct hm_provider *self, size_t size, size_t align,
		       uintptr_t *addr);
	int (*unreserve)(struct hm_provider *self, uintptr_t addr,
			 size_t size);
	int (*create)(struct hm_provider *self, size_t size, bool rdma,
		      uint64_t *handle);
	int (*release)(struct hm_provider *self, uint64_t handle);
	int (*map)(struct hm_provider *self, uintptr_t addr, size_t size,
		   uint64_t handle);
	int (*map_read)(struct hm_provider *self, uintptr_t addr, size_t size,
			uint64_t handle);
	int (*unmap)(struct hm_provider *self, uintptr_t addr, size_t size);
	int (*device)(struct hm_provider *self, uint64_t handle, size_t offset, size_t *length);
	int (*export_fd)(struct hm_provider *self, uint64_t handle, int *fd);
	int (*create_shared)(struct hm_provider *self, size_t size, uint64_t *handle);
	int (*create_host)(struct hm_provider *self, size_t size, uint64_t *handle);
	int (*access_host)(struct hm_provider *self, uintptr_t addr, size_t size);
	void (*destroy)(struct hm_provider *self);
};

/**
 * struct hm_provider - the first member of every provider's own struct
 * @ops: its kind
 * @hm: the library it lives in
 * @device: ordinal, -1 for the host
 * @caps: HM_PROVIDER_*
 * @devices: bit N: device N can use its memory
 * @granularity: bytes, a power of two
 * @total: bytes there are of this memory, 0 if that is not known
 * @handle_types: HETMEM_HANDLE_* that handles of @create can be exported as
 * @populate: threads that make the pages be there before memory is handed out; 0:
 *	they come on first touch
 * @slow_ns: a huge page that takes longer is not worth it; 0: HM_PAGES_SLOW_NS
 * @gate: bounds the memory that is made, or NULL
 */
struct hm_provider {
	const struct hm_provider_ops *ops;
	struct hetmem *hm;
	int device;
	unsigned int caps;
	uint64_t devices;
	size_t granularity;
	uint64_t total;
	unsigned int handle_types;
	unsigned int populate;
	uint64_t slow_ns;
	struct hm_gate *gate;
};

/*
 * Into the device's context, where the process may use it at all: not a
 * forked child. hm_context_leave() follows where this returned 0. In between
 * is relaxed capture mode: memory comes and goes behind the program's back,
 * whatever any of its threads captures.
 */
static inline int hm_provider_enter(struct hm_provider *self,
				    struct hm_context *saved)
{
	int err = hm_check_owner(self->hm);

	if (!err)
		err = hm_context_enter(self->hm, self->device, saved);
	if (!err)
		hm_context_relax(self->hm, saved);
	return err;
}

/* provider.c: making one. */

/* 0, or why the process cannot use @device, whose context is retained. */
int hm_provider_check(struct hetmem *hm, int device);

/*
 * @bytes, zeroed, that begin with a struct hm_provider: memory of @device alone,
 * all that it has, without rounding. NULL: no host memory; the text is set.
 */
void *hm_provider_new(struct hetmem *hm, int device,
		      const struct hm_provider_ops *ops, unsigned int caps,
		      size_t bytes);

/* The ops of these names, through the gate. Who holds memory longer calls gate.h itself. */
int hm_provider_alloc_region(struct hm_provider *self, size_t size, hetmem_stream stream,
			     void **ptr);
int hm_provider_free_region(struct hm_provider *self, void *ptr, size_t size,
			    hetmem_stream stream);
int hm_provider_alloc_ring(struct hm_provider *self, size_t size, void **ptr);
int hm_provider_free_ring(struct hm_provider *self, void *ptr, size_t size);
int hm_provider_create_handle(struct hm_provider *self, size_t size, bool rdma,
			      uint64_t *handle);
int hm_provider_create_shared(struct hm_provider *self, size_t size, uint64_t *handle);
int hm_provider_release_handle(struct hm_provider *self, uint64_t handle, size_t size);

/* hm_provider_ops.destroy of one that is only memory. */
void hm_provider_free(struct hm_provider *self);

/*
 * HM_CTL_ACCESS of a resource that is made of @self's memory. Takes no lock. In
 * a forked child no device is this process's.
 */
static inline int hm_provider_access(const struct hm_provider *self,
				     struct hm_ctl_access *arg)
{
	struct hetmem_access *access = arg->access;
	int err = hm_check_owner(self->hm);

	if (err && !(self->caps & HM_PROVIDER_FORK))
		return err;
	access->host = !!(self->caps & HM_PROVIDER_HOST);
	access->devices = err ? 0 : self->devices;
	arg->found |= arg->whose == self;
	access->some_host = access->host;
	access->some_devices = access->devices;
	return 0;
}

/* system.c: forgets all allocations of system memory; it stays. */
void hm_system_forget(struct hetmem *hm);

/* custom.c: forgets what the program registered. */
void hm_custom_close(struct hetmem *hm);

/* device.c: hm_provider_ops.free of what cuMemFree() frees. */
int hm_provider_mem_free(struct hm_provider *self, void *ptr, size_t size,
			 hetmem_stream stream);

#endif /* HETMEM_PROVIDER_PROVIDER_H */
