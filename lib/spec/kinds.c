// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The table of everything that a spec can name. Who adds a resource adds a
 * row, here and in selftests/lib/rows.h.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider/pages.h"
#include "provider/regions.h"
#include "provider/vmm.h"
#include "adaptor/adaptor.h"
#include "pool/pool.h"
#include "spec/spec.h"
#include "vmm/vmm.h"

/* Threads of populate=on. */
#define DEFAULT_POPULATE	4

static int make_device(struct hetmem *hm, const struct hm_spec *spec,
		       struct hm_provider **provider)
{
	return hm_device_provider(hm, hm_spec_number(spec, "device"),
				  provider);
}

static int make_stripe(struct hetmem *hm, const struct hm_spec *spec,
		       struct hm_provider **provider)
{
	struct hm_stripe_options options = {
		.devices = hm_spec_number(spec, "stripe"),
		.peers = hm_spec_number(spec, "peers"),
		.unit = hm_spec_number(spec, "unit"),
	};
	int device = hm_spec_number(spec, "device");

	if (hm_spec_number(spec, "export"))
		return hm_error(-EINVAL, "vmm: stripe= has no handles to export: leave out export=");
	if (!hm_spec_value(spec, "device")->given && !(options.devices >> device & 1))
		device = __builtin_ctzll(options.devices);
	return hm_stripe_provider(hm, device, &options, provider);
}

static int make_vmm(struct hetmem *hm, const struct hm_spec *spec,
		    struct hm_provider **provider)
{
	struct hm_vmm_options options = {
		.export = hm_spec_number(spec, "export"),
		.peers = hm_spec_number(spec, "peers"),
	};

	if (hm_spec_value(spec, "stripe")->text)
		return make_stripe(hm, spec, provider);
	if (hm_spec_value(spec, "unit")->text)
		return hm_error(-EINVAL, "vmm: unit= is of stripe=: give both, or pool(vmm,unit=)");
	return hm_vmm_provider(hm, hm_spec_number(spec, "device"), &options,
			       provider);
}

static int make_managed(struct hetmem *hm, const struct hm_spec *spec,
			struct hm_provider **provider)
{
	return hm_managed_provider(hm, hm_spec_number(spec, "device"),
				   provider);
}

static int make_async(struct hetmem *hm, const struct hm_spec *spec,
		      struct hm_provider **provider)
{
	int device = hm_spec_number(spec, "device");
	uint64_t total = device < hm->nr_devices ?
		hm->devices[device].props.total : 0;
	struct hm_async_options options = {
		.threshold = hm_spec_bytes(spec, "threshold", total),
		.max = hm_spec_bytes(spec, "max", total),
	};

	/* To be told from one that was not given. */
	if (hm_spec_value(spec, "threshold")->text && !options.threshold)
		options.threshold = 1;
	return hm_async_provider(hm, device, &options, provider);
}

static int make_pinned(struct hetmem *hm, const struct hm_spec *spec,
		       struct hm_provider **provider)
{
	struct hm_pinned_options options = {
		.threads = hm_spec_number(spec, "threads"),
	};

	if (hm_spec_value(spec, "node")->text)
		options.node = hm_spec_number(spec, "node") + 1;
	return hm_pinned_provider(hm, hm_spec_number(spec, "device"),
				  &options, provider);
}

static int make_registered(struct hetmem *hm, const struct hm_spec *spec,
			   struct hm_provider **provider)
{
	struct hm_pinned_options options = {
		.threads = hm_spec_number(spec, "threads"),
		.fork_copies = hm_spec_number(spec, "fork"),
	};

	if (hm_spec_value(spec, "node")->text)
		options.node = hm_spec_number(spec, "node") + 1;
	return hm_registered_provider(hm, hm_spec_number(spec, "device"),
				      &options, provider);
}

/* populate=: on, off or a number of threads. */
static int populate_threads(const struct hm_spec *spec, unsigned int *threads)
{
	const char *text = hm_spec_value(spec, "populate")->text;
	char *end;
	long n;

	if (!strcmp(text, "on") || !strcmp(text, "off")) {
		*threads = text[1] == 'n' ? DEFAULT_POPULATE : 0;
		return 0;
	}
	n = strtol(text, &end, 10);
	if (end == text || *end || n < 1 || n > HM_PAGES_THREADS)
		return hm_error(-EINVAL, "%s: populate is on, off or 1 to %d threads",
				spec->kind->name, HM_PAGES_THREADS);
	*threads = n;
	return 0;
}

