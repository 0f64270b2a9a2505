/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the benchmarks of resources share: see alloc.h. */
#include <getopt.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc.h"
#include "count_calls.h"
#include "count_system.h"
#include "options.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

size_t bench_sizes[BENCH_SIZES];

struct bench_pairs {
	struct bench_pair *rows;
	size_t nr;
};

uint64_t bench_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double bench_median(double *ns, int nr)
{
	qsort(ns, nr, sizeof(*ns), by_time);
	return nr ? ns[nr / 2] : -1;
}

double bench_map_handle(const struct bench_options *o, CUdeviceptr at,
			size_t size)
{
	const struct hm_driver *d = o->drv;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE,
			      o->hm->devices[0].handle },
	};
	const CUmemAccessDesc access = {
		.location = prop.location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle;
	uint64_t start = bench_now(), ns;
	bool good;

	if (d->cuMemCreate(&handle, size, &prop, 0))
		return -1;
	good = !d->cuMemMap(at, size, 0, handle, 0) &&
		!d->cuMemSetAccess(at, size, &access, 1);
	ns = bench_now() - start;
	d->cuMemUnmap(at, size);
	d->cuMemRelease(handle);
	return good ? (double)ns : -1;
}

static void fill_sizes(void)
{
	unsigned int seed = 1, i;

	for (i = 0; i < BENCH_SIZES; i++) {
		size_t base = 256UL << i % 12;

		seed = seed * 1103515245 + 12345;
		bench_sizes[i] = base + (seed >> 8) % base;
	}
	/* Shuffled, so that classes do not come in turn. */
	for (i = BENCH_SIZES - 1; i; i--) {
		unsigned int j;
		size_t swap = bench_sizes[i];

		seed = seed * 1103515245 + 12345;
		j = (seed >> 8) % (i + 1);
		bench_sizes[i] = bench_sizes[j];
		bench_sizes[j] = swap;
	}
}

static int add_spec(struct bench_options *o, const char *text)
{
	struct hm_spec *spec;

	if (o->nr_specs == BENCH_SPECS)
		return usage_error("bench", "more than %d specs", BENCH_SPECS);
	if (hm_spec_parse(text, &spec))
		return usage_error("bench", "%s", hetmem_last_error());
	hm_spec_free(spec);
	o->specs[o->nr_specs++] = text;
	return 0;
}

static int parse_work(struct bench_options *o, const char *text)
{
	long us = 0;

	if (strcmp(text, "idle") && (strncmp(text, "busy=", 5) ||
				     !parse_number(text + 5, 1, 10000000, &us)))
		return usage_error("bench", "'%s' is not idle or busy=US",
				   text);
	o->busy_us = us;
	return 0;
}

static int parse_bytes(struct bench_options *o, const char *text)
{
	if (!parse_mib(text, 2, 65536, &o->size))
		return usage_error("bench", "'%s' is not a size, 2 to 65536 MiB", text);
	return 0;
}

