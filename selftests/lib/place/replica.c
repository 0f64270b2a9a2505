// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Replicas: copies of a block on other devices. Their order with streams, copies to all devices
 * at once, when they are freed, what they refuse, and each call of the driver that fails.
 */
#include <semaphore.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "by_spec.h"
#include "devices.h"
#include "failing_calls.h"

#define MIB	((size_t)1 << 20)
/* Nothing here takes so long, however busy the machine is: seconds. */
#define FOREVER	120

static unsigned char *replica(struct hetmem_resource *res, void *p, int device)
{
	void *r = NULL;

	need(!hetmem_replicate(res, p, device, &r), "replicate: %s", hetmem_last_error());
	return r;
}

static void fill(void *p, unsigned char value, size_t size, int device)
{
	drv->cuCtxSetCurrent(ctx[device]);
	need(!drv->cuMemsetD8Async((uintptr_t)p, value, size, streams[device]), "fill");
	drv->cuCtxSetCurrent(ctx[0]);
}

static void wait_for(int device)
{
	drv->cuCtxSetCurrent(ctx[device]);
	need(!drv->cuStreamSynchronize(streams[device]), "device %d fails", device);
	drv->cuCtxSetCurrent(ctx[0]);
}

static bool all_given_back(void)
{
	return !used(0) && !used(1) && !used(2);
}

static void basic(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	const size_t size = 5 * MIB + 100;
	unsigned char *p = get(res, size, streams[0]), *r[3];
	int i;

	for (i = 1; i < 3; i++) {
		r[i] = replica(res, p, i);
		is(owner(r[i]), i, "%s: a replica on device %d", spec, i);
	}
	is(stats(res).live, 1, "%s: a replica is no block", spec);
	is(stats(res).replicas, 12 * MIB, "%s: its memory is counted", spec);
	is(used(1), used(2), "%s: as by the driver: %zu", spec, used(1));
	fill(p, 7, size, 0);
	is(hetmem_refresh(res, p, streams[0]), 0, "%s: refresh: %s", spec, hetmem_last_error());
	fill(p, 8, size, 0);
	wait_for(0);
	ok(all_bytes(r[1], 7, size) && all_bytes(r[2], 7, size), "%s: in the order of the stream", spec);
	/* A stream of another device. */
	is(hetmem_refresh(res, p, streams[2]), 0, "%s: by device 2: %s", spec, hetmem_last_error());
	wait_for(2);
	ok(all_bytes(r[1], 8, size) && all_bytes(r[2], 8, size), "%s: they are copied again", spec);
	is(hetmem_free(res, r[1], 1, streams[1]), -EINVAL, "%s: its size: %s", spec, hetmem_last_error());
	is(hetmem_free(res, r[1], size, streams[1]), 0, "%s: one is freed: %s", spec, hetmem_last_error());
	is(hetmem_free(res, r[1], 0, streams[1]), -EINVAL, "%s: once", spec);
	wait_for(1);
	hetmem_poll(res);
	is(stats(res).replicas, 6 * MIB, "%s: its memory is given back", spec);
	is(hetmem_free(res, p, 0, streams[0]), 0, "%s: the block: %s", spec, hetmem_last_error());
	is(hetmem_free(res, r[2], 0, streams[0]), -EINVAL, "%s: frees the other one", spec);
	is(hetmem_refresh(res, p, streams[0]), -EINVAL, "%s: no refresh: %s", spec, hetmem_last_error());
	wait_for(0);
	hetmem_trim(res, 0, NULL);
	is(stats(res).replicas, 0, "%s: none is left", spec);
	is(stats(res).reserved, 0, "%s: nor is the block pinned", spec);
	/* Replicas that were freed, and are not complete, are no concern of the block. */
	p = get(res, size, streams[0]);
	r[1] = replica(res, p, 1);
	fill(r[1], 9, size, 1);
	is(hetmem_free(res, r[1], 0, streams[1]), 0, "%s: a replica is freed", spec);
	is(hetmem_refresh(res, p, streams[0]), -EINVAL, "%s: %s", spec, hetmem_last_error());
	is(hetmem_free(res, p, 0, HETMEM_STREAM_UNKNOWN), 0, "%s: then the block, on its stream", spec);
	wait_for(1);
	hetmem_poll(res);
	is(stats(res).replicas, 0, "%s: none is left", spec);
	/* A resource that ends frees what is live, and what is not complete. */
	p = get(res, size, streams[0]);
	r[1] = replica(res, p, 1);
	replica(res, p, 2);
	fill(r[1], 9, size, 1);
	is(hetmem_free(res, r[1], 0, streams[1]), 0, "%s: freed", spec);
	is(hetmem_resource_destroy(res), 1, "%s: destroyed", spec);
	ok(all_given_back(), "%s: all is given back", spec);
}

