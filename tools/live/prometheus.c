/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem status --prometheus. All samples of a metric stand together below its HELP and TYPE,
 * so each metric walks the processes anew. Figures without a source are left out: a metric
 * that is absent is not 0.
 */
#include <inttypes.h>
#include <stdio.h>

#include "map/source.h"
#include "status.h"
#include "util.h"

/* A label's value. Names are escaped to printable characters before they get here. */
static void print_label(const char *name, const char *value, const char *before)
{
	printf("%s%s=\"", before, name);
	for (; *value; value++) {
		if (*value == '\\' || *value == '"')
			putchar('\\');
		putchar(*value);
	}
	putchar('"');
}

static void begin(const char *metric, const char *type, const char *help)
{
	printf("# HELP hetmem_%s %s\n# TYPE hetmem_%s %s\n", metric, help, metric, type);
}

static void print_total(const char *metric, const char *type, const char *help, uint64_t value)
{
	begin(metric, type, help);
	printf("hetmem_%s %" PRIu64 "\n", metric, value);
}

static void print_module(const struct sample_module *m)
{
	unsigned int i;

	print_total("module_loaded", "gauge", "Whether hetmem.ko is loaded.", m->loaded);
	if (!m->loaded)
		return;
	begin("moved_bytes_total", "counter", "Bytes that registered drivers moved, by the module.");
	printf("hetmem_moved_bytes_total{direction=\"to_device\"} %" PRIu64 "\n", m->to_device);
	printf("hetmem_moved_bytes_total{direction=\"to_host\"} %" PRIu64 "\n", m->to_host);
	print_total("unmoved_pages_total", "counter", "Pages that a move left where they were.",
		    m->failed_pages);
	print_total("thrashed_blocks_total", "counter",
		    "Times that a block of 2 MiB went back and forth.", m->thrashed);
	print_total("hints_total", "counter", "Hints that executors were told.", m->hints);
	print_total("events_total", "counter", "Events added to rings.", m->events);
	print_total("events_dropped_total", "counter", "Events lost because a ring was full.",
		    m->events_dropped);
	print_total("contexts", "gauge", "Contexts that are open.", m->contexts);
	print_total("tracked_ranges", "gauge", "Ranges that are tracked.", m->ranges);
	print_total("kernel_memory_bytes", "gauge", "Kernel memory of all contexts.",
		    m->kernel_bytes);
	print_total("pinned_bytes", "gauge", "Memory that contexts hold on the host.", m->pinned);
	if (!m->nr_devices)
		return;
#define DEVICES(metric, help, member) do {						\
	begin(metric, "gauge", help);							\
	for (i = 0; i < m->nr_devices; i++) {						\
		printf("hetmem_" metric "{device=\"%u\"", m->devices[i].id);		\
		print_label("name", m->devices[i].name, ",");				\
		printf("} %" PRIu64 "\n", m->devices[i].member);			\
	}										\
} while (0)
	DEVICES("device_capacity_bytes", "Memory of a registered device.", capacity);
	DEVICES("device_used_bytes", "Memory in use there.", used);
	DEVICES("device_limit_bytes", "Memory that may be used there.", limit);
#undef DEVICES
}

static void print_gpus(const struct gpus *g)
{
	unsigned int i;

	if (!g->nr)
		return;
#define GPUS(metric, help, member) do {						\
	begin(metric, "gauge", help);							\
	for (i = 0; i < g->nr; i++) {							\
		if (!g->gpus[i].known)							\
			continue;							\
		printf("hetmem_" metric "{gpu=\"%u\"", i);				\
		print_label("name", g->gpus[i].name, ",");				\
		printf("} %" PRIu64 "\n", g->gpus[i].member);				\
	}										\
} while (0)
	GPUS("gpu_memory_bytes", "Memory of a GPU, by NVML.", total);
	GPUS("gpu_used_bytes", "Memory in use there, by all processes.", used);
#undef GPUS
}

static void print_process(const char *metric, const struct sample_process *p)
{
	printf("hetmem_%s{pid=\"%d\",uid=\"%u\"", metric, p->pid, p->uid);
	print_label("name", p->name, ",");
}

static void print_residency(const struct sample *s)
{
	const struct sample_process *p;
	char location[64];
	unsigned int k;

	begin("process_resident_bytes", "gauge", "Memory of a process by location, and who says so.");
	for (p = s->processes; p < s->processes + s->nr; p++) {
		for (k = 0; k < p->nr_locations; k++) {
			print_process("process_resident_bytes", p);
			print_label("location", location_text(p->locations[k].location, location,
							      sizeof(location)), ",");
			print_label("source", sample_source_name(p->residency), ",");
			printf("} %" PRIu64 "\n", p->locations[k].bytes);
		}
	}
	begin("process_residency_complete", "gauge",
	      "Whether all memory of a process was looked at.");
	for (p = s->processes; p < s->processes + s->nr; p++) {
		print_process("process_residency_complete", p);
		printf("} %d\n", p->residency != SOURCE_NONE && !p->partial);
	}
}

