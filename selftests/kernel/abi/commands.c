// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Each command's arguments: what is documented as wrong gets its documented
 * errno and changes nothing, and what is right works.
 */
#include "libktest/harness.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

/* Bytes in each half of the fixture's buffer. */
#define HALF	(16 * page_size())

FIXTURE(command)
{
	int fd;
	char *p;
	struct hetmem_cmd_stats before;
	union any_command c;
};

FIXTURE_VARIANT(command)
{
	enum command_id id;
};

FIXTURE_VARIANT_ADD(command, info) { .id = CMD_INFO };
FIXTURE_VARIANT_ADD(command, track) { .id = CMD_TRACK };
FIXTURE_VARIANT_ADD(command, untrack) { .id = CMD_UNTRACK };
FIXTURE_VARIANT_ADD(command, residency) { .id = CMD_RESIDENCY };
FIXTURE_VARIANT_ADD(command, migrate) { .id = CMD_MIGRATE };
FIXTURE_VARIANT_ADD(command, unpin) { .id = CMD_UNPIN };
FIXTURE_VARIANT_ADD(command, stats) { .id = CMD_STATS };
FIXTURE_VARIANT_ADD(command, ring) { .id = CMD_RING };
FIXTURE_VARIANT_ADD(command, refresh) { .id = CMD_REFRESH };
FIXTURE_VARIANT_ADD(command, allow) { .id = CMD_ALLOW };
FIXTURE_VARIANT_ADD(command, bind_device) { .id = CMD_BIND_DEVICE };
FIXTURE_VARIANT_ADD(command, hint) { .id = CMD_HINT };
FIXTURE_VARIANT_ADD(command, complete) { .id = CMD_COMPLETE };
FIXTURE_VARIANT_ADD(command, list) { .id = CMD_LIST };
FIXTURE_VARIANT_ADD(command, migrate_vector) { .id = CMD_MIGRATE_VECTOR };
FIXTURE_VARIANT_ADD(command, background) { .id = CMD_BACKGROUND };

FIXTURE_SETUP(command)
{
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	self->p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, 2 * HALF, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, HALF));
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &self->before));
	command_valid(variant->id, &self->c, self->p, HALF);
}

FIXTURE_TEARDOWN(command)
{
	EXPECT_EQ(-1, mismatch(self->p, 2 * HALF, 1));
	munmap(self->p, 2 * HALF);
	EXPECT_EQ(0, close(self->fd));
}

/* One range, its counters as they were, nothing moved. */
static const char *changed(int fd, const char *p,
			   const struct hetmem_cmd_stats *before)
{
	struct hetmem_cmd_stats now;
	struct hetmem_cmd_info info;

	if (hm_info(fd, &info) || info.nr_ranges != 1)
		return "the number of ranges";
	if (hm_stats(fd, p, &now) || now.start != before->start ||
	    now.end != before->end)
		return "the range";
	if (memcmp(now.changes, before->changes, sizeof(now.changes)) ||
	    now.to_device != before->to_device ||
	    now.to_host != before->to_host || now.failed != before->failed)
		return "the counters";
	if (pages_of_kind(fd, p, 2 * HALF, HETMEM_HOST) !=
	    (long)(2 * HALF / page_size()))
		return "the residency";
	return "";
}

#define EXPECT_REFUSED(error)						\
	do {								\
		EXPECT_EQ(error, command_call(self->fd, variant->id,	\
					      &self->c));		\
		EXPECT_STREQ("", changed(self->fd, self->p,		\
					 &self->before));		\
	} while (0)

#define RIGHT	commands[variant->id].right

TEST_F(command, works)
{
	EXPECT_EQ(RIGHT, command_call(self->fd, variant->id, &self->c));
	EXPECT_EQ(commands[variant->id].size, self->c.head.size);
}

TEST_F(command, size_zero)
{
	self->c.head.size = 0;
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, size_too_small)
{
	size_t size;

	for (size = 1; size < commands[variant->id].size; size++) {
		self->c.head.size = size;
		EXPECT_EQ(-EINVAL,
			  command_call(self->fd, variant->id, &self->c));
	}
	EXPECT_REFUSED(-EINVAL);
}

