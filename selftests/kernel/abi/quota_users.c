// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What users leave to each other of the module's memory, caps/total_kb: however many
 * take all they can get, root and every other user can work. A user in namespaces is
 * one user, for kernel memory and for hints.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#define USER_CAP	"caps/user_kb"
#define TOTAL_CAP	"caps/total_kb"
#define TAKER_UID	2000
#define SUB_UID		100000
#define NR_SUB_UIDS	8

#define TiB		(1UL << 40)

/* Tracked, this many bytes cost about 4 KiB, 1 MiB. */
#define COSTS_4K	(500 * HUGE_SIZE)
#define COSTS_1M	(127000 * HUGE_SIZE)

/* A process of a user. Its last words are a number. */
struct holder {
	struct turns t;
	pid_t pid;
};

/* Return: 0 in the child, which then is @uid, else its pid. */
static pid_t holder_start(struct holder *h, uid_t uid)
{
	if (turns_init(&h->t))
		return -errno;
	h->pid = fork();
	if (h->pid) {
		turns_in_parent(&h->t);
		return h->pid;
	}
	turns_in_child(&h->t);
	CHILD_CHECK(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid));
	prctl(PR_SET_DUMPABLE, 1);
	return 0;
}

/* Reports @result, keeps what it has until holder_end(). */
__attribute__((noreturn)) static void holder_keep(struct holder *h, long result)
{
	CHILD_CHECK(write(h->t.to_parent[1], &result, sizeof(result)) == sizeof(result));
	turn_wait(h->t.to_child[0]);
	_exit(0);
}

static long holder_result(const struct holder *h)
{
	long result;

	return read(h->t.to_parent[0], &result, sizeof(result)) == sizeof(result) ?
		result : -EIO;
}

static int holder_end(struct holder *h)
{
	turn_pass(h->t.to_child[1]);
	close(h->t.to_child[1]);
	close(h->t.to_parent[0]);
	return child_status(h->pid);
}

static long used_bytes(int fd)
{
	struct hetmem_cmd_info info;
	int ret = hm_info(fd, &info);

	return ret ? ret : (long)info.used_bytes;
}

/* Takes all that it can get. Return: bytes. */
static long take_all(void)
{
	uint64_t at = (uintptr_t)FAR, size = 8 * TiB;
	int fd = hm_open(), ret;

	if (fd < 0)
		return fd;
	while (size >= HUGE_SIZE) {
		ret = hm_track(fd, (void *)at, size);
		CHILD_CHECK(!ret || ret == -EDQUOT);
		if (ret)
			size /= 2;
		else
			at += size;
	}
	CHILD_CHECK(hm_open() == -EDQUOT);
	return used_bytes(fd);
}

/* What a user needs to work: memory that is tracked, and a ring. */
static long work(void)
{
	int fd = hm_open(), ret;

	if (fd < 0)
		return fd;
	ret = hm_track(fd, FAR, COSTS_4K);
	if (!ret)
		ret = ring_make(fd, 64, ALL_EVENTS, NULL);
	return ret ? ret : used_bytes(fd);
}

FIXTURE(users)
{
	long user_kb, total_kb, bytes;
};

FIXTURE_VARIANT(users)
{
	int nr;		/* users who take all they can */
	long cap;	/* of each, in KiB */
	long total;	/* of all */
};

FIXTURE_VARIANT_ADD(users, four) { 4, 4096, 16384 };
FIXTURE_VARIANT_ADD(users, six) { 6, 8192, 16384 };
FIXTURE_VARIANT_ADD(users, no_cap_for_one) { 3, 1 << 30, 8192 };
FIXTURE_VARIANT_ADD(users, many) { 20, 1024, 4096 };
FIXTURE_VARIANT_ADD(users, nothing_for_all) { 2, 4096, 0 };

FIXTURE_SETUP(users)
{
	ASSERT_EQ(0, geteuid());
	self->user_kb = sysfs_read(USER_CAP);
	self->total_kb = sysfs_read(TOTAL_CAP);
	self->bytes = sysfs_read("stats/bytes");
	ASSERT_EQ(0, sysfs_set(USER_CAP, variant->cap));
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, variant->total));
}

FIXTURE_TEARDOWN(users)
{
	EXPECT_EQ(0, sysfs_set(USER_CAP, self->user_kb));
	EXPECT_EQ(0, sysfs_set(TOTAL_CAP, self->total_kb));
	EXPECT_TRUE(EVENTUALLY(sysfs_read("stats/bytes") == self->bytes));
}

