// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_emu.ko goes while its devices hold pages: of processes that sleep,
 * fault, move or end meanwhile. Nothing is lost, and it can come back.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"

#include <poll.h>
#include <pthread.h>

#include <linux/userfaultfd.h>

/* No file of a device is held open: that would keep the module. */
FIXTURE(module)
{
	struct module emu;
	int hm;
	uint32_t loc[2];
	char *p;
	size_t size;
};

FIXTURE_SETUP(module)
{
	struct rig rig;

	self->emu.name = "hetmem_emu";
	module_params(&self->emu);
	ASSERT_EQ(0, rig_init(&rig));
	self->loc[0] = rig.dev[0].loc;
	self->loc[1] = rig.dev[1].loc;
	self->size = rig.size;
	ASSERT_EQ(0, rig_exit(&rig));
	self->hm = hm_open();
	ASSERT_GE(self->hm, 0);
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(module)
{
	struct rig rig;

	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	munmap(self->p, self->size);
	close(self->hm);
	if (!module_loaded("hetmem_emu"))
		EXPECT_EQ(0, module_load(&self->emu));
	/* It is back, empty and without a failure. */
	EXPECT_EQ(0, rig_init(&rig));
	EXPECT_EQ(0, rig_exit(&rig));
}


TEST_F(module, in_use)
{
	struct emu e;

	ASSERT_EQ(0, emu_open(&e, 0));
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem_emu"));
	close(e.fd);
	EXPECT_EQ(0, module_unload("hetmem_emu"));
}

/* Pages of this process and of one that sleeps. */
TEST_F(module, live_pages)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_stats st;
	struct turns t;
	struct emu e;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		char *p = map_filled(self->size, 2);
		int hm = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(hm >= 0 && p);
		CHILD_CHECK(move_to(hm, p, self->size, self->loc[1], NULL) ==
			    NR(self->size));
		CHILD_CHECK(turn_pass(t.to_parent[1]));
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(pages_of_kind(hm, p, self->size, HETMEM_HOST) ==
			    NR(self->size));
		CHILD_CHECK(mismatch(p, self->size, 2) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_EQ(0, hm_track(self->hm, self->p, self->size));
	ASSERT_EQ(NR(self->size), move_to(self->hm, self->p, self->size,
					  self->loc[0], NULL));
	ASSERT_TRUE(turn_wait(t.to_parent[0]));

	ASSERT_EQ(0, module_unload("hetmem_emu"));
	EXPECT_EQ(NR(self->size), pages_of_kind(self->hm, self->p, self->size,
						HETMEM_HOST));
	/* Its driver has signed off before, and need not tell any more. */
	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(NR(self->size), (long)st.to_device);
	EXPECT_GE(NR(self->size), (long)st.to_host);
	/* A device that is gone is told as one that never was. */
	EXPECT_EQ(-ENODEV, hm_migrate(self->hm, self->p, self->size,
				      self->loc[0], &cmd));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));

	/* What comes back can be used at once. It is another device. */
	ASSERT_EQ(0, module_load(&self->emu));
	ASSERT_EQ(0, emu_open(&e, 0));
	EXPECT_NE(self->loc[0], e.loc);
	EXPECT_NE(self->loc[1], e.loc);
	EXPECT_EQ(-ENODEV, hm_migrate(self->hm, self->p, self->size,
				      self->loc[0], &cmd));
	EXPECT_EQ(NR(self->size), to_device(self->hm, &e, self->p,
					    self->size));
	EXPECT_TRUE(emu_sees(&e, 0, self->p, self->size, 1));
	close(e.fd);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Shared after fork(), and the half that one of them unmaps. */
