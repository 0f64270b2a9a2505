// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * history(): what is recorded, in which order, and how much of it is kept; who
 * called, in a program and with the shared library; what is reported of blocks
 * that are still allocated, and of those that a guard finds damaged; threads
 * that record while others read; a forked child.
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "alloc_with.h"
#include "by_spec.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static struct hetmem_history_event events[4096];

static ssize_t read_all(struct hetmem_resource *res)
{
	ssize_t nr = hetmem_history(res, events, 4096);

	need(nr >= 0, "history: %s", hetmem_last_error());
	return nr;
}

static void event_is(ssize_t i, int kind, const void *ptr, size_t bytes,
		     hetmem_stream stream, int error, const char *what)
{
	const struct hetmem_history_event *e = &events[i];

	if (!ok(e->kind == kind && e->ptr == ptr && e->bytes == bytes &&
		e->stream == stream && e->error == error, "%s", what))
		printf("# kind %d, %p, %zu bytes, stream %p, error %d\n",
		       e->kind, e->ptr, e->bytes, e->stream, e->error);
}

static void test_events(void)
{
	struct hetmem_resource *res = make("history(pool(vmm,max=64M,wait=0s))");
	size_t freed = 0;
	CUstream s;
	void *p, *q, *r = NULL;
	ssize_t nr, i;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	is(read_all(res), 0, "nothing has happened");
	p = get(res, 1000, s);
	is(hetmem_alloc(res, 65 * MB, 0, HOST, &r), -ENOMEM, "no memory");
	is(hetmem_free(res, p, 999, s), -EINVAL, "a wrong size");
	is(hetmem_free(res, p, 0, HETMEM_STREAM_UNKNOWN), 0, "a free");
	is(alloc_reserve(res, 3 * MB, 8 * MB, HOST, &q), 0, "a reserve");
	is(hetmem_grow(res, q, 5 * MB, s), 0, "a grow");
	is(hetmem_grow(res, q, 9 * MB, s), -ENOSPC, "beyond its addresses");
	is(hetmem_free(res, q, 5 * MB, s), 0, "a free");
	drv->cuStreamSynchronize(s);
	hetmem_poll(res);
	is(hetmem_trim(res, 0, &freed), 0, "a trim");
	nr = read_all(res);
	is(nr, 9, "all events are there");
	event_is(0, HETMEM_HISTORY_ALLOC, p, 1000, s, 0, "an allocation");
	event_is(1, HETMEM_HISTORY_ALLOC, NULL, 65 * MB, HOST, -ENOMEM,
		 "one that failed");
	event_is(2, HETMEM_HISTORY_FREE, p, 999, s, -EINVAL,
		 "a free that failed");
	event_is(3, HETMEM_HISTORY_FREE, p, 1000, HETMEM_STREAM_UNKNOWN, 0,
		 "a free, and the size that was not told");
	event_is(4, HETMEM_HISTORY_ALLOC, q, 3 * MB, HOST, 0, "a reserve");
	event_is(5, HETMEM_HISTORY_GROW, q, 5 * MB, s, 0, "a grow");
	event_is(6, HETMEM_HISTORY_GROW, q, 9 * MB, s, -ENOSPC,
		 "one that failed");
	event_is(7, HETMEM_HISTORY_FREE, q, 5 * MB, s, 0, "a free");
	event_is(8, HETMEM_HISTORY_TRIM, NULL, freed, HETMEM_STREAM_UNKNOWN, 0,
		 "a trim");
	for (i = 0; i < nr; i++)
		if (events[i].nr != (uint64_t)i + 1 || !events[i].time ||
		    (i && events[i].time < events[i - 1].time))
			break;
	is(i, nr, "numbers from 1, and times go up");
	hetmem_stream_retire(res, s);
	drv->cuStreamDestroy(s);
	hetmem_resource_destroy(res);
}