/* Those who take all leave enough to root, and to users who come later. */
TEST_F(users, leave_to_others)
{
	const long total = variant->total * (long)KiB;
	struct holder takers[20], late[3];
	long got, before = variant->cap * (long)KiB, sum = 0;
	int i, fd;

	for (i = 0; i < variant->nr; i++) {
		if (!holder_start(&takers[i], TAKER_UID + i))
			holder_keep(&takers[i], take_all());
		got = holder_result(&takers[i]);
		TH_LOG("user %d: %ld KiB", i, got / (long)KiB);
		ASSERT_LT(0, got);
		/* The later, the less; and never nothing. */
		EXPECT_GE(before + 4096, got);
		before = got;
		sum += got;
		EXPECT_GE(variant->cap * (long)KiB, got);
	}
	/* Beyond the part that is not root's there are only the first bytes of each. */
	EXPECT_GE(total - total / 8 + variant->nr * 128 * (long)KiB, sum);

	for (i = 0; i < 3; i++) {
		if (!holder_start(&late[i], TAKER_UID + 100 + i))
			holder_keep(&late[i], work());
		EXPECT_LT(0, holder_result(&late[i]));
	}
	fd = hm_open();
	EXPECT_LE(0, fd);
	/* Root's part is an eighth. */
	EXPECT_EQ(total >= 8 * (long)MiB ? 0 : -EDQUOT,
		  hm_track(fd, FAR, COSTS_1M));
	EXPECT_EQ(0, hm_track(fd, FAR + TiB, COSTS_4K));
	close(fd);
	for (i = 0; i < 3; i++)
		EXPECT_EQ(0, holder_end(&late[i]));
	for (i = 0; i < variant->nr; i++)
		EXPECT_EQ(0, holder_end(&takers[i]));
}

FIXTURE(namespaces)
{
	long user_kb;
	struct holder outer;	/* keeps the namespace, and opens the first context */
};

FIXTURE_VARIANT(namespaces)
{
	uid_t owner;
	bool nested;
};

FIXTURE_VARIANT_ADD(namespaces, user) { 1001, false };
FIXTURE_VARIANT_ADD(namespaces, user_nested) { 1001, true };
FIXTURE_VARIANT_ADD(namespaces, root) { 0, false };

static int map_uids(pid_t pid, uid_t owner)
{
	char path[64], map[64];
	int ret;

	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	snprintf(map, sizeof(map), "0 %u 1\n1 %u %u\n", owner, SUB_UID, NR_SUB_UIDS);
	ret = write_text(path, map);
	snprintf(path, sizeof(path), "/proc/%d/gid_map", pid);
	snprintf(map, sizeof(map), "0 %u 1\n", owner);
	return ret ? ret : write_text(path, map);
}

/* In the namespace, a process of its own for each uid. */
static pid_t subuser_start(struct holder *h, uid_t uid, bool nested)
{
	pid_t pid;

	if (turns_init(&h->t))
		return -errno;
	pid = h->pid = fork();
	if (pid) {
		turns_in_parent(&h->t);
		return pid;
	}
	turns_in_child(&h->t);
	CHILD_CHECK(!setresuid(uid, uid, uid));
	if (nested)
		CHILD_CHECK(!unshare(CLONE_NEWUSER));
	return 0;
}

/* Opens contexts until it is refused. */
static long open_all(void)
{
	long n = 0;
	int fd;

	while ((fd = hm_open()) >= 0)
		n++;
	CHILD_CHECK(fd == -EDQUOT);
	return n;
}

/*
 * In the namespace of its own: each uid sees in INFO what all of them use, and what
 * one has taken no other gets.
 */
static void in_namespace(struct holder *outer, bool nested)
{
	struct holder sub[3];
	long used[3];
	int i, fd;

	CHILD_CHECK(!unshare(CLONE_NEWUSER));
	CHILD_CHECK(turn_pass(outer->t.to_parent[1]) && turn_wait(outer->t.to_child[0]));
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	for (i = 0; i < 3; i++) {
		if (!subuser_start(&sub[i], 1 + i, nested))
			holder_keep(&sub[i], work());
		used[i] = holder_result(&sub[i]);
		CHILD_CHECK(used[i] == used_bytes(fd));
		CHILD_CHECK(!i || used[i] > used[i - 1] + 90 * (long)KiB);
	}
	for (i = 0; i < 3; i++)
		CHILD_CHECK(!holder_end(&sub[i]));
	/* One takes all there is; the next has none of its own. */
	for (i = 0; i < 2; i++) {
		if (!subuser_start(&sub[i], 4 + i, nested))
			holder_keep(&sub[i], open_all());
		used[i] = holder_result(&sub[i]);
	}
	fprintf(stderr, "# %ld contexts, then %ld\n", used[0], used[1]);
	CHILD_CHECK(used[0] > 5 && used[1] == 0);
	for (i = 0; i < 2; i++)
		CHILD_CHECK(!holder_end(&sub[i]));
	holder_keep(outer, used_bytes(fd));
}