static int make_system(struct hetmem *hm, const struct hm_spec *spec,
		       struct hm_provider **provider)
{
	struct hm_system_options options = { 0 };
	int device = -1, err;

	if (hm_spec_value(spec, "device")->text)
		device = hm_spec_number(spec, "device");
	if (hm_spec_value(spec, "node")->text)
		options.node = hm_spec_number(spec, "node") + 1;
	/* No huge page is made in 1 ns. */
	options.slow_ns = hm_spec_number(spec, "huge");
	if (!options.slow_ns)
		options.slow_ns = 1;
	err = populate_threads(spec, &options.populate);
	return err ? err : hm_system_provider(hm, device, &options, provider);
}

static int make_host(struct hetmem *hm, const struct hm_spec *spec,
		     struct hm_provider **provider)
{
	(void)spec;
	return hm_host_provider(hm, provider);
}

static int make_custom(struct hetmem *hm, const struct hm_spec *spec,
		       struct hm_provider **provider)
{
	return hm_custom_provider(hm, hm_spec_value(spec, "name")->text,
				  provider);
}

/* Whole milliseconds, no shorter than @name's nanoseconds, below @max. */
static unsigned int milliseconds(const struct hm_spec *spec, const char *name,
				 unsigned int max)
{
	uint64_t ns = hm_spec_number(spec, name);
	uint64_t ms = ns / 1000000 + !!(ns % 1000000);

	return ms < max ? ms : max - 1;
}

static bool has(const struct hm_spec *spec, const char *name)
{
	return hm_spec_value(spec, name)->text;
}

/* *@max: what @spec says. *@most: what the last value said that was not to stay within. */
static void set_max(const struct hm_spec *spec, uint64_t *max, uint64_t *most)
{
	if (!spec->within)
		*most = *max;
	else if (*most && *max > *most)
		*max = *most;
}

static int change_pool(const struct hm_spec *spec, uint64_t total, void *out)
{
	struct hm_pool_options *options = out;

	if ((hm_spec_value(spec, "max")->percent || hm_spec_value(spec, "min")->percent ||
	     hm_spec_value(spec, "give")->percent) && !total)
		return hm_error(-EINVAL, "pool: the total of this memory is not known: set max, min and give in bytes");
	if (has(spec, "max")) {
		options->max = hm_spec_bytes(spec, "max", total);
		if (!options->max)
			return hm_error(-EINVAL, "pool: max is less than a byte: give a larger share");
		set_max(spec, &options->max, &options->most);
	}
	if (has(spec, "min"))
		options->min = hm_spec_bytes(spec, "min", total);
	if (has(spec, "wait")) {
		options->wait_ms = milliseconds(spec, "wait", HM_POOL_NO_WAIT);
		if (!options->wait_ms)
			options->wait_ms = HM_POOL_NO_WAIT;
	}
	if (has(spec, "decay"))
		options->decay_ms = milliseconds(spec, "decay", UINT_MAX);
	if (has(spec, "give")) {
		options->gives_part = true;
		options->give = hm_spec_bytes(spec, "give", total);
	}
	if (has(spec, "cache"))
		options->cache = hm_spec_number(spec, "cache");
	return 0;
}

/* All options of a pool that @spec gives. */
static int pool_options(const struct hm_spec *spec, uint64_t total,
			struct hm_pool_options *options)
{
	const char *tag = hm_spec_value(spec, "tag")->text;

	*options = (struct hm_pool_options){
		.handle = hm_spec_number(spec, "handle"),
		.unit = hm_spec_number(spec, "unit"),
		.reserve = hm_spec_number(spec, "reserve"),
		.comm = hm_spec_number(spec, "comm"),
		.retired = hm_spec_number(spec, "streams"),
		.reuse_order = hm_spec_number(spec, "reuse"),
		.prefer_time = hm_spec_number(spec, "prefer"),
		.check = hm_spec_number(spec, "check"),
	};
	snprintf(options->tag, sizeof(options->tag), "%s", tag ? tag : "");
	options->max_host = hm_spec_number(spec, "max_host");
	options->spill = hm_spec_number(spec, "spill");
	options->min_host = hm_spec_number(spec, "min_host");
	options->movable = hm_spec_number(spec, "movable");
	options->single_launcher = hm_spec_number(spec, "launcher");
	options->park_given = has(spec, "park");
	if (hm_spec_value(spec, "park")->path)
		options->park_dir = hm_spec_value(spec, "park")->text;
	options->park = hm_spec_number(spec, "park");
	/* release, keep */
	if (hm_spec_value(spec, "park")->word)
		options->park = options->park ? UINT64_MAX : 0;
	return change_pool(spec, total, options);
}