/* @room events of @nr, and reading @want of them. */
static void test_ring(unsigned int room, unsigned int nr, unsigned int want)
{
	const unsigned int kept = nr < room ? nr : room;
	const unsigned int most = kept < want ? kept : want;
	struct hetmem_resource *res;
	char spec[60];
	unsigned int i;
	ssize_t have;

	snprintf(spec, sizeof(spec), "history(pool(host),events=%u)", room);
	res = make(spec);
	for (i = 0; i < nr / 2; i++)
		hetmem_free(res, get(res, 100 + i, HOST), 0, HOST);
	memset(events, 0, sizeof(events));
	have = hetmem_history(res, events, want);
	is(have, most, "%u of %u events are kept, %u are read", room, nr, want);
	for (i = 0; i < most; i++)
		if (events[i].nr != nr - most + i + 1 ||
		    events[i].bytes != 100 + (events[i].nr - 1) / 2)
			break;
	is(i, most, "the last ones, the oldest first");
	ok(most == 4096 || !events[most].nr, "and nothing behind them");
	hetmem_resource_destroy(res);
}

static void test_bad_input(void)
{
	struct hetmem_resource_stats st = { .size = sizeof(st) };
	struct hetmem_resource *res;
	uint64_t metadata;
	unsigned int i;

	is(hetmem_resource_create(hm, "history(pool(host),events=0)", &res),
	   -EINVAL, "no events");
	is(hetmem_resource_create(hm, "history(pool(host),events=1048577)",
				  &res), -EINVAL, "too many events");
	is(hetmem_resource_create(hm, "history(pool(host),callers=17)", &res),
	   -EINVAL, "too many callers");
	is(hetmem_resource_create(hm, "history", &res), -EINVAL, "of nothing");
	res = make("pool(host)");
	is(hetmem_history(res, events, 1), -EOPNOTSUPP, "no history");
	hetmem_resource_destroy(res);
	res = make("history(pool(host),events=1048576,callers=0)");
	is(hetmem_history(res, NULL, 1), -EINVAL, "no room that is told");
	is(hetmem_history(NULL, events, 1), -EINVAL, "no resource");
	is(hetmem_history(res, NULL, 0), 0, "no room");
	need(!hetmem_resource_stats(res, &st), "stats");
	metadata = st.metadata;
	for (i = 0; i < 100; i++)
		hetmem_free(res, get(res, 100, HOST), 100, HOST);
	need(!hetmem_resource_stats(res, &st), "stats");
	ok(st.metadata - metadata < MB && metadata > (1 << 20) * sizeof(*events),
	   "its memory is bounded, and counted");
	is(hetmem_history(res, events, 5), 5, "the last five");
	is(events[4].nr_callers, 0, "no callers");
	hetmem_resource_destroy(res);
	res = make("stats(fallback(history(pool(vmm),events=3),pool(host)))");
	hetmem_free(res, get(res, 100, HOST), 0, HOST);
	is(read_all(res), 2, "it is found below others");
	hetmem_resource_destroy(res);
}

/* Who called. The compiler must not merge or inline these. */

typedef int (*alloc_fn)(struct hetmem_resource *res, size_t size, size_t align,
			hetmem_stream stream, void **ptr);

__attribute__((noinline, noclone))
static void *inner_caller(alloc_fn alloc, struct hetmem_resource *res)
{
	void *p = NULL;
	volatile int err = alloc(res, 100, 0, HOST, &p);

	return err ? NULL : p;
}

__attribute__((noinline, noclone))
static void *outer_caller(alloc_fn alloc, struct hetmem_resource *res)
{
	void *volatile p = inner_caller(alloc, res);

	return p;
}

static bool is_in(const void *address, const void *function)
{
	uintptr_t at = (uintptr_t)address, start = (uintptr_t)function;

	return at > start && at < start + 1000;
}

static void test_callers(void)
{
	struct hetmem_resource *res = make("stats(history(pool(host),callers=16))");
	void *p = outer_caller(hetmem_alloc, res);
	const struct hetmem_history_event *e = events;
	unsigned int i;

	need(p && read_all(res) == 1, "an event");
	for (i = 0; i + 1 < e->nr_callers; i++)
		if (is_in(e->callers[i], inner_caller))
			break;
	ok(i + 1 < e->nr_callers && is_in(e->callers[i + 1], outer_caller),
	   "the callers are among them");
	hetmem_free(res, p, 100, HOST);
	hetmem_resource_destroy(res);
}

