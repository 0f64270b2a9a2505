// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the kernel's own test of a device that mirrors memory covers, for
 * this one; the part where pages move. The other part is emu_hmm.c. Upstream
 * name, and where it is here:
 *
 *	migrate			kind.migrate
 *	migrate_file_private	kind.migrate, variants file_read, file_cow
 *	migrate_fault		kind.migrate_fault
 *	migrate_release		migrate_release: what that ioctl does, the
 *				device giving back all it has, is EVICT here;
 *				with rmmod in emu_modules
 *	migrate_shared		kind.migrate, variants shared_anon and memfd
 *	migrate_mixed		migrate_mixed
 *	migrate_multiple	kind.migrate_multiple
 *	snapshot		snapshot
 *	compound		residency: kind.*, variants hugetlb and thp
 *	gup_test		get_user_pages: the test module that upstream
 *				asks is not for us to load; the same pages are
 *				taken by what takes them in life: vmsplice,
 *				another process's memory, futexes, and
 *				direct input where there is a file system
 *	hmm_cow_in_device	cow_in_device
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <linux/futex.h>

FIXTURE(kind)
{
	struct rig rig;
	struct emu *dev;
	struct mem m;
	long pages, move;	/* of the memory; of them, what can move */
};

FIXTURE_VARIANT(kind)
{
	enum mem_kind kind;
	int dev;
};

FIXTURE_VARIANT_ADD(kind, anon) { .kind = MEM_ANON };
FIXTURE_VARIANT_ADD(kind, anon_second) { .kind = MEM_ANON, .dev = 1 };
FIXTURE_VARIANT_ADD(kind, file_read) { .kind = MEM_FILE_READ };
FIXTURE_VARIANT_ADD(kind, file_cow) { .kind = MEM_FILE_COW };
FIXTURE_VARIANT_ADD(kind, file_shared) { .kind = MEM_FILE_SHARED };
FIXTURE_VARIANT_ADD(kind, shared_anon) { .kind = MEM_SHARED_ANON };
FIXTURE_VARIANT_ADD(kind, memfd) { .kind = MEM_MEMFD };
FIXTURE_VARIANT_ADD(kind, thp) { .kind = MEM_THP };
FIXTURE_VARIANT_ADD(kind, thp_second) { .kind = MEM_THP, .dev = 1 };
FIXTURE_VARIANT_ADD(kind, hugetlb) { .kind = MEM_HUGETLB };
FIXTURE_VARIANT_ADD(kind, mlocked) { .kind = MEM_MLOCKED };

FIXTURE_SETUP(kind)
{
	int ret;

	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[variant->dev];
	ret = mem_map(&self->m, variant->kind, mem_is_huge(variant->kind) ?
		      HUGE_SIZE : self->rig.size, 1);
	if (ret == -EOPNOTSUPP)
		SKIP(return, "kernel lacks %s", self->m.lacks);
	ASSERT_EQ(0, ret) {
		mem_unmap(&self->m);
	}
	self->pages = self->m.size / page_size();
	self->move = mem_moves(variant->kind) ? self->pages : 0;
	ASSERT_EQ(0, hm_track(self->rig.fd, self->m.p, self->m.size));
}

