// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Programs of several threads or streams, recorded by log(full=on), with what
 * orders their streams; the log is read again and must be right. With arguments,
 * "record pipeline|workers|training SPEC", it only runs, with that resource: this
 * is how the recordings of selftests/traces/ were made.
 *
 * pipeline: four stages, a thread and a stream each. A stage waits for the
 * event of the one before, allocates its result, frees its input on its own
 * stream, where it was not allocated, and passes the result on.
 *
 * workers: six threads with a stream each, which use blocks of each other:
 * the user's stream is recorded, and the block is freed on its owner's. Now and
 * then a stream is retired and another takes its place.
 *
 * training: one thread that feeds five streams with blocks of 1 to 90 MiB, as
 * training of a large model does: input is loaded ahead on a stream of its own,
 * layers compute on two, gradients go out in buckets on a fourth, and now and
 * then results are staged on a fifth. Lengths differ from step to step.
 */
#include <sched.h>
#include <sys/stat.h>

#include "api.h"

#define STAGES		4
#define WORKERS		6
#define ITEMS		1500
#define ROUNDS		1500
#define LIVE		24
#define STEPS		150
#define LAYERS		20

static struct hetmem *hm;
static const struct hm_api *drv;
static struct hetmem_resource *res;
static int failures;
static uintptr_t next_event;

/* What the log must have: calls that were made. */
static struct {
	unsigned long allocs, frees, cross, uses, retires, edges;
} made;

static void count(unsigned long *what)
{
	__atomic_add_fetch(what, 1, __ATOMIC_RELAXED);
}

static bool good(int err)
{
	if (!err)
		return true;
	if (!__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED))
		printf("# %d: %s\n", err, hetmem_last_error());
	return false;
}

static unsigned int random_of(unsigned int *seed)
{
	*seed = *seed * 1103515245 + 12345;
	return *seed >> 8 & 0xffffff;
}

/* As programs have: many small ones, some large, whole rows of something. */
static size_t random_size(unsigned int *seed)
{
	unsigned int r = random_of(seed);

	if (r % 8 < 5)
		return 256 + r % 8192;
	if (r % 8 < 7)
		return (64 << 10) + r % (1 << 20);
	return ((size_t)1 << 20) * (1 + r % 6);
}

static void *allocate(size_t size, CUstream s)
{
	void *p = NULL;

	if (good(hetmem_alloc(res, size, 0, s, &p)))
		count(&made.allocs);
	return p;
}

static void release(void *p, size_t size, CUstream s)
{
	if (p && good(hetmem_free(res, p, size, s)))
		count(&made.frees);
}

/* An event, and the name that the log has for it: a new one each time. */
struct mark {
	CUevent event;
	uintptr_t name;
};

static void record(struct mark *m, CUstream s)
{
	m->name = __atomic_add_fetch(&next_event, 1, __ATOMIC_RELAXED);
	good(drv->cuEventRecord(m->event, s));
	good(hetmem_log_edge(res, HETMEM_EDGE_RECORD, (void *)m->name, s));
	count(&made.edges);
}

static void wait_for(const struct mark *m, CUstream s)
{
	good(drv->cuStreamWaitEvent(s, m->event, 0));
	good(hetmem_log_edge(res, HETMEM_EDGE_WAIT, (void *)m->name, s));
	count(&made.edges);
}

static void synchronize(CUstream s)
{
	good(drv->cuStreamSynchronize(s));
	good(hetmem_log_edge(res, HETMEM_EDGE_SYNC, NULL, s));
	count(&made.edges);
}

/* A place for one item between two stages, or two workers. */
struct slot {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool full;
	void *p;
	size_t size;
	CUstream stream;
	struct mark ready;
};

static void put(struct slot *to, void *p, size_t size, CUstream s)
{
	pthread_mutex_lock(&to->lock);
	while (to->full)
		pthread_cond_wait(&to->changed, &to->lock);
	to->p = p;
	to->size = size;
	to->stream = s;
	record(&to->ready, s);
	to->full = true;
	pthread_cond_broadcast(&to->changed);
	pthread_mutex_unlock(&to->lock);
}

/* Orders @s behind the item's writer. */
static void *get(struct slot *from, size_t *size, CUstream s)
{
	void *p;

	pthread_mutex_lock(&from->lock);
	while (!from->full)
		pthread_cond_wait(&from->changed, &from->lock);
	wait_for(&from->ready, s);
	p = from->p;
	*size = from->size;
	from->full = false;
	pthread_cond_broadcast(&from->changed);
	pthread_mutex_unlock(&from->lock);
	return p;
}

