// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's world: making it, ending it, what every call does first,
 * and what the shared object exports. soft.h tells the design.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "soft/soft.h"

#define EXPORT	__attribute__((visibility("default")))

struct soft_world *hm_soft_world;

void hm_soft_sleep(uint64_t ns)
{
	struct timespec ts = {
		.tv_sec = ns / 1000000000,
		.tv_nsec = ns % 1000000000,
	};

	while (ns && nanosleep(&ts, &ts) && errno == EINTR)
		;
}

_Thread_local bool hm_soft_is_worker;

bool hm_soft_is_stopped(const struct soft_world *w)
{
	return w->sleep.state != CU_PROCESS_STATE_RUNNING && !w->sleep.stop && !hm_soft_is_worker;
}

void hm_soft_lock(void)
{
	struct soft_world *w = hm_soft_world;

	pthread_mutex_lock(&w->lock);
	while (hm_soft_is_stopped(w))
		pthread_cond_wait(&w->changed, &w->lock);
}

void hm_soft_unlock(void)
{
	pthread_mutex_unlock(&hm_soft_world->lock);
}

void hm_soft_leak(const char *what, unsigned long long which, size_t size)
{
	if (size)
		fprintf(stderr, "hetmem: soft driver: not freed: %s %#llx, %zu bytes\n",
			what, which, size);
	else
		fprintf(stderr, "hetmem: soft driver: not freed: %s %#llx\n",
			what, which);
}

static CUresult apply_rules(struct soft_world *w, const char *call,
			    uint64_t *delay)
{
	CUresult res = CUDA_SUCCESS;
	unsigned int i;

	pthread_mutex_lock(&w->lock);
	for (i = 0; i < w->nr_rules; i++) {
		struct soft_rule *rule = &w->rules[i];

		if (strcmp(rule->call, call))
			continue;
		rule->count++;
		if (rule->nth && rule->nth != rule->count)
			continue;
		*delay += rule->delay;
		if (!res)
			res = rule->error;
	}
	pthread_mutex_unlock(&w->lock);
	return res;
}