static int parse(struct bench_options *o, int argc, char **argv)
{
	long number;
	int c, status;
	char command[32];

	snprintf(command, sizeof(command), "bench %s", o->name);
	while ((c = next_option(command, argc, argv)) != -1) {
		switch (c) {
		case 's':
			status = add_spec(o, optarg);
			if (status)
				return status;
			break;
		case 'd':
			if (!is_driver(optarg))
				return usage_error("bench", "'%s' is not cuda or soft",
						   optarg);
			o->driver = optarg;
			break;
		case 't':
			if (!parse_number(optarg, 1, 256, &number))
				return usage_error("bench", "'%s' is not a number of threads",
						   optarg);
			o->max_threads = number;
			break;
		case 'w':
			status = parse_work(o, optarg);
			if (status)
				return status;
			break;
		case 'b':
			status = parse_bytes(o, optarg);
			if (status)
				return status;
			break;
		case 'j':
			o->json = true;
			break;
		case 'h':
			return EXIT_OK;
		default:
			if (c == '?' && !optopt && is_option(argv[optind - 1]))
				return usage_error("bench", "%s: no %.*s here", o->name,
						   (int)strcspn(argv[optind - 1], "="),
						   argv[optind - 1]);
			return option_error("bench", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("bench", "'%s' is not an option",
				   argv[optind]);
	return -1;
}

int bench_parse(struct bench_options *o, int argc, char **argv, const char *help)
{
	int status;

	o->name = argv[0];
	o->max_threads = 16;
	status = parse(o, argc, argv);
	if (status == EXIT_OK)
		puts(help);
#ifndef HAVE_JSON_C
	if (status < 0 && o->json)
		return complain(EXIT_USAGE, "bench", "--json: this was built without libjson-c-dev");
#endif
	return status;
}

int bench_begin(struct bench_options *o, int argc, char **argv,
		const char *help, const char *const *presets)
{
	struct hetmem_params params = { .size = sizeof(params),
					.module_path = "" };
	struct hm_context saved;
	int status = bench_parse(o, argc, argv, help);

	if (status >= 0)
		return status;
	if (!o->nr_specs)
		while (*presets)
			o->specs[o->nr_specs++] = *presets++;
	setenv("HETMEM_SOFT_MEMORY", "140G", 0);
	params.driver = o->driver;
	if (o->uses_module)
		params.module_path = NULL;
	if (hetmem_open(&o->hm, &params))
		return complain(EXIT_FAILED, "bench", "%s",
				hetmem_last_error());
	o->drv = hetmem_driver_table(o->hm);
	if (hm_context_enter(o->hm, 0, &saved)) {
		hetmem_close(o->hm);
		return complain(EXIT_FAILED, "bench", "%s",
				hetmem_last_error());
	}
	if (o->busy_us || o->runs_kernels) {
		o->busy = busy_open(o->hm, "bench");
		if (!o->busy) {
			hetmem_close(o->hm);
			return EXIT_FAILED;
		}
	}
	fill_sizes();
	return -1;
}

struct hetmem_resource *bench_make(struct bench_options *o, const char *spec)
{
	struct hetmem_resource *res;

	if (!hetmem_resource_create(o->hm, spec, &res))
		return res;
	complain(EXIT_FAILED, "bench", "%s: %s", spec, hetmem_last_error());
	return NULL;
}

/* The first CPU of the core that @cpu is of; itself where nobody says. */
static int core_of(int cpu)
{
	char path[96];
	int first = cpu;
	FILE *f;

	snprintf(path, sizeof(path),
		 "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
		 cpu);
	f = fopen(path, "r");
	if (f) {
		if (fscanf(f, "%d", &first) != 1)
			first = cpu;
		fclose(f);
	}
	return first;
}

/* Those of @all that nobody shares a core with, and how many they are. */
static int one_of_each(const cpu_set_t *all, cpu_set_t *ones)
{
	cpu_set_t cores;
	int cpu;

	CPU_ZERO(&cores);
	CPU_ZERO(ones);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, all) || CPU_ISSET(core_of(cpu), &cores))
			continue;
		CPU_SET(core_of(cpu), &cores);
		CPU_SET(cpu, ones);
	}
	return CPU_COUNT(ones);
}

void bench_own_core(int index)
{
	cpu_set_t all, ones, one;
	int cpu, nr, cores;

	if (sched_getaffinity(0, sizeof(all), &all))
		return;
	cores = one_of_each(&all, &ones);
	nr = index % CPU_COUNT(&all);
	/* More threads than cores: the others' second halves. */
	if (nr >= cores) {
		nr -= cores;
		CPU_XOR(&ones, &ones, &all);
	}
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &ones) && !nr--)
			break;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

bool bench_thread_init(struct bench_thread *t, struct bench_options *o,
		       struct hetmem_resource *res, int nr_streams)
{
	int i;

