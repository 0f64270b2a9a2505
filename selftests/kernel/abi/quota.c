// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Kernel memory that users may have: caps/user_kb for each, caps/total_kb for all
 * of them. What is charged is given back, what is refused changes nothing, and what one
 * user really takes at the usual caps is bounded. quota_users.c has what many users
 * leave to others.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <sys/resource.h>

#define PAGES		8
#define SIZE		(PAGES * page_size())
#define USER_CAP	"caps/user_kb"
#define TOTAL_CAP	"caps/total_kb"

static long all_bytes(void)
{
	return sysfs_read("stats/bytes");
}

/* Of the user of the context, as INFO says. */
static long used_bytes(int fd)
{
	struct hetmem_cmd_info info;
	int ret = hm_info(fd, &info);

	return ret ? ret : (long)info.used_bytes;
}

FIXTURE(quota)
{
	long user_kb, total_kb, bytes;
	int cap;	/* of one user, for whoever has no right to open it */
};

FIXTURE_SETUP(quota)
{
	ASSERT_EQ(0, geteuid());
	self->user_kb = sysfs_read(USER_CAP);
	self->total_kb = sysfs_read(TOTAL_CAP);
	self->bytes = all_bytes();
	ASSERT_LE(0, self->bytes);
	self->cap = open(SYSFS USER_CAP, O_WRONLY | O_CLOEXEC);
	ASSERT_LE(0, self->cap);
}

/* Whatever a test did, nothing stays charged. */
FIXTURE_TEARDOWN(quota)
{
	close(self->cap);
	EXPECT_EQ(0, sysfs_set(USER_CAP, self->user_kb));
	EXPECT_EQ(0, sysfs_set(TOTAL_CAP, self->total_kb));
	EXPECT_TRUE(EVENTUALLY(all_bytes() == self->bytes)) {
		TH_LOG("%ld bytes, before %ld", all_bytes(), self->bytes);
	}
}

static bool set_cap(int cap, long kb)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%ld", kb);

	return pwrite(cap, text, n, 0) == n;
}

/* Everything that a context can have. */
struct holding {
	int fd;
	char *p;
	struct ring r;
};

static int take_all(struct holding *h)
{
	struct hetmem_cmd_migrate cmd;
	int ret;

	h->p = map_filled(SIZE, 1);
	h->fd = hm_open();
	if (!h->p || h->fd < 0)
		return -1;
	ret = ring_open(h->fd, 64, EVENT(INVALIDATED), &h->r);
	if (!ret)
		ret = hm_track(h->fd, h->p, SIZE);
	if (!ret)
		ret = hm_track(h->fd, FAR, 100 * HUGE_SIZE);
	if (!ret)
		ret = hm_pin(h->fd, h->p, SIZE, HETMEM_PIN_TIMEOUT_MAX, &cmd);
	return ret ? ret : cmd.pinned != PAGES;
}

enum { UNTRACK, UNPIN, UNMAP_RING, UNMAP, CLOSE, NR_WAYS };

static void give_back(struct holding *h, int way)
{
	switch (way) {
	case UNTRACK:
		hm_untrack(h->fd, FAR, 100 * HUGE_SIZE);
		break;
	case UNPIN:
		hm_unpin(h->fd, h->p, SIZE, NULL);
		break;
	case UNMAP_RING:
		ring_close(&h->r);
		break;
	case UNMAP:
		munmap(h->p, SIZE);
		break;
	default:
		close(h->fd);
		h->fd = -1;
	}
}

/* In every order, number @n of them. Return: whether there is one. */
static bool order_of(int n, int *order)
{
	int left[NR_WAYS], nr, i;

	for (i = 0; i < NR_WAYS; i++)
		left[i] = i;
	for (nr = NR_WAYS; nr; nr--) {
		*order++ = left[n % nr];
		left[n % nr] = left[nr - 1];
		n /= nr;
	}
	return !n;
}

TEST_F(quota, given_back_in_every_order)
{
	int order[NR_WAYS], n, i;

	for (n = 0; order_of(n, order); n++) {
		struct holding h;

		ASSERT_EQ(0, take_all(&h));
		ASSERT_LT(self->bytes, all_bytes());
		for (i = 0; i < NR_WAYS; i++)
			give_back(&h, order[i]);
		ASSERT_EQ(self->bytes, all_bytes()) {
			TH_LOG("order %d", n);
		}
		ASSERT_EQ(0, vm_pin());
	}
	EXPECT_EQ(120, n);
}

