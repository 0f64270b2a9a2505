// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * When memory is full: a wake makes all of its memory or none, whatever fails in it; nothing
 * that headroom() lets through leaves less than the reserve; what the host cannot spare is
 * refused before it is taken; an error tells what is free where.
 */
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "below.h"
#include "by_spec.h"
#include "failing_calls.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST
#define DEVICE	(256 * MIB)
#define RESERVE	(32 * MIB)
#define BLOCKS	24

/* Blocks of a resource, each full of its own byte. */
struct set {
	struct hetmem_resource *res;
	unsigned int nr;
	unsigned char *p[BLOCKS];
	size_t size[BLOCKS];
};

/* Blocks of up to @most bytes, @all in all. */
static void fill(struct set *set, size_t all, size_t most)
{
	for (set->nr = 0; set->nr < BLOCKS && all; set->nr++) {
		size_t size = most / 4 + below(most / 4096) * (size_t)3072;

		if (size > all || set->nr == BLOCKS - 1)
			size = all;
		set->size[set->nr] = size;
		set->p[set->nr] = get(set->res, size, HOST);
		need(set->p[set->nr], "%zu bytes", size);
		memset(set->p[set->nr], set->nr + 1, size);
		all -= size;
	}
}

static bool intact(const struct set *set)
{
	unsigned int i;

	for (i = 0; i < set->nr; i++)
		if (!all_bytes(set->p[i], i + 1, set->size[i]))
			return false;
	return true;
}

static void drop(struct set *set)
{
	while (set->nr)
		need(!hetmem_free(set->res, set->p[--set->nr], 0, HOST), "free");
	need(!hetmem_resource_destroy(set->res), "destroy");
}

