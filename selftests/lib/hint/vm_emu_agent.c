// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The agent with the emulated device: memory over which CPU and device fight comes to
 * rest, what no device thrashes is left alone, and what goes wrong harms nobody. Moves
 * are counted, no time is judged.
 */
#include <dirent.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "hint/agent.h"
#include "hint/peer.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define PAGES	16

static size_t page;
static CUstream stream;
static const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);

static unsigned int lines;
static bool ends_thread;
static char last_line[256], first_line[256];

static void log_line(void *arg, const char *line)
{
	if (arg != &lines || strchr(line, '\n'))
		ok(false, "a line: %s", line);
	if (ends_thread)
		syscall(SYS_exit, 0);
	if (!lines++)
		snprintf(first_line, sizeof(first_line), "%s", line);
	snprintf(last_line, sizeof(last_line), "%s", line);
}

static void start(int policy, unsigned int flags)
{
	struct hetmem_agent_params params = {
		.size = sizeof(params), .policy = policy, .flags = flags,
		.log = log_line, .arg = &lines,
	};

	lines = 0;
	need(!hetmem_agent_start(hm, &params), "an agent: %s", hetmem_last_error());
}

static struct hetmem_agent_stats stats_of(void)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };

	need(!hetmem_agent_stats(hm, &stats), "%s", hetmem_last_error());
	return stats;
}

/* Pages that moved, both ways, by the module's count of the range. */
static uint64_t moves(const void *p)
{
	struct hetmem_cmd_stats stats;

	need(!hm_kmod_stats(hetmem_kmod(hm), p, &stats), "statistics");
	return stats.to_device + stats.to_host;
}

static unsigned char *memory(size_t size)
{
	void *p;

	need(!hetmem_system_alloc(hm, size, &p), "memory");
	memset(p, 1, size);
	return p;
}

/* The device writes, the CPU reads and writes, in turns; wrong bytes. */
static size_t fight(unsigned char *p, int rounds)
{
	size_t wrong = 0, i;
	int round;

	for (round = 0; round < rounds; round++) {
		wrong += !!drv->cuMemsetD8Async((uintptr_t)p, round, PAGES * page,
						stream);
		wrong += !!drv->cuStreamSynchronize(stream);
		for (i = 0; i < PAGES; i++) {
			wrong += p[i * page + 7] != (round & 255);
			p[i * page + 7] = 200;
		}
	}
	return wrong;
}

/* Fights until the agent has held pages once: on a busy machine its thread comes late. */
static bool fight_until_held(unsigned char *p)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };
	size_t wrong = 0;
	int i;

	for (i = 0; i < 200; i++) {
		wrong += fight(p, 20);
		need(!hetmem_agent_stats(hm, &stats), "%s", hetmem_last_error());
		if (stats.pins)
			break;
	}
	is(wrong, 0, "a fight");
	return stats.pins;
}

static long pinned_kb(void)
{
	char line[128];
	long kb = -1;
	FILE *file = fopen("/proc/self/status", "re");

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "VmPin: %ld", &kb);
	if (file)
		fclose(file);
	return kb;
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

/* A thread that was joined is listed until the kernel has buried it. */
static bool threads_end(int left)
{
	return wait_until(entries("/proc/self/task") <= left) && entries("/proc/self/task") == left;
}

/* Pages whose time is over are dropped by the kernel a little later. */
static bool none_pinned(void)
{
	return wait_until(!pinned_kb());
}

static void errors(void)
{
	struct hetmem_agent_params params = { .size = sizeof(params) - 1 };
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };
	struct hetmem_params none = { .size = sizeof(none), .driver = "soft",
				      .module_path = "" };
	struct hetmem *bare;

	is(hetmem_agent_start(NULL, NULL), -EINVAL, "no library");
	is(hetmem_agent_start(hm, &params), -EINVAL, "a short struct");
	params.size++;
	params.policy = 3;
	is(hetmem_agent_start(hm, &params), -EINVAL, "no such policy");
	params.policy = HETMEM_AGENT_OFF;
	params.flags = 8;
	is(hetmem_agent_start(hm, &params), -EINVAL, "unknown flags");
	is(hetmem_agent_stats(hm, &stats), -ENOENT, "never started");
	is(hetmem_agent_stop(hm), -ENOENT, "it does not run");
	is(hetmem_agent_stop(NULL), -EINVAL, "no library to stop it in");
	stats.size--;
	is(hetmem_agent_stats(hm, &stats), -EINVAL, "short statistics");
	need(!hetmem_open(&bare, &none), "without the module");
	is(hetmem_agent_start(bare, NULL), -EOPNOTSUPP, "no agent: %s",
	   hetmem_last_error());
	hetmem_close(bare);
	is(hetmem_agent_start(hm, NULL), 0, "without parameters");
	is(hetmem_agent_start(hm, NULL), -EBUSY, "a second one");
	is(stats_of().running, 1, "it runs");
	is(hetmem_agent_stop(hm), 0, "stops");
	is(stats_of().running, 0, "it does not");
	is(hetmem_agent_stop(hm), -ENOENT, "once");
}

