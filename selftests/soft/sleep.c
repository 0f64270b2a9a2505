// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes that another one puts to sleep, by cuCheckpointProcessLock() and the like: the
 * states, the contents, calls that wait, and what refuses.
 */
#include <stdatomic.h>
#include <sched.h>
#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "soft_driver.h"

#define G		((size_t)2 << 20)
#define SIZE		((size_t)3 << 20)
#define THREADS		4
#define NAPS		25

/**
 * struct target - a process that can be put to sleep
 * @to, @from: pipes: it gets a command, and answers with a word
 */
struct target {
	pid_t pid;
	int to;
	int from;
};

/* In the target. */

static CUdeviceptr block, mapped, async, graphs;
static CUmemGenericAllocationHandle handle;
static CUgraph graph;
static CUgraphExec exec;
static CUstream stream;
static atomic_int gate, failures, ended;

static void fill(CUdeviceptr p, size_t size, unsigned char value)
{
	need(!drv->cuMemsetD8Async(p, value, size, stream) &&
	     !drv->cuMemsetD8Async(p + size / 2, value ^ 255, 1, stream), "filled");
}

static bool is_filled(CUdeviceptr p, size_t size, unsigned char value)
{
	static unsigned char host[SIZE];

	return !drv->cuMemcpyDtoHAsync(host, p, size, stream) &&
		!drv->cuStreamSynchronize(stream) && host[size / 2] == (value ^ 255) &&
		all_bytes(host, value, size / 2) &&
		all_bytes(host + size / 2 + 1, value, size - size / 2 - 1);
}

static void make(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	const CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	open_soft(NULL);
	need(!drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuMemAlloc(&block, SIZE) && !drv->cuMemAllocAsync(&async, SIZE, stream) &&
	     !drv->cuMemAddressReserve(&mapped, G, 0, 0, 0) &&
	     !drv->cuMemCreate(&handle, G, &prop, 0) && !drv->cuMemMap(mapped, G, 0, handle, 0) &&
	     !drv->cuMemSetAccess(mapped, G, &access, 1), "memory");
	need(!drv->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) &&
	     !drv->cuMemAllocAsync(&graphs, SIZE, stream), "a graph allocates");
	fill(graphs, SIZE, 77);
	need(!drv->cuStreamEndCapture(stream, &graph) &&
	     !drv->cuGraphInstantiateWithFlags(&exec, graph, 0) &&
	     !drv->cuGraphLaunch(exec, stream), "it is launched");
	fill(block, SIZE, 11);
	fill(async, SIZE, 22);
	fill(mapped, G, 33);
}

static void at_gate(void *unused)
{
	(void)unused;
	while (!atomic_load(&gate))
		sched_yield();
}

static bool is_whole(void)
{
	return is_filled(block, SIZE, 11) && is_filled(async, SIZE, 22) &&
		is_filled(mapped, G, 33) && is_filled(graphs, SIZE, 77);
}

static bool capture_goes_on(void)
{
	CUgraphExec again;
	CUgraph made;

	if (drv->cuStreamEndCapture(stream, &made) ||
	    drv->cuGraphInstantiateWithFlags(&again, made, 0) ||
	    drv->cuGraphLaunch(again, stream))
		return false;
	return is_filled(block, SIZE, 44);
}

static void *work(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	unsigned char value, host[4096];
	CUdeviceptr p;
	CUcontext ctx;
	CUstream own;

	if (drv->cuDevicePrimaryCtxRetain(&ctx, 0) || drv->cuCtxSetCurrent(ctx) ||
	    drv->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING))
		failures++;
	while (!atomic_load(&ended)) {
		value = rand_r(&seed);
		if (drv->cuMemAlloc(&p, sizeof(host)) ||
		    drv->cuMemsetD8Async(p, value, sizeof(host), own) ||
		    drv->cuMemcpyDtoHAsync(host, p, sizeof(host), own) ||
		    drv->cuStreamSynchronize(own) || drv->cuMemFree(p) ||
		    !all_bytes(host, value, sizeof(host)))
			failures++;
	}
	drv->cuStreamDestroy(own);
	drv->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static long run_threads(char command)
{
	static pthread_t threads[THREADS];
	uintptr_t i;

	for (i = 0; command == 't' && i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)(i + 1));
	ended = command != 't';
	for (i = 0; command != 't' && i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return failures;
}

static long forked(void)
{
	CUdeviceptr p;
	int status = -1;
	pid_t child = fork();

	if (!child)
		_exit(drv->cuMemAlloc(&p, 1) != CUDA_ERROR_NOT_INITIALIZED);
	waitpid(child, &status, 0);
	return status;
}

