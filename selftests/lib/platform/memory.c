// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How much memory is left: figures from trees of files that look like other hosts
 * and containers, which of them count on which device, the reserve, and errors.
 */
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "platform/machine.h"

#define MIB	((uint64_t)1 << 20)
#define GIB	((uint64_t)1 << 30)

static char root[] = "/tmp/hetmem-memory-XXXXXX";

/* A file of the tree, with its directories. */
__attribute__((format(printf, 2, 3)))
static void put(const char *name, const char *fmt, ...)
{
	char path[512], *slash;
	va_list args;
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (slash = path + sizeof(root); (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	file = fopen(path, "w");
	need(file, "%s", path);
	va_start(args, fmt);
	vfprintf(file, fmt, args);
	va_end(args);
	fclose(file);
}

static void new_tree(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s/*", root);
	need(!system(command), "an empty tree");
}

/* 64 GiB, 40 available, 10 of 12 of page cache can be dropped. */
static void put_meminfo(void)
{
	put("/proc/meminfo",
	    "MemTotal:       67108864 kB\nMemFree:        33554432 kB\n"
	    "MemAvailable:   41943040 kB\nInactive:        1 kB\n"
	    "Active(file):    8388608 kB\nInactive(file):  4194304 kB\n"
	    "Dirty:           1048576 kB\nWriteback:       1048576 kB\n");
}

static struct hm_host_memory ask(void)
{
	struct hm_host_memory m;

	hm_host_memory(root, &m);
	return m;
}

static void meminfo(void)
{
	struct hm_host_memory m;

	new_tree();
	m = ask();
	ok(m.total == HETMEM_MEMORY_UNKNOWN && m.available == m.total &&
	   m.cache == m.total && m.cgroup == m.total, "no files: nothing is known");
	put_meminfo();
	m = ask();
	is(m.total, 64 * GIB, "total");
	is(m.available, 40 * GIB, "available");
	is(m.cache, 10 * GIB, "page cache, what is not dirty");
	ok(m.cgroup == HETMEM_MEMORY_UNKNOWN, "no cgroups: no limit");
	put("/proc/meminfo", "MemTotal: 8 kB\nXMemAvailable: 4 kB\n"
	    "Active(file): 2 kB\nInactive(file): 1 kB\nDirty: 5 kB\n");
	m = ask();
	ok(m.available == HETMEM_MEMORY_UNKNOWN, "another name is another figure");
	is(m.cache, 0, "more is dirty than there is");
	put("/proc/meminfo", "MemTotal: lots\n");
	ok(ask().total == HETMEM_MEMORY_UNKNOWN, "no number");
}

#define V2_MOUNT	"35 24 0:30 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
#define CG	"/sys/fs/cgroup"

static void cgroup2(void)
{
	struct hm_host_memory m;

	new_tree();
	put("/proc/self/cgroup", "0::/a/b\n");
	put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/root rw\n" V2_MOUNT, "/");
	put(CG "/a/b/memory.max", "max\n");
	put(CG "/a/b/memory.current", "5\n");
	ok(ask().cgroup == HETMEM_MEMORY_UNKNOWN, "max is no limit");
	put(CG "/a/memory.max", "1000000\n");
	put(CG "/a/memory.current", "400000\n");
	m = ask();
	is(m.cgroup, 600000, "the limit of the one above");
	is(m.cgroup_limit, 1000000, "its limit");
	ok(!strcmp(m.cgroup_name, "/a"), "its name: %s", m.cgroup_name);
	put(CG "/a/memory.stat", "anon 100\nactive_file 100000\ninactive_file 50000\n"
	    "workingset_active_file 77\n");
	is(ask().cgroup, 750000, "its page cache is as good as free");
	put(CG "/a/memory.stat", "active_file 500000\ninactive_file 50000\n");
	is(ask().cgroup, 1000000, "more cache than it uses");
	put(CG "/a/b/memory.max", "800000\n");
	put(CG "/a/b/memory.current", "300000\n");
	m = ask();
	is(m.cgroup, 500000, "the least of all");
	ok(!strcmp(m.cgroup_name, "/a/b"), "is its own: %s", m.cgroup_name);
	put(CG "/a/b/memory.high", "350000\n");
	is(ask().cgroup, 50000, "from memory.high on it is throttled");
	put(CG "/a/b/memory.current", "900000\n");
	is(ask().cgroup, 0, "more in use than the limit");
	put(CG "/memory.max", "10\n");
	put(CG "/memory.current", "1\n");
	put(CG "/a/b/memory.current", "1\n");
	m = ask();
	is(m.cgroup, 9, "at the top");
	ok(!strcmp(m.cgroup_name, "/"), "which has no name");

	/* A container that sees its own part of the hierarchy, by its full name. */
	new_tree();
	put("/proc/self/cgroup", "0::/docker/abc/x\n");
	put("/proc/self/mountinfo", V2_MOUNT, "/docker/abc");
	put(CG "/x/memory.max", "70\n");
	put(CG "/x/memory.current", "20\n");
	is(ask().cgroup, 50, "a container");
	put("/proc/self/cgroup", "0::/../other\n");
	put(CG "/memory.max", "40\n");
	put(CG "/memory.current", "30\n");
	is(ask().cgroup, 10, "a cgroup outside of it: what is seen");
	put("/proc/self/cgroup", "0::/\n");
	is(ask().cgroup, 10, "the top itself");
	put("/proc/self/cgroup", "nonsense\n");
	ok(ask().cgroup == HETMEM_MEMORY_UNKNOWN, "no cgroup that we know");

	new_tree();
	put("/proc/self/cgroup", "0::/a b\n");
	put("/proc/self/mountinfo",
	    "35 24 0:30 / /my\\040groups rw - cgroup2 none rw\n");
	put("/my groups/a b/memory.max", "7\n");
	put("/my groups/a b/memory.current", "4\n");
	is(ask().cgroup, 3, "blanks in names");
}

static void cgroup1(void)
{
	new_tree();
	put("/proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/m/n\n0::/v\n");
	put("/proc/self/mountinfo",
	    "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	    "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	    "32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
	put(CG "/memory/m/n/memory.limit_in_bytes", "9223372036854771712\n");
	put(CG "/memory/m/n/memory.usage_in_bytes", "1000\n");
	ok(ask().cgroup == HETMEM_MEMORY_UNKNOWN, "v1: a limit that is none");
	put(CG "/memory/m/memory.limit_in_bytes", "8000\n");
	put(CG "/memory/m/memory.usage_in_bytes", "6000\n");
	put(CG "/memory/m/memory.stat", "active_file 1\ntotal_active_file 500\n"
	    "total_inactive_file 300\n");
	is(ask().cgroup, 2800, "v1: the one above, with its cache");
	put(CG "/unified/v/memory.max", "100\n");
	put(CG "/unified/v/memory.current", "90\n");
	is(ask().cgroup, 10, "both versions: the less");
}

static struct hetmem_memory_info info_of(struct hetmem *hm, int device,
					 uint64_t reserve)
{
	struct hetmem_memory_info info = {
		.size = sizeof(info), .reserve = reserve,
	};

	need(!hetmem_memory_info(hm, device, &info), "device %d: %s", device,
	     hetmem_last_error());
	return info;
}

static void host(void)
{
	struct hetmem *hm = open_machine("managed memory=64M");
	struct hetmem_memory_info info;

	new_tree();
	hm->root = root;
	info = info_of(hm, -1, HETMEM_RESERVE_NONE);
	ok(info.usable == HETMEM_MEMORY_UNKNOWN && info.least == -1,
	   "nothing is known of the host");
	put_meminfo();
	info = info_of(hm, -1, HETMEM_RESERVE_NONE);
	is(info.usable, 40 * GIB, "what is available");
	is(info.least, HETMEM_MEMORY_HOST, "is the least");
	is(info.reserve, 0, "no reserve");
	ok(!info.figures[HETMEM_MEMORY_DRIVER].counts &&
	   info.figures[HETMEM_MEMORY_DRIVER].bytes == HETMEM_MEMORY_UNKNOWN,
	   "no driver: %s", info.figures[HETMEM_MEMORY_DRIVER].source);
	put("/proc/self/cgroup", "0::/a\n");
	put("/proc/self/mountinfo", V2_MOUNT, "/");
	put(CG "/a/memory.max", "%llu\n", (long long)(4 * GIB));
	put(CG "/a/memory.current", "%llu\n", (long long)GIB);
	info = info_of(hm, -1, 0);
	is(info.reserve, 2 * GIB, "1/32 of the host is the reserve");
	is(info.usable, GIB, "the cgroup's limit, less that");
	is(info.least, HETMEM_MEMORY_CGROUP, "is the least");
	ok(strstr(info.figures[HETMEM_MEMORY_CGROUP].source, "/a"), "it is named: %s",
	   info.figures[HETMEM_MEMORY_CGROUP].source);
	info = info_of(hm, -1, 5 * GIB);
	is(info.usable, 0, "a reserve of more than there is");
	is(info.reserve, 5 * GIB, "as it was asked for");
	hetmem_close(hm);
}

static void own_memory(void)
{
	struct hetmem *hm = open_machine("hmm memory=64M; none memory=64G");
	const struct hm_driver *d = &hm->driver;
	struct hetmem_memory_info info;
	struct hm_context saved;
	CUdeviceptr p;

	new_tree();
	put("/proc/meminfo", "MemTotal: 64 kB\nMemAvailable: 4 kB\n");
	hm->root = root;
	info = info_of(hm, 0, 0);
	is(info.total, 64 * MIB, "total");
	is(info.reserve, 2 * MIB, "1/32 is the reserve");
	is(info.usable, 62 * MIB, "all but that: the host's do not count");
	is(info.least, HETMEM_MEMORY_DRIVER, "by the driver");
	is(info.figures[HETMEM_MEMORY_HOST].bytes, 4096, "the host's are shown");
	is(info.figures[HETMEM_MEMORY_HOST].counts, 0, "only");
	ok(info.figures[HETMEM_MEMORY_MODULE].bytes == HETMEM_MEMORY_UNKNOWN,
	   "no module: %s", info.figures[HETMEM_MEMORY_MODULE].source);
	need(!hm_context_enter(hm, 0, &saved) &&
	     !d->cuMemAlloc(&p, 10 * MIB), "10 MiB of it");
	is(info_of(hm, 0, MIB).usable, 53 * MIB, "are taken; a reserve of a MiB");
	d->cuMemFree(p);
	hm_context_leave(hm, &saved);
	is(info_of(hm, 1, 0).reserve, GIB, "at most 1 GiB");

	need(!hm->soft->rules("cuMemGetInfo:1=CUDA_ERROR_UNKNOWN", NULL), "it can fail");
	info = info_of(hm, 0, 0);
	ok(info.usable == HETMEM_MEMORY_UNKNOWN &&
	   strstr(info.figures[HETMEM_MEMORY_DRIVER].source, "CUDA_ERROR_UNKNOWN"),
	   "a failure by name: %s", info.figures[HETMEM_MEMORY_DRIVER].source);
	hm->soft->rules(NULL, NULL);
	hetmem_close(hm);
}

static void node(void)
{
	struct hetmem *hm = open_machine("ats node=0 memory=1G");
	struct hetmem_memory_info info;

	new_tree();
	hm->root = root;
	info = info_of(hm, 0, HETMEM_RESERVE_NONE);
	is(info.usable, GIB, "the driver's word alone");
	ok(strstr(info.figures[HETMEM_MEMORY_NODE].source, "no /sys"), "its node: %s",
	   info.figures[HETMEM_MEMORY_NODE].source);
	put("/sys/devices/system/node/node0/meminfo",
	    "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 65536 kB\n"
	    "Node 0 Active(file): 1024 kB\nNode 0 Inactive(file): 2048 kB\n");
	info = info_of(hm, 0, HETMEM_RESERVE_NONE);
	is(info.usable, 67 * MIB, "less is free in its node");
	is(info.least, HETMEM_MEMORY_NODE, "which counts");
	hetmem_close(hm);
}

static void integrated(void)
{
	struct hetmem *hm = open_machine("integrated memory=64G");
	struct hetmem_memory_info info;
	struct hm_context saved;
	CUdeviceptr p;

	new_tree();
	put_meminfo();
	hm->root = root;
	info = info_of(hm, 0, 0);
	is(info.reserve, 2 * GIB, "the reserve has no bound");
	is(info.usable, 38 * GIB, "what is available on the host");
	is(info.least, HETMEM_MEMORY_HOST, "is less than the driver's figure");
	ok(info.figures[HETMEM_MEMORY_CACHE].counts, "page cache counts");
	put("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 134217728 kB\n"
	    "Active(file): 1048576 kB\nInactive(file): 0 kB\n");
	info = info_of(hm, 0, HETMEM_RESERVE_NONE);
	is(info.usable, 64 * GIB, "no more than there is");
	is(info.least, HETMEM_MEMORY_DRIVER, "by the driver and the page cache");
	need(!hm_context_enter(hm, 0, &saved) &&
	     !hm->driver.cuMemAlloc(&p, 20 * MIB), "20 MiB of it");
	put("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 134217728 kB\n"
	    "Active(file): 4096 kB\nInactive(file): 0 kB\n");
	is(info_of(hm, 0, HETMEM_RESERVE_NONE).usable, 64 * GIB - 16 * MIB,
	   "the driver's, and page cache that can be dropped");
	hm->driver.cuMemFree(p);
	hm_context_leave(hm, &saved);
	put("/proc/self/cgroup", "0::/\n");
	put("/proc/self/mountinfo", V2_MOUNT, "/");
	put(CG "/memory.max", "%llu\n", (long long)GIB);
	put(CG "/memory.current", "0\n");
	info = info_of(hm, 0, HETMEM_RESERVE_NONE);
	is(info.usable, GIB, "a cgroup's limit");
	is(info.least, HETMEM_MEMORY_CGROUP, "holds for the device, too");
	hetmem_close(hm);
}

static void environment(void)
{
	static const char *const bad[] = { "x", "1X", "-1", "101%", "5%%", "5 %", "%" };
	struct hetmem *hm;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("HETMEM_RESERVE", bad[i], 1);
		hm = open_machine("hmm memory=64M");
		ok(!hm && strstr(hetmem_last_error(), "HETMEM_RESERVE"), "%s: %s",
		   bad[i], hm ? "opens" : hetmem_last_error());
		hetmem_close(hm);
	}
	setenv("HETMEM_RESERVE", "3M", 1);
	hm = open_machine("hmm memory=64M");
	is(info_of(hm, 0, 0).reserve, 3 * MIB, "a size");
	is(info_of(hm, 0, MIB).reserve, MIB, "the caller's own is better");
	is(info_of(hm, 0, HETMEM_RESERVE_NONE).reserve, 0, "none, too");
	hetmem_close(hm);
	setenv("HETMEM_RESERVE", "0", 1);
	hm = open_machine("hmm memory=64M");
	is(info_of(hm, 0, 0).usable, 64 * MIB, "nothing is kept back");
	hetmem_close(hm);
	setenv("HETMEM_RESERVE", "50%", 1);
	hm = open_machine("hmm memory=100M");
	is(info_of(hm, 0, 0).reserve, 50 * MIB, "a percentage");
	hetmem_close(hm);
	unsetenv("HETMEM_RESERVE");
}

static void errors(void)
{
	struct hetmem *hm = open_machine("hmm memory=64M");
	struct hetmem_memory_info info = {
		.size = offsetof(struct hetmem_memory_info, imported) - 1,
	};
	int status = -1, i;
	pid_t pid;

	is(hetmem_memory_info(NULL, 0, &info), -EINVAL, "no library");
	is(hetmem_memory_info(hm, 0, NULL), -EINVAL, "no result");
	is(hetmem_memory_info(hm, 0, &info), -EINVAL, "a short struct");
	info.size++;
	info.imported = 42;
	ok(!hetmem_memory_info(hm, 0, &info) && info.imported == 42,
	   "a program built before @imported gets the rest");
	info.size++;
	is(hetmem_memory_info(hm, 1, &info), -ENODEV, "no such device");
	is(hetmem_memory_info(hm, -2, &info), -ENODEV, "nor that");
	for (i = 0; i < HETMEM_MEMORY_NR; i++)
		ok(strcmp(hetmem_memory_figure_name(i), "unknown"), "%s",
		   hetmem_memory_figure_name(i));
	ok(!strcmp(hetmem_memory_figure_name(-1), "unknown") &&
	   !strcmp(hetmem_memory_figure_name(i), "unknown"), "no such figure");
	ok(info_of(hm, -1, 0).usable != HETMEM_MEMORY_UNKNOWN, "this very host");
	pid = fork();
	if (!pid)
		_exit(hetmem_memory_info(hm, 0, &info) != -EOWNERDEAD ||
		      hetmem_memory_info(hm, -1, &info));
	waitpid(pid, &status, 0);
	is(status, 0, "a child can ask about the host alone");
	hetmem_close(hm);
}

int main(void)
{
	need(mkdtemp(root), "a directory");
	meminfo();
	cgroup2();
	cgroup1();
	host();
	own_memory();
	node();
	integrated();
	environment();
	errors();
	new_tree();
	rmdir(root);
	return tap_end();
}
