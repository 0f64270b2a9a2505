// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The executor of hints: which devices it answers for, and who runs it.
 *
 * It has a context of the module of its own, for a ring has one reader and a
 * context one ring. A device that is registered with the module is known to
 * it by its id. Another driver's has an index there that nobody but its
 * driver can tell: that one moves a scratch page, and the module is asked
 * where the page is.
 *
 * A forked child has the executor's memory, but neither its thread nor its
 * ring: it may only close it, which forgets it.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/publish.h"
#include "hint/executor.h"

/* Hints that can wait unread; less if the administrator allows less. */
#define ENTRIES		256
_Static_assert(ENTRIES <= HETMEM_RING_MAX, "the module takes such a ring");

/* What is moved to find out where a device is, and how often. */
#define SCRATCH_PAGES	16
#define SCRATCH_TRIES	20

static void pause_ms(long ms)
{
	struct timespec t = { .tv_nsec = ms * 1000000 };

	nanosleep(&t, NULL);
}

/* Has the driver move @p and asks the module where it is then. */
static bool find_scratch(struct hetmem_executor *x, struct hm_binding *b,
			 void *p, size_t size)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_run runs[SCRATCH_PAGES];
	struct hetmem *hm = x->hm;
	uintptr_t next;
	ssize_t n, i;

	if (hetmem_prefetch(hm, p, size, b->target, b->stream, &moved) ||
	    strcmp(moved.how, "driver") ||
	    hm->driver.cuStreamSynchronize(b->stream))
		return false;
	n = hm_kmod_residency(&hm->kmod, (uintptr_t)p, (uintptr_t)p + size,
			      runs, SCRATCH_PAGES, &next);
	for (i = 0; i < n; i++) {
		if (HETMEM_LOC_KIND(runs[i].location) == HETMEM_FOREIGN ||
		    HETMEM_LOC_KIND(runs[i].location) == HETMEM_COHERENT) {
			b->location = runs[i].location;
			return true;
		}
	}
	return false;
}

/*
 * A busy page may stay where it is: it is tried again. Memory that does not
 * move to the device at all is no error of ours, there are no hints for it.
 */
static bool calibrate(struct hetmem_executor *x, struct hm_binding *b)
{
	const size_t size = SCRATCH_PAGES * x->hm->page_size;
	bool found = false;
	void *p;
	int i;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return false;
	for (i = 0; i < SCRATCH_TRIES && !found; i++) {
		/* Touched, so that there are pages to move. */
		memset(p, 1, size);
		found = find_scratch(x, b, p, size);
		if (!found)
			pause_ms(1);
	}
	munmap(p, size);
	return found;
}

/* A device that only the driver can move memory to. */
static int add_foreign(struct hetmem_executor *x, int device)
{
	struct hm_binding *b = &x->bindings[x->nr_bindings];
	struct hetmem *hm = x->hm;
	struct hm_context saved;
	CUresult res;
	int err;

	*b = (struct hm_binding){
		.target = HETMEM_LOC(HETMEM_DEVICE, device),
		.device = device,
	};
	err = hm_context_enter(hm, device, &saved);
	if (err)
		return err;
	res = hm->driver.cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING);
	if (res)
		err = hm_driver_error(&hm->driver, "cuStreamCreate", res);
	else if (x->nr_bindings < HETMEM_MAX_BINDINGS && calibrate(x, b))
		x->nr_bindings++;
	else
		hm->driver.cuStreamDestroy(b->stream);
	hm_context_leave(hm, &saved);
	return err;
}

static void add_registered(struct hetmem_executor *x, unsigned int id,
			   uint32_t index)
{
	/* The module takes no more of one context. */
	if (x->nr_bindings == HETMEM_MAX_BINDINGS)
		return;
	x->bindings[x->nr_bindings++] = (struct hm_binding){
		.location = HETMEM_LOC(HETMEM_DEVICE, id),
		.target = HETMEM_LOC(HETMEM_DEVICE, index),
		.device = -1,
	};
}

static bool is_bound(const struct hetmem_executor *x, uint32_t location)
{
	unsigned int i;

	for (i = 0; i < x->nr_bindings; i++)
		if (x->bindings[i].location == location)
			return true;
	return false;
}

