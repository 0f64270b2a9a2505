// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * asks: a program that asks its own socket to sleep and to wake, as 'hetmem sleep --served' and
 * 'hetmem wake' do from outside (cuda/ask.h). Each refusal leaves a program that runs on.
 */
#include <errno.h>

#include "cuda/ask.h"
#include "cuda/program.h"
#include "lib/wait.h"

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream);
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, int type,
				       unsigned long long flags);

#define BLOCKS	4
#define SIZE	(2 * MIB)

static CUdeviceptr blocks[BLOCKS];
static CUstream stream;

/* No call of the driver: the gate may be closed. */
static struct hm_cuda_answer ask_with(uint32_t version, uint32_t op, uint32_t wait_ms)
{
	const struct hm_cuda_ask ask = { HM_CUDA_ASK_MAGIC, version, op, wait_ms };
	const struct sockaddr_un name = hm_cuda_ask_name("", getpid());
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct hm_cuda_answer answer = { .err = -1000 };

	if (connect(fd, (const struct sockaddr *)&name, sizeof(name)) ||
	    send(fd, &ask, sizeof(ask), MSG_NOSIGNAL) != sizeof(ask) ||
	    recv(fd, &answer, sizeof(answer), 0) != sizeof(answer))
		answer.err = -1001;
	close(fd);
	return answer;
}

static struct hm_cuda_answer ask(uint32_t op, uint32_t wait_ms)
{
	return ask_with(HM_CUDA_ASK_VERSION, op, wait_ms);
}

/* Waits without a limit for the work of an earlier attempt. */
static struct hm_cuda_answer sleep_now(void)
{
	struct hm_cuda_answer answer;

	do
		answer = ask(HM_CUDA_ASK_SLEEP, HM_CUDA_ASK_WAIT_MS);
	while (answer.err == -EBUSY && strstr(answer.text, "in time"));
	return answer;
}

static bool is_whole(void)
{
	static unsigned char host[SIZE];
	size_t i, j;

	for (i = 0; i < BLOCKS; i++) {
		if (cuMemcpyDtoHAsync_v2(host, blocks[i], SIZE, stream) || cuStreamSynchronize(stream))
			return false;
		for (j = 0; j < SIZE; j++)
			if (host[j] != i + 1)
				return false;
	}
	return true;
}

static void sleeps(void)
{
	struct hm_cuda_answer answer = ask(HM_CUDA_ASK_STATE, 0);

	ok(!answer.err && !answer.asleep && !answer.moved && !answer.stays, "it is awake");
	is(ask(HM_CUDA_ASK_WAKE, 0).err, 0, "a wake of one that is awake");
	answer = sleep_now();
	ok(!answer.err && answer.asleep, "it sleeps");
	is(answer.moved, BLOCKS * SIZE, "its blocks have left");
	is(answer.stays, 3 * MIB, "what the driver allocated stays");
	is(ask(HM_CUDA_ASK_SLEEP, 0).err, -EALREADY, "it sleeps already");
	answer = ask(HM_CUDA_ASK_STATE, 0);
	ok(answer.asleep && answer.moved == BLOCKS * SIZE && answer.stays == 3 * MIB,
	   "which can be asked");
	is(ask(HM_CUDA_ASK_WAKE, 0).err, 0, "it wakes");
	answer = ask(HM_CUDA_ASK_STATE, 0);
	ok(!answer.asleep && !answer.moved && !answer.stays, "and is awake");
	ok(is_whole(), "with its contents");
}

static void is_refused(const char *what, int err, const char *text)
{
	struct hm_cuda_answer answer = ask(HM_CUDA_ASK_SLEEP, 50);
	CUdeviceptr p;

	ok(answer.err == err && !answer.asleep && strstr(answer.text, text), "%s: %d, %s", what,
	   answer.err, answer.text);
	ok(!cuMemAlloc_v2(&p, SIZE) && !cuMemFreeAsync(p, stream), "%s: calls go on", what);
}

static void refusals(void)
{
	CUgraph graph;

	is(ask_with(99, HM_CUDA_ASK_SLEEP, 0).err, -EINVAL, "another version");
	is(ask(77, 0).err, -EINVAL, "an unknown request");
	is(ask(HM_CUDA_ASK_SLEEP, HM_CUDA_ASK_WAIT_MS + 1).err, -EINVAL, "a wait without bound");
	ok(!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	is(ask(HM_CUDA_ASK_SLEEP, 50).err, -EBUSY, "refuses");
	ok(!cuStreamEndCapture(stream, &graph), "and ends");
}

/* Work that lasts until it is released. */
static int released;

static void stay(void *unused)
{
	(void)unused;
	stay_until(__atomic_load_n(&released, __ATOMIC_ACQUIRE));
}

static CUcontext ctx;
static int inside;

static void *synchronize(void *unused)
{
	(void)unused;
	if (cuCtxSetCurrent(ctx))
		return NULL;
	__atomic_store_n(&inside, 1, __ATOMIC_RELEASE);
	return (void *)(uintptr_t)!cuStreamSynchronize(stream);
}

static void waits(void)
{
	struct hm_cuda_answer answer;
	pthread_t thread;
	void *good;

	ok(!cuLaunchHostFunc(stream, stay, NULL), "work that lasts");
	is_refused("work", -EBUSY, "did not end in time");
	pthread_create(&thread, NULL, synchronize, NULL);
	stay_until(__atomic_load_n(&inside, __ATOMIC_ACQUIRE));
	/* The thread can still be on its way into its call: then the work is what lasts. */
	do
		answer = ask(HM_CUDA_ASK_SLEEP, 50);
	while (answer.err == -EBUSY && !strstr(answer.text, "did not return"));
	ok(answer.err == -EBUSY && !answer.asleep, "a call that lasts: %s", answer.text);
	__atomic_store_n(&released, 1, __ATOMIC_RELEASE);
	pthread_join(thread, &good);
	ok(good, "the call ends as it does");
}

int main(void)
{
	CUmemGenericAllocationHandle handle;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	const struct hm_cuda_array_2d shape = { 1024, 1024, 1, 1 };
	void *array, *fd;
	size_t i;

	ctx = start();
	need(ctx && !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a context");
	for (i = 0; i < BLOCKS; i++)
		need(!cuMemAlloc_v2(&blocks[i], SIZE) &&
		     !cuMemsetD8Async(blocks[i], i + 1, SIZE, stream), "a block");
	need(!cuMemCreate(&handle, SIZE, &prop, 0) && !cuArrayCreate_v2(&array, &shape),
	     "memory of the driver");
	sleeps();
	refusals();
	waits();
	ok(!sleep_now().err && !ask(HM_CUDA_ASK_WAKE, 0).err && is_whole(), "it sleeps after all");
	cuMemGetHandleForAddressRange(&fd, blocks[0], SIZE, 1, 0);
	is_refused("shared memory", -EOPNOTSUPP, "cuMemGetHandleForAddressRange");
	return tap_end();
}
