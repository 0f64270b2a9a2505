// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes that are taken apart while their memory moves: reaped by process_mrelease(2)
 * after SIGKILL, watched by userfaultfd that comes and goes, read by others who are killed
 * too, protected and unprotected, the driver unloaded meanwhile.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif

#define SIZE	(3 * MiB)

struct all {
	int hm[3];
	struct emu dev[2];
	char *p;		/* shared with the parent, copy on write */
	char *file;		/* shared memory */
	unsigned int seed;
};

static unsigned int rnd(unsigned int *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	*s ^= *s << 5;
	return *s;
}

static void watch_for_a_moment(struct all *a, unsigned int *s)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect wp = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	reg.range.start = wp.range.start = (uintptr_t)a->p + rnd(s) % 256 * page_size();
	reg.range.len = wp.range.len = (rnd(s) % 256 + 1) * page_size();
	if (fd < 0)
		return;
	if (!ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &reg))
		ioctl(fd, UFFDIO_WRITEPROTECT, &wp);
	if (rnd(s) & 1)
		sched_yield();
	close(fd);
}

static void *churn(void *arg)
{
	struct all *a = arg;
	unsigned int s = __atomic_add_fetch(&a->seed, 7919, __ATOMIC_RELAXED);
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_refresh ref;
	char buf[8192];

	for (;;) {
		size_t pg = page_size(), at = rnd(&s) % 512 * pg;
		size_t len = (rnd(&s) % 128 + 1) * pg;
		int hm = a->hm[rnd(&s) % 3];
		const struct emu *e = &a->dev[rnd(&s) % 2];
		struct iovec x = { buf, 8192 }, y = { a->p + at, 8192 };

		switch (rnd(&s) % 16) {
		case 0: case 1: case 2: case 3:
			hm_migrate(hm, a->p + at, len, e->loc, &cmd);
			break;
		case 4:
			hm_migrate(hm, a->p + at, len, ANY_HOST, &cmd);
			break;
		case 5:
			hm_pin(hm, a->p + at, len, rnd(&s) % 50 + 1, &cmd);
			break;
		case 6:
			hm_unpin(hm, a->p + at, len, NULL);
			break;
		case 7:
			hm_refresh(hm, a->p, &ref);
			break;
		case 8:
			emu_access(e, HETMEM_EMU_READ, HETMEM_EMU_MIGRATE, a->p + at, 8192,
				   a->p + (at ^ 4096), 0, NULL);
			break;
		case 9:
			emu_access(e, HETMEM_EMU_ADD, rnd(&s) & 1, a->file + at % MiB, 8192,
				   NULL, 0, NULL);
			break;
		case 10:
			watch_for_a_moment(a, &s);
			break;
		case 11:
			process_vm_readv(getppid(), &x, 1, &y, 1, 0);
			break;
		case 12:
			mprotect(a->p + at, len, PROT_READ);
			mprotect(a->p + at, len, PROT_READ | PROT_WRITE);
			break;
		case 13:
			if (!(rnd(&s) % 8)) {
				pid_t pid = fork();

				if (!pid)
					_exit(mismatch(a->p, SIZE, 1) != -1);
				if (pid > 0)
					waitpid(pid, NULL, 0);
			}
			break;
		case 14:
			hm_pin(hm, a->file, MiB, 100, &cmd);
			break;
		case 15:
			syscall(SYS_mremap, a->p + at, pg, pg, MREMAP_MAYMOVE | MREMAP_FIXED,
				a->p + at);
			break;
		}
	}
	return NULL;
}

static void *reap(void *arg)
{
	int pidfd = *(int *)arg;

	while (syscall(SYS_process_mrelease, pidfd, 0) && errno != ESRCH)
		sched_yield();
	return NULL;
}

static void *read_it(void *arg)
{
	pid_t pid = ((int *)arg)[1];
	char *p = *(char **)((int *)arg + 2);
	static char buf[65536];
	struct iovec x = { buf, sizeof(buf) }, y = { p, sizeof(buf) };

	while (process_vm_readv(pid, &x, 1, &y, 1, 0) >= 0)
		;
	return NULL;
}

TEST(reaped)
{
	struct module emu = { .name = "hetmem_emu" };
	long bytes, contexts = nr_contexts(), held = pins_held();
	struct all a = { .seed = 1 };
	int i, j;

	a.p = map_filled(SIZE, 1);
	a.file = mmap(NULL, MiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_TRUE(a.p && a.file != MAP_FAILED);
	fill(a.file, MiB, 2);
	bytes = read_long(STATS "bytes");
	module_params(&emu);
	for (i = 0; i < test_rounds(60); i++) {
		pthread_t reaper, reader;
		struct { int fd; int pid; char *p; } x = { .p = a.p };
		struct turns t;
		int status;

		ASSERT_EQ(0, turns_init(&t));
		x.pid = fork();
		ASSERT_LE(0, x.pid);
		if (!x.pid) {
			struct ring r;
			pthread_t th;

			CHILD_CHECK(!emu_open(&a.dev[0], 0) && !emu_open(&a.dev[1], 1));
			for (j = 0; j < 3; j++) {
				a.hm[j] = hm_open();
				CHILD_CHECK(a.hm[j] >= 0);
				CHILD_CHECK(!hm_track(a.hm[j], a.p, SIZE));
				CHILD_CHECK(!ring_open(a.hm[j], 256, ALL_EVENTS, &r));
			}
			a.seed += i * 104729;
			for (j = 0; j < 4; j++)
				CHILD_CHECK(!pthread_create(&th, NULL, churn, &a));
			turn_pass(t.to_parent[1]);
			churn(&a);
		}
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		x.fd = syscall(SYS_pidfd_open, x.pid, 0);
		ASSERT_LE(0, x.fd);
		ASSERT_EQ(0, pthread_create(&reader, NULL, read_it, &x));
		/* time: the moment varies, and each is right */
		usleep(20000 + i * 3001 % 200000);
		/* Unless it has ended, which it must not. */
		if (waitpid(x.pid, &status, WNOHANG))
			EXPECT_EQ(-1, status);
		kill(x.pid, SIGKILL);
		ASSERT_EQ(0, pthread_create(&reaper, NULL, reap, &x.fd));
		if (i % 8 == 7)
			EXPECT_EQ(0, module_unload("hetmem_emu"));
		EXPECT_EQ(128 + SIGKILL, child_status(x.pid));
		pthread_join(reaper, NULL);
		pthread_join(reader, NULL);
		if (i % 8 == 7)
			EXPECT_EQ(0, module_load(&emu));
		close(x.fd);
		close(t.to_child[1]);
		close(t.to_parent[0]);
		ASSERT_EQ(-1, mismatch(a.p, SIZE, 1));
		ASSERT_EQ(-1, mismatch(a.file, MiB, 2));
	}
	EXPECT_TRUE(EVENTUALLY(nr_contexts() == contexts));
	EXPECT_TRUE(EVENTUALLY(read_long(STATS "bytes") == bytes));
	EXPECT_TRUE(EVENTUALLY(pins_held() == held));
	for (i = 0; i < 2; i++) {
		struct hetmem_emu_cmd_info info;

		ASSERT_EQ(0, emu_open(&a.dev[i], i));
		EXPECT_TRUE(emu_empties(&a.dev[i], &info));
		close(a.dev[i].fd);
	}
}

TEST_HARNESS_MAIN
