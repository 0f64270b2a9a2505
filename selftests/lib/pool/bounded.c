// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How long the pool's lock is held at most by what needs memory that there is not: the
 * instructions between taking and releasing it, without those of the driver, less
 * 2,000 for each call of the driver. Another process counts them one by one, after the
 * pool has been filled.
 */
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "pool/pool_impl.h"
#include "pool.h"

#define MOST		50000
/* The most expensive search: all free blocks are large, and no handle is free. */
#define MOST_LARGE	200000
#define A_CALL		2000

/* What the two processes share. */
struct counted {
	volatile bool held;
	volatile bool in_driver;
	volatile unsigned int holds;
	volatile unsigned int calls;
	volatile bool failed;
	unsigned long steps;		/* of this hold */
	unsigned long all;		/* of all of them */
	unsigned long longest;
	unsigned long longest_calls;
	unsigned long excess;		/* beyond A_CALL for each call */
};

static struct counted *counted;
static pthread_mutex_t *watched;

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*real)(pthread_mutex_t *m);
	int err;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	err = real(m);
	if (m == watched) {
		counted->calls = 0;
		counted->holds++;
		counted->held = true;
	}
	return err;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
	static int (*real)(pthread_mutex_t *m);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	if (m == watched)
		counted->held = false;
	return real(m);
}

static struct hm_driver real_driver;

#define WRAP(name, params, ...)						\
static CUresult count_##name params					\
{									\
	CUresult res;							\
									\
	counted->calls++;						\
	counted->in_driver = true;					\
	res = real_driver.name(__VA_ARGS__);				\
	counted->in_driver = false;					\
	return res;							\
}

WRAP(cuMemCreate, (CUmemGenericAllocationHandle *h, size_t size,
		   const CUmemAllocationProp *prop, unsigned long long flags),
     h, size, prop, flags)
WRAP(cuMemRelease, (CUmemGenericAllocationHandle h), h)
WRAP(cuMemMap, (CUdeviceptr ptr, size_t size, size_t offset,
		CUmemGenericAllocationHandle h, unsigned long long flags),
     ptr, size, offset, h, flags)
WRAP(cuMemUnmap, (CUdeviceptr ptr, size_t size), ptr, size)
WRAP(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
		      size_t count), ptr, size, desc, count)
WRAP(cuEventRecord, (CUevent event, CUstream stream), event, stream)
WRAP(cuEventQuery, (CUevent event), event)
WRAP(cuEventCreate, (CUevent *event, unsigned int flags), event, flags)
WRAP(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
     stream, event, flags)
WRAP(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
     stream, status)
WRAP(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode), mode)
WRAP(cuStreamGetId, (CUstream stream, unsigned long long *id), stream, id)

static void watch(void)
{
	struct hm_driver *d = &hm->driver;

	real_driver = *d;
#define SET(name)	d->name = count_##name
	SET(cuMemCreate);
	SET(cuMemRelease);
	SET(cuMemMap);
	SET(cuMemUnmap);
	SET(cuMemSetAccess);
	SET(cuEventRecord);
	SET(cuEventQuery);
	SET(cuEventCreate);
	SET(cuStreamWaitEvent);
	SET(cuStreamIsCapturing);
	SET(cuThreadExchangeStreamCaptureMode);
	SET(cuStreamGetId);
	watched = &((struct pool *)pool)->lock;
}

#define STREAMS	4

static CUstream streams[STREAMS];

static void make_streams(void)
{
	unsigned int i;

	for (i = 0; i < STREAMS; i++)
		need(!drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "a stream");
}

/*
 * @nr blocks of @size bytes, of which every @nth is freed, on one stream after the
 * other; @of allocates all.
 */
static void fill(size_t size, unsigned int nr, unsigned int nth, unsigned int of)
{
	void **held = calloc(nr, sizeof(*held));
	unsigned int i;

	need(held, "memory");
	for (i = 0; i < nr; i++)
		held[i] = get(size, streams[of]);
	for (i = 0; i < nr; i += nth)
		put(held[i], 0, streams[i / nth % STREAMS]);
	free(held);
}

/* All is freed, by all streams in turn: nothing merges, until it is complete. */
static void all_free(void)
{
	fill(16 << 10, 60000, 1, 0);
	drv->cuCtxSynchronize();
}

static void isolated(void)
{
	fill(512, 1000000, 2, 0);
}

static void isolated_large(void)
{
	fill(3 * MIB, 40000, 2, 0);
}

static void larger(void)
{
	fill(16 << 10, 200000, 2, 0);
}

static void one_stream(void)
{
	fill(512, 1000000, 2, 0);
	fill(MIB + 512, 20000, 2, 0);
}

struct kind {
	const char *name;
	void (*fill)(void);
	size_t size;
	unsigned int stream;
	unsigned long most;
};

static const struct kind kinds[] = {
	{ "8 MiB among 10^6 blocks of 512 B", isolated, 8 * MIB, 1, MOST },
	{ "1 MiB among 10^6 blocks of 512 B", isolated, MIB, 1, MOST },
	{ "64 MiB among 200,000 blocks of 16 KiB", larger, 64 * MIB, 2, MOST },
	{ "64 MiB among 60,000 free ones of four streams", all_free, 64 * MIB, 2, MOST },
	{ "300 MiB among 40,000 blocks of 3 MiB", isolated_large, 300 * MIB, 3,
	  MOST_LARGE },
	{ "64 MiB among both", one_stream, 64 * MIB, 0, MOST },
};

static void work(const struct kind *k)
{
	struct hm_pool_options opt = { .cache = 1 };
	unsigned int i;
	void *p;

	open_soft("");
	make_streams();
	make_pool("vmm", &opt);
	k->fill();
	/* Not what came of filling it: events that are complete. */
	hetmem_poll(pool);
	watch();
	raise(SIGSTOP);
	for (i = 0; i < 3; i++)
		if (hetmem_alloc(pool, k->size, 0, streams[k->stream], &p))
			counted->failed = true;
	watched = NULL;
	_exit(counted->failed);
}

static void end_of_hold(struct counted *c)
{
	unsigned long credit = (unsigned long)c->calls * A_CALL;
	unsigned long excess = c->steps > credit ? c->steps - credit : 0;

	if (excess > c->excess) {
		c->excess = excess;
		c->longest = c->steps;
		c->longest_calls = c->calls;
	}
	c->all += c->steps;
	c->steps = 0;
}

static bool count(pid_t pid, struct counted *c)
{
	int status;

	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (c->held && !c->in_driver)
			c->steps++;
		else if (!c->held && c->steps)
			end_of_hold(c);
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return false;
		}
	}
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void one(const struct kind *k)
{
	bool counts;
	pid_t pid;

	memset(counted, 0, sizeof(*counted));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(1);
		work(k);
	}
	counts = count(pid, counted);
	ok(counts && counted->all && counted->excess <= k->most,
	   "%s: at most %lu instructions and %lu calls of the driver at a time, %lu more than the calls are worth, in %u times %lu",
	   k->name, counted->longest, counted->longest_calls, counted->excess,
	   counted->holds, counted->all);
}

static bool can_count(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (!ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			raise(SIGSTOP);
		_exit(1);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		return false;
	status = ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return !status;
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "512G", 1);
	if (!can_count()) {
		printf("1..0 # SKIP instructions cannot be counted here\n");
		return 0;
	}
	counted = mmap(NULL, sizeof(*counted), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(counted != MAP_FAILED, "memory");
	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		one(&kinds[i]);
	return tap_end();
}
