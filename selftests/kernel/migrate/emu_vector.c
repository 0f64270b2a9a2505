// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * MIGRATE_VECTOR with a device: many ranges go there and come back in one call, and the
 * counts of all commands together are the device's.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#define PAGES	256

FIXTURE(emu_vector)
{
	struct rig rig;
	char *p;
	size_t size;
	struct hetmem_cmd_migrate moves[PAGES];
	int32_t results[PAGES];
};

FIXTURE_SETUP(emu_vector)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->size = PAGES * page_size();
	self->p = map_filled(self->size, 5);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(emu_vector)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, 5));
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/* Pages @first, @first + @step, ... of the buffer, to @loc; number of commands. */
static uint32_t every(FIXTURE_DATA(emu_vector) *self, size_t first, size_t step, uint32_t loc)
{
	uint32_t nr = 0;
	size_t i;

	for (i = first; i < PAGES; i += step)
		self->moves[nr++] = (struct hetmem_cmd_migrate){
			.start = (uintptr_t)self->p + i * page_size(),
			.end = (uintptr_t)self->p + (i + 1) * page_size(),
			.location = loc,
		};
	return nr;
}

/* Return: pages that are at their location, or an errno. */
static long call(FIXTURE_DATA(emu_vector) *self, uint32_t nr, uint64_t *moved)
{
	struct hetmem_cmd_migrate_vector cmd = {
		.size = sizeof(cmd),
		.commands = (uintptr_t)self->moves,
		.results = (uintptr_t)self->results,
		.command_size = sizeof(self->moves[0]),
		.nr = nr,
	};
	const int ret = hm_ioctl(self->rig.fd, HETMEM_IOC_MIGRATE_VECTOR, &cmd);
	long there = 0;
	uint32_t i;

	if (ret)
		return ret;
	if (cmd.done != nr)
		return -EBADMSG;
	for (i = 0; i < nr; i++) {
		const struct hetmem_cmd_migrate *m = &self->moves[i];

		if (self->results[i])
			return self->results[i];
		if (m->walk_end != m->end || m->moved + m->already + m->not_moved !=
		    (m->end - m->start) / page_size())
			return -EBADMSG;
		there += m->moved + m->already;
		*moved += m->moved;
	}
	return there;
}

/* Pages that are busy are asked for again. */
static long all(FIXTURE_DATA(emu_vector) *self, uint32_t nr, uint64_t *moved)
{
	long there;

	*moved = 0;
	EVENTUALLY((there = call(self, nr, moved)) < 0 || there == nr);
	return there;
}

TEST_F(emu_vector, there_and_back)
{
	const uint32_t loc = self->rig.dev[0].loc;
	struct hetmem_emu_cmd_info before, after;
	uint64_t moved;
	uint32_t nr;

	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	ASSERT_EQ(0, emu_info(self->rig.dev[0].fd, &before));
	nr = every(self, 0, 2, loc);
	ASSERT_EQ(nr, all(self, nr, &moved));
	EXPECT_EQ(nr, moved);
	EXPECT_EQ(nr, pages_at(self->rig.fd, self->p, self->size, loc));
	/* Half of them are there already. */
	nr = every(self, 0, 1, loc);
	ASSERT_EQ(nr, all(self, nr, &moved));
	EXPECT_EQ(nr / 2, moved);
	EXPECT_EQ(PAGES, pages_at(self->rig.fd, self->p, self->size, loc));
	nr = every(self, 1, 3, ANY_HOST);
	ASSERT_EQ(nr, all(self, nr, &moved));
	EXPECT_EQ(nr, moved);
	EXPECT_EQ(PAGES - nr, pages_at(self->rig.fd, self->p, self->size, loc));
	ASSERT_EQ(0, emu_info(self->rig.dev[0].fd, &after));
	EXPECT_EQ(PAGES, after.to_device - before.to_device);
	EXPECT_EQ(nr, after.to_host - before.to_host);
}

/* There, back, there and back again, in one call: the last command counts. */
TEST_F(emu_vector, in_order)
{
	const uint32_t loc = self->rig.dev[0].loc;
	uint64_t moved = 0;
	size_t i;

	for (i = 0; i < 5; i++) {
		self->moves[i] = (struct hetmem_cmd_migrate){
			.start = (uintptr_t)self->p,
			.end = (uintptr_t)self->p + self->size,
			.location = i % 2 ? ANY_HOST : loc,
		};
	}
	ASSERT_LE(0, call(self, 5, &moved));
	/* What went comes back, and nothing else. */
	for (i = 1; i < 5; i += 2)
		EXPECT_LE(self->moves[i].moved, self->moves[i - 1].moved + self->moves[i - 1].already);
	EXPECT_LT(0, self->moves[1].moved);
	EXPECT_EQ(self->moves[4].moved + self->moves[4].already,
		  (uint64_t)pages_at(self->rig.fd, self->p, self->size, loc));
}

/* A device that is not there, and one that is: the second command is carried out. */
TEST_F(emu_vector, one_fails)
{
	const uint32_t loc = self->rig.dev[0].loc;
	struct hetmem_cmd_migrate_vector cmd = {
		.size = sizeof(cmd),
		.commands = (uintptr_t)self->moves,
		.results = (uintptr_t)self->results,
		.command_size = sizeof(self->moves[0]),
		.nr = 2,
	};

	every(self, 0, 1, loc);
	self->moves[0].location = HETMEM_LOC(HETMEM_DEVICE, 0x7ffe);
	EXPECT_TRUE(EVENTUALLY(!hm_ioctl(self->rig.fd, HETMEM_IOC_MIGRATE_VECTOR, &cmd) &&
			       self->moves[1].not_moved == 0));
	EXPECT_EQ(-ENODEV, self->results[0]);
	EXPECT_EQ(0, self->results[1]);
	EXPECT_EQ(1, pages_at(self->rig.fd, self->p, self->size, loc));
}

TEST_HARNESS_MAIN
