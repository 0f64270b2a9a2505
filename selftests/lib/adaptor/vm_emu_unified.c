// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * unified on the machine with HMM that the emulated devices and hetmem.ko make, without
 * over=: which memory it chooses; memory that comes back to the CPU; the agent; two
 * devices; a module that stops answering, or that the user may not open; and three times
 * as much memory as the device has. Pages are counted, no time is judged.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "numbers.h"

#define MIB	((size_t)1 << 20)
#define KIB	((size_t)1 << 10)
#define HOST	HETMEM_STREAM_HOST
#define NODE	"/dev/hetmem"
#define THRASH	"/sys/class/misc/hetmem/thrash/"

/* Pages over which CPU and device fight. */
#define PAGES	16

/* A live block beside one that comes back. */
#define LIVE	MIB

static size_t page;
static CUstream stream;
static const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);
static const uint32_t host = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);

static void begin(void)
{
	open_soft(NULL);
	need(!drv->cuStreamCreate(&stream, 0), "a stream");
}

static void end(void)
{
	drv->cuStreamDestroy(stream);
	close_soft();
}

static struct hetmem_resource *make(const char *spec)
{
	struct hetmem_resource *res = NULL;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	return res;
}

static unsigned char *get(struct hetmem_resource *res, unsigned int class,
			  size_t size, hetmem_stream s)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = s,
		.placement = class,
	};
	void *p = NULL;

	need(!hetmem_alloc_with(res, &params, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	return p;
}

/* Pages that moved by the module's count of the range that @p is in. */
static struct hetmem_cmd_stats moves(const void *p)
{
	struct hetmem_cmd_stats stats;

	need(!hm_kmod_stats(hetmem_kmod(hm), p, &stats), "statistics");
	return stats;
}

static void set(const char *file, const char *value)
{
	const int fd = open(file, O_WRONLY | O_CLOEXEC);

	need(fd >= 0 && write(fd, value, strlen(value)) > 0, "%s is %s", file, value);
	close(fd);
}

/* The device writes @value to all of the block, by @s. */
static void device_writes(unsigned char *p, size_t size, unsigned char value, CUstream s)
{
	is(drv->cuMemsetD8Async((uintptr_t)p, value, size, s), 0, "the device writes");
	is(drv->cuStreamSynchronize(s), 0, "%zu KiB", size / KIB);
}

/* The contents as the device sees them. */
static size_t wrong_on_device(const unsigned char *p, size_t size, uint64_t seed)
{
	unsigned char *copy = calloc(1, size);
	CUdeviceptr d;
	size_t wrong;

	need(copy && !drv->cuMemAlloc(&d, size), "memory of the device's own");
	wrong = !!drv->cuMemcpyAsync(d, (uintptr_t)p, size, stream) +
		!!drv->cuMemcpyDtoHAsync(copy, d, size, stream) +
		!!drv->cuStreamSynchronize(stream);
	wrong += wrong_numbers(copy, size, seed);
	drv->cuMemFree(d);
	free(copy);
	return wrong;
}

/* Most of a range: a page that is busy for a moment stays where it is. */
static bool most_at(const void *p, size_t size, uint32_t kind)
{
	const uint64_t pages = pages_at(p, size, kind);

	return pages != UINT64_MAX && pages >= size / page * 9 / 10;
}

static void chooses(void)
{
	char text[1024];

	is(hetmem_resource_explain(hm, "unified", text, sizeof(text)), 0, "explained");
	ok(!strncmp(text, "unified is headroom(classes(system(device=0))): ", 48) &&
	   strstr(text, "device 0 (HMM): hetmem.ko knows where system memory is"),
	   "%.*s", (int)strcspn(text, "\n"), text);
}

static void both_sides(void)
{
	struct hetmem_resource *res = make("unified");
	struct hetmem_run run;
	unsigned char *p, *q;
	uintptr_t next;

	p = get(res, HETMEM_PLACEMENT_DEVICE, MIB, stream);
	device_writes(p, MIB, 5, stream);
	ok(most_at(p, MIB, HETMEM_DEVICE), "the device's block is there");
	is(hetmem_residency(hm, p, 1, &run, NULL, 1, &next), 1, "its first page");
	is(run.location, device0, "is on device 0");
	q = get(res, HETMEM_PLACEMENT_HOST, MIB, HOST);
	write_numbers(q, MIB, 1);
	ok(most_at(q, MIB, HETMEM_HOST), "the CPU's block is on the host");
	is(wrong_on_device(q, MIB, 1), 0, "the device reads it");
	ok(all_bytes(p, 5, MIB), "the CPU reads the other");
	is(wrong_numbers(q, MIB, 1), 0, "contents");
	is(hetmem_free(res, p, MIB, stream), 0, "free");
	is(hetmem_free(res, q, MIB, HOST), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/*
 * A block that was on the device is allocated for the CPU: of @size bytes, beside a live
 * one. The module brings a small one, no CPU fault does. A large one is dropped.
 */
static void comes_back(size_t size)
{
	const bool dropped = size >= 2 * MIB;
	/* No other block is free. */
	struct hetmem_resource *res = make(dropped ? "unified(max=6M)" : "unified(max=2M)");
	struct hetmem_cmd_stats before, after;
	unsigned char *live, *p, *q;
	uint64_t there;

	live = get(res, HETMEM_PLACEMENT_HOST, LIVE, HOST);
	p = get(res, HETMEM_PLACEMENT_HOST, size, HOST);
	memset(p, 1, size);
	device_writes(live, LIVE, 7, stream);
	is(hetmem_record_stream(res, live, stream), 0, "recorded");
	device_writes(p, size, 2, stream);
	ok(most_at(p, size, HETMEM_DEVICE), "the block is on the device");
	is(hetmem_free(res, p, size, stream), 0, "freed there");
	there = pages_at(p, size, HETMEM_DEVICE);
	before = moves(p);
	need(!soft_rules("cuMemPrefetchAsync:1000000", NULL), "calls are counted");
	q = get(res, HETMEM_PLACEMENT_HOST, size, HOST);
	after = moves(q);
	is(hm->soft->made(0), 0, "without the driver");
	soft_rules(NULL, NULL);
	ok(q == p, "the same block");
	is(pages_at(q, size, HETMEM_DEVICE), 0, "no page is on the device");
	if (dropped) {
		is(after.to_host, before.to_host, "none was moved");
		is(pages_at(q, size, HETMEM_HOST), size / page, "it has new pages");
		ok(most_at(live, LIVE, HETMEM_DEVICE), "the live block is there");
	} else {
		ok(after.to_host - before.to_host >= there, "%llu of %llu pages were moved",
		   (long long)(after.to_host - before.to_host), (long long)there);
	}
	write_numbers(q, size, 3);
	is(moves(q).to_host, after.to_host, "no fault brought more");
	is(wrong_on_device(q, size, 3), 0, "the device reads what was written");
	is(wrong_numbers(q, size, 3), 0, "as does the CPU");
	ok(all_bytes(live, 7, LIVE), "the live block's contents");
	is(hetmem_free(res, q, size, HOST), 0, "free");
	is(hetmem_free(res, live, 0, HOST), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* Units of one class that the device used serve the CPU's class with new pages. */
static void other_class(void)
{
	struct hetmem_resource *res = make("unified(max=8M)");
	const size_t size = 4 * MIB;
	unsigned char *p = get(res, HETMEM_PLACEMENT_DEVICE, size, stream);
	unsigned char *live = get(res, HETMEM_PLACEMENT_DEVICE, MIB, stream);
	uint64_t before;

	device_writes(p, size, 2, stream);
	device_writes(live, MIB, 3, stream);
	before = moves(p).to_host;
	is(hetmem_free(res, p, size, stream), 0, "freed");
	p = get(res, HETMEM_PLACEMENT_HOST, 6 * MIB, HOST);
	is(pages_at(p, 6 * MIB, HETMEM_DEVICE), 0, "no page is on the device");
	write_numbers(p, 6 * MIB, 4);
	is(moves(live).to_host, before, "none came back from it");
	is(wrong_numbers(p, 6 * MIB, 4), 0, "contents");
	ok(all_bytes(live, 3, MIB), "the live block's contents");
	is(hetmem_free(res, p, 0, HOST), 0, "free");
	is(hetmem_free(res, live, 0, stream), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* The device writes, the CPU reads and writes, in turns; wrong bytes. */
static size_t fight(unsigned char *p, int rounds)
{
	size_t wrong = 0, i;
	int round;

	for (round = 0; round < rounds; round++) {
		wrong += !!drv->cuMemsetD8Async((uintptr_t)p, round, PAGES * page, stream);
		wrong += !!drv->cuStreamSynchronize(stream);
		for (i = 0; i < PAGES; i++) {
			wrong += p[i * page + 7] != (round & 255);
			p[i * page + 7] = 200;
		}
	}
	return wrong;
}

static struct hetmem_agent_stats agent(void)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };

	need(!hetmem_agent_stats(hm, &stats), "%s", hetmem_last_error());
	return stats;
}

/* Whether the process has a thread called @name. */
static bool has_thread(const char *name)
{
	DIR *dir = opendir("/proc/self/task");
	char path[300], comm[32] = "";
	struct dirent *entry;
	bool found = false;
	FILE *file;

	while (dir && !found && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		found = fgets(comm, sizeof(comm), file) &&
			!strncmp(comm, name, strlen(name));
		fclose(file);
	}
	if (dir)
		closedir(dir);
	return found;
}

/* A thread that was joined is listed until the kernel has buried it. */
static bool ends(const char *name)
{
	return wait_until(!has_thread(name));
}

static uint64_t bounces(const void *p)
{
	const struct hetmem_cmd_stats stats = moves(p);

	return stats.to_device + stats.to_host;
}

static void with_agent(const char *spec)
{
	const int rounds = 200;
	struct hetmem_resource *res;
	uint64_t without, with = UINT64_MAX, before;
	unsigned char *p, *q;
	size_t bad = 0;
	int i;

	begin();
	res = make("unified(max=2M)");
	p = get(res, HETMEM_PLACEMENT_BOTH, 2 * MIB, HOST);
	memset(p, 1, MIB);
	is(fight(p, rounds), 0, "a fight");
	without = bounces(p);
	is(hetmem_resource_destroy(make(spec)), 0, "%s", spec);
	ok(agent().running, "has started the agent");
	/* On a busy machine its thread comes late: then they fight on. */
	for (i = 0; i < 20 && (with >= without / 2 || !agent().pins); i++) {
		before = bounces(p);
		bad += fight(p, rounds);
		with = bounces(p) - before;
	}
	is(bad, 0, "with the agent");
	ok(agent().pins && with < without / 2, "%llu moves, not %llu", (long long)with,
	   (long long)without);
	is(agent().failed, 0, "nothing failed");
	/* While it is held. */
	is(hetmem_free(res, p, 2 * MIB, stream), 0, "free");
	q = get(res, HETMEM_PLACEMENT_BOTH, 2 * MIB, HOST);
	ok(q == p, "the same block");
	write_numbers(q, MIB, 6);
	is(wrong_on_device(q, MIB, 6), 0, "the device reads what was written");
	device_writes(q, MIB / 2, 9, stream);
	ok(all_bytes(q, 9, MIB / 2), "and the CPU what the device has written");
	is(fight(q, 20), 0, "a fight over it");
	is(hetmem_free(res, q, 2 * MIB, HOST), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	ok(agent().running && has_thread("hetmem-agent"), "it runs until it is stopped");
	end();
	ok(ends("hetmem-agent"), "by close, too");
}

static void prefetched(unsigned char *p, size_t size, uint32_t location)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_run run;
	uintptr_t next;
	int err = 0, i;

	for (i = 0; i < 20; i++) {
		err = hetmem_prefetch(hm, p, size, location, stream, &moved);
		if (err || !moved.not_moved)
			break;
	}
	is(err, 0, "prefetched to %#x", location);
	is(moved.moved + moved.already, size / page, "all pages");
	is(hetmem_residency(hm, p, size, &run, NULL, 1, &next), 1, "one run");
	if (location == host)
		is(HETMEM_LOC_KIND(run.location), HETMEM_HOST, "on the host");
	else
		is(run.location, location, "which is there");
}

static void two_devices(void)
{
	const uint32_t device1 = HETMEM_LOC(HETMEM_DEVICE, 1);
	struct hetmem_resource *res[2];
	unsigned char *p[2], *both;
	CUstream second;
	CUcontext ctx[2];
	CUevent event;
	int i;

	is(hetmem_device_count(hm), 2, "two devices");
	need(!drv->cuCtxGetCurrent(&ctx[0]) &&
	     !drv->cuDevicePrimaryCtxRetain(&ctx[1], 1) &&
	     !drv->cuCtxSetCurrent(ctx[1]) && !drv->cuStreamCreate(&second, 0),
	     "a stream of device 1");
	drv->cuCtxSetCurrent(ctx[0]);
	res[0] = make("unified");
	res[1] = make("unified(device=1)");
	for (i = 0; i < 2; i++) {
		p[i] = get(res[i], HETMEM_PLACEMENT_DEVICE, MIB, i ? second : stream);
		write_numbers(p[i], MIB, 10 + i);
	}
	for (i = 0; i < 2; i++) {
		prefetched(p[i], MIB, i ? device0 : device1);
		prefetched(p[!i], MIB, i ? device0 : device1);
		is(wrong_numbers(p[i], MIB / 4, 10 + i), 0, "contents");
		prefetched(p[i], MIB, i ? device1 : device0);
	}
	for (i = 0; i < 2; i++) {
		prefetched(p[i], MIB, host);
		is(wrong_numbers(p[i], MIB, 10 + i), 0, "contents of block %d", i);
	}

	both = get(res[0], HETMEM_PLACEMENT_BOTH, MIB, stream);
	device_writes(both, MIB, 21, stream);
	device_writes(both + MIB / 4, MIB / 2, 22, second);
	device_writes(both + MIB / 2, 4 * page, 23, stream);
	ok(all_bytes(both, 21, MIB / 4) &&
	   all_bytes(both + MIB / 4, 22, MIB / 4) &&
	   all_bytes(both + MIB / 2, 23, 4 * page) &&
	   all_bytes(both + MIB / 2 + 4 * page, 22, MIB / 4 - 4 * page) &&
	   all_bytes(both + MIB * 3 / 4, 21, MIB / 4), "both devices wrote one block");
	is(hetmem_record_stream(res[0], both, second), -EINVAL, "a stream of its device: %s",
	   hetmem_last_error());
	is(drv->cuMemsetD8Async((uintptr_t)both, 24, MIB, second), 0, "once more");
	drv->cuCtxSetCurrent(ctx[1]);
	need(!drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) &&
	     !drv->cuEventRecord(event, second), "an event of device 1");
	drv->cuCtxSetCurrent(ctx[0]);
	is(drv->cuStreamWaitEvent(stream, event, 0), 0, "device 0 waits for it");
	is(hetmem_free(res[0], both, MIB, stream), 0, "free");
	both = get(res[0], HETMEM_PLACEMENT_BOTH, MIB, HOST);
	write_numbers(both, MIB, 25);
	is(drv->cuStreamSynchronize(second), 0, "its work is over");
	is(wrong_numbers(both, MIB, 25), 0, "and did not write to the next block");
	is(hetmem_free(res[0], both, MIB, HOST), 0, "free");

	for (i = 0; i < 2; i++) {
		is(hetmem_free(res[i], p[i], MIB, i ? second : stream), 0, "free");
		p[i] = get(res[i], HETMEM_PLACEMENT_HOST, MIB, HOST);
		write_numbers(p[i], MIB, 30 + i);
	}
	for (i = 0; i < 2; i++) {
		is(wrong_numbers(p[i], MIB, 30 + i), 0, "contents");
		hetmem_free(res[i], p[i], MIB, HOST);
		is(hetmem_resource_destroy(res[i]), 0, "nothing is live");
	}
	drv->cuEventDestroy(event);
	drv->cuStreamDestroy(second);
	drv->cuDevicePrimaryCtxRelease(1);
}

/* The number of @text in the file @fd. */
static int times_said(int fd, const char *text)
{
	static char all[4096];
	const char *at = all;
	ssize_t n = pread(fd, all, sizeof(all) - 1, 0);
	int nr = 0;

	all[n > 0 ? n : 0] = '\0';
	for (; (at = strstr(at, text)); at++)
		nr++;
	return nr;
}

/* Descriptors above this are the test's own. */
#define OURS	500

/* Puts /dev/null in the place of what names the module's node. */
static void replace_all(void)
{
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char link[32], path[64];
	ssize_t n;
	int fd;

	for (fd = 3; fd < OURS; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, path, sizeof(path) - 1);
		path[n > 0 ? n : 0] = '\0';
		if (!strcmp(path, NODE))
			dup2(null, fd);
	}
	close(null);
}

static void replace_one(void)
{
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	dup2(null, hetmem_kmod(hm)->fd);
	close(null);
}

static void close_all(void)
{
	close_range(3, OURS - 1, 0);
}

/* 0, or an error that has a text. */
static bool said(int err)
{
	return !err || (err < 0 && *hetmem_last_error());
}

/* Pages of each class come and go, and are written on both sides if @works. */
static void churn(struct hetmem_resource *res, bool works)
{
	unsigned char *p;
	unsigned int class, i;
	size_t wrong = 0;

	for (i = 0; i < 4; i++) {
		for (class = HETMEM_PLACEMENT_HOST; class <= HETMEM_PLACEMENT_STREAMING;
		     class++) {
			const size_t size = i & 1 ? 3 * MIB : 192 * KIB;

			p = get(res, class, size, i & 2 ? stream : HOST);
			if (works)
				wrong += !!drv->cuMemsetD8Async((uintptr_t)p, class, size,
								stream);
			wrong += !!drv->cuStreamSynchronize(stream);
			wrong += works && !all_bytes(p, class, size);
			write_numbers(p, size, class);
			wrong += wrong_numbers(p, size, class);
			wrong += !!hetmem_free(res, p, size, stream);
		}
	}
	is(wrong, 0, "blocks come and go");
}

/*
 * @hide makes the module stop answering, in mid-life. @works: the device still does.
 * @watches: so does the agent. @executes: beside an executor with a thread.
 */
static void silent(const char *how, void (*hide)(void), bool works, bool watches,
		   bool executes)
{
	const struct hetmem_executor_params thread = {
		.size = sizeof(thread), .flags = HETMEM_EXECUTOR_THREAD,
	};
	struct hetmem_executor *executor = NULL;
	const int text = fcntl(memfd_create("stderr", MFD_CLOEXEC), F_DUPFD_CLOEXEC, OURS);
	const int saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, OURS);
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_resource *res, *full;
	struct hetmem_run runs[8];
	unsigned char *p, *live, *freed;
	uintptr_t next;
	ssize_t n;
	int i;

	begin();
	if (executes)
		need(!hetmem_executor_open(hm, &thread, &executor), "an executor");
	res = make("unified(agent=conservative)");
	p = get(res, HETMEM_PLACEMENT_BOTH, 2 * MIB, HOST);
	write_numbers(p, 2 * MIB, 40);
	full = make("unified(max=2M)");
	live = get(full, HETMEM_PLACEMENT_HOST, LIVE, HOST);
	freed = get(full, HETMEM_PLACEMENT_HOST, MIB, HOST);
	device_writes(freed, MIB, 4, stream);
	is(hetmem_prefetch(hm, p, MIB, device0, stream, NULL), 0, "half is on the device");
	need(text >= 0 && saved >= 0, "files");
	dup2(text, STDERR_FILENO);
	hide();

	n = hetmem_residency(hm, p, 2 * MIB, runs, NULL, 8, &next);
	ok(n >= 0 || said(n), "%s: residency: %s", how, n < 0 ? hetmem_last_error() : "");
	ok(said(hetmem_prefetch(hm, p + MIB, MIB, device0, stream, &moved)),
	   "prefetch to the device: %s", hetmem_last_error());
	is(wrong_numbers(p + MIB, MIB, 40 + MIB / 8 * 0x9e3779b97f4a7c15ULL), 0, "contents");
	ok(said(hetmem_prefetch(hm, p, MIB / 2, host, stream, &moved)),
	   "and back: %s", hetmem_last_error());
	is(hetmem_free(full, freed, MIB, stream), 0, "free");
	need(!soft_rules("cuMemPrefetchAsync:1000000", NULL), "calls are counted");
	freed = get(full, HETMEM_PLACEMENT_HOST, MIB, HOST);
	is(hm->soft->made(0), 1, "the driver brings what the module does not");
	soft_rules(NULL, NULL);
	write_numbers(freed, MIB, 41);
	is(wrong_numbers(freed, MIB, 41), 0, "contents");
	churn(res, works);
	is(wrong_numbers(p, 2 * MIB, 40), 0, "contents");
	if (works)
		is(fight(p, 100), 0, "a fight");
	if (!watches)
		wait_until(!agent().running);
	is(agent().running, watches, "the agent %s", watches ? "runs" : "has ended");
	ok(ends("hetmem-hints"), "no thread waits for hints");
	hetmem_executor_close(executor);
	is(hetmem_agent_stop(hm), 0, "it is stopped");
	i = hetmem_agent_start(hm, NULL);
	ok(i < 0 && said(i), "another one is refused: %s", hetmem_last_error());
	is(hetmem_free(res, p, 2 * MIB, HOST), 0, "free");
	is(hetmem_free(full, freed, 0, HOST), 0, "free");
	is(hetmem_free(full, live, 0, HOST), 0, "free");
	is(hetmem_resource_destroy(full), 0, "destroyed");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	end();
	dup2(saved, STDERR_FILENO);
	is(times_said(text, "its thread ended"), !watches, "%s: it is said once", how);
	is(times_said(text, "\n"), !watches, "and nothing else");
	close(saved);
	close(text);
}

/* A user who may not open the module's node. */
static void not_allowed(void)
{
	struct hetmem *root_hm;
	struct hetmem_resource *res;
	struct stat is_now;
	char text[1024];
	unsigned char *p;
	int i;

	static const char *const specs[] = { "unified", "unified(over=system,agent=aggressive)" };

	begin();
	root_hm = hm;
	need(!stat(NODE, &is_now) && !chmod(NODE, 0600) && !seteuid(65534), "a user");
	need(!hetmem_open(&hm, &(struct hetmem_params){ .size = sizeof(struct hetmem_params),
							.driver = "soft" }),
	     "opens: %s", hetmem_last_error());
	ok(!hm_kmod_there(hetmem_kmod(hm)), "without the module");
	for (i = 0; i < 2; i++) {
		is(hetmem_resource_explain(hm, specs[i], text, sizeof(text)), 0, "%s", text);
		res = make(specs[i]);
		p = get(res, HETMEM_PLACEMENT_BOTH, MIB, HOST);
		write_numbers(p, MIB, 50);
		is(hetmem_prefetch(hm, p, MIB, device0, stream, NULL), 0, "to the device");
		is(drv->cuStreamSynchronize(stream), 0, "done");
		is(wrong_on_device(p, MIB, 50), 0, "the device reads it");
		is(hetmem_prefetch(hm, p, MIB, host, stream, NULL), 0, "and back");
		is(drv->cuStreamSynchronize(stream), 0, "done");
		is(wrong_numbers(p, MIB, 50), 0, "contents");
		churn(res, true);
		is(hetmem_free(res, p, MIB, HOST), 0, "free");
		is(hetmem_resource_destroy(res), 0, "nothing is live");
	}
	hetmem_close(hm);
	need(!seteuid(0) && !chmod(NODE, is_now.st_mode & 07777), "root");
	hm = root_hm;
	end();
}

/* Three times what the device has; @spec may keep some of that free. */
static void too_much(const char *spec)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_resource *res = make(spec);
	size_t size, at, wrong = 0, refused = 0;
	unsigned char *p;
	int round;

	hetmem_device_props(hm, 0, &props);
	size = 3 * props.total;
	p = get(res, HETMEM_PLACEMENT_BOTH, size, HOST);
	write_numbers(p, size, 60);
	for (round = 1; round <= 2; round++) {
		for (at = 0; at < size; at += MIB) {
			int err = hetmem_prefetch(hm, p + at, MIB, device0, stream, NULL);

			refused += err == -ENOMEM;
			wrong += err && err != -ENOMEM;
			wrong += !!drv->cuMemsetD8Async((uintptr_t)p + at, at / MIB + round,
							MIB / 2, stream);
		}
		wrong += !!drv->cuStreamSynchronize(stream);
		for (at = 0; at < size; at += 2 * MIB)
			wrong += !all_bytes(p + at, at / MIB + round, MIB / 2);
	}
	is(wrong, 0, "%s: %zu MiB on a device of %zu", spec, size / MIB,
	   (size_t)props.total / MIB);
	printf("# %zu prefetches were refused\n", refused);
	for (at = 0; at < size; at += MIB) {
		wrong += !all_bytes(p + at, at / MIB + 2, MIB / 2);
		wrong += wrong_numbers(p + at + MIB / 2, MIB / 2,
				       60 + (at + MIB / 2) / 8 * 0x9e3779b97f4a7c15ULL);
	}
	is(wrong, 0, "contents");
	is(hetmem_prefetch(hm, p, size, host, stream, NULL), 0, "all of it back");
	is(pages_at(p, size, HETMEM_DEVICE), 0, "is on the host");
	is(hetmem_free(res, p, 0, HOST), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	/* A slow machine thrashes as well. */
	set(THRASH "window_ms", "600000");
	begin();
	chooses();
	both_sides();
	comes_back(MIB);
	comes_back(4 * MIB);
	other_class();
	two_devices();
	too_much("unified");
	too_much("unified(headroom=off)");
	end();
	with_agent("unified(agent=conservative)");
	with_agent("unified(agent=aggressive)");
	not_allowed();
	silent("the library's descriptor is another file", replace_one, true, true, false);
	silent("all of the module's are", replace_all, true, false, false);
	silent("all descriptors are closed", close_all, false, false, true);
	set(THRASH "window_ms", "1000");
	return tap_end();
}
