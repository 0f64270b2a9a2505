// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A forked child: devices and module are the parent's, memory is its own
 * copy, closing only forgets, and it can open the library again; while other
 * threads of the parent are in the middle of everything.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "soft_driver.h"

static int run_child(int (*child)(void *arg), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

#define EXPECT(cond) do {						\
	if (!(cond)) {							\
		fprintf(stderr, "# child, line %d: %s\n", __LINE__, #cond); \
		return 1;						\
	}								\
} while (0)

static int refused(void *p)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem_run run;
	uintptr_t next;
	CUdeviceptr d;

	EXPECT(hetmem_prefetch(hm, p, 4096, HETMEM_LOC(HETMEM_DEVICE, 0),
			       NULL, &m) == -EOWNERDEAD);
	EXPECT(hetmem_residency(hm, p, 4096, &run, NULL, 1, &next) == -EOWNERDEAD);
	EXPECT(drv->cuMemAlloc(&d, 4096) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(hetmem_device_count(hm) == 1);
	return 0;
}

static int memory_goes_on(void *arg)
{
	unsigned char *p = arg;
	void *q;

	EXPECT(p[0] == 42);
	p[0] = 43;
	EXPECT(!hetmem_system_resize(hm, p, 9 << 20, &q));
	EXPECT(*(unsigned char *)q == 43);
	EXPECT(!hetmem_system_free(hm, q));
	EXPECT(hetmem_system_free(hm, q) == -EINVAL);
	EXPECT(!hetmem_system_alloc(hm, 1000, &q));
	EXPECT(!hetmem_system_free(hm, q));
	return 0;
}

static int closes(void *arg)
{
	unsigned char *p = arg;

	hetmem_close(hm);
	EXPECT(p[0] == 42);
	return 0;
}

static int opens_again(void *arg)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	unsigned char bytes[100];
	struct hetmem *mine;
	CUcontext ctx;

	(void)arg;
	EXPECT(!hetmem_open(&mine, &params));
	drv = api_of(mine);
	EXPECT(!drv->cuCtxGetCurrent(&ctx) && !ctx);
	EXPECT(!drv->cuDevicePrimaryCtxRetain(&ctx, 0));
	EXPECT(!drv->cuCtxSetCurrent(ctx));
	EXPECT(!drv->cuMemsetD8Async((uintptr_t)bytes, 9, 100, NULL));
	EXPECT(!drv->cuCtxSynchronize());
	EXPECT(all_bytes(bytes, 9, 100));
	EXPECT(!drv->cuDevicePrimaryCtxRelease(0));
	hetmem_close(hm);
	hetmem_close(mine);
	return 0;
}

static void never(void)
{
	_exit(9);
}

static int destroys(void *res)
{
	void (*call)(void) = never;

#define CALL(member, ...) memcpy(&hm->driver.member, &call, sizeof(call));
	HM_DRIVER_CALLS(CALL)
#undef CALL
	hetmem_resource_destroy(res);
	return 0;
}

/* What was freed is in use, and one block is live. */
static void destroy(const char *spec)
{
	struct hetmem_resource *res;
	CUstream s, other;
	void *p, *q;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "streams");
	need(!hetmem_alloc(res, 4096, 0, s, &p) && !hetmem_alloc(res, 4096, 0, other, &q),
	     "%s: memory: %s", spec, hetmem_last_error());
	need(!soft_launch(s, "work", NULL, 0, 1000000), "work");
	need(!hetmem_free(res, p, 0, s), "%s: free: %s", spec, hetmem_last_error());
	is(run_child(destroys, res), 0, "%s: destroy in a child calls no driver", spec);
	need(!hetmem_free(res, q, 0, other), "%s: free: %s", spec, hetmem_last_error());
	is(hetmem_resource_destroy(res), 0, "%s: and the parent's goes on", spec);
	drv->cuStreamDestroy(s);
	drv->cuStreamDestroy(other);
}

static bool stop;

/* Holds every lock of the library some of the time. */
static void *busy(void *arg)
{
	const struct hm_api *d = drv;
	CUstream stream;
	CUcontext ctx;
	void *p;

	(void)arg;
	d->cuDevicePrimaryCtxRetain(&ctx, 0);
	d->cuCtxSetCurrent(ctx);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (hetmem_system_alloc(hm, 3 << 20, &p))
			continue;
		d->cuStreamCreate(&stream, 0);
		d->cuMemsetD8Async((uintptr_t)p, 1, 4096, stream);
		d->cuStreamSynchronize(stream);
		d->cuStreamDestroy(stream);
		hetmem_system_free(hm, p);
	}
	d->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static pid_t log_tid;

static void *opens_log(void *fifo)
{
	struct hetmem_resource *res;
	char spec[200];

	snprintf(spec, sizeof(spec), "log(host,file=%s)", (char *)fifo);
	__atomic_store_n(&log_tid, gettid(), __ATOMIC_RELEASE);
	if (hetmem_resource_create(hm, spec, &res))
		return "no log";
	return hetmem_resource_destroy(res) ? "live blocks" : NULL;
}

