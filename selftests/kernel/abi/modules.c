// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem.ko comes and goes: not while anybody has it open, and again and
 * again otherwise. A hetmem_emu.ko that is loaded is taken out first and put
 * back afterwards.
 */
#include "libktest/harness.h"
#include "libktest/modules.h"

FIXTURE(module)
{
	struct module hetmem, emu;
	bool had_emu;
	char *p;
};

FIXTURE_SETUP(module)
{
	self->hetmem.name = "hetmem";
	self->emu.name = "hetmem_emu";
	module_params(&self->hetmem);
	ASSERT_TRUE(module_loaded("hetmem"));
	self->had_emu = module_loaded("hetmem_emu");
	if (self->had_emu) {
		module_params(&self->emu);
		/* It uses hetmem, which therefore stays. */
		ASSERT_EQ(-EAGAIN, module_unload_once("hetmem"));
		ASSERT_EQ(0, module_unload("hetmem_emu"));
	}
	self->p = mmap(NULL, 16 * page_size(), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, 16 * page_size(), 1);
}

FIXTURE_TEARDOWN(module)
{
	EXPECT_EQ(-1, mismatch(self->p, 16 * page_size(), 1));
	if (!module_loaded("hetmem"))
		EXPECT_EQ(0, module_load(&self->hetmem));
	if (self->had_emu)
		EXPECT_EQ(0, module_load(&self->emu));
}

TEST_F(module, reload)
{
	struct hetmem_cmd_info info;
	int i, fd;

	for (i = 0; i < test_rounds(8) + 1; i++) {
		fd = hm_open();
		ASSERT_GE(fd, 0);
		ASSERT_EQ(0, hm_track(fd, self->p, 16 * page_size()));
		ASSERT_EQ(0, close(fd));
		ASSERT_EQ(0, module_unload("hetmem"));
		EXPECT_EQ(-ENOENT, hm_open());
		/* Notifications come and nobody is there. */
		ASSERT_EQ(0, mprotect(self->p, 16 * page_size(), PROT_READ));
		ASSERT_EQ(0, mprotect(self->p, 16 * page_size(),
				      PROT_READ | PROT_WRITE));
		ASSERT_EQ(0, module_load(&self->hetmem));
	}
	fd = hm_open();
	ASSERT_GE(fd, 0);
	EXPECT_EQ(0, hm_info(fd, &info));
	EXPECT_EQ(0, info.nr_ranges);
	EXPECT_EQ(0, info.nr_devices);
	close(fd);
}

TEST_F(module, in_use)
{
	struct hetmem_cmd_info info;
	int fd = hm_open();

	ASSERT_GE(fd, 0);
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	ASSERT_EQ(0, hm_track(fd, self->p, page_size()));
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	EXPECT_EQ(0, hm_info(fd, &info));
	EXPECT_EQ(1, info.nr_ranges);
	EXPECT_EQ(-EEXIST, module_load(&self->hetmem));
	close(fd);
	EXPECT_EQ(0, module_unload("hetmem"));
}

/* Notifiers that outlive their contexts keep no module, nor do their processes mind. */
TEST_F(module, after_the_last_close)
{
	struct turns t[3];
	pid_t pid[3];
	int i, fd;

	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, turns_init(&t[i]));
		pid[i] = fork();
		ASSERT_GE(pid[i], 0);
		if (!pid[i]) {
			turns_in_child(&t[i]);
			fd = hm_open();
			CHILD_CHECK(fd >= 0 && !close(fd));
			CHILD_CHECK(turn_pass(t[i].to_parent[1]));
			CHILD_CHECK(turn_wait(t[i].to_child[0]));
			CHILD_CHECK(!munmap(self->p, 16 * page_size()));
			_exit(0);
		}
		turns_in_parent(&t[i]);
		ASSERT_TRUE(turn_wait(t[i].to_parent[0]));
	}
	ASSERT_EQ(0, module_unload("hetmem"));
	turn_pass(t[0].to_child[1]);
	EXPECT_EQ(0, child_status(pid[0]));
	ASSERT_EQ(0, module_load(&self->hetmem));
	turn_pass(t[1].to_child[1]);
	EXPECT_EQ(0, child_status(pid[1]));
	ASSERT_EQ(0, module_unload("hetmem"));
	turn_pass(t[2].to_child[1]);
	EXPECT_EQ(0, child_status(pid[2]));
}

/* The last descriptor counts, wherever it is. */
TEST_F(module, in_use_by_a_child)
{
	int fd = hm_open();
	struct turns t;
	pid_t pid;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		_exit(0);
	}
	turns_in_parent(&t);
	close(fd);
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, module_unload("hetmem"));
}

/* Processes that open and close it all the time, and one that unloads. */
TEST_F(module, contended)
{
	volatile int *stop = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[2];
	int i, ret, unloaded = 0;

	ASSERT_NE(MAP_FAILED, stop);
	for (i = 0; i < 2; i++) {
		pid[i] = fork();
		ASSERT_GE(pid[i], 0);
		if (pid[i])
			continue;
		while (!*stop) {
			int fd = hm_open();

			if (fd < 0) {
				CHILD_CHECK(fd == -ENOENT || fd == -ENODEV ||
					    fd == -ENXIO);
				sched_yield();
				continue;
			}
			CHILD_CHECK(!hm_track(fd, self->p, page_size()));
			CHILD_CHECK(pages_of_kind(fd, self->p, page_size(),
						  HETMEM_HOST) == 1);
			close(fd);
			/* time: holds the module for a moment */
			usleep(200);
		}
		_exit(0);
	}
	for (i = 0; unloaded < test_rounds(16) && i < (unloaded ? 2000 : 200000); i++) {
		ret = module_unload_once("hetmem");
		if (ret == -EAGAIN) {
			/* time: the pace of looks */
			usleep(100);
			continue;
		}
		EXPECT_EQ(0, ret);
		unloaded++;
		EXPECT_EQ(0, module_load(&self->hetmem));
	}
	*stop = 1;
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, child_status(pid[i]));
	EXPECT_LT(0, unloaded);
}

TEST_HARNESS_MAIN
