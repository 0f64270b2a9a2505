// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Settings, the library, and a resource of the spec for each device that the program uses.
 *
 * The library is opened at the first served call. A device is opened at the first served call
 * with its primary context current. Other contexts are not served: memory of one context is
 * not another's to use.
 *
 * Locks: @opening covers the table of devices while it changes; readers only load @ctx. The
 * library's own locks are taken inside.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "cuda/ipc.h"
#include "cuda/listen.h"
#include "cuda/prototypes.h"
#include "cuda/sleep.h"
#include "spec/spec.h"

#define REPORT_MOST	16384

bool hm_cuda_sync = true;
bool hm_cuda_managed;
bool hm_cuda_ipc;

static const char *spec_text;
static const char *report;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct hetmem *hm;
static unsigned int generation;
static struct hm_cuda_device devices[HM_MAX_DEVICES];
/* Devices for which the spec has no resource: they were reported. */
static bool refused[HM_MAX_DEVICES];

void hm_cuda_say(const char *fmt, ...)
{
	char line[1024];
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, args);
	va_end(args);
	if (n < 0)
		return;
	dprintf(STDERR_FILENO, "hetmem: cuda: %s\n", line);
}

/* Reads one KEY=VALUE of HETMEM_CUDA_SET. False: there is no such key or value. */
static bool set(const char *word, size_t len)
{
	static const struct {
		const char *text;
		bool *where, value;
	} words[] = {
#define SWITCH(name)	{ #name "=on", &hm_cuda_##name, true }, { #name "=off", &hm_cuda_##name, false },
		HM_CUDA_SWITCHES(SWITCH)
#undef SWITCH
	};
	size_t i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strlen(words[i].text) != len || strncmp(words[i].text, word, len))
			continue;
		*words[i].where = words[i].value;
		return true;
	}
	return false;
}

bool hm_cuda_read_settings(void)
{
	const char *words = secure_getenv(HM_CUDA_SET);
	struct hm_spec *spec;
	size_t len;

	spec_text = secure_getenv(HM_CUDA_SPEC);
	report = secure_getenv(HM_CUDA_REPORT);
	if (!spec_text || !*spec_text)
		return false;
	if (hm_spec_parse(spec_text, &spec)) {
		hm_cuda_say(HM_CUDA_SPEC ": %s", hetmem_last_error());
		_exit(2);
	}
	hm_spec_free(spec);
	for (; words && *words; words += len + (words[len] == ',')) {
		len = strcspn(words, ",");
		if (set(words, len))
			continue;
		hm_cuda_say(HM_CUDA_SET ": '%.*s' is not one of " HM_CUDA_SET_VALUES, (int)len,
			    words);
		_exit(2);
	}
	return true;
}

bool hm_cuda_is_child(void)
{
	return __atomic_load_n(&hm, __ATOMIC_ACQUIRE) && generation != hm_generation();
}

/*
 * What the library has from the driver as a whole is noted, so that a program cannot free it:
 * the address of a region can be one that the program has already freed.
 */
static struct hm_driver real;

static CUresult note_alloc(CUdeviceptr *ptr, size_t size)
{
	CUresult res = real.cuMemAlloc(ptr, size);

	if (!res)
		hm_cuda_region_add(*ptr);
	return res;
}

static CUresult note_managed(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	CUresult res = real.cuMemAllocManaged(ptr, size, flags);

	if (!res)
		hm_cuda_region_add(*ptr);
	return res;
}

static CUresult note_free(CUdeviceptr ptr)
{
	CUresult res = real.cuMemFree(ptr);

	if (!res)
		hm_cuda_region_remove(ptr);
	return res;
}

static CUresult note_async(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	CUresult res = real.cuMemAllocAsync(ptr, size, stream);

	if (!res)
		hm_cuda_region_add(*ptr);
	return res;
}

static CUresult note_from_pool(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	CUresult res = real.cuMemAllocFromPoolAsync(ptr, size, pool, stream);

	if (!res)
		hm_cuda_region_add(*ptr);
	return res;
}

static CUresult note_free_async(CUdeviceptr ptr, CUstream stream)
{
	CUresult res;

	/* Once it is freed, another thread can get the address at once. */
	hm_cuda_region_remove(ptr);
	res = real.cuMemFreeAsync(ptr, stream);
	if (res)
		hm_cuda_region_add(ptr);
	return res;
}

static int open_library(void)
{
	const struct hetmem_params params = { .size = sizeof(params), .driver = "cuda" };
	struct hetmem *made;
	int err;

	if (hm)
		return 0;
	err = hetmem_open(&made, &params);
	if (err)
		return err;
	real = made->driver;
	made->driver.cuMemAlloc = note_alloc;
	made->driver.cuMemAllocManaged = note_managed;
	made->driver.cuMemFree = note_free;
	if (real.cuMemAllocAsync)
		made->driver.cuMemAllocAsync = note_async;
	if (real.cuMemAllocFromPoolAsync)
		made->driver.cuMemAllocFromPoolAsync = note_from_pool;
	if (real.cuMemFreeAsync)
		made->driver.cuMemFreeAsync = note_free_async;
	hm_cuda_peer_wrap(&made->driver);
	generation = hm_generation();
	__atomic_store_n(&hm, made, __ATOMIC_RELEASE);
	return 0;
}

