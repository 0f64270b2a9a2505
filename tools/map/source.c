/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Where the pages of a process are: see source.h. */
#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <hetmem.h>

#include "hint/peer.h"
#include "core/device_open.h"
#include "source.h"
#include "util.h"

#define NR_RUNS		1024
#define NR_ENTRIES	4096
#define MAX_RETRIES	100
#define BLOCK		(2ULL << 20)

#define PM_SWAP		(1ULL << 62)
#define PM_PRESENT	(1ULL << 63)

/* Puts equal neighbours together before @fn sees them. */
struct joiner {
	struct hetmem_run run;
	bool any;
	run_fn fn;
	void *arg;
};

static int join(struct joiner *joiner, const struct hetmem_run *run)
{
	struct hetmem_run *last = &joiner->run;
	int ret = 0;

	if (run->start >= run->end)
		return 0;
	if (joiner->any && last->end == run->start &&
	    last->location == run->location && last->order == run->order &&
	    last->why == run->why) {
		last->end = run->end;
		return 0;
	}
	if (joiner->any)
		ret = joiner->fn(last, joiner->arg);
	*last = *run;
	joiner->any = true;
	return ret;
}

static int join_end(struct joiner *joiner)
{
	return joiner->any ? joiner->fn(&joiner->run, joiner->arg) : 0;
}

static bool answers(int fd)
{
	struct hetmem_cmd_info info = { .size = sizeof(info) };

	return !ioctl(fd, HETMEM_IOC_INFO, &info);
}

/* The first one that answers us; which it is does not matter. */
static int context_of_other(pid_t pid)
{
	int fds[HM_PEER_CONTEXTS], context = -1;
	int nr = hm_peer_contexts(pid, fds, HM_PEER_CONTEXTS), i;

	for (i = 0; i < nr; i++) {
		if (context < 0 && answers(fds[i]))
			context = fds[i];
		else
			close(fds[i]);
	}
	return context;
}

int source_open(struct source *source, pid_t pid)
{
	char *path = xasprintf("/proc/%d/pagemap", pid);

	memset(source, 0, sizeof(*source));
	source->pid = pid;
	source->page_size = sysconf(_SC_PAGESIZE);
	source->many_nodes = !access("/sys/devices/system/node/node1", F_OK);
	source->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	free(path);
	if (pid == getpid()) {
		source->context = hm_device_open("/dev/hetmem");
		if (source->context >= 0 && !answers(source->context)) {
			close(source->context);
			source->context = -1;
		}
	} else {
		source->context = context_of_other(pid);
	}
	if (source->context >= 0)
		return 0;
	source->note = pid == getpid() ?
		"from pagemap, /dev/hetmem cannot be used ('hetmem doctor' says why): device pages look like swap here" :
		"from pagemap, the process has no /dev/hetmem open that may be used: device pages look like swap here";
	return source->pagemap >= 0 ? 0 : -EACCES;
}

void source_close(struct source *source)
{
	if (source->context >= 0)
		close(source->context);
	if (source->pagemap >= 0)
		close(source->pagemap);
	source->context = -1;
	source->pagemap = -1;
}

/* Nodes of present pages; the entry of a page without one is negative. */
static void ask_nodes(struct source *source, uint64_t start, size_t nr,
		      int *nodes)
{
	static _Thread_local void *pages[NR_ENTRIES];
	size_t i;

	for (i = 0; i < nr; i++) {
		pages[i] = (void *)(uintptr_t)(start + i * source->page_size);
		nodes[i] = 0;
	}
	if (!source->many_nodes)
		return;
	if (move_pages(source->pid, nr, pages, NULL, nodes, 0))
		for (i = 0; i < nr; i++)
			nodes[i] = -1;
}

/*
 * With @only_absent, the module has been asked and did not know: a page that
 * is present by now came in between and stays unknown.
 */
static int walk_pagemap(struct source *source, uint32_t why, uint64_t start,
			uint64_t end, bool only_absent, struct joiner *joiner)
{
	static _Thread_local uint64_t entries[NR_ENTRIES];
	static _Thread_local int nodes[NR_ENTRIES];
	uint64_t size = source->page_size;

	while (start < end) {
		struct hetmem_run run = { .start = start };
		size_t nr = (end - start) / size, i;
		ssize_t len;
		int ret;

		if (nr > NR_ENTRIES)
			nr = NR_ENTRIES;
		len = pread(source->pagemap, entries, nr * 8,
			    start / size * 8);
		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0)
			return -errno;
		/* The end of the file: the address space is gone. */
		if (len < 8)
			return -ESRCH;
		nr = len / 8;
		if (!only_absent)
			ask_nodes(source, start, nr, nodes);
		for (i = 0; i < nr; i++) {
			run.start = start + i * size;
			run.end = run.start + size;
			run.why = why;
			if (entries[i] & PM_SWAP) {
				run.location = LOC_SWAP_OR_DEVICE;
			} else if (!(entries[i] & PM_PRESENT)) {
				run.location = LOC_ABSENT;
				run.why |= HETMEM_WHY_ABSENT;
			} else if (only_absent) {
				run.location = HETMEM_LOC(HETMEM_UNKNOWN, 0);
			} else {
				run.location = HETMEM_LOC(HETMEM_HOST,
					nodes[i] < 0 ? HETMEM_NODE_ANY :
					nodes[i]);
			}
			ret = join(joiner, &run);
			if (ret)
				return ret;
		}
		start += nr * size;
	}
	return 0;
}

static int walk_module(struct source *source, uint64_t start, uint64_t end,
		       struct joiner *joiner)
{
	static _Thread_local struct hetmem_run runs[NR_RUNS];
	uint32_t i;
	int ret;

	while (start < end) {
		struct hetmem_cmd_residency cmd = {
			.size = sizeof(cmd),
			.start = start,
			.end = end,
			.walk_end = start,
			.runs = (uintptr_t)runs,
			.nr_runs = NR_RUNS,
			.run_size = sizeof(*runs),
		};

		ret = ioctl(source->context, HETMEM_IOC_RESIDENCY, &cmd) ?
			-errno : 0;
		if (ret && ret != -EINTR)
			return ret;
		for (i = 0; i < cmd.filled_runs && i < NR_RUNS; i++) {
			struct hetmem_run *run = &runs[i];

			if (HETMEM_LOC_KIND(run->location) == HETMEM_UNKNOWN &&
			    source->pagemap >= 0)
				ret = walk_pagemap(source, run->why,
						   run->start, run->end, true,
						   joiner);
			else
				ret = join(joiner, run);
			if (ret)
				return ret;
		}
		if (cmd.walk_end <= start)
			return -EIO;
		start = cmd.walk_end;
	}
	return 0;
}

int source_walk(struct source *source, const struct vma *vma, uint64_t start,
		uint64_t end, run_fn fn, void *arg)
{
	struct joiner joiner = { .fn = fn, .arg = arg };
	int ret;

	if (source->context >= 0)
		ret = walk_module(source, start, end, &joiner);
	else
		ret = walk_pagemap(source, vma->why, start, end, false,
				   &joiner);
	return ret ? ret : join_end(&joiner);
}

char *location_text(uint32_t location, char *buf, size_t len)
{
	switch (location) {
	case LOC_ABSENT:
		snprintf(buf, len, "absent (no page)");
		break;
	case LOC_SWAP_OR_DEVICE:
		snprintf(buf, len, "swap or device");
		break;
	case HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY):
		snprintf(buf, len, "host");
		break;
	default:
		hetmem_location_name(NULL, location, buf, len);
	}
	return buf;
}
