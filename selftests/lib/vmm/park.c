// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sleep that keeps contents: whatever the blocks and handles, contents are there after
 * the wake and device memory is free until then; host memory is bounded, as large as
 * needed and given back as told; whatever call of the driver fails, contents are here or
 * there. Arguments: a seed, rounds.
 */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "bytes.h"
#include "one_resource.h"

#define KIB	((size_t)1 << 10)
#define KEEP	HETMEM_SLEEP_KEEP
#define DISCARD	HETMEM_SLEEP_DISCARD
#define SLOTS	64

static unsigned int rounds = 8;

struct slot {
	unsigned char *p;
	size_t size;
	unsigned int value;
};

static struct slot slots[SLOTS];

static void make(const char *spec)
{
	memset(slots, 0, sizeof(slots));
	create(spec);
}

/* Each byte has a value of its own, about. */
static void fill(struct slot *s, size_t size)
{
	void *p = NULL;

	need(!hetmem_alloc(res, size, 0, HOST, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	*s = (struct slot){ p, size, below(256) };
	write_bytes(p, 0, size, s->value);
}

static void empty(struct slot *s)
{
	if (s->p && hetmem_free(res, s->p, s->size, HOST))
		ok(false, "free: %s", hetmem_last_error());
	s->p = NULL;
}

static unsigned int wrong(void)
{
	unsigned int k, n = 0;

	for (k = 0; k < SLOTS; k++)
		if (slots[k].p)
			n += wrong_bytes(slots[k].p, 0, slots[k].size, slots[k].value);
	return n;
}

static size_t live(void)
{
	size_t bytes = 0;
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		bytes += slots[k].p ? slots[k].size : 0;
	return bytes;
}

static void end(void)
{
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	is(device_used(), 0, "no device memory is left");
}

static size_t any_size(void)
{
	switch (below(4)) {
	case 0:
		return 1 + below(2000);
	case 1:
		return 1 + below(100 * KIB);
	case 2:
		return 1 + below(2 * MIB);
	default:
		return 1 + below(9 * MIB);
	}
}

/* Blocks come and go, the pool sleeps and wakes. */
static void at_random(const char *spec)
{
	unsigned int i, k, bad = 0, errors = 0;
	void *none;

	make(spec);
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < SLOTS; k++) {
			if (below(2))
				empty(&slots[k]);
			if (!slots[k].p && below(3))
				fill(&slots[k], any_size());
		}
		errors += !!hetmem_sleep(res, NULL, KEEP);
		errors += device_used() != 0;
		errors += stats().parked < live() / 512 * 512;
		errors += hetmem_alloc(res, 100, 0, HOST, &none) != -EBUSY;
		/* Freed while they are away. */
		for (k = below(4) * 16; k < SLOTS; k += 3)
			empty(&slots[k]);
		hetmem_trim(res, 0, NULL);
		errors += below(2) && hetmem_sleep(res, NULL, KEEP);
		errors += !!hetmem_wake(res, NULL);
		bad += wrong();
	}
	is(bad, 0, "%s: contents are kept", spec);
	is(errors, 0, "all calls do as they should: %s", hetmem_last_error());
	end();
}

/*
 * A wake merges handles. Runs may have ended at a boundary that is inside of the merged handle
 * now. Later runs at those addresses must not be linked to them.
 */
static void former_ends(const char *spec)
{
	unsigned int i, k, errors = 0, bad = 0;

	make(spec);
	for (i = 0; i < 30 * rounds; i++) {
		k = below(16);
		if (slots[k].p)
			empty(&slots[k]);
		else
			fill(&slots[k], below(2) ? (1 + below(12)) * MIB + below(MIB) :
			     1 + below(20 * MIB));
		if (!below(12))
			errors += hetmem_trim(res, below(2) * 16 * MIB, NULL) != 0;
		if (below(30))
			continue;
		errors += hetmem_sleep(res, NULL, KEEP) != 0;
		errors += hetmem_wake(res, NULL) != 0;
		bad += wrong();
	}
	is(bad + wrong(), 0, "%s, runs: contents are kept", spec);
	is(errors, 0, "all calls do as they should: %s", hetmem_last_error());
	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	hetmem_trim(res, 0, NULL);
	is(device_used(), 0, "all is given back");
	end();
}

