// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Figures never steer: a pool holds the same memory after each step of each recording,
 * whether it publishes, is asked for statistics, is logged and is walked, or none of these.
 *
 *	figures [STEPS [RECORDING]...]
 *
 * STEPS: the first ones of each recording, 0: all of them.
 */
#include <semaphore.h>

#include <hetmem/snapshot.h>

#include "soft_driver.h"
#include "recording.h"

/* Steps of each recording by default: publishing begins after 1,024 of them. */
#define STEPS		8000
/* A walk looks at all blocks: not after each step. */
#define WALK_EVERY	61

enum watch {
	PUBLISH = 1,
	STATISTICS = 2,
	LOG = 4,
	WALK = 8,
	ALL = 15,
};

static const struct {
	unsigned int how;
	const char *name;
} watches[] = {
	{ PUBLISH, "published" },
	{ STATISTICS, "asked for statistics" },
	{ LOG, "logged" },
	{ WALK, "walked" },
	{ ALL, "published, asked, logged and walked" },
};

static const char *const recordings[] = {
	"detect", "gnn", "gpt2", "pipeline", "resnet", "serve", "table", "training", "workers",
};

static int seen_block(void *data, const struct hetmem_walk_segment *segment,
		      const struct hetmem_walk_block *block)
{
	(void)data;
	(void)segment;
	(void)block;
	return 0;
}

static void watch(struct hetmem_resource *res, unsigned int how, size_t step)
{
	const struct hetmem_walk walk = { .size = sizeof(walk), .block = seen_block };
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	if (how & STATISTICS)
		need(!hetmem_resource_stats(res, &stats), "statistics: %s", hetmem_last_error());
	if (how & WALK && step % WALK_EVERY == 0)
		need(!hetmem_walk(res, &walk), "a walk: %s", hetmem_last_error());
}

/*
 * Steps of every second recorded thread run in a thread of their own, one step at a time:
 * blocks that another thread frees take another way.
 */
static struct {
	sem_t go, done;
	struct replay *replay;
	const struct replay_step *step;
} other;

static void *other_thread(void *ctx)
{
	need(!drv->cuCtxSetCurrent(ctx), "the context is current");
	for (;;) {
		sem_wait(&other.go);
		if (!other.step)
			return NULL;
		replay_step(other.replay, other.step);
		sem_post(&other.done);
	}
}

static void step_in_thread(struct replay *r, const struct replay_step *s)
{
	if (s->thread % 2 == 0) {
		replay_step(r, s);
		return;
	}
	other.replay = r;
	other.step = s;
	sem_post(&other.go);
	sem_wait(&other.done);
}

/*
 * Bytes of the device in use after each of the first @nr steps, by the driver; then of the
 * same steps again.
 */
static size_t *replay(const struct replay_trace *t, size_t nr, const char *pool, unsigned int how,
		      const char *log)
{
	size_t *held = calloc(2 * nr, sizeof(*held)), i;
	struct replay r;
	char spec[128];

	need(held, "memory");
	replay_begin(&r, t);
	setenv("HETMEM_PUBLISH", how & PUBLISH ? "1" : "0", 1);
	snprintf(spec, sizeof(spec), how & LOG ? "log(%s,file=%s)" : "%s", pool, log);
	need(!hetmem_resource_create(hm, spec, &r.res), "%s: %s", spec, hetmem_last_error());
	for (i = 0; i < 2 * nr; i++) {
		step_in_thread(&r, &t->steps[i % nr]);
		watch(r.res, how, i);
		held[i] = device_used();
		if (i % nr == nr - 1)
			replay_free_rest(&r, t);
	}
	need(!hetmem_resource_destroy(r.res), "destroy: %s", hetmem_last_error());
	replay_end(&r, t);
	return held;
}

static void same(const struct replay_trace *t, size_t nr, const char *pool, const char *log)
{
	size_t *plain, *watched, i, w;

	if (!nr || nr > t->nr)
		nr = t->nr;
	plain = replay(t, nr, pool, 0, log);
	for (w = 0; w < sizeof(watches) / sizeof(*watches); w++) {
		watched = replay(t, nr, pool, watches[w].how, log);
		for (i = 0; i < 2 * nr && watched[i] == plain[i]; i++)
			;
		ok(i == 2 * nr, "%s: holds the same when it is %s", t->name, watches[w].name);
		if (i < 2 * nr)
			printf("# after step %zu: %zu bytes, not %zu\n", i, watched[i], plain[i]);
		free(watched);
	}
	free(plain);
}

