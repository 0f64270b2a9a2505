// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How much memory a device or the host has left: the least of the figures of the
 * driver, the module, the kernel and the cgroups, less a reserve. Each figure is
 * asked for anew. One that cannot be told is unknown, with the reason, and does not
 * count: that is no error.
 *
 * The reserve: Linux keeps 3% of free memory from what user space may commit
 * (vm.admin_reserve_kbytes, vm.user_reserve_kbytes). 1/32 is the same share, of all
 * memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/hetmem.h"

#define DEFAULT_SHARE	32
#define DEFAULT_MOST	((uint64_t)1 << 30)

static const char *const names[HETMEM_MEMORY_NR] = {
	[HETMEM_MEMORY_DRIVER] = "driver",
	[HETMEM_MEMORY_MODULE] = "module",
	[HETMEM_MEMORY_NODE] = "node",
	[HETMEM_MEMORY_HOST] = "host",
	[HETMEM_MEMORY_CGROUP] = "cgroup",
	[HETMEM_MEMORY_CACHE] = "cache",
};

const char *hetmem_memory_figure_name(int id)
{
	return id >= 0 && id < HETMEM_MEMORY_NR ? names[id] : "unknown";
}

static bool parse_percent(const char *text, uint64_t *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	*value = strtoull(text, &end, 10);
	return !strcmp(end, "%") && *value <= 100;
}

int hm_read_reserve(struct hm_reserve *reserve)
{
	const char *text = secure_getenv("HETMEM_RESERVE");
	uint64_t bytes = 0;

	*reserve = (struct hm_reserve){ .given = text && *text };
	if (!reserve->given)
		return 0;
	if (parse_percent(text, &reserve->value)) {
		reserve->percent = true;
		return 0;
	}
	if (!hm_parse_size(text, &bytes))
		return hm_error(-EINVAL, "HETMEM_RESERVE is \"%s\": use a size like 512M, or a percentage like 5%%",
				text);
	reserve->value = bytes;
	return 0;
}

static void unknown(struct hetmem_memory_figure *figure, const char *why)
{
	figure->bytes = HETMEM_MEMORY_UNKNOWN;
	snprintf(figure->source, sizeof(figure->source), "%s", why);
}

__attribute__((format(printf, 3, 4)))
static void known(struct hetmem_memory_figure *figure, uint64_t bytes,
		  const char *fmt, ...)
{
	va_list args;

	figure->bytes = bytes;
	va_start(args, fmt);
	vsnprintf(figure->source, sizeof(figure->source), fmt, args);
	va_end(args);
}

static void ask_driver(struct hetmem *hm, int device,
		       struct hetmem_memory_figure *figure)
{
	size_t available = 0, total = 0;
	struct hm_context saved;
	CUresult res;

	if (hm_context_enter(hm, device, &saved)) {
		unknown(figure, hetmem_last_error());
		return;
	}
	res = hm->driver.cuMemGetInfo(&available, &total);
	hm_context_leave(hm, &saved);
	if (res)
		known(figure, HETMEM_MEMORY_UNKNOWN, "cuMemGetInfo: %s",
		      hm_cuda_name(&hm->driver, res));
	else
		known(figure, available, "cuMemGetInfo");
}

static void ask_module(const struct hetmem *hm, int device,
		       struct hetmem_memory_figure *figure)
{
	const int id = hm->devices[device].module_id;
	uint64_t capacity, used;

	if (!hm_kmod_there(&hm->kmod))
		unknown(figure, "hetmem.ko is not there");
	else if (id < 0)
		unknown(figure, "this device is not registered with hetmem.ko");
	else if (hm_kmod_device_memory(&hm->kmod, id, &capacity, &used))
		unknown(figure, hetmem_last_error());
	else
		known(figure, capacity > used ? capacity - used : 0,
		      "hetmem.ko: %" PRIu64 " of %" PRIu64 " bytes are in use",
		      used, capacity);
}

