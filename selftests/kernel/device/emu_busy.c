// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A busy process and devices: threads invalidate other memory of it all the time, while
 * its pages are moved and looked at, while one of its threads is killed in the midst, and
 * while the device's module goes and comes. Nothing of that waits for the threads.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/load.h"
#include "libktest/modules.h"
#include "libktest/sysfs.h"

#define KILL_MS		(slow_kernel() ? 20000 : 2000)

FIXTURE(busy)
{
	struct module emu;
	int hm;
	uint32_t loc[2];
	char *p;
	size_t size;
	struct load load;
};

/* No file of a device is held open: that would keep the module. */
FIXTURE_SETUP(busy)
{
	struct rig rig;

	self->emu.name = "hetmem_emu";
	module_params(&self->emu);
	ASSERT_EQ(0, rig_init(&rig));
	self->loc[0] = rig.dev[0].loc;
	self->loc[1] = rig.dev[1].loc;
	self->size = rig.size;
	ASSERT_EQ(0, rig_exit(&rig));
	self->hm = hm_open_flags(0);
	ASSERT_GE(self->hm, 0);
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, no_numa_balancing(self->p, self->size));
	ASSERT_EQ(0, hm_track(self->hm, self->p, self->size));
	ASSERT_EQ(0, load_start(&self->load, false));
}

FIXTURE_TEARDOWN(busy)
{
	struct rig rig;

	EXPECT_TRUE(!self->load.nr || load_stop(&self->load));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	munmap(self->p, self->size);
	close(self->hm);
	if (!module_loaded("hetmem_emu"))
		EXPECT_EQ(0, module_load(&self->emu));
	EXPECT_EQ(0, rig_init(&rig));
	EXPECT_EQ(0, rig_exit(&rig));
}

/* There and back: all of it each time, and seen where it is. */
TEST_F(busy, moved)
{
	const long pages = NR(self->size);
	struct hetmem_cmd_refresh refresh;
	int i;

	for (i = 0; i < test_rounds(16) + 1; i++) {
		uint32_t loc = self->loc[i & 1];

		ASSERT_EQ(pages, move_to(self->hm, self->p, self->size, loc, NULL));
		EXPECT_EQ(pages, pages_at(self->hm, self->p, self->size, loc));
		EXPECT_EQ(0, hm_refresh_all(self->hm, self->p, &refresh));
		EXPECT_EQ(pages, (long)refresh.on_device);
		EXPECT_EQ(-1, mismatch(self->p, self->size / 4, 1));
		ASSERT_EQ(pages, to_host(self->hm, self->p, self->size));
		EXPECT_EQ(0, hm_refresh_all(self->hm, self->p, &refresh));
		EXPECT_EQ(0, refresh.on_device);
	}
}

/* Walks all memory of the owner of @fd, for ever. */
static void read_all(int fd, int *walks)
{
	struct hetmem_cmd_residency cmd = {
		.start = page_size(), .end = (1UL << 47) - page_size(),
	};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		CHILD_CHECK(!hm_residency(fd, &cmd));
		CHILD_CHECK(cmd.walk_end == cmd.end);
		word_add(walks);
	}
}

/*
 * The module goes at the first attempt each time, with pages on both devices and a
 * process that looks at all of them, and takes the pages home.
 */
TEST_F(busy, unloaded)
{
	int *walks = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED |
			  MAP_ANONYMOUS, -1, 0);
	const long half = NR(self->size / 2);
	const int tries = 10;
	uint32_t loc[2] = { self->loc[0], self->loc[1] };
	int i, seen;
	pid_t pid;
	long ms;

	ASSERT_NE(MAP_FAILED, (void *)walks);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		read_all(self->hm, walks);
	for (i = 0; i < tries; i++) {
		ASSERT_EQ(half, move_to(self->hm, self->p, self->size / 2, loc[0],
					NULL));
		ASSERT_EQ(half, move_to(self->hm, self->p + self->size / 2,
					self->size / 2, loc[1], NULL));
		EXPECT_EQ(0, module_unload_once("hetmem_emu"));
		EXPECT_FALSE(module_loaded("hetmem_emu"));
		EXPECT_EQ(2 * half, pages_of_kind(self->hm, self->p, self->size,
						  HETMEM_HOST));
		seen = word_read(walks);
		ASSERT_EQ(0, module_load(&self->emu));
		ASSERT_EQ(0, emu_locations(loc));
		if (i % 5 == 0)
			word_wait(walks, seen + 1);
	}
	ms = kill_cpu_ms(pid);
	EXPECT_LE(0, ms);
	EXPECT_GT(KILL_MS, ms);
	munmap(walks, page_size());
}

/* MIGRATE by a process with such threads that is killed: all pages come home. */
TEST_F(busy, killed)
{
	int *moves = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED |
			  MAP_ANONYMOUS, -1, 0);
	struct hetmem_emu_cmd_info info;
	struct emu e;
	int round;
	pid_t pid;
	long ms;

	ASSERT_NE(MAP_FAILED, (void *)moves);
	ASSERT_EQ(0, emu_open(&e, 0));
	/* Each child has its own. */
	EXPECT_TRUE(load_stop(&self->load));
	for (round = 0; round < test_rounds(8) + 1; round++) {
		*moves = 0;
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			struct hetmem_cmd_migrate cmd;
			struct load load;
			int hm = hm_open();

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			CHILD_CHECK(hm >= 0);
			CHILD_CHECK(!load_start(&load, true));
			for (;;) {
				CHILD_CHECK(!hm_migrate(hm, self->p, self->size,
							self->loc[0], &cmd));
				word_add(moves);
				CHILD_CHECK(!hm_migrate(hm, self->p, self->size,
							ANY_HOST, &cmd));
			}
		}
		word_wait(moves, 1);
		/* time: the moment varies, and each is right */
		usleep(1900 * round);
		ms = kill_cpu_ms(pid);
		EXPECT_LE(0, ms);
		EXPECT_GT(KILL_MS, ms);
		/* They were the parent's too. */
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
		EXPECT_TRUE(emu_empties(&e, &info));
	}
	close(e.fd);
	munmap(moves, page_size());
}

TEST_HARNESS_MAIN