FIXTURE_TEARDOWN(kind)
{
	mem_unmap(&self->m);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/* There, seen there by everybody who counts, and back by request. */
TEST_F(kind, migrate)
{
	struct hetmem_emu_cmd_info before, info;
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_stats st;

	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ(self->move, move_to(self->rig.fd, self->m.p, self->m.size,
				      self->dev->loc, &cmd));
	EXPECT_EQ(self->move, cmd.moved);
	EXPECT_EQ(0, cmd.already);
	EXPECT_EQ(self->pages - self->move, cmd.not_moved);
	if (!self->move) {
		EXPECT_EQ((uintptr_t)self->m.p, cmd.why_addr);
		EXPECT_EQ(mem_why(variant->kind), cmd.why);
	}
	EXPECT_EQ(self->move, pages_at(self->rig.fd, self->m.p, self->m.size,
				       self->dev->loc));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(self->move, info.used);
	EXPECT_EQ(before.to_device + self->move, info.to_device);
	ASSERT_EQ(0, hm_stats(self->rig.fd, self->m.p, &st));
	EXPECT_EQ(self->move, st.to_device);
	EXPECT_EQ(0, st.to_host);
	EXPECT_LE(self->pages - self->move, st.failed);

	EXPECT_TRUE(emu_sees(self->dev, 0, self->m.p, self->m.size, 1));
	EXPECT_EQ(self->move, pages_at(self->rig.fd, self->m.p, self->m.size,
				       self->dev->loc));

	EXPECT_EQ(self->pages, move_to(self->rig.fd, self->m.p, self->m.size,
				       ANY_HOST, &cmd));
	EXPECT_EQ(self->move, cmd.moved);
	EXPECT_EQ(self->pages - self->move, cmd.already);
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(0, info.used);
	EXPECT_EQ(before.to_host + self->move, info.to_host);
	EXPECT_EQ(before.cpu_faults, info.cpu_faults);
	EXPECT_EQ(before.evicted, info.evicted);
	ASSERT_EQ(0, hm_stats(self->rig.fd, self->m.p, &st));
	EXPECT_EQ(self->move, st.to_host);
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

/* Faults bring half of it back; then the mixture goes again. */
TEST_F(kind, migrate_fault)
{
	size_t half = fault_window_end(self->m.p + self->m.size / 2) -
		      self->m.p;
	struct hetmem_emu_cmd_info before, info;
	struct hetmem_cmd_migrate cmd;
	long back;

	ASSERT_LT(half, self->m.size);
	back = self->move ? half / page_size() : 0;
	ASSERT_EQ(self->move, to_device(self->rig.fd, self->dev, self->m.p,
					self->m.size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ(-1, mismatch(self->m.p, half, 1));
	EXPECT_EQ(self->move - back,
		  pages_at(self->rig.fd, self->m.p, self->m.size,
			   self->dev->loc));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(self->move - back, info.used);
	EXPECT_EQ(self->move > 0, info.cpu_faults > before.cpu_faults);

	EXPECT_EQ(self->move, move_to(self->rig.fd, self->m.p, self->m.size,
				      self->dev->loc, &cmd));
	EXPECT_EQ(self->move - back, cmd.already);
	EXPECT_EQ(back, cmd.moved);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->m.p, self->m.size, 1));
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
	EXPECT_EQ(0, pages_at(self->rig.fd, self->m.p, self->m.size,
			      self->dev->loc));
}

/* By writing, which must not lose what was there. */
TEST_F(kind, migrate_fault_by_writing)
{
	volatile uint64_t *w = (void *)self->m.p;
	size_t step = page_size() / sizeof(*w), i;

	if (variant->kind == MEM_FILE_READ)
		return;
	ASSERT_EQ(self->move, to_device(self->rig.fd, self->dev, self->m.p,
					self->m.size));
	for (i = 0; i < self->m.size / sizeof(*w); i += step)
		w[i] ^= 0xff;
	for (i = 0; i < self->m.size / sizeof(*w); i += step)
		w[i] ^= 0xff;
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
	EXPECT_EQ(0, pages_at(self->rig.fd, self->m.p, self->m.size,
			      self->dev->loc));
}

TEST_F(kind, migrate_multiple)
{
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		ASSERT_EQ(self->move, to_device(self->rig.fd, self->dev,
						self->m.p, self->m.size));
		if (i & 1)
			ASSERT_EQ(self->pages,
				  to_host(self->rig.fd, self->m.p,
					  self->m.size));
		ASSERT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
	}
}

/* The device changes what it has; the CPU sees it, and the other device. */
TEST_F(kind, written_there)
{
	struct emu *other = &self->rig.dev[!variant->dev];

	if (variant->kind == MEM_FILE_READ)
		return;
	ASSERT_EQ(self->move, to_device(self->rig.fd, self->dev, self->m.p,
					self->m.size));
	ASSERT_EQ(0, emu_fill(self->dev, 0, self->m.p, self->m.size, 2));
	EXPECT_EQ(self->move, pages_at(self->rig.fd, self->m.p, self->m.size,
				       self->dev->loc));
	EXPECT_EQ(self->move, to_device(self->rig.fd, other, self->m.p,
					self->m.size));
	EXPECT_EQ(self->move, pages_at(self->rig.fd, self->m.p, self->m.size,
				       other->loc));
	EXPECT_EQ(0, pages_at(self->rig.fd, self->m.p, self->m.size,
			      self->dev->loc));
	EXPECT_TRUE(emu_sees(other, 0, self->m.p, self->m.size, 2));
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 2));
}

