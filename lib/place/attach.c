// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Attaching: devices can use foreign host memory in place.
 *
 * Devices that use all memory of the process need no registration. For others the
 * memory is registered with the driver, once: a copy across two registrations fails.
 * Attachments within a registration share it; it ends with the last of them. Each
 * attachment keeps its owner alive until the attachment ends.
 *
 * Memory that is unmapped while it is registered stays pinned, and writes of a device are
 * lost without an error. The module reports munmap(2) and mremap(2): a separate context
 * tracks every registration, and a thread ends those that are unmapped. Pending events
 * are handled before the next attachment, so that new memory at an old address finds no
 * stale registration. If events were lost, registrations with a hole end. Without the
 * module the owner keeps the memory mapped.
 *
 * When a registration ends, forked children get its memory again (MADV_DOFORK), except
 * what was unmapped: other memory can be mapped there.
 *
 * attach->lock protects everything, driver calls included. It is taken after a context is
 * current. Owners are released without the lock.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "place/place.h"
#include "platform/kmod_hint.h"

#define ENTRIES	1024

/* Lists of attachments: a program may attach each of its buffers. */
#define LIST_BITS	12
#define LISTS		(1U << LIST_BITS)

/**
 * struct registration - memory that is registered with the driver
 * @range: bytes, in attach->registered
 * @chunk: bytes of each piece; 0: one piece
 * @flags: CU_MEMHOSTREGISTER_*
 * @nr: attachments that use it
 * @start, @end: pages that the module tracks; equal: none
 * @fork_start, @fork_end: pages that a forked child does not get
 * @holed: the next registration with a hole, while these are looked for
 */
struct registration {
	struct hm_range range;
	size_t chunk;
	unsigned int flags;
	unsigned long nr;
	uintptr_t start;
	uintptr_t end;
	uintptr_t fork_start;
	uintptr_t fork_end;
	struct registration *holed;
};

/**
 * struct attachment - one successful hetmem_attach()
 * @next: in the list of its address
 * @reg: NULL: the devices need no registration
 */
struct attachment {
	struct attachment *next;
	uintptr_t ptr;
	size_t size;
	struct registration *reg;
	void (*release)(void *owner);
	void *owner;
};

/**
 * struct hm_attach - of an open library
 * @device: its context registers memory, -1: no device needs that
 * @fd: context of the module, -1: not opened; @ring: its events
 * @stop_fd: an eventfd that ends @thread
 * @dropped: events lost when the ring was read last
 */
struct hm_attach {
	struct hetmem *hm;
	struct hm_lock lock;
	int device;
	void *registered;
	struct attachment *lists[LISTS];
	int fd;
	int stop_fd;
	bool stop;
	uint64_t dropped;
	struct hm_ring ring;
	pthread_t thread;
};

static struct attachment **list_of(struct hm_attach *at, uintptr_t ptr)
{
	/* The top bits of a product depend on all bits of the address. */
	return &at->lists[ptr * 0x9e3779b97f4a7c15ULL >> (64 - LIST_BITS)];
}

/* Lock not held. Releases the owners of ended attachments, and frees these. */
static void release(struct attachment *a)
{
	while (a) {
		struct attachment *next = a->next;

		if (a->release)
			a->release(a->owner);
		free(a);
		a = next;
	}
}

static size_t chunk_end(const struct hetmem *hm, uintptr_t at, uintptr_t end,
			size_t chunk)
{
	const uintptr_t next = (at & ~(hm->page_size - 1)) + chunk;

	return chunk && next > at && next < end ? next : end;
}

/* Unregisters the chunks before @to, also after a failure. */
static void unregister(struct hetmem *hm, const struct registration *reg, uintptr_t to)
{
	uintptr_t at = reg->range.start;

	for (; at < to; at = chunk_end(hm, at, reg->range.end, reg->chunk))
		hm_retry_once(hm->driver.cuMemHostUnregister((void *)at));
}