/* The driver's devices first, then what only the module knows. */
static int find_devices(struct hetmem_executor *x)
{
	struct hetmem *hm = x->hm;
	unsigned int n;
	int i, err;

	for (i = 0; i < hm->nr_devices; i++) {
		if (hm->devices[i].module_id >= 0) {
			add_registered(x, hm->devices[i].module_id, i);
			continue;
		}
		if (!hm->devices[i].platform.moves)
			continue;
		err = add_foreign(x, i);
		if (err)
			return err;
	}
	for (n = 0; n < hm->kmod.nr_devices && n < HM_MAX_DEVICES; n++) {
		unsigned int id = hm->kmod.devices[n].id;

		if (!is_bound(x, HETMEM_LOC(HETMEM_DEVICE, id)))
			add_registered(x, id, id | HM_KERNEL_DEVICE);
	}
	if (!x->nr_bindings)
		return hm_error(-ENODEV, "executor: there is no device that memory can move to: %s",
				hm->reasons[HETMEM_FEATURE_MIGRATION]);
	return 0;
}

/*
 * The module tells other drivers' devices apart by their UUIDs. Where the driver
 * has none to tell, its ordinal will do for this process.
 */
static void find_uuid(const struct hetmem *hm, struct hm_binding *b)
{
	const struct hm_driver *d = &hm->driver;
	unsigned int index = HETMEM_LOC_INDEX(b->target);
	CUuuid id;

	memset(b->uuid, 0, sizeof(b->uuid));
	if (index & HM_KERNEL_DEVICE)
		return;
	if (d->cuDeviceGetUuid &&
	    !d->cuDeviceGetUuid(&id, hm->devices[index].handle))
		memcpy(b->uuid, id.bytes, sizeof(b->uuid));
	else
		b->uuid[0] = index + 1;
}

static int bind_devices(struct hetmem_executor *x)
{
	char name[64];
	unsigned int i;
	int err;

	for (i = 0; i < x->nr_bindings; i++) {
		struct hm_binding *b = &x->bindings[i];

		find_uuid(x->hm, b);
		err = hm_kmod_bind(x->fd, b->location, HETMEM_BIND_EXECUTOR,
				   b->uuid);
		if (!err)
			continue;
		hetmem_location_name(x->hm, b->target, name, sizeof(name));
		return hm_error(err, "executor: %s: %s", name, err == -EBUSY ?
				"this process has an executor for it" :
				strerror(-err));
	}
	return 0;
}

static int open_context(struct hetmem_executor *x, unsigned int flags)
{
	const uint32_t allowed = (hm_publish_wanted() ? HETMEM_SHAREABLE : 0) |
				 (flags & HETMEM_EXECUTOR_ALLOW ? HETMEM_ALLOW_HINTS : 0);
	unsigned int entries = ENTRIES;
	int err;

	x->fd = hm_kmod_context(&x->hm->kmod);
	if (x->fd < 0)
		return hm_error(x->fd, "executor: a context of the module: %s",
				strerror(-x->fd));
	do {
		err = hm_ring_open(&x->ring, x->fd, entries,
				   1ULL << HETMEM_EVENT_HINT);
		entries /= 2;
	} while (err == -EDQUOT && entries >= HETMEM_RING_MIN);
	if (!err && allowed)
		err = hm_kmod_allow(x->fd, allowed);
	return err ? hm_error(err, "executor: its ring: %s", strerror(-err)) :
		0;
}

static void *run_thread(void *arg)
{
	struct hetmem_executor *x = arg;
	struct pollfd fds[2] = {
		{ .fd = x->fd, .events = POLLIN },
		{ .fd = x->stop_fd, .events = POLLIN },
	};

	while (hm_ring_wait(&x->ring, fds, 2, &x->stop, -1))
		hm_executor_work(x);
	return NULL;
}

/* Signals are the program's: none is delivered to our thread. */
static int start_thread(struct hetmem_executor *x)
{
	sigset_t all, before;
	int err;

	x->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (x->stop_fd < 0)
		return hm_error(-errno, "executor: eventfd: %s",
				strerror(errno));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&x->thread, NULL, run_thread, x);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		close(x->stop_fd);
		x->stop_fd = -1;
		return hm_error(-err, "executor: a thread: %s", strerror(err));
	}
	pthread_setname_np(x->thread, "hetmem-hints");
	return 0;
}