FIXTURE(emu)
{
	struct rig rig;
	struct emu *dev;
	int hm;
};

FIXTURE_SETUP(emu)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
}

FIXTURE_TEARDOWN(emu)
{
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)	(p + (n) * page_size())

/* The device gives back all that it has: EVICT as much as it holds. */
TEST_F(emu, migrate_release)
{
	size_t size = self->rig.size;
	char *p = map_filled(size, 1);
	struct hetmem_emu_cmd_info info;
	uint64_t evicted = 0;
	int i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ((long)(size / page_size()),
		  to_device(self->hm, self->dev, p, size));
	for (i = 0; i < MOVE_TRIES; i++) {
		uint64_t more;

		ASSERT_EQ(0, emu_evict(self->dev, size / page_size(), &more));
		evicted += more;
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		if (!info.used)
			break;
	}
	EXPECT_EQ(size / page_size(), evicted);
	EXPECT_EQ((long)(size / page_size()),
		  pages_of_kind(self->hm, p, size, HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(p, size, 1));
	munmap(p, size);
}

/* Memory of every kind in one small range, to one device and the other. */
static char *make_mixture(void)
{
	char *p = mmap(NULL, 7 * page_size(), PROT_NONE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, 7 * page_size(), MADV_NOHUGEPAGE);
	/* 0: no access; 1: a hole */
	munmap(PAGE(1), page_size());
	/* 2: zero page, read-only */
	mprotect(PAGE(2), page_size(), PROT_READ);
	if (!all_zero(PAGE(2), page_size()))
		return NULL;
	/* 3: read-only; 4 to 6: read and write */
	mprotect(PAGE(3), 4 * page_size(), PROT_READ | PROT_WRITE);
	fill(PAGE(3), 4 * page_size(), 3);
	mprotect(PAGE(3), page_size(), PROT_READ);
	return p;
}

TEST_F(emu, migrate_mixed)
{
	char *p = make_mixture();
	struct emu *other = &self->rig.dev[1];
	struct hetmem_cmd_migrate cmd;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(5, move_to(self->hm, p, 7 * page_size(), other->loc, &cmd));
	EXPECT_EQ(2, cmd.not_moved);
	EXPECT_EQ((uintptr_t)p, cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, cmd.why);
	EXPECT_EQ(5, pages_at(self->hm, p, 7 * page_size(), other->loc));
	/* From device to device, one page of them. */
	EXPECT_EQ(1, to_device(self->hm, self->dev, PAGE(5), page_size()));
	EXPECT_EQ(1, pages_at(self->hm, p, 7 * page_size(), self->dev->loc));
	EXPECT_EQ(4, pages_at(self->hm, p, 7 * page_size(), other->loc));
	EXPECT_TRUE(emu_sees(self->dev, 0, PAGE(3), 4 * page_size(), 3));
	EXPECT_TRUE(all_zero(PAGE(2), page_size()));
	EXPECT_EQ(-1, mismatch(PAGE(3), 4 * page_size(), 3));
	munmap(p, 7 * page_size());
}

TEST_F(emu, snapshot)
{
	char *p = make_mixture();
	struct emu *other = &self->rig.dev[1];
	struct view v;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(1, to_device(self->hm, self->dev, PAGE(5), page_size()));
	ASSERT_EQ(1, to_device(self->hm, other, PAGE(6), page_size()));
	ASSERT_EQ(0, view_take(self->hm, p, 7 * page_size(), &v));
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, view_at(&v, PAGE(0))->why);
	EXPECT_EQ(HETMEM_LOC(HETMEM_UNMAPPED, 0),
		  view_at(&v, PAGE(1))->location);
	EXPECT_EQ(HETMEM_LOC(HETMEM_ZERO, 0), view_at(&v, PAGE(2))->location);
	EXPECT_EQ(2, view_kind(&v, HETMEM_HOST));
	EXPECT_EQ(self->dev->loc, view_at(&v, PAGE(5))->location);
	EXPECT_EQ(other->loc, view_at(&v, PAGE(6))->location);
	view_free(&v);
	EXPECT_EQ(-1, mismatch(PAGE(3), 4 * page_size(), 3));
	munmap(p, 7 * page_size());
}

