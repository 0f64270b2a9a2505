/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* NVML, see gpus.h. A driver can hang, so another thread calls it, and may be abandoned. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bounded.h"
#include "gpus.h"
#include "util.h"

#define LIBRARY		"libnvidia-ml.so.1"

/* nvmlReturn_t */
#define SUCCESS			0
#define NOT_SUPPORTED		3
#define INSUFFICIENT_SIZE	7

#define NAME_LEN		96
/* Times that a list of processes may grow between two calls. */
#define TRIES			4

/* nvmlMemory_t */
struct memory {
	unsigned long long total, free, used;
};

/* nvmlProcessInfo_t of the calls _v2 and _v3. */
struct process_info {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int gpu_instance, compute_instance;
};

typedef int list_fn(void *device, unsigned int *nr, struct process_info *infos);

/* Kinds of processes. One can be in several lists, each of which has all of its memory. */
enum { COMPUTE, GRAPHICS, MPS, NR_LISTS };

/* NVML's own names. A list is NULL in a library that is too old. */
static struct {
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned int *nr);
	int (*handle)(unsigned int index, void **device);
	int (*name)(void *device, char *name, unsigned int len);
	int (*memory)(void *device, struct memory *memory);
	list_fn *lists[NR_LISTS];
	bool loaded, running;
} nvml;

static void *find(void *library, const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

static list_fn *find_list(void *library, const char *kind)
{
	char name[80];
	void *fn;

	snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses_v3", kind);
	fn = find(library, name);
	if (!fn) {
		snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses_v2", kind);
		fn = find(library, name);
	}
	return (list_fn *)fn;
}

/* False: there is no library. It stays loaded. */
static bool load(void)
{
	void *library;

	if (nvml.loaded)
		return true;
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return false;
	*(void **)&nvml.init = find(library, "nvmlInit_v2");
	*(void **)&nvml.shutdown = find(library, "nvmlShutdown");
	*(void **)&nvml.count = find(library, "nvmlDeviceGetCount_v2");
	*(void **)&nvml.handle = find(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.name = find(library, "nvmlDeviceGetName");
	*(void **)&nvml.memory = find(library, "nvmlDeviceGetMemoryInfo");
	nvml.lists[COMPUTE] = find_list(library, "Compute");
	nvml.lists[GRAPHICS] = find_list(library, "Graphics");
	nvml.lists[MPS] = find_list(library, "MPSCompute");
	nvml.loaded = true;
	return true;
}

static bool is_complete(void)
{
	return nvml.init && nvml.shutdown && nvml.count && nvml.handle && nvml.name &&
	       nvml.memory && nvml.lists[COMPUTE];
}

/* The number of @gpu's entries before @from that have @pid, added up in @uses; see add_list(). */
static struct gpu_use *find_use(struct gpus *g, unsigned int from, pid_t pid)
{
	unsigned int i;

	for (i = from; i < g->nr_uses; i++)
		if (g->uses[i].pid == pid)
			return &g->uses[i];
	return NULL;
}

static struct gpu_use *add_use(struct gpus *g, unsigned int gpu, pid_t pid)
{
	if (g->nr_uses == GPU_USES_MOST) {
		g->left_out++;
		return NULL;
	}
	g->uses = xrealloc_array(g->uses, g->nr_uses + 1, sizeof(*g->uses));
	g->uses[g->nr_uses] = (struct gpu_use){ .pid = pid, .gpu = gpu };
	return &g->uses[g->nr_uses++];
}

/* What a list has of one process: it can have memory in several parts of a GPU (MIG). */
static uint64_t sum_of(const struct process_info *infos, unsigned int nr, unsigned int pid)
{
	uint64_t bytes = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		if (infos[i].pid != pid)
			continue;
		if (infos[i].bytes > INT64_MAX)
			return GPU_BYTES_UNKNOWN;
		bytes += infos[i].bytes;
		if (bytes > INT64_MAX)
			return GPU_BYTES_UNKNOWN;
	}
	return bytes;
}

/* A process that another list had, from @from on, counts once: the larger figure is taken. */
static void add_list(struct gpus *g, unsigned int gpu, unsigned int from,
		     const struct process_info *infos, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		const uint64_t bytes = sum_of(infos, nr, infos[i].pid);
		struct gpu_use *use = find_use(g, from, infos[i].pid);

		if (!use) {
			use = add_use(g, gpu, infos[i].pid);
			if (use)
				use->bytes = bytes;
		} else if (use->bytes == GPU_BYTES_UNKNOWN ||
			   (bytes != GPU_BYTES_UNKNOWN && bytes > use->bytes)) {
			use->bytes = bytes;
		}
	}
}

