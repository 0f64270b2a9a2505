/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem reclaim, hetmem set: this user's processes give back memory, or hold less from now on.
 * The processes do it themselves, see lib/core/asked.h.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/hetmem.h"
#include "hint/ask.h"
#include "options.h"
#include "process.h"
#include "util.h"

#define TIMEOUT_S	3
#define MAX_TIMEOUT_S	600

static int reclaim_help(void)
{
	printf("Usage: hetmem reclaim [--device N] [--timeout SECONDS] [SIZE]\n"
	       "Asks your processes to give back memory of their pools that they do not use.\n\n"
	       "  --device N           only memory of the device N (of all, and of the host)\n"
	       "  --timeout SECONDS    most time to wait for their answers (%d)\n\n"
	       "Without SIZE they give all that is free. Pools with the most free memory are\n"
	       "asked first. A process answers at its next call of the pool, or its agent does\n"
	       "(HETMEM_AGENT=off). give= of a pool bounds what one request takes.\n",
	       TIMEOUT_S);
	return EXIT_OK;
}

static int set_help(void)
{
	printf("Usage: hetmem set [--timeout SECONDS] [--device N] PID max=SIZE\n"
	       "Changes the most memory that the pools of your process may hold, each of them.\n\n"
	       "  --device N           only pools of the process's device N (all pools)\n"
	       "  --timeout SECONDS    most time to wait for its answer (%d)\n\n"
	       "Free memory beyond the new limit is given back. Live blocks stay.\n"
	       "'hetmem status PID' shows the pools.\n", TIMEOUT_S);
	return EXIT_OK;
}

/* @device: HETMEM_RECLAIM_ALL if none was given */
struct asking {
	const char *sub;
	long timeout_s, device;
};

/* 0, or the exit status; -1 for help. */
static int parse(struct asking *a, int argc, char **argv)
{
	int c;

	while ((c = next_option(a->sub, argc, argv)) != -1) {
		switch (c) {
		case 't':
			if (!parse_number(optarg, 1, MAX_TIMEOUT_S, &a->timeout_s))
				return usage_error(a->sub, "'%s' is not a time from 1 to %d seconds",
						   optarg, MAX_TIMEOUT_S);
			break;
		case 'd':
			if (!parse_number(optarg, 0, HM_MAX_DEVICES - 1, &a->device))
				return usage_error(a->sub, "'%s' is not a device: give a number from 0",
						   optarg);
			break;
		case 'h':
			return -1;
		default:
			return option_error(a->sub, c, argv);
		}
	}
	return 0;
}

static const char *name_of(pid_t pid, struct process *p)
{
	if (process_read(p, pid))
		snprintf(p->name, sizeof(p->name), "ended");
	return p->name;
}

static void print_one(void *arg, const struct hetmem_reclaimed *r)
{
	struct process p;

	(void)arg;
	printf("process %d (%s) gave %s%s\n", r->pid, name_of(r->pid, &p), size_text(r->bytes),
	       r->silent ? ", and did not answer in time: it makes no calls, and has no agent" : "");
}

int cmd_reclaim(int argc, char **argv)
{
	struct asking a = { "reclaim", TIMEOUT_S, HETMEM_RECLAIM_ALL };
	struct hetmem_reclaim params = { .size = sizeof(params), .each = print_one };
	struct hetmem_reclaimed sum = { .size = sizeof(sum) };
	int status = parse(&a, argc, argv), err;
	struct hetmem *hm = NULL;

	if (status)
		return status < 0 ? reclaim_help() : status;
	if (optind + 1 < argc)
		return usage_error(a.sub, "one SIZE, '%s' is too many", argv[optind + 1]);
	if (optind < argc && (!hm_parse_size(argv[optind], &params.bytes) || !params.bytes))
		return usage_error(a.sub, "'%s' is not a size: give 512M or 20G, for example",
				   argv[optind]);
	if (a.device >= 0 && hetmem_open(&hm, NULL))
		return complain(EXIT_FAILED, a.sub, "%s", hetmem_last_error());
	params.device = a.device;
	params.timeout_ms = 1000 * a.timeout_s;
	err = hetmem_reclaim(hm, &params, &sum);
	if (err)
		complain(EXIT_FAILED, a.sub, "%s", hetmem_last_error());
	else if (!sum.asked)
		printf("no process of yours has free memory there\n");
	else
		printf("%s from %u processes; %u did not answer\n", size_text(sum.bytes), sum.asked,
		       sum.silent);
	hetmem_close(hm);
	return err || sum.bytes < params.bytes || sum.silent ? EXIT_FAILED : EXIT_OK;
}