static int make_pool(const struct hm_spec *spec, struct hm_provider *provider,
		     struct hetmem_resource **res)
{
	struct hm_pool_options options;
	int err = pool_options(spec, provider->total, &options);

	if (err)
		return err;
	return provider->caps & HM_PROVIDER_MAPPABLE ?
		hm_tagged_pool_create(provider, &options, res) :
		hm_pool_create(provider, &options, res);
}

static int make_classes(const struct hm_spec *spec,
			struct hm_provider *provider,
			struct hetmem_resource **res)
{
	struct hm_pool_options options;
	int err = pool_options(spec, provider->total, &options);

	return err ? err : hm_classes_create(provider, &options, res);
}

static int make_stats(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	(void)spec;
	(void)nr;
	return hm_statistics_create(children[0], res);
}

static int change_limit(const struct hm_spec *spec, uint64_t total, void *out)
{
	struct hm_limit_options *options = out;

	if (hm_spec_value(spec, "max")->percent && !total)
		return hm_error(-EINVAL, "limit: host memory has no total: give max in bytes");
	options->max = hm_spec_bytes(spec, "max", total);
	set_max(spec, &options->max, &options->most);
	return 0;
}

static int make_limit(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	struct hm_limit_options options = { 0 };
	int err = change_limit(spec, hm_adaptor_total(children[0]), &options);

	(void)nr;
	return err ? err : hm_limit_create(children[0], &options, res);
}

static int make_headroom(const struct hm_spec *spec,
			 struct hetmem_resource **children, int nr,
			 struct hetmem_resource **res)
{
	const uint64_t device = hm_adaptor_total(children[0]);
	uint64_t total;
	int err = hm_headroom_where(children[0], &total);

	(void)nr;
	if (err)
		return err;
	if (hm_spec_value(spec, "keep")->percent && !total)
		return hm_error(-EINVAL, "headroom: the total of this memory is not known: give keep in bytes");
	return hm_headroom_create(children[0], hm_spec_bytes(spec, "keep", total),
				  hm_spec_bytes(spec, "keep", device), res);
}

static int change_watermark(const struct hm_spec *spec, uint64_t total, void *out)
{
	const struct hm_value *at = hm_spec_value(spec, "at");
	struct hm_watermark_options *options = out;

	if (at->percent && !total)
		return hm_error(-EINVAL, "watermark: the total of this memory is not known: give at in bytes");
	if (at->text) {
		options->share = at->percent ? at->number : 0;
		options->at = hm_spec_bytes(spec, "at", total);
	}
	if (has(spec, "every"))
		options->every_ns = hm_spec_number(spec, "every");
	return 0;
}

static int make_watermark(const struct hm_spec *spec,
			  struct hetmem_resource **children, int nr,
			  struct hetmem_resource **res)
{
	struct hm_watermark_options options = { 0 };
	int err = change_watermark(spec, hm_watermark_total(children[0]), &options);

	(void)nr;
	return err ? err : hm_watermark_create(children[0], &options, res);
}

static int make_log(const struct hm_spec *spec,
		    struct hetmem_resource **children, int nr,
		    struct hetmem_resource **res)
{
	(void)nr;
	return hm_log_create(children[0], hm_spec_value(spec, "file")->text,
			     hm_spec_number(spec, "full"), res);
}

static int change_retry(const struct hm_spec *spec, uint64_t total, void *out)
{
	struct hm_retry_options *options = out;

	(void)total;
	if (has(spec, "times"))
		options->times = hm_spec_number(spec, "times");
	if (has(spec, "wait"))
		options->wait_ns = hm_spec_number(spec, "wait");
	return 0;
}

static int make_history(const struct hm_spec *spec,
			struct hetmem_resource **children, int nr,
			struct hetmem_resource **res)
{
	(void)nr;
	return hm_history_create(children[0], hm_spec_number(spec, "events"),
				 hm_spec_number(spec, "callers"), res);
}

static int make_retry(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	struct hm_retry_options options = { 0 };
	int err = change_retry(spec, 0, &options);

	(void)nr;
	return err ? err : hm_retry_create(children[0], &options, res);
}

