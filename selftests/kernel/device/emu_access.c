// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ACCESS, the device's own view of memory: each operation, its arguments,
 * its errors, its faults, and adding by both sides at once. EVICT's and
 * INFO's arguments too.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>

FIXTURE(access)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
	struct hetmem_emu_cmd_access cmd;
};

FIXTURE_VARIANT(access)
{
	uint32_t flags;
};

FIXTURE_VARIANT_ADD(access, over_the_bus) { .flags = 0 };
FIXTURE_VARIANT_ADD(access, migrating) { .flags = HETMEM_EMU_MIGRATE };

FIXTURE_SETUP(access)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->size = 64 * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(access)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)	(self->p + (n) * page_size())
#define ACCESS(op, addr, length, data, value)				\
	emu_access(self->dev, HETMEM_EMU_##op, variant->flags, addr, length, \
		   data, value, &self->cmd)

/* Any alignment, within a page, over one edge, over many. */
TEST_F(access, unaligned)
{
	static const size_t places[][2] = {
		{ 0, 1 }, { 1, 1 }, { 4095, 1 }, { 4095, 2 }, { 7, 4097 },
		{ 1000, 20000 }, { 65535, 65538 }, { 3, 8 },
	};
	unsigned char *model = malloc(self->size), *buf = malloc(self->size);
	size_t i, j;

	ASSERT_TRUE(model && buf);
	memcpy(model, self->p, self->size);
	for (i = 0; i < ARRAY_SIZE(places); i++) {
		size_t at = places[i][0], length = places[i][1];

		for (j = 0; j < length; j++)
			buf[j] = j * 7 + i;
		memcpy(model + at, buf, length);
		ASSERT_EQ(0, ACCESS(WRITE, self->p + at, length, buf, 0));
		memset(buf, 0, length + 8);
		ASSERT_EQ(0, ACCESS(READ, self->p + at, length, buf, 0));
		EXPECT_EQ(0, memcmp(buf, model + at, length));
		EXPECT_EQ(0, buf[length]);
	}
	EXPECT_EQ(0, memcmp(self->p, model, self->size));
	free(model);
	free(buf);
}

TEST_F(access, fill)
{
	const uint64_t value = 0x0123456789abcdefULL;
	uint64_t *w = (uint64_t *)self->p;
	size_t i, first = 100, nr = 3000;

	ASSERT_EQ(0, ACCESS(FILL, w + first, nr * 8, NULL, value));
	for (i = first; i < first + nr; i++)
		ASSERT_EQ(value, w[i]);
	EXPECT_EQ(-1, mismatch(self->p, first * 8, 1));
	EXPECT_EQ(-1, mismatch_at(w + first + nr,
				  self->size - (first + nr) * 8, 1,
				  (first + nr) * 8));
}

TEST_F(access, add)
{
	uint64_t *w = (uint64_t *)self->p;
	size_t i, nr = self->size / 8;

	/* Modulo 2^64, minus one is an operand like any other. */
	ASSERT_EQ(0, ACCESS(ADD, self->p, self->size, NULL, 1000));
	ASSERT_EQ(0, ACCESS(ADD, self->p, self->size, NULL, -1ULL));
	for (i = 0; i < nr; i++)
		ASSERT_EQ(pattern_word(1, i * 8) + 999, w[i]);
}

struct adder {
	pthread_t thread;
	const struct emu *dev;		/* NULL: the CPU adds */
	uint32_t flags;
	uint64_t *w;
	size_t nr;
	int rounds, ret;
};