/*
 * After a fight: waits until the agent's thread has read an event and has decided about all
 * that it has read. It counts an event first, and its decision later.
 */
static struct hetmem_agent_stats settled_stats(void)
{
	struct hetmem_agent_stats s;

	wait_until((s = stats_of(), s.thrash && s.thrash == s.pins + s.left + s.failed));
	return s;
}

static void comes_to_rest(int policy)
{
	const int rounds = 400;
	struct hetmem_agent_stats s;
	uint64_t without, with = UINT64_MAX, before;
	unsigned char *p = memory(2 * MIB);
	int fds, threads, i;
	size_t bad = 0;

	is(fight(p, rounds), 0, "a fight");
	without = moves(p);
	ok(without >= (uint64_t)rounds * PAGES, "%llu moves in %d rounds",
	   (long long)without, rounds);
	fds = entries("/proc/self/fd");
	threads = entries("/proc/self/task");
	start(policy, 0);
	/* On a busy machine its thread comes late: then they fight on. */
	for (i = 0; i < 20 && with > without / 3; i++) {
		before = moves(p);
		bad += fight(p, rounds);
		with = moves(p) - before;
	}
	is(bad, 0, "with an agent");
	s = settled_stats();
	ok(with <= without / 3, "%llu moves", (long long)with);
	ok(s.thrash >= 1 && s.thrash <= s.pins + s.left + s.failed && s.pins >= 1,
	   "%llu times, %llu holds of %llu pages", (long long)s.thrash,
	   (long long)s.pins, (long long)s.pinned);
	is(s.failed, 0, "nothing failed");
	ok(lines >= 1 && strstr(first_line, "held on the host") &&
	   strstr(first_line, "back and forth"), "with its reason: %s", first_line);
	is(hetmem_agent_stop(hm), 0, "stops");
	ok(none_pinned(), "nothing is held");
	is(entries("/proc/self/fd"), fds, "no descriptor is left");
	ok(threads_end(threads), "no thread");
	without = moves(p);
	is(fight(p, 20), 0, "a fight again");
	ok(moves(p) - without >= 20 * PAGES, "is as it was: %llu moves",
	   (long long)(moves(p) - without));
	hetmem_system_free(hm, p);
}

/* Waits until all holds have ended. */
static struct hetmem_agent_stats holds_end(void)
{
	struct hetmem_agent_stats s;

	wait_until((s = stats_of(), s.released >= s.pins));
	return s;
}

/*
 * When the fight is over, the device has its pages after the hold, once. Events that the
 * fight left in the ring can lead to one more hold: then look again.
 */
static void calm(void)
{
	struct hetmem_agent_stats s;
	unsigned char *p = memory(2 * MIB);
	uint64_t moved = 0, before;
	int i = 0, look;

	start(HETMEM_AGENT_CONSERVATIVE, HETMEM_AGENT_NO_HINTS);
	ok(fight_until_held(p), "is ended");
	for (look = 0; look < 20; look++) {
		s = holds_end();
		if (s.released != s.pins || !none_pinned())
			break;
		before = moves(p);
		for (i = 0; i < 50; i++)
			if (drv->cuMemsetD8Async((uintptr_t)p, i, PAGES * page, stream) ||
			    drv->cuStreamSynchronize(stream))
				break;
		moved = moves(p) - before;
		if (i < 50 || stats_of().pins == s.pins)
			break;
	}
	is(s.released, s.pins, "all is let go after a while");
	ok(strstr(last_line, "let go"), "and said: %s", last_line);
	ok(none_pinned(), "nothing is held");
	is(i, 50, "the device works alone");
	ok(moved <= PAGES, "its pages went there once: %llu moves", (long long)moved);
	is(stats_of().pins, s.pins, "the agent has nothing to do");
	is(hetmem_agent_stop(hm), 0, "stops");
	hetmem_system_free(hm, p);
}