static void ask_node(const struct hetmem *hm, int device,
		     struct hetmem_memory_figure *figure)
{
	const int node = hm->devices[device].platform.node;
	uint64_t bytes;

	if (node < 0) {
		unknown(figure, "this device's memory is no node");
		return;
	}
	bytes = hm_node_free(hm->root, node);
	known(figure, bytes, bytes == HETMEM_MEMORY_UNKNOWN ?
	      "no /sys/devices/system/node/node%d/meminfo" :
	      "node %d: MemFree, and clean pages of files", node);
}

static void ask_host(const struct hetmem *hm, struct hetmem_memory_info *info,
		     struct hm_host_memory *m)
{
	struct hetmem_memory_figure *figures = info->figures;

	hm_host_memory(hm->root, m);
	known(&figures[HETMEM_MEMORY_HOST], m->available,
	      m->available == HETMEM_MEMORY_UNKNOWN ?
	      "/proc/meminfo has no MemAvailable" :
	      "/proc/meminfo: MemAvailable");
	known(&figures[HETMEM_MEMORY_CACHE], m->cache,
	      m->cache == HETMEM_MEMORY_UNKNOWN ?
	      "/proc/meminfo has no Active(file)" :
	      "/proc/meminfo: clean pages of files");
	if (m->cgroup == HETMEM_MEMORY_UNKNOWN)
		unknown(&figures[HETMEM_MEMORY_CGROUP], "there is no limit");
	else
		known(&figures[HETMEM_MEMORY_CGROUP], m->cgroup,
		      "cgroup %s: its limit is %" PRIu64, m->cgroup_name,
		      m->cgroup_limit);
}

/* One more that counts: @usable is the least so far. */
static void count(struct hetmem_memory_info *info, int id, uint64_t bytes)
{
	if (bytes == HETMEM_MEMORY_UNKNOWN)
		return;
	info->figures[id].counts = 1;
	if (bytes < info->usable) {
		info->usable = bytes;
		info->least = id;
	}
}

/* Needs @info->total. */
static void find_least(struct hetmem_memory_info *info, bool own, bool hosts)
{
	const struct hetmem_memory_figure *f = info->figures;
	uint64_t driver = f[HETMEM_MEMORY_DRIVER].bytes;
	uint64_t cache = f[HETMEM_MEMORY_CACHE].bytes;

	info->usable = HETMEM_MEMORY_UNKNOWN;
	info->least = -1;
	if (own && hosts && driver != HETMEM_MEMORY_UNKNOWN &&
	    cache != HETMEM_MEMORY_UNKNOWN) {
		driver += cache;
		/* The two figures are not of one moment, and can overlap. */
		if (driver > info->total)
			driver = info->total;
		info->figures[HETMEM_MEMORY_CACHE].counts = 1;
	}
	if (own) {
		count(info, HETMEM_MEMORY_DRIVER, driver);
		count(info, HETMEM_MEMORY_MODULE, f[HETMEM_MEMORY_MODULE].bytes);
		count(info, HETMEM_MEMORY_NODE, f[HETMEM_MEMORY_NODE].bytes);
	}
	if (hosts) {
		count(info, HETMEM_MEMORY_HOST, f[HETMEM_MEMORY_HOST].bytes);
		count(info, HETMEM_MEMORY_CGROUP, f[HETMEM_MEMORY_CGROUP].bytes);
	}
}

static uint64_t reserve_of(const struct hetmem *hm, uint64_t asked,
			   uint64_t total, bool hosts)
{
	const struct hm_reserve *r = &hm->reserve;

	if (asked == HETMEM_RESERVE_NONE)
		return 0;
	if (asked)
		return asked;
	if (r->given && !r->percent)
		return r->value;
	if (total == HETMEM_MEMORY_UNKNOWN)
		return 0;
	if (r->given)
		return total / 100 * r->value;
	total /= DEFAULT_SHARE;
	return hosts || total < DEFAULT_MOST ? total : DEFAULT_MOST;
}

