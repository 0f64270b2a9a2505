/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the model knows while a program is played: blocks, streams, captures, private pools,
 * and the counters that the library must report.
 *
 * Locks, only with several threads: world is held for reading by operations that may run at
 * the same time, for writing by all others. Inside it come the lock of a slot, then the locks
 * of streams in ascending order, then @places, which protects the ranges of live blocks.
 */
#ifndef HETMEM_SELFTESTS_MODEL_WORLD_H
#define HETMEM_SELFTESTS_MODEL_WORLD_H

#include <inttypes.h>
#include <sys/wait.h>

#include "custom_memory.h"
#include "model/program.h"
#include "rows.h"

#define MODEL_PRIVATE	3	/* numbers of private pools: 1 to 3 */
#define MODEL_TAGS	2
#define MODEL_MEMORY	((size_t)256 << 20)

/**
 * struct block - a live block
 * @home: stream that orders its uses, MODEL_HOST for the CPU
 * @mask: streams with uses that @home is not ordered after; they were reported
 * @value: pattern of the first @written bytes, if @written is not 0
 * @at_launch: pattern that a launch of capture @capture - 1 writes, 0: none
 * @orphan: the stream of its allocation is gone
 * @id: private pool, or 0
 * @reserve: bytes that it was made to grow to, 0: its size
 * @tag: 1 + the index of its tag, or 0; @scratch: a sleep keeps no contents
 */
struct block {
	unsigned char *p;
	size_t size, align, written, reserve, hole;
	unsigned int home, mask;
	uint32_t value, at_launch;
	unsigned int capture, id, tag;
	bool orphan, movable, keep, moving, recorded, exported, comm, scratch;
};

/* Units of a sparse block, at most: more memory than there is, of all slots. */
#define MODEL_UNITS	12

/**
 * struct sparse - a live sparse block, beside the block of its slot
 * @units: of @unit bytes
 * @has: by unit: it is committed; @value: its pattern, 0: none; @by: the stream that used it last
 */
struct sparse {
	unsigned char *p;
	size_t size, unit;
	unsigned int units;
	bool has[MODEL_UNITS];
	uint32_t value[MODEL_UNITS];
	unsigned int by[MODEL_UNITS];
};

/**
 * struct ring - a live ring, beside the block of its slot
 * @value: its pattern, from the middle on, across its end; @by: the stream that used it last
 */
struct ring {
	unsigned char *p;
	size_t size;
	unsigned int by;
	uint32_t value;
};

enum { NO_CAPTURE, CAPTURING, CAPTURED };

struct capture {
	int state;
	uint64_t id;
	CUgraphExec exec;
};

struct saved {
	void *p;
	size_t size;
	unsigned int home;
};

struct checkpoint {
	struct hetmem_checkpoint *made;
	bool released;
	unsigned int nr;
	struct saved blocks[MODEL_SLOTS];
};

static struct hetmem *hm;
static struct hetmem_resource *res;
static CUcontext context;
static struct program program;
static struct row row;

static struct block slots[MODEL_SLOTS];
static struct sparse sparse[MODEL_SLOTS];
static struct ring rings[MODEL_SLOTS];
/* Of the blocks, then of the sparse blocks, then of the rings. */
static struct { uintptr_t start, end; } ranges[3 * MODEL_SLOTS];
static pthread_mutex_t places = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t world = PTHREAD_RWLOCK_INITIALIZER;
static CUstream streams[MODEL_ALL];
/* Not in struct block, which is written as a whole while others wait for its lock. */
static pthread_mutex_t slot_locks[MODEL_SLOTS];
static pthread_mutex_t stream_locks[MODEL_ALL];
static struct capture captures[MODEL_STREAMS];
static unsigned int retained[MODEL_PRIVATE + 1];
static struct checkpoint checkpoints[MODEL_PRIVATE + 1];
static uint64_t next_capture = 100;

static bool asleep;
/* Tags that sleep alone, by index. */
static bool tag_asleep[MODEL_TAGS];
/* Memory that the pool cannot use for every request: a failed one proves nothing. */
static bool held_back;
/* hetmem_resource_set() was called. */
static bool limit_set;
/* The most that may be reserved, or with limit() requested. */
static size_t limit;
static bool limits_requested;
static bool pinned;
static uint64_t nr_live, nr_requested, nr_allocs, nr_frees;
/* Bytes that live blocks were made to grow to. */
static uint64_t nr_kept_back;
static void *last_freed;
static uint32_t next_value = 1;