/* Memory that comes, goes and is resized while the agent runs is watched. */
static void changes(void)
{
	unsigned char *p, *q;
	void *r;
	int i;

	start(HETMEM_AGENT_CONSERVATIVE, 0);
	for (i = 0; i < 50; i++) {
		p = memory(MIB);
		q = memory(3 * MIB);
		need(!hetmem_system_resize(hm, q, 9 * MIB, &r), "resized");
		hetmem_system_free(hm, p);
		hetmem_system_free(hm, r);
	}
	p = memory(2 * MIB);
	ok(fight_until_held(p), "made later, is watched");
	hetmem_system_free(hm, p);
	is(hetmem_agent_stop(hm), 0, "stops");
}

static void does_nothing(void)
{
	struct hetmem_agent_stats s;
	unsigned char *p = memory(4 * MIB), *q = memory(4 * MIB);
	uint64_t before;
	size_t i;

	start(HETMEM_AGENT_OFF, 0);
	before = moves(p);
	is(fight(p, 100), 0, "a fight, the policy is off");
	s = settled_stats();
	ok(s.thrash >= 1 && s.left == s.thrash && !s.pins && !s.advised,
	   "%llu times it was left alone", (long long)s.left);
	ok(moves(p) - before >= 100 * PAGES, "indeed");
	is(hetmem_agent_stop(hm), 0, "stops");

	/*
	 * Each block goes to the device and comes back a few times: no thrash. These blocks
	 * have no moves of the fight, which would count.
	 */
	start(HETMEM_AGENT_AGGRESSIVE, 0);
	for (i = 0; i < 3; i++) {
		hetmem_prefetch(hm, q, 4 * MIB, device0, NULL, NULL);
		hetmem_prefetch(hm, q, 4 * MIB, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
				NULL, NULL);
	}
	is(stats_of().thrash, 0, "phases are no thrash");
	is(hetmem_agent_stop(hm), 0, "stops");
	hetmem_system_free(hm, q);
	hetmem_system_free(hm, p);
}

static int drop_right_to_pin(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data))
		return -1;
	data[0].effective &= ~(1U << CAP_IPC_LOCK);
	return syscall(SYS_capset, &header, data);
}

/* What cannot be held is left alone for as long: not tried all the time. */
static void cannot(void)
{
	const struct rlimit none = { 0, 0 };
	struct hetmem_agent_stats s;
	unsigned char *p = memory(2 * MIB);
	int status = -1;
	pid_t pid;

	hetmem_system_free(hm, p);
	pid = fork();
	if (!pid) {
		hetmem_close(hm);
		open_soft(NULL);
		drv->cuStreamCreate(&stream, 0);
		if (setrlimit(RLIMIT_MEMLOCK, &none) || drop_right_to_pin())
			_exit(64);
		p = memory(2 * MIB);
		start(HETMEM_AGENT_CONSERVATIVE, HETMEM_AGENT_NO_HINTS);
		status = !!fight(p, 300);
		s = settled_stats();
		status |= (!s.failed || s.pins || s.failed > 1 + s.thrash / 2 + 1) << 1;
		status |= !strstr(first_line, "cannot be held") << 2;
		status |= !!hetmem_agent_stop(hm) << 3;
		_exit(status);
	}
	waitpid(pid, &status, 0);
	is(status, 0, "without a right to pin");
}

static void child(void)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };
	unsigned char *p = memory(2 * MIB);
	int status = -1;
	pid_t pid;

	start(HETMEM_AGENT_CONSERVATIVE, 0);
	pid = fork();
	if (!pid) {
		status = hetmem_agent_stats(hm, &stats) != -EOWNERDEAD;
		status |= (hetmem_agent_stop(hm) != -EOWNERDEAD) << 1;
		status |= (hetmem_agent_start(hm, NULL) != -EOWNERDEAD) << 2;
		status |= (entries("/proc/self/task") != 3) << 3;
		hetmem_close(hm);
		_exit(status);
	}
	waitpid(pid, &status, 0);
	is(status, 0, "a child has none");
	ok(fight_until_held(p), "the parent's goes on");
	is(hetmem_agent_stop(hm), 0, "stops");
	hetmem_system_free(hm, p);
}