/* A program compiled with a later header, on this kernel. */
TEST_F(command, larger_with_zeroes)
{
	size_t size = commands[variant->id].size + 24;
	size_t i;

	self->c.head.size = size;
	/* Only what size covers is the kernel's to look at or to write. */
	memset(self->c.bytes + size, 0xa5, 16);
	EXPECT_EQ(RIGHT, command_call(self->fd, variant->id, &self->c));
	for (i = commands[variant->id].size; i < size; i++)
		EXPECT_EQ(0, self->c.bytes[i]);
	for (i = size; i < size + 16; i++)
		EXPECT_EQ(0xa5, self->c.bytes[i]);
}

TEST_F(command, larger_with_unknown_members)
{
	size_t first = commands[variant->id].size, last = first + 23;

	self->c.head.size = last + 1;
	self->c.bytes[first] = 1;
	EXPECT_REFUSED(-E2BIG);
	self->c.bytes[first] = 0;
	self->c.bytes[last] = 0x80;
	EXPECT_REFUSED(-E2BIG);
}

/* More than a page, zeroes or not: no loop over 4 GiB, no allocation of it. */
TEST_F(command, size_above_a_page)
{
	char *room = calloc(2, page_size());

	ASSERT_NE(NULL, room);
	memcpy(room, &self->c, commands[variant->id].size);
	((struct command_head *)room)->size = page_size();
	EXPECT_EQ(RIGHT, command_call(self->fd, variant->id, room));
	((struct command_head *)room)->size = page_size() + 8;
	EXPECT_EQ(-E2BIG, command_call(self->fd, variant->id, room));
	free(room);
}

TEST_F(command, size_enormous)
{
	self->c.head.size = 0xfffffff8;
	EXPECT_REFUSED(-E2BIG);
}

TEST_F(command, unknown_flags)
{
	int bit;

	for (bit = 0; bit < 32; bit++) {
		if (commands[variant->id].known_flags & 1U << bit)
			continue;
		command_valid(variant->id, &self->c, self->p, HALF);
		self->c.head.flags = 1U << bit;
		EXPECT_EQ(-EINVAL,
			  command_call(self->fd, variant->id, &self->c)) {
			TH_LOG("flag bit %d", bit);
		}
	}
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, reserved)
{
	size_t at = commands[variant->id].reserved;
	int bit;

	if (!at)
		return;
	for (bit = 0; bit < 32; bit++) {
		command_valid(variant->id, &self->c, self->p, HALF);
		self->c.bytes[at + bit / 8] = 1 << bit % 8;
		EXPECT_REFUSED(-EINVAL);
	}
}