enum end { EXITS, IS_KILLED, EXECUTES, LEAVES_IT_TO_A_CHILD, NR_ENDS };

#define EXECUTED "HETMEM_TEST_EXECUTED"

__attribute__((constructor)) static void executed(void)
{
	if (getenv(EXECUTED))
		_exit(0);
}

TEST_F(quota, given_back_at_the_end)
{
	struct holding h;
	enum end end;
	pid_t pid;

	for (end = 0; end < NR_ENDS; end++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			CHILD_CHECK(!take_all(&h) && !take_all(&h));
			switch (end) {
			case IS_KILLED:
				kill(getpid(), SIGKILL);
				break;
			case EXECUTES:
				setenv(EXECUTED, "1", 1);
				execl("/proc/self/exe", "quota", NULL);
				break;
			case LEAVES_IT_TO_A_CHILD:
				if (!fork())
					/* time: it outlives its parent */
					usleep(20000);
				break;
			default:
				break;
			}
			_exit(0);
		}
		EXPECT_EQ(end == IS_KILLED ? 128 + SIGKILL : 0,
			  child_status(pid));
		EXPECT_TRUE(EVENTUALLY(all_bytes() == self->bytes)) {
			TH_LOG("end %d", end);
		}
	}
}

/* What is documented of how much each thing takes. */
TEST_F(quota, sizes)
{
	const size_t tib = 1UL << 40;
	long before, now;
	struct ring r;
	int fd, other;

	fd = hm_open();
	ASSERT_LE(0, fd);
	now = used_bytes(fd);
	EXPECT_EQ(all_bytes() - self->bytes, now);
	/* With the address space, for which its first context pays. */
	EXPECT_LT(94 * (long)KiB, now);
	/* Locks of a kernel that checks them are larger. */
	EXPECT_GE((slow_kernel() ? 106 : 98) * (long)KiB, now);
	before = now;
	other = hm_open();
	ASSERT_LE(0, other);
	now = used_bytes(fd);
	EXPECT_LT(93 * (long)KiB, now - before);
	EXPECT_GE((slow_kernel() ? 98 : 94) * (long)KiB, now - before);
	close(other);
	EXPECT_EQ(before, used_bytes(fd));
	ASSERT_EQ(0, hm_track(fd, FAR, page_size()));
	now = used_bytes(fd);
	EXPECT_EQ(256, now - before);
	/* The allocator has nothing between 256 and 512 bytes. */
	before = now;
	ASSERT_EQ(0, hm_track(fd, FAR + HUGE_SIZE, 6 * HUGE_SIZE));
	now = used_bytes(fd);
	EXPECT_EQ(512, now - before);
	before = now;
	ASSERT_EQ(0, hm_track(fd, FAR + tib, tib));
	now = used_bytes(fd);
	/* Whole pages. */
	EXPECT_LE((long)(tib / HUGE_SIZE * 33 / 4), now - before);
	EXPECT_GE((long)(tib / HUGE_SIZE * 33 / 4) + 260 + page_size(), now - before);
	EXPECT_EQ(0, (now - before) % (long)page_size());
	before = now;
	ASSERT_EQ(0, ring_open(fd, 256, EVENT(HINT), &r));
	now = used_bytes(fd);
	EXPECT_LE(256 * 64 + 4096, now - before);
	EXPECT_GE(256 * 64 + 4096 + 260, now - before);
	ring_close(&r);
	close(fd);
}

/* What a refused command may not have changed. */
struct state {
	long all, used, pins;
	unsigned int ranges;
	struct hetmem_list_entry entry;
};

static bool state_get(int fd, struct state *s)
{
	struct hetmem_cmd_info info;

	memset(s, 0, sizeof(*s));
	if (hm_info(fd, &info) || hm_list(fd, &s->entry, 1) != 1)
		return false;
	s->all = all_bytes();
	s->used = info.used_bytes;
	s->ranges = info.nr_ranges;
	s->pins = vm_pin();
	return true;
}

