// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The agent's advice to the driver of devices that are not registered with the module.
 * The kernel's own test_hmm moves the memory that thrashes; the soft driver's table
 * records the advice, and refuses some of it.
 */
#include <fcntl.h>
#include <sys/ioctl.h>

#include <test_hmm_uapi.h>

#include "hint/agent.h"
#include "soft_driver.h"

#define BLOCK	((size_t)2 << 20)
#define SIZE	(3 * BLOCK)
#define PAGES	16
#define THRASH	"/sys/class/misc/hetmem/thrash/"

static size_t page;
static int gpu;
static unsigned char *memory, *fought_over;

/* Advice that the driver was given: [device 0, 1, host], by enum CUmem_advise. */
static unsigned int given[3][8];
static uintptr_t first, last;
/* This kind is refused; 0: none. */
static CUmem_advise refuse;

static CUresult advise(CUdeviceptr ptr, size_t size, CUmem_advise advice, CUmemLocation where)
{
	const int who = where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : 2;

	if (who > 2 || (unsigned int)advice >= 8 || !size)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&given[who][advice], 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&first, ptr, __ATOMIC_RELEASE);
	__atomic_store_n(&last, ptr + size, __ATOMIC_RELEASE);
	return advice == refuse ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static unsigned int times(int who, CUmem_advise advice)
{
	return __atomic_load_n(&given[who][advice], __ATOMIC_ACQUIRE);
}

static unsigned int all_times(void)
{
	unsigned int who, advice, nr = 0;

	for (who = 0; who < 3; who++)
		for (advice = 0; advice < 8; advice++)
			nr += times(who, advice);
	return nr;
}

/* The soft driver's devices become GPUs that the module has not heard of. */
static void pretend(void)
{
	struct hm_driver *d = (struct hm_driver *)hetmem_driver_table(hm);
	int i;

	gpu = open("/dev/hmm_dmirror0", O_RDWR | O_CLOEXEC);
	need(hm->nr_devices == 2 && gpu >= 0, "two devices; test_hmm is loaded");
	for (i = 0; i < 2; i++) {
		hm->devices[i].module_id = -1;
		hm->devices[i].platform.moves = true;
	}
	d->cuMemAdvise_v2 = advise;
}

static void set(const char *file, const char *value)
{
	const int fd = open(file, O_WRONLY | O_CLOEXEC);

	need(fd >= 0 && write(fd, value, strlen(value)) > 0, "%s is %s", file, value);
	close(fd);
}

static struct hetmem_agent_stats stats_of(void)
{
	struct hetmem_agent_stats stats = { .size = sizeof(stats) };

	need(!hetmem_agent_stats(hm, &stats), "%s", hetmem_last_error());
	return stats;
}

/*
 * Pages go to the GPU and come back by faults, until the agent was told of that. Busy or
 * held pages stay, which is announced all the same. Wrong bytes.
 */
static size_t thrash(const unsigned char *p)
{
	unsigned char *data = malloc(PAGES * page);
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)p, .ptr = (uintptr_t)data, .npages = PAGES,
	};
	size_t wrong = 0, i;
	int round;

	for (round = 0; round < 2000 && !stats_of().thrash; round++) {
		ioctl(gpu, HMM_DMIRROR_MIGRATE_TO_DEV, &cmd);
		/* time: announcements of one epoch, 10 ms, count once */
		usleep(30000);
		for (i = 0; i < PAGES; i++)
			wrong += p[i * page] != 1;
		/* time: the same */
		usleep(30000);
	}
	free(data);
	return wrong;
}

static void start(int policy, CUmem_advise refused)
{
	struct hetmem_agent_params params = {
		.size = sizeof(params), .policy = policy, .flags = HETMEM_AGENT_NO_HINTS,
	};

	memset(given, 0, sizeof(given));
	refuse = refused;
	need(!hetmem_agent_start(hm, &params), "an agent: %s", hetmem_last_error());
	is(thrash(fought_over), 0, "memory goes back and forth: contents");
}

