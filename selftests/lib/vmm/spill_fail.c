// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Moves while calls of the driver fail: each call that a move makes, one at a time, and in
 * pairs. A block is either here or there, whole; the pool goes on; nothing is left.
 * Arguments: a seed; all: all pairs of one kind, and more of others.
 */
#include "spill_test.h"

/* What moves, and what is around them, ask of the driver. */
static const char *const names[] = {
	"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
	"cuMemAddressReserve", "cuMemAddressFree", "cuMemcpyAsync", "cuEventCreate",
	"cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy",
	"cuStreamCreate", "cuStreamDestroy", "cuStreamSynchronize", "cuStreamWaitEvent",
	"cuStreamQuery", "cuStreamIsCapturing", "cuStreamGetId", "cuStreamGetCtx",
	"cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxSetCurrent",
	"cuCtxSynchronize", "cuMemHostRegister",
	"cuMemHostUnregister",
};

#define NR_NAMES	(sizeof(names) / sizeof(names[0]))

/* What was announced and has not ended. */
static struct {
	void *ptr;
	size_t bytes;
} open_remaps[64];
static unsigned int nr_open, unannounced;

static void observe(const struct hetmem_remap *remap, void *arg)
{
	unsigned int i;

	(void)arg;
	if (!remap->after) {
		open_remaps[nr_open].ptr = remap->ptr;
		open_remaps[nr_open++].bytes = remap->bytes;
		return;
	}
	for (i = 0; i < nr_open; i++)
		if (open_remaps[i].ptr == remap->ptr && open_remaps[i].bytes == remap->bytes)
			break;
	if (i == nr_open)
		unannounced++;
	else
		open_remaps[i] = open_remaps[--nr_open];
}

static const char *const plain = "pool(vmm,handle=2M)";
static const char *const full = "pool(vmm,max=14M,spill=100M,handle=2M)";
static const char *const min = "pool(vmm,handle=2M,min_host=8M)";

static void two_blocks(void)
{
	fill(&slots[0], 4 * MIB + 512, streams[0]);
	fill(&slots[1], 2 * MIB + 512, streams[1]);
}

static void spilled_block(void)
{
	two_blocks();
	need(!hetmem_spill(res, slots[0].p), "%s", hetmem_last_error());
}

static void spilling(void)
{
	two_blocks();
	need(!hetmem_spill_async(res, slots[0].p), "%s", hetmem_last_error());
}

static void fetching(void)
{
	spilled_block();
	need(!hetmem_fetch_async(res, slots[0].p), "%s", hetmem_last_error());
}

static void asleep(void)
{
	spilled_block();
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "%s", hetmem_last_error());
}

static void crowd(void)
{
	unsigned int k;

	for (k = 0; k < 3; k++)
		fill(&slots[k], 4 * MIB, streams[0]);
}

/* More than there is: some are on the host, and there is room for them now. */
static void crowd_and_room(void)
{
	unsigned int k;

	for (k = 0; k < 6; k++)
		fill(&slots[k], 4 * MIB, streams[0]);
	for (k = 5; k > 2; k--)
		empty(&slots[k]);
}

static void do_spill(void)
{
	hetmem_spill(res, slots[0].p);
}

static void do_fetch(void)
{
	hetmem_fetch(res, slots[0].p);
}

static void do_spill_async(void)
{
	hetmem_spill_async(res, slots[0].p);
	hetmem_spill(res, slots[0].p);
}

static void do_fetch_async(void)
{
	hetmem_fetch_async(res, slots[0].p);
	hetmem_fetch(res, slots[0].p);
}

static void do_poll(void)
{
	drv->cuCtxSynchronize();
	hetmem_poll(res);
}

static void do_free(void)
{
	/* A free that failed before it began has done nothing. */
	if (!hetmem_free(res, slots[0].p, slots[0].size, slots[0].on))
		slots[0].p = NULL;
	drv->cuStreamSynchronize(streams[0]);
	hetmem_poll(res);
}

static void do_alloc(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 7 * MIB, .stream = streams[0],
		.flags = HETMEM_ALLOC_MOVABLE,
	};
	struct slot *s = &slots[9];

	/* A free that failed before it began has done nothing. */
	if (!hetmem_alloc_with(res, &params, &s->p) &&
	    !hetmem_free(res, s->p, 0, streams[0]))
		s->p = NULL;
	s->on = streams[0];
}

static void do_sleep(void)
{
	hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP);
}