	*t = (struct bench_thread){ .o = o, .res = res,
				    .nr_streams = nr_streams };
	for (i = 0; i < nr_streams; i++)
		if (o->drv->cuStreamCreate(&t->streams[i],
					   CU_STREAM_NON_BLOCKING))
			return false;
	return !o->drv->cuEventCreate(&t->event, CU_EVENT_DISABLE_TIMING);
}

static void put(struct bench_thread *t, int slot, CUstream stream)
{
	if (!t->live[slot])
		return;
	if (t->res)
		hetmem_free(t->res, t->live[slot], t->sizes[slot], stream);
	else
		t->o->drv->cuMemFreeAsync((uintptr_t)t->live[slot], stream);
	t->live[slot] = NULL;
}

static void get(struct bench_thread *t, int slot, size_t size,
		CUstream stream)
{
	CUdeviceptr ptr = 0;

	t->sizes[slot] = size;
	if (t->res) {
		t->failures += !!hetmem_alloc(t->res, size, 0, stream,
					      &t->live[slot]);
	} else {
		t->failures += !!t->o->drv->cuMemAllocAsync(&ptr, size, stream);
		t->live[slot] = (void *)(uintptr_t)ptr;
	}
	if (hm_unlikely(t->o->busy) && t->live[slot])
		busy_run(t->o->busy, stream, t->live[slot], size,
			 t->o->busy_us * UINT64_C(1000));
}

void bench_thread_run(struct bench_thread *t, uint64_t pairs)
{
	const struct hm_driver *d = t->o->drv;
	uint64_t i;

	for (i = 0; i < pairs; i++) {
		int slot = i % BENCH_LIVE, turn = i % t->nr_streams;
		CUstream own = t->streams[t->on[slot]];
		CUstream on = t->cross ? t->streams[turn] : own;

		if (on != own && t->live[slot]) {
			d->cuEventRecord(t->event, own);
			d->cuStreamWaitEvent(on, t->event, 0);
		}
		put(t, slot, on);
		t->on[slot] = turn;
		get(t, slot, bench_sizes[i % BENCH_SIZES], t->streams[turn]);
	}
}

void bench_thread_end(struct bench_thread *t)
{
	int i;

	for (i = 0; i < BENCH_LIVE; i++)
		put(t, i, t->streams[t->on[i]]);
	for (i = 0; i < t->nr_streams; i++) {
		t->o->drv->cuStreamSynchronize(t->streams[i]);
		if (t->res)
			hetmem_stream_retire(t->res, t->streams[i]);
		t->o->drv->cuStreamDestroy(t->streams[i]);
	}
	if (t->event)
		t->o->drv->cuEventDestroy(t->event);
}

void bench_count(struct bench_thread *t, struct bench_pair *row)
{
	row->system_calls = -1;
	/* The work's own calls would be counted as ours. */
	if (t->o->busy)
		return;
	row->counted = BENCH_COUNTED;
	row->calls_known = count_calls_begin(t->o->hm);
	bench_thread_run(t, BENCH_COUNTED);
	count_calls_end(t->o->hm, row->calls);
	if (count_system_begin()) {
		bench_thread_run(t, BENCH_COUNTED);
		row->system_calls = count_system_end();
	}
}

struct bench_pairs *bench_pairs_new(void)
{
	return xcalloc(1, sizeof(struct bench_pairs));
}

void bench_pairs_add(struct bench_pairs *pairs, const struct bench_pair *row)
{
	if (row->ns < 0 && !row->blocks) {
		complain(EXIT_FAILED, "bench", "%s%s%s: an allocation failed",
			 row->spec, *row->spec ? ": " : "", row->what);
		return;
	}
	pairs->rows = xrealloc_array(pairs->rows, pairs->nr + 1,
				     sizeof(*pairs->rows));
	pairs->rows[pairs->nr++] = *row;
}

#ifdef HAVE_JSON_C
static struct json_object *number(double value)
{
	return json_figure(value, "%.2f");
}