/* A stream that goes on when the test says so, and copies that wait for each other. */
static sem_t gate;
static pthread_mutex_t meeting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static unsigned int arrived;
static CUstream given[8];
static unsigned int nr_given;
static bool missed;

static void in_time(struct timespec *until)
{
	clock_gettime(CLOCK_REALTIME, until);
	until->tv_sec += FOREVER;
}

static void pass_gate(void *data)
{
	struct timespec until;

	(void)data;
	in_time(&until);
	/* time: only a test that hangs takes it */
	if (sem_timedwait(&gate, &until))
		missed = true;
}

static void meet(void *data)
{
	struct timespec until;

	(void)data;
	in_time(&until);
	pthread_mutex_lock(&meeting);
	arrived++;
	pthread_cond_broadcast(&met);
	while (arrived < 2 && !missed)
		/* time: only copies that are not at once take it */
		missed = pthread_cond_timedwait(&met, &meeting, &until);
	pthread_mutex_unlock(&meeting);
}

static CUresult copy_and_meet(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream s)
{
	given[nr_given++] = s;
	need(!drv->cuLaunchHostFunc(s, meet, NULL), "a function");
	return drv->cuMemcpyAsync(dst, src, size, s);
}

static void at_once(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	unsigned char *p = get(res, 4 * MIB, streams[0]), *one, *two;

	one = replica(res, p, 1);
	two = replica(res, p, 2);
	sem_init(&gate, 0, 0);
	need(!drv->cuLaunchHostFunc(streams[0], pass_gate, NULL), "a function");
	fill(p, 3, 4 * MIB, 0);
	hm->driver.cuMemcpyAsync = copy_and_meet;
	is(hetmem_refresh(res, p, streams[0]), 0, "refresh: %s", hetmem_last_error());
	hm->driver.cuMemcpyAsync = drv->cuMemcpyAsync;
	is(arrived, 0, "a refresh does not wait for the stream, and its copies do");
	ok(nr_given == 2 && given[0] != given[1], "each device has a stream of its own");
	follow(streams[1], streams[0]);
	fill(one, 4, 4 * MIB, 1);
	sem_post(&gate);
	wait_for(0);
	wait_for(1);
	ok(!missed, "the copies are under way at once");
	ok(all_bytes(one, 4, 4 * MIB) && all_bytes(two, 3, 4 * MIB), "after the stream");
	/* A free is not before the last use, which no event of the test shows. */
	drv->cuCtxSetCurrent(ctx[2]);
	need(!drv->cuLaunchHostFunc(streams[2], pass_gate, NULL), "a function");
	drv->cuCtxSetCurrent(ctx[0]);
	fill(two, 5, 4 * MIB, 2);
	drv->cuCtxSetCurrent(ctx[2]);
	follow(streams[0], streams[2]);
	drv->cuCtxSetCurrent(ctx[0]);
	is(hetmem_free(res, p, 0, streams[0]), 0, "free");
	hetmem_poll(res);
	is(stats(res).replicas, 8 * MIB, "replicas are there until their last use");
	sem_post(&gate);
	wait_for(0);
	hetmem_poll(res);
	is(stats(res).replicas, 0, "and no longer");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	sem_destroy(&gate);
}

static void refuses(struct hetmem_resource *res, void *p, int device, int err, const char *why)
{
	void *r = NULL;

	is(hetmem_replicate(res, p, device, &r), err, "refused: %s", why);
	ok(!r && hetmem_last_error()[0] && !strchr(hetmem_last_error(), '\n'), "%s",
	   hetmem_last_error());
}