TEST_F(command, struct_unreadable)
{
	char *page = mmap(NULL, 2 * page_size(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t size = commands[variant->id].size, have;
	void *bad[] = { NULL, (void *)8, (void *)KERNEL_ADDR };
	size_t i;

	ASSERT_NE(MAP_FAILED, page);
	ASSERT_EQ(0, munmap(page + page_size(), page_size()));
	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT_EQ(-EFAULT,
			  command_call(self->fd, variant->id, bad[i])) {
			TH_LOG("pointer %p", bad[i]);
		}
	}
	/* Its tail is in the page that is gone. */
	for (have = 4; have < size; have += 4) {
		char *c = page + page_size() - have;

		memcpy(c, &self->c, have);
		EXPECT_EQ(-EFAULT, command_call(self->fd, variant->id, c)) {
			TH_LOG("%zu bytes of %zu", have, size);
		}
	}
	ASSERT_EQ(0, mprotect(page, page_size(), PROT_NONE));
	EXPECT_EQ(-EFAULT, command_call(self->fd, variant->id, page));
	EXPECT_STREQ("", changed(self->fd, self->p, &self->before));
	munmap(page, page_size());
}

TEST_F(command, struct_unaligned)
{
	char buf[sizeof(self->c) + 8];

	memcpy(buf + 1, &self->c, commands[variant->id].size);
	EXPECT_EQ(RIGHT, command_call(self->fd, variant->id, buf + 1));
}

/*
 * Addresses: only commands that take one are asked; the others have nothing
 * that could be wrong and say so by their known answer.
 */
TEST_F(command, start_unaligned)
{
	if (!commands[variant->id].start)
		return;
	self->c.head.start += 8;
	EXPECT_REFUSED(-EINVAL);
	self->c.head.start += page_size() - 9;
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, start_in_kernel)
{
	if (!commands[variant->id].start || commands[variant->id].range)
		return;
	self->c.head.start = KERNEL_ADDR;
	EXPECT_REFUSED(-ERANGE);
	self->c.head.start = -page_size();
	EXPECT_REFUSED(-ERANGE);
	self->c.head.start = 1UL << 62;
	EXPECT_REFUSED(-ERANGE);
}

TEST_F(command, end_unaligned)
{
	if (!commands[variant->id].range)
		return;
	self->c.head.end -= 1;
	EXPECT_REFUSED(-EINVAL);
	self->c.head.end -= page_size() - 9;
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, range_empty)
{
	if (!commands[variant->id].range)
		return;
	self->c.head.end = self->c.head.start;
	EXPECT_REFUSED(-EINVAL);
	self->c.head.start = 0;
	self->c.head.end = 0;
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, range_backwards)
{
	uint64_t start = self->c.head.start;

	if (!commands[variant->id].range)
		return;
	self->c.head.start = self->c.head.end;
	self->c.head.end = start;
	EXPECT_REFUSED(-EINVAL);
	/* start + length that overflowed */
	self->c.head.start = -page_size();
	self->c.head.end = page_size();
	EXPECT_REFUSED(-EINVAL);
	self->c.head.end = 0;
	EXPECT_REFUSED(-EINVAL);
}

TEST_F(command, range_in_kernel)
{
	if (!commands[variant->id].range)
		return;
	self->c.head.end = KERNEL_ADDR;
	EXPECT_REFUSED(-ERANGE);
	self->c.head.end = -page_size();
	EXPECT_REFUSED(-ERANGE);
	self->c.head.start = KERNEL_ADDR;
	EXPECT_REFUSED(-ERANGE);
	self->c.head.end = KERNEL_ADDR + page_size();
	EXPECT_REFUSED(-ERANGE);
	/* not canonical */
	self->c.head.start = 1UL << 62;
	self->c.head.end = (1UL << 62) + page_size();
	EXPECT_REFUSED(-ERANGE);
}

/* An answer that cannot be written is an error. A command without one works. */
TEST_F(command, struct_read_only)
{
	void *ro = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, ro);
	memcpy(ro, &self->c, sizeof(self->c));
	ASSERT_EQ(0, mprotect(ro, page_size(), PROT_READ));
	EXPECT_EQ(commands[variant->id].answers ? -EFAULT : RIGHT,
		  command_call(self->fd, variant->id, ro));
	EXPECT_EQ(0, memcmp(ro, &self->c, sizeof(self->c)));
	munmap(ro, page_size());
}

FIXTURE(basic)
{
	int fd;
	char *p;
};

FIXTURE_SETUP(basic)
{
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	self->p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, 2 * HALF, 2);
}

FIXTURE_TEARDOWN(basic)
{
	EXPECT_EQ(-1, mismatch(self->p, 2 * HALF, 2));
	munmap(self->p, 2 * HALF);
	EXPECT_EQ(0, close(self->fd));
}

TEST_F(basic, open_close_many)
{
	int fds[63];		/* and the fixture's: all that may be */
	size_t i;
	pid_t pid;

	for (i = 0; i < ARRAY_SIZE(fds); i++) {
		fds[i] = hm_open();
		ASSERT_GE(fds[i], 0);
		EXPECT_EQ(0, hm_track(fds[i], self->p, HALF));
	}
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(-EDQUOT, hm_open());
		EXPECT_EQ(0, close(fds[i]));
		fds[i] = hm_open();
		EXPECT_LE(0, fds[i]);
	}
	/* Of one address space. */
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(hm_open() < 0);
	EXPECT_EQ(0, child_status(pid));
	for (i = 0; i < ARRAY_SIZE(fds); i++)
		EXPECT_EQ(0, close(fds[i]));
}

