/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem prefetch, hetmem pullback, hetmem advise: asks a process that carries out hints to
 * move its memory to a device, or back to the host. A process that cannot be asked has its
 * memory read, which brings it back to the host.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hetmem.h>

#include "maps.h"
#include "options.h"
#include "pull.h"
#include "util.h"

#define TIMEOUT_S	60
#define MAX_TIMEOUT_S	(HETMEM_HINT_TIMEOUT_MAX / 1000)

struct job {
	const char *sub;	/* "prefetch", "pullback", "advise" */
	pid_t pid;
	uint32_t location;
	unsigned char uuid[16];	/* of another driver's device */
	const unsigned char *has_uuid;
	unsigned int timeout_s;
	bool reads;		/* cannot be asked: its memory is read */
	struct pull_range *ranges;
	size_t nr;
};

static int help(bool to_host)
{
	printf("Usage: hetmem %s [OPTION]... PID\n"
	       "%s\n\n"
	       "%s"
	       "  --range START-END    only these addresses (hexadecimal, as in\n"
	       "                       /proc/PID/maps); may be given more than once\n"
	       "  --timeout SECONDS    for each range (%d)\n\n"
	       "Without --range: %s.\n\n"
	       "%s Root\n"
	       "may ask, others if it lets them, with the rights of ptrace on it.\n",
	       to_host ? "pullback" : "prefetch", to_host ?
	       "Asks a process to bring its memory back from devices to the host." :
	       "Asks a process to move its memory to a device.",
	       to_host ?
	       "  --node N             to this node of the host (wherever it comes to)\n" :
	       "  --to LOCATION        device:N (device:0), foreign:N, host or host:N, numbered\n"
	       "                       as in 'hetmem map PID'; or a GPU's UUID, as in\n"
	       "                       'nvidia-smi -L'\n",
	       TIMEOUT_S, to_host ? "all of its memory" :
	       "anonymous private memory, all but the stack", to_host ?
	       "A process that never opened /dev/hetmem has its pages read, one byte each, which\n"
	       "brings them back from swap too. Others must carry out hints." :
	       "The process must carry out hints, by hetmem_executor_open() in its program.");
	return EXIT_OK;
}

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
static bool parse_uuid(const char *s, unsigned char uuid[16])
{
	size_t i;

	if (strncmp(s, "GPU-", 4))
		return false;
	s += 4;
	for (i = 0; i < 16; i++) {
		if ((i == 4 || i == 6 || i == 8 || i == 10) && *s++ != '-')
			return false;
		/* sscanf() would take a blank or a sign as well. */
		if (!isxdigit((unsigned char)s[0]) ||
		    !isxdigit((unsigned char)s[1]))
			return false;
		sscanf(s, "%2hhx", &uuid[i]);
		s += 2;
	}
	return !*s;
}

static bool parse_location(const char *s, uint32_t *location)
{
	static const struct {
		const char *name;
		uint32_t kind;
	} kinds[] = {
		{ "device:", HETMEM_DEVICE },
		{ "foreign:", HETMEM_FOREIGN },
		{ "host:", HETMEM_HOST },
	};
	long index;
	size_t i;

	if (!strcmp(s, "host")) {
		*location = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
		return true;
	}
	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		size_t len = strlen(kinds[i].name);

		if (strncmp(s, kinds[i].name, len))
			continue;
		if (!parse_number(s + len, 0, HETMEM_NODE_ANY - 1, &index))
			return false;
		*location = HETMEM_LOC(kinds[i].kind, index);
		return true;
	}
	return false;
}

/* As an option or an advice. */
static bool parse_target(struct job *job, const char *s)
{
	job->has_uuid = NULL;
	if (parse_uuid(s, job->uuid)) {
		job->has_uuid = job->uuid;
		job->location = HETMEM_LOC(HETMEM_FOREIGN, HETMEM_SEVERAL);
		return true;
	}
	return parse_location(s, &job->location);
}