/* The child keeps what was, the parent writes: each its own page. */
TEST_F(emu, cow_in_device)
{
	size_t size = 4 * page_size();
	char *p = map_filled(size, 1);
	struct turns t;
	pid_t pid;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(4, to_device(self->hm, self->dev, p, size));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(mismatch(p, size, 1) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	fill(p, size, 2);
	EXPECT_EQ(4, pages_of_kind(self->hm, p, size, HETMEM_HOST));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(p, size, 2));
	munmap(p, size);
}

/* Whoever takes pages by their address gets host pages with the contents. */
TEST_F(emu, get_user_pages)
{
	size_t size = 8 * page_size();
	char *p = map_filled(size, 1), *copy = malloc(size);
	struct iovec here = { p, size }, there = { copy, size };
	struct hetmem_cmd_migrate cmd;
	int pipes[2], i;

	ASSERT_TRUE(p && copy);
	/* pin_user_pages_remote(): read and write */
	ASSERT_EQ(8, to_device(self->hm, self->dev, p, size));
	ASSERT_EQ((ssize_t)size, process_vm_readv(getpid(), &there, 1, &here,
						  1, 0));
	EXPECT_EQ(-1, mismatch(copy, size, 1));
	EXPECT_EQ(8, pages_of_kind(self->hm, p, size, HETMEM_HOST));
	fill(copy, size, 2);
	ASSERT_EQ(8, to_device(self->hm, self->dev, p, size));
	ASSERT_EQ((ssize_t)size, process_vm_writev(getpid(), &there, 1, &here,
						   1, 0));
	EXPECT_EQ(-1, mismatch(p, size, 2));

	/* get_user_pages_fast(), and the pages stay in the pipe. */
	ASSERT_EQ(8, to_device(self->hm, self->dev, p, size));
	ASSERT_EQ(0, pipe(pipes));
	ASSERT_EQ((ssize_t)size, vmsplice(pipes[1], &here, 1, 0));
	EXPECT_EQ(8, pages_of_kind(self->hm, p, size, HETMEM_HOST));
	/* Held by the pipe they cannot go, and the answer says so. */
	ASSERT_EQ(0, hm_migrate(self->hm, p, size, self->dev->loc, &cmd));
	EXPECT_EQ(8, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_BUSY, cmd.why);
	EXPECT_EQ((uintptr_t)p, cmd.why_addr);
	memset(copy, 0, size);
	ASSERT_EQ((ssize_t)size, read(pipes[0], copy, size));
	EXPECT_EQ(-1, mismatch(copy, size, 2));
	EXPECT_EQ(8, to_device(self->hm, self->dev, p, size));
	close(pipes[0]);
	close(pipes[1]);

	/* A futex's key is its page. */
	for (i = 0; i < 8; i++)
		EXPECT_EQ(0, syscall(SYS_futex, p + i * page_size(),
				     FUTEX_WAKE, 1, NULL, NULL, 0));
	EXPECT_EQ(-1, mismatch(p, size, 2));
	munmap(p, size);
	free(copy);
}

TEST_HARNESS_MAIN