/* With the shared library its own functions are left out. */
static void test_shared_library(unsigned int callers)
{
	int (*open)(struct hetmem **hm, const struct hetmem_params *params);
	void (*close)(struct hetmem *hm);
	int (*create)(struct hetmem *hm, const char *spec,
		      struct hetmem_resource **res);
	ssize_t (*destroy)(struct hetmem_resource *res);
	ssize_t (*history)(struct hetmem_resource *res,
			   struct hetmem_history_event *e, size_t nr);
	int (*release)(struct hetmem_resource *res, void *ptr, size_t size,
		       hetmem_stream stream);
	alloc_fn alloc;
	void *lib = dlopen("libhetmem.so", RTLD_NOW | RTLD_LOCAL);
	struct hetmem_params params = {
		.size = sizeof(params), .module_path = "",
	};
	struct hetmem_resource *res;
	struct hetmem *own;
	char spec[80];
	void *p;

	need(lib, "libhetmem.so: %s", dlerror());
#define FIND(fn, name) (*(void **)&(fn) = dlsym(lib, name))
	need(FIND(open, "hetmem_open") && FIND(close, "hetmem_close") &&
	     FIND(create, "hetmem_resource_create") &&
	     FIND(destroy, "hetmem_resource_destroy") &&
	     FIND(history, "hetmem_history") && FIND(release, "hetmem_free") &&
	     FIND(alloc, "hetmem_alloc"), "its functions");
	snprintf(spec, sizeof(spec),
		 "stats(limit(history(pool(host),callers=%u),max=1M))", callers);
	need(!open(&own, &params) && !create(own, spec, &res), "a resource");
	p = outer_caller(alloc, res);
	need(p && history(res, events, 1) == 1, "an event");
	is(events[0].nr_callers > callers, 0, "no more than were asked for");
	ok(is_in(events[0].callers[0], inner_caller),
	   "shared library: the innermost caller is the program's");
	if (callers > 1)
		ok(is_in(events[0].callers[1], outer_caller),
		   "then the one that called it");
	release(res, p, 100, HOST);
	destroy(res);
	close(own);
	dlclose(lib);
}

/* Reports on stderr. */

static int out;
static char text[16384];
static struct hetmem_resource *to_destroy;

static void destroy_it(void)
{
	hetmem_resource_destroy(to_destroy);
}

static const char *said_by(void (*call)(void), struct hetmem_resource *res)
{
	to_destroy = res;
	need(tap_stderr_of(call, out, text, sizeof(text)) >= 0, "stderr");
	return text;
}

static unsigned int count(const char *what)
{
	unsigned int n = 0;
	const char *at;

	for (at = text; (at = strstr(at, what)); at += strlen(what))
		n++;
	return n;
}

/* How often the block at @ptr is reported. */
static unsigned int count_block(const void *ptr)
{
	char name[32];

	snprintf(name, sizeof(name), "history: %p,", ptr);
	return count(name);
}

static void test_leaks(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *p[40];
	int i;

	for (i = 0; i < 8; i++)
		p[i] = get(res, 1000 + i, HOST);
	for (i = 0; i < 8; i++)
		if (i != 3 && i != 5)
			hetmem_free(res, p[i], 0, HOST);
	/* Its address had another block before. */
	p[0] = get(res, 1000, HOST);
	said_by(destroy_it, res);
	is(count("still allocated"), 3, "%s: three blocks", spec);
	ok(count_block(p[3]) == 1 && count_block(p[5]) == 1 &&
	   count_block(p[0]) == 1, "each once");
	ok(count("1003 bytes") == 1 && count("1005 bytes") == 1 &&
	   count(" by\n") == 3 && count("hetmem:   ") >= 6,
	   "with sizes and callers");
	res = make(spec);
	for (i = 0; i < 8; i++)
		p[i] = get(res, 1000, HOST);
	for (i = 0; i < 8; i++)
		hetmem_free(res, p[i], 0, HOST);
	is(strlen(said_by(destroy_it, res)), 0, "no block: nothing is said");
	res = make(spec);
	for (i = 0; i < 40; i++)
		p[i] = get(res, 1000, HOST);
	said_by(destroy_it, res);
	is(count("still allocated, allocated"), 16, "40 blocks: 16 are named");
	ok(strstr(text, "40 blocks are still allocated, 16"), "and all counted");
}

