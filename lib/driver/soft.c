// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's world: making it, ending it, and what every call does
 * first. soft.h tells the design.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/check.h"
#include "driver/soft.h"

struct soft_world *hm_soft_world;

uint64_t hm_soft_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void hm_soft_sleep(uint64_t ns)
{
	struct timespec ts = {
		.tv_sec = ns / 1000000000,
		.tv_nsec = ns % 1000000000,
	};

	while (ns && nanosleep(&ts, &ts) && errno == EINTR)
		;
}

void hm_soft_lock(void)
{
	pthread_mutex_lock(&hm_soft_world->lock);
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

int hm_soft_rules(const char *fail, const char *delay)
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

int hm_soft_module_id(int ordinal)
{
	struct soft_world *w = hm_soft_world;

	if (!w || ordinal < 0 || ordinal >= w->nr_devices)
		return -1;
	return w->devices[ordinal].module_id;
}

static void fill(struct hm_driver *driver)
{
	memset(driver, 0, sizeof(*driver));
	driver->name = "soft";
	driver->version = SOFT_VERSION;
	hm_soft_fill_device(driver);
	hm_soft_fill_stream(driver);
	hm_soft_fill_event(driver);
	hm_soft_fill_capture(driver);
	hm_soft_fill_graph(driver);
	hm_soft_fill_memory(driver);
	hm_soft_fill_pointer(driver);
	hm_soft_fill_pool(driver);
	hm_soft_fill_vmm(driver);
	hm_soft_fill_handle(driver);
	hm_soft_fill_share(driver);
	hm_soft_fill_peer(driver);
	hm_soft_fill_copy(driver);
	hm_soft_fill_place(driver);
}

static void free_world(struct soft_world *w)
{
	int i;

	for (i = 0; i < SOFT_MAX_DEVICES; i++) {
		hm_check_clock_free(&w->devices[i].gone[false]);
		hm_check_clock_free(&w->devices[i].gone[true]);
	}
	hm_soft_emu_close(w);
	hm_kmod_close(&w->kmod);
	hm_check_free_uses(&w->process_uses);
	hm_check_clock_free(&w->host);
	free(w->stream_ids);
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
	w->generation = hm_generation();
	w->page_size = sysconf(_SC_PAGESIZE);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	hm_kmod_open(&w->kmod, module_path, module, sizeof(module));
	hm_soft_emu_open(w);
	err = hm_soft_configure(w, reason, len);
	if (err) {
		free_world(w);
		return err;
	}
	w->refs = 1;
	hm_check_enabled = w->check;
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

int hm_soft_open(struct hm_driver *driver, const char *module_path,
		 char *reason, size_t len)
{
	CUresult res;
	int err = 0;

	hm_fork_lock();
	forget_parents();
	if (hm_soft_world)
		hm_soft_world->refs++;
	else
		err = make_world(module_path, reason, len);
	hm_fork_unlock();
	if (err)
		return err;
	fill(driver);
	res = driver->cuInit(0);
	if (res) {
		snprintf(reason, len, "cuInit: %s", hm_cuda_name(driver, res));
		hm_soft_close();
		return -EIO;
	}
	snprintf(reason, len, "%d device%s", hm_soft_world->nr_devices,
		 hm_soft_world->nr_devices == 1 ? "" : "s");
	return 0;
}

void hm_soft_close(void)
{
	struct soft_world *w;

	hm_fork_lock();
	w = hm_soft_world;
	if (!w || w->generation != hm_generation() || --w->refs) {
		hm_fork_unlock();
		return;
	}
	/*
	 * Under fork's lock to the end: a child of a world half gone, or a
	 * second world beside this one, would be one more case to be right.
	 */
	hm_soft_free_graphs(w);
	hm_soft_stop_streams(w);
	hm_soft_free_events(w);
	hm_soft_free_memory(w);
	hm_soft_free_vmm(w);
	hm_check_enabled = false;
	free_world(w);
	hm_soft_world = NULL;
	hm_fork_unlock();
}