static int check_ask(struct hetmem *hm, int device,
		     const struct hetmem_memory_info *info)
{
	if (!hm || !info)
		return hm_error(-EINVAL, "memory_info: %s is NULL",
				hm ? "info" : "hm");
	if (info->size < offsetof(struct hetmem_memory_info, imported))
		return hm_error(-EINVAL, "memory_info: size is %zu, set it to sizeof(struct hetmem_memory_info)",
				info->size);
	if (device < -1 || device >= hm->nr_devices)
		return hm_no_device(hm, "memory_info", device);
	return device < 0 ? 0 : hm_check_owner(hm);
}

int hetmem_memory_info(struct hetmem *hm, int device,
		       struct hetmem_memory_info *out)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };
	const bool own = device >= 0;
	struct hm_host_memory m;
	bool hosts = true;
	int err, i;

	err = check_ask(hm, device, out);
	if (err)
		return err;
	for (i = 0; i < HETMEM_MEMORY_NR; i++)
		unknown(&info.figures[i], "the host has none");
	ask_host(hm, &info, &m);
	info.total = m.total;
	if (own) {
		info.imported = __atomic_load_n(&hm->imported[device], __ATOMIC_RELAXED);
		hosts = hm->devices[device].platform.kind ==
			HETMEM_PLATFORM_INTEGRATED;
		info.total = hm->devices[device].props.total;
		ask_driver(hm, device, &info.figures[HETMEM_MEMORY_DRIVER]);
		ask_module(hm, device, &info.figures[HETMEM_MEMORY_MODULE]);
		ask_node(hm, device, &info.figures[HETMEM_MEMORY_NODE]);
	}
	find_least(&info, own, hosts);
	info.reserve = reserve_of(hm, out->reserve, info.total, hosts);
	if (info.usable != HETMEM_MEMORY_UNKNOWN)
		info.usable -= info.reserve < info.usable ? info.reserve :
			info.usable;
	info.pressures = __atomic_load_n(&hm->pressures[device + 1], __ATOMIC_RELAXED);
	info.size = out->size;
	memcpy(out, &info, out->size < sizeof(info) ? out->size : sizeof(info));
	return 0;
}

uint64_t hm_host_usable(struct hetmem *hm)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };

	return hetmem_memory_info(hm, -1, &info) ? HETMEM_MEMORY_UNKNOWN : info.usable;
}

void hm_keep_add(struct hetmem *hm, struct hm_keep *keep)
{
	pthread_mutex_lock(&hm->lock);
	keep->next = hm->keeps;
	__atomic_store_n(&hm->keeps, keep, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&hm->lock);
}

void hm_keep_remove(struct hetmem *hm, struct hm_keep *keep)
{
	struct hm_keep **at;

	pthread_mutex_lock(&hm->lock);
	for (at = &hm->keeps; *at && *at != keep; at = &(*at)->next)
		;
	if (*at)
		__atomic_store_n(at, keep->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&hm->lock);
}

uint64_t hm_headroom_fit(struct hetmem *hm, int device)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };
	const struct hm_keep *keep;
	uint64_t most = 0;
	bool any = false;

	/* Most programs have none. */
	if (!__atomic_load_n(&hm->keeps, __ATOMIC_ACQUIRE))
		return UINT64_MAX;
	pthread_mutex_lock(&hm->lock);
	for (keep = hm->keeps; keep; keep = keep->next) {
		if (keep->device != device)
			continue;
		any = true;
		if (keep->bytes > most)
			most = keep->bytes;
	}
	pthread_mutex_unlock(&hm->lock);
	if (!any || hetmem_memory_info(hm, device, &info) ||
	    info.usable == HETMEM_MEMORY_UNKNOWN)
		return UINT64_MAX;
	return info.usable > most ? info.usable - most : 0;
}
