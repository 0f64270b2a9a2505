/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem status: what processes do with hetmem, once. */
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "options.h"
#include "status.h"
#include "util.h"

#define INTERVAL	1
#define MAX_INTERVAL	3600
/* Seconds that a sample may take. */
#define BUDGET		5
#define MAX_PIDS	SAMPLE_PROCESSES

struct options {
	bool json;
	bool prometheus;
	long interval;
	pid_t *pids;
	size_t nr_pids;
};

static int help(void)
{
	printf("Usage: hetmem status [OPTION]... [PID]...\n"
	       "Shows the processes that use hetmem: where their memory is, what moves each way,\n"
	       "what thrashes, their hints and pools; and each process with memory of a GPU.\n\n"
	       "  --interval SECONDS   between the two looks that rates come from (%d)\n"
	       "  --json               the same as JSON\n"
	       "  --prometheus         counters of one look, for a textfile collector\n\n"
	       "Without PID: processes that have /dev/hetmem open, publish their pools, or hold\n"
	       "memory of a GPU, by NVML. Other users' pools need root. SOURCE is who counts\n"
	       "moves: 'module' is exact, 'estimated' is the difference of the two looks, so it\n"
	       "moves that much at least.\n",
	       INTERVAL);
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct options *o, int argc, char **argv)
{
	long value;
	int c;

	o->interval = -1;
	while ((c = next_option("status", argc, argv)) != -1) {
		switch (c) {
		case 'j':
			o->json = true;
			break;
		case 'P':
			o->prometheus = true;
			break;
		case 'i':
			if (!parse_number(optarg, 0, MAX_INTERVAL, &o->interval))
				return usage_error("status", "'%s' is not a time from 0 to %d seconds",
						   optarg, MAX_INTERVAL);
			break;
		case 'h':
			return -1;
		default:
			return option_error("status", c, argv);
		}
	}
	if (o->json && o->prometheus)
		return usage_error("status", "--json and --prometheus do not go together");
	if (o->prometheus && o->interval >= 0)
		return usage_error("status", "--prometheus has no rates, so it takes no --interval");
	if (o->interval < 0)
		o->interval = INTERVAL;
	if (argc - optind > MAX_PIDS)
		return usage_error("status", "more than %d PIDs", MAX_PIDS);
	o->nr_pids = argc - optind;
	o->pids = xcalloc(o->nr_pids, sizeof(*o->pids));
	for (c = 0; optind < argc; optind++, c++) {
		if (!parse_number(argv[optind], 1, INT32_MAX, &value))
			return usage_error("status", "'%s' is not a PID", argv[optind]);
		o->pids[c] = value;
	}
	return 0;
}

static const char *rate_text(double bytes)
{
	return bytes > 0 ? size_text(bytes) : "0";
}

static void print_module(const struct sample *before, const struct sample *after,
			 double seconds)
{
	const struct sample_module *m = &after->module, *was = &before->module;
	unsigned int i;

	if (!m->loaded) {
		puts("hetmem.ko is not loaded: no device's pages, moves or hints ('hetmem doctor' says more)");
		return;
	}
	printf("module: to devices %s/s, to the host %s/s; thrashed %" PRIu64 ", hints %" PRIu64
	       ", contexts %" PRIu64 ", ranges %" PRIu64 ", pinned %s\n",
	       rate_text(sample_rate(was->to_device, m->to_device, seconds)),
	       rate_text(sample_rate(was->to_host, m->to_host, seconds)),
	       m->thrashed, m->hints, m->contexts, m->ranges, size_text(m->pinned));
	for (i = 0; i < m->nr_devices; i++)
		printf("device %u (%s): %s of %s used, limit %s\n", m->devices[i].id,
		       m->devices[i].name, size_text(m->devices[i].used),
		       size_text(m->devices[i].capacity), size_text(m->devices[i].limit));
}