/* Events of the block are lost: it is counted. */
static void test_lost(void)
{
	struct hetmem_resource *res = make("history(pool(host),events=2)");

	get(res, 1000, HOST);
	hetmem_free(res, get(res, 1000, HOST), 0, HOST);
	said_by(destroy_it, res);
	is(count("still allocated"), 1, "a block of which no event is left");
	ok(strstr(text, "1 blocks are still allocated, 0"), "is counted");
}

static struct hetmem_resource *damaged;
static unsigned char *damaged_block;
static hetmem_stream damaged_on;
static const void *damaged_base;

static void free_damaged(void)
{
	hetmem_free(damaged, damaged_block, 1000, damaged_on);
	drv->cuCtxSynchronize();
	hetmem_poll(damaged);
}

/* What a guard finds is told with who allocated and freed the block. */
static void test_damage(const char *spec, hetmem_stream stream)
{
	damaged = make(spec);
	damaged_on = stream;
	damaged_block = get(damaged, 1000, stream);
	need(damaged_block && read_all(damaged) == 1, "a block");
	damaged_base = events[0].ptr;
	if (stream == HOST)
		damaged_block[1000] = 1;
	else
		drv->cuMemsetD8Async((uintptr_t)damaged_block + 1000, 1, 1,
				     stream);
	said_by(free_damaged, damaged);
	ok(strstr(text, "byte 1 after its end was overwritten"),
	   "%s: damage", spec);
	/* The guard's line, and the history's. */
	ok(count_block(damaged_base) && count("bytes, allocated on") == 2,
	   "%s: who allocated it", spec);
	ok(strstr(text, " by\nhetmem:   "), "with callers");
	is(strlen(said_by(destroy_it, damaged)), 0, "%s: no leak", spec);
}

static void test_guard_leaks(void)
{
	struct hetmem_resource *res = make("guard(history(pool(host)))");
	void *p = get(res, 1000, HOST);
	char name[80];

	get(res, 2000, HOST);
	said_by(destroy_it, res);
	snprintf(name, sizeof(name), "guard: block %p of 1000 bytes", p);
	is(count(name), 1, "guard: a block that is still allocated");
	is(count("guard: block"), 2, "two of them");
	is(count("history: 0x"), 2, "each with its history, once");
	res = make("guard(pool(host))");
	get(res, 1000, HOST);
	said_by(destroy_it, res);
	is(count("guard: block"), 1, "without a history, too");
	is(count("history"), 0, "which is not asked for");
	res = make("guard(pool(host))");
	hetmem_free(res, get(res, 1000, HOST), 0, HOST);
	is(strlen(said_by(destroy_it, res)), 0, "no block: nothing is said");
}

/* Threads. */

#define THREADS		4
#define ROUNDS		600

static struct hetmem_resource *shared;
static bool stop;

static void *works(void *arg)
{
	size_t size = 1000 * (uintptr_t)arg;
	unsigned int i;
	void *p;

	for (i = 0; i < ROUNDS; i++)
		if (hetmem_alloc(shared, size, 0, HOST, &p) ||
		    hetmem_free(shared, p, i % 2 ? size : 0, HOST))
			return "failed";
	return NULL;
}

/* Each event is whole, and they come in order. */
static void *reads(void *arg)
{
	static struct hetmem_history_event mine[1000];
	void *bad = NULL;
	ssize_t nr, i;

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		nr = hetmem_history(shared, mine, 1000);
		if (nr < 0)
			bad = "failed";
		for (i = 0; i < nr; i++)
			if ((i && (mine[i].nr <= mine[i - 1].nr ||
				   mine[i].time < mine[i - 1].time)) ||
			    mine[i].bytes % 1000 || mine[i].bytes > 4000 ||
			    !mine[i].ptr || mine[i].kind > HETMEM_HISTORY_FREE ||
			    mine[i].nr_callers > 4)
				bad = "an event that never was";
	}
	return bad;
}