/* Event after event leads to one of these. */
static void decided(void)
{
	struct hetmem_agent_stats s;

	wait_until((s = stats_of(), s.pins + s.advised + s.left + s.failed >= s.thrash));
	ok(s.thrash && s.pins + s.advised + s.left + s.failed >= s.thrash, "it decided");
}

static void released(void)
{
	ok(wait_until(stats_of().released >= stats_of().advised), "and let go");
}

static void advised(void)
{
	int i;

	start(HETMEM_AGENT_CONSERVATIVE, 0);
	decided();
	ok(stats_of().advised && !stats_of().pins, "advised, not pinned");
	ok(first == (uintptr_t)memory + BLOCK && last == first + BLOCK, "the block");
	released();
	is(hetmem_agent_stop(hm), 0, "stops");
	ok(times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION), "it belongs on the host");
	is(times(2, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION),
	   times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION), "taken back");
	for (i = 0; i < 2; i++) {
		is(times(i, CU_MEM_ADVISE_SET_ACCESSED_BY),
		   times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION) / 2, "device %d uses it", i);
		is(times(i, CU_MEM_ADVISE_UNSET_ACCESSED_BY),
		   times(i, CU_MEM_ADVISE_SET_ACCESSED_BY), "taken back");
	}
	is(hetmem_agent_stop(hm), -ENOENT, "once");
}

/* Neighbours of the same allocation are held, too. */
static void aggressive(void)
{
	start(HETMEM_AGENT_AGGRESSIVE, 0);
	decided();
	ok(stats_of().advised && stats_of().pins, "advised and pinned");
	ok(first == (uintptr_t)memory && last == first + SIZE, "with its neighbours");
	is(hetmem_agent_stop(hm), 0, "stops early");
	is(times(2, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION),
	   times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION), "which takes it back");
	is(times(1, CU_MEM_ADVISE_UNSET_ACCESSED_BY),
	   times(1, CU_MEM_ADVISE_SET_ACCESSED_BY), "all of it");
}

/* Of advice that the driver takes in part nothing is left, and the block is pinned. */
static void refused(CUmem_advise what)
{
	const bool late = what == CU_MEM_ADVISE_SET_ACCESSED_BY;
	struct hetmem_agent_stats s;

	start(HETMEM_AGENT_CONSERVATIVE, what);
	decided();
	s = stats_of();
	ok(!s.advised && s.pins + s.failed, "advice %d is refused: pinned instead", what);
	is(hetmem_agent_stop(hm), 0, "stops");
	is(times(2, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION),
	   late ? times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION) : 0, "nothing is left of it");
	is(times(0, CU_MEM_ADVISE_UNSET_ACCESSED_BY), 0, "what was not given stays");
}

/* A driver that does not take back one part is asked for the other. */
static void not_taken_back(CUmem_advise what)
{
	start(HETMEM_AGENT_CONSERVATIVE, what);
	decided();
	is(hetmem_agent_stop(hm), 0, "stops");
	is(times(2, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION),
	   times(2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION), "advice %d is refused", what);
	is(times(1, CU_MEM_ADVISE_UNSET_ACCESSED_BY),
	   times(1, CU_MEM_ADVISE_SET_ACCESSED_BY), "both are asked for");
}

/* The program's own advice stays. */
static void programs(void)
{
	const uint32_t device = HETMEM_LOC(HETMEM_DEVICE, 0);
	unsigned int before;

	refuse = 0;
	is(hetmem_advise(hm, memory + BLOCK, BLOCK, HETMEM_ADVISE_PREFERRED, device, NULL), 0,
	   "the program advises");
	start(HETMEM_AGENT_CONSERVATIVE, 0);
	before = all_times();
	decided();
	ok(!stats_of().advised && stats_of().pins + stats_of().failed, "the agent does not");
	is(hetmem_agent_stop(hm), 0, "stops");
	is(all_times(), before, "nothing was taken back");
	is(before, 0, "nor given");
}