TEST_F(module, shared_pages)
{
	struct turns t;
	pid_t pid;

	ASSERT_EQ(NR(self->size), move_to(self->hm, self->p, self->size,
					  self->loc[0], NULL));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(!munmap(self->p, self->size / 2));
		CHILD_CHECK(turn_pass(t.to_parent[1]));
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(mismatch_at(self->p + self->size / 2,
					self->size / 2, 1,
					self->size / 2) < 0);
		fill(self->p + self->size / 2, self->size / 2, 3);
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	ASSERT_EQ(0, module_unload("hetmem_emu"));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

struct worker {
	pthread_t thread;
	volatile bool *stop;
	int hm;
	char *p;
	size_t size;
	uint32_t loc;
	long moved, bad;
};

/* To a device that may be there or not, and back by touching. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct hetmem_cmd_migrate cmd;

	while (!*w->stop) {
		int ret = hm_migrate(w->hm, w->p, w->size, w->loc, &cmd);

		if (!ret)
			w->moved += cmd.moved;
		else if (ret != -ENODEV)
			w->bad++;
		if (mismatch(w->p, w->size, 1) >= 0)
			w->bad++;
	}
	return NULL;
}

/* Unloaded and loaded while pages come and go all the time. */
TEST_F(module, under_load)
{
	volatile bool stop = false;
	struct worker w = {
		.stop = &stop, .hm = self->hm, .p = self->p,
		.size = self->size / 4, .loc = self->loc[0],
	};
	int i;

	ASSERT_EQ(0, pthread_create(&w.thread, NULL, work, &w));
	for (i = 0; i < test_rounds(8) + 1; i++) {
		struct emu e;

		/* time: the moment varies, and each is right */
		usleep(2000);
		EXPECT_EQ(0, module_unload("hetmem_emu"));
		EXPECT_EQ(0, module_load(&self->emu));
		if (!emu_open(&e, 0)) {
			w.loc = e.loc;
			close(e.fd);
		}
	}
	/* A busy host may not have run the worker yet. */
	EXPECT_TRUE(EVENTUALLY(__atomic_load_n(&w.moved, __ATOMIC_RELAXED) || w.bad));
	stop = true;
	pthread_join(w.thread, NULL);
	EXPECT_EQ(0, w.bad);
}

/* Processes that die with pages while it goes. */
TEST_F(module, owners_end_meanwhile)
{
	int i;

	for (i = 0; i < test_rounds(8) + 1; i++) {
		struct turns t;
		struct emu e;
		pid_t pid;

		ASSERT_EQ(0, emu_open(&e, 0));
		close(e.fd);
		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			char *p = map_filled(self->size, 4);
			int hm = hm_open();

			CHILD_CHECK(hm >= 0 && p);
			CHILD_CHECK(move_to(hm, p, self->size, e.loc,
					    NULL) == NR(self->size));
			turn_pass(t.to_parent[1]);
			pause();
			_exit(1);
		}
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		EXPECT_EQ(0, kill(pid, SIGKILL));
		EXPECT_EQ(0, module_unload("hetmem_emu"));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		EXPECT_EQ(0, module_load(&self->emu));
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
}

/* Tells the parent when somebody waits for a page of userfaultfd memory. */
struct uffd_watch {
	int uffd;
	struct turns *t;
};

static void *watch_uffd(void *arg)
{
	struct uffd_watch *w = arg;
	struct pollfd p = { .fd = w->uffd, .events = POLLIN };

	poll(&p, 1, -1);
	turn_pass(w->t->to_parent[1]);
	return NULL;
}

/* INFO whose answer cannot be written before somebody brings the page. */
static void ask_for_ever(struct turns *t)
{
	struct uffd_watch w = { .t = t };
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct hetmem_cmd_info cmd = {
		.size = sizeof(cmd),
		.device_size = sizeof(struct hetmem_device_info),
		.nr_devices = 2,
	};
	char *p = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int hm = hm_open();
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	w.uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	reg.range.start = (uintptr_t)p;
	reg.range.len = page_size();
	CHILD_CHECK(hm >= 0 && p != MAP_FAILED && w.uffd >= 0);
	CHILD_CHECK(!ioctl(w.uffd, UFFDIO_API, &api));
	CHILD_CHECK(!ioctl(w.uffd, UFFDIO_REGISTER, &reg));
	CHILD_CHECK(!pthread_create(&thread, NULL, watch_uffd, &w));
	cmd.devices = (uintptr_t)p;
	hm_ioctl(hm, HETMEM_IOC_INFO, &cmd);
	_exit(1);
}

/* Who has its own answer take forever holds nobody else up. */
TEST_F(module, asker_that_waits)
{
	pid_t asker, unloader;
	int status = -1;
	struct turns t;

	ASSERT_EQ(0, turns_init(&t));
	asker = fork();
	ASSERT_GE(asker, 0);
	if (!asker)
		ask_for_ever(&t);
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	unloader = fork();
	ASSERT_GE(unloader, 0);
	if (!unloader)
		_exit(module_unload("hetmem_emu") ? 1 : 0);
	EXPECT_TRUE(EVENTUALLY(waitpid(unloader, &status, WNOHANG) ==
			       unloader));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, kill(asker, SIGKILL));
	EXPECT_EQ(128 + SIGKILL, child_status(asker));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* What the kernel's log says from here on of @what, into @line. */
static bool log_says(int log, const char *what, char *line, size_t size)
{
	bool found = false;
	char *nl;
	ssize_t n;

	while ((n = read(log, line, size - 1)) > 0) {
		line[n] = 0;
		nl = strchr(line, '\n');
		if (nl)
			*nl = 0;
		if (!strstr(line, what))
			continue;
		found = true;
		break;
	}
	return found;
}

/* A parameter that cannot be is refused, with a line that says why. */
TEST_F(module, parameters)
{
	static const char * const wrong[] = {
		"devices=0", "devices=9", "capacity_mb=0", "capacity_mb=1",
		"capacity_mb=1048577", "capacity_mb=99999999999",
		"fault_around=0", "fault_around=3", "fault_around=1024",
	};
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	char want[64], line[512];
	size_t i;

	ASSERT_LE(0, log);
	ASSERT_EQ(0, module_unload("hetmem_emu"));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct module m = { .name = "hetmem_emu" };

		lseek(log, 0, SEEK_END);
		strcpy(m.params, wrong[i]);
		EXPECT_EQ(-EINVAL, module_load(&m)) {
			TH_LOG("%s was accepted", wrong[i]);
			module_unload("hetmem_emu");
		}
		EXPECT_FALSE(module_loaded("hetmem_emu"));
		snprintf(want, sizeof(want), ";hetmem_emu: %s: must be ",
			 wrong[i]);
		EXPECT_TRUE(log_says(log, want, line, sizeof(line))) {
			TH_LOG("%s: no line says so", wrong[i]);
		}
	}
	close(log);
}

TEST_HARNESS_MAIN