/* Each command on a file that is open as @access says, in a context of its own. */
static void call_all(struct __test_metadata *_metadata, char *p, int access)
{
	const bool writes = access != O_RDONLY;
	struct hetmem_cmd_info info;
	union any_command c;
	int fd, id, want;

	for (id = 0; id < CMD_NR; id++) {
		const struct command *command = &commands[id];

		fd = open(DEV_HETMEM, access | O_CLOEXEC);
		ASSERT_LE(0, fd);
		command_valid(id, &c, p, HALF);
		/* Nothing is tracked, which only a writer could change. */
		want = id == CMD_STATS || id == CMD_REFRESH || (writes && id == CMD_UNTRACK) ?
			-ENOENT : command->right;
		if (!writes && !command->looks)
			want = -EBADF;
		EXPECT_EQ(want, command_call(fd, id, &c)) {
			TH_LOG("%s", command->name);
		}
		ASSERT_EQ(0, hm_info(fd, &info));
		EXPECT_EQ(writes && id == CMD_TRACK, info.nr_ranges);
		close(fd);
	}
}

TEST_F(basic, open_read_only)
{
	call_all(_metadata, self->p, O_RDONLY);
	EXPECT_EQ(0, vm_pin());
}

TEST_F(basic, open_write_only)
{
	call_all(_metadata, self->p, O_WRONLY);
}

/* Who may not use a context is not told how its file was opened. */
TEST_F(basic, read_only_stranger)
{
	int fd = open(DEV_HETMEM, O_RDONLY | O_CLOEXEC), id;
	union any_command c;
	pid_t pid;

	ASSERT_LE(0, fd);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		for (id = 0; id < CMD_NR; id++) {
			command_valid(id, &c, self->p, HALF);
			if (!commands[id].stranger)
				CHILD_CHECK(command_call(fd, id, &c) == -EPERM);
		}
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	close(fd);
}

TEST_F(basic, only_ioctl)
{
	char byte = 0;

	EXPECT_EQ(-1, read(self->fd, &byte, 1));
	EXPECT_EQ(-1, write(self->fd, &byte, 1));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, page_size(), PROT_READ, MAP_SHARED,
				   self->fd, 0));
}

TEST_F(basic, unknown_command)
{
	union any_command c;
	unsigned int nr;

	memset(&c, 0, sizeof(c));
	c.head.size = 64;
	for (nr = CMD_NR; nr < 256; nr++)
		EXPECT_EQ(-ENOTTY,
			  hm_ioctl(self->fd, _IO(HETMEM_TYPE, nr), &c));
	EXPECT_EQ(-ENOTTY, hm_ioctl(self->fd, _IO(HETMEM_TYPE - 1, 0), &c));
	/* The size is not part of the number. */
	EXPECT_EQ(-ENOTTY, hm_ioctl(self->fd,
				    _IOWR(HETMEM_TYPE, 0,
					  struct hetmem_cmd_info), &c));
}

TEST_F(basic, info)
{
	struct hetmem_cmd_info info;

	ASSERT_EQ(0, hm_info(self->fd, &info));
	EXPECT_EQ(HETMEM_VERSION, info.version);
	EXPECT_EQ(21, info.block_shift);
	EXPECT_EQ(0, info.features & ~HETMEM_FEATURE_DEVICE_PRIVATE);
	EXPECT_EQ(sysfs_read("caps/user_kb") << 10, info.max_bytes);
	EXPECT_LT(0, info.used_bytes);
	EXPECT_EQ(0, info.nr_ranges);
	ASSERT_EQ(0, hm_track(self->fd, self->p, HALF));
	ASSERT_EQ(0, hm_info(self->fd, &info));
	EXPECT_EQ(1, info.nr_ranges);
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, HALF));
	ASSERT_EQ(0, hm_info(self->fd, &info));
	EXPECT_EQ(0, info.nr_ranges);
}