static struct slot slots[WORKERS];
static pthread_barrier_t start;

static CUstream begin_thread(void)
{
	struct hm_context saved;
	CUstream s = NULL;

	good(hm_context_enter(hm, 0, &saved));
	good(drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static void end_stream(CUstream s)
{
	synchronize(s);
	if (good(hetmem_stream_retire(res, s)))
		count(&made.retires);
	good(drv->cuStreamDestroy(s));
}

static void *stage(void *arg)
{
	uintptr_t index = (uintptr_t)arg;
	unsigned int seed = index * 104729 + 7;
	CUstream s = begin_thread();
	int i;

	for (i = 0; i < ITEMS; i++) {
		size_t in_size = 0, size = random_size(&seed), scratch_size;
		void *in = NULL, *out, *scratch;

		if (index)
			in = get(&slots[index - 1], &in_size, s);
		out = allocate(size, s);
		scratch_size = random_size(&seed);
		scratch = allocate(scratch_size, s);
		release(scratch, scratch_size, s);
		if (in) {
			count(&made.cross);
			release(in, in_size, s);
		}
		if (index < STAGES - 1)
			put(&slots[index], out, size, s);
		else
			release(out, size, s);
		if (i % 256 == 255)
			synchronize(s);
	}
	end_stream(s);
	return NULL;
}

struct live {
	void *p;
	size_t size;
	CUstream stream;
};

/* Uses a block of the one before us, if it lends one. */
static void borrow(unsigned int index, CUstream s)
{
	struct slot *from = &slots[index];

	pthread_mutex_lock(&from->lock);
	if (from->full) {
		wait_for(&from->ready, s);
		if (good(hetmem_record_stream(res, from->p, s)))
			count(&made.uses);
		/*
		 * Freed by us: on our stream, which is behind its uses, or on
		 * the one it is from, which does not know of ours.
		 */
		count(&made.cross);
		release(from->p, from->size,
			from->size % 2 ? s : from->stream);
		from->full = false;
	}
	pthread_mutex_unlock(&from->lock);
}

static void lend(unsigned int index, struct live *l)
{
	struct slot *to = &slots[(index + 1) % WORKERS];

	pthread_mutex_lock(&to->lock);
	if (!to->full) {
		to->p = l->p;
		to->size = l->size;
		to->stream = l->stream;
		record(&to->ready, l->stream);
		to->full = true;
		l->p = NULL;
	}
	pthread_mutex_unlock(&to->lock);
}

/* No block of ours is lent when its stream goes. */
static void take_back(unsigned int index)
{
	struct slot *to = &slots[(index + 1) % WORKERS];

	pthread_mutex_lock(&to->lock);
	if (to->full) {
		release(to->p, to->size, to->stream);
		to->full = false;
	}
	pthread_mutex_unlock(&to->lock);
}

static void *worker(void *arg)
{
	uintptr_t index = (uintptr_t)arg;
	unsigned int seed = index * 7919 + 3;
	struct live live[LIVE] = { 0 };
	CUstream s = begin_thread();
	int i, j;

	pthread_barrier_wait(&start);
	for (i = 0; i < ROUNDS; i++) {
		struct live *l = &live[random_of(&seed) % LIVE];

		/* So that they meet on few processors, too. */
		sched_yield();

		if (l->p && i % 3 == 0)
			lend(index, l);
		release(l->p, l->size, l->stream);
		l->size = random_size(&seed);
		l->stream = s;
		l->p = allocate(l->size, s);
		if (i % 4 == 1)
			borrow(index, s);
		if (i % 500 != 499)
			continue;
		take_back(index);
		for (j = 0; j < LIVE; j++) {
			release(live[j].p, live[j].size, live[j].stream);
			live[j].p = NULL;
		}
		end_stream(s);
		s = begin_thread();
	}
	take_back(index);
	for (j = 0; j < LIVE; j++)
		release(live[j].p, live[j].size, live[j].stream);
	end_stream(s);
	return NULL;
}

/* The streams of training, a mark on each, and blocks. */
enum { LOAD, COMPUTE, SIDE, REDUCE, STAGE, TRAINING };

struct training {
	CUstream s[TRAINING];
	struct mark mark[TRAINING];
	unsigned int seed;
	size_t length;		/* of this step, in KiB that a layer has of it */
	size_t next;		/* of the next one, which is loaded */
	struct live input[2];
	struct live layers[LAYERS];
};

static void order(struct training *t, int to, int from)
{
	record(&t->mark[from], t->s[from]);
	wait_for(&t->mark[from], t->s[to]);
}

/* @of for each of a length, and some that varies. */
static struct live take_long(struct training *t, int on, size_t length,
			     unsigned int of)
{
	struct live l = { .stream = t->s[on] };

	l.size = (length * of + random_of(&t->seed) % 512) << 10;
	l.p = allocate(l.size, l.stream);
	return l;
}

static struct live take(struct training *t, int on, unsigned int of)
{
	return take_long(t, on, t->length, of);
}

static void give(struct training *t, struct live *l, int on)
{
	if (l->stream != t->s[on])
		count(&made.cross);
	release(l->p, l->size, t->s[on]);
	l->p = NULL;
}

/* @on is done with it too when it is freed where it is from. */
static void use_on(struct training *t, struct live *l, int on)
{
	if (good(hetmem_record_stream(res, l->p, t->s[on])))
		count(&made.uses);
}

static void forward(struct training *t, struct live *input)
{
	struct live scratch, branch;
	int i;

	order(t, COMPUTE, LOAD);
	for (i = 0; i < LAYERS; i++) {
		t->layers[i] = take(t, COMPUTE, 4 + i % 5 * 3);
		scratch = take(t, COMPUTE, 8 << i % 3);
		if (i % 4 == 1) {
			/* A branch, whose result is the layer's. */
			order(t, SIDE, COMPUTE);
			branch = take(t, SIDE, 6);
			order(t, COMPUTE, SIDE);
			give(t, &branch, COMPUTE);
		}
		give(t, &scratch, COMPUTE);
	}
	give(t, input, COMPUTE);
}

static void backward(struct training *t)
{
	struct live grads[5], bucket;
	int i, nr = 0;

	for (i = LAYERS; i--;) {
		grads[nr] = take(t, COMPUTE, 3 + i % 4 * 2);
		give(t, &t->layers[i], COMPUTE);
		if (++nr < 5)
			continue;
		order(t, REDUCE, COMPUTE);
		bucket = take(t, REDUCE, 24);
		while (nr--) {
			use_on(t, &grads[nr], REDUCE);
			give(t, &grads[nr], COMPUTE);
		}
		nr = 0;
		give(t, &bucket, REDUCE);
	}
	order(t, COMPUTE, REDUCE);
}

/* The next step's input, while this one is under way. */
static void load(struct training *t, int step)
{
	t->length = t->next;
	t->next = 300 + random_of(&t->seed) % 2000;
	t->input[step % 2] = take_long(t, LOAD, t->next, 12);
}

static void *train(void *arg)
{
	struct training t = { .seed = 5 };
	struct live staged;
	int i;

	(void)arg;
	for (i = 0; i < TRAINING; i++) {
		t.s[i] = begin_thread();
		good(drv->cuEventCreate(&t.mark[i].event,
					CU_EVENT_DISABLE_TIMING));
	}
	load(&t, 0);
	for (i = 0; i < STEPS; i++) {
		load(&t, i + 1);
		forward(&t, &t.input[i % 2]);
		if (i % 6 == 5) {
			order(&t, STAGE, COMPUTE);
			staged = take(&t, STAGE, 40);
			give(&t, &staged, STAGE);
		}
		backward(&t);
		if (i % 16 == 15)
			synchronize(t.s[COMPUTE]);
	}
	give(&t, &t.input[STEPS % 2], LOAD);
	for (i = 0; i < TRAINING; i++) {
		end_stream(t.s[i]);
		good(drv->cuEventDestroy(t.mark[i].event));
	}
	return NULL;
}

static void run(void *(*what)(void *arg), int threads)
{
	pthread_t thread[WORKERS];
	uintptr_t i;

	pthread_barrier_init(&start, NULL, WORKERS);
	for (i = 0; i < WORKERS; i++) {
		pthread_mutex_init(&slots[i].lock, NULL);
		pthread_cond_init(&slots[i].changed, NULL);
		slots[i].full = false;
		good(drv->cuEventCreate(&slots[i].ready.event,
					CU_EVENT_DISABLE_TIMING));
	}
	for (i = 0; i < (uintptr_t)threads; i++)
		need(!pthread_create(&thread[i], NULL, what, (void *)i),
		     "a thread");
	for (i = 0; i < (uintptr_t)threads; i++)
		pthread_join(thread[i], NULL);
	for (i = 0; i < WORKERS; i++)
		good(drv->cuEventDestroy(slots[i].ready.event));
}

/* Reads the log at @path back. */
static void check_log(const char *path, const char *name, int threads)
{
	unsigned long allocs = 0, frees = 0, uses = 0, retires = 0, edges = 0;
	unsigned long time, tid, last = 0, tids[64], nr = 0, i;
	unsigned long long ptr, size, stream;
	char line[256], action[32];
	FILE *f = fopen(path, "re");
	bool ascending = true;

	need(f && fgets(line, sizeof(line), f), "%s: there is a log", name);
	ok(!strcmp(line, "Thread,Time,Action,Pointer,Size,Stream\n"),
	   "%s: its header", name);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lu,%lu,%31[^,],0x%llx,%llu,%llu\n", &tid,
			   &time, action, &ptr, &size, &stream) != 6) {
			ok(false, "%s: %s", name, line);
			break;
		}
		ascending &= time >= last;
		last = time;
		for (i = 0; i < nr && tids[i] != tid; i++)
			;
		if (i == nr && nr < 64)
			tids[nr++] = tid;
		allocs += !strcmp(action, "allocate");
		frees += !strcmp(action, "free");
		uses += !strcmp(action, "record_stream");
		retires += !strcmp(action, "retire");
		edges += !strcmp(action, "record") ||
			!strcmp(action, "wait") || !strcmp(action, "sync");
	}
	fclose(f);
	ok(ascending, "%s: time goes forward", name);
	is(nr, threads, "%s: threads", name);
	is(allocs, made.allocs, "%s: allocations", name);
	is(frees, made.frees, "%s: frees", name);
	is(uses, made.uses, "%s: uses on other streams", name);
	is(retires, made.retires, "%s: streams that were retired", name);
	is(edges, made.edges, "%s: records, waits and syncs", name);
	ok(made.cross > 100, "%s: %lu blocks were freed elsewhere", name,
	   made.cross);
}