/* The chunks before @to, or none. */
static CUresult register_chunks(struct hetmem *hm, const struct registration *reg,
				uintptr_t to)
{
	uintptr_t at = reg->range.start, next;
	CUresult res;

	for (; at < to; at = next) {
		next = chunk_end(hm, at, reg->range.end, reg->chunk);
		res = hm->driver.cuMemHostRegister((void *)at, next - at, reg->flags);
		if (!res)
			continue;
		unregister(hm, reg, at);
		return res;
	}
	return CUDA_SUCCESS;
}

/*
 * All chunks, or none: if one fails, those before it are registered again. If that
 * fails too, they are not: then the next try finds them so.
 */
static CUresult unregister_chunks(struct hetmem *hm, const struct registration *reg)
{
	uintptr_t at = reg->range.start;
	CUresult res;

	for (; at < reg->range.end; at = chunk_end(hm, at, reg->range.end, reg->chunk)) {
		res = hm->driver.cuMemHostUnregister((void *)at);
		if (!res || res == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
			continue;
		register_chunks(hm, reg, at);
		return res;
	}
	return CUDA_SUCCESS;
}

static struct hm_kmod context_of(const struct hm_attach *at)
{
	return (struct hm_kmod){ .fd = at->fd };
}

static void untrack(const struct hm_attach *at, struct registration *reg)
{
	const struct hm_kmod kmod = context_of(at);

	if (reg->start < reg->end)
		hm_kmod_untrack(&kmod, reg->start, reg->end);
	reg->start = reg->end = 0;
}

/* Puts the attachments of @reg, or all if it is NULL, before @taken. Returns their number. */
static unsigned long take_from(struct attachment **link, const struct registration *reg,
			       struct attachment **taken)
{
	unsigned long nr = 0;
	struct attachment *a;

	while ((a = *link)) {
		if (reg && a->reg != reg) {
			link = &a->next;
			continue;
		}
		*link = a->next;
		a->next = *taken;
		*taken = a;
		nr++;
	}
	return nr;
}

/* With the lock. Takes the attachments of @reg off the lists, and frees @reg. */
static struct attachment *take_all(struct hm_attach *at, struct registration *reg)
{
	struct attachment *taken = NULL;
	size_t i;

	for (i = 0; i < LISTS && reg->nr; i++)
		reg->nr -= take_from(&at->lists[i], reg, &taken);
	untrack(at, reg);
	hm_range_erase(&at->registered, &reg->range);
	free(reg);
	return taken;
}

/* Puts @more before @list. */
static void join(struct attachment **list, struct attachment *more)
{
	struct attachment **end = &more;

	while (*end)
		end = &(*end)->next;
	*end = *list;
	*list = more;
}

static void let_children_have(uintptr_t start, uintptr_t end)
{
	if (start < end)
		madvise((void *)start, end - start, MADV_DOFORK);
}

/*
 * With the lock. Ends @reg, of which [@start, @end) was unmapped: other memory may be there,
 * which some other part of the program keeps from children.
 */
static void end_registration(struct hm_attach *at, struct registration *reg,
			     uintptr_t start, uintptr_t end, struct attachment **ended)
{
	unregister(at->hm, reg, reg->range.end);
	let_children_have(reg->fork_start, start < reg->fork_end ? start : reg->fork_end);
	let_children_have(end > reg->fork_start ? end : reg->fork_start, reg->fork_end);
	join(ended, take_all(at, reg));
}

/* With the lock. Ends all registrations that overlap the unmapped [@start, @end). */
static void end_unmapped(struct hm_attach *at, uintptr_t start, uintptr_t end,
			 struct attachment **ended)
{
	struct registration *reg;

	while ((reg = (void *)hm_range_find(&at->registered, start, end - start)))
		end_registration(at, reg, start, end, ended);
	hm_place_unmapped(at->hm, start, end);
}

/* Registrations with a hole. */
struct holed {
	struct hm_maps maps;
	struct registration *first;
};

static void find_hole(struct hm_range *range, void *arg)
{
	struct registration *reg = (struct registration *)range;
	struct holed *holed = arg;
	uintptr_t addr = range->start;
	struct hm_vma vma;

	while (addr < range->end && hm_maps_next(&holed->maps, addr, &vma) &&
	       vma.start <= addr)
		addr = vma.end;
	if (addr >= range->end)
		return;
	reg->holed = holed->first;
	holed->first = reg;
}

/* With the lock. One pass over the registrations and the mappings that they are in. */
static void end_holed(struct hm_attach *at, struct attachment **ended)
{
	struct holed holed = { .first = NULL };
	struct registration *reg;

	if (hm_maps_open(&holed.maps))
		return;
	hm_range_walk(&at->registered, find_hole, &holed);
	hm_maps_close(&holed.maps);
	while ((reg = holed.first)) {
		holed.first = reg->holed;
		end_registration(at, reg, reg->fork_start, reg->fork_start, ended);
	}
}

/*
 * With the lock. Handles the events that there are when it is called, at most all of the
 * ring: the program can add events without end.
 */
static void handle_events(struct hm_attach *at, struct attachment **ended)
{
	struct hetmem_event event;
	uint64_t dropped;
	unsigned int i;

	if (!at->ring.header)
		return;
	for (i = 0; i < at->ring.header->nr_entries && hm_ring_next(&at->ring, &event); i++)
		if (event.type == HETMEM_EVENT_INVALIDATED &&
		    event.cause == HETMEM_CHANGE_UNMAP)
			end_unmapped(at, event.start, event.end, ended);
	dropped = __atomic_load_n(&at->ring.header->dropped[HETMEM_EVENT_INVALIDATED],
				  __ATOMIC_RELAXED);
	if (dropped == at->dropped)
		return;
	at->dropped = dropped;
	end_holed(at, ended);
}

static void *watch(void *arg)
{
	struct hm_attach *at = arg;
	struct pollfd fds[2] = {
		{ .fd = at->fd, .events = POLLIN },
		{ .fd = at->stop_fd, .events = POLLIN },
	};

	while (hm_ring_wait(&at->ring, fds, 2, &at->stop, -1)) {
		struct attachment *ended = NULL;
		struct hm_context saved;

		if (hm_context_enter(at->hm, at->device, &saved))
			break;
		hm_context_relax(at->hm, &saved);
		hm_lock(&at->lock);
		handle_events(at, &ended);
		hm_unlock(&at->lock);
		hm_context_leave(at->hm, &saved);
		release(ended);
	}
	return NULL;
}

/* Signals are the program's: none is delivered to our thread. */
static int start_thread(struct hm_attach *at)
{
	sigset_t all, before;
	int err;

	at->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (at->stop_fd < 0)
		return -errno;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&at->thread, NULL, watch, at);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		close(at->stop_fd);
		return -err;
	}
	pthread_setname_np(at->thread, "hetmem-unmap");
	return 0;
}