/* What is said of devices. Of their array: arrays.c. */
TEST_F(basic, info_devices)
{
	struct hetmem_device_info devs[32];
	struct hetmem_cmd_info info;
	unsigned int nr, i;

	ASSERT_EQ(0, hm_info(self->fd, &info));
	nr = info.nr_devices;
	ASSERT_LT(nr, ARRAY_SIZE(devs) / 2);

	memset(devs, 0xa5, sizeof(devs));
	info = (struct hetmem_cmd_info){ .size = sizeof(info) };
	info.devices = (uintptr_t)devs;
	info.device_size = sizeof(devs[0]);
	info.nr_devices = ARRAY_SIZE(devs);
	ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_INFO, &info));
	ASSERT_EQ(nr, info.nr_devices);
	for (i = 0; i < nr; i++) {
		EXPECT_LT(0, devs[i].capacity);
		EXPECT_LE(devs[i].used, devs[i].capacity);
		EXPECT_LT(strnlen(devs[i].name, sizeof(devs[i].name)),
			  sizeof(devs[i].name));
		EXPECT_LT(devs[i].id, 0xffff);
		if (i)
			EXPECT_NE(devs[i - 1].id, devs[i].id);
	}
	/* No entry is touched that there is no device for. */
	EXPECT_EQ(0xa5, ((unsigned char *)&devs[nr])[0]);
	EXPECT_EQ(0xa5, ((unsigned char *)&devs[nr + 1])[-1]);
}

TEST_F(basic, residency_arguments)
{
	struct hetmem_run run;
	struct hetmem_total total;
	struct hetmem_cmd_residency good = {
		.start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + HALF,
		.runs = (uintptr_t)&run,
		.nr_runs = 1,
		.run_size = sizeof(struct hetmem_run),
		.totals = (uintptr_t)&total,
		.nr_totals = 1,
		.total_size = sizeof(struct hetmem_total),
	}, cmd = good;

	EXPECT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(1, cmd.filled_runs);
	EXPECT_EQ(1, cmd.filled_totals);
	cmd = good;
	cmd.nr_totals = HETMEM_MAX_TOTALS + 1;
	EXPECT_EQ(-EINVAL, hm_residency(self->fd, &cmd));
	cmd = good;
	cmd.runs = KERNEL_ADDR;
	EXPECT_EQ(-EFAULT, hm_residency(self->fd, &cmd));
	cmd = good;
	cmd.runs = 0;
	EXPECT_EQ(-EFAULT, hm_residency(self->fd, &cmd));
	cmd = good;
	cmd.totals = KERNEL_ADDR;
	EXPECT_EQ(-EFAULT, hm_residency(self->fd, &cmd));
	cmd = good;
	cmd.totals = 0;
	EXPECT_EQ(-EFAULT, hm_residency(self->fd, &cmd));
	/* Arrays that are not asked for may be anything. */
	cmd = good;
	cmd.runs = 0;
	cmd.nr_runs = 0;
	cmd.totals = 0;
	cmd.nr_totals = 0;
	EXPECT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(good.end, cmd.walk_end);
}