static void print_processes(const struct sample *s)
{
	const struct sample_process *p;

	print_residency(s);
	begin("process_moved_bytes_total", "counter",
	      "Bytes that registered drivers moved for a process, by the module.");
	for (p = s->processes; p < s->processes + s->nr; p++) {
		if (!p->counted)
			continue;
		print_process("process_moved_bytes_total", p);
		printf(",direction=\"to_device\"} %" PRIu64 "\n", p->to_device);
		print_process("process_moved_bytes_total", p);
		printf(",direction=\"to_host\"} %" PRIu64 "\n", p->to_host);
	}
#define TRACKED(metric, type, help, known, member) do {				\
	begin(metric, type, help);						\
	for (p = s->processes; p < s->processes + s->nr; p++) {		\
		if (!(known))							\
			continue;						\
		print_process(metric, p);					\
		printf("} %" PRIu64 "\n", (uint64_t)p->member);			\
	}									\
} while (0)
	TRACKED("process_tracked_ranges", "gauge", "Tracked ranges of a process.", p->tracked,
		ranges);
	TRACKED("process_pinned_bytes", "gauge", "Memory that is held on the host.", p->tracked,
		pinned);
	TRACKED("process_hints_waiting", "gauge", "Hints that wait for a process.", p->tracked,
		waiting);
	TRACKED("process_thrashed_blocks_total", "counter",
		"Times that a block of tracked memory went back and forth.", p->all_ranges,
		thrashed);
#undef TRACKED
}

static void print_held(const struct sample *s)
{
	const struct sample_process *p;
	unsigned int k;

	if (!s->gpus.nr)
		return;
	begin("process_gpu_bytes", "gauge", "Memory of a GPU that a process holds, by NVML.");
	for (p = s->processes; p < s->processes + s->nr; p++) {
		for (k = 0; k < p->nr_gpus; k++) {
			if (p->gpus[k].bytes == GPU_BYTES_UNKNOWN)
				continue;
			print_process("process_gpu_bytes", p);
			printf(",gpu=\"%u\"} %" PRIu64 "\n", p->gpus[k].gpu, p->gpus[k].bytes);
		}
	}
}

static void print_pool(const char *metric, const struct sample_process *p,
		       const struct hm_published_pool *pool)
{
	print_process(metric, p);
	printf(",pool=\"%" PRIu64 "\",device=\"%d\"", pool->number, pool->device);
	print_label("provider", pool->provider, ",");
	print_label("tag", pool->tag, ",");
}

static void print_pools(const struct sample *s)
{
	const struct hm_published_pool *pool;
	const struct sample_process *p;

#define POOLS(metric, type, help, format, value) do {				\
	begin(metric, type, help);						\
	for (p = s->processes; p < s->processes + s->nr; p++) {		\
		for (pool = p->pools; pool < p->pools + p->nr_pools; pool++) {	\
			print_pool(metric, p, pool);				\
			printf("} %" format "\n", value);			\
		}								\
	}									\
} while (0)
	POOLS("pool_requested_bytes", "gauge", "Requested bytes of live blocks.", PRIu64,
	      pool->requested);
	POOLS("pool_requested_peak_bytes", "gauge", "The most of these.", PRIu64,
	      pool->requested_peak);
	POOLS("pool_reserved_bytes", "gauge", "Physical memory that a pool holds.", PRIu64,
	      pool->reserved);
	POOLS("pool_reserved_peak_bytes", "gauge", "The most of this.", PRIu64,
	      pool->reserved_peak);
	POOLS("pool_limit_bytes", "gauge", "The most that a pool may hold; 0 for no limit.", PRIu64,
	      pool->max);
	POOLS("pool_live_blocks", "gauge", "Blocks that are allocated.", PRIu64,
	      sample_live(pool));
	POOLS("pool_allocations_total", "counter", "Allocations.", PRIu64, pool->allocs);
	POOLS("pool_frees_total", "counter", "Frees.", PRIu64, pool->frees);
	POOLS("pool_failures_total", "counter", "Allocations that failed.", PRIu64, pool->failed);
	POOLS("pool_driver_calls_total", "counter", "Calls of the driver.", PRIu64,
	      pool->driver_calls);
	POOLS("pool_host_wait_seconds_total", "counter", "Time that calls waited for a device.",
	      ".9f", pool->host_wait_ns / 1e9);
	POOLS("pool_pressures_total", "counter", "Calls of a program before a pool is full.", PRIu64,
	      pool->pressures);
	POOLS("pool_parked_bytes", "gauge", "Host memory with contents of a sleeping pool.", PRIu64,
	      pool->parked);
	POOLS("pool_spilled_bytes", "gauge", "Blocks that are on the host.", PRIu64, pool->spilled);
	POOLS("pool_spilled_bytes_total", "counter", "Bytes that a pool moved to the host.", PRIu64,
	      pool->spilled_total);
	POOLS("pool_fetched_bytes_total", "counter", "Bytes that a pool moved back.", PRIu64,
	      pool->fetched_total);
#undef POOLS
}

void status_prometheus(const struct sample *s)
{
	print_module(&s->module);
	print_gpus(&s->gpus);
	print_processes(s);
	print_held(s);
	print_pools(s);
	print_total("processes", "gauge", "Processes that use hetmem.",
		    sample_users(s));
	print_total("processes_hidden", "gauge", "Processes that could not be looked into.",
		    s->hidden);
	print_total("processes_left_out", "gauge", "Processes that there was no time or room for.",
		    s->left_out);
	begin("sample_duration_seconds", "gauge", "What this took.");
	printf("hetmem_sample_duration_seconds %.6f\n", s->took);
}