static long obey(char command)
{
	CUdeviceptr p;
	int fd;

	switch (command) {
	case 'w':
		return is_whole();
	case 'a':
		return drv->cuMemAlloc(&p, SIZE);
	case 'g':
		gate = 0;
		return drv->cuLaunchHostFunc(stream, at_gate, NULL);
	case 'o':
		gate = 1;
		return 0;
	case 'c':
		if (drv->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED))
			return 1;
		fill(block, SIZE, 44);
		return 0;
	case 'e':
		return capture_goes_on();
	case 'm':
		return drv->cuMemAllocManaged(&async, SIZE, CU_MEM_ATTACH_GLOBAL);
	case 'n':
		return drv->cuMemFree(async);
	case 'x':
		return drv->cuMemExportToShareableHandle(&fd, handle,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	case 'f':
		return forked();
	case 'p':
		return block;
	default:
		return run_threads(command);
	}
}

static void be_target(int from, int to)
{
	long answer;
	char command;

	make();
	while (read(from, &command, 1) == 1) {
		answer = obey(command);
		if (write(to, &answer, sizeof(answer)) != sizeof(answer))
			break;
	}
	/* Threads of streams end with the driver. */
	close_soft();
	_exit(0);
}

/* In the process that asks. */

static struct target start(bool can_sleep)
{
	int there[2], back[2];
	struct target t;