static void add_range(struct job *job, uint64_t start, uint64_t end)
{
	struct pull_range *last = job->nr ? &job->ranges[job->nr - 1] : NULL;

	if (last && last->end == start) {
		last->end = end;
		return;
	}
	job->ranges = xrealloc_array(job->ranges, job->nr + 1,
				     sizeof(*job->ranges));
	job->ranges[job->nr++] = (struct pull_range){ start, end };
}

/* 0, or the exit status. */
static int parse_pid(struct job *job, const char *text)
{
	long value;

	if (!parse_number(text, 1, INT32_MAX, &value))
		return usage_error(job->sub, "'%s' is not a PID", text);
	job->pid = value;
	return 0;
}

/* The PID is an argument, or that of --pid. */
static int parse_process(struct job *job, int argc, char **argv)
{
	const int more = optind + !job->pid;

	if (more < argc)
		return usage_error(job->sub, "one PID at a time, '%s' is too many", argv[more]);
	if (optind < argc)
		return parse_pid(job, argv[optind]);
	if (!job->pid)
		return usage_error(job->sub, "which process? Give a PID");
	return 0;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct job *job, int argc, char **argv)
{
	uint64_t start, end;
	long value;
	int c;

	while ((c = next_option(job->sub, argc, argv)) != -1) {
		switch (c) {
		case 'p':
			c = parse_pid(job, optarg);
			if (c)
				return c;
			break;
		case 'r':
			if (!parse_range(optarg, &start, &end))
				return usage_error(job->sub, "'%s' is not a range START-END in hexadecimal",
						   optarg);
			add_range(job, start, end);
			break;
		case 't':
			if (!parse_number(optarg, 1, MAX_TIMEOUT_S, &value))
				return usage_error(job->sub, "'%s' is not a time from 1 to %d seconds",
						   optarg, MAX_TIMEOUT_S);
			job->timeout_s = value;
			break;
		case 'l':
			if (!parse_target(job, optarg))
				return usage_error(job->sub, "'%s' is not device:N, foreign:N, host, host:N or GPU-UUID",
						   optarg);
			break;
		case 'n':
			if (!parse_number(optarg, 0, HETMEM_NODE_ANY - 1,
					  &value))
				return usage_error(job->sub, "'%s' is not a node",
						   optarg);
			job->location = HETMEM_LOC(HETMEM_HOST, value);
			break;
		case 'h':
			return -1;
		default:
			return option_error(job->sub, c, argv);
		}
	}
	return parse_process(job, argc, argv);
}

/*
 * What can move is anonymous memory. To the host other memory may come too,
 * from drivers that know how; only what is no memory is left out.
 */
static bool worth_asking(const struct job *job, const struct vma *vma)
{
	/* No device has pages of a file or of shared memory that only a fault brings back. */
	if (job->reads && vma->perms[3] != 'p')
		return false;
	if (HETMEM_LOC_KIND(job->location) == HETMEM_HOST)
		return !(vma->why & (HETMEM_WHY_SPECIAL | HETMEM_WHY_HUGETLB |
				     HETMEM_WHY_NOT_READABLE));
	return !vma->why && vma->perms[1] == 'w' && vma->perms[3] == 'p' &&
	       strcmp(vma->name, "[stack]");
}