/* The line for an error of hm_target_open(). Returns EXIT_FAILED. */
static int cannot_ask(const char *sub, pid_t pid, int err)
{
	struct process p;

	switch (err) {
	case -ESRCH:
		return complain(EXIT_FAILED, sub, "there is no process %d; type 'ps -e' for those there are",
				pid);
	case -EPERM:
		return complain(EXIT_FAILED, sub, "process %d (%s) is another user's, or may not be looked at",
				pid, name_of(pid, &p));
	case -ENXIO:
		return complain(EXIT_FAILED, sub, "process %d (%s) publishes no pools; type 'hetmem status' for those that do",
				pid, name_of(pid, &p));
	case -EBUSY:
		return complain(EXIT_FAILED, sub, "another command asks process %d (%s); try again later",
				pid, name_of(pid, &p));
	default:
		return complain(EXIT_FAILED, sub, "process %d: %s", pid, strerror(-err));
	}
}

/* One pool after the other: each is asked, and its answer printed. 0, or the exit status. */
static int set_one(const struct asking *a, struct hm_target *t, unsigned int i, uint64_t max,
		   uint64_t deadline, unsigned int *set)
{
	const uint32_t request = hm_target_ask(t, i, HM_ASKED_MAX, max);
	struct hm_asked_pool answer;
	struct process p;

	if (!hm_target_wait(t, i, request, deadline, &answer))
		return complain(EXIT_FAILED, a->sub, "process %d (%s) did not answer in time: it makes no calls, and has no agent (HETMEM_AGENT=off)",
				t->pid, name_of(t->pid, &p));
	if (answer.err == -EXDEV)
		return 0;
	if (answer.err)
		return complain(EXIT_FAILED, a->sub, "process %d (%s), pool %" PRIu64 ": %s", t->pid,
				name_of(t->pid, &p), answer.number, answer.text);
	++*set;
	printf("process %d (%s), pool %" PRIu64 ": holds %s at most\n", t->pid,
	       name_of(t->pid, &p), answer.number, size_text(max));
	return 0;
}

static int set_all(const struct asking *a, struct hm_target *t, uint64_t max, uint64_t deadline)
{
	unsigned int i, set = 0;
	int status = 0;

	for (i = 0; i < HM_PUBLISH_POOLS && !status; i++) {
		const struct hm_published_pool *pool = &t->figures.pools[i];

		if (pool->number && (a->device < 0 || pool->device == a->device))
			status = set_one(a, t, i, max, deadline, &set);
	}
	if (!status && !set)
		return complain(EXIT_FAILED, a->sub, "process %d has no such pool; type 'hetmem status %d'",
				t->pid, t->pid);
	return status;
}

int cmd_set(int argc, char **argv)
{
	struct asking a = { "set", TIMEOUT_S, HETMEM_RECLAIM_ALL };
	int status = parse(&a, argc, argv), err;
	struct hm_target *t;
	uint64_t max, deadline;
	long pid;

	if (status)
		return status < 0 ? set_help() : status;
	if (argc - optind < 2)
		return usage_error(a.sub, "give a PID and max=SIZE");
	if (argc - optind > 2)
		return usage_error(a.sub, "'%s' is too many", argv[optind + 2]);
	if (!parse_number(argv[optind], 1, INT32_MAX, &pid))
		return usage_error(a.sub, "'%s' is not a PID", argv[optind]);
	if (strncmp(argv[optind + 1], "max=", 4) || !hm_parse_size(argv[optind + 1] + 4, &max) || !max)
		return usage_error(a.sub, "'%s' is not max=SIZE: give max=20G, for example",
				   argv[optind + 1]);
	t = xcalloc(1, sizeof(*t));
	deadline = hm_now() + a.timeout_s * 1000000000ULL;
	err = hm_target_open(pid, deadline, t);
	status = err ? cannot_ask(a.sub, pid, err) : set_all(&a, t, max, deadline);
	if (!err)
		hm_target_close(t);
	free(t);
	return status;
}