	fflush(stdout);
	need(!pipe(there) && !pipe(back), "pipes");
	t = (struct target){ .pid = fork(), .to = there[1], .from = back[0] };
	if (!t.pid) {
		close(there[1]);
		close(back[0]);
		/* Its tests are no tests of this process. */
		need(freopen("/dev/null", "w", stdout), "silence");
		setenv("HETMEM_SOFT_SLEEP", can_sleep ? "1" : "0", 1);
		be_target(there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	return t;
}

static void tell(const struct target *t, char command)
{
	need(write(t->to, &command, 1) == 1, "the target is told %c", command);
}

static long hear(const struct target *t)
{
	long answer = -1;

	return read(t->from, &answer, sizeof(answer)) == sizeof(answer) ? answer : -1;
}

static long have(const struct target *t, char command)
{
	tell(t, command);
	return hear(t);
}

static int state_of(const struct target *t)
{
	CUprocessState state = CU_PROCESS_STATE_FAILED;

	return drv->cuCheckpointProcessGetState(t->pid, &state) ? -1 : (int)state;
}

static CUresult lock(const struct target *t, unsigned int ms)
{
	CUcheckpointLockArgs args = { .timeoutMs = ms };

	return drv->cuCheckpointProcessLock(t->pid, &args);
}

static CUresult checkpoint(const struct target *t)
{
	CUcheckpointCheckpointArgs args = { { 0 } };

	return drv->cuCheckpointProcessCheckpoint(t->pid, &args);
}

static CUresult restore(const struct target *t)
{
	return drv->cuCheckpointProcessRestore(t->pid, NULL);
}

static CUresult unlock(const struct target *t)
{
	return drv->cuCheckpointProcessUnlock(t->pid, NULL);
}

static CUresult nap(const struct target *t)
{
	CUresult res = lock(t, 0);

	if (!res)
		res = checkpoint(t);
	if (!res)
		res = restore(t);
	return res ? res : unlock(t);
}

static void stop(struct target *t)
{
	int status = -1;

	close(t->to);
	waitpid(t->pid, &status, 0);
	is(status, 0, "the target ends");
	close(t->from);
}

static void states(void)
{
	CUcheckpointLockArgs odd = { .reserved0 = 1 };
	CUcheckpointCheckpointArgs odder = { { [7] = 1 } };
	struct target t = start(true);

	is(have(&t, 'w'), 1, "the target has contents");
	is(state_of(&t), CU_PROCESS_STATE_RUNNING, "it runs");
	is(checkpoint(&t), CUDA_ERROR_ILLEGAL_STATE, "no checkpoint of a process that runs");
	is(restore(&t), CUDA_ERROR_ILLEGAL_STATE, "no restore");
	is(unlock(&t), CUDA_ERROR_ILLEGAL_STATE, "no unlock");
	is(drv->cuCheckpointProcessLock(t.pid, &odd), CUDA_ERROR_INVALID_VALUE,
	   "what is reserved is 0");
	is(lock(&t, 0), 0, "it is locked");
	is(state_of(&t), CU_PROCESS_STATE_LOCKED, "and says so");
	is(lock(&t, 0), CUDA_ERROR_ILLEGAL_STATE, "not twice");
	is(restore(&t), CUDA_ERROR_ILLEGAL_STATE, "no restore without a checkpoint");
	is(drv->cuCheckpointProcessCheckpoint(t.pid, &odder), CUDA_ERROR_INVALID_VALUE,
	   "here, too, it is 0");
	is(unlock(&t), 0, "it is unlocked");
	is(have(&t, 'w'), 1, "and is whole");
	is(lock(&t, 0) || checkpoint(&t), 0, "it sleeps");
	is(state_of(&t), CU_PROCESS_STATE_CHECKPOINTED, "and says so");
	is(checkpoint(&t), CUDA_ERROR_ILLEGAL_STATE, "not twice");
	is(unlock(&t), CUDA_ERROR_ILLEGAL_STATE, "no unlock before the restore");
	is(restore(&t), 0, "it is restored");
	is(state_of(&t), CU_PROCESS_STATE_LOCKED, "and locked then");
	is(unlock(&t), 0, "and runs");
	is(have(&t, 'w'), 1, "with all contents");
	stop(&t);
	is(state_of(&t), -1, "a process that has ended has no state");
}

/* The memory of the target at @addr: 0 where it was given back. */
static int look(const struct target *t, uintptr_t addr)
{
	unsigned char byte = 255;
	struct iovec to = { &byte, 1 }, from = { (void *)addr, 1 };

	return process_vm_readv(t->pid, &to, 1, &from, 1, 0) == 1 ? byte : -1;
}

static void calls_wait(void)
{
	struct target t = start(true);
	const uintptr_t addr = have(&t, 'p');
	int status = 0;

	is(have(&t, 'w'), 1, "the target has contents");
	is(look(&t, addr), 11, "which can be seen from here");
	is(lock(&t, 0) || checkpoint(&t), 0, "it sleeps");
	is(look(&t, addr), 0, "its memory was given back");
	is(have(&t, 'f'), 0, "it can fork");
	tell(&t, 'a');
	ok(wait_until(thread_sleeps(t.pid, t.pid)), "its next call waits");
	is(restore(&t) || unlock(&t), 0, "it is woken");
	is(hear(&t), 0, "the call returns, and succeeds");
	is(have(&t, 'w'), 1, "all contents are there");
	is(lock(&t, 0) || checkpoint(&t), 0, "it sleeps again");
	tell(&t, 'a');
	ok(wait_until(thread_sleeps(t.pid, t.pid)), "and waits");
	kill(t.pid, SIGTERM);
	waitpid(t.pid, &status, 0);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "SIGTERM ends it");
	ok(restore(&t) != CUDA_SUCCESS, "which is an error for who asks");
	close(t.to);
	close(t.from);
}

static void work_first(void)
{
	struct target t = start(true);

	is(have(&t, 'g'), 0, "the target has work that does not end");
	/* time: the work never ends, so any timeout is over */
	is(lock(&t, 20), CUDA_ERROR_NOT_READY, "a lock gives up");
	is(state_of(&t), CU_PROCESS_STATE_RUNNING, "the target runs on");
	is(have(&t, 'o'), 0, "the work ends");
	is(nap(&t), 0, "then it can sleep");
	is(have(&t, 'w'), 1, "and is whole");
	is(have(&t, 'c'), 0, "it captures");
	is(nap(&t), 0, "and sleeps in its capture");
	is(have(&t, 'e'), 1, "which goes on afterwards");
	stop(&t);
}

static void refusals(void)
{
	struct target t = start(true), other = start(false);

	is(have(&other, 'w'), 1, "a target that cannot sleep");
	is(lock(&other, 0), CUDA_ERROR_OPERATING_SYSTEM, "is refused");
	stop(&other);
	is(have(&t, 'm'), 0, "managed memory");
	is(nap(&t), CUDA_ERROR_NOT_SUPPORTED, "does not sleep");
	is(state_of(&t), CU_PROCESS_STATE_LOCKED, "the target stays locked");
	is(unlock(&t), 0, "and is unlocked");
	is(have(&t, 'n'), 0, "without managed memory");
	is(nap(&t), 0, "it sleeps");
	is(have(&t, 'x'), 0, "exported memory");
	is(nap(&t), CUDA_ERROR_NOT_SUPPORTED, "does not sleep");
	is(unlock(&t), 0, "the target is unlocked");
	stop(&t);
	is(lock(&(struct target){ .pid = 1 }, 0), CUDA_ERROR_OPERATING_SYSTEM,
	   "a process without the driver");
	is(lock(&(struct target){ .pid = -1 }, 0), CUDA_ERROR_OPERATING_SYSTEM, "no process");
	is(drv->cuCheckpointProcessGetState(1, NULL), CUDA_ERROR_INVALID_VALUE, "no place");
}

static void threads(void)
{
	struct target t = start(true);
	unsigned int i, failed = 0;

	have(&t, 't');
	for (i = 0; i < NAPS; i++)
		if (nap(&t))
			failed++;
	is(failed, 0, "%d naps while %d threads call", NAPS, THREADS);
	is(have(&t, 'j'), 0, "no call of them failed or read what was not written");
	is(have(&t, 'w'), 1, "the other contents are there");
	stop(&t);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	hang_limit(true);
	unsetenv("HETMEM_SOFT_SLEEP");
	open_soft(NULL);
	states();
	calls_wait();
	work_first();
	refusals();
	threads();
	close_soft();
	return tap_end();
}
