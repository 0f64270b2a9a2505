// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * guard() and fixed() where it is not calm: while streams are captured, in a
 * forked child, between threads, over memory that sleeps or is of two kinds.
 * Over the soft driver in check mode.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "block_of.h"
#include "by_spec.h"

#define KB	((size_t)1 << 10)
#define HOST	HETMEM_STREAM_HOST

static CUstream a, b;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void wait_for_gate(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

/* What is given to @stream from now on is not done. */
static void close_gate(CUstream stream)
{
	pthread_mutex_lock(&gate);
	need(!drv->cuLaunchHostFunc(stream, wait_for_gate, NULL),
	     "a stream waits");
}

static void open_gate(void)
{
	pthread_mutex_unlock(&gate);
}

/* A graph cannot wait for what is outside of it. */
static void test_fixed_captured(void)
{
	struct hetmem_resource *res = make("fixed(pool(vmm),size=64K,count=2)");
	void *p = get(res, 1, b), *q = NULL, *other = get(res, 1, b);
	CUgraph graph = NULL;

	close_gate(b);
	hetmem_free(res, p, 0, b);
	drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(hetmem_alloc(res, 1, 0, a, &q), -EBUSY,
	   "fixed: captured: nothing is done");
	ok(strstr(hetmem_last_error(), "captured"), "fixed: captured: says so");
	open_gate();
	is(hetmem_alloc(res, 1, 0, HOST, &q), 0, "fixed: captured: the host waits");
	ok(q == p, "fixed: captured: for the only one");
	hetmem_free(res, q, 0, HOST);
	is(hetmem_alloc(res, 1, 0, a, &q), 0, "fixed: captured: what is done");
	is(hetmem_free(res, q, 0, a), -EBUSY, "fixed: captured: not freed there");
	is(drv->cuStreamEndCapture(a, &graph), 0, "fixed: the capture is valid");
	drv->cuGraphDestroy(graph);
	is(hetmem_free(res, q, 0, a), 0, "fixed: freed after it");
	hetmem_free(res, other, 0, b);
	is(hetmem_resource_destroy(res), 0, "fixed: nothing is live");
}

/* @live: allocated on a stream that the child does not have. */
static int use_in_child(struct hetmem_resource *res, void *live)
{
	void *p;

	if (hetmem_alloc(res, 1, 0, HOST, &p)) {
		fprintf(stderr, "# %s\n", hetmem_last_error());
		return 1;
	}
	memset(p, 1, 64 * KB);
	return hetmem_free(res, p, 0, HOST) ||
	       hetmem_free(res, live, 0, HETMEM_STREAM_UNKNOWN) ||
	       hetmem_poll(res) || hetmem_resource_destroy(res);
}

static void test_fixed_forked(void)
{
	struct hetmem_resource *res =
		make("fixed(pool(host),size=64K,count=2)");
	void *p = get(res, 1, b), *live = get(res, 1, b);
	int status = -1;
	pid_t pid;

	close_gate(b);
	hetmem_free(res, p, 0, b);
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(use_in_child(res, live));
	waitpid(pid, &status, 0);
	open_gate();
	is(status, 0, "fixed: a child has the buffers");
	is(hetmem_free(res, live, 0, b), 0, "fixed: so has its parent");
	is(hetmem_resource_destroy(res), 0, "fixed: nothing is live");
}

static struct hetmem_resource *guard;
static void *shared;
static unsigned int missed;

static void *record_much(void *stream)
{
	struct hm_ctl_owns block;
	int i;

	for (i = 0; i < 20000; i++)
		if (hetmem_record_stream(guard, shared, stream) ||
		    block_of(guard, shared, &block))
			__atomic_add_fetch(&missed, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void test_guard_threads(void)
{
	pthread_t first, second;

	guard = make("guard(pool(vmm))");
	shared = get(guard, 1000, HOST);
	need(!pthread_create(&first, NULL, record_much, a) &&
	     !pthread_create(&second, NULL, record_much, b), "threads");
	pthread_join(first, NULL);
	pthread_join(second, NULL);
	is(missed, 0, "guard: a block that is recorded is there");
	is(hetmem_free(guard, shared, 1000, HOST), 0, "guard: and can be freed");
	is(hetmem_resource_destroy(guard), 0, "guard: nothing is live");
}

/* What hetmem_poll() says when damage is looked at; stderr is not for people. */
static int free_damaged(struct hetmem_resource *res, void *p)
{
	int saved = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);

	drv->cuMemsetD8Async((uintptr_t)p + 1000, 1, 1, a);
	dup2(null, STDERR_FILENO);
	hetmem_free(res, p, 1000, a);
	drv->cuStreamSynchronize(a);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(null);
	return hetmem_poll(res);
}

static void test_guard_sleep(void)
{
	struct hetmem_resource *res = make("guard(pool(vmm))");
	void *p = get(res, 1000, HOST), *q = get(res, 3000 * KB, a);

	drv->cuStreamSynchronize(a);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "guard: sleep");
	is(hetmem_free(res, p, 1000, HOST), 0, "guard: freed while it sleeps");
	is(hetmem_wake(res, NULL), 0, "guard: wake");
	is(hetmem_free(res, q, 3000 * KB, a), 0, "guard: freed when it is awake");
	drv->cuStreamSynchronize(a);
	is(hetmem_poll(res), 0, "guard: zones that were lost are no damage");
	is(free_damaged(res, get(res, 1000, a)), -EFAULT,
	   "guard: what is allocated then is looked at");
	is(hetmem_resource_destroy(res), 0, "guard: nothing is live");
	res = make("guard(pool(device))");
	p = get(res, 1000, a);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), -EOPNOTSUPP, "guard: what cannot sleep");
	is(free_damaged(res, p), -EFAULT, "guard: is looked at");
	hetmem_resource_destroy(res);
}

static void refuses_mixed(const char *spec)
{
	struct hetmem_resource *res = NULL;

	is(hetmem_resource_create(hm, spec, &res), -EINVAL, "refused: %s",
	   spec);
	if (!ok(strstr(hetmem_last_error(), "a guard around each"),
		"guard: says what helps"))
		printf("# %s\n", hetmem_last_error());
}

/* What the CPU fills and what only the driver does are told apart. */
static void test_guard_mixed(void)
{
	struct hetmem_resource *res;
	void *p;

	refuses_mixed("guard(fallback(pool(host,max=2M),pool(vmm)))");
	refuses_mixed("guard(fallback(pool(vmm),pool(host)))");
	refuses_mixed("guard(stats(binning(pool(vmm),fallback(pool(vmm),host),at=4K)))");
	res = make("fallback(guard(pool(host,max=2M)),guard(pool(vmm)))");
	p = get(res, 3000 * KB, HOST);
	ok(p, "guard: around each");
	is(hetmem_free(res, p, 3000 * KB, HOST), 0, "guard: home");
	is(hetmem_poll(res), 0, "guard: nothing was wrong");
	hetmem_resource_destroy(res);
	res = make("guard(fallback(pool(vmm),pool(pinned)))");
	hetmem_resource_destroy(res);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 0);
	open_soft("");
	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "streams");
	test_fixed_captured();
	test_fixed_forked();
	test_guard_threads();
	test_guard_sleep();
	test_guard_mixed();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	return tap_end();
}