static void open_with(const char *spec)
{
	struct hetmem_params params = { .size = sizeof(params),
					.module_path = "" };
	struct hm_context saved;

	need(!hetmem_open(&hm, &params), "opens: %s", hetmem_last_error());
	drv = api_of(hm);
	need(!hm_context_enter(hm, 0, &saved), "device 0 is current");
	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
}

static const struct {
	const char *name;
	void *(*run)(void *arg);
	int threads;
} programs[] = {
	{ "pipeline", stage, STAGES },
	{ "workers", worker, WORKERS },
	{ "training", train, 1 },
};

#define PROGRAMS	(sizeof(programs) / sizeof(programs[0]))

static void test(const char *base, int which)
{
	char path[128], spec[192];

	memset(&made, 0, sizeof(made));
	failures = 0;
	snprintf(path, sizeof(path), "%s/%d.csv", base, (int)getpid());
	snprintf(spec, sizeof(spec), "log(%s,file=%s/%%p.csv,full=on)",
		 getenv("HETMEM_TEST_BELOW") ? : "device-pool", base);
	open_with(spec);
	run(programs[which].run, programs[which].threads);
	is(failures, 0, "%s: runs", programs[which].name);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live",
	   programs[which].name);
	hetmem_close(hm);
	check_log(path, programs[which].name, programs[which].threads);
	unlink(path);
}

int main(int argc, char **argv)
{
	char base[] = "/tmp/hetmem-record-XXXXXX";
	size_t i;

	setenv("HETMEM_SOFT_MEMORY", "4G", 0);
	if (argc == 3) {
		open_with(argv[2]);
		for (i = 0; i < PROGRAMS; i++)
			if (!strcmp(argv[1], programs[i].name))
				run(programs[i].run, programs[i].threads);
		hetmem_resource_destroy(res);
		hetmem_close(hm);
		return !!failures;
	}
	setenv("HETMEM_DRIVER", "soft", 0);
	setenv("HETMEM_SOFT_CHECK", "1", 0);
	need(mkdtemp(base), "a directory");
	for (i = 0; i < PROGRAMS; i++)
		test(base, i);
	rmdir(base);
	return tap_end();
}