/* Exactly as much host memory as contents need, which goes and stays as told. */
static void host_memory(void)
{
	make("pool(vmm,park=keep)");
	fill(&slots[0], 70 * MIB);
	fill(&slots[1], 30 * MIB);
	fill(&slots[2], MIB);
	empty(&slots[1]);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	ok(stats().parked >= 71 * MIB && stats().parked <= 76 * MIB,
	   "71 MiB take %llu bytes", (long long)stats().parked);
	is(hetmem_trim(res, 0, NULL), 0, "a trim");
	ok(stats().parked >= 71 * MIB, "takes no contents");
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	hetmem_poll(res);
	hetmem_poll(res);
	ok(stats().parked >= 71 * MIB, "park=keep: host memory stays");
	is(hetmem_trim(res, 0, NULL), 0, "a trim");
	is(stats().parked, 0, "takes it");
	end();

	make("pool(vmm,park=release)");
	fill(&slots[0], 150 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(stats().parked, 0, "park=release: the wake gives all back");
	is(wrong(), 0, "contents are there");
	end();

	make("pool(vmm,park=70M)");
	fill(&slots[0], 150 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	while (hetmem_poll(res), stats().parked > 70 * MIB)
		;
	hetmem_poll(res);
	ok(stats().parked > 0 && stats().parked <= 70 * MIB, "park=70M: %llu stay",
	   (long long)stats().parked);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps again: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();
}

/* Refused before anything moves, with the number. */
static void bounded(void)
{
	make("pool(vmm,max_host=10M)");
	fill(&slots[0], 8 * MIB);
	fill(&slots[1], 3 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "too much: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "at most 10485760") &&
	   strstr(hetmem_last_error(), "max_host="), "with the number");
	is(wrong(), 0, "contents are where they were");
	is(stats().parked, 0, "no host memory is held");
	fill(&slots[2], 100);
	empty(&slots[1]);
	is(hetmem_sleep(res, NULL, KEEP), 0, "what fits, sleeps: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();
	is(hetmem_resource_create(hm, "pool(vmm,max_host=0)", &res), -EINVAL, "no room: %s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(vmm,park=some)", &res), -EINVAL, "no such word: %s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(device,park=keep)", &res), -EOPNOTSUPP,
	   "memory that cannot sleep: %s", hetmem_last_error());
}

static void order_of_calls(void)
{
	struct hetmem_resource *other;
	CUgraph graph = NULL;
	CUstream s;
	void *p;
	pid_t pid;
	int status;

	make("pool(vmm,tag=weights)");
	need(!hetmem_resource_create(hm, "pool(vmm,tag=kv)", &other), "another pool");
	is(hetmem_sleep(res, NULL, 2), -EINVAL, "unknown flags: %s", hetmem_last_error());
	is(hetmem_sleep(res, NULL, KEEP), 0, "nothing is live");
	is(hetmem_wake(res, NULL), 0, "wakes");
	fill(&slots[0], 5 * MIB);
	is(hetmem_sleep(res, "kv", KEEP), 0, "another tag");
	ok(device_used(), "does nothing");
	is(hetmem_sleep(res, "weights", KEEP), 0, "its own");
	is(device_used(), 0, "takes the memory");
	is(hetmem_sleep(res, NULL, DISCARD), 0, "sleeps already");
	is(hetmem_wake(res, NULL), 0, "and wakes");
	is(wrong(), 0, "with its contents");
	is(hetmem_wake(res, NULL), 0, "is awake");
	is(hetmem_sleep(res, NULL, DISCARD), 0, "without contents");
	is(hetmem_sleep(res, NULL, KEEP), -EBUSY, "there are none to keep: %s",
	   hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	empty(&slots[0]);
	fill(&slots[0], 5 * MIB);
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!hetmem_alloc(res, 100, 0, s, &p) && !hetmem_free(res, p, 0, s), "it is known");
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	is(hetmem_sleep(res, NULL, KEEP), -EBUSY, "not meanwhile: %s", hetmem_last_error());
	drv->cuStreamEndCapture(s, &graph);
	if (graph)
		drv->cuGraphDestroy(graph);
	is(wrong(), 0, "contents are where they were");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	pid = fork();
	if (!pid)
		_exit(hetmem_wake(res, NULL) != -EOWNERDEAD ||
		      hetmem_free(res, slots[0].p, 0, HOST) != -EOWNERDEAD);
	waitpid(pid, &status, 0);
	is(status, 0, "a child has neither");
	is(hetmem_wake(res, NULL), 0, "the parent wakes");
	is(wrong(), 0, "with its contents");
	drv->cuStreamDestroy(s);
	is(hetmem_resource_destroy(other), 0, "the other one goes");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	slots[0].p = NULL;
	is(hetmem_resource_destroy(res), 1, "destroyed asleep: one is live");
	is(device_used(), 0, "no device memory is left");
	make("pool(vmm,comm=on)");
	is(hetmem_sleep(res, NULL, KEEP), -EBUSY, "memory for communication stays");
	end();
}

/* What is pinned stays where it is, and what it is used for goes on. */
static void pinned(void)
{
	unsigned char was;

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 4 * MIB);
	fill(&slots[1], 4 * MIB);
	is(hetmem_pin_comm(res, slots[0].p), 0, "one is pinned");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	ok(stats().parked <= 4 * MIB, "the other one is parked: %llu",
	   (long long)stats().parked);
	was = slots[0].p[5]++;
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(slots[0].p[5], (unsigned char)(was + 1),
	   "what was written meanwhile is there");
	slots[0].p[5]--;
	is(wrong(), 0, "contents are there");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps again");
	is(hetmem_pin_comm(res, slots[1].p), -EBUSY, "nothing to pin: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	end();
}

/* Of several pools all fall asleep or none does; one that slept before sleeps on. */
static void several_pools(void)
{
	const char *const below = "binning(pool(vmm,tag=a),pool(vmm,tag=b,max_host=2M),at=1M)";
	char spec[96];
	size_t before;

	make(below);
	fill(&slots[0], 1000);
	fill(&slots[1], 5 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "one has no room: %s", hetmem_last_error());
	is(wrong(), 0, "contents are where they were");
	is(hetmem_sleep(res, "a", KEEP), 0, "the other sleeps");
	before = device_used();
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "both do not");
	is(device_used(), before, "the one that slept sleeps on");
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();

	/* A guard does not look at what is asleep. */
	snprintf(spec, sizeof(spec), "guard(%s)", below);
	make(spec);
	fill(&slots[0], 1000);
	fill(&slots[1], 5 * MIB);
	is(hetmem_sleep(res, "a", KEEP), 0, "one sleeps");
	is(hetmem_sleep(res, "b", KEEP), -ENOMEM, "the other has no room");
	empty(&slots[0]);
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(hetmem_poll(res), 0, "no damage");
	is(wrong(), 0, "contents are there");
	slots[1].p[5 * MIB] ^= 1;
	empty(&slots[1]);
	is(hetmem_poll(res), -EFAULT, "what is awake is looked at: %s", hetmem_last_error());
	end();
}