/* Device memory as the driver counts it: also that of programs without hetmem. */
static void print_gpus(const struct sample *s)
{
	const struct gpus *g = &s->gpus;
	unsigned int i;

	for (i = 0; i < g->nr; i++) {
		if (g->gpus[i].known)
			printf("GPU %u (%s): %s of %s used\n", i, g->gpus[i].name,
			       size_text(g->gpus[i].used), size_text(g->gpus[i].total));
		else
			printf("GPU %u (%s): its memory is not known\n", i, g->gpus[i].name);
	}
	if (g->there && *g->why)
		printf("device memory of processes is not known: %s\n", g->why);
	if (s->elsewhere)
		printf("%u processes with device memory are not in this PID namespace\n", s->elsewhere);
	if (g->left_out)
		printf("%u more processes have device memory\n", g->left_out);
}

static void print_processes(const struct sample *before, const struct sample *after,
			    double seconds)
{
	/* GPU is the last column: without GPUs it is left out. */
	static const struct table_column columns[] = {
		{ "PID", true }, { "USER", false }, { "NAME", false }, { "TO DEVICE/S", true },
		{ "TO HOST/S", true }, { "SOURCE", false }, { "THRASH", true }, { "HINTS", true },
		{ "PINNED", true }, { "MEMORY", false }, { "GPU", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns) - !after->gpus.nr);
	unsigned int i;

	for (i = 0; i < after->nr; i++) {
		const struct sample_process *p = &after->processes[i];
		const struct passwd *user = getpwuid(p->uid);
		const struct sample_moves moves = sample_moves(sample_find(before, p), p, seconds);
		const bool known = moves.source != SOURCE_NONE;
		char *locations = sample_locations_text(p), *gpus = sample_gpus_text(p);
		char pid[16], uid[16], thrash[32], hints[16];
		const char *cells[] = {
			pid, user ? user->pw_name : uid, p->name,
			known ? rate_text(moves.to_device) : "-",
			known ? rate_text(moves.to_host) : "-", sample_source_name(moves.source),
			thrash, hints, p->tracked ? size_text(p->pinned) : "-", locations, gpus,
		};

		snprintf(pid, sizeof(pid), "%d", p->pid);
		snprintf(uid, sizeof(uid), "%u", p->uid);
		snprintf(thrash, sizeof(thrash), "%" PRIu64, p->thrashed);
		snprintf(hints, sizeof(hints), "%u", p->waiting);
		if (!p->all_ranges)
			strcpy(thrash, "-");
		if (!p->executor)
			strcpy(hints, "-");
		table_row(table, cells);
		free(locations);
		free(gpus);
	}
	table_print(table);
}

static void print_pools(const struct sample *before, const struct sample *after, double seconds)
{
	static const struct table_column columns[] = {
		{ "PID", true }, { "POOL", true }, { "OF", false }, { "TAG", false },
		{ "REQUESTED", true }, { "HELD", true }, { "PEAK", true }, { "LIMIT", true },
		{ "BLOCKS", true }, { "ALLOCS/S", true }, { "FAILED", true }, { "SPILLED", true },
		{ "OUT/S", true }, { "BACK/S", true }, { "PARKED", true },
	};
	struct table *table = NULL;
	unsigned int i, k;

	for (i = 0; i < after->nr; i++) {
		const struct sample_process *p = &after->processes[i];
		const struct sample_process *was = sample_find(before, p);

		for (k = 0; k < p->nr_pools; k++) {
			const struct hm_published_pool *pool = &p->pools[k];
			const struct hm_published_pool *old = sample_find_pool(was, pool);
			char pid[16], number[32], of[64], blocks[32], allocs[32], failed[32];
			const char *cells[] = {
				pid, number, of, *pool->tag ? pool->tag : "-",
				size_text(pool->requested), size_text(pool->reserved),
				size_text(pool->reserved_peak),
				pool->max ? size_text(pool->max) : "-", blocks, allocs, failed,
				size_text(pool->spilled),
				old ? rate_text(sample_rate(old->spilled_total,
							    pool->spilled_total, seconds)) : "-",
				old ? rate_text(sample_rate(old->fetched_total,
							    pool->fetched_total, seconds)) : "-",
				size_text(pool->parked),
			};

			snprintf(pid, sizeof(pid), "%d", p->pid);
			snprintf(number, sizeof(number), "%" PRIu64, pool->number);
			if (pool->device < 0)
				snprintf(of, sizeof(of), "%s", pool->provider);
			else
				snprintf(of, sizeof(of), "%s:%d", pool->provider, pool->device);
			snprintf(blocks, sizeof(blocks), "%" PRIu64, sample_live(pool));
			snprintf(failed, sizeof(failed), "%" PRIu64, pool->failed);
			strcpy(allocs, "-");
			if (old)
				snprintf(allocs, sizeof(allocs), "%.0f",
					 sample_rate(old->allocs, pool->allocs, seconds));
			if (!table)
				table = table_new(columns, ARRAY_SIZE(columns));
			table_row(table, cells);
		}
		if (p->unlisted)
			printf("process %d: %u pools of all time found no room to publish\n",
			       p->pid, p->unlisted);
	}
	if (table) {
		putchar('\n');
		table_print(table);
	}
}