static struct json_object *json_row(const struct bench_pair *r, bool soft)
{
	struct json_object *object = json_object_new_object(), *calls = NULL;
	unsigned int i;

	if (r->calls_known) {
		calls = json_object_new_object();
		for (i = 0; i < count_calls_nr(); i++)
			if (r->calls[i])
				json_object_object_add(calls,
					count_calls_name(i),
					number((double)r->calls[i] /
					       r->counted));
	}
	json_object_object_add(object, "what",
			       json_object_new_string(r->what));
	json_object_object_add(object, "spec",
			       json_text(r->spec));
	json_object_object_add(object, "threads",
			       json_object_new_int(r->threads));
	json_object_object_add(object, "ns_pair", number(r->ns));
	json_object_object_add(object, "peer", r->peer ?
			       json_object_new_string(r->peer) : NULL);
	json_object_object_add(object, "peer_ns_pair", number(r->peer_ns));
	if (soft && r->peer)
		json_object_object_add(object, "peer_why", json_object_new_string(SOFT_PEER));
	if (soft)
		json_object_object_add(object, "times_why", json_object_new_string(SOFT_TIMES));
	if (r->device_ns > 0) {
		json_object_object_add(object, "device_ns_pair",
				       number(r->device_ns));
		json_object_object_add(object, "peer_device_ns_pair",
				       number(r->peer_device_ns > 0 ?
					      r->peer_device_ns : -1));
	}
	json_object_object_add(object, "driver_calls", calls);
	json_object_object_add(object, "system_calls", r->system_calls < 0 ?
			       NULL : json_object_new_int64(r->system_calls));
	if (r->blocks) {
		json_object_object_add(object, "metadata_blocks",
				       json_object_new_int64(r->blocks));
		json_object_object_add(object, "metadata_mapped",
				       json_object_new_int64(r->mapped));
		json_object_object_add(object, "metadata_bytes",
				       json_object_new_int64(r->resident));
	}
	return object;
}

static void print_json(const struct bench_pairs *pairs, bool soft)
{
	struct json_object *array = json_object_new_array();
	size_t i;

	for (i = 0; i < pairs->nr; i++)
		json_object_array_add(array, json_row(&pairs->rows[i], soft));
	puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PRETTY));
	json_object_put(array);
}
#else
static void print_json(const struct bench_pairs *pairs, bool soft)
{
	(void)pairs;
	(void)soft;
}
#endif

static const char *calls_text(const struct bench_pair *r)
{
	static char text[512];
	unsigned int i;
	size_t n = 0;

	text[0] = '\0';
	for (i = 0; r->calls_known && i < count_calls_nr(); i++)
		if (r->calls[i] && n < sizeof(text))
			n += snprintf(text + n, sizeof(text) - n, "%s%s %.4g",
				      n ? ", " : "", count_calls_name(i),
				      (double)r->calls[i] / r->counted);
	return text;
}