static int make_fallback(const struct hm_spec *spec,
			 struct hetmem_resource **children, int nr,
			 struct hetmem_resource **res)
{
	(void)spec;
	return hm_fallback_create(children, nr, res);
}

static int make_binning(const struct hm_spec *spec,
			struct hetmem_resource **children, int nr,
			struct hetmem_resource **res)
{
	uint64_t bounds[HM_SPEC_CHILDREN] = { 0 };

	hm_value_sizes(hm_spec_value(spec, "at")->text, bounds);
	return hm_binning_create(children, nr, bounds, res);
}

static int make_align(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	(void)nr;
	return hm_align_create(children[0], hm_spec_number(spec, "align"),
			       hm_spec_number(spec, "min"), res);
}

static int make_guard(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	(void)nr;
	return hm_guard_create(children[0], hm_spec_number(spec, "abort"),
			       res);
}

static int make_fixed(const struct hm_spec *spec,
		      struct hetmem_resource **children, int nr,
		      struct hetmem_resource **res)
{
	(void)nr;
	return hm_fixed_create(children[0], hm_spec_number(spec, "size"),
			       hm_spec_number(spec, "count"),
			       hm_spec_number(spec, "comm"), res);
}

#define DEVICE	{ "device", HM_PARAM_NUMBER, "0", NULL, "ordinal of the device" }
#define NODE	{ "node", HM_PARAM_NUMBER, NULL, NULL,			\
		  "host node; not given: the device's nearest" }
#define POPULATE { "populate", HM_PARAM_TEXT, "off", NULL,		\
		  "threads that touch pages in advance; on: 4" }
#define HUGE_PAGES { "huge", HM_PARAM_TIME, "10ms", NULL,		\
		  "most that a huge page may take; 0s: none" }
#define THREADS	{ .name = "threads", .type = HM_PARAM_NUMBER,		\
		  .help = "that touch its pages; not given: chosen",	\
		  .instead = "leave it out: the library chooses their number" }
#define FORK	{ "fork", HM_PARAM_WORD, "none", "none|copy",		\
		  "registered memory in a forked child" }

#define POOL_PARAMS							\
	{ "max", HM_PARAM_SHARE, NULL, NULL, "most memory to hold",	\
	  .not_zero = true, .live = true },				\
	{ "min", HM_PARAM_SHARE, NULL, NULL, "held from the start",	\
	  .live = true },						\
	{ "handle", HM_PARAM_POWER, NULL, NULL,				\
	  "size of handles; not given: grows with the pool" },		\
	{ .name = "unit", .type = HM_PARAM_SIZE, .not_zero = true,	\
	  .help = "of sparse blocks, a multiple of 2M (2M)" },		\
	{ "reserve", HM_PARAM_SIZE, NULL, NULL, "addresses to reserve" }, \
	{ "wait", HM_PARAM_TIME, NULL, NULL,				\
	  "most to wait for memory in use; 0s: not (1s)", .live = true }, \
	{ "decay", HM_PARAM_TIME, NULL, NULL,				\
	  "gives back what is unused that long", .live = true },	\
	{ "cache", HM_PARAM_SIZE, NULL, NULL,				\
	  "free blocks that a stream keeps", .live = true },		\
	{ "give", HM_PARAM_SHARE, NULL, NULL,				\
	  "most to give back for 'hetmem reclaim'; 0: nothing (all that is free)", \
	  .live = true },						\
	{ "comm", HM_PARAM_SWITCH, "off", NULL,				\
	  "RDMA-capable, never moved before destroy" },			\
	{ "streams", HM_PARAM_WORD, "checked", "checked|retired",	\
	  "retired: all are retired before they are destroyed" },	\
	{ "reuse", HM_PARAM_WORD, "new", "new|order",			\
	  "order: streams wait for each other before memory is made",	\
	  .instead = "give max=: at that limit streams wait for each other" }, \
	{ "prefer", HM_PARAM_WORD, "memory", "memory|time",		\
	  "time: larger handles, fewer calls of the driver" },		\
	{ "check", HM_PARAM_SWITCH, "off", NULL,			\
	  "finds two threads that free one block at a time",		\
	  .instead = "put a guard around the pool: it finds blocks that are freed twice" }, \
	{ "tag", HM_PARAM_TAG, NULL, NULL, "name for sleep and wake" },	\
	{ .name = "park", .type = HM_PARAM_SIZE, .words = "release|keep", \
	  .path = true,							\
	  .help = "host memory kept after a wake (25% of what is available), or a directory for a file" }, \
	{ .name = "max_host", .type = HM_PARAM_SIZE, .not_zero = true,	\
	  .help = "most host memory for contents of a sleep" },		\
	{ .name = "spill", .type = HM_PARAM_SIZE, .not_zero = true,	\
	  .help = "most host memory for blocks that move when the device is full" }, \
	{ "min_host", HM_PARAM_SIZE, NULL, NULL,			\
	  "host memory for spilled blocks, made beforehand" },		\
	{ .name = "movable", .type = HM_PARAM_SIZE, .not_zero = true,	\
	  .help = "blocks of so many bytes or more are movable" },	\
	{ "launcher", HM_PARAM_WORD, "any", "any|single",		\
	  "single: one thread gives work to the device" }