/* Work of the host on the memory goes through a stream that it waits for. */
static __thread CUstream aux;
static __thread unsigned int step;
static __thread const struct op *now;
/* The failing call of @now was made. */
static __thread bool injected;

/* The program broke a rule of the model: says which, and ends the process. */
__attribute__((format(printf, 2, 3), noreturn))
static void broken(const char *rule, const char *fmt, ...)
{
	va_list args;

	soft_rules(NULL, NULL);
	flockfile(stdout);
	printf("FAIL %s: step %u: ", rule, step);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("; last error: %s\n", hetmem_last_error());
	if (now) {
		printf("# ");
		model_print_op(stdout, now);
	}
	fflush(stdout);
	_exit(1);
}

#define must(cond, rule, ...) do { if (!(cond)) broken(rule, __VA_ARGS__); } while (0)

/* A call of the test's own to the driver. */
#define driver_must(call) must(!(call), "driver", "%s", #call)

/* Makes the driver call that @now names fail in the next call of the library. */
static void fail_begin(void)
{
	char rule[96];

	injected = false;
	if (!now || !now->fail || program.threads > 1 || program.delay)
		return;
	snprintf(rule, sizeof(rule), "%s:%u", calls[now->fail - 1], now->nth);
	must(!soft_rules(rule, NULL), "rules", "%s", rule);
}

static void fail_end(void)
{
	if (!now || !now->fail || program.threads > 1 || program.delay)
		return;
	injected = hm->soft->made(0) >= now->nth;
	soft_rules(NULL, NULL);
}

/* A call of the library, in which a driver call may fail. */
#define LIB(call) ({							\
	__typeof__(call) lib_result;					\
									\
	fail_begin();							\
	lib_result = (call);						\
	fail_end();							\
	lib_result;							\
})

static bool on_cpu(void)
{
	return row.flags & CPU_ONLY;
}

static bool has(const char *text)
{
	return strstr(row.spec, text) != NULL;
}

/* There is a pool over vmm() that can do everything that such pools can. */
static bool is_vmm(void)
{
	return has("vmm") || has("device-pool");
}

static bool any_tag_asleep(void)
{
	return tag_asleep[0] || tag_asleep[1];
}

static bool is_asleep(const struct block *b)
{
	return asleep || (b->tag && tag_asleep[b->tag - 1]);
}

static bool any_capturing(void)
{
	unsigned int i;

	for (i = 0; i < MODEL_STREAMS; i++)
		if (captures[i].state == CAPTURING)
			return true;
	return false;
}

static bool is_capturing(unsigned int stream)
{
	return stream < MODEL_STREAMS && captures[stream].state == CAPTURING;
}

/* The handle of stream number @stream. */
static hetmem_stream handle_of(unsigned int stream)
{
	return on_cpu() || stream == MODEL_HOST ? HETMEM_STREAM_HOST : streams[stream];
}

/* The stream that does the work of number @stream. */
static CUstream worker_of(unsigned int stream)
{
	return stream == MODEL_HOST ? aux : streams[stream];
}