/* Bytes a live block, and what is mapped. */
static void print_metadata(const struct bench_pairs *pairs)
{
	static const struct table_column columns[] = {
		{ "WHAT", false }, { "SPEC", false }, { "MAPPED", true },
		{ "RESIDENT", true }, { "A BLOCK", true },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	char mapped[32], resident[32], each[32];
	size_t i;

	for (i = 0; i < pairs->nr; i++) {
		const struct bench_pair *r = &pairs->rows[i];

		snprintf(mapped, sizeof(mapped), "%s", size_text(r->mapped));
		snprintf(resident, sizeof(resident), "%s",
			 size_text(r->resident));
		snprintf(each, sizeof(each), "%.1f B",
			 (double)r->resident / r->blocks);
		table_row(table, (const char *[]){
			r->what, r->spec, mapped, resident, each });
	}
	table_print(table);
}

void bench_print_driver(const struct bench_options *o)
{
	if (o->hm->soft)
		puts(SOFT_TIMES ".\n");
}

/* The columns of the peer are left out with the soft driver. Metadata is a line of its own. */
static void print_table(const struct bench_options *o,
			const struct bench_pairs *pairs)
{
	static const struct table_column columns[] = {
		{ "WHAT", false }, { "SPEC", false }, { "THREADS", true },
		{ "NS", true }, { "DEVICE", true }, { "SYSCALLS", true },
		{ "PEER", false }, { "NS", true }, { "RATIO", true },
		{ "PEER'S", true }, { "DRIVER CALLS EACH", false },
	}, alone[] = {
		{ "WHAT", false }, { "SPEC", false }, { "THREADS", true },
		{ "NS", true }, { "DEVICE", true }, { "SYSCALLS", true },
		{ "DRIVER CALLS EACH", false },
	};
	const bool soft = o->hm->soft;
	struct table *table = soft ? table_new(alone, ARRAY_SIZE(alone)) :
		table_new(columns, ARRAY_SIZE(columns));
	char threads[16], ns[32], peer[32], ratio[32], device[32], theirs[32];
	char system[32];
	size_t i;

	bench_print_driver(o);
	for (i = 0; i < pairs->nr; i++) {
		const struct bench_pair *r = &pairs->rows[i];
		const char *cells[ARRAY_SIZE(columns)] = {
			r->what, r->spec, threads, ns, device,
			r->system_calls < 0 ? "-" : system,
			r->peer ? r->peer : "", peer, ratio, theirs,
		};

		if (r->blocks)
			continue;
		snprintf(threads, sizeof(threads), "%d", r->threads);
		snprintf(ns, sizeof(ns), r->ns < 0 ? "-" : "%.1f", r->ns);
		snprintf(peer, sizeof(peer), r->peer_ns < 0 ? "-" : "%.1f",
			 r->peer_ns);
		snprintf(ratio, sizeof(ratio), r->peer_ns > 0 && r->ns >= 0 ?
			 "%.3f" : "-", r->ns / r->peer_ns);
		snprintf(device, sizeof(device), r->device_ns > 0 ? "%.1f" :
			 "-", r->device_ns);
		snprintf(theirs, sizeof(theirs), r->peer_device_ns > 0 ?
			 "%.1f" : "-", r->peer_device_ns);
		snprintf(system, sizeof(system), "%lld",
			 (long long)r->system_calls);
		cells[(soft ? ARRAY_SIZE(alone) : ARRAY_SIZE(columns)) - 1] = calls_text(r);
		table_row(table, cells);
	}
	table_print(table);
	for (i = 0; i < pairs->nr; i++)
		if (pairs->rows[i].blocks)
			printf("\n%s, %s: %.1f B a block", pairs->rows[i].what, pairs->rows[i].spec,
			       (double)pairs->rows[i].resident / pairs->rows[i].blocks);
	printf("\n%s driver. NS: of one. DEVICE: until the streams are done, with --work busy.\n"
	       "SYSCALLS: of one thread in %d.\n",
	       hetmem_driver_name(o->hm), BENCH_COUNTED);
}

void bench_close(struct bench_options *o)
{
	busy_close(o->busy);
	o->drv->cuCtxSetCurrent(NULL);
	hetmem_close(o->hm);
}

int bench_end(struct bench_options *o, struct bench_pairs *pairs)
{
	int status = EXIT_OK;
	size_t i;

	for (i = 0; o->hm->soft && i < pairs->nr; i++)
		pairs->rows[i].peer_ns = pairs->rows[i].peer_device_ns = -1;
	if (!pairs->nr)
		status = complain(EXIT_FAILED, "bench", "nothing was measured");
	else if (o->json)
		print_json(pairs, o->hm->soft);
	else if (pairs->rows[0].blocks)
		print_metadata(pairs);
	else
		print_table(o, pairs);
	free(pairs->rows);
	free(pairs);
	bench_close(o);
	return status;
}
