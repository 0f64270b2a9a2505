// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What one user can really take of the kernel's memory at the usual caps/user_kb: contexts,
 * ranges, rings and pins, each alone in the size that wastes most, and all of them. It
 * prints how much memory the kernel has given away then, as /proc/meminfo has it.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <sys/resource.h>

#define USER		1001
#define USER_CAP	"caps/user_kb"
#define PINNED_CAP	"caps/pinned_kb"
#define MAX_FILES	4096
#define MAX_CONTEXTS	64

/*
 * What 64 MiB may become. The charge is what allocators take, so it is little more: the page
 * tables and lists of vmalloc. A kernel that checks itself surrounds each object with more
 * than a small one has itself. Processes and pages that are held come in addition.
 */
#define FACTOR		(slow_kernel() ? 16 : 1.125)
#define FACTOR_ALL	(slow_kernel() ? 16 : 4)

/* One page for each, which is what a group of pins can have least. */
#define PIN_GROUP	(64 * page_size())
#define PIN_GROUPS	16384

/* In KiB. */
struct memory {
	long slab, vmalloc, percpu, available;
};

static struct memory memory_now(void)
{
	struct memory m = {};
	char line[128];
	FILE *f = fopen("/proc/meminfo", "r");

	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "SUnreclaim: %ld", &m.slab);
		sscanf(line, "VmallocUsed: %ld", &m.vmalloc);
		sscanf(line, "Percpu: %ld", &m.percpu);
		sscanf(line, "MemAvailable: %ld", &m.available);
	}
	if (f)
		fclose(f);
	return m;
}

struct taker {
	int fd[MAX_CONTEXTS];
	int nr;			/* of this process */
	char *pages;		/* one in each PIN_GROUP */
	unsigned int groups;
	uint64_t next;		/* address to be tracked */
	long stop;		/* bytes, when it is enough */
};

static bool enough(const struct taker *t)
{
	struct hetmem_cmd_info info;

	if (!t->nr)
		return true;
	CHILD_CHECK(!hm_info(t->fd[0], &info));
	return (long)info.used_bytes >= t->stop;
}

/* What one process may not have a child gets; its parent stays, and with it its own. */
static bool take_context(struct taker *t)
{
	int fd = hm_open();
	pid_t pid;

	if (fd == -EDQUOT && t->nr == MAX_CONTEXTS) {
		pid = fork();
		CHILD_CHECK(pid >= 0);
		if (pid)
			_exit(child_status(pid));
		t->nr = 0;
		fd = hm_open();
	}
	if (fd >= 0)
		t->fd[t->nr++] = fd;
	CHILD_CHECK(fd >= 0 || fd == -EDQUOT);
	return fd >= 0;
}

/* Ranges of so many blocks, until nothing is left. */
static void take_ranges(struct taker *t, unsigned int blocks)
{
	const size_t size = blocks * HUGE_SIZE;
	unsigned int n;
	int ret;

	for (n = 0, ret = 0; !ret && (n % 64 || !enough(t)); n++) {
		ret = hm_track(t->fd[0], (void *)t->next, size);
		t->next += size;
	}
	CHILD_CHECK(!ret || ret == -EDQUOT);
}

static void take_small_ranges(struct taker *t)
{
	/* 4 blocks: a little more than 256 bytes. */
	take_ranges(t, 4);
}

static void take_large_ranges(struct taker *t)
{
	/* A little more than two pages, which are rounded up to four. */
	take_ranges(t, 1000);
}

static void take_contexts(struct taker *t)
{
	while (!enough(t) && take_context(t))
		;
}

static void take_rings(struct taker *t)
{
	unsigned int n = HETMEM_RING_MAX;

	while (!enough(t) && n >= HETMEM_RING_MIN) {
		if (ring_make(t->fd[t->nr - 1], n, ALL_EVENTS, NULL)) {
			n /= 2;
		} else if (!take_context(t)) {
			break;
		}
	}
}

static void take_pins(struct taker *t)
{
	const size_t size = t->groups * PIN_GROUP;
	struct hetmem_cmd_migrate cmd;
	int memfd = memfd_create("pins", MFD_CLOEXEC), ret = 0;
	size_t at;
	int i;

	CHILD_CHECK(memfd >= 0 && !ftruncate(memfd, size));
	t->pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	CHILD_CHECK(t->pages != MAP_FAILED);
	for (at = 0; at < size; at += PIN_GROUP)
		t->pages[at] = 1;
	for (i = 0; !ret && !enough(t); i++) {
		if (i == t->nr && !take_context(t))
			break;
		ret = hm_pin(t->fd[i], t->pages, size, HETMEM_PIN_TIMEOUT_MAX,
			     &cmd);
		CHILD_CHECK(!ret || ret == -EDQUOT);
	}
}