static void stop_thread(struct hetmem_executor *x)
{
	const uint64_t one = 1;

	__atomic_store_n(&x->stop, true, __ATOMIC_RELEASE);
	/* An eventfd takes a one whole, unless it is full of them. */
	while (write(x->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(x->thread, NULL);
}

static void destroy_streams(struct hetmem_executor *x)
{
	struct hetmem *hm = x->hm;
	struct hm_context saved;
	unsigned int i;

	for (i = 0; i < x->nr_bindings; i++) {
		const struct hm_binding *b = &x->bindings[i];

		if (b->device < 0 || hm_context_enter(hm, b->device, &saved))
			continue;
		hm->driver.cuStreamDestroy(b->stream);
		hm_context_leave(hm, &saved);
	}
}

void hetmem_executor_close(struct hetmem_executor *x)
{
	if (!x)
		return;
	if (x->generation == hm_generation()) {
		if (x->stop_fd >= 0)
			stop_thread(x);
		hm_ring_close(&x->ring);
		destroy_streams(x);
	}
	if (x->stop_fd >= 0)
		close(x->stop_fd);
	if (x->fd >= 0)
		close(x->fd);
	free(x->pending);
	free(x);
}

static int check_params(const struct hetmem *hm,
			const struct hetmem_executor_params *params,
			struct hetmem_executor *const *out)
{
	if (!hm || !out)
		return hm_error(-EINVAL, "executor: %s is NULL",
				hm ? "executor" : "hm");
	if (params && params->size < sizeof(*params))
		return hm_error(-EINVAL, "executor: params->size is %zu, set it to sizeof(struct hetmem_executor_params)",
				params->size);
	if (params && params->flags & ~(HETMEM_EXECUTOR_ALLOW |
					HETMEM_EXECUTOR_THREAD))
		return hm_error(-EINVAL, "executor: unknown flags %#x",
				params->flags);
	return 0;
}

int hetmem_executor_open(struct hetmem *hm,
			 const struct hetmem_executor_params *params,
			 struct hetmem_executor **out)
{
	const unsigned int flags = params ? params->flags : 0;
	struct hetmem_executor *x;
	int err;

	err = check_params(hm, params, out);
	if (!err)
		err = hm_check_owner(hm);
	if (err)
		return err;
	if (!hm_kmod_there(&hm->kmod))
		return hm_error(-EOPNOTSUPP, "executor: %s",
				hm->reasons[HETMEM_FEATURE_MODULE]);
	x = calloc(1, sizeof(*x));
	if (!x)
		return hm_error(-ENOMEM, "executor: no memory");
	x->hm = hm;
	x->generation = hm_generation();
	x->fd = -1;
	x->stop_fd = -1;
	if (params) {
		x->accept = params->accept;
		x->arg = params->arg;
	}
	err = find_devices(x);
	if (!err)
		err = open_context(x, flags);
	if (!err)
		err = bind_devices(x);
	if (!err && flags & HETMEM_EXECUTOR_THREAD)
		err = start_thread(x);
	if (err) {
		hetmem_executor_close(x);
		return err;
	}
	*out = x;
	return 0;
}

int hetmem_executor_fd(struct hetmem_executor *x)
{
	if (!x)
		return hm_error(-EINVAL, "executor_fd: executor is NULL");
	return x->fd;
}

ssize_t hetmem_executor_run(struct hetmem_executor *x)
{
	if (!x)
		return hm_error(-EINVAL, "executor_run: executor is NULL");
	if (x->generation != hm_generation())
		return hm_error(-EOWNERDEAD, "executor_run: this is a forked child: open an executor of its own");
	if (x->stop_fd >= 0)
		return hm_error(-EINVAL, "executor_run: the executor has a thread of its own");
	return hm_executor_work(x);
}

int hetmem_executor_stats(struct hetmem_executor *x,
			  struct hetmem_executor_stats *stats)
{
	const uint64_t *from;
	uint64_t *to;
	size_t i, nr;

	if (!x || !stats)
		return hm_error(-EINVAL, "executor_stats: %s is NULL",
				x ? "stats" : "executor");
	if (stats->size < sizeof(*stats))
		return hm_error(-EINVAL, "executor_stats: size is %zu, set it to sizeof(struct hetmem_executor_stats)",
				stats->size);
	from = &x->stats.hints;
	to = &stats->hints;
	nr = &x->stats.moved - from + 1;
	for (i = 0; i < nr; i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	return 0;
}