static void do_wake(void)
{
	hetmem_wake(res, NULL);
}

static void do_trim(void)
{
	do_free();
	drv->cuStreamSynchronize(streams[0]);
	hetmem_trim(res, 0, NULL);
}

static void do_host_access(void)
{
	hetmem_host_access(res, slots[0].p);
}

static void do_destroy(void)
{
	hetmem_resource_destroy(res);
	res = NULL;
}

static const struct scene {
	const char *name;
	const char *const *spec;
	void (*before)(void);
	void (*act)(void);
} scenes[] = {
	{ "spill", &plain, two_blocks, do_spill },
	{ "spill with min_host=", &min, two_blocks, do_spill },
	{ "fetch", &plain, spilled_block, do_fetch },
	{ "spill_async", &plain, two_blocks, do_spill_async },
	{ "fetch_async", &plain, spilled_block, do_fetch_async },
	{ "poll of a spill", &plain, spilling, do_poll },
	{ "poll of a fetch", &plain, fetching, do_poll },
	{ "alloc in a full pool", &full, crowd, do_alloc },
	{ "alloc, and others return", &full, crowd_and_room, do_alloc },
	{ "free of a spilled block", &plain, spilled_block, do_free },
	{ "free while it moves", &plain, spilling, do_free },
	{ "free while it returns", &plain, fetching, do_free },
	{ "sleep", &plain, spilled_block, do_sleep },
	{ "sleep while a block moves", &plain, spilling, do_sleep },
	{ "wake", &plain, asleep, do_wake },
	{ "trim", &plain, spilled_block, do_trim },
	{ "host_access", &plain, spilled_block, do_host_access },
	{ "destroy", &plain, spilled_block, do_destroy },
	{ "destroy while a block moves", &plain, spilling, do_destroy },
	{ "destroy while a block returns", &plain, fetching, do_destroy },
};

#define NR_SCENES	(sizeof(scenes) / sizeof(scenes[0]))

/* After the calls work again: awake, whole, and moving. What is wrong, or NULL. */
static const char *goes_on(void)
{
	unsigned int k;

	if (hetmem_wake(res, NULL))
		return "does not wake";
	/* Not written. */
	slots[9].p = slots[9].p && !hetmem_free(res, slots[9].p, 0, streams[0]) ? NULL : slots[9].p;
	/* What is under way ends. */
	for (k = 0; k < 3; k++)
		if (slots[k].p)
			hetmem_spill(res, slots[k].p);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	if (wrong())
		return "contents are lost";
	for (k = 0; k < 3; k++) {
		if (!slots[k].p)
			continue;
		if (hetmem_spill(res, slots[k].p))
			return "does not spill";
		if (wrong_in(&slots[k]))
			return "contents are lost by a spill";
		if (hetmem_fetch(res, slots[k].p) && res != NULL && k < 2)
			return "does not fetch";
		if (wrong_in(&slots[k]))
			return "contents are lost by a fetch";
	}
	if (try_fill(&slots[8], 2 * MIB, streams[2], 0))
		return "does not allocate";
	if ((slots[0].p && wrong_in(&slots[0])) || wrong_in(&slots[8]))
		return "contents are lost by an allocation";
	return !nr_open && !unannounced ? NULL : "calls of on_remap() lack";
}

/* Before all else is asked for. */
static void (*then)(void);

/* Whether the call of the first of @rule was made. What is wrong is a line, and counts. */
static bool play(const struct scene *scene, const char *rule, unsigned int nth, unsigned int *bad)
{
	const char *what = NULL;
	unsigned long made;

	nr_open = 0;
	unannounced = 0;
	make(*scene->spec);
	need(!hetmem_on_remap(res, observe, NULL), "%s", hetmem_last_error());
	scene->before();
	need(!soft_rules(rule, NULL), "a rule: %s", rule);
	scene->act();
	made = hm->soft->made(0);
	soft_rules(NULL, NULL);
	drv->cuCtxSetCurrent(context);
	if (then && res)
		then();
	if (res && made < nth) {
		/* Nothing has failed. */
		hetmem_resource_destroy(res);
	} else if (res) {
		what = goes_on();
		if (!what)
			what = leftover(*scene->spec == min ? 8 * MIB : 0);
		else
			hetmem_resource_destroy(res);
	} else if (device_used() || hm->soft->holds()) {
		what = "memory is left";
	} else if (nr_open || unannounced) {
		what = "calls of on_remap() lack";
	}
	if (what) {
		(*bad)++;
		printf("# %s: %s: %s: %s\n", scene->name, rule, what, hetmem_last_error());
	}
	return made >= nth;
}