static void close_context(struct hm_attach *at)
{
	hm_ring_close(&at->ring);
	close(at->fd);
	at->fd = -1;
}

/* With the lock. Opens the context and starts the thread, if not done before. */
static int start_watch(struct hm_attach *at)
{
	int err;

	if (at->fd >= 0)
		return 0;
	at->fd = hm_kmod_context(&at->hm->kmod);
	if (at->fd < 0)
		return at->fd;
	err = hm_ring_open(&at->ring, at->fd, ENTRIES,
			   1ULL << HETMEM_EVENT_INVALIDATED);
	if (!err)
		err = start_thread(at);
	if (err)
		close_context(at);
	return err;
}

/*
 * With the lock. A page at either end that another registration shares is tracked for
 * that registration.
 */
static int track(struct hm_attach *at, struct registration *reg,
		 const struct hm_span *span)
{
	const size_t page = at->hm->page_size;
	uintptr_t start = span->start, end = span->end;
	struct hm_kmod kmod;
	int err = start_watch(at);

	if (err)
		return err;
	if (hm_range_find(&at->registered, start, page))
		start += page;
	if (start < end && hm_range_find(&at->registered, end - page, page))
		end -= page;
	if (start >= end)
		return 0;
	kmod = context_of(at);
	err = hm_kmod_track(&kmod, start, end);
	if (err)
		return err;
	reg->start = start;
	reg->end = end;
	return 0;
}