static void print_text(const struct sample *before, const struct sample *after)
{
	const double seconds = after->time - before->time;

	print_module(before, after, seconds);
	print_gpus(after);
	if (after->nr) {
		putchar('\n');
		print_processes(before, after, seconds);
		print_pools(before, after, seconds);
	} else {
		puts("no process uses hetmem");
	}
	if (after->hidden)
		printf("\n%u processes of other users were not looked at; type 'sudo hetmem status'\n",
		       after->hidden);
	if (after->left_out)
		printf("\n%u processes were left out, for lack of time or room; name those that matter: 'hetmem status PID...'\n",
		       after->left_out);
}

/* 0, or an exit status: a process that was asked for has ended. */
static int check_pids(const struct options *o, const struct sample *sample)
{
	size_t i;
	unsigned int k;

	for (i = 0; i < o->nr_pids; i++) {
		for (k = 0; k < sample->nr && sample->processes[k].pid != o->pids[i]; k++)
			;
		if (k == sample->nr)
			return complain(EXIT_FAILED, "status",
					"there is no process %d; type 'hetmem status' for those that use hetmem",
					o->pids[i]);
	}
	return 0;
}

static void wait_for(long seconds)
{
	struct timespec left = { .tv_sec = seconds };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/* 0, or an exit status. */
static int take(const struct options *o, struct sample *sample)
{
	const int err = sample_take(sample, o->pids, o->nr_pids, BUDGET);

	if (err == -ENOENT)
		return complain(EXIT_FAILED, "status",
				"/proc of this PID namespace is not mounted; type 'mount -t proc proc /proc'");
	if (err)
		return complain(EXIT_FAILED, "status", "/proc: %s", strerror(-err));
	return check_pids(o, sample);
}

/* The exit status; what is known of the process has been printed. */
static int check_hidden(const struct options *o, const struct sample *sample)
{
	unsigned int i;

	for (i = 0; o->nr_pids && i < sample->nr; i++)
		if (sample->processes[i].hidden)
			return not_permitted("status", sample->processes[i].pid);
	return EXIT_OK;
}

static int show(const struct options *o)
{
	struct sample before, after;
	int ret;

	ret = take(o, &before);
	if (ret || o->prometheus) {
		if (!ret) {
			status_prometheus(&before);
			ret = check_hidden(o, &before);
		}
		sample_free(&before);
		return ret;
	}
	wait_for(o->interval);
	ret = take(o, &after);
	if (!ret && o->json)
		status_json(&before, &after);
	else if (!ret)
		print_text(&before, &after);
	if (!ret)
		ret = check_hidden(o, &after);
	sample_free(&before);
	sample_free(&after);
	return ret;
}

int cmd_status(int argc, char **argv)
{
	struct options o = { 0 };
	int ret = parse(&o, argc, argv);

#ifndef HAVE_JSON_C
	if (!ret && o.json)
		ret = complain(EXIT_USAGE, "status",
			       "built without json-c; type 'apt-get install libjson-c-dev' and build again");
#endif
	if (!ret)
		ret = show(&o);
	else if (ret < 0)
		ret = help();
	free(o.pids);
	return ret;
}