bool hm_cuda_device_of_context(CUcontext ctx, CUdevice *handle)
{
	CUcontext before = hm_cuda_current();
	CUresult res;

	if (!ctx)
		return false;
	if (before != ctx && HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(ctx))
		return false;
	res = HM_CUDA_NEXT_AS(cuCtxGetDevice, CUresult (*)(CUdevice *))(handle);
	if (before != ctx)
		HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(before);
	return !res;
}

/* Whether @ctx is the primary context of its device. */
static bool is_primary(CUcontext ctx, CUdevice *handle)
{
	unsigned int flags;
	CUcontext primary;
	int on = 0;

	/* A context that is not active cannot be @ctx: it is not made for the question. */
	if (!hm_cuda_device_of_context(ctx, handle) || HM_CUDA_NEXT_AS(cuDevicePrimaryCtxGetState, CUresult (*)(CUdevice, unsigned int *,
			int *))(*handle, &flags, &on) || !on)
		return false;
	if (HM_CUDA_NEXT(cuDevicePrimaryCtxRetain)(&primary, *handle))
		return false;
	HM_CUDA_NEXT(cuDevicePrimaryCtxRelease_v2)(*handle);
	return primary == ctx;
}

static int ordinal_of(CUdevice handle)
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].handle == handle)
			return i;
	return -1;
}

/* With the lock. */
static int open_resource(struct hm_cuda_device *d, int ordinal, CUcontext *ctx)
{
	struct hetmem_access access = { .size = sizeof(access) };
	int err = hm_device_context(hm, ordinal, ctx);

	if (!err)
		err = hm_resource_create_on(hm, spec_text, ordinal, &d->resource);
	if (err)
		return err;
	err = hetmem_resource_access(d->resource, &access);
	if (!err && !(access.devices >> ordinal & 1))
		err = hm_error(-EINVAL, "devices cannot use all memory of '%s'; take device-pool",
			       spec_text);
	if (!err && hm_cuda_managed && !access.host)
		err = hm_error(-EINVAL, "managed=on: the CPU cannot use all memory of '%s'; take pool(managed)",
			       spec_text);
	if (err) {
		hetmem_resource_destroy(d->resource);
		d->resource = NULL;
	}
	return err;
}

struct hm_cuda_device *hm_cuda_device_of(CUdevice handle, CUresult *error)
{
	struct hm_cuda_device *d;
	CUcontext ctx;
	int err, ordinal = -1;

	*error = CUDA_SUCCESS;
	if (hm_cuda_is_child())
		return NULL;
	pthread_mutex_lock(&opening);
	err = open_library();
	if (!err)
		ordinal = ordinal_of(handle);
	d = ordinal < 0 ? NULL : &devices[ordinal];
	if (d && !d->ctx && !refused[ordinal]) {
		err = open_resource(d, ordinal, &ctx);
		d->hm = hm;
		d->handle = handle;
		if (!err)
			hm_cuda_recharge(d);
		if (!err)
			__atomic_store_n(&d->ctx, ctx, __ATOMIC_RELEASE);
	}
	if (err) {
		hm_cuda_say("device %d: %s: its allocations fail", handle, hetmem_last_error());
		if (ordinal >= 0 && err != -ENOMEM)
			refused[ordinal] = true;
	}
	if (err || (ordinal >= 0 && refused[ordinal]))
		*error = err == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_unlock(&opening);
	if (d && !*error)
		hm_cuda_listen_begin();
	return *error ? NULL : d;
}

struct hm_cuda_device *hm_cuda_device(CUcontext ctx, CUresult *error)
{
	struct hm_cuda_device *d;
	CUdevice handle;
	int i;

	*error = CUDA_SUCCESS;
	if (!ctx || hm_cuda_is_child())
		return NULL;
	for (i = 0; i < HM_MAX_DEVICES; i++)
		if (__atomic_load_n(&devices[i].ctx, __ATOMIC_ACQUIRE) == ctx)
			return &devices[i];
	if (!is_primary(ctx, &handle))
		return NULL;
	d = hm_cuda_device_of(handle, error);
	return d && d->ctx == ctx ? d : NULL;
}

struct hm_cuda_device *hm_cuda_open_device(CUdevice handle)
{
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++)
		if (__atomic_load_n(&devices[i].ctx, __ATOMIC_ACQUIRE) &&
		    devices[i].handle == handle)
			return &devices[i];
	return NULL;
}

int hm_cuda_ordinal(const struct hm_cuda_device *d)
{
	return d - devices;
}