/* Looks at the mappings of @span. */
static int look(const struct hm_span *span, bool *read_only, uint32_t *why)
{
	uintptr_t at = span->start;
	struct hm_maps maps;
	struct hm_vma vma;
	int err = hm_maps_open(&maps);

	if (err)
		return err;
	while (!err && at < span->end) {
		if (!hm_maps_next(&maps, at, &vma) || vma.start > at)
			err = hm_error(-EINVAL, "attach: nothing is mapped at %#lx: attach mapped memory only",
				       (long)at);
		else if (!vma.readable)
			err = hm_error(-EACCES, "attach: the memory at %#lx cannot be read: give it PROT_READ",
				       (long)at);
		else
			at = vma.end;
		if (!err) {
			*read_only = *read_only || !vma.writable;
			*why |= vma.why;
		}
	}
	hm_maps_close(&maps);
	return err;
}

static int register_error(struct hetmem *hm, CUresult res, bool read_only, uint32_t why)
{
	const char *name = hm_cuda_name(&hm->driver, res);
	int err = res == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? -EEXIST :
		res == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM :
		res == CUDA_ERROR_NOT_SUPPORTED || res == CUDA_ERROR_NOT_PERMITTED ?
		-EOPNOTSUPP : res == CUDA_ERROR_INVALID_VALUE ? -EINVAL : -EIO;

	return hm_error(err, "attach: %s driver: cuMemHostRegister: %s%s",
			hm->driver.name, name, read_only ?
			": the memory is read-only: make it writable, or copy it" : why & HETMEM_WHY_FILE ?
			": files cannot be pinned everywhere: copy it to memory" : "");
}

static int keep_from_children(const struct hetmem *hm, struct registration *reg)
{
	const uintptr_t mask = hm->page_size - 1;
	int err;

	reg->fork_start = (reg->range.start + mask) & ~mask;
	reg->fork_end = reg->range.end & ~mask;
	if (reg->fork_start >= reg->fork_end ||
	    !madvise((void *)reg->fork_start, reg->fork_end - reg->fork_start,
		     MADV_DONTFORK))
		return 0;
	/* Some mappings may have it. */
	err = errno == ENOMEM ? -ENOMEM : -EINVAL;
	let_children_have(reg->fork_start, reg->fork_end);
	return hm_error(err, "attach: HETMEM_ATTACH_DONTFORK: madvise: %s: attach whole mappings, or leave out this flag",
			strerror(-err));
}

/* With the lock. */
static int make_registration(struct hm_attach *at, const struct hm_span *span,
			     const struct hetmem_attach_params *params,
			     struct registration **out, struct hetmem_moved *done)
{
	struct registration *reg;
	bool read_only = false;
	uint32_t why = 0;
	CUresult res;
	int err = look(span, &read_only, &why);