static void *add_many(void *arg)
{
	struct adder *a = arg;
	size_t j;
	int i;

	for (i = 0; i < a->rounds && !a->ret; i++) {
		if (a->dev) {
			a->ret = emu_access(a->dev, HETMEM_EMU_ADD, a->flags,
					    a->w, a->nr * 8, NULL, 1, NULL);
			/* Memory that is fought for: come again. */
			if (a->ret == -EBUSY) {
				fprintf(stderr, "# ADD: busy\n");
				break;
			}
		} else {
			for (j = 0; j < a->nr; j++)
				__atomic_fetch_add(&a->w[j], 1,
						   __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

/* Two CPUs and both devices count in the same words: no count is lost. */
TEST_F(access, add_by_all_at_once)
{
	const int rounds = test_rounds(160);
	struct adder a[4];
	uint64_t *w = (uint64_t *)self->p;
	size_t i, nr = 5 * page_size() / 8;

	memset(self->p, 0, self->size);
	for (i = 0; i < 4; i++) {
		a[i] = (struct adder){
			.dev = i < 2 ? &self->rig.dev[i] : NULL,
			.flags = variant->flags,
			.w = w, .nr = nr, .rounds = rounds,
		};
		ASSERT_EQ(0, pthread_create(&a[i].thread, NULL, add_many,
					    &a[i]));
	}
	for (i = 0; i < 4; i++) {
		pthread_join(a[i].thread, NULL);
		EXPECT_EQ(0, a[i].ret);
	}
	for (i = 0; i < nr; i++)
		ASSERT_EQ(4 * rounds, w[i]);
}

/* A fault for what is not there, none for what is. */
TEST_F(access, faults)
{
	struct hetmem_emu_cmd_info before, after;
	char buf[8];

	ASSERT_EQ((long)(self->size / page_size()),
		  to_device(self->hm, self->dev, self->p, self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(0, ACCESS(READ, PAGE(3), 8, buf, 0));
	EXPECT_EQ(0, self->cmd.faults);
	ASSERT_EQ(0, ACCESS(ADD, PAGE(3), 8, NULL, 0));
	EXPECT_EQ(0, self->cmd.faults);
	ASSERT_EQ(0, madvise(PAGE(3), page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, ACCESS(READ, PAGE(3), 8, buf, 0));
	EXPECT_EQ(1, self->cmd.faults);
	EXPECT_TRUE(all_zero(buf, 8));
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_EQ(before.device_faults + 1, after.device_faults);
	EXPECT_EQ(before.device_fault_failures, after.device_fault_failures);
}

/* Without the flag nothing moves, with it what was touched is there. */
TEST_F(access, moves_or_not)
{
	char buf[16];

	ASSERT_EQ(0, ACCESS(READ, PAGE(20) - 8, 16, buf, 0));
	EXPECT_EQ(-1, mismatch_at(buf, 16, 1, 20 * page_size() - 8));
	if (variant->flags) {
		EXPECT_EQ(2, pages_at(self->hm, PAGE(19), 2 * page_size(),
				      self->dev->loc));
	} else {
		EXPECT_EQ(0, pages_at(self->hm, self->p, self->size,
				      self->dev->loc));
	}
}

/*
 * The device touches first what a CPU never has, where there is not even a
 * page table yet, and where only the entry is empty.
 */
TEST_F(access, absent_hugetlb)
{
	const size_t gib = 1UL << 30;
	char buf[64], *p;
	struct mem mem;
	int i, ret = mem_map(&mem, MEM_HUGETLB, 2 * HUGE_SIZE, 3);

	if (ret == -EOPNOTSUPP)
		SKIP(goto out, "kernel lacks %s", mem.lacks);
	ASSERT_EQ(0, ret);
	ASSERT_EQ(0, munmap(mem.p + HUGE_SIZE, HUGE_SIZE));
	mem.map_size = HUGE_SIZE;
	p = mmap((void *)(0x1000 * gib), HUGE_SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
		 MAP_FIXED_NOREPLACE, -1, 0);
	ASSERT_EQ((void *)(0x1000 * gib), p);
	for (i = 0; i < 2; i++) {
		memset(buf, 1, sizeof(buf));
		EXPECT_EQ(0, ACCESS(READ, p + 5000, sizeof(buf), buf, 0));
		EXPECT_TRUE(all_zero(buf, sizeof(buf)));
		ASSERT_EQ(0, madvise(p, HUGE_SIZE, MADV_DONTNEED));
		EXPECT_EQ(0, ACCESS(FILL, p + 4096, 64, NULL, 0x55));
		EXPECT_EQ(0x55, *(volatile uint64_t *)(p + 4096));
		EXPECT_EQ(0, *(volatile uint64_t *)p);
		ASSERT_EQ(0, madvise(p, HUGE_SIZE, MADV_DONTNEED));
	}
	EXPECT_EQ(-1, mismatch(mem.p, HUGE_SIZE, 3));
	ASSERT_EQ(0, munmap(p, HUGE_SIZE));
out:
	mem_unmap(&mem);
}

TEST_F(access, unmapped)
{
	struct hetmem_emu_cmd_info before, after;
	char *buf = malloc(self->size);

	ASSERT_NE(NULL, buf);
	ASSERT_EQ(0, munmap(PAGE(40), page_size()));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ(-EFAULT, ACCESS(READ, PAGE(40), 8, buf, 0));
	EXPECT_EQ(0, self->cmd.done);
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_EQ(before.device_fault_failures + 1,
		  after.device_fault_failures);
	/* Partial: what is said to be done is done. */
	EXPECT_EQ(-EFAULT, ACCESS(READ, self->p, self->size, buf, 0));
	EXPECT_LE(self->cmd.done, 40 * page_size());
	EXPECT_LT(0, self->cmd.done);
	EXPECT_EQ(-1, mismatch(buf, self->cmd.done & ~7ULL, 1));
	memset(buf, 0x5a, self->size);
	EXPECT_EQ(-EFAULT, ACCESS(WRITE, self->p, self->size, buf, 0));
	EXPECT_EQ(0, memcmp(self->p, buf, self->cmd.done));
	EXPECT_EQ(-1, mismatch_at(self->p + self->cmd.done,
				  40 * page_size() - self->cmd.done, 1,
				  self->cmd.done));
	free(buf);
}

/*
 * Memory that the kernel itself cannot reach: the device neither, whether it
 * is there or not, and what lies beside it as always.
 */
TEST_F(access, secret)
{
	const size_t size = 4 * page_size();
	char *buf = malloc(self->size);
	int ret = map_secret(PAGE(38), size);
	uint64_t word;

	ASSERT_NE(NULL, buf);
	if (ret == -ENOSYS)
		SKIP(goto out, "kernel lacks memfd_secret()");
	ASSERT_EQ(0, ret);
	fill(PAGE(38), size / 2, 2);
	for (ret = 38; ret < 42; ret++) {
		EXPECT_EQ(-EFAULT, ACCESS(READ, PAGE(ret), 8, &word, 0));
		EXPECT_EQ(-EFAULT, ACCESS(WRITE, PAGE(ret), 8, &word, 0));
		EXPECT_EQ(-EFAULT, ACCESS(FILL, PAGE(ret), 8, NULL, 0));
		EXPECT_EQ(-EFAULT, ACCESS(ADD, PAGE(ret), 8, NULL, 1));
	}
	EXPECT_EQ(-EFAULT, ACCESS(READ, self->p, self->size, buf, 0));
	EXPECT_EQ(38 * page_size(), self->cmd.done);
	EXPECT_EQ(-1, mismatch(buf, self->cmd.done, 1));
	EXPECT_EQ(0, ACCESS(READ, PAGE(42), 22 * page_size(), buf, 0));
	EXPECT_EQ(-1, mismatch_at(buf, 22 * page_size(), 1, 42 * page_size()));
	EXPECT_EQ(0, to_device(self->hm, self->dev, PAGE(38), size));
	EXPECT_EQ(-1, mismatch(PAGE(38), size / 2, 2));
	EXPECT_TRUE(all_zero(PAGE(40), size / 2));
out:
	free(buf);
}

TEST_F(access, forbidden)
{
	uint64_t buf[2] = { 1, 2 };

	ASSERT_EQ(0, mprotect(PAGE(8), page_size(), PROT_READ));
	EXPECT_EQ(0, ACCESS(READ, PAGE(8), 16, buf, 0));
	EXPECT_EQ(-EPERM, ACCESS(WRITE, PAGE(8), 16, buf, 0));
	EXPECT_EQ(-EPERM, ACCESS(FILL, PAGE(8), 16, NULL, 0));
	EXPECT_EQ(-EPERM, ACCESS(ADD, PAGE(8), 16, NULL, 1));
	ASSERT_EQ(0, mprotect(PAGE(8), page_size(), PROT_NONE));
	EXPECT_EQ(-EPERM, ACCESS(READ, PAGE(8), 16, buf, 0));
	ASSERT_EQ(0, mprotect(PAGE(8), page_size(), PROT_READ));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(access, data_unusable)
{
	EXPECT_EQ(-EFAULT, ACCESS(READ, self->p, 16, NULL, 0));
	EXPECT_EQ(-EFAULT, ACCESS(WRITE, self->p, 16, NULL, 0));
	EXPECT_EQ(-EFAULT, ACCESS(READ, self->p, 16, (void *)KERNEL_ADDR, 0));
	EXPECT_EQ(-EFAULT, ACCESS(WRITE, self->p, 16, (void *)KERNEL_ADDR,
				  0));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	/* The device's own pages as its caller's buffer. */
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	EXPECT_EQ(0, ACCESS(READ, PAGE(0), 8 * page_size(), PAGE(32), 0));
	EXPECT_EQ(-1, mismatch(PAGE(32), 8 * page_size(), 1));
	EXPECT_EQ(0, ACCESS(WRITE, PAGE(8), 8 * page_size(), PAGE(0), 0));
	EXPECT_EQ(-1, mismatch(PAGE(8), 8 * page_size(), 1));
}

TEST_F(access, arguments)
{
	uint64_t buf[4] = { 0 };
	struct hetmem_emu_cmd_access good = {
		.size = sizeof(good),
		.flags = variant->flags,
		.op = HETMEM_EMU_READ,
		.addr = (uintptr_t)self->p,
		.length = 16,
		.data = (uintptr_t)buf,
	}, bad;
	int fd = self->dev->fd;

#define REFUSED(error, change)						\
	do {								\
		bad = good;						\
		change;							\
		EXPECT_EQ(error, hm_ioctl(fd, HETMEM_EMU_IOC_ACCESS,	\
					  &bad));			\
	} while (0)
	REFUSED(0, bad.flags = variant->flags);
	REFUSED(-EINVAL, bad.size = 0);
	REFUSED(-EINVAL, bad.size = sizeof(bad) - 8);
	REFUSED(-EINVAL, bad.flags |= 2);
	REFUSED(-EINVAL, bad.flags |= 1U << 31);
	REFUSED(-EINVAL, bad.op = HETMEM_EMU_ADD + 1);
	REFUSED(-EINVAL, bad.op = ~0U);
	REFUSED(-EINVAL, bad.reserved = 1);
	REFUSED(-EINVAL, bad.length = 0);
	REFUSED(-EINVAL, bad.value = 1);
	REFUSED(-ERANGE, bad.addr = KERNEL_ADDR);
	REFUSED(-ERANGE, bad.length = ~0ULL);
	REFUSED(-ERANGE, bad.addr = ~15ULL);
	good.op = HETMEM_EMU_ADD;
	good.data = 0;
	REFUSED(0, bad.value = 0);
	REFUSED(-EINVAL, bad.addr += 4);
	REFUSED(-EINVAL, bad.length = 12);
	REFUSED(-EINVAL, bad.data = (uintptr_t)buf);
	good.op = HETMEM_EMU_FILL;
	REFUSED(-EINVAL, bad.addr += 1);
	REFUSED(-EINVAL, bad.length = 15);
	REFUSED(-EINVAL, bad.data = (uintptr_t)buf);
	EXPECT_EQ(-EFAULT, hm_ioctl(fd, HETMEM_EMU_IOC_ACCESS, NULL));
	EXPECT_EQ(-EFAULT, hm_ioctl(fd, HETMEM_EMU_IOC_ACCESS,
				    (void *)KERNEL_ADDR));
	EXPECT_EQ(-ENOTTY, hm_ioctl(fd, _IO(HETMEM_EMU_TYPE, 3), &good));
	EXPECT_EQ(-ENOTTY, hm_ioctl(fd, HETMEM_IOC_INFO, &good));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Larger structs, as every command of the interface takes them. */
TEST_F(access, larger_struct)
{
	struct {
		struct hetmem_emu_cmd_info info;
		uint64_t more[2];
	} cmd = { .info.size = sizeof(cmd) };

	EXPECT_EQ(0, hm_ioctl(self->dev->fd, HETMEM_EMU_IOC_INFO, &cmd));
	EXPECT_EQ(self->dev->capacity, cmd.info.capacity * page_size());
	cmd.more[1] = 1;
	EXPECT_EQ(-E2BIG, hm_ioctl(self->dev->fd, HETMEM_EMU_IOC_INFO, &cmd));
	memset(&cmd, 0, sizeof(cmd));
	cmd.info.size = sizeof(cmd.info);
	cmd.info.flags = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->dev->fd, HETMEM_EMU_IOC_INFO,
				    &cmd));
	cmd.info.flags = 0;
	cmd.info.reserved = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->dev->fd, HETMEM_EMU_IOC_INFO,
				    &cmd));
}

/* The file sees its opener's memory and nobody else uses it. */
TEST_F(access, another_process)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		char buf[16];

		/* Also with every capability there is. */
		CHILD_CHECK(emu_read(self->dev, variant->flags, self->p, 16,
				     buf) == -EPERM);
		CHILD_CHECK(emu_access(self->dev, HETMEM_EMU_ADD, 0, self->p,
				       16, NULL, 1, NULL) == -EPERM);
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(emu_read(self->dev, variant->flags, self->p, 16,
				     buf) == -EPERM);
		CHILD_CHECK(emu_evict(self->dev, 1, NULL) == -EPERM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_HARNESS_MAIN
