/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Bringing memory back by reading it: see pull.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bounded.h"
#include "pull.h"
#include "util.h"

/* Pages of one call: IOV_MAX entries. */
#define PIECE		1024
#define PM_SWAP		(1ULL << 62)
#define PM_PRESENT	(1ULL << 63)

/**
 * struct pull - a pull at work, in a thread that can be left
 * @end: of now()
 * @pagemap: of the process
 * @result: what came back so far
 * @err: of the last call that failed, 0 or a negative errno
 */
struct pull {
	pid_t pid;
	size_t nr;
	double end;
	int pagemap;
	struct pulled result;
	int err;
	struct pull_range ranges[];
};

static void drop(void *arg)
{
	struct pull *p = arg;

	if (p->pagemap >= 0)
		close(p->pagemap);
	free(p);
}

/* kB of /proc/PID/status, 0 if it does not say. */
static uint64_t swapped_kb(pid_t pid)
{
	char *path = xasprintf("/proc/%d/status", pid);
	char *text = read_file("", path, 64 << 10, NULL);
	const char *line = text ? strstr(text, "\nVmSwap:") : NULL;
	const uint64_t kb = line ? strtoull(line + strlen("\nVmSwap:"), NULL, 10) : 0;

	free(text);
	free(path);
	return kb;
}

/* Entries of @nr pages from @start on; those that cannot be read are 0. */
static void look(struct pull *p, uint64_t start, size_t nr, uint64_t *entries)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	ssize_t n = pread(p->pagemap, entries, nr * sizeof(*entries),
			  start / page * sizeof(*entries));

	n = n < 0 ? 0 : n / (ssize_t)sizeof(*entries);
	memset(entries + n, 0, (nr - n) * sizeof(*entries));
}

/* A byte of each page of @pages. A page that cannot be read does not stop the others. */
static int touch(pid_t pid, const struct iovec *pages, size_t nr)
{
	char bytes[PIECE];
	size_t at = 0;

	while (at < nr) {
		const struct iovec to = { bytes, nr - at };
		const ssize_t n = process_vm_readv(pid, &to, 1, pages + at, nr - at, 0);

		if (n < 0 && errno != EFAULT)
			return -errno;
		at += n > 0 ? n : 1;
	}
	return 0;
}

static void piece(struct pull *p, uint64_t start, size_t nr)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	uint64_t before[PIECE], after[PIECE];
	struct iovec pages[PIECE];
	size_t i, away = 0;

	look(p, start, nr, before);
	for (i = 0; i < nr; i++)
		if (before[i] & PM_SWAP)
			pages[away++] = (struct iovec){ (void *)(uintptr_t)(start + i * page), 1 };
	p->result.reached += nr * page;
	if (!away)
		return;
	p->result.away += away;
	p->err = touch(p->pid, pages, away);
	look(p, start, nr, after);
	for (i = 0; i < nr; i++)
		p->result.back += (before[i] & PM_SWAP) && (after[i] & PM_PRESENT);
}

static void pull(void *arg)
{
	struct pull *p = arg;
	const size_t page = sysconf(_SC_PAGESIZE);
	const uint64_t kb = swapped_kb(p->pid);
	uint64_t at = 0, left;
	size_t i;

	for (i = 0; i < p->nr && !p->err; i++)
		for (at = p->ranges[i].start; at < p->ranges[i].end && !p->err; at += left * page) {
			if (now() >= p->end)
				goto out;
			left = (p->ranges[i].end - at) / page;
			left = left < PIECE ? left : PIECE;
			piece(p, at, left);
		}
	p->result.ended = !p->err;
out:
	left = swapped_kb(p->pid);
	left = left < kb ? (kb - left) * 1024 / page : 0;
	p->result.swapped = left < p->result.back ? left : p->result.back;
}

int pull_by_reading(pid_t pid, const struct pull_range *ranges, size_t nr, unsigned int seconds,
		    struct pulled *pulled)
{
	struct pull *p = xcalloc(1, sizeof(*p) + nr * sizeof(*ranges));
	char *path = xasprintf("/proc/%d/pagemap", pid);
	struct bounded *call;
	int err;

	*pulled = (struct pulled){ 0 };
	p->pid = pid;
	p->nr = nr;
	p->end = now() + seconds;
	memcpy(p->ranges, ranges, nr * sizeof(*ranges));
	p->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	err = p->pagemap < 0 ? -errno : 0;
	free(path);
	if (err) {
		drop(p);
		return err == -EACCES ? -EPERM : err == -ENOENT ? -ESRCH : err;
	}
	call = bounded_begin(pull, p);
	if (!call) {
		drop(p);
		return -ENOMEM;
	}
	/* Some time for the call that runs at the end. */
	bounded_wait(call, p->end + 1);
	if (!bounded_end(call, drop))
		return -ETIMEDOUT;
	*pulled = p->result;
	err = p->err;
	drop(p);
	return err;
}
