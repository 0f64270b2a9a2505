// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The process sleeps: the thread of listen.c carries out what 'hetmem sleep --served' and
 * 'hetmem wake' ask for.
 *
 * Sleep closes the gate, so that no call of the program runs, waits for the work of all
 * contexts, and lets the pools of the spec sleep with their contents. Calls of the program wait
 * at the gate until the wake. Memory that the spec does not serve stays.
 *
 * Calls of the program wait for the sleep, at most for the time that the request allows and
 * that the copies take. After a sleep that failed they go on, and all memory is as it was.
 *
 * Sleep refuses where it could not see all work of the program: a capture, contexts other than
 * the primary ones, export tables, functions that are not in calls.h. It also refuses after
 * calls that share memory of the spec: the pages behind it change.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cuda/ask.h"
#include "cuda/cuda.h"
#include "cuda/listen.h"
#include "cuda/prototypes.h"
#include "cuda/sleep.h"

/* Covers a request, and the following. */
static pthread_mutex_t state = PTHREAD_MUTEX_INITIALIZER;
static bool asleep, ending;
static uint64_t moved, stays;

/* The work of all contexts. */

/**
 * struct work - a thread waits for all work
 * @busy: it waits; it can go on after the request that began it has given up
 */
static struct work {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool busy;
	CUresult res;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static CUresult synchronize(CUdevice device)
{
	unsigned int flags;
	CUcontext ctx;
	int on = 0;
	CUresult res = HM_CUDA_NEXT_AS(cuDevicePrimaryCtxGetState, CUresult (*)(CUdevice,
			unsigned int *, int *))(device, &flags, &on);

	if (res || !on)
		return res;
	res = HM_CUDA_NEXT(cuDevicePrimaryCtxRetain)(&ctx, device);
	if (res)
		return res;
	res = HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(ctx);
	if (!res)
		res = HM_CUDA_NEXT_AS(cuCtxSynchronize, CUresult (*)(void))();
	HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(NULL);
	HM_CUDA_NEXT(cuDevicePrimaryCtxRelease_v2)(device);
	return res;
}

static void *synchronize_all(void *arg)
{
	CUdevice device;
	CUresult res;
	int i, nr = 0;

	(void)arg;
	res = HM_CUDA_NEXT_AS(cuDeviceGetCount, CUresult (*)(int *))(&nr);
	for (i = 0; i < nr && !res; i++) {
		res = HM_CUDA_NEXT_AS(cuDeviceGet, CUresult (*)(CUdevice *, int))(&device, i);
		if (!res)
			res = synchronize(device);
	}
	pthread_mutex_lock(&work.lock);
	work.res = res;
	work.busy = false;
	pthread_cond_broadcast(&work.changed);
	pthread_mutex_unlock(&work.lock);
	return NULL;
}

/* A host function of the program can wait for a thread at the gate: so there is a deadline. */
static int wait_for_work(const struct timespec *deadline, CUresult *res)
{
	pthread_t thread;
	int err = 0;

	pthread_mutex_lock(&work.lock);
	if (work.busy)
		err = -EBUSY;
	else if (pthread_create(&thread, NULL, synchronize_all, NULL))
		err = -ENOMEM;
	if (!err) {
		pthread_detach(thread);
		work.busy = true;
	}
	while (!err && work.busy)
		err = -pthread_cond_clockwait(&work.changed, &work.lock, CLOCK_MONOTONIC, deadline);
	*res = work.res;
	pthread_mutex_unlock(&work.lock);
	return err == -ETIMEDOUT ? -EBUSY : err;
}

/* What a request does. */

__attribute__((format(printf, 3, 4)))
static int refuse(struct hm_cuda_answer *answer, int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(answer->text, sizeof(answer->text), fmt, args);
	va_end(args);
	answer->err = err;
	return err;
}

/* The name of a function that sleep cannot follow; NULL: none was called. */
static const char *unseen_call(void)
{
	static const unsigned int calls[] = {
		/* Contexts whose work nothing here waits for. */
		HM_CUDA_cuCtxCreate, HM_CUDA_cuCtxCreate_v2, HM_CUDA_cuCtxCreate_v3,
		HM_CUDA_cuCtxCreate_v4, HM_CUDA_cuGreenCtxCreate, HM_CUDA_cuGLCtxCreate,
		HM_CUDA_cuGLCtxCreate_v2, HM_CUDA_cuVDPAUCtxCreate, HM_CUDA_cuVDPAUCtxCreate_v2,
		/* Others can hold pages of the spec, which a sleep replaces. */
		HM_CUDA_cuMemGetHandleForAddressRange, HM_CUDA_cuMemRetainAllocationHandle,
		HM_CUDA_cuMulticastBindAddr,
	};
	size_t i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (__atomic_load_n(&hm_cuda_counts[calls[i]], __ATOMIC_RELAXED))
			return hm_cuda_names[calls[i]];
	return NULL;
}

/* With the gate closed. */
static int check_calls(struct hm_cuda_answer *answer)
{
	const char *call = unseen_call(), *table = hm_cuda_has_table();

	if (hm_cuda_is_capturing())
		return refuse(answer, -EBUSY, "a stream is being captured");
	if (call)
		return refuse(answer, -EOPNOTSUPP, "it has called %s()", call);
	if (table)
		return refuse(answer, -EOPNOTSUPP, "it uses the driver's export table %s, as CUDA's runtime does",
			      table);
	if (__atomic_load_n(&hm_cuda_unknown, __ATOMIC_RELAXED))
		return refuse(answer, -EOPNOTSUPP, "it uses a function that is newer than hetmem");
	return 0;
}

static void add_reserved(struct hm_cuda_device *d, void *sum)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	if (!hetmem_resource_stats(d->resource, &stats))
		*(uint64_t *)sum += stats.reserved;
}