/* An address that is given out is freed before it is given out again. */
static bool in_order(ssize_t nr)
{
	const void *live[THREADS] = { NULL };
	ssize_t i;
	int j;

	for (i = 0; i < nr; i++) {
		for (j = 0; j < THREADS && live[j] != events[i].ptr; j++)
			;
		if ((events[i].kind == HETMEM_HISTORY_ALLOC) == (j < THREADS))
			return false;
		if (j < THREADS) {
			live[j] = NULL;
			continue;
		}
		for (j = 0; j < THREADS && live[j]; j++)
			;
		if (j == THREADS)
			return false;
		live[j] = events[i].ptr;
	}
	return true;
}

static void test_threads(const char *spec, bool all)
{
	pthread_t threads[THREADS], reader;
	void *bad = NULL, *result;
	uintptr_t i;
	ssize_t nr;

	shared = make(spec);
	stop = false;
	need(!pthread_create(&reader, NULL, reads, NULL), "a thread");
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&threads[i], NULL, works,
				     (void *)(i + 1)), "a thread");
	for (i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &result);
		bad = result ? result : bad;
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(reader, &result);
	bad = result ? result : bad;
	ok(!bad, "%s: threads: %s", spec, bad ? (char *)bad : "all right");
	nr = read_all(shared);
	if (all)
		is(nr, 4096, "as many events as there is room for");
	ok(!all || events[nr - 1].nr == 2 * THREADS * ROUNDS,
	   "%s: every one was counted", spec);
	hetmem_resource_destroy(shared);
}

static void test_order(void)
{
	pthread_t threads[3];
	uintptr_t i;
	void *result, *bad = NULL;
	ssize_t nr;

	shared = make("history(pool(host),events=4096,callers=2)");
	for (i = 0; i < 3; i++)
		need(!pthread_create(&threads[i], NULL, works,
				     (void *)(i + 1)), "a thread");
	for (i = 0; i < 3; i++) {
		pthread_join(threads[i], &result);
		bad = result ? result : bad;
	}
	nr = read_all(shared);
	ok(!bad && nr == 3 * 2 * ROUNDS && in_order(nr),
	   "no address is given out twice, in the order of events");
	hetmem_resource_destroy(shared);
}

/* A forked child. */

static int child(struct hetmem_resource *res, void *p)
{
	if (hetmem_history(res, events, 4096) != 1 || events[0].ptr != p ||
	    hetmem_free(res, p, 1000, HOST) ||
	    hetmem_history(res, events, 4096) != 2)
		return 1;
	get(res, 500, HOST);
	return hetmem_resource_destroy(res) != 1;
}

static void in_child(void)
{
	void *p = get(to_destroy, 1000, HOST);
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child(to_destroy, p));
	waitpid(pid, &status, 0);
	is(status, 0, "a forked child has the events, and goes on");
	hetmem_free(to_destroy, p, 1000, HOST);
}

static void test_fork(void)
{
	struct hetmem_resource *res = make("history(pool(host))");

	if (!ok(!*said_by(in_child, res),
		"its destroy says nothing of the parent's blocks"))
		printf("# %s", text);
	is(read_all(res), 2, "the parent's events are its own");
	hetmem_resource_destroy(res);
}

int main(void)
{
	CUstream s;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	out = memfd_create("stderr", MFD_CLOEXEC);
	/* Before the driver has threads, which a child does not have. */
	test_fork();
	test_events();
	test_ring(1, 10, 4096);
	test_ring(10, 10, 4096);
	test_ring(10, 24, 4096);
	test_ring(1000, 4000, 7);
	test_ring(1000, 4000, 1000);
	test_ring(65, 640, 64);
	test_ring(65, 640, 65);
	test_bad_input();
	test_callers();
	test_shared_library(16);
	test_shared_library(1);
	test_leaks("history(pool(host))");
	test_leaks("stats(history(pool(vmm)))");
	test_leaks("history(host)");
	test_lost();
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	test_damage("guard(history(pool(host)))", HOST);
	test_damage("guard(stats(history(pool(vmm))))", s);
	drv->cuStreamDestroy(s);
	test_guard_leaks();
	test_order();
	test_threads("history(pool(host),events=4096,callers=4)", true);
	test_threads("stats(history(pool(host),events=3,callers=0))", false);
	close_soft();
	return tap_end();
}
