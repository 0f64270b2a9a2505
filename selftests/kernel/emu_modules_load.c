// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Both modules go and come while everything that they keep account of is
 * there: contexts, ranges, pins, a mapped ring, pages and huge pages of the
 * devices; and in a loop while processes open, track, move and end.
 */
#include "hetmem_emu_test.h"
#include "hetmem_fd.h"
#include "hetmem_modules.h"
#include "hetmem_ring.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#define HUGE_PARAM	"/sys/module/hetmem_emu/parameters/huge"

FIXTURE(module)
{
	struct module hetmem, emu;
	struct rig rig;
	size_t size;
};

FIXTURE_SETUP(module)
{
	self->hetmem.name = "hetmem";
	self->emu.name = "hetmem_emu";
	module_params(&self->hetmem);
	module_params(&self->emu);
	ASSERT_EQ(0, rig_init(&self->rig));
	self->size = self->rig.size;
}

/* The tests leave no descriptor open. */
FIXTURE_TEARDOWN(module)
{
	struct rig rig;

	if (!module_loaded("hetmem"))
		EXPECT_EQ(0, module_load(&self->hetmem));
	if (!module_loaded("hetmem_emu"))
		EXPECT_EQ(0, module_load(&self->emu));
	EXPECT_EQ(0, rig_init(&rig));
	EXPECT_EQ(0, rig_exit(&rig));
}

static int pin(int fd, const void *p, size_t size, uint64_t *pinned)
{
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.flags = HETMEM_MIGRATE_PIN,
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = ANY_HOST,
		.timeout_ms = 60000,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_MIGRATE, &cmd);

	*pinned = cmd.pinned;
	return ret;
}

/* The devices' pages come back; the rest keeps hetmem until the last goes. */
TEST_F(module, with_everything)
{
	const long pages = self->size / page_size();
	struct emu *dev = self->rig.dev;
	int fd = self->rig.fd, sockets[2];
	char *small, *other, *held;
	struct mem huge;
	struct ring ring;
	uint64_t pinned;
	int ret;

	ASSERT_EQ(0, ring_open(fd, 64, ALL_EVENTS, &ring));
	small = map_filled(self->size, 1);
	other = map_filled(self->size, 2);
	held = map_filled(16 * page_size(), 3);
	ASSERT_TRUE(small && other && held);
	ASSERT_EQ(0, hm_track(fd, small, self->size));
	ASSERT_EQ(0, hm_track(fd, held, 16 * page_size()));
	ASSERT_EQ(pages, to_device(fd, &dev[0], small, self->size));
	ASSERT_EQ(pages, to_device(fd, &dev[1], other, self->size));
	ASSERT_EQ(0, pin(fd, held, 16 * page_size(), &pinned));
	EXPECT_EQ(16, pinned);
	ASSERT_EQ(0, write_text(HUGE_PARAM, "Y"));
	ret = mem_map(&huge, MEM_THP, HUGE_SIZE, 4);
	if (!ret)
		ASSERT_EQ(HUGE_SIZE / page_size(),
			  to_device(fd, &dev[0], huge.p, HUGE_SIZE));

	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem_emu"));
	close(dev[0].fd);
	close(dev[1].fd);
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	ASSERT_EQ(0, module_unload("hetmem_emu"));
	EXPECT_EQ(pages, pages_of_kind(fd, small, self->size, HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(small, self->size, 1));
	EXPECT_EQ(-1, mismatch(other, self->size, 2));
	EXPECT_EQ(-1, mismatch(held, 16 * page_size(), 3));
	if (!ret)
		EXPECT_EQ(-1, mismatch(huge.p, HUGE_SIZE, 4));
	mem_unmap(&huge);
	EXPECT_EQ(-ENODEV, to_device(fd, &dev[0], small, self->size));

	/* Of the context: open, then only mapped, then only on its way. */
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0,
				sockets));
	/* To nobody in particular: it is on its way from then on. */
	ASSERT_EQ(0, send_fd(sockets[0], fd));
	close(fd);
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	ring_close(&ring);
	EXPECT_EQ(-EAGAIN, module_unload_once("hetmem"));
	close(sockets[0]);
	close(sockets[1]);
	/* With it the pins go. */
	EXPECT_EQ(0, module_unload("hetmem"));
	EXPECT_EQ(-1, mismatch(held, 16 * page_size(), 3));
	ASSERT_EQ(0, module_load(&self->hetmem));
	ASSERT_EQ(0, module_load(&self->emu));
	munmap(small, self->size);
	munmap(other, self->size);
	munmap(held, 16 * page_size());
}

/* Opens what is there, uses it, and may end with all of it in use. */
static void use(size_t size, unsigned int turn)
{
	char *p = map_filled(size, 7);
	struct hetmem_cmd_migrate cmd;
	uint64_t pinned;
	struct emu e;
	int fd = hm_open(), ret;

	CHILD_CHECK(p);
	if (fd < 0) {
		CHILD_CHECK(fd == -ENOENT || fd == -ENODEV || fd == -ENXIO);
		_exit(0);
	}
	CHILD_CHECK(!hm_track(fd, p, size));
	if (!emu_open(&e, turn & 1)) {
		ret = migrate_contended(fd, p, size, e.loc, &cmd);
		CHILD_CHECK(!ret || ret == -ENODEV || ret == -ENOMEM);
		if (turn & 2)
			close(e.fd);
	}
	ret = pin(fd, p, page_size(), &pinned);
	CHILD_CHECK(!ret || ret == -EBUSY);
	CHILD_CHECK(mismatch(p, size, 7) < 0);
	_exit(0);
}

static long elapsed_ms(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since->tv_sec) * 1000 +
	       (now.tv_nsec - since->tv_nsec) / 1000000;
}

/*
 * Both go and come while processes use them, and end, all the time: for
 * LOAD_MS, or until hetmem_emu has gone at all, which others may put off.
 */
#define LOAD_MS		10000
#define LOAD_MAX_MS	30000

TEST_F_TIMEOUT(module, both_under_load, 120)
{
	volatile int *stop = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int i, ret, emu = 0, both = 0;
	struct timespec start;
	unsigned int turn;
	pid_t pid[2];
	long ms;

	ASSERT_NE(MAP_FAILED, stop);
	ASSERT_EQ(0, rig_exit(&self->rig));
	for (i = 0; i < 2; i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (pid[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (turn = i; !*stop; turn++) {
			pid_t one = fork();

			CHILD_CHECK(one >= 0);
			if (!one)
				use(self->size / 4, turn);
			CHILD_CHECK(!child_status(one));
		}
		_exit(0);
	}
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (both < test_rounds(12)) {
		ms = elapsed_ms(&start);
		if (ms > (emu ? LOAD_MS : LOAD_MAX_MS))
			break;
		ret = module_unload_once("hetmem_emu");
		if (ret == -EAGAIN) {
			usleep(100);
			continue;
		}
		ASSERT_EQ(0, ret);
		emu++;
		ret = module_unload_once("hetmem");
		if (!ret) {
			both++;
			ASSERT_EQ(0, module_load(&self->hetmem));
		} else {
			EXPECT_EQ(-EAGAIN, ret);
		}
		ASSERT_EQ(0, module_load(&self->emu));
	}
	*stop = 1;
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, child_status(pid[i]));
	TH_LOG("hetmem_emu went %d times, hetmem %d", emu, both);
	EXPECT_LT(0, emu);
	munmap((void *)stop, page_size());
}

TEST_HARNESS_MAIN