/* Another process's hints; here it is this one that asks itself. */
static void hints(void)
{
	struct hetmem_hinted hinted = { .size = sizeof(hinted) };
	unsigned char *p = memory(MIB);
	struct hetmem_peer *self;

	need(!hetmem_peer_open(getpid(), &self), "this process");
	start(HETMEM_AGENT_OFF, HETMEM_AGENT_ALLOW);
	is(hetmem_hint(self, (uintptr_t)p, MIB, device0, NULL, 60000, &hinted), 0,
	   "a hint: %s", hetmem_last_error());
	is(hinted.moved, MIB / page, "is carried out");
	is(stats_of().hints, 1, "and counted");
	is(hetmem_agent_stop(hm), 0, "stops");
	is(hetmem_hint(self, (uintptr_t)p, MIB, device0, NULL, 1000, &hinted), -ENXIO,
	   "nobody is left to ask");
	hetmem_peer_close(self);
	hetmem_system_free(hm, p);
}

static void unused(void)
{
}

static void environment(void)
{
	struct hetmem *other;

	setenv("HETMEM_AGENT", "bold", 1);
	is(hetmem_open(&other, NULL), -EINVAL, "no such policy: %s",
	   hetmem_last_error());
	setenv("HETMEM_AGENT", "off,logs", 1);
	is(hetmem_open(&other, NULL), -EINVAL, "no such word: %s",
	   hetmem_last_error());
	setenv("HETMEM_AGENT", "aggressive,log", 1);
	need(!hetmem_open(&other, NULL), "opens");
	is(hetmem_agent_start(other, NULL), -EBUSY, "it runs");
	hetmem_close(other);
	ok(true, "and ends");
	unsetenv("HETMEM_AGENT");
}

static unsigned char *fought_over;

/* As the thread decides for the first time. */
static void kill_thread(void)
{
	int i;

	ends_thread = true;
	for (i = 0; i < 100 && stats_of().running; i++)
		if (fight(fought_over, 20))
			ok(false, "contents");
	ends_thread = false;
}

/* Its thread is ended in mid-life: that is said, once, and all else goes on. */
static void killed(void)
{
	unsigned char *p = memory(2 * MIB);
	char text[512];
	int fd = memfd_create("stderr", 0);

	fought_over = p;
	start(HETMEM_AGENT_CONSERVATIVE, 0);
	ok(tap_stderr_of(kill_thread, fd, text, sizeof(text)) > 0 &&
	   strstr(text, "its thread ended"), "it is said: %s", text);
	is(stats_of().running, 0, "it does not run");
	is(fight(p, 20), 0, "memory moves as ever");
	ok(!tap_stderr_of(unused, fd, text, sizeof(text)), "it is said once");
	start(HETMEM_AGENT_CONSERVATIVE, 0);
	ok(fight_until_held(p), "another one does its work");
	is(hetmem_agent_stop(hm), 0, "stops");
	hetmem_system_free(hm, p);
	close(fd);
}

/* A spec starts it, once. */
static void by_spec(void)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res, *second;

	need(!hetmem_resource_create(hm, "unified(agent=aggressive)", &res), "unified: %s",
	     hetmem_last_error());
	ok(!hetmem_agent_stats(hm, &stats) && stats.running, "agent= of a spec starts it");
	is(hetmem_resource_create(hm, "unified(agent=conservative)", &second), 0,
	   "a second one has the agent that runs");
	is(hetmem_resource_destroy(second), 0, "nothing is live");
	is(hetmem_resource_destroy(res), 0, "nor here");
	is(hetmem_agent_stop(hm), 0, "it runs until it is stopped");
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	open_soft(NULL);
	need(!drv->cuStreamCreate(&stream, 0), "a stream");
	errors();
	comes_to_rest(HETMEM_AGENT_CONSERVATIVE);
	comes_to_rest(HETMEM_AGENT_AGGRESSIVE);
	calm();
	changes();
	does_nothing();
	cannot();
	child();
	hints();
	environment();
	by_spec();
	killed();
	start(HETMEM_AGENT_CONSERVATIVE, 0);
	drv->cuStreamDestroy(stream);
	close_soft();
	ok(true, "closed while it runs");
	return tap_end();
}