#define REFUSED(call)							\
	do {								\
		struct state before_, now_;				\
									\
		CHILD_CHECK(state_get(fd, &before_));			\
		CHILD_CHECK((call) == -EDQUOT);				\
		CHILD_CHECK(state_get(fd, &now_));			\
		CHILD_CHECK(!memcmp(&before_, &now_, sizeof(now_)));	\
	} while (0)

/* As somebody with no privileges, who has used up his. */
static void hit_cap(int cap, char *p)
{
	struct hetmem_cmd_migrate cmd;
	struct ring r;
	int fd;

	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	/* Not one KiB more; the last one may be begun. */
	CHILD_CHECK(set_cap(cap, used_bytes(fd) / KiB));
	REFUSED(hm_open());
	REFUSED(hm_track(fd, FAR, 4000 * HUGE_SIZE));
	REFUSED(hm_track(fd, FAR, page_size()));
	REFUSED(ring_make(fd, 16, EVENT(HINT), NULL));
	REFUSED(hm_pin(fd, p, SIZE, HETMEM_PIN_TIMEOUT_MAX, &cmd));
	CHILD_CHECK(cmd.pinned == 0 && cmd.walk_end == (uintptr_t)p);
	/* What is wrong is told before what is too much. */
	CHILD_CHECK(ring_make(fd, 17, EVENT(HINT), NULL) == -EINVAL);
	/* Looking at memory takes none that lasts. */
	CHILD_CHECK(pages_of_kind(fd, p, SIZE, HETMEM_HOST) == PAGES);
	/* Room for some of it, then for all of it. */
	CHILD_CHECK(set_cap(cap, used_bytes(fd) / KiB + 2));
	CHILD_CHECK(!hm_track(fd, FAR, page_size()));
	REFUSED(ring_make(fd, 64, EVENT(HINT), NULL));
	CHILD_CHECK(!hm_untrack(fd, FAR, page_size()));
	CHILD_CHECK(set_cap(cap, used_bytes(fd) / KiB + 200));
	CHILD_CHECK(!hm_track(fd, FAR, page_size()));
	REFUSED(hm_track(fd, FAR + HUGE_SIZE, 40000 * HUGE_SIZE));
	CHILD_CHECK(!ring_open(fd, 64, EVENT(HINT), &r));
	CHILD_CHECK(!hm_pin(fd, p, SIZE, HETMEM_PIN_TIMEOUT_MAX, &cmd));
	CHILD_CHECK(cmd.pinned == PAGES);
	CHILD_CHECK(ring_make(fd, 64, EVENT(HINT), NULL) == -EEXIST);
	/* Lowering takes nothing away. */
	CHILD_CHECK(set_cap(cap, 0));
	REFUSED(hm_track(fd, FAR + HUGE_SIZE, page_size()));
	CHILD_CHECK(pages_pinned(fd, p, SIZE) == PAGES);
	CHILD_CHECK(!hm_untrack(fd, FAR, page_size()));
	CHILD_CHECK(!hm_unpin(fd, p, SIZE, NULL));
	_exit(0);
}

TEST_F(quota, refused)
{
	char *p = map_filled(SIZE, 1);
	pid_t pid;

	ASSERT_NE(NULL, p);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		hit_cap(self->cap, p);
	EXPECT_EQ(0, child_status(pid));
	munmap(p, SIZE);
}

/* A caller with CAP_SYS_RESOURCE may have more, and no caller more than all. */
TEST_F(quota, root)
{
	struct hetmem_cmd_info info;
	int fd, other;

	ASSERT_EQ(0, sysfs_set(USER_CAP, 0));
	fd = hm_open();
	ASSERT_LE(0, fd);
	EXPECT_EQ(0, hm_track(fd, FAR, page_size()));
	ASSERT_EQ(0, hm_info(fd, &info));
	EXPECT_EQ(0, info.max_bytes);
	EXPECT_LT(0, info.used_bytes);
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, all_bytes() / KiB));
	EXPECT_EQ(-EDQUOT, hm_open());
	EXPECT_EQ(-EDQUOT, hm_track(fd, FAR + page_size(), 4000 * HUGE_SIZE));
	ASSERT_EQ(0, hm_untrack(fd, FAR, page_size()));
	/* Room for one more. */
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, all_bytes() / KiB + 100));
	other = hm_open();
	EXPECT_LE(0, other);
	EXPECT_EQ(-EDQUOT, hm_open());
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, 0));
	EXPECT_EQ(-EDQUOT, hm_open());
	close(other);
	close(fd);
}