/* @infos is malloc'd; 0 if there are none, or NVML does not tell. */
static unsigned int read_list(void *device, list_fn *list, struct process_info **infos)
{
	unsigned int room = 64, nr, try;
	int ret;

	*infos = NULL;
	for (try = 0; list && try < TRIES && room <= GPU_USES_MOST; try++) {
		*infos = xrealloc_array(*infos, room, sizeof(**infos));
		nr = room;
		ret = list(device, &nr, *infos);
		if (ret == SUCCESS)
			return nr < room ? nr : room;
		if (ret != INSUFFICIENT_SIZE)
			return 0;
		room = nr > room ? nr + 16 : 2 * room;
	}
	return 0;
}

static void look_at_gpu(struct gpus *g, unsigned int index)
{
	struct gpu *gpu = &g->gpus[index];
	const unsigned int from = g->nr_uses;
	char name[NAME_LEN] = "";
	struct memory memory = { 0 };
	void *device = NULL;
	unsigned int i;

	strcpy(gpu->name, "unknown");
	/* Without rights on one device the others can still be looked at. */
	if (nvml.handle(index, &device))
		return;
	if (!nvml.name(device, name, sizeof(name))) {
		name[sizeof(name) - 1] = '\0';
		escape(gpu->name, sizeof(gpu->name), name);
	}
	gpu->known = !nvml.memory(device, &memory);
	gpu->total = memory.total;
	gpu->used = memory.used;
	for (i = 0; i < NR_LISTS; i++) {
		struct process_info *infos;
		const unsigned int nr = read_list(device, nvml.lists[i], &infos);

		add_list(g, index, from, infos, nr);
		free(infos);
	}
}

static int by_gpu(const void *a, const void *b)
{
	const struct gpu_use *x = a, *y = b;

	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* NVML stays initialized: to start it can take seconds. After an error it starts again. */
static void look(void *arg)
{
	struct gpus *g = arg;
	unsigned int nr = 0, i;
	int ret;

	g->there = load();
	if (!g->there)
		return;
	if (!is_complete()) {
		snprintf(g->why, sizeof(g->why), "%s is too old", LIBRARY);
		return;
	}
	ret = nvml.running ? SUCCESS : nvml.init();
	if (ret) {
		snprintf(g->why, sizeof(g->why), "nvmlInit: error %d", ret);
		return;
	}
	nvml.running = true;
	ret = nvml.count(&nr);
	if (ret) {
		nvml.shutdown();
		nvml.running = false;
		snprintf(g->why, sizeof(g->why), "nvmlDeviceGetCount: error %d", ret);
		return;
	}
	g->nr = nr < GPUS_MOST ? nr : GPUS_MOST;
	for (i = 0; i < g->nr; i++)
		look_at_gpu(g, i);
	if (g->nr_uses)
		qsort(g->uses, g->nr_uses, sizeof(*g->uses), by_gpu);
}

/* Whether an abandoned look has not returned yet: NVML's state is that look's. */
static bool stuck;
static pthread_mutex_t stuck_lock = PTHREAD_MUTEX_INITIALIZER;

static void set_stuck(bool is)
{
	pthread_mutex_lock(&stuck_lock);
	stuck = is;
	pthread_mutex_unlock(&stuck_lock);
}

static bool is_stuck(void)
{
	bool is;

	pthread_mutex_lock(&stuck_lock);
	is = stuck;
	pthread_mutex_unlock(&stuck_lock);
	return is;
}

static void drop_look(void *arg)
{
	gpus_free(arg);
	free(arg);
	set_stuck(false);
}

void gpus_look(struct gpus *gpus, double end)
{
	struct gpus *own;
	struct bounded *call;

	*gpus = (struct gpus){ .there = true, .why = "NVML does not answer" };
	if (is_stuck())
		return;
	own = xcalloc(1, sizeof(*own));
	call = bounded_begin(look, own);
	if (!call) {
		look(own);
	} else if (!bounded_wait(call, end)) {
		set_stuck(true);
		if (!bounded_end(call, drop_look))
			return;
		/* It returned after the wait. */
		set_stuck(false);
	} else {
		bounded_end(call, NULL);
	}
	*gpus = *own;
	free(own);
}

void gpus_free(struct gpus *gpus)
{
	free(gpus->uses);
	gpus->uses = NULL;
	gpus->nr_uses = 0;
}