/* Orders @to after the work that @from has now. The host waits. */
static void order(unsigned int to, unsigned int from)
{
	CUevent event;

	if (on_cpu() || to == from || from == MODEL_HOST)
		return;
	if (to == MODEL_HOST) {
		driver_must(drv->cuStreamSynchronize(streams[from]));
		return;
	}
	driver_must(drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	driver_must(drv->cuEventRecord(event, streams[from]));
	driver_must(drv->cuStreamWaitEvent(streams[to], event, 0));
	driver_must(drv->cuEventDestroy(event));
}

/* Orders @to after all uses of @b. */
static void order_after(unsigned int to, const struct block *b)
{
	unsigned int i;

	order(to, b->home);
	for (i = 0; i < MODEL_ALL; i++)
		if (b->mask & 1U << i)
			order(to, i);
}

static void sync_all(void)
{
	if (!on_cpu())
		driver_must(drv->cuCtxSynchronize());
}

/* Ends the move of @b: it is here or there. */
static void settle(struct block *b)
{
	if (!b->moving)
		return;
	b->moving = false;
	while (hetmem_spill(res, b->p) == -EBUSY && hetmem_fetch(res, b->p) == -EBUSY)
		;
}

/* Words are @value, except that the first of each MiB is @value + its number. */
static void write_pattern(unsigned char *p, size_t size, uint32_t value, CUstream stream)
{
	const size_t words = size / 4;
	size_t i;

	if (words)
		driver_must(drv->cuMemsetD32Async((uintptr_t)p, value, words, stream));
	for (i = 1 << 20; i + 4 <= size; i += 1 << 20)
		driver_must(drv->cuMemsetD32Async((uintptr_t)p + i, value + (i >> 20), 1,
						  stream));
	if (size % 4)
		driver_must(drv->cuMemsetD8Async((uintptr_t)p + 4 * words, value & 0xff,
						 size % 4, stream));
}

/* The first offset at which @p differs from the pattern, or @size. */
static size_t wrong_at(const unsigned char *p, size_t size, uint32_t value)
{
	uint32_t word, want;
	size_t i;

	for (i = 0; i + 4 <= size; i += 4) {
		memcpy(&word, p + i, 4);
		want = i % (1 << 20) ? value : value + (i >> 20);
		if (word != want)
			return i;
	}
	for (; i < size; i++)
		if (p[i] != (value & 0xff))
			return i;
	return size;
}

static void host_pattern(unsigned char *p, size_t size, uint32_t value)
{
	size_t i;

	for (i = 0; i + 4 <= size; i += 4) {
		uint32_t word = i % (1 << 20) ? value : value + (i >> 20);

		memcpy(p + i, &word, 4);
	}
	for (; i < size; i++)
		p[i] = value & 0xff;
}

static uint32_t new_value(void)
{
	return __atomic_add_fetch(&next_value, 0x01010101 * 3 + 977, __ATOMIC_RELAXED) | 1;
}

/* Enters the range of slot @i: it overlaps no other live block. */
static void place_range(unsigned int i, const void *p, size_t size)
{
	const uintptr_t start = (uintptr_t)p, end = start + (size ? size : 1);
	unsigned int k;

	pthread_mutex_lock(&places);
	for (k = 0; k < 3 * MODEL_SLOTS; k++)
		must(k == i || !ranges[k].end || end <= ranges[k].start || ranges[k].end <= start,
		     "overlap", "slots %u and %u: %#" PRIxPTR " to %#" PRIxPTR " and %#" PRIxPTR
		     " to %#" PRIxPTR, i, k, start, end, ranges[k].start, ranges[k].end);
	ranges[i].start = start;
	ranges[i].end = end;
	pthread_mutex_unlock(&places);
}

static void place_add(unsigned int i)
{
	place_range(i, slots[i].p, slots[i].size);
}

static void place_drop(unsigned int i)
{
	pthread_mutex_lock(&places);
	ranges[i].start = ranges[i].end = 0;
	pthread_mutex_unlock(&places);
}

static struct hetmem_resource_stats stats(void)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };
	const int err = hetmem_resource_stats(res, &s);

	must(!err, "stats", "hetmem_resource_stats(): %d", err);
	return s;
}

/* No call is under way: the counters are exact. */
static void check_stats(void)
{
	const struct hetmem_resource_stats s = stats();
	uint64_t more;

	must(s.live == nr_live, "live", "%" PRIu64 ", not %" PRIu64, s.live, nr_live);
	must(has("guard(") || has("align(") ? s.requested >= nr_requested :
	     s.requested == nr_requested, "requested", "%" PRIu64 ", not %" PRIu64, s.requested,
	     nr_requested);
	must(nr_live || !s.requested, "requested", "%" PRIu64 " without a block", s.requested);
	/* A guard() that cannot paint its zones gives the block back to the pool below. */
	more = has("guard(") && s.allocs > nr_allocs ? s.allocs - nr_allocs : 0;
	must(s.allocs == nr_allocs + more, "allocs", "%" PRIu64 ", not %" PRIu64, s.allocs,
	     nr_allocs);
	must(s.frees == nr_frees + more, "frees", "%" PRIu64 ", not %" PRIu64, s.frees, nr_frees);
	must(s.requested <= s.requested_peak, "peak", "%" PRIu64 " requested, peak %" PRIu64,
	     s.requested, s.requested_peak);
	must(s.reserved <= s.reserved_peak, "peak", "%" PRIu64 " reserved, peak %" PRIu64,
	     s.reserved, s.reserved_peak);
	must(s.spilled <= s.spilled_peak && s.spill_host <= s.spill_host_peak, "peak",
	     "of spilled memory");
	must(asleep || any_tag_asleep() || s.reserved + s.spilled >= nr_requested, "reserved",
	     "%" PRIu64 " and %" PRIu64 " spilled for %" PRIu64 " requested", s.reserved,
	     s.spilled, nr_requested);
	if (limit)
		must((limits_requested ? s.requested : s.reserved) <= limit, "limit",
		     "%" PRIu64 " reserved, %" PRIu64 " requested, limit %zu", s.reserved,
		     s.requested, limit);
}

#endif /* HETMEM_SELFTESTS_MODEL_WORLD_H */