	if (err)
		return err;
	reg = calloc(1, sizeof(*reg));
	if (!reg)
		return hm_error(-ENOMEM, "attach: no memory");
	reg->range.start = (uintptr_t)span->ptr;
	reg->range.end = (uintptr_t)span->ptr + span->size;
	reg->chunk = params->chunk;
	reg->flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	/* Track before registering, so that no munmap(2) is missed. */
	err = track(at, reg, span);
	if (err && !params->release && !(params->flags & HETMEM_ATTACH_PROMISE)) {
		hm_error(-EINVAL, "attach: hetmem.ko does not report when this memory is unmapped: set params->release, or HETMEM_ATTACH_PROMISE and detach before you unmap");
		err = -EINVAL;
		goto fail;
	}
	err = hm_range_insert(&at->registered, &reg->range);
	if (err) {
		hm_error(err, "attach: no memory");
		goto fail_track;
	}
	if (params->flags & HETMEM_ATTACH_DONTFORK) {
		err = keep_from_children(at->hm, reg);
		if (err)
			goto fail_insert;
	}
	if (read_only)
		reg->flags |= CU_MEMHOSTREGISTER_READ_ONLY;
	res = register_chunks(at->hm, reg, reg->range.end);
	if (res) {
		err = register_error(at->hm, res, read_only, why);
		goto fail_fork;
	}
	done->how = "driver";
	if (read_only)
		done->reason = "part of it is read-only: the device may only read all of it";
	*out = reg;
	return 0;

fail_fork:
	let_children_have(reg->fork_start, reg->fork_end);
fail_insert:
	hm_range_erase(&at->registered, &reg->range);
fail_track:
	untrack(at, reg);
fail:
	free(reg);
	return err;
}

/* With the lock. */
static int find_or_register(struct hm_attach *at, const struct hm_span *span,
			    const struct hetmem_attach_params *params,
			    struct registration **out, struct hetmem_moved *done)
{
	const uintptr_t start = (uintptr_t)span->ptr, end = start + span->size;
	struct registration *reg;
	bool read_only = false;
	uint32_t why = 0;

	*out = NULL;
	reg = (void *)hm_range_find(&at->registered, start, span->size);
	if (reg && (reg->range.start > start || reg->range.end < end))
		return hm_error(-EEXIST, "attach: [%p, +%zu) overlaps attached memory [%#lx, %#lx), and a copy across two registrations fails: detach it and attach all at once",
				span->ptr, span->size, (long)reg->range.start,
				(long)reg->range.end);
	if (reg) {
		*out = reg;
		done->reason = "it is part of attached memory";
	} else if (span->memory == HM_MANAGED) {
		done->reason = "managed memory: the devices use it as it is";
	} else if (span->memory == HM_PINNED) {
		done->reason = "page-locked memory: the devices use it as it is";
	} else if (at->device < 0) {
		done->reason = "the devices use all memory of the process";
		return look(span, &read_only, &why);
	} else {
		return make_registration(at, span, params, out, done);
	}
	return 0;
}

static const struct hetmem_attach_params no_params = {
	.size = sizeof(no_params),
};

static int check_attach(struct hetmem *hm, const struct hetmem_attach_params *params,
			const struct hm_span *span)
{
	int i;

	if (params->size < sizeof(*params))
		return hm_error(-EINVAL, "attach: params->size is %zu, set it to sizeof(struct hetmem_attach_params)",
				params->size);
	if (params->flags & ~(HETMEM_ATTACH_PROMISE | HETMEM_ATTACH_DONTFORK))
		return hm_error(-EINVAL, "attach: unknown flags %#x: use HETMEM_ATTACH_*", params->flags);
	if (params->chunk & (hm->page_size - 1))
		return hm_error(-EINVAL, "attach: chunk is %zu, make it a multiple of %zu",
				params->chunk, hm->page_size);
	if (!hm->nr_devices)
		return hm_no_device(hm, "attach", 0);
	if (span->memory == HM_DRIVERS_OWN)
		return hm_error(-EINVAL, "attach: %p is memory of the driver's own: attach host memory only",
				span->ptr);
	if (hm->attach->device < 0)
		return 0;
	for (i = 0; i < hm->nr_devices; i++) {
		const struct hetmem_platform *p = &hm->devices[i].platform;

		if (!p->pageable && p->registers && p->registered)
			return 0;
	}
	return hm_error(-EOPNOTSUPP, "attach: device %d uses no registered memory at the CPU's address: copy it to memory of the device",
			hm->attach->device);
}