CUresult hm_soft_enter(const char *call, uint64_t *delay)
{
	struct soft_world *w = hm_soft_world;
	uint64_t here = 0;
	CUresult res;

	if (delay)
		*delay = 0;
	if (!w)
		return CUDA_ERROR_DEINITIALIZED;
	if (w->generation != hm_generation())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!__atomic_load_n(&w->nr_rules, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	res = apply_rules(w, call, &here);
	if (delay && !res)
		*delay = here;
	else
		hm_soft_sleep(here);
	return res;
}

static int soft_rules(const char *fail, const char *delay)
{
	struct soft_rule rules[SOFT_MAX_RULES];
	struct soft_world *w = hm_soft_world;
	unsigned int nr = 0;
	int err;

	if (!w)
		return -EINVAL;
	err = hm_soft_parse_rules(rules, &nr, fail, delay);
	if (err)
		return err;
	hm_soft_lock();
	memcpy(w->rules, rules, nr * sizeof(*rules));
	__atomic_store_n(&w->nr_rules, nr, __ATOMIC_RELEASE);
	hm_soft_unlock();
	return 0;
}

static unsigned long soft_made(unsigned int rule)
{
	return hm_soft_world && rule < SOFT_MAX_RULES ? hm_soft_world->rules[rule].count : 0;
}

static bool soft_holds(void)
{
	return hm_soft_world && hm_soft_world->memory;
}

static int soft_module_id(int ordinal)
{
	struct soft_world *w = hm_soft_world;

	if (!w || ordinal < 0 || ordinal >= w->nr_devices)
		return -1;
	return w->devices[ordinal].module_id;
}

static void free_world(struct soft_world *w)
{
	int i;

	for (i = 0; i < SOFT_MAX_DEVICES; i++) {
		hm_check_clock_free(&w->devices[i].gone[false]);
		hm_check_clock_free(&w->devices[i].gone[true]);
	}
	hm_soft_unshare();
	hm_soft_emu_close(w);
	hm_kmod_close(&w->kmod);
	hm_check_free_moves(w);
	hm_check_free_uses(&w->process_uses);
	hm_check_clock_free(&w->host);
	free(w->actors);
	if (w->fd >= 0)
		close(w->fd);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static int make_world(const char *module_path, char *reason, size_t len)
{
	char module[HM_REASON_LEN];
	struct soft_world *w;
	int err;

	w = calloc(1, sizeof(*w));
	if (!w) {
		snprintf(reason, len, "no memory");
		return -ENOMEM;
	}
	w->fd = -1;
	w->sleep.fd = -1;
	w->generation = hm_generation();
	w->page_size = sysconf(_SC_PAGESIZE);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	hm_kmod_open(&w->kmod, module_path, module, sizeof(module));
	hm_soft_emu_open(w);
	err = hm_soft_configure(w, reason, len);
	if (!err)
		err = hm_soft_begin_sleep(w, reason, len);
	if (err) {
		free_world(w);
		return err;
	}
	w->refs = 1;
	hm_soft_world = w;
	return 0;
}

/*
 * The parent's world in a child: its threads are not here, its lock may be
 * held for ever. Nothing of it can be used or safely freed; what it holds
 * is shared with the parent until it is written to, so it costs nothing.
 */
static void forget_parents(void)
{
	static struct soft_world *forgotten;

	if (hm_soft_world && hm_soft_world->generation != hm_generation()) {
		forgotten = hm_soft_world;
		hm_soft_world = NULL;
	}
	(void)forgotten;
}

static int soft_open(const char *module_path, char *reason, size_t len)
{
	int err = 0;

	hm_fork_lock();
	forget_parents();
	if (hm_soft_world)
		hm_soft_world->refs++;
	else
		err = make_world(module_path, reason, len);
	hm_fork_unlock();
	return err;
}

static void soft_close(void)
{
	struct soft_world *w;

	hm_fork_lock();
	w = hm_soft_world;
	if (!w || w->generation != hm_generation() || --w->refs) {
		hm_fork_unlock();
		return;
	}
	/*
	 * Hold fork's lock to the end: a child with half a world, or a second
	 * world beside this one, would be one more case to get right.
	 */
	hm_soft_end_sleep(w);
	hm_soft_free_graphs(w);
	hm_soft_stop_streams(w);
	hm_soft_free_events(w);
	hm_soft_free_memory(w);
	hm_soft_free_vmm(w);
	free_world(w);
	hm_soft_world = NULL;
	hm_fork_unlock();
}

static bool soft_is_checking(void)
{
	return hm_soft_world && hm_soft_world->check;
}

EXPORT const struct hm_soft hetmem_soft = {
	.version = HM_SOFT_VERSION,
	.open = soft_open,
	.close = soft_close,
	.is_checking = soft_is_checking,
	.module_id = soft_module_id,
	.nvml = &hm_soft_nvml,
	.fact = hm_soft_fact,
	.rules = soft_rules,
	.made = soft_made,
	.holds = soft_holds,
	.launch = hm_soft_launch,
	.alloc = hm_check_alloc_memory,
	.free = hm_check_free_memory,
	.forget = hm_check_forget_memory,
	.move_begin = hm_check_begin_move,
	.move_end = hm_check_end_move,
	.parks = hm_check_set_parks,
};

/* The Driver API, by the names that libcuda.so.1 has it under. */

CUresult cuDriverGetVersion(int *version);
CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version,
			     cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status);

EXPORT CUresult cuDriverGetVersion(int *version)
{
	*version = SOFT_VERSION;
	return CUDA_SUCCESS;
}

static struct hm_api api;
static pthread_once_t api_once = PTHREAD_ONCE_INIT;

static void fill_api(void)
{
	hm_soft_fill_device(&api);
	hm_soft_fill_stream(&api);
	hm_soft_fill_capture(&api);
	hm_soft_fill_graph(&api);
	hm_soft_fill_memory(&api);
	hm_soft_fill_pool(&api);
	hm_soft_fill_vmm(&api);
	hm_soft_fill_copy(&api);
	hm_soft_fill_place(&api);
	hm_soft_fill_checkpoint(&api);
}

/* As CUDA: the newest ABI of that name up to the version asked for. */
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version,
				    cuuint64_t flags,
				    CUdriverProcAddressQueryResult *status)
{
	static const struct {
		const char *base;
		size_t offset;
		int version;
	} calls[] = {
#define CALL(member, base, symbol, version, need) \
		{ #base, offsetof(struct hm_api, member), version },
		HM_DRIVER_CALLS(CALL)
		HM_PROGRAM_CALLS(CALL)
#undef CALL
	};
	int newest = 0;
	size_t i;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_once(&api_once, fill_api);
	*fn = NULL;
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		if (strcmp(calls[i].base, symbol) ||
		    calls[i].version > version || calls[i].version < newest)
			continue;
		newest = calls[i].version;
		memcpy(fn, (char *)&api + calls[i].offset, sizeof(*fn));
	}
	*status = *fn ? CU_GET_PROC_ADDRESS_SUCCESS :
		CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