void hm_cuda_each_device(void (*each)(struct hm_cuda_device *device, void *arg), void *arg)
{
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++)
		if (__atomic_load_n(&devices[i].ctx, __ATOMIC_ACQUIRE))
			each(&devices[i], arg);
}

/* The resource, which is destroyed next, frees the block. */
static void forget(const struct hm_cuda_block *block)
{
	(void)block;
}

void hm_cuda_end_device(CUdevice handle)
{
	struct hm_cuda_device *d;

	if (hm_cuda_is_child())
		return;
	pthread_mutex_lock(&opening);
	d = hm_cuda_open_device(handle);
	if (d) {
		__atomic_store_n(&d->ctx, NULL, __ATOMIC_RELEASE);
		hm_cuda_ipc_end(handle);
		hm_cuda_block_drop(handle, NULL, forget);
		hm_cuda_array_drop(handle, NULL);
		hm_cuda_pool_forget(handle);
		hm_cuda_graph_forget(handle);
		hetmem_resource_destroy(d->resource);
		d->resource = NULL;
		hm_cuda_peer_forget(handle);
		hm_device_release(hm, ordinal_of(handle));
	}
	pthread_mutex_unlock(&opening);
}

/* Tables of functions that programs asked for, by their id. */
#define TABLES	32

static struct {
	CUuuid id;
	unsigned long count;
} tables[TABLES];
static unsigned int nr_tables;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* More than TABLES different ones are not told apart: they are in the count of the call. */
static void count_table(const CUuuid *id)
{
	unsigned int i;

	pthread_mutex_lock(&counting);
	for (i = 0; i < nr_tables && memcmp(&tables[i].id, id, sizeof(*id)); i++)
		;
	if (i == nr_tables && i < TABLES)
		tables[nr_tables++].id = *id;
	if (i < nr_tables)
		tables[i].count++;
	pthread_mutex_unlock(&counting);
}

CUresult HM_CUDA_EXPORT cuGetExportTable(const void **table, const CUuuid *id)
{
	if (hm_cuda_is_active()) {
		HM_CUDA_COUNT(cuGetExportTable);
		if (id && !hm_cuda_is_child())
			count_table(id);
	}
	return HM_CUDA_NEXT(cuGetExportTable)(table, id);
}

/* Writes an id as text. Returns the length. */
static int print_id(char *text, size_t size, const CUuuid *id)
{
	unsigned int byte;
	int len = 0;

	for (byte = 0; byte < sizeof(CUuuid); byte++)
		len += snprintf(text + len, size - len, "%s%02x",
				byte >= 4 && byte <= 10 && byte % 2 == 0 ? "-" : "",
				(unsigned char)id->bytes[byte]);
	return len;
}

const char *hm_cuda_has_table(void)
{
	static char text[40];
	const char *found = NULL;

	pthread_mutex_lock(&counting);
	if (nr_tables) {
		print_id(text, sizeof(text), &tables[0].id);
		found = text;
	}
	pthread_mutex_unlock(&counting);
	return found;
}

/* Appends " table:ID=COUNT" for each. Returns the new length. */
static size_t print_tables(char *line, size_t len, size_t size)
{
	unsigned int i;

	for (i = 0; i < nr_tables && size - len > 80; i++) {
		len += snprintf(line + len, size - len, " table:");
		len += print_id(line + len, size - len, &tables[i].id);
		len += snprintf(line + len, size - len, "=%lu", tables[i].count);
	}
	return len;
}

/* Appends " NAME=COUNT" for each function that was called. Returns the new length. */
static size_t print_counts(char *line, size_t len, size_t size)
{
	unsigned int i;
	int n;

	for (i = 0; i < HM_CUDA_NR; i++) {
		const uint64_t count = __atomic_load_n(&hm_cuda_counts[i], __ATOMIC_RELAXED);

		if (!count)
			continue;
		n = snprintf(line + len, size - len, " %s=%llu", hm_cuda_names[i],
			     (unsigned long long)count);
		if (n < 0 || (size_t)n >= size - len)
			break;
		len += n;
	}
	return len;
}

__attribute__((destructor))
static void end(void)
{
	char line[REPORT_MOST];
	size_t len;
	int fd, n;

	hm_cuda_listen_end();
	if (!report || !hm_cuda_is_active())
		return;
	n = snprintf(line, sizeof(line), "pid=%d command=%.64s unknown=%llu", getpid(),
		     program_invocation_short_name,
		     (unsigned long long)__atomic_load_n(&hm_cuda_unknown, __ATOMIC_RELAXED));
	fd = open(report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
	if (n < 0 || fd < 0)
		return;
	len = print_counts(line, n, sizeof(line) - 1);
	len = print_tables(line, len, sizeof(line) - 1);
	line[len++] = '\n';
	/* One write: lines of processes that end together do not mix. */
	if (write(fd, line, len) < 0)
		hm_cuda_say("%s: %s", report, strerror(errno));
	close(fd);
}