/* The memory that is worth it in the ranges that were given, or in all of the process. */
static int find_ranges(struct job *job)
{
	static const struct pull_range all = { 0, UINT64_MAX };
	struct pull_range *given = job->ranges;
	const size_t nr_given = job->nr;
	struct vmas vmas;
	size_t i, j;
	int ret;

	job->ranges = NULL;
	job->nr = 0;
	ret = vmas_read(&vmas, job->pid);
	for (i = 0; !ret && i < vmas.nr; i++) {
		const struct vma *vma = &vmas.vma[i];

		for (j = 0; j < (nr_given ? nr_given : 1) && worth_asking(job, vma); j++) {
			const struct pull_range *r = nr_given ? &given[j] : &all;
			const uint64_t start = r->start > vma->start ? r->start : vma->start;
			const uint64_t end = r->end < vma->end ? r->end : vma->end;

			if (start < end)
				add_range(job, start, end);
		}
	}
	vmas_free(&vmas);
	free(given);
	switch (ret) {
	case 0:
		break;
	case -ESRCH:
		return complain(EXIT_FAILED, job->sub,
				"there is no process %d; type 'ps -e' for those there are",
				job->pid);
	case -EACCES:
	case -EPERM:
		return complain(EXIT_FAILED, job->sub,
				"not permitted to see the mappings of process %d; become root",
				job->pid);
	default:
		return complain(EXIT_FAILED, job->sub,
				"the mappings of process %d: %s", job->pid,
				ret == -ENODATA ? "it has none" :
				strerror(-ret));
	}
	if (!job->nr)
		return complain(EXIT_FAILED, job->sub,
				"process %d has no memory that could move",
				job->pid);
	return 0;
}

/* The line for a process that cannot be asked. */
static int refused(const struct job *job, int err)
{
	const char *todo = "";

	switch (err) {
	case -EPERM:
		todo = "; become root";
		break;
	case -ENXIO:
		todo = ": it must carry out hints to be asked, see hetmem_executor_open()";
		break;
	case -EOPNOTSUPP:
		todo = "; type 'hetmem doctor'";
		break;
	default:
		break;
	}
	return complain(EXIT_FAILED, job->sub, "%s%s", hetmem_last_error(),
			todo);
}

static int ask(const struct job *job, struct hetmem_peer *peer)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);
	struct hetmem_hinted hinted = { .size = sizeof(hinted) };
	uint64_t moved = 0, size = 0;
	char name[64];
	size_t i;

	for (i = 0; i < job->nr; i++) {
		const struct pull_range *r = &job->ranges[i];

		if (hetmem_hint(peer, r->start, r->end - r->start,
				job->location, job->has_uuid,
				1000 * job->timeout_s, &hinted))
			return complain(EXIT_FAILED, job->sub,
					"process %d, %" PRIx64 "-%" PRIx64 ": %s, after %s had moved",
					job->pid, r->start, r->end,
					hetmem_last_error(),
					size_text(moved * page));
		moved += hinted.moved;
		size += r->end - r->start;
	}
	printf("process %d: %" PRIu64 " page%s (%s) moved to %s, in %s of addresses in %zu range%s\n",
	       job->pid, moved, moved == 1 ? "" : "s", size_text(moved * page),
	       hetmem_location_name(NULL, job->location, name, sizeof(name)),
	       size_text(size), job->nr, job->nr == 1 ? "" : "s");
	return EXIT_OK;
}

/* Whether the process can be read instead: it has nothing that could be asked. */
static bool may_read(const struct job *job, int err)
{
	return !strcmp(job->sub, "pullback") && (err == -ENXIO || err == -EOPNOTSUPP) &&
	       job->location == HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
}

static int read_back(const struct job *job)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);
	struct pulled r;
	int err = pull_by_reading(job->pid, job->ranges, job->nr, job->timeout_s, &r);

	if (err == -EPERM)
		return not_permitted(job->sub, job->pid);
	if (err)
		return complain(EXIT_FAILED, job->sub, "process %d: %s, after %s had come back",
				job->pid, err == -ESRCH ? "it ended" :
				err == -ETIMEDOUT ? "its memory cannot be read in time" :
				strerror(-err), size_text(r.back * page));
	printf("process %d, read page by page: %" PRIu64 " of %" PRIu64 " pages (%s) came back, about %" PRIu64 " from swap and %" PRIu64 " from devices\n",
	       job->pid, r.back, r.away, size_text(r.back * page), r.swapped,
	       r.back - r.swapped);
	if (!r.ended)
		return complain(EXIT_FAILED, job->sub,
				"process %d: the time was over after %s of addresses; give --timeout or --range",
				job->pid, size_text(r.reached));
	return EXIT_OK;
}