static void same_recording(const char *path, size_t nr, const char *log)
{
	struct replay_trace *t = replay_trace_read(path);

	need(t, "%s is read", path);
	same(t, nr, "device-pool", log);
	replay_trace_free(t);
}

static uint32_t add_alloc(struct replay_trace *t, size_t size)
{
	t->steps[t->nr++] = (struct replay_step){
		.op = REPLAY_ALLOC, .size = size, .block = t->blocks,
	};
	return t->blocks++;
}

static void add_free(struct replay_trace *t, uint32_t block)
{
	t->steps[t->nr++] = (struct replay_step){ .op = REPLAY_FREE, .block = block };
}

#define LARGE	30
#define MIDDLE	10
#define SMALL	1200
#define MISSES	10
/* So that the handles of small blocks are full. */
#define FILLERS	13

/*
 * The cache alone changes what is requested by a quarter, which publishing and statistics
 * learn before the next miss does. The caches may keep a part of what is requested, and
 * what they have then is more than that part was before, and less than it is now.
 */
static void same_after_hits(const char *log)
{
	struct replay_trace t = { .name = "many hits, then misses", .streams = 1, .threads = 1 };
	uint32_t middle[MIDDLE], small[SMALL], tiny;
	unsigned int i;

	t.steps = calloc(1 + LARGE + 2 * MIDDLE + 3 * SMALL + FILLERS + 1 + MISSES, sizeof(*t.steps));
	need(t.steps, "memory");
	tiny = add_alloc(&t, 512);
	for (i = 0; i < LARGE; i++)
		add_alloc(&t, 8 << 20);
	for (i = 0; i < MIDDLE; i++)
		middle[i] = add_alloc(&t, 299 << 10);
	for (i = 0; i < SMALL; i++)
		small[i] = add_alloc(&t, 60 << 10);
	for (i = 0; i < FILLERS; i++)
		add_alloc(&t, 60 << 10);
	for (i = 0; i < MIDDLE; i++)
		add_free(&t, middle[i]);
	for (i = 0; i < SMALL; i++)
		add_free(&t, small[i]);
	/* By the slow path, which learns what is requested. */
	add_free(&t, tiny);
	t.steps[t.nr - 1].stream = REPLAY_STREAM_UNKNOWN;
	for (i = 0; i < SMALL; i++)
		add_alloc(&t, 60 << 10);
	for (i = 0; i < MISSES; i++)
		add_alloc(&t, 300 << 10);
	same(&t, 0, "pool(vmm(device=0),handle=2M,cache=128M)", log);
	free(t.steps);
}

int main(int argc, char **argv)
{
	char log[] = "/tmp/hetmem-figures-XXXXXX", dir[4096], path[4096 + 32];
	size_t nr = argc > 1 ? strtoul(argv[1], NULL, 0) : STEPS, i;
	int fd = mkstemp(log);
	pthread_t thread;
	CUcontext ctx;

	need(fd >= 0, "a file for the log");
	close(fd);
	setenv("HETMEM_SOFT_MEMORY", "80G", 1);
	open_soft("");
	sem_init(&other.go, 0, 0);
	sem_init(&other.done, 0, 0);
	need(!drv->cuCtxGetCurrent(&ctx) &&
	     !pthread_create(&thread, NULL, other_thread, ctx), "a thread");
	same_after_hits(log);
	for (i = 2; i < (size_t)argc; i++)
		same_recording(argv[i], nr, log);
	if (argc <= 2)
		find_recordings(dir, sizeof(dir));
	for (i = 0; argc <= 2 && i < sizeof(recordings) / sizeof(*recordings); i++) {
		snprintf(path, sizeof(path), "%s/%s.csv.gz", dir, recordings[i]);
		same_recording(path, nr, log);
	}
	other.step = NULL;
	sem_post(&other.go);
	pthread_join(thread, NULL);
	close_soft();
	unlink(log);
	return tap_end();
}