#define PROVIDER(kind, text, ...) {					\
	.name = #kind, .class = HM_KIND_PROVIDER, .help = text,		\
	.params = { __VA_ARGS__ }, .provider = make_##kind,		\
}

#define ADAPTOR(kind, min, max, text, ...) {				\
	.name = #kind, .class = HM_KIND_ADAPTOR, .min_children = min,	\
	.max_children = max, .help = text, .params = { __VA_ARGS__ },	\
	.resource = make_##kind,					\
}

/* One that has parameters that change. */
#define ADAPTOR_LIVE(kind, text, ...) {					\
	.name = #kind, .class = HM_KIND_ADAPTOR, .min_children = 1,	\
	.max_children = 1, .help = text, .params = { __VA_ARGS__ },	\
	.resource = make_##kind, .change = change_##kind,		\
}

const struct hm_kind hm_kinds[] = {
	PROVIDER(device, "device memory, cuMemAlloc", DEVICE),
	{
		.name = "vmm", .class = HM_KIND_PROVIDER, .only_pool = true,
		.provider = make_vmm,
		.help = "device memory in handles, for a pool",
		.params = {
			DEVICE,
			{ "export", HM_PARAM_WORD, "none", "none|fd|fabric",
			  "what handles can be exported as" },
			{ "peers", HM_PARAM_DEVICES, NULL, NULL,
			  "other devices that reach it: 1/2/3" },
			{ "stripe", HM_PARAM_DEVICES, NULL, NULL,
			  "devices that have it in turn: 0/1/2/3" },
			{ "unit", HM_PARAM_POWER, NULL, NULL,
			  "bytes of each in turn; not given: 2M" },
		},
	},
	PROVIDER(managed, "one address for CPU and devices", DEVICE),
	PROVIDER(async, "a pool of the driver, cuMemAllocAsync", DEVICE,
		 { "threshold", HM_PARAM_SHARE, NULL, NULL,
		   "kept when streams synchronize; not given: all",
		   .instead = "call hetmem_trim(): it gives memory back" },
		 { "max", HM_PARAM_SHARE, NULL, NULL, "most memory to hold",
		   .not_zero = true }),
	PROVIDER(pinned, "page-locked host memory", DEVICE, NODE, THREADS),
	PROVIDER(registered, "the same, and a forked child has it not", DEVICE,
		 NODE, THREADS, FORK),
	PROVIDER(system, "the process's own pages, also for devices",
		 { "device", HM_PARAM_NUMBER, NULL, NULL,
		   "whom it is for; not given: the host" },
		 NODE, POPULATE, HUGE_PAGES),
	PROVIDER(host, "the process's own pages, for the CPU"),
	PROVIDER(custom, "what the program registered",
		 { .name = "name", .type = HM_PARAM_TEXT, .required = true,
		   .help = "as hetmem_provider_register() was told" }),
	{
		.name = "pool", .class = HM_KIND_POOL, .min_children = 1,
		.max_children = 1, .pool = make_pool, .change = change_pool,
		.help = "cuts a provider's memory into blocks, in stream order",
		.params = { POOL_PARAMS },
	},
	{
		.name = "classes", .class = HM_KIND_POOL, .min_children = 1,
		.max_children = 1, .pool = make_classes, .change = change_pool,
		.help = "a pool for each placement class, never in one 2 MiB",
		.params = { POOL_PARAMS },
	},
	ADAPTOR(stats, 1, 1, "counters, which can be pushed and popped"),
	ADAPTOR_LIVE(limit, "so many bytes and no more",
		{ .name = "max", .type = HM_PARAM_SHARE, .required = true,
		  .help = "of all live blocks, as they were asked for",
		  .live = true }),
	ADAPTOR(headroom, 1, 1, "leaves memory usable, on the device too",
		{ "keep", HM_PARAM_SHARE, "0", NULL,
		  "usable at all times, beside the reserve" }),
	ADAPTOR_LIVE(watermark, "calls the program before memory is full",
		{ .name = "at", .type = HM_PARAM_SHARE, .required = true,
		  .not_zero = true, .live = true,
		  .help = "memory that is held; a share is of the pools' max=" },
		{ "every", HM_PARAM_TIME, "1s", NULL, "calls at most once in it",
		  .live = true }),
	ADAPTOR(log, 1, 1, "writes every call down",
		{ .name = "file", .type = HM_PARAM_TEXT, .required = true,
		  .help = "to write; %p: the process's id; %n: the log's number in it" },
		{ "full", HM_PARAM_SWITCH, "off", NULL,
		  "also what orders streams" }),
	ADAPTOR(history, 1, 1, "the last events, for snapshots and leaks",
		{ .name = "events", .type = HM_PARAM_NUMBER, .preset = "1000",
		  .help = "that are kept", .not_zero = true },
		{ "callers", HM_PARAM_NUMBER, "8", NULL,
		  "return addresses of each" }),
	ADAPTOR_LIVE(retry, "tries again when there is no memory",
		{ "times", HM_PARAM_NUMBER, "1", NULL, "that it tries again",
		  .live = true },
		{ "wait", HM_PARAM_TIME, "0s", NULL, "in between",
		  .live = true }),
	ADAPTOR(fallback, 2, HM_SPEC_CHILDREN,
		"the first of several that has memory"),
	ADAPTOR(binning, 2, HM_SPEC_CHILDREN, "one of several, by size",
		{ .name = "at", .type = HM_PARAM_SIZES, .required = true,
		  .help = "largest size of each but the last: 64K/1M" }),
	ADAPTOR(align, 1, 1, "larger alignment",
		{ .name = "align", .type = HM_PARAM_POWER, .required = true,
		  .help = "a power of two" },
		{ "min", HM_PARAM_SIZE, "0", NULL, "of blocks from that size" }),
	ADAPTOR(guard, 1, 1, "red zones and poison",
		{ "abort", HM_PARAM_SWITCH, "off", NULL,
		  "ends the process when it finds damage" }),
	ADAPTOR(fixed, 1, 1, "buffers of one size, made at once",
		{ .name = "size", .type = HM_PARAM_SIZE, .required = true,
		  .not_zero = true, .help = "of each" },
		{ .name = "count", .type = HM_PARAM_NUMBER, .required = true,
		  .not_zero = true, .help = "how many there are" },
		{ "comm", HM_PARAM_SWITCH, "off", NULL,
		  "stay where they are, for transports" }),
	{
		.name = "device-pool", .class = HM_KIND_NAME,
		.help = "pool(vmm), or pool(device) where there is no VMM",
		.params = { DEVICE, POOL_PARAMS }, .expand = hm_expand_device_pool,
	},
	{
		.name = "unified", .class = HM_KIND_NAME,
		.help = "memory for CPU and device, as the machine can have it",
		.params = {
			DEVICE,
			{ "over", HM_PARAM_WORD, "auto",
			  "auto|system|managed|registered|host",
			  "provider; auto: by the platform's verdict" },
			{ "headroom", HM_PARAM_WORD, "auto", "auto|off|on",
			  "leave memory usable; auto: with HMM" },
			{ "keep", HM_PARAM_SHARE, NULL, NULL,
			  "of headroom: beside the reserve" },
			{ "agent", HM_PARAM_WORD, "off",
			  "off|conservative|aggressive",
			  "starts the agent with that policy" },
			NODE, POPULATE, HUGE_PAGES, FORK, POOL_PARAMS,
		},
		.expand = hm_expand_unified,
	},
	{ .name = NULL },
};

const struct hm_kind *hm_kind_find(const char *name, size_t len)
{
	const struct hm_kind *kind;

	for (kind = hm_kinds; kind->name; kind++)
		if (strlen(kind->name) == len && !strncmp(kind->name, name, len))
			return kind;
	return NULL;
}