static int help_advise(void)
{
	printf("Usage: hetmem advise [OPTION]... PID RANGE ADVICE\n"
	       "Tells a process which side uses memory of its own next, so that it moves there.\n\n"
	       "  RANGE                START-END, hexadecimal as in /proc/PID/maps; 'all'\n"
	       "  ADVICE               device:N, foreign:N or a GPU's UUID: the device uses it;\n"
	       "                       host or host:N: the CPU does\n"
	       "  --timeout SECONDS    for each range (%d)\n\n"
	       "'all' is what 'hetmem prefetch' and 'hetmem pullback' ask for without --range.\n"
	       "The process must carry out hints, by hetmem_executor_open() in its program. Root\n"
	       "may ask, others if it lets them, with the rights of ptrace on it.\n", TIMEOUT_S);
	return EXIT_OK;
}

/* 0, or the exit status; -1 for help. */
static int parse_advise(struct job *job, int argc, char **argv)
{
	uint64_t start, end;
	long value;
	int c;

	while ((c = next_option("advise", argc, argv)) != -1) {
		if (c == 'h')
			return -1;
		if (c != 't')
			return option_error("advise", c, argv);
		if (!parse_number(optarg, 1, MAX_TIMEOUT_S, &value))
			return usage_error("advise", "'%s' is not a time from 1 to %d seconds",
					   optarg, MAX_TIMEOUT_S);
		job->timeout_s = value;
	}
	if (argc - optind != 3)
		return usage_error("advise", argc - optind < 3 ? "give PID, RANGE and ADVICE" :
				   "PID, RANGE and ADVICE are all: '%s' is too many", argv[argc - optind < 3 ? 0 : optind + 3]);
	c = parse_pid(job, argv[optind]);
	if (c)
		return c;
	if (parse_range(argv[optind + 1], &start, &end))
		add_range(job, start, end);
	else if (strcmp(argv[optind + 1], "all"))
		return usage_error("advise", "'%s' is not 'all' or a range START-END in hexadecimal",
				   argv[optind + 1]);
	if (!parse_target(job, argv[optind + 2]))
		return usage_error("advise", "'%s' is not device:N, foreign:N, host, host:N or GPU-UUID",
				   argv[optind + 2]);
	return 0;
}

static int run(const char *sub, bool to_host, int argc, char **argv)
{
	struct job job = {
		.sub = sub,
		.timeout_s = TIMEOUT_S,
		.location = to_host ? HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY) :
			HETMEM_LOC(HETMEM_DEVICE, 0),
	};
	const bool advise = !strcmp(sub, "advise");
	struct hetmem_peer *peer = NULL;
	int ret, err;

	ret = advise ? parse_advise(&job, argc, argv) : parse(&job, argc, argv);
	if (ret) {
		ret = ret > 0 ? ret : advise ? help_advise() : help(to_host);
		goto out;
	}
	err = hetmem_peer_open(job.pid, &peer);
	job.reads = err && may_read(&job, err);
	if (err && !job.reads)
		ret = refused(&job, err);
	if (!ret && (!job.nr || job.reads))
		ret = find_ranges(&job);
	if (!ret)
		ret = job.reads ? read_back(&job) : ask(&job, peer);
out:
	hetmem_peer_close(peer);
	free(job.ranges);
	return ret;
}

int cmd_prefetch(int argc, char **argv)
{
	return run("prefetch", false, argc, argv);
}

int cmd_pullback(int argc, char **argv)
{
	return run("pullback", true, argc, argv);
}

int cmd_advise(int argc, char **argv)
{
	return run("advise", false, argc, argv);
}