FIXTURE_SETUP(namespaces)
{
	ASSERT_EQ(0, geteuid());
	self->user_kb = sysfs_read(USER_CAP);
	ASSERT_EQ(0, sysfs_set(USER_CAP, KiB));
	if (!holder_start(&self->outer, variant->owner))
		in_namespace(&self->outer, variant->nested);
	ASSERT_TRUE(turn_wait(self->outer.t.to_parent[0]));
	ASSERT_EQ(0, map_uids(self->outer.pid, variant->owner));
	ASSERT_TRUE(turn_pass(self->outer.t.to_child[1]));
}

FIXTURE_TEARDOWN(namespaces)
{
	EXPECT_EQ(0, holder_end(&self->outer));
	EXPECT_EQ(0, sysfs_set(USER_CAP, self->user_kb));
}

TEST_F(namespaces, count_as_their_owner)
{
	struct holder owner, other;
	long inside = holder_result(&self->outer), used;
	int fd;

	ASSERT_LT(0, inside);
	/* The owner outside of the namespace has the same account, others have not. */
	if (!holder_start(&owner, variant->owner))
		holder_keep(&owner, work());
	used = holder_result(&owner);
	EXPECT_LT(inside + 90 * (long)KiB, used);
	if (!holder_start(&other, 1002))
		holder_keep(&other, work());
	EXPECT_GT(inside + 90 * (long)KiB, holder_result(&other));
	EXPECT_EQ(0, holder_end(&owner));
	EXPECT_EQ(0, holder_end(&other));
	/* Root is no owner of theirs, except where it is. */
	fd = hm_open();
	ASSERT_LE(0, fd);
	EXPECT_EQ(variant->owner == 0, used_bytes(fd) > inside + 90 * (long)KiB);
	close(fd);
}

/* Askers in a namespace: with two uids they may have no more than with one. */
static void ask_in_namespace(struct holder *outer, int fd, const void *p)
{
	struct holder sub[2];
	long ret[2];
	int i;

	CHILD_CHECK(!unshare(CLONE_NEWUSER));
	CHILD_CHECK(turn_pass(outer->t.to_parent[1]) && turn_wait(outer->t.to_child[0]));
	for (i = 0; i < 2; i++) {
		if (!subuser_start(&sub[i], 1 + i, false)) {
			struct asker a;

			/* The first one waits for its answer, which nobody gives. */
			if (i)
				holder_keep(&sub[i], hm_hint(fd, p, page_size(), FOREIGN(0),
							     10, NULL));
			CHILD_CHECK(!asker_start(&a, fd, p, page_size(), FOREIGN(0), NULL));
			holder_keep(&sub[i], 0);
		}
		ret[i] = holder_result(&sub[i]);
		if (!i)
			CHILD_CHECK(turn_pass(outer->t.to_parent[1]) &&
				    turn_wait(outer->t.to_child[0]));
	}
	holder_keep(outer, ret[0] ? ret[0] : ret[1]);
}

TEST(hints_of_a_namespace)
{
	static const unsigned char uuid[16] = "quota_users.c";
	long hints = sysfs_read("caps/max_hints");
	struct holder outer;
	struct hetmem_event e;
	struct ring r;
	char *p = map_filled(page_size(), 1);

	ASSERT_NE(NULL, p);
	r.fd = hm_open();
	ASSERT_LE(0, r.fd);
	ASSERT_EQ(0, ring_open(r.fd, 64, EVENT(HINT), &r));
	ASSERT_EQ(0, hm_bind(r.fd, FOREIGN(0), HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, hm_allow(r.fd, HETMEM_ALLOW_HINTS));
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	if (!holder_start(&outer, 1001))
		ask_in_namespace(&outer, r.fd, p);
	ASSERT_TRUE(turn_wait(outer.t.to_parent[0]));
	ASSERT_EQ(0, map_uids(outer.pid, 1001));
	ASSERT_TRUE(turn_pass(outer.t.to_child[1]));
	/* The first one's hint is there: now the second one asks. */
	ASSERT_TRUE(turn_wait(outer.t.to_parent[0]));
	EXPECT_TRUE(ring_wait(&r, &e, FOREVER_MS));
	ASSERT_TRUE(turn_pass(outer.t.to_child[1]));
	EXPECT_EQ(-EAGAIN, holder_result(&outer));
	EXPECT_EQ(0, hm_complete(r.fd, e.data, 0, 0));
	EXPECT_EQ(0, holder_end(&outer));
	EXPECT_EQ(0, sysfs_set("caps/max_hints", hints));
	ring_close(&r);
	close(r.fd);
	munmap(p, page_size());
}

TEST_HARNESS_MAIN