static void put_host(const char *root, const char *file, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, file);
	f = fopen(path, "w");
	need(f && fputs(text, f) >= 0 && !fclose(f), "%s", path);
}

/* What the host has bounds a sleep, and what is kept after it. */
static void small_host(void)
{
	static const char *const dirs[] = { "", "/proc", "/proc/self", "/sys", "/sys/fs",
					    "/sys/fs/cgroup", "/sys/fs/cgroup/job" };
	const char *old = hm->root;
	char root[] = "/tmp/hetmem-park-XXXXXX", path[128];
	unsigned int i;

	need(mkdtemp(root), "a directory");
	for (i = 1; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", root, dirs[i]);
		need(!mkdir(path, 0700), "%s", path);
	}
	make("pool(vmm)");
	fill(&slots[0], 10 * MIB);
	hm->root = root;
	hm->reserve = (struct hm_reserve){ .given = true };
	put_host(root, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n");
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "no memory at all: %s", hetmem_last_error());
	put_host(root, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 9216 kB\n");
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "too little: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "at most 9437184"), "with the number");
	is(wrong(), 0, "contents are where they were");
	/* A quarter of what the cgroup has is less than a piece. */
	put_host(root, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1048576 kB\n");
	put_host(root, "proc/self/cgroup", "0::/job\n");
	put_host(root, "proc/self/mountinfo",
		 "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
	put_host(root, "sys/fs/cgroup/job/memory.max", "20971520\n");
	put_host(root, "sys/fs/cgroup/job/memory.current", "0\n");
	put_host(root, "sys/fs/cgroup/job/memory.stat", "inactive_file 0\nactive_file 0\n");
	is(hetmem_sleep(res, NULL, KEEP), 0, "fits: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	hetmem_poll(res);
	is(stats().parked, 0, "what the cgroup lacks is not kept");
	is(wrong(), 0, "contents are there");
	hm->root = old;
	end();
	snprintf(path, sizeof(path), "rm -rf %s", root);
	need(!system(path), "%s", path);
}

/* The host promises more than it gives. Sanitizers need addresses of their own. */
static void no_addresses(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	struct rlimit all, few;
	unsigned long pages;
	FILE *f = fopen("/proc/self/statm", "r");

	make("pool(vmm)");
	fill(&slots[0], 200 * MIB);
	need(f && fscanf(f, "%lu", &pages) == 1 && !fclose(f), "a size");
	need(!getrlimit(RLIMIT_AS, &all), "a limit");
	few = all;
	few.rlim_cur = pages * sysconf(_SC_PAGESIZE) + 150 * MIB;
	need(!setrlimit(RLIMIT_AS, &few), "a limit");
	is(hetmem_sleep(res, NULL, KEEP), -ENOMEM, "no addresses: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "at most "), "with the number");
	need(!setrlimit(RLIMIT_AS, &all), "no limit");
	is(stats().parked, 0, "no host memory is held");
	is(wrong(), 0, "contents are where they were");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();
#endif
}

/* A max= that is lowered takes nothing that is live, asleep or not. */
static void lower_max(void)
{
	make("pool(vmm,handle=2M,max=100M)");
	fill(&slots[0], 50 * MIB);
	fill(&slots[1], 40 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	empty(&slots[1]);
	is(hetmem_resource_set(res, "max", "20M"), 0, "a lower max");
	is(hetmem_wake(res, NULL), 0, "wakes: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	ok(stats().reserved <= 52 * MIB, "what is free went: %llu",
	   (long long)stats().reserved);
	end();
}

/* Exported memory stays: others use it. */
static void exported(void)
{
	struct hetmem_segment segment;
	void *theirs;
	int fd;

	make("pool(vmm(export=fd))");
	fill(&slots[0], 5 * MIB);
	fill(&slots[1], 3 * MIB);
	fill(&slots[2], MIB);
	is(hetmem_export(res, slots[0].p, &fd, &segment, 1), 1, "exported");
	need(!hetmem_import(hm, 0, &fd, &segment, 1, &theirs), "%s", hetmem_last_error());
	close(fd);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	((unsigned char *)theirs)[7] ^= 1;
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 1, "what another process wrote is there, and no other byte differs");
	empty(&slots[0]);
	is(hetmem_sleep(res, NULL, KEEP), 0, "freed, it is in nobody's way: %s",
	   hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	hetmem_import_close(hm, theirs);
	end();
}

/* A wake makes few and large handles, of which each is of one block. */
static void large_handles(void)
{
	struct hetmem_segment segments[64];

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 40 * MIB);
	fill(&slots[1], 7 * MIB);
	fill(&slots[2], 300);
	ok(hetmem_segments(res, slots[0].p, 40 * MIB, segments, 64) >= 20, "20 handles");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleep");
	is(hetmem_wake(res, NULL), 0, "wake");
	ok(hetmem_segments(res, slots[0].p, 40 * MIB, segments, 64) <= 3, "are three at most");
	is(wrong(), 0, "contents are there");
	empty(&slots[0]);
	fill(&slots[3], 60 * MIB);
	fill(&slots[4], 9 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleep again");
	empty(&slots[3]);
	is(hetmem_wake(res, NULL), 0, "wake");
	is(wrong(), 0, "contents are there");
	hetmem_trim(res, 0, NULL);
	ok(device_used() <= 30 * MIB, "what is free goes: %zu bytes are held", device_used());
	fill(&slots[5], 70 * MIB);
	is(wrong(), 0, "and comes again");
	end();
}

/* No memory on the device: some wakes, and later all. */
static void no_device_memory(void)
{
	struct hetmem_resource *other;
	void *p;

	make("pool(vmm,handle=2M)");
	fill(&slots[0], 40 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	need(!hetmem_resource_create(hm, "device", &other) &&
	     !hetmem_alloc(other, 1000 * MIB, 0, HOST, &p), "others take the memory");
	is(hetmem_wake(res, NULL), -ENOMEM, "does not wake: %s", hetmem_last_error());
	is(hetmem_free(other, p, 0, HOST), 0, "there is memory");
	hetmem_trim(other, 0, NULL);
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	hetmem_resource_destroy(other);
	end();
}

/* The @nth call of one kind fails in a sleep, or in a wake. */
static void failing(const char *call, unsigned int nth, bool wake)
{
	unsigned int k, bad;
	char rule[48];
	int err;

	make("pool(vmm,handle=2M,park=release)");
	for (k = 0; k < 8; k++)
		fill(&slots[k], 1 + k * 700 * KIB);
	empty(&slots[3]);
	if (wake)
		need(!hetmem_sleep(res, NULL, KEEP), "sleeps");
	snprintf(rule, sizeof(rule), "%s:%u", call, nth);
	need(!soft_rules(rule, NULL), "a rule");
	err = wake ? hetmem_wake(res, NULL) : hetmem_sleep(res, NULL, KEEP);
	soft_rules(NULL, NULL);
	/* Whether that call is made, and is made again, is not said here. */
	if (err && !wake)
		hetmem_wake(res, NULL);
	if (err && wake)
		need(!hetmem_wake(res, NULL), "%s: wakes then: %s", rule, hetmem_last_error());
	if (!err && !wake)
		need(!device_used() && !hetmem_wake(res, NULL), "%s: wakes", rule);
	bad = wrong();
	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	need(!hetmem_sleep(res, NULL, KEEP) && !hetmem_wake(res, NULL) && !hetmem_trim(res, 0, NULL),
	     "%s: goes on: %s", rule, hetmem_last_error());
	while (hetmem_poll(res), stats().parked)
		;
	err = hetmem_resource_destroy(res);
	ok(!bad && !err && !device_used(), "%s in a %s: contents stay, nothing is left", rule,
	   wake ? "wake" : "sleep");
}

static void all_fail(void)
{
	static const char *const calls[] = {
		"cuStreamCreate", "cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyAsync",
		"cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemCreate", "cuMemMap",
		"cuMemSetAccess", "cuCtxSetCurrent", "cuCtxSynchronize",
	};
	unsigned int i, nth;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (nth = 1; nth <= 3; nth++) {
			failing(calls[i], nth, false);
			failing(calls[i], nth, true);
		}
}

static void *free_all(void *arg)
{
	unsigned int k;

	(void)arg;
	for (k = 1; k < SLOTS; k += 2) {
		empty(&slots[k]);
		hetmem_trim(res, 0, NULL);
		hetmem_poll(res);
	}
	return NULL;
}

/* Another thread frees, trims and polls while the pool falls asleep and wakes. */
static void threads(void)
{
	unsigned int i, k, bad = 0, errors = 0;
	pthread_t thread;

	make("pool(vmm,handle=2M,park=release)");
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < SLOTS; k++)
			if (!slots[k].p)
				fill(&slots[k], any_size() / 4 + 1);
		need(!pthread_create(&thread, NULL, free_all, NULL), "a thread");
		for (k = 0; k < 3; k++) {
			errors += !!hetmem_sleep(res, NULL, KEEP);
			errors += !!hetmem_wake(res, NULL);
		}
		pthread_join(thread, NULL);
		bad += wrong();
	}
	is(bad, 0, "threads: contents are kept");
	is(errors, 0, "no errors: %s", hetmem_last_error());
	end();
}

int main(int argc, char **argv)
{
	unsigned int i;

	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %llu\n", (unsigned long long)seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "managed memory=1G", 1);
	open_soft("");
	at_random("pool(vmm)");
	at_random("pool(vmm,handle=2M)");
	at_random("pool(vmm,handle=16M,park=release)");
	at_random("stats(guard(pool(vmm)))");
	at_random("binning(pool(vmm),pool(vmm,park=1M),at=64K)");
	for (i = 0; i < 3; i++) {
		former_ends("pool(vmm)");
		former_ends("pool(vmm,handle=2M)");
	}
	host_memory();
	bounded();
	order_of_calls();
	pinned();
	several_pools();
	small_host();
	no_addresses();
	lower_max();
	exported();
	large_handles();
	no_device_memory();
	all_fail();
	threads();
	close_soft();
	return tap_end();
}