/*
 * Sets @span->memory to the kind of its first byte if all of it is of that kind, else to
 * HM_PAGEABLE: then find_or_register() or the driver refuses it. The driver is asked
 * twice for each of its blocks in @span.
 */
static int find_kind(struct hetmem *hm, struct hm_span *span)
{
	CUpointer_attribute ask[2] = { CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
				       CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	const uintptr_t end = (uintptr_t)span->ptr + span->size;
	uintptr_t at = (uintptr_t)span->ptr;
	CUdeviceptr start;
	size_t size;
	void *data[2] = { &start, &size };

	enum hm_memory memory;
	int err = hm_memory_of(hm, span->ptr, &span->memory);

	/* Of these the two ends must do. */
	if (span->memory == HM_PAGEABLE || span->memory == HM_DRIVERS_OWN)
		at = end - 1;
	while (!err && at < end) {
		err = hm_memory_of(hm, (void *)at, &memory);
		if (err || memory != span->memory) {
			span->memory = HM_PAGEABLE;
			break;
		}
		start = size = 0;
		if (at == end - 1)
			break;
		/* If the driver does not know the block, too. */
		if (hm->driver.cuPointerGetAttributes(2, ask, data, at) || start > at ||
		    start + size <= at)
			at = end - 1;
		else
			at = start + size;
	}
	return err;
}

static int attach(struct hetmem *hm, const struct hm_span *span,
		  const struct hetmem_attach_params *params, struct hetmem_moved *done)
{
	struct hm_attach *at = hm->attach;
	struct attachment *a, **list = list_of(at, (uintptr_t)span->ptr), *ended = NULL;
	struct hm_context saved;
	int err;

	a = malloc(sizeof(*a));
	if (!a)
		return hm_error(-ENOMEM, "attach: no memory");
	err = hm_context_enter(hm, at->device < 0 ? 0 : at->device, &saved);
	if (err) {
		free(a);
		return err;
	}
	hm_context_relax(hm, &saved);
	hm_lock(&at->lock);
	handle_events(at, &ended);
	*a = (struct attachment){
		.ptr = (uintptr_t)span->ptr, .size = span->size,
		.release = params->release, .owner = params->owner,
	};
	err = find_or_register(at, span, params, &a->reg, done);
	if (!err) {
		if (a->reg)
			a->reg->nr++;
		a->next = *list;
		*list = a;
	}
	hm_unlock(&at->lock);
	hm_context_leave(hm, &saved);
	if (err)
		free(a);
	release(ended);
	return err;
}

int hetmem_attach(struct hetmem *hm, void *ptr, size_t size,
		  const struct hetmem_attach_params *params, struct hetmem_moved *done)
{
	struct hetmem_moved result = hm_nothing_moved;
	struct hm_span span;
	int err = hm_place_enter(hm, "attach", done);

	if (err)
		return err;
	if (!params)
		params = &no_params;
	err = hm_place_pages(hm, "attach", ptr, size, &span);
	if (!err)
		err = find_kind(hm, &span);
	if (!err)
		err = check_attach(hm, params, &span);
	if (!err)
		err = attach(hm, &span, params, &result);
	if (done) {
		result.size = done->size;
		*done = result;
	}
	return err;
}

/* With the lock. NULL: the range is not attached. */
static struct attachment **find_attachment(struct hm_attach *at, const void *ptr,
					   size_t size)
{
	struct attachment **link = list_of(at, (uintptr_t)ptr);

	for (; *link; link = &(*link)->next)
		if ((*link)->ptr == (uintptr_t)ptr && (*link)->size == size)
			return link;
	return NULL;
}

/* With the lock. -EIO: the attachment stays. */
static int end_one(struct hm_attach *at, struct attachment **link)
{
	struct attachment *a = *link;
	struct registration *reg = a->reg;
	CUresult res = CUDA_SUCCESS;

	if (reg && reg->nr == 1)
		res = unregister_chunks(at->hm, reg);
	if (res)
		return hm_driver_error(&at->hm->driver, "cuMemHostUnregister", res);
	*link = a->next;
	a->next = NULL;
	if (reg && !--reg->nr) {
		let_children_have(reg->fork_start, reg->fork_end);
		untrack(at, reg);
		hm_range_erase(&at->registered, &reg->range);
		free(reg);
	}
	return 0;
}

int hetmem_detach(struct hetmem *hm, void *ptr, size_t size)
{
	struct attachment **link, *a = NULL, *ended = NULL;
	struct hm_context saved;
	struct hm_attach *at;
	int err = hm_place_enter(hm, "detach", NULL);

	if (err)
		return err;
	if (!hm->nr_devices)
		return hm_no_device(hm, "detach", 0);
	at = hm->attach;
	err = hm_context_enter(hm, at->device < 0 ? 0 : at->device, &saved);
	if (err)
		return err;
	hm_context_relax(hm, &saved);
	hm_lock(&at->lock);
	handle_events(at, &ended);
	link = find_attachment(at, ptr, size);
	if (link) {
		a = *link;
		err = end_one(at, link);
	} else {
		err = hm_error(-ENOENT, "detach: [%p, +%zu) is not attached, or was unmapped: give ptr and size as attached",
			       ptr, size);
	}
	hm_unlock(&at->lock);
	hm_context_leave(hm, &saved);
	if (!err)
		release(a);
	release(ended);
	return err;
}

int hm_attach_open(struct hetmem *hm)
{
	struct hm_attach *at = calloc(1, sizeof(*at));
	int i;

	if (!at)
		return hm_error(-ENOMEM, "open: no memory");
	at->hm = hm;
	at->fd = -1;
	at->device = -1;
	for (i = hm->nr_devices - 1; i >= 0; i--)
		if (!hm->devices[i].platform.pageable)
			at->device = i;
	hm_lock_init(&at->lock, HM_FORK_PLACE);
	hm->attach = at;
	return 0;
}

static void stop_thread(struct hm_attach *at)
{
	const uint64_t one = 1;

	__atomic_store_n(&at->stop, true, __ATOMIC_RELEASE);
	while (write(at->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(at->thread, NULL);
}

static void end_all(struct hm_attach *at)
{
	const bool is_owner = at->hm->generation == hm_generation();
	struct attachment *a = NULL, *next;
	struct registration *reg;
	struct hm_context saved;
	bool entered = is_owner && at->registered &&
		       !hm_context_enter(at->hm, at->device, &saved);
	size_t i;

	/* An owner may ask to detach others: nothing is attached any more. */
	for (i = 0; i < LISTS; i++)
		take_from(&at->lists[i], NULL, &a);
	while ((reg = (void *)hm_range_any(&at->registered))) {
		if (entered) {
			unregister(at->hm, reg, reg->range.end);
			let_children_have(reg->fork_start, reg->fork_end);
		}
		hm_range_erase(&at->registered, &reg->range);
		free(reg);
	}
	if (entered)
		hm_context_leave(at->hm, &saved);
	if (is_owner) {
		release(a);
		return;
	}
	/* In a child, owners hold no references of its own: do not release them. */
	for (; a; a = next) {
		next = a->next;
		free(a);
	}
}

void hm_attach_close(struct hetmem *hm)
{
	struct hm_attach *at = hm->attach;

	if (!at)
		return;
	if (at->fd >= 0 && hm->generation == hm_generation()) {
		stop_thread(at);
		hm_ring_close(&at->ring);
	}
	if (at->fd >= 0) {
		close(at->stop_fd);
		close(at->fd);
	}
	end_all(at);
	hm_lock_destroy(&at->lock);
	free(at);
	hm->attach = NULL;
}