/* A user who opens contexts, as many as he gets, whenever he is asked to. */
struct opener {
	struct turns t;
	pid_t pid;
};

static int opener_start(struct opener *o, uid_t uid)
{
	int n, fd;

	if (turns_init(&o->t))
		return -errno;
	o->pid = fork();
	if (o->pid)
		return turns_in_parent(&o->t), o->pid < 0 ? -errno : 0;
	turns_in_child(&o->t);
	CHILD_CHECK(!setresuid(uid, uid, uid));
	while (turn_wait(o->t.to_child[0])) {
		for (n = 0; (fd = hm_open()) >= 0; n++)
			;
		CHILD_CHECK(fd == -EDQUOT);
		CHILD_CHECK(write(o->t.to_parent[1], &n, sizeof(n)) == sizeof(n));
	}
	_exit(0);
}

/* Contexts that it opens, until it is refused. */
static int opener_opens(struct opener *o)
{
	int n = -1;

	if (!turn_pass(o->t.to_child[1]) ||
	    read(o->t.to_parent[0], &n, sizeof(n)) != sizeof(n))
		return -1;
	return n;
}

/* It would not see the end of its pipe, which others have as well. */
static bool opener_end(struct opener *o)
{
	kill(o->pid, SIGKILL);
	close(o->t.to_child[1]);
	close(o->t.to_parent[0]);
	return child_status(o->pid) == 128 + SIGKILL;
}

TEST_F(quota, two_users)
{
	struct opener one, same, other;
	int n;

	ASSERT_EQ(0, sysfs_set(USER_CAP, KiB));
	ASSERT_EQ(0, opener_start(&one, 1001));
	ASSERT_EQ(0, opener_start(&same, 1001));
	ASSERT_EQ(0, opener_start(&other, 1002));
	n = opener_opens(&one);
	EXPECT_LT(5, n);
	/* Its processes have it together, others have their own. */
	EXPECT_EQ(0, opener_opens(&same));
	EXPECT_TRUE(opener_end(&one));
	EXPECT_EQ(n, opener_opens(&same));
	EXPECT_EQ(n, opener_opens(&other));
	EXPECT_TRUE(opener_end(&other));
	/* Little is left in all: of that each has one, however many they are. */
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, all_bytes() / KiB + 300));
	ASSERT_EQ(0, opener_start(&other, 1002));
	EXPECT_EQ(1, opener_opens(&other));
	ASSERT_EQ(0, opener_start(&one, 1003));
	EXPECT_EQ(1, opener_opens(&one));
	ASSERT_EQ(0, sysfs_set(TOTAL_CAP, self->total_kb));
	EXPECT_TRUE(opener_end(&same));
	EXPECT_EQ(n - 1, opener_opens(&one));
	EXPECT_TRUE(opener_end(&one));
	EXPECT_TRUE(opener_end(&other));
}

/* Processes of one user at once get no more than there is, even for a moment. */
TEST_F(quota, race)
{
	struct opener o[4];
	int i, n = 0, one;

	ASSERT_EQ(0, sysfs_set(USER_CAP, KiB));
	ASSERT_EQ(0, opener_start(&o[0], 1001));
	one = opener_opens(&o[0]);
	EXPECT_TRUE(opener_end(&o[0]));
	ASSERT_TRUE(EVENTUALLY(all_bytes() == self->bytes));
	for (i = 0; i < 4; i++)
		ASSERT_EQ(0, opener_start(&o[i], 1001));
	for (i = 0; i < 4; i++)
		turn_pass(o[i].t.to_child[1]);
	for (i = 0; i < 4; i++) {
		int got = -1;

		EXPECT_EQ((ssize_t)sizeof(got),
			  read(o[i].t.to_parent[0], &got, sizeof(got)));
		n += got;
	}
	EXPECT_EQ(one, n);
	for (i = 0; i < 4; i++)
		EXPECT_TRUE(opener_end(&o[i]));
}

TEST_HARNESS_MAIN
