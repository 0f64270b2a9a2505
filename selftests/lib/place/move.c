// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_move(): the host waits for the stream's work and for the move, unless it
 * asks not to; streams that are none, that are captured or of another context; failures.
 */
#include <semaphore.h>
#include <sys/mman.h>

#include "platform/machine.h"

#define ANY	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define DEVICE(i)	HETMEM_LOC(HETMEM_DEVICE, i)
#define MS	1000000ULL

static struct hetmem *hm;
static const struct hm_api *d;
static size_t page;

/* Work that takes a while, for calls that wait. */
static void be_busy(CUstream stream)
{
	need(!soft_launch(stream, "busy", NULL, 0, 30 * MS), "work");
}

/* Work that is not over before the gate opens, for calls that do not wait. */
static sem_t gate;

static void pass_gate(void *data)
{
	(void)data;
	while (sem_wait(&gate))
		;
}

static void close_gate(CUstream stream)
{
	need(!d->cuLaunchHostFunc(stream, pass_gate, NULL), "a gate");
}

static void open_gate(CUstream stream)
{
	is(d->cuStreamQuery(stream), CUDA_ERROR_NOT_READY, "the host did not wait");
	sem_post(&gate);
	d->cuStreamSynchronize(stream);
}

static void test(const char *machine, const char *how)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	const uint32_t to = strcmp(how, "move_pages") ? DEVICE(0) :
		HETMEM_LOC(HETMEM_HOST, 0);
	CUstream s, t;
	CUgraph graph;
	CUcontext ctx;
	char *p = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	hm = open_machine(machine);
	need(hm && p != MAP_FAILED, "opens: %s", hetmem_last_error());
	d = api_of(hm);
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 1) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING) &&
	     !d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "streams");
	memset(p, 1, 4 * page);
	be_busy(s);
	is(hetmem_move(hm, p, 4 * page, to, s, 0, &m), 0, "%s: %s", machine, how);
	ok(!strcmp(m.how, how), "by %s: %s", m.how, m.reason);
	is(d->cuStreamQuery(s), CUDA_SUCCESS, "the host waited");
	close_gate(s);
	is(hetmem_move(hm, p, 4 * page, to, s, HETMEM_NONBLOCKING, &m), 0, "at once");
	ok(strcmp(how, "move_pages") || strstr(m.reason, "order"), "%s", m.reason);
	open_gate(s);

	be_busy(t);
	is(hetmem_move(hm, p, 4 * page, to, t, 0, &m), 0, "a stream of another context");
	is(d->cuStreamQuery(t), CUDA_SUCCESS, "is waited for");
	{
		CUcontext now;

		d->cuCtxGetCurrent(&now);
		ok(now == ctx, "and the context is what it was");
	}
	close_gate(s);
	is(hetmem_move(hm, p, 4 * page, to, HETMEM_STREAM_HOST, 0, &m), 0,
	   "the host's waits for no other");
	open_gate(s);
	d->cuCtxSetCurrent(NULL);
	is(hetmem_move(hm, p, page, to, NULL, 0, NULL), 0, "no context is current");
	d->cuCtxSetCurrent(ctx);

	is(hetmem_move(hm, p, page, to, s, 2, &m), -EINVAL, "unknown flags");
	is(hetmem_move(hm, p, page, to, HETMEM_STREAM_UNKNOWN, 0, &m), -EINVAL, "no stream");
	is(hetmem_move(NULL, p, page, to, s, 0, &m), -EINVAL, "no library");
	is(hetmem_move(hm, p, 0, to, s, 0, &m), -EINVAL, "no bytes");
	is(hetmem_move(hm, p, page, DEVICE(9), s, 0, &m), -ENODEV, "no such device");
	d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	is(hetmem_move(hm, p, page, to, s, 0, &m), -EBUSY, "a stream that is captured");
	is(d->cuStreamEndCapture(s, &graph), CUDA_SUCCESS, "which is not spoilt");
	d->cuGraphDestroy(graph);

	soft_rules("cuEventCreate:1=CUDA_ERROR_OUT_OF_MEMORY", NULL);
	is(hetmem_move(hm, p, page, to, s, 0, &m), -ENOMEM, "no event");
	soft_rules("cuEventRecord:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_move(hm, p, page, to, s, 0, &m), -EIO, "that is not recorded");
	soft_rules("cuEventSynchronize:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_move(hm, p, page, to, s, 0, &m), -EIO, "that is not waited for");
	ok(strstr(hetmem_last_error(), "cuEventSynchronize: CUDA_ERROR_LAUNCH_FAILED"),
	   "%s", hetmem_last_error());
	soft_rules(NULL, NULL);
	need(!d->cuStreamDestroy(s), "destroyed");
	is(hetmem_move(hm, p, page, to, s, 0, &m), -EINVAL, "a stream that was destroyed: %s",
	   hetmem_last_error());
	d->cuStreamDestroy(t);
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	d->cuDevicePrimaryCtxRelease(1);
	munmap(p, 4 * page);
	hetmem_close(hm);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	sem_init(&gate, 0, 0);
	test("hmm; hmm", "driver");
	test("ats node=0; ats node=0", "driver");
	test("managed; managed", "move_pages");
	test("integrated; integrated", "none");
	return tap_end();
}