static void bad_arguments(void)
{
	struct hetmem_resource *res = make("pool(vmm,spill=100M,launcher=single)");
	unsigned char *p = get(res, 4 * MIB, NULL), *r, *m, *s;
	const struct hetmem_alloc_params sparse = {
		.size = sizeof(sparse), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_SPARSE,
	}, movable = {
		.size = sizeof(movable), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	}, private = {
		.size = sizeof(private), .bytes = 4 * MIB, .private_pool = 5,
	};
	void *other, *q;

	refuses(NULL, p, 1, -EINVAL, "no resource");
	refuses(res, NULL, 1, -EINVAL, "no block");
	is(hetmem_replicate(res, p, 1, NULL), -EINVAL, "no result");
	refuses(res, p, -1, -ENODEV, "device -1");
	refuses(res, p, 3, -ENODEV, "device 3");
	refuses(res, p, 1 << 30, -ENODEV, "a large number");
	refuses(res, p, 0, -EINVAL, "its own device");
	refuses(res, p + MIB, 1, -EINVAL, "inside a block");
	refuses(res, &res, 1, -EINVAL, "other memory");
	is(hetmem_refresh(res, p, NULL), -EINVAL, "refresh without replicas");
	r = replica(res, p, 1);
	refuses(res, p, 1, -EEXIST, "twice");
	refuses(res, r, 2, -EINVAL, "a replica of a replica");
	ok(strstr(hetmem_last_error(), "in a replica"), "with the reason");
	is(hetmem_alias(res, r, MIB, 0, &other), -EINVAL, "an alias of one: %s", hetmem_last_error());
	need(!hetmem_alias(res, p, MIB, 0, &other), "an alias");
	refuses(res, other, 2, -EINVAL, "a replica of an alias");
	ok(strstr(hetmem_last_error(), "in an alias"), "with the reason");
	hetmem_free(res, other, 0, NULL);
	is(hetmem_refresh(NULL, p, NULL), -EINVAL, "refresh: no resource");
	is(hetmem_refresh(res, NULL, NULL), -EINVAL, "refresh: no block");
	is(hetmem_refresh(res, r, NULL), -EINVAL, "refresh: %s", hetmem_last_error());
	is(hetmem_refresh(res, p + 512, NULL), -EINVAL, "refresh: %s", hetmem_last_error());
	is(hetmem_refresh(res, p, HETMEM_STREAM_HOST), -EINVAL, "refresh: %s", hetmem_last_error());
	is(hetmem_refresh(res, p, HETMEM_STREAM_UNKNOWN), -EINVAL, "refresh: unknown stream");
	is(hetmem_refresh(res, p, (hetmem_stream)&res), -EINVAL, "refresh: %s", hetmem_last_error());
	is(hetmem_free(res, r, 0, HETMEM_STREAM_UNKNOWN), -EINVAL, "free: %s", hetmem_last_error());
	is(hetmem_free(res, p, 0, HETMEM_STREAM_UNKNOWN), -EINVAL, "free: %s", hetmem_last_error());
	is(hetmem_free(res, p, 1, NULL), -EINVAL, "free: a wrong size");
	is(hetmem_free(res, r + 1, 0, NULL), -EINVAL, "free: inside a replica");
	is(hetmem_record_stream(res, r, NULL), -EINVAL, "record: a replica is no block");
	is(hetmem_pin_comm(res, r), -EINVAL, "pin_comm: neither");
	is(hetmem_shrink(res, p, 2 * MIB, 2 * MIB, NULL), -EBUSY, "shrink: %s", hetmem_last_error());
	is(hetmem_grow(res, p, 2 * MIB, NULL), -EBUSY, "grow: %s", hetmem_last_error());
	is(hetmem_refresh(res, p, NULL), 0, "all of it is as before: %s", hetmem_last_error());
	need(!hetmem_alloc_with(res, &sparse, (void **)&s) && !hetmem_commit(res, s, 0, 4 * MIB, NULL),
	     "a sparse block");
	refuses(res, s, 1, -EOPNOTSUPP, "a sparse block");
	need(!hetmem_alloc_with(res, &movable, (void **)&m) && !hetmem_spill(res, m), "spill");
	refuses(res, m, 1, -EBUSY, "spilled");
	need(!hetmem_fetch(res, m), "fetch");
	q = replica(res, m, 1);
	is(hetmem_spill(res, m), -EBUSY, "a block with replicas stays: %s", hetmem_last_error());
	is(hetmem_free(res, q, 0, HETMEM_STREAM_HOST), 0, "its replica is freed");
	hetmem_poll(res);
	is(hetmem_spill(res, m), 0, "and it moves: %s", hetmem_last_error());
	need(!hetmem_private_retain(res, 5) && !hetmem_alloc_with(res, &private, &q), "a private pool");
	refuses(res, q, 1, -EBUSY, "a block of a private pool");
	hetmem_free(res, q, 0, NULL);
	need(!hetmem_private_release(res, 5, NULL), "release");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	refuses(res, p, 2, -EBUSY, "asleep");
	is(hetmem_refresh(res, p, streams[0]), 0, "its memory stays in a sleep: %s", hetmem_last_error());
	is(hetmem_free(res, r, 0, NULL), 0, "and its replica can be freed: %s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	hetmem_free(res, p, 0, NULL);
	refuses(res, p, 1, -EINVAL, "a freed block");
	hetmem_free(res, m, 0, NULL);
	hetmem_free(res, s, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	ok(all_given_back(), "all is given back");
}

static void bad_resources(void)
{
	static const char *const specs[] = {
		"pool(device)", "device", "pool(vmm(export=fd))", "pool(vmm,comm=on)", "guard(pool(vmm))",
		"fixed(pool(vmm),size=1M,count=4)", "pool(host)", "pool(managed)", "host",
	};
	struct hetmem_resource *res, *gone;
	void *p, *r;
	size_t i;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		res = make(specs[i]);
		p = get(res, 512 << 10, HETMEM_STREAM_HOST);
		refuses(res, p, 1, -EOPNOTSUPP, specs[i]);
		hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
	}
	/* In check mode the struct is kept. */
	res = make("pool(vmm)");
	p = get(res, MIB, HETMEM_STREAM_HOST);
	r = replica(res, p, 1);
	is(hetmem_resource_destroy(res), 1, "a resource that is destroyed");
	gone = res;
	refuses(res, p, 1, -EINVAL, "after destroy");
	is(hetmem_refresh(res, p, NULL), -EINVAL, "refresh after destroy");
	is(hetmem_free(res, r, 0, HETMEM_STREAM_HOST), -EINVAL, "free after destroy");
	/* A copy on one device of what is on several. */
	res = make("limit(pool(vmm(stripe=0/1)),max=100M)");
	p = get(res, 8 * MIB, streams[0]);
	r = replica(res, p, 0);
	is(hetmem_poll(gone), -EINVAL, "poll after destroy, while others have replicas");
	is(hetmem_free(gone, r, 0, streams[0]), -EINVAL, "and a free");
	is(owner(r), 0, "a stripe has a replica on a device of its own");
	fill(p, 6, 8 * MIB, 0);
	is(hetmem_refresh(res, p, streams[0]), 0, "refresh: %s", hetmem_last_error());
	wait_for(0);
	ok(all_bytes(r, 6, 8 * MIB), "with the contents of all");
	is(stats(res).replicas, 8 * MIB, "which an adaptor counts");
	hetmem_free(res, p, 0, streams[0]);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* A small block keeps the memory that was taken out of it. Of a large one it is gone. */
static void with_holes(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	unsigned char *p = get(res, 600, streams[0]), *r, *large = get(res, 8 * MIB, streams[0]);

	need(!hetmem_shrink(res, p, 9, 300, streams[0]), "shrink: %s", hetmem_last_error());
	r = replica(res, p, 1);
	fill(p, 5, 9, 0);
	is(hetmem_refresh(res, p, streams[0]), 0, "a block with a hole: %s", hetmem_last_error());
	wait_for(0);
	ok(all_bytes(r, 5, 9), "is copied");
	need(!hetmem_shrink(res, large, 2 * MIB, 4 * MIB, streams[0]), "shrink: %s", hetmem_last_error());
	refuses(res, large, 1, -EOPNOTSUPP, "a block that gave back memory");
	hetmem_free(res, large, 0, streams[0]);
	hetmem_free(res, p, 0, streams[0]);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static void captured(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	unsigned char *p = get(res, 2 * MIB, NULL), *r = replica(res, p, 1);
	CUgraph graph;

	need(!drv->cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capture");
	is(hetmem_refresh(res, p, streams[0]), -EBUSY, "refresh: %s", hetmem_last_error());
	is(hetmem_free(res, r, 0, streams[0]), -EBUSY, "free: %s", hetmem_last_error());
	is(hetmem_free(res, p, 0, streams[0]), -EBUSY, "free of the block: %s", hetmem_last_error());
	is(hetmem_replicate(res, p, 2, (void **)&r), 0, "replicate: %s", hetmem_last_error());
	need(!drv->cuStreamEndCapture(streams[0], &graph) && !drv->cuGraphDestroy(graph),
	     "the capture is valid");
	is(hetmem_refresh(res, p, streams[0]), 0, "refresh: %s", hetmem_last_error());
	is(hetmem_free(res, p, 0, streams[0]), 0, "free: %s", hetmem_last_error());
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Peers that cannot reach each other, and a device that is full. */
static void without(void)
{
	struct hetmem_resource *res = make("pool(vmm(device=2))"), *full = make("pool(vmm(device=1))");
	unsigned char *p, *r;
	void *q;

	drv->cuCtxSetCurrent(ctx[2]);
	p = get(res, 2 * MIB, streams[2]);
	drv->cuCtxSetCurrent(ctx[0]);
	soft_rules("cuMemSetAccess:1", NULL);
	r = replica(res, p, 1);
	soft_rules(NULL, NULL);
	fill(p, 4, 2 * MIB, 2);
	is(hetmem_refresh(res, p, streams[2]), 0, "refresh without access: %s", hetmem_last_error());
	wait_for(2);
	ok(all_bytes(r, 4, 2 * MIB), "the driver copies");
	is(hetmem_free(res, p, 0, streams[2]), 0, "free");
	wait_for(2);
	p = get(res, 128 * MIB, streams[2]);
	drv->cuCtxSetCurrent(ctx[1]);
	q = get(full, 160 * MIB, streams[1]);
	drv->cuCtxSetCurrent(ctx[0]);
	r = replica(res, p, 0);
	refuses(res, p, 1, -ENOMEM, "no memory");
	is(stats(res).replicas, 128 * MIB, "the other one stays");
	is(hetmem_refresh(res, p, streams[2]), 0, "and is copied: %s", hetmem_last_error());
	hetmem_free(full, q, 0, streams[1]);
	hetmem_free(res, p, 0, streams[2]);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(hetmem_resource_destroy(full), 0, "destroyed");
	ok(all_given_back(), "all is given back");
}

static void forked(void)
{
	struct hetmem_resource *res = make("pool(vmm)"), *host = make("pool(host)");
	unsigned char *p = get(res, 2 * MIB, NULL), *r = replica(res, p, 1);
	void *mine = get(host, MIB, HETMEM_STREAM_HOST);
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	need(child >= 0, "fork");
	if (!child)
		_exit(hetmem_replicate(res, p, 2, (void **)&r) == -EOWNERDEAD &&
		      hetmem_refresh(res, p, NULL) == -EOWNERDEAD &&
		      hetmem_free(res, r, 0, NULL) == -EOWNERDEAD &&
		      hetmem_free(res, p, 0, NULL) == -EOWNERDEAD &&
		      !hetmem_free(host, mine, 0, HETMEM_STREAM_HOST) &&
		      hetmem_resource_destroy(res) >= 0 ? 0 : 1);
	need(waitpid(child, &status, 0) == child, "waitpid");
	is(status, 0, "a forked child gets -EOWNERDEAD, and forgets");
	is(hetmem_refresh(res, p, NULL), 0, "the parent goes on");
	hetmem_free(host, mine, 0, HETMEM_STREAM_HOST);
	hetmem_free(res, p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(hetmem_resource_destroy(host), 0, "destroyed");
}

/* Each call of the driver fails once, in each of the steps. Device 1 has a replica before. */
static long fail_nth(const char *call, unsigned int nth, unsigned int *wrong)
{
	struct hetmem_resource *res = make("pool(vmm)");
	unsigned char *p = get(res, 2 * MIB, streams[0]), *one = replica(res, p, 1);
	const char *rule = failing_rule(call, nth);
	void *two = NULL;
	long made;

	fill(p, 4, 2 * MIB, 0);
	wait_for(0);
	soft_rules(rule, NULL);
	if (hetmem_replicate(res, p, 2, &two))
		*wrong += !hetmem_last_error()[0] || two || hetmem_replicate(res, p, 2, &two);
	if (hetmem_refresh(res, p, streams[0]))
		*wrong += !hetmem_last_error()[0] || hetmem_refresh(res, p, streams[0]);
	if (hetmem_free(res, two, 0, streams[0]))
		*wrong += hetmem_free(res, two, 0, streams[0]) != 0;
	if (hetmem_free(res, p, 0, streams[0]))
		*wrong += hetmem_free(res, p, 0, streams[0]) != 0;
	*wrong += hetmem_free(res, one, 0, streams[0]) != -EINVAL;
	hetmem_poll(res);
	made = failing_made(call, nth);
	soft_rules(NULL, NULL);
	drv->cuStreamSynchronize(streams[0]);
	hetmem_trim(res, 0, NULL);
	*wrong += stats(res).replicas || stats(res).reserved;
	*wrong += hetmem_resource_destroy(res) != 0 || !all_given_back();
	if (*wrong)
		printf("# %s: %s\n", rule, hetmem_last_error());
	return made;
}

/* The contents after a refresh that had an error, and one that had none. */
static void fail_copies(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	unsigned char *p = get(res, 2 * MIB, streams[0]), *r[3];
	unsigned int nth, failed = 0, wrong = 0;
	char rule[64];
	int i;

	for (i = 1; i < 3; i++)
		r[i] = replica(res, p, i);
	for (nth = 1; nth <= 8; nth++) {
		const char *const call[] = { "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent",
					     "cuEventCreate" };

		fill(p, 1, 2 * MIB, 0);
		need(!hetmem_refresh(res, p, streams[0]), "refresh");
		fill(p, 2, 2 * MIB, 0);
		snprintf(rule, sizeof(rule), "%s:%u%s", call[nth % 4], nth / 4 + 1, nth > 4 ? "-9" : "");
		soft_rules(rule, NULL);
		failed += hetmem_refresh(res, p, streams[0]) < 0;
		soft_rules(NULL, NULL);
		fill(p, 3, 2 * MIB, 0);
		wait_for(0);
		for (i = 1; i < 3; i++)
			wrong += !all_bytes(r[i], 1, 2 * MIB) && !all_bytes(r[i], 2, 2 * MIB);
		need(!hetmem_refresh(res, p, streams[0]), "refresh again");
		wait_for(0);
		wrong += !all_bytes(r[1], 3, 2 * MIB) || !all_bytes(r[2], 3, 2 * MIB);
	}
	ok(failed > 2 && !wrong, "%u refreshes fail: old contents or new ones, %u wrong", failed, wrong);
	hetmem_free(res, p, 0, streams[0]);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static void failing(void)
{
	unsigned int nth, wrong = 0, all = 0;
	long made;
	size_t i;

	count_made(from)
		fail_nth(NULL, from, &wrong);
	ok(!wrong, "no call fails");
	for (i = 0; i < NR_CALLS; i++) {
		if (!is_made[i])
			continue;
		for (made = nth = 1, wrong = 0; nth <= 8 && nth <= made && !wrong; nth++)
			made = fail_nth(calls[i], nth, &wrong);
		all += made > 0;
		if (made || wrong)
			ok(!wrong, "%s fails, %u of %ld", calls[i], nth - 1, made);
	}
	ok(all > 10, "%u calls were made", all);
}

struct thread {
	struct hetmem_resource *res;
	pthread_t id;
	unsigned int wrong;
};

static void *replicate_and_free(void *data)
{
	struct thread *t = data;
	unsigned int i;
	void *p, *r;

	drv->cuCtxSetCurrent(ctx[0]);
	for (i = 0; i < 30; i++) {
		p = get(t->res, MIB, NULL);
		t->wrong += !p || hetmem_replicate(t->res, p, 1 + i % 2, &r);
		t->wrong += hetmem_refresh(t->res, p, NULL) != 0;
		if (i % 3)
			t->wrong += hetmem_free(t->res, r, 0, NULL) != 0;
		t->wrong += hetmem_free(t->res, p, 0, NULL) != 0;
		hetmem_poll(t->res);
	}
	return NULL;
}

/* Two of one resource, and two more whose resources end while the others work. */
static void threads(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	struct thread t[4];
	unsigned int i, wrong = 0;

	for (i = 0; i < 4; i++) {
		t[i] = (struct thread){ .res = i < 2 ? res : make("pool(vmm)") };
		need(!pthread_create(&t[i].id, NULL, replicate_and_free, &t[i]), "a thread");
	}
	for (i = 4; i--;) {
		pthread_join(t[i].id, NULL);
		wrong += t[i].wrong;
		if (i > 1)
			wrong += hetmem_resource_destroy(t[i].res) != 0;
	}
	is(wrong, 0, "threads that make and free replicas");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	ok(all_given_back(), "all is given back");
}

int main(void)
{
	setenv("HETMEM_SOFT_DEVICES", "3", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	open_devices();
	/* The first one: no route is known. */
	without();
	basic("pool(vmm)");
	basic("stats(pool(vmm(peers=1/2),handle=2M))");
	at_once();
	bad_arguments();
	bad_resources();
	with_holes();
	captured();
	forked();
	fail_copies();
	failing();
	threads();
	close_devices();
	return tap_end();
}