static uint64_t reserved(void)
{
	uint64_t sum = 0;

	hm_cuda_each_device(add_reserved, &sum);
	return sum;
}

static void sleep_one(struct hm_cuda_device *d, void *arg)
{
	struct hm_cuda_answer *answer = arg;
	const int err = answer->err ? 0 : hetmem_sleep(d->resource, NULL, HETMEM_SLEEP_KEEP);

	if (err)
		refuse(answer, err, "device %d: %s", d->handle, hetmem_last_error());
}

static void wake_one(struct hm_cuda_device *d, void *arg)
{
	struct hm_cuda_answer *answer = arg;
	const int err = hetmem_wake(d->resource, NULL);

	/* No pool of that spec can have slept. */
	if (err && err != -EOPNOTSUPP && !answer->err)
		refuse(answer, err, "device %d: %s", d->handle, hetmem_last_error());
}

/* After a sleep that failed. The program goes on only when all of its memory is there. */
static void wake_again(struct hm_cuda_answer *answer)
{
	struct hm_cuda_answer woken = { 0 };

	hm_cuda_each_device(wake_one, &woken);
	asleep = woken.err;
	if (!woken.err)
		hm_gate_open();
	else
		refuse(answer, woken.err, "a part of its memory is gone from the GPU: %.200s", woken.text);
}

static void go_to_sleep(const struct hm_cuda_ask *ask, struct hm_cuda_answer *answer)
{
	const uint64_t before = reserved();
	struct timespec deadline;
	CUresult res;
	int err;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += ask->wait_ms / 1000;
	deadline.tv_nsec += ask->wait_ms % 1000 * 1000000;
	deadline.tv_sec += deadline.tv_nsec / 1000000000;
	deadline.tv_nsec %= 1000000000;
	err = hm_gate_close(ask->wait_ms);
	if (err) {
		refuse(answer, err, err == -EBUSY ? "a call of the driver did not return in time" :
		       err == -ENOSYS ? "this kernel has no membarrier()" : "no host memory");
		return;
	}
	err = check_calls(answer);
	if (!err)
		err = wait_for_work(&deadline, &res);
	if (err == -EBUSY && !answer->err)
		refuse(answer, err, "its GPU work did not end in time");
	else if (err && !answer->err)
		refuse(answer, err, "no thread could be made");
	else if (!err && res)
		refuse(answer, -EIO, "its context has failed: error %d", res);
	if (answer->err) {
		hm_gate_open();
		return;
	}
	hm_cuda_each_device(sleep_one, answer);
	if (answer->err) {
		wake_again(answer);
		return;
	}
	asleep = true;
	stays = reserved() + hm_cuda_block_charged() + hm_cuda_handle_bytes() +
		hm_cuda_array_bytes();
	moved = before > reserved() ? before - reserved() : 0;
}

static void wake_up(struct hm_cuda_answer *answer)
{
	hm_cuda_each_device(wake_one, answer);
	if (answer->err)
		return;
	asleep = false;
	if (ending)
		hm_cuda_listen_remove();
	hm_gate_open();
}

void hm_cuda_sleep_obey(const struct hm_cuda_ask *ask, struct hm_cuda_answer *answer)
{
	pthread_mutex_lock(&state);
	if (ask->magic != HM_CUDA_ASK_MAGIC || ask->version != HM_CUDA_ASK_VERSION ||
	    ask->op > HM_CUDA_ASK_WAKE || ask->wait_ms > HM_CUDA_ASK_WAIT_MS)
		refuse(answer, -EINVAL, "another version of hetmem asks");
	else if (ask->op == HM_CUDA_ASK_SLEEP && ending)
		refuse(answer, -EBUSY, "it ends");
	else if (ask->op == HM_CUDA_ASK_SLEEP && !asleep)
		go_to_sleep(ask, answer);
	else if (ask->op == HM_CUDA_ASK_SLEEP)
		refuse(answer, -EALREADY, "it sleeps already");
	else if (ask->op == HM_CUDA_ASK_WAKE && asleep)
		wake_up(answer);
	answer->magic = HM_CUDA_ASK_MAGIC;
	answer->asleep = asleep;
	answer->moved = asleep ? moved : 0;
	answer->stays = asleep ? stays : 0;
	pthread_mutex_unlock(&state);
}

void hm_cuda_sleep_end(void)
{
	pthread_mutex_lock(&state);
	ending = true;
	/* Destructors can still call the driver: a wake lets them. */
	if (!asleep)
		hm_cuda_listen_remove();
	pthread_mutex_unlock(&state);
}
