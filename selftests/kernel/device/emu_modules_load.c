// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Both modules go and come while everything that they keep account of is
 * there: contexts, ranges, pins, a mapped ring, pages and huge pages of the
 * devices; and in a loop while processes open, track, move and end.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

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
		ret = hm_migrate(fd, p, size, e.loc, &cmd);
		CHILD_CHECK(!ret || ret == -ENODEV || ret == -ENOMEM);
		if (turn & 2)
			close(e.fd);
	}
	ret = pin(fd, p, page_size(), &pinned);
	CHILD_CHECK(!ret);
	CHILD_CHECK(mismatch(p, size, 7) < 0);
	_exit(0);
}

/* What goes on all the time, without an open file of a device. */
struct load {
	int stop;
	uint32_t loc;	/* of the device, as long as it is there */
	long moved;
};

static void migrate_load(struct load *l, int fd, char *p, size_t size)
{
	struct hetmem_cmd_migrate cmd;

	if (!hm_migrate(fd, p, size, l->loc, &cmd))
		__atomic_fetch_add(&l->moved, cmd.moved, __ATOMIC_RELAXED);
	hm_migrate(fd, p, size, ANY_HOST, &cmd);
}

static void info_load(struct load *l, int fd, char *p, size_t size)
{
	struct hetmem_device_info devices[4];
	struct hetmem_cmd_info cmd = {
		.size = sizeof(cmd),
		.devices = (uintptr_t)devices,
		.device_size = sizeof(devices[0]),
		.nr_devices = ARRAY_SIZE(devices),
	};

	CHILD_CHECK(!hm_ioctl(fd, HETMEM_IOC_INFO, &cmd));
}

static void sysfs_load(struct load *l, int fd, char *p, size_t size)
{
	char name[64];

	snprintf(name, sizeof(name), "devices/%u/used", HETMEM_LOC_INDEX(l->loc));
	sysfs_read(name);
}

/*
 * Operations that run do not keep the module: its end waits for them, and so each
 * attempt to unload it succeeds at once. Only open files keep it: see in_use.
 */
TEST_F(module, operations_do_not_keep_it)
{
	static const struct {
		const char *name;
		void (*fn)(struct load *l, int fd, char *p, size_t size);
	} kinds[] = {
		{ "MIGRATE", migrate_load }, { "INFO", info_load },
		{ "used", sysfs_load },
	};
	const int tries = test_rounds(32) + 1;
	struct load *l = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	size_t i, j, size = self->size / 4;
	int attempt, went;
	struct emu dev;
	pid_t pid[2];

	ASSERT_NE(MAP_FAILED, l);
	l->loc = self->rig.dev[0].loc;
	ASSERT_EQ(0, rig_exit(&self->rig));
	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		l->stop = 0;
		for (j = 0; j < 2; j++) {
			pid[j] = fork();
			ASSERT_LE(0, pid[j]);
			if (!pid[j]) {
				char *p = map_filled(size, 7);
				int fd = hm_open();

				prctl(PR_SET_PDEATHSIG, SIGKILL);
				CHILD_CHECK(p && fd >= 0);
				while (!word_read(&l->stop))
					kinds[i].fn(l, fd, p, size);
				CHILD_CHECK(mismatch(p, size, 7) < 0);
				_exit(0);
			}
		}
		for (attempt = 0, went = 0; attempt < tries; attempt++) {
			/* time: the moment varies, and each is right */
			usleep(1000 * (attempt % 7));
			if (module_unload_once("hetmem_emu"))
				continue;
			went++;
			ASSERT_EQ(0, module_load(&self->emu));
			ASSERT_EQ(0, emu_open(&dev, 0));
			l->loc = dev.loc;
			close(dev.fd);
		}
		/* A busy host may not have run a child yet. */
		if (kinds[i].fn == migrate_load)
			EXPECT_TRUE(EVENTUALLY(__atomic_load_n(&l->moved, __ATOMIC_RELAXED)));
		word_add(&l->stop);
		for (j = 0; j < 2; j++)
			EXPECT_EQ(0, child_status(pid[j]));
		TH_LOG("%s: of %d attempts %d succeeded", kinds[i].name, tries, went);
		EXPECT_EQ(tries, went);
	}
	munmap(l, page_size());
}

/*
 * Both go and come while processes use them, and end, all the time: for
 * LOAD_MS, or until hetmem_emu has gone at all, which open files may put off.
 */
#define LOAD_MS		10000

TEST_F(module, both_under_load)
{
	volatile int *stop = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int i, ret, emu = 0, both = 0;
	unsigned int turn;
	pid_t pid[2];
	long begin;

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
	begin = had_ms();
	while (both < test_rounds(12) &&
	       had_ms() - begin < (emu ? LOAD_MS : PATIENCE_MS)) {
		ret = module_unload_once("hetmem_emu");
		if (ret == -EAGAIN) {
			/* time: the pace of looks */
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