static void *opens_reader(void *fifo)
{
	char bytes[200];
	int fd;

	/* It forks, or waits for its child. */
	wait_until(thread_sleeps(getpid(), getpid()));
	fd = open(fifo, O_RDONLY);
	while (fd >= 0 && read(fd, bytes, sizeof(bytes)) > 0)
		;
	close(fd);
	return NULL;
}

/*
 * Not _exit(): the library writes logs that are left when a process ends. Of
 * the sanitizers' own threads and locks at exit a child knows nothing.
 */
static int ends(void *arg)
{
	(void)arg;
	hang_limit(true);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	exit(0);
#endif
	return 0;
}

static unsigned int lines_of(const char *path)
{
	FILE *f = fopen(path, "r");
	unsigned int nr = 0;
	int c;

	while (f && (c = getc(f)) != EOF)
		nr += c == '\n';
	if (f)
		fclose(f);
	return nr;
}

/*
 * Logs: a child ends while another thread of the parent's was opening one, which
 * takes as long as its reader does, and writes no line of the parent's again.
 */
static void logs(void)
{
	char name[] = "/tmp/hetmem-fork-XXXXXX", path[100], fifo[100];
	struct hetmem_resource *res;
	pthread_t log, reader;
	char spec[200], *dir;
	void *p, *err;
	int i, bad = 0;

	dir = mkdtemp(name);
	need(dir, "a directory");
	snprintf(path, sizeof(path), "%s/log", dir);
	snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
	snprintf(spec, sizeof(spec), "log(host,file=%s)", path);
	need(!hetmem_resource_create(hm, spec, &res), "a log: %s",
	     hetmem_last_error());
	for (i = 0; i < 5; i++)
		bad += !!hetmem_alloc(res, 100, 0, HETMEM_STREAM_HOST, &p) ||
		       hetmem_free(res, p, 100, HETMEM_STREAM_HOST);
	is(bad, 0, "lines that are not written yet");
	is(run_child(ends, NULL), 0, "a child ends");
	need(!mkfifo(fifo, 0600), "a fifo");
	need(!pthread_create(&log, NULL, opens_log, fifo), "a thread");
	need(wait_until(__atomic_load_n(&log_tid, __ATOMIC_ACQUIRE) &&
			thread_sleeps(getpid(), log_tid)), "it waits for a reader");
	need(!pthread_create(&reader, NULL, opens_reader, fifo), "another one");
	is(run_child(ends, NULL), 0, "of a parent that opens a log as well");
	pthread_join(log, &err);
	pthread_join(reader, NULL);
	ok(!err, "which it then has: %s", (char *)err);
	is(hetmem_resource_destroy(res), 0, "the log is written");
	is(lines_of(path), 11, "each line once");
	unlink(path);
	unlink(fifo);
	rmdir(dir);
}

int main(void)
{
	static const char *const specs[] = {
		"pool(vmm)", "pool(device)", "pool(async)", "device", "managed", "async",
		"pinned", "host", "guard(pool(vmm))", "fixed(pool(vmm),size=4K,count=2)",
	};
	unsigned char *p, *q;
	pthread_t thread[2];
	int i, bad = 0;

	open_soft("");
	hetmem_system_alloc(hm, 3 << 20, (void **)&p);
	p[0] = 42;
	is(run_child(refused, p), 0, "devices and module are refused");
	is(run_child(memory_goes_on, p), 0, "memory goes on");
	is(p[0], 42, "as a copy");
	is(run_child(closes, p), 0, "closing forgets");
	is(run_child(opens_again, p), 0, "the child opens its own");
	is(drv->cuMemsetD8Async((uintptr_t)p, 7, 4096, NULL), 0,
	   "the parent's device works on");
	is(drv->cuCtxSynchronize(), 0, "to the end");
	ok(all_bytes(p, 7, 4096), "and right");

	for (i = 0; i < (int)(sizeof(specs) / sizeof(specs[0])); i++)
		destroy(specs[i]);

	p[0] = 42;
	for (i = 0; i < 2; i++)
		need(!pthread_create(&thread[i], NULL, busy, NULL), "a thread");
	for (i = 0; i < 40; i++) {
		hetmem_system_alloc(hm, 2 << 20, (void **)&q);
		q[0] = 42;
		/*
		 * The sanitizers' allocators have locks of their own that a
		 * child inherits taken: what allocates or starts threads in
		 * the child of a busy parent is for the plain build.
		 */
#ifndef __SANITIZE_ADDRESS__
		bad += !!run_child(memory_goes_on, q);
#ifndef __SANITIZE_THREAD__
		bad += !!run_child(opens_again, q);
#endif
#endif
		hetmem_system_free(hm, q);
	}
	is(bad, 0, "children of a parent with busy threads");
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	logs();
	is(hetmem_system_free(hm, p), 0, "freed");
	close_soft();
	return tap_end();
}