TEST_F(basic, stats_arguments)
{
	struct hetmem_cmd_stats st;

	EXPECT_EQ(-ENOENT, hm_stats(self->fd, self->p, &st));
	ASSERT_EQ(0, hm_track(self->fd, self->p, HALF));
	EXPECT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ((uintptr_t)self->p, st.start);
	EXPECT_EQ((uintptr_t)self->p + HALF, st.end);
	/* Any page of the range finds it. */
	EXPECT_EQ(0, hm_stats(self->fd, self->p + HALF - page_size(), &st));
	EXPECT_EQ((uintptr_t)self->p, st.start);
	EXPECT_EQ((uintptr_t)self->p + HALF, st.end);
	EXPECT_EQ(-ENOENT, hm_stats(self->fd, self->p + HALF, &st));
	EXPECT_EQ(-ENOENT, hm_stats(self->fd, self->p - page_size(), &st));
	EXPECT_EQ(0, hm_stats_context(self->fd, &st));
	/* What a context does not have is 0, whatever was there before. */
	memset(&st, 0xff, sizeof(st));
	st.size = sizeof(st);
	st.flags = HETMEM_STATS_CONTEXT;
	st.start = 0;
	st.reserved = 0;
	EXPECT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	EXPECT_EQ(0, st.on_device);
	EXPECT_EQ(0, st.dirty_blocks);
	EXPECT_EQ(0, st.as_of);
	EXPECT_EQ(0, st.thrashed);
	st.size = sizeof(st);
	st.flags = 0;
	st.start = KERNEL_ADDR;
	EXPECT_EQ(-ERANGE, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	/* Whatever the caller said there before, the kernel fills its own. */
	memset(&st, 0xff, sizeof(st));
	st.size = sizeof(st);
	st.flags = 0;
	st.reserved = 0;
	st.start = (uintptr_t)self->p;
	EXPECT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	EXPECT_EQ(HETMEM_CHANGE_NR, st.nr_changes);
	st.size = sizeof(st);
	st.flags = HETMEM_STATS_CONTEXT;
	st.start = 0;
	st.nr_changes = 0;
	EXPECT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	EXPECT_EQ(HETMEM_CHANGE_NR, st.nr_changes);
	st = (struct hetmem_cmd_stats){
		.size = sizeof(st),
		.flags = HETMEM_STATS_CONTEXT,
		.start = (uintptr_t)self->p,
	};
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
}

/* What is held there, of what was asked for, and no more. */
TEST_F(basic, unpin_arguments)
{
	const size_t page = page_size();
	struct hetmem_cmd_migrate cmd;
	uint64_t nr = ~0ULL;

	/* Nothing is held, mapped or not. */
	EXPECT_EQ(0, hm_unpin(self->fd, self->p, 2 * HALF, &nr));
	EXPECT_EQ(0, nr);
	EXPECT_EQ(0, hm_unpin(self->fd, (void *)(64UL << 30), page, &nr));
	EXPECT_EQ(0, nr);
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 8 * page, HETMEM_PIN_TIMEOUT_MAX,
			    &cmd));
	ASSERT_EQ(8, cmd.pinned);
	EXPECT_EQ(0, hm_unpin(self->fd, self->p + 8 * page, 8 * page, &nr));
	EXPECT_EQ(0, nr);
	EXPECT_EQ(8, pages_pinned(self->fd, self->p, 2 * HALF));
	EXPECT_EQ(0, hm_unpin(self->fd, self->p + 2 * page, 3 * page, &nr));
	EXPECT_EQ(3, nr);
	EXPECT_EQ(5, pages_pinned(self->fd, self->p, 2 * HALF));
	EXPECT_EQ(0, pages_pinned(self->fd, self->p + 2 * page, 3 * page));
	/* Free to move now, and their charge is gone. */
	EXPECT_EQ(5, vm_pin());
	EXPECT_EQ(0, hm_unpin(self->fd, self->p, 2 * HALF, &nr));
	EXPECT_EQ(5, nr);
	EXPECT_EQ(0, hm_unpin(self->fd, self->p, 2 * HALF, &nr));
	EXPECT_EQ(0, nr);
	EXPECT_EQ(0, vm_pin());
	/* Of everything there is. */
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 8 * page, HETMEM_PIN_TIMEOUT_MAX,
			    &cmd));
	EXPECT_EQ(0, hm_unpin(self->fd, NULL, 0x7ffffffff000, &nr));
	EXPECT_EQ(8, nr);
}

TEST_F(basic, allow_arguments)
{
	const uint32_t known = HETMEM_SHAREABLE | HETMEM_ALLOW_HINTS;
	struct hetmem_list_entry e[64];
	int bit, i, nr, seen = 0;

	EXPECT_EQ(0, hm_allow(self->fd, known));
	for (bit = 0; bit < 32; bit++) {
		if (known & 1U << bit)
			continue;
		EXPECT_EQ(-EINVAL, hm_allow(self->fd, 1U << bit));
		EXPECT_EQ(-EINVAL, hm_allow(self->fd, 1U << bit | known));
	}
	/* What is refused has changed nothing. */
	nr = hm_list(self->fd, e, ARRAY_SIZE(e));
	ASSERT_LT(0, nr);
	for (i = 0; i < nr; i++) {
		if (e[i].pid != (uint32_t)getpid())
			continue;
		EXPECT_EQ(known, e[i].flags);
		seen++;
	}
	EXPECT_EQ(1, seen);
}

TEST_HARNESS_MAIN