/* Two that fit alone, while a third has some of the device. */
static void two_wakes(uint64_t round)
{
	struct hetmem_resource_stats before;
	struct hetmem_resource *third;
	struct set two[2];
	void *block;
	int i, err;

	seed = round;
	for (i = 0; i < 2; i++) {
		two[i].res = make(below(2) ? "pool(vmm,handle=2M)" : "pool(vmm,park=keep)");
		fill(&two[i], (130 + below(38)) * MIB, (4 + below(30)) * MIB);
		need(!hetmem_sleep(two[i].res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s",
		     hetmem_last_error());
	}
	third = make("pool(vmm)");
	block = get(third, (140 + below(50)) * MIB, HOST);
	need(block, "the third's");
	for (i = 0; i < 2; i++) {
		const size_t used = device_used();

		before = stats(two[i].res);
		err = hetmem_wake(two[i].res, NULL);
		is(err, -ENOMEM, "round %d: no room to wake", (int)round);
		ok(strstr(hetmem_last_error(), "missing"), "%s", hetmem_last_error());
		is(device_used(), used, "nothing is held");
		ok(stats(two[i].res).reserved == before.reserved &&
		   stats(two[i].res).parked == before.parked, "all is as before");
	}
	need(!hetmem_free(third, block, 0, HOST), "free");
	hetmem_resource_destroy(third);
	i = below(2);
	is(hetmem_wake(two[i].res, NULL), 0, "one of the two wakes");
	is(hetmem_wake(two[!i].res, NULL), -ENOMEM, "the other cannot");
	ok(intact(&two[i]), "contents");
	drop(&two[i]);
	is(hetmem_wake(two[!i].res, NULL), 0, "now it can");
	ok(intact(&two[!i]), "its contents");
	drop(&two[!i]);
}

/* Several pools of one resource wake together, or none of them. */
static void wakes_of_several(void)
{
	struct set all = { .res = make("binning(pool(vmm,tag=a),pool(vmm,tag=b),at=2M)") };
	struct hetmem_resource *third = make("pool(vmm)");
	unsigned int i;
	void *block;

	for (i = 0; i < 20; i++, all.nr++) {
		all.size[i] = i % 2 ? MIB : 10 * MIB;
		all.p[i] = get(all.res, all.size[i], HOST);
		memset(all.p[i], i + 1, all.size[i]);
	}
	need(!hetmem_sleep(all.res, NULL, HETMEM_SLEEP_KEEP), "sleep");
	block = get(third, 200 * MIB, HOST);
	is(hetmem_wake(all.res, NULL), -ENOMEM, "the second pool finds no room");
	is(stats(all.res).reserved, 0, "and the first holds nothing");
	is(hetmem_wake(all.res, "a"), 0, "the first alone");
	ok(stats(all.res).reserved >= 10 * MIB && stats(all.res).reserved < 25 * MIB, "has its memory");
	is(hetmem_wake(all.res, NULL), -ENOMEM, "the second still not");
	ok(stats(all.res).reserved >= 10 * MIB, "which takes nothing from the first");
	need(!hetmem_free(third, block, 0, HOST), "free");
	hetmem_resource_destroy(third);
	is(hetmem_wake(all.res, NULL), 0, "both");
	ok(intact(&all), "contents");
	drop(&all);
}

/* A wake in which the @nth @call fails; returns whether it does, too. */
static bool wake_fails(struct set *set, const char *call, unsigned int nth, bool *good, bool *right)
{
	const char *rule = failing_rule(call, nth);
	int err;

	need(!hetmem_sleep(set->res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	need(!soft_rules(rule, NULL), "a rule");
	err = hetmem_wake(set->res, NULL);
	failing_made(call, nth);
	soft_rules(NULL, NULL);
	if (err) {
		*good &= !stats(set->res).reserved && !device_used();
		need(!hetmem_wake(set->res, NULL), "wakes after %s: %s", rule, hetmem_last_error());
	}
	*right &= intact(set);
	return err;
}

/* Each driver call of a wake fails, in turn. */
static void failing_calls(const char *spec)
{
	unsigned int call, nth, failed = 0;
	bool good = true, right = true;
	struct set set = { .res = make(spec) };

	seed = 7;
	fill(&set, 20 * MIB, 6 * MIB);
	count_made(from)
		good &= !wake_fails(&set, NULL, from, &good, &right);
	for (call = 0; call < NR_CALLS; call++) {
		for (nth = 1; is_made[call] && nth < 40; nth++) {
			if (!wake_fails(&set, calls[call], nth, &good, &right))
				break;
			failed++;
		}
	}
	ok(failed > 3 && good, "%s: %u calls failed in a wake, which held nothing then", spec, failed);
	ok(right, "contents are right");
	drop(&set);
}

/* Two resources with a reserve, and one without, at random; @round: which. */
static void reserves(uint64_t round)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = HOST, .flags = HETMEM_ALLOC_MOVABLE,
	};
	static const char *const specs[] = {
		"headroom(pool(vmm,handle=2M,spill=256M,launcher=single))",
		"headroom(pool(vmm,spill=256M,launcher=single))", "pool(vmm)",
	};
	struct hetmem_resource *res[3];
	bool sleeps[3] = { false };
	unsigned int i, k, op, wrong = 0;
	void *p[3][BLOCKS] = { { NULL } }, **slot;

	seed = round;
	for (k = 0; k < 3; k++)
		res[k] = make(specs[k]);
	for (i = 0; i < 300; i++) {
		const size_t before = DEVICE - device_used();

		k = below(3);
		op = below(10);
		params.bytes = (1 + below(12)) * MIB - below(2) * 4097;
		slot = &p[k][below(BLOCKS)];

		if (op < 4 && !*slot) {
			if (hetmem_alloc_with(res[k], &params, slot))
				*slot = NULL;
		} else if (op < 4 || op == 4) {
			if (*slot && !hetmem_free(res[k], *slot, 0, HOST))
				*slot = NULL;
		} else if (op == 5 && k < 2) {
			sleeps[k] |= !hetmem_sleep(res[k], NULL, HETMEM_SLEEP_DISCARD);
		} else if (op == 6 && sleeps[k]) {
			sleeps[k] = hetmem_wake(res[k], NULL) != 0;
		} else if (op == 7 && *slot) {
			hetmem_spill(res[k], *slot);
		} else if (op == 8 && *slot) {
			hetmem_fetch(res[k], *slot);
		} else if (op == 9 && !below(4)) {
			hetmem_trim(res[k], 0, NULL);
		}
		/* The one without a reserve may take what it likes. */
		if (k < 2 && DEVICE - device_used() < RESERVE &&
		    DEVICE - device_used() < before) {
			printf("# round %d: %s, operation %u leaves %zu of %zu\n", (int)round,
			       specs[k], op, DEVICE - device_used(), before);
			wrong++;
		}
	}
	ok(!wrong, "round %d: the reserve is left, %u times not", (int)round, wrong);
	for (k = 0; k < 3; k++)
		hetmem_resource_destroy(res[k]);
}

static char root[] = "/tmp/hetmem-full-XXXXXX";

/* The host has @mib beyond the reserve, whatever is taken of it. */
static void host_spares(unsigned int mib)
{
	char path[80];
	FILE *f;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	f = fopen(path, "w");
	need(f, "%s", path);
	fprintf(f, "MemTotal: 4194304 kB\nMemAvailable: %zu kB\n", (mib * MIB + RESERVE) >> 10);
	fclose(f);
}

static void host_memory(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = HOST, .bytes = 8 * MIB,
		.flags = HETMEM_ALLOC_MOVABLE,
	};
	struct set set;
	unsigned int i;
	char path[80];
	void *p[8];

	need(mkdtemp(root), "a directory");
	snprintf(path, sizeof(path), "%s/proc", root);
	need(!mkdir(path, 0700), "%s", path);
	hm->root = root;
	set.res = make("pool(vmm)");
	fill(&set, 100 * MIB, 16 * MIB);
	host_spares(99);
	is(hetmem_sleep(set.res, NULL, HETMEM_SLEEP_KEEP), -ENOMEM, "a sleep of 100 MiB: %s",
	   hetmem_last_error());
	ok(!stats(set.res).parked && intact(&set), "nothing has changed");
	host_spares(102);
	is(hetmem_sleep(set.res, NULL, HETMEM_SLEEP_KEEP), 0, "with 102 MiB it sleeps");
	is(hetmem_wake(set.res, NULL), 0, "and wakes");
	ok(intact(&set), "contents");
	drop(&set);
	set.res = make("pool(vmm,max=32M,handle=8M,spill=1G,launcher=single)");
	for (i = 0; i < 4; i++)
		need(!hetmem_alloc_with(set.res, &params, &p[i]), "a block: %s",
		     hetmem_last_error());
	host_spares(7);
	is(hetmem_spill(set.res, p[0]), -ENOMEM, "spill: %s", hetmem_last_error());
	is(hetmem_alloc_with(set.res, &params, &p[4]), -ENOMEM, "alloc: %s", hetmem_last_error());
	ok(!stats(set.res).spill_host && !stats(set.res).spilled, "nothing is on the host");
	host_spares(8);
	is(hetmem_spill(set.res, p[0]), 0, "with 8 MiB it is");
	is(hetmem_alloc_with(set.res, &params, &p[4]), 0, "and there is room");
	hetmem_resource_destroy(set.res);
	is(hetmem_resource_create(hm, "pool(vmm,spill=1G,min_host=64M,launcher=single)", &set.res),
	   -ENOMEM, "min_host=: %s", hetmem_last_error());
	hm->root = "";
	snprintf(path, sizeof(path), "rm -rf %s", root);
	need(!system(path), "%s", path);
}