/* How many calls of each kind a scene makes. */
static unsigned int most[NR_NAMES];

/* Every @step-th call of every kind, until it is made no more. */
static void one_by_one(const struct scene *scene, unsigned int step)
{
	unsigned int bad = 0, runs = 0, nth;
	char rule[96];
	size_t i;

	for (i = 0; i < NR_NAMES; i++) {
		for (nth = 1 + below(step);; nth += step, runs++) {
			snprintf(rule, sizeof(rule), "%s:%u", names[i], nth);
			if (!play(scene, rule, nth, &bad))
				break;
		}
		most[i] = nth - 1;
	}
	ok(!bad, "%s: %u calls fail, one at a time", scene->name, runs);
}

/*
 * Two calls of a kind one after the other, which no retry helps, and some times two of any
 * kinds. What the driver refuses to release twice can stay until the pool is destroyed.
 */
static void in_pairs(const struct scene *scene, bool all)
{
	unsigned int bad = 0, runs = 0, nth, k;
	char rule[128];
	size_t i, j;

	for (i = 0; i < NR_NAMES; i++) {
		/* What gives up tries twice. */
		if (!strcmp(names[i], "cuMemRelease") || scene->act == do_destroy)
			continue;
		for (nth = 1; nth <= most[i]; nth += all ? 1 : 1 + below(4), runs++) {
			snprintf(rule, sizeof(rule), "%s:%u,%s:%u", names[i], nth, names[i],
				 nth + 1);
			play(scene, rule, 1, &bad);
		}
	}
	for (k = 0; k < (all ? 100 : 16); k++) {
		i = below(NR_NAMES);
		j = below(NR_NAMES);
		if (i == j || !most[i] || !most[j])
			continue;
		snprintf(rule, sizeof(rule), "%s:%u,%s:%u", names[i], 1 + below(most[i]),
			 names[j], 1 + below(most[j]));
		play(scene, rule, 1, &bad);
		runs++;
	}
	ok(!bad, "%s: %u pairs of calls fail", scene->name, runs);
}

static void sleep_and_wake(void)
{
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "%s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "%s", hetmem_last_error());
}

/*
 * Several calls in a row fail, so that a handle can be left without a mapping: the next move
 * mends it, a sleep leaves it alone, and a free gives nobody else its addresses.
 */
static void in_rows(const struct scene *scene)
{
	static const char *const rows[][2] = {
		{ "cuMemMap", NULL }, { "cuMemSetAccess", NULL }, { "cuMemUnmap", NULL },
		{ "cuMemSetAccess", "cuMemUnmap" }, { "cuMemUnmap", "cuMemMap" },
	};
	static void (*const thens[])(void) = { NULL, sleep_and_wake, do_free };
	unsigned int bad = 0, runs = 0, nth, i, k;
	char rule[1024];
	size_t n;

	for (i = 0; i < 5 * 6 * 3; i++, runs++) {
		for (n = 0, k = 0; k < 14; k++) {
			const char *name = rows[i % 5][k % 2];

			nth = 1 + i / 5 % 6 + k / 2;
			if (name)
				n += snprintf(rule + n, sizeof(rule) - n, "%s%s:%u", n ? "," : "",
					      name, nth);
		}
		then = thens[i / 30];
		play(scene, rule, 1, &bad);
		then = NULL;
	}
	ok(!bad, "%s: %u times seven calls in a row fail", scene->name, runs);
}

/* Sanitizers take minutes for what is a minute without: some of the failing calls do. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EVERY	6
#else
#define EVERY	1
#endif

int main(int argc, char **argv)
{
	const bool all = argc > 2;
	unsigned int check;
	size_t i;

	for (check = 0; check < 2; check++) {
		seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
		printf("# seed %llu, %s\n", (unsigned long long)seed,
		       check ? "checked" : "not checked");
		open_moves(check ? "1" : "0");
		for (i = 0; i < NR_SCENES; i++) {
			one_by_one(&scenes[i], all ? 1 : check ? 5 * EVERY : EVERY);
			if (!check && (all || EVERY == 1))
				in_pairs(&scenes[i], all);
			if (!check && (scenes[i].act == do_spill || scenes[i].act == do_fetch))
				in_rows(&scenes[i]);
		}
		close_moves();
	}
	free(image);
	return tap_end();
}