/* So does that of a placement class, which the driver was given when the block was made. */
static void by_class(unsigned int class)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = BLOCK, .stream = HETMEM_STREAM_HOST,
		.placement = class,
	};
	struct hetmem_resource *res;
	unsigned char *p;

	memset(given, 0, sizeof(given));
	refuse = 0;
	need(!hetmem_resource_create(hm, "unified", &res) &&
	     !hetmem_alloc_with(res, &params, (void **)&p), "%s", hetmem_last_error());
	memset(p, 1, BLOCK);
	ok(all_times(), "class %u is advised", class);
	fought_over = p;
	start(HETMEM_AGENT_CONSERVATIVE, 0);
	decided();
	ok(!stats_of().advised && stats_of().pins + stats_of().failed, "the agent does not");
	is(hetmem_agent_stop(hm), 0, "stops");
	is(all_times(), 0, "the advice of the class stays");
	is(hetmem_free(res, p, BLOCK, HETMEM_STREAM_HOST), 0, "free");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* Bytes of ours that the module has seen in pools of other drivers; -1: INFO fails. */
static int64_t seen_in_pools(void)
{
	struct hetmem_pool_info pools[64] = { 0 };
	struct hetmem_cmd_info info = {
		.size = sizeof(info), .pools = (uintptr_t)pools,
		.pool_size = sizeof(*pools), .nr_pools = 64,
	};
	int64_t seen = 0;
	unsigned int i;

	if (ioctl(hm->kmod.fd, HETMEM_IOC_INFO, &info))
		return -1;
	for (i = 0; i < info.nr_pools && i < 64; i++)
		seen += pools[i].seen;
	return seen;
}

/* Limits of other drivers' devices go by what the module has seen: the agent sees to it. */
static void looks_again(void)
{
	struct hetmem_agent_params params = {
		.size = sizeof(params), .policy = HETMEM_AGENT_OFF,
		.flags = HETMEM_AGENT_NO_HINTS,
	};
	unsigned char *data = malloc(PAGES * page);
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)memory, .ptr = (uintptr_t)data, .npages = PAGES,
	};
	volatile unsigned char *p = memory;
	int64_t seen;
	size_t i;

	is(seen_in_pools(), 0, "nothing was seen");
	need(!hetmem_agent_start(hm, &params), "an agent: %s", hetmem_last_error());
	/* Busy pages stay: those are asked for again. */
	ok(wait_until((ioctl(gpu, HMM_DMIRROR_MIGRATE_TO_DEV, &cmd),
		       (seen = seen_in_pools()) == (int64_t)(PAGES * page))),
	   "pages go to the GPU, and it sees them: %lld bytes", (long long)seen);
	for (i = 0; i < PAGES / 2; i++)
		(void)p[i * page];
	ok(wait_until(seen_in_pools() <= (int64_t)(PAGES / 2 * page)), "and that they go");
	for (; i < PAGES; i++)
		(void)p[i * page];
	ok(wait_until(!seen_in_pools()), "all of them");
	is(hetmem_agent_stop(hm), 0, "stops");
	free(data);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	open_soft(NULL);
	pretend();
	set(THRASH "count", "2");
	set(THRASH "window_ms", "600000");
	need(!hetmem_system_alloc(hm, SIZE, (void **)&memory), "memory");
	memset(memory, 1, SIZE);
	fought_over = memory + BLOCK;
	looks_again();
	advised();
	aggressive();
	refused(CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
	refused(CU_MEM_ADVISE_SET_ACCESSED_BY);
	not_taken_back(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
	not_taken_back(CU_MEM_ADVISE_UNSET_ACCESSED_BY);
	programs();
	by_class(HETMEM_PLACEMENT_STREAMING);
	by_class(HETMEM_PLACEMENT_READ_MOSTLY);
	ok(all_bytes(memory, 1, SIZE), "contents");
	hetmem_system_free(hm, memory);
	set(THRASH "count", "8");
	set(THRASH "window_ms", "1000");
	close(gpu);
	close_soft();
	return tap_end();
}