/* The CPU's allocation waits for earlier work, which takes longer than other streams wait. */
static void cpu_waits(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	CUstream s;
	void *p;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	p = get(res, 200 * MIB, HOST);
	need(p && !soft_rules(NULL, "cuMemsetD8Async:1300ms"), "slow work");
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, 4096, s), "work");
	need(!hetmem_free(res, p, 0, s), "free");
	p = get(res, 200 * MIB, HOST);
	ok(p, "%s: the CPU has its memory", spec);
	soft_rules(NULL, NULL);
	if (p)
		hetmem_free(res, p, 0, HOST);
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(s);
}

/* Likewise for memory of another tag, and of a sparse block. */
static void cpu_waits_for_tag(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 200 * MIB, .stream = HOST, .tag = "one",
	};
	struct hetmem_resource *res = make("pool(vmm)");
	void *p, *q;
	CUstream s;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!hetmem_alloc_with(res, &params, &p), "a block: %s", hetmem_last_error());
	params.tag = "two";
	is(hetmem_alloc_with(res, &params, &q), -ENOMEM, "no room for two");
	ok(strstr(hetmem_last_error(), " more held for other tags"), "%s", hetmem_last_error());
	need(!soft_rules(NULL, "cuMemsetD8Async:1300ms"), "slow work");
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, 4096, s), "work");
	need(!hetmem_free(res, p, 0, s), "free");
	is(hetmem_alloc_with(res, &params, &q), 0, "the CPU has memory of another tag: %s",
	   hetmem_last_error());
	soft_rules(NULL, NULL);
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(s);
}