/* Runs in a process of the user. */
typedef void (*take)(struct taker *t);

static void take_all_kinds(struct taker *t)
{
	static const take kinds[] = {
		take_contexts, take_rings, take_small_ranges, take_pins,
	};
	const long all = t->stop;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		t->stop = all * (long)(i + 1) / (long)ARRAY_SIZE(kinds);
		kinds[i](t);
	}
}

FIXTURE(most)
{
	long was, cap, pinned;	/* KiB */
	long bytes;
};

FIXTURE_VARIANT(most)
{
	const char *what;
	take take;
};

FIXTURE_VARIANT_ADD(most, contexts) { "contexts", take_contexts };
FIXTURE_VARIANT_ADD(most, small_ranges) { "small ranges", take_small_ranges };
FIXTURE_VARIANT_ADD(most, large_ranges) { "large ranges", take_large_ranges };
FIXTURE_VARIANT_ADD(most, rings) { "rings", take_rings };
FIXTURE_VARIANT_ADD(most, pins) { "pins", take_pins };
FIXTURE_VARIANT_ADD(most, all) { "all of them", take_all_kinds };

FIXTURE_SETUP(most)
{
	ASSERT_EQ(0, geteuid());
	self->was = sysfs_read(USER_CAP);
	self->cap = 64 * KiB;
	/* At the usual cap; a kernel that checks itself takes too long for that. */
	EXPECT_EQ(self->cap, self->was);
	if (slow_kernel())
		self->cap /= 16;
	ASSERT_EQ(0, sysfs_set(USER_CAP, self->cap));
	/* Before pins have taken so much, their own cap would end it. */
	self->pinned = sysfs_read(PINNED_CAP);
	ASSERT_EQ(0, sysfs_set(PINNED_CAP, UINT32_MAX));
	self->bytes = sysfs_read("stats/bytes");
}

FIXTURE_TEARDOWN(most)
{
	EXPECT_EQ(0, sysfs_set(USER_CAP, self->was));
	EXPECT_EQ(0, sysfs_set(PINNED_CAP, self->pinned));
	EXPECT_TRUE(EVENTUALLY(sysfs_read("stats/bytes") == self->bytes));
}

/* Does not return. */
static void be_taker(struct turns *t, take take, long cap)
{
	const struct rlimit files = { MAX_FILES + 64, MAX_FILES + 64 };
	const struct rlimit locked = { RLIM_INFINITY, RLIM_INFINITY };
	static struct taker taker;

	turns_in_child(t);
	taker = (struct taker){
		.next = (uintptr_t)FAR,
		.stop = cap * KiB,
		.groups = cap * PIN_GROUPS / (64 * KiB),
	};
	CHILD_CHECK(!setrlimit(RLIMIT_NOFILE, &files));
	CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &locked));
	CHILD_CHECK(!setresuid(USER, USER, USER));
	CHILD_CHECK(take_context(&taker));
	take(&taker);
	CHILD_CHECK(turn_pass(t->to_parent[1]));
	turn_wait(t->to_child[0]);
	_exit(0);
}

TEST_F(most, taken)
{
	struct memory before, now;
	struct turns t;
	long kernel, used;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	before = memory_now();
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		be_taker(&t, variant->take, self->cap);
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	now = memory_now();
	used = (sysfs_read("stats/bytes") - self->bytes) / (long)KiB;
	kernel = now.slab - before.slab + now.vmalloc - before.vmalloc +
		 now.percpu - before.percpu;
	TH_LOG("%s: %ld KiB charged of %ld; the kernel has %ld KiB more (slab %ld, vmalloc %ld, percpu %ld), available %ld less",
	       variant->what, used, self->cap, kernel, now.slab - before.slab,
	       now.vmalloc - before.vmalloc, now.percpu - before.percpu,
	       before.available - now.available);
	/* It did take nearly all that it may, and no more. */
	EXPECT_LT(self->cap * 15 / 16, used);
	EXPECT_GE(self->cap, used);
	EXPECT_LT(0, kernel);
	EXPECT_GT((long)(FACTOR * self->cap), kernel);
	EXPECT_GT(FACTOR_ALL * self->cap, before.available - now.available);
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
}

TEST_HARNESS_MAIN
