// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pinned memory and a device's driver: what is held on the host does not move
 * there, whoever wants it, and does again when the pin has ended.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

FIXTURE(held)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	struct mem m;
	long pages;
	long before;
};

FIXTURE_VARIANT(held)
{
	enum mem_kind kind;
};

FIXTURE_VARIANT_ADD(held, anon) { MEM_ANON };
FIXTURE_VARIANT_ADD(held, file_cow) { MEM_FILE_COW };
FIXTURE_VARIANT_ADD(held, thp) { MEM_THP };
FIXTURE_VARIANT_ADD(held, mlocked) { MEM_MLOCKED };

FIXTURE_SETUP(held)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[0];
	self->hm = self->rig.fd;
	ASSERT_EQ(0, mem_map(&self->m, variant->kind, HUGE_SIZE, 1));
	self->pages = HUGE_SIZE / page_size();
	self->before = vm_pin();
}

FIXTURE_TEARDOWN(held)
{
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
	mem_unmap(&self->m);
	EXPECT_TRUE(EVENTUALLY(vm_pin() == self->before));
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define ON_DEVICE pages_at(self->hm, self->m.p, self->m.size, self->dev->loc)
#define PINNED	(vm_pin() - self->before)

/* From where they are: host, device, or some of each. */
static int pin_from(struct __test_metadata *_metadata, int hm,
		    const struct emu *dev, struct mem *m, size_t on_device)
{
	const long pages = m->size / page_size();
	struct hetmem_cmd_migrate cmd;
	int fd = hm_open();

	if (on_device)
		EXPECT_EQ((long)(on_device / page_size()),
			  to_device(hm, dev, m->p, on_device));
	EXPECT_EQ(0, hm_pin(fd, m->p, m->size, FOREVER_MS, &cmd));
	EXPECT_EQ((long)(on_device / page_size()), (long)cmd.moved);
	EXPECT_EQ(pages, (long)(cmd.moved + cmd.already));
	EXPECT_EQ(pages, (long)cmd.pinned);
	EXPECT_EQ(pages, pages_pinned(fd, m->p, m->size));
	return fd;
}

TEST_F(held, stays)
{
	const size_t from[] = { 0, self->m.size, self->m.size / 4 };
	struct hetmem_cmd_migrate cmd;
	unsigned int i;
	int fd;

	for (i = 0; i < ARRAY_SIZE(from); i++) {
		fd = pin_from(_metadata, self->hm, self->dev, &self->m,
			      from[i]);
		EXPECT_EQ(self->pages, PINNED);
		EXPECT_EQ(0, hm_migrate(self->hm, self->m.p, self->m.size,
					self->dev->loc, &cmd));
		EXPECT_EQ(0, cmd.moved);
		EXPECT_EQ(self->pages, (long)cmd.not_moved);
		EXPECT_TRUE(cmd.why);
		EXPECT_EQ(0, ON_DEVICE);
		/* The device uses it where it is. */
		EXPECT_TRUE(emu_sees(self->dev, HETMEM_EMU_MIGRATE, self->m.p,
				     self->m.size, 1));
		EXPECT_EQ(0, ON_DEVICE);
		EXPECT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD,
					HETMEM_EMU_MIGRATE, self->m.p,
					self->m.size, NULL, 9, NULL));
		EXPECT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD,
					HETMEM_EMU_MIGRATE, self->m.p,
					self->m.size, NULL, -9ULL, NULL));
		EXPECT_EQ(0, ON_DEVICE);
		EXPECT_EQ(self->pages, pages_pinned(fd, self->m.p,
						    self->m.size));
		EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
		close(fd);
		EXPECT_EQ(0, PINNED);
		/* And then it goes. */
		EXPECT_EQ(self->pages, to_device(self->hm, self->dev,
						 self->m.p, self->m.size));
		EXPECT_EQ(self->pages, to_host(self->hm, self->m.p,
					       self->m.size));
	}
}

TEST_F(held, for_a_while)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(self->pages, to_device(self->hm, self->dev, self->m.p,
					 self->m.size));
	ASSERT_EQ(0, hm_pin(self->hm, self->m.p, self->m.size, 300, &cmd));
	EXPECT_EQ(self->pages, (long)cmd.pinned);
	EXPECT_TRUE(EVENTUALLY(!PINNED));
	EXPECT_EQ(self->pages, to_device(self->hm, self->dev, self->m.p,
					 self->m.size));
}

/* A part is held, and the rest goes. */
TEST_F(held, in_part)
{
	const size_t part = 100 * page_size();
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_pin(self->hm, self->m.p + part, part, FOREVER_MS,
			    &cmd));
	EXPECT_EQ(100, (long)cmd.pinned);
	to_device(self->hm, self->dev, self->m.p, self->m.size);
	EXPECT_EQ(0, pages_at(self->hm, self->m.p + part, part,
			      self->dev->loc));
	/* A huge page that is held in part is held as a whole. */
	EXPECT_EQ(variant->kind == MEM_THP ? 0 : self->pages - 100, ON_DEVICE);
	EXPECT_EQ(100, pages_pinned(self->hm, self->m.p, self->m.size));
}

TEST_F(held, not_on_a_device)
{
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.flags = HETMEM_MIGRATE_PIN,
		.start = (uintptr_t)self->m.p,
		.end = (uintptr_t)self->m.p + self->m.size,
		.location = self->dev->loc,
		.timeout_ms = 1000,
	};

	EXPECT_EQ(-EINVAL, hm_ioctl(self->hm, HETMEM_IOC_MIGRATE, &cmd));
	EXPECT_EQ(0, ON_DEVICE);
	EXPECT_EQ(0, PINNED);
}

TEST_HARNESS_MAIN