static bool refused(struct hetmem_resource *res, const char *place)
{
	void *p;

	return hetmem_alloc(res, 240 * MIB, 0, HOST, &p) == -ENOMEM &&
	       strstr(hetmem_last_error(), place);
}

static void free_where(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = HOST, .bytes = 50 * MIB, .private_pool = 9,
	};
	struct hetmem_resource *res = make("pool(vmm)");
	void *p, *q, *small;
	CUgraph graph;
	CUstream s;

	need(!hetmem_private_retain(res, 9) && !hetmem_alloc_with(res, &params, &p), "a block");
	need(!hetmem_free(res, p, 0, HOST), "free");
	ok(refused(res, "52428800 in private pools"), "%s", hetmem_last_error());
	need(!hetmem_private_release(res, 9, HOST), "release");
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!hetmem_capture_begin(res, s, 5) &&
	     !drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	p = get(res, 55 * MIB, s);
	need(!hetmem_free(res, p, 0, s), "free");
	need(!drv->cuStreamEndCapture(s, &graph) && !hetmem_capture_end(res, s, 5), "its end");
	ok(refused(res, "57671680 of captures"), "%s", hetmem_last_error());
	need(!hetmem_capture_release(res, s, 5) && !drv->cuGraphDestroy(graph), "release");
	hetmem_resource_destroy(res);
	res = make("pool(vmm,handle=64M)");
	q = get(res, 48 * MIB, HOST);
	small = get(res, 3 * MIB + 512, HOST);
	hetmem_free(res, q, 0, HOST);
	ok(refused(res, "beside live blocks"), "%s", hetmem_last_error());
	hetmem_free(res, small, 0, HOST);
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(s);
}

/* In a child whose addresses are limited. Sanitizers need addresses of their own. */
static int few_addresses(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return 0;
#else
	struct rlimit limit = { (size_t)48 << 30, (size_t)48 << 30 };
	struct hetmem_resource *pools[40];
	unsigned int i;
	void *p;

	if (setrlimit(RLIMIT_AS, &limit))
		return 1;
	open_soft("");
	for (i = 0; i < 40; i++)
		if (hetmem_resource_create(hm, "pool(vmm)", &pools[i]) ||
		    hetmem_alloc(pools[i], 5 * MIB, 0, HOST, &p))
			return 2;
	return malloc(64 * MIB) ? 0 : 3;
#endif
}

/* Sanitizers leave a program a part of the addresses only: 40 pools of 64 GiB fit beside TSan. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define POOLS 16
#else
#define POOLS 1000
#endif

static void addresses(void)
{
	struct hetmem_resource *pools[POOLS], *res;
	unsigned int i, n;

	for (n = 0; n < POOLS && !hetmem_resource_create(hm, "pool(vmm,max=128G)", &pools[n]); n++)
		;
	is(n, POOLS, "pools of 128 GiB in one process");
	for (i = 0; i < n; i++)
		hetmem_resource_destroy(pools[i]);
	res = make("pool(vmm,max=256M)");
	is(hetmem_resource_set(res, "max", "2G"), 0, "max= within the addresses");
	is(hetmem_resource_set(res, "max", "100G"), -EINVAL, "beyond: %s", hetmem_last_error());
	hetmem_resource_destroy(res);
}

int main(void)
{
	uint64_t round;
	int status = -1;
	pid_t pid;

	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_RESERVE", "32M", 1);
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(few_addresses());
	waitpid(pid, &status, 0);
	is(status, 0, "pools below a RLIMIT_AS");
	open_soft("");
	addresses();
	for (round = 1; round <= 3; round++)
		two_wakes(round);
	wakes_of_several();
	failing_calls("pool(vmm,handle=4M)");
	failing_calls("headroom(pool(vmm))");
	for (round = 1; round <= 6; round++)
		reserves(round);
	host_memory();
	cpu_waits("pool(vmm)");
	cpu_waits("pool(pinned,max=250M)");
	cpu_waits_for_tag();
	free_where();
	close_soft();
	return tap_end();
}
