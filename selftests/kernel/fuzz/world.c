// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the fuzzer does to the machine, which is a virtual one: it turns on
 * all that moves and merges memory behind a process's back, and while the
 * workers run it keeps changing what the administrator can change.
 */
#include "fuzz.h"

#include <sys/stat.h>
#include <sys/swap.h>
#include <linux/fs.h>


/* As mkswap(8) and swapon(8). */
static bool swap_on(const char *path)
{
	uint64_t size = 0;
	struct {
		char boot[1024];
		uint32_t version, last_page, nr_bad, padding[125];
	} header = { .version = 1 };
	int fd = open(path, O_RDWR | O_CLOEXEC);
	bool written;

	if (fd < 0)
		return false;
	ioctl(fd, BLKGETSIZE64, &size);
	header.last_page = size / page_size() - 1;
	written = pwrite(fd, &header, sizeof(header), 0) == sizeof(header) &&
		  pwrite(fd, "SWAPSPACE2", 10, page_size() - 10) == 10 &&
		  !fsync(fd);
	close(fd);
	return written && !swapon(path, 0);
}

static const char *const swap_devices[] = {
	"/dev/zram0", "/dev/ram0", "/dev/ram1", "/dev/ram2", "/dev/ram3",
};

static bool swap_init(void)
{
	bool any = false;
	unsigned int i;

	write_text("/sys/block/zram0/disksize", "33554432");
	for (i = 0; i < ARRAY_SIZE(swap_devices); i++)
		any |= swap_on(swap_devices[i]);
	return any;
}

/* Two groups: one that is slowed down at its limit, one that is killed. */
static bool cgroup_init(void)
{
	write_text(CGROUP "cgroup.subtree_control", "+memory");
	mkdir(CGROUP "fuzz-high", 0755);
	mkdir(CGROUP "fuzz-max", 0755);
	return !write_text(CGROUP "fuzz-high/memory.high", "24M") &&
	       !write_text(CGROUP "fuzz-max/memory.max", "20M");
}

void world_init(struct world *world)
{
	unsigned int i;

	/* An OOM kill of the group that is limited shall not fill the log. */
	write_text("/proc/sys/vm/oom_dump_tasks", "0");
	write_text("/proc/sys/vm/overcommit_memory", "1");
	write_text("/proc/sys/vm/nr_hugepages", "8");
	write_text("/proc/sys/kernel/numa_balancing", "1");
	write_text("/sys/kernel/debug/sched/numa_balancing/scan_delay_ms", "10");
	write_text("/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms",
		   "10");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "500");
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "50");
	write_text("/sys/kernel/mm/ksm/run", "1");
	write_text("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
		   "20");
	write_text("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
		   "4096");
	write_text("/sys/kernel/mm/lru_gen/enabled", "7");
	world->swap = swap_init();
	world->cgroup = cgroup_init();
	world->devices = true;
	for (i = 0; i < FUZZ_DEVICES && world->devices; i++) {
		struct emu e = { .fd = -1 };

		world->devices = !emu_open(&e, i);
		world->id[i] = HETMEM_LOC_INDEX(e.loc);
		world->capacity[i] = e.capacity;
		close(e.fd);
	}
}

void world_exit(struct world *world)
{
	unsigned int i;

	write_text("/sys/kernel/mm/ksm/run", "2");
	rmdir(CGROUP "fuzz-high");
	rmdir(CGROUP "fuzz-max");
	for (i = 0; world->swap && i < ARRAY_SIZE(swap_devices); i++)
		swapoff(swap_devices[i]);
}

static void world_limit(const struct world *world, unsigned int i, long limit)
{
	char path[96];

	snprintf(path, sizeof(path), SYSFS "devices/%u/limit", world->id[i]);
	write_long(path, limit);
}

/* What an administrator sets is what he sets again: never left behind. */
void world_restore(const struct world *world)
{
	unsigned int i;

	write_text(SYSFS "caps/user_kb", "65536");
	write_text(SYSFS "caps/total_kb", "262144");
	write_text(SYSFS "caps/max_hints", "64");
	write_text(SYSFS "thrash/count", "8");
	for (i = 0; world->devices && i < FUZZ_DEVICES; i++)
		world_limit(world, i, world->capacity[i]);
}

/* One thing that happens to the machine, or that an administrator does. */
void world_operate(const struct world *world, struct random *r)
{
	static const char *const files[] = {
		"caps/user_kb", "caps/total_kb", "caps/max_hints", "caps/pinned_kb",
		"thrash/count", "thrash/window_ms", "stats/ranges",
		"stats/contexts", "stats/bytes", "stats/moving", "stats/pages_pinned",
	};
	char path[128];

	switch (pick(r, 12)) {
	case 0:
		if (one_in(r, 8))
			write_text("/proc/sys/vm/compact_memory", "1");
		break;
	case 1:
		if (one_in(r, 8))
			write_text("/proc/sys/vm/drop_caches", "3");
		break;
	case 2:
		write_text(SYSFS "caps/user_kb",
			   one_in(r, 2) ? "1200" : "65536");
		break;
	case 3:
		write_text(SYSFS "caps/total_kb",
			   one_in(r, 4) ? "2400" : "262144");
		break;
	case 4:
		write_text(SYSFS "thrash/count",
			   one_in(r, 2) ? "2" : "8");
		break;
	case 5:
		write_text(SYSFS "caps/max_hints",
			   one_in(r, 2) ? "1" : "64");
		break;
	case 6:
	case 7:
	case 8:
		if (world->devices) {
			unsigned int i = pick(r, FUZZ_DEVICES);
			long capacity = world->capacity[i];

			world_limit(world, i, one_in(r, 2) ? capacity :
				    (long)pick(r, capacity));
		}
		break;
	case 9:
		write_text(CGROUP "fuzz-high/memory.reclaim", "1M");
		break;
	default:
		snprintf(path, sizeof(path), SYSFS "%s",
			 PICK(r, files));
		if (read_long(path) < 0)
			wrong("%s cannot be read", path);
		break;
	}
}

static void run_on(unsigned int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/*
 * A process that ends long after the others, as a worker's child can that was
 * just made when the worker was killed. It leaves pages on a device: some that
 * it has locked, some that it shares. Until then it has the context of @hm.
 */
void leave_late(int hm)
{
	struct hetmem_cmd_migrate cmd;
	struct emu e;

	run_on(0);
	if (!fork()) {
		run_on(1);
		/* time: ends after the workers, whose moment it cannot know */
		usleep(3500000);
		mlock(inherited, INHERITED_SIZE / 4);
		if (!emu_open(&e, 0))
			hm_migrate(hm_open(), inherited, INHERITED_SIZE, e.loc,
				   &cmd);
		_exit(0);
	}
	close(hm);
}

/*
 * What nobody has left on a device goes. A page that was locked waits in a batch
 * of some CPU when its last process has gone. And a page that two processes
 * share moves for both: what others had from this one stays until it is touched.
 */
void take_back(void)
{
	struct hetmem_cmd_migrate cmd;
	int fd = hm_open();

	write_text("/proc/sys/vm/drop_caches", "1");
	hm_migrate(fd, NULL, 0x7ffffffff000, ANY_HOST, &cmd);
	close(fd);
}
