/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A sample of the system, see sample.h. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hetmem.h>

#include "bounded.h"
#include "hint/peer.h"
#include "map/picture.h"
#include "map/source.h"
#include "platform/kmod.h"
#include "platform/kmod_hint.h"
#include "platform/memfd.h"
#include "process.h"
#include "sample.h"
#include "util.h"

#define LINK		"/memfd:" HM_PUBLISH_NAME " (deleted)"
#define SYSFS		"/sys/class/misc/hetmem/"
#define MAX_CONTEXTS	65536
/* Of a walk, between two looks at the clock. */
#define PIECE		(64ULL << 20)
/* Ranges of a process for the sum of what thrashed there. */
#define MAX_RANGES	4096
/* Of now(): later than any end. */
#define NEVER		1e9

/* Descriptors of a process that are looked at before more of another's. */
#define FIRST_LOOKS	256
/* Descriptors of a process that have the name and are opened. */
#define CANDIDATES	16
/* Seconds beyond its share that a look may take, and beyond the budget that all looks may take. */
#define PATIENCE	1.0
/* Seconds that a look gets when all of this is used up. */
#define LEAST		0.02
/* A larger rate is a liar's, and no integer. */
#define MAX_RATE	0x1p62

struct budget {
	double end;
};

static bool is_over(const struct budget *budget)
{
	return now() >= budget->end;
}

/* What one of @nr that are left may take. */
static struct budget share_of(const struct budget *budget, size_t nr)
{
	const double start = now(), left = budget->end - start;

	return (struct budget){ .end = start + (left > 0 ? left / nr : 0) };
}

const char *sample_source_name(enum sample_source source)
{
	switch (source) {
	case SOURCE_MODULE:
		return "module";
	case SOURCE_PAGEMAP:
		return "pagemap";
	case SOURCE_RSS:
		return "rss";
	case SOURCE_ESTIMATE:
		return "estimated";
	default:
		return "-";
	}
}

/* What the module says of all. */

static uint64_t read_number(const char *path)
{
	char *line = read_line(NULL, path);
	uint64_t value = line ? strtoull(line, NULL, 10) : 0;

	free(line);
	return value;
}

static void look_at_devices(struct sample_module *m)
{
	DIR *dir = opendir(SYSFS "devices");
	struct dirent *entry;
	char path[512], *name;

	while (dir && m->nr_devices < SAMPLE_DEVICES && (entry = readdir(dir))) {
		struct sample_device *d = &m->devices[m->nr_devices];

		if (!isdigit((unsigned char)*entry->d_name))
			continue;
		d->id = strtoul(entry->d_name, NULL, 10);
#define FILE_OF(what)	(snprintf(path, sizeof(path), SYSFS "devices/%u/" what, d->id), path)
		name = read_line(NULL, FILE_OF("name"));
		if (!name)
			continue;
		snprintf(d->name, sizeof(d->name), "%s", name);
		free(name);
		d->capacity = read_number(FILE_OF("capacity"));
		d->used = read_number(FILE_OF("used"));
		d->limit = read_number(FILE_OF("limit"));
#undef FILE_OF
		m->nr_devices++;
	}
	if (dir)
		closedir(dir);
}

static void look_at_module(struct sample_module *m)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);

	m->loaded = !access(SYSFS "stats", F_OK);
	if (!m->loaded)
		return;
	m->contexts = read_number(SYSFS "stats/contexts");
	m->ranges = read_number(SYSFS "stats/ranges");
	m->kernel_bytes = read_number(SYSFS "stats/bytes");
	m->pinned = read_number(SYSFS "stats/pages_pinned") * page;
	m->to_device = read_number(SYSFS "stats/pages_to_device") * page;
	m->to_host = read_number(SYSFS "stats/pages_to_host") * page;
	m->failed_pages = read_number(SYSFS "stats/pages_failed");
	m->thrashed = read_number(SYSFS "stats/thrashed");
	m->hints = read_number(SYSFS "stats/hints");
	m->events = read_number(SYSFS "stats/events");
	m->events_dropped = read_number(SYSFS "stats/events_dropped");
	look_at_devices(m);
}

/* Which processes there are. */

static struct sample_process *find_pid(struct sample *sample, pid_t pid)
{
	unsigned int i;

	for (i = 0; i < sample->nr; i++)
		if (sample->processes[i].pid == pid)
			return &sample->processes[i];
	return NULL;
}

/*
 * False: it has ended. The files in the directory are root's if the process is not dumpable;
 * the directory is not.
 */
static bool read_owner(pid_t pid, uid_t *uid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", pid);
	if (stat(path, &st))
		return false;
	*uid = st.st_uid;
	return true;
}

/* False: it has ended. */
static bool identify(struct sample_process *p)
{
	struct process process;

	if (process_read(&process, p->pid) || !read_owner(p->pid, &p->uid))
		return false;
	_Static_assert(sizeof(p->name) == sizeof(process.name), "one name");
	memcpy(p->name, process.name, sizeof(p->name));
	p->started = process.started;
	return true;
}

/* As it may be added; NULL: there are too many, or it has ended. */
static struct sample_process *add_pid(struct sample *sample, pid_t pid)
{
	struct sample_process *p = find_pid(sample, pid);

	if (p)
		return p;
	if (sample->nr == SAMPLE_PROCESSES) {
		sample->left_out++;
		return NULL;
	}
	sample->processes = xrealloc_array(sample->processes, sample->nr + 1, sizeof(*p));
	p = &sample->processes[sample->nr];
	*p = (struct sample_process){ .pid = pid };
	if (!identify(p))
		return NULL;
	sample->nr++;
	return p;
}

/* Our own is made for this and tells nothing. With @only, no process is added. */
static void list_contexts(struct sample *sample, bool only)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);
	struct hetmem_list_entry *entries = NULL;
	struct sample_process *p;
	struct hm_kmod kmod;
	char reason[HM_REASON_LEN];
	int64_t nr = 0, room = 0, i;

	if (hm_kmod_open(&kmod, NULL, reason, sizeof(reason)))
		return;
	do {
		room = nr + 16;
		entries = xrealloc_array(entries, room, sizeof(*entries));
		nr = hm_kmod_list(kmod.fd, entries, room);
	} while (nr > room && nr < MAX_CONTEXTS);
	for (i = 0; i < nr && i < room; i++) {
		const struct hetmem_list_entry *e = &entries[i];

		if (!e->pid || (pid_t)e->pid == getpid())
			continue;
		p = only ? find_pid(sample, e->pid) : add_pid(sample, e->pid);
		if (!p)
			continue;
		p->tracked = true;
		p->executor |= !!(e->flags & HETMEM_LIST_EXECUTOR);
		p->ranges += e->nr_ranges;
		if (e->nr_ranges > p->largest)
			p->largest = e->nr_ranges;
		p->pinned += e->nr_pinned * page;
		p->waiting += e->nr_hints;
	}
	free(entries);
	hm_kmod_close(&kmod);
}

/**
 * struct search - through the descriptors of a process
 * @at: where it goes on, -1: it is complete
 * @files: of statistics that were found, with their @inodes; @candidates: that were opened
 */
struct search {
	pid_t pid;
	long at;
	unsigned int files, candidates;
	long long inodes[SAMPLE_FILES];
};

/* A file with two descriptors counts once. */
static bool is_new_memfd(struct search *s, int path)
{
	long long inode;
	unsigned int i;

	if (!hm_is_memfd(path, &inode))
		return false;
	s->inodes[s->files] = inode;
	for (i = 0; i < s->files; i++)
		if (inode >= 0 && s->inodes[i] == inode)
			return false;
	return true;
}

/*
 * The file behind the link @name of @dir. Its seals promise that it keeps its size. Another
 * user's file can have been passed on; a process that was root's may have made it as root.
 */
static bool read_published(struct search *s, DIR *dir, const char *name, uid_t owner,
			   struct hm_published *page)
{
	int fd = -1, path = openat(dirfd(dir), name, O_PATH | O_CLOEXEC);
	bool good;

	if (path < 0)
		return false;
	if (is_new_memfd(s, path)) {
		fd = hm_memfd_open(path, sizeof(*page), HM_PUBLISH_SEALS, owner, O_RDONLY);
		if (fd < 0 && owner)
			fd = hm_memfd_open(path, sizeof(*page), HM_PUBLISH_SEALS, 0, O_RDONLY);
	}
	close(path);
	if (fd < 0)
		return false;
	good = pread(fd, page, sizeof(*page), 0) == sizeof(*page);
	close(fd);
	return good && page->magic == HM_PUBLISH_MAGIC && page->version == HM_PUBLISH_VERSION;
}

/* Two series of one name would make Prometheus refuse all of them. */
static bool has_number(const struct sample_process *p, uint64_t number)
{
	unsigned int i;

	for (i = 0; i < p->nr_pools; i++)
		if (p->pools[i].number == number)
			return true;
	return false;
}

/* @file: of the process, from 0. Each has numbers of its own. */
static void add_pools(struct sample_process *p, const struct hm_published *page,
		      unsigned int file)
{
	unsigned int i;

	p->unlisted += page->unlisted;
	for (i = 0; i < HM_PUBLISH_POOLS; i++) {
		struct hm_published_pool *pool;
		const uint64_t number = page->pools[i].number + ((uint64_t)file << 32);
		char text[HM_PUBLISH_NAME_LEN];

		if (!page->pools[i].number || page->pools[i].number > UINT32_MAX ||
		    has_number(p, number))
			continue;
		p->pools = xrealloc_array(p->pools, p->nr_pools + 1, sizeof(*pool));
		pool = &p->pools[p->nr_pools++];
		*pool = page->pools[i];
		pool->number = number;
		/* Frees are known before the cached allocations that they end. */
		if ((int64_t)pool->requested < 0)
			pool->requested = 0;
		pool->provider[HM_PUBLISH_NAME_LEN - 1] = '\0';
		pool->tag[HM_PUBLISH_NAME_LEN - 1] = '\0';
		memcpy(text, pool->provider, sizeof(text));
		escape(pool->provider, sizeof(pool->provider), text);
		memcpy(text, pool->tag, sizeof(text));
		escape(pool->tag, sizeof(pool->tag), text);
	}
}

static void look_at_file(struct sample *sample, struct search *s, DIR *dir, const char *name)
{
	static struct hm_published page;
	char target[sizeof(LINK) + 1];
	const ssize_t len = readlinkat(dirfd(dir), name, target, sizeof(target));
	struct sample_process *p;
	uid_t owner;

	if (len != sizeof(LINK) - 1 || memcmp(target, LINK, len))
		return;
	s->candidates++;
	if (!read_owner(s->pid, &owner) || !read_published(s, dir, name, owner, &page) ||
	    (pid_t)page.pid != hm_inner_pid(s->pid))
		return;
	p = add_pid(sample, s->pid);
	if (p)
		add_pools(p, &page, s->files);
	s->files++;
}

/* Looks at @most descriptors, from @at on. 0, or a negative errno: they cannot be listed. */
static int find_published(struct sample *sample, struct search *s, unsigned long most,
			  const struct budget *budget)
{
	unsigned long looks = 0;
	struct dirent *entry;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", s->pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	if (s->at)
		seekdir(dir, s->at);
	s->at = -1;
	while (s->files < SAMPLE_FILES && s->candidates < CANDIDATES && (entry = readdir(dir))) {
		if (isdigit((unsigned char)*entry->d_name))
			look_at_file(sample, s, dir, entry->d_name);
		if (++looks >= most || (looks % 256 == 0 && is_over(budget))) {
			s->at = telldir(dir);
			break;
		}
	}
	closedir(dir);
	return 0;
}

/* A process that has ended was neither hidden nor left out. */
static void count_missing(struct sample *sample, int err)
{
	if (err == -EACCES || err == -EPERM)
		sample->hidden++;
	else if (err && err != -ENOENT && err != -ESRCH)
		sample->left_out++;
}

/* One with very many descriptors must not leave the others no time. */
static void find_rest(struct sample *sample, struct search *rest, size_t nr,
		      const struct budget *budget)
{
	size_t i;

	for (i = 0; i < nr; i++) {
		const struct budget share = share_of(budget, nr - i);

		count_missing(sample, find_published(sample, &rest[i], ULONG_MAX, &share));
		sample->left_out += rest[i].at > 0;
	}
}

static int find_all(struct sample *sample, const struct budget *budget)
{
	DIR *proc = opendir("/proc");
	struct search *rest = NULL;
	struct dirent *entry;
	size_t nr = 0;

	if (!proc)
		return -errno;
	list_contexts(sample, false);
	while ((entry = readdir(proc))) {
		struct search s = { .pid = atoi(entry->d_name) };

		if (!isdigit((unsigned char)*entry->d_name) || s.pid == getpid())
			continue;
		if (is_over(budget)) {
			sample->left_out++;
			continue;
		}
		count_missing(sample, find_published(sample, &s, FIRST_LOOKS, budget));
		if (s.at > 0) {
			rest = xrealloc_array(rest, nr + 1, sizeof(*rest));
			rest[nr++] = s;
		}
	}
	closedir(proc);
	find_rest(sample, rest, nr, budget);
	free(rest);
	return 0;
}

static void find_these(struct sample *sample, const pid_t *pids, size_t nr,
		       const struct budget *budget)
{
	size_t i;

	for (i = 0; i < nr; i++)
		add_pid(sample, pids[i]);
	list_contexts(sample, true);
	for (i = 0; i < sample->nr; i++) {
		struct search s = { .pid = sample->processes[i].pid };
		const struct budget share = share_of(budget, sample->nr - i);
		const int err = find_published(sample, &s, ULONG_MAX, &share);

		/* Their line says what is not permitted. */
		if (err == -EACCES || err == -EPERM)
			sample->processes[i].hidden = true;
		else
			count_missing(sample, err);
		sample->left_out += s.at > 0;
	}
}

/* Who has device memory. */

static void add_gpu(struct sample_process *p, const struct gpu_use *use)
{
	if (p->nr_gpus < SAMPLE_GPUS)
		p->gpus[p->nr_gpus++] = (struct sample_gpu){ use->gpu, use->bytes };
}

/*
 * With @only, no process is added. In a PID namespace of its own, NVML can report PIDs that this
 * /proc does not have.
 */
static void find_gpu_users(struct sample *sample, bool only, double end)
{
	struct sample_process *p;
	unsigned int i, nr, full;

	gpus_look(&sample->gpus, end);
	for (i = 0; i < sample->gpus.nr_uses; i++) {
		const struct gpu_use *use = &sample->gpus.uses[i];

		nr = sample->nr;
		full = sample->left_out;
		p = only ? find_pid(sample, use->pid) : add_pid(sample, use->pid);
		if (p)
			add_gpu(p, use);
		else if (!only && sample->left_out == full)
			sample->elsewhere++;
		/* Nothing else has found it. */
		if (p && sample->nr > nr)
			p->other = true;
	}
}

/* One process. */

static void look_at_rss(struct sample_process *p)
{
	char *path = xasprintf("/proc/%d/statm", p->pid), *line = read_line(NULL, path);
	unsigned long long pages;

	if (line && sscanf(line, "%*u %llu", &pages) == 1) {
		p->residency = SOURCE_RSS;
		p->nr_locations = 1;
		p->locations[0] = (struct sample_location){
			.location = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
			.bytes = pages * sysconf(_SC_PAGESIZE),
		};
	} else {
		p->why = "not permitted";
	}
	free(line);
	free(path);
}

static int add_run(const struct hetmem_run *run, void *arg)
{
	totals_add(arg, run);
	return 0;
}

/* Locations that mean no memory are left out. */
static bool is_memory(uint32_t location)
{
	const uint32_t kind = HETMEM_LOC_KIND(location);

	return location != LOC_ABSENT && kind != HETMEM_UNMAPPED && kind != HETMEM_UNKNOWN &&
	       kind != HETMEM_ZERO;
}

static void look_at_memory(struct sample_process *p, const struct budget *budget)
{
	struct totals totals = { 0 };
	struct source source;
	struct vmas vmas;
	size_t i, n;
	int err;

	err = vmas_read_until(&vmas, p->pid, budget->end);
	p->partial = err == -ETIME;
	if (!err || p->partial) {
		err = source_open(&source, p->pid);
		if (err)
			source_close(&source);
	}
	if (err) {
		p->why = err == -ENODATA ? "it has no memory" : "not permitted";
		vmas_free(&vmas);
		return;
	}
	totals.page_size = source.page_size;
	for (i = 0; i < vmas.nr && !err; i++) {
		const struct vma *vma = &vmas.vma[i];
		uint64_t at = vma->start;

		/* Reserved addresses have no pages, and can be terabytes. */
		if (!strncmp(vma->perms, "---", 3))
			continue;
		while (at < vma->end && !err) {
			const uint64_t end = vma->end - at > PIECE ? at + PIECE : vma->end;

			err = is_over(budget) ? -ETIME :
				source_walk(&source, vma, at, end, add_run, &totals);
			at = end;
		}
	}
	p->partial |= err == -ETIME;
	p->residency = source.context >= 0 ? SOURCE_MODULE : SOURCE_PAGEMAP;
	for (n = 0; n < totals.nr_locations && p->nr_locations < SAMPLE_LOCATIONS; n++) {
		if (!is_memory(totals.locations[n].key))
			continue;
		p->locations[p->nr_locations++] = (struct sample_location){
			.location = totals.locations[n].key,
			.bytes = totals.locations[n].pages * totals.page_size,
		};
	}
	source_close(&source);
	vmas_free(&vmas);
}

static void sum_thrash(const struct sample_range *range, void *arg)
{
	*(uint64_t *)arg += range->thrashed;
}

/* Each context of a process counts all of its moves since it was opened. */
static void look_at_counters(struct sample_process *p, const struct budget *budget)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);
	int fds[HM_PEER_CONTEXTS], nr = hm_peer_contexts(p->pid, fds, HM_PEER_CONTEXTS), i;

	for (i = 0; i < nr; i++) {
		struct hetmem_cmd_stats stats = {
			.size = sizeof(stats), .flags = HETMEM_STATS_CONTEXT,
		};

		if (!ioctl(fds[i], HETMEM_IOC_STATS, &stats)) {
			p->counted = true;
			if (stats.to_device * page > p->to_device)
				p->to_device = stats.to_device * page;
			if (stats.to_host * page > p->to_host)
				p->to_host = stats.to_host * page;
		}
		close(fds[i]);
	}
	if (p->counted && p->ranges)
		p->all_ranges = sample_ranges(p->pid, MAX_RANGES, 1, budget->end, sum_thrash,
					      &p->thrashed) >= (ssize_t)p->largest;
}

/**
 * struct look - at one process, in a thread of its own
 * @process: a copy, which replaces the original if the look ends in time
 * @next: in the list of abandoned looks
 */
struct look {
	struct sample_process process;
	struct budget budget;
	struct look *next;
};

/* Abandoned looks. Each process has at most one: there is no new look until it returns. */
static struct look *stuck;
static pthread_mutex_t stuck_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_stuck(const struct sample_process *p)
{
	const struct look *l;
	bool found = false;

	pthread_mutex_lock(&stuck_lock);
	for (l = stuck; l && !found; l = l->next)
		found = l->process.pid == p->pid && l->process.started == p->started;
	pthread_mutex_unlock(&stuck_lock);
	return found;
}

static void add_stuck(struct look *look)
{
	pthread_mutex_lock(&stuck_lock);
	look->next = stuck;
	stuck = look;
	pthread_mutex_unlock(&stuck_lock);
}

static void remove_stuck(const struct look *look)
{
	struct look **at;

	pthread_mutex_lock(&stuck_lock);
	for (at = &stuck; *at != look; at = &(*at)->next)
		;
	*at = look->next;
	pthread_mutex_unlock(&stuck_lock);
}

/* Called when an abandoned look returns. */
static void drop_look(void *arg)
{
	remove_stuck(arg);
	free(arg);
}

static void look_at(void *arg)
{
	struct look *look = arg;

	if (look->process.other) {
		look_at_rss(&look->process);
		return;
	}
	if (look->process.tracked)
		look_at_counters(&look->process, &look->budget);
	look_at_memory(&look->process, &look->budget);
}

/* Fills @p, and abandons the look at @end. The look itself tries to end with @share. */
static void look_within(struct sample_process *p, const struct budget *share, double end)
{
	struct look *look;
	struct bounded *call;

	if (is_stuck(p)) {
		p->why = "its memory is locked";
		return;
	}
	look = xcalloc(1, sizeof(*look));
	look->process = *p;
	look->budget = *share;
	call = bounded_begin(look_at, look);
	if (!call) {
		look_at(look);
	} else if (!bounded_wait(call, end)) {
		add_stuck(look);
		if (!bounded_end(call, drop_look)) {
			p->why = "its memory is locked";
			return;
		}
		/* The look returned after the wait. */
		remove_stuck(look);
	} else {
		bounded_end(call, NULL);
	}
	*p = look->process;
	free(look);
}

static void drop(struct sample *sample, unsigned int i)
{
	free(sample->processes[i].pools);
	sample->nr--;
	memmove(&sample->processes[i], &sample->processes[i + 1],
		(sample->nr - i) * sizeof(*sample->processes));
}

static int by_pid(const void *a, const void *b)
{
	const struct sample_process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* That it is the one it was when its pools were read: PIDs are used again. */
static bool is_same(struct sample_process *p)
{
	const uint64_t started = p->started;

	return identify(p) && p->started == started;
}

int sample_take(struct sample *sample, const pid_t *pids, size_t nr_pids, double budget_s)
{
	const double start = now();
	const struct budget find = { .end = start + budget_s / 2 };
	const struct budget all = { .end = start + budget_s };
	unsigned int i = 0;
	int err = 0;

	*sample = (struct sample){ .time = start };
	/* Not mounted, or that of a PID namespace without this process. */
	if (access("/proc/self", F_OK))
		return -errno;
	look_at_module(&sample->module);
	if (nr_pids)
		find_these(sample, pids, nr_pids, &find);
	else
		err = find_all(sample, &find);
	if (budget_s > 0)
		find_gpu_users(sample, nr_pids, now() + budget_s / 2);
	if (sample->nr)
		qsort(sample->processes, sample->nr, sizeof(*sample->processes), by_pid);
	while (i < sample->nr) {
		struct sample_process *p = &sample->processes[i];
		const struct budget share = share_of(&all, sample->nr - i);
		double end = share.end + PATIENCE;

		if (end > all.end + PATIENCE)
			end = all.end + PATIENCE;
		if (end < now() + LEAST)
			end = now() + LEAST;
		look_within(p, &share, end);
		if (is_same(p))
			i++;
		else
			drop(sample, i);
	}
	sample->took = now() - start;
	return err;
}

void sample_free(struct sample *sample)
{
	while (sample->nr)
		drop(sample, sample->nr - 1);
	free(sample->processes);
	sample->processes = NULL;
	gpus_free(&sample->gpus);
}

/* What a sample tells. */

const struct sample_process *sample_find(const struct sample *sample,
					 const struct sample_process *process)
{
	unsigned int i;

	for (i = 0; i < sample->nr; i++)
		if (sample->processes[i].pid == process->pid &&
		    sample->processes[i].started == process->started)
			return &sample->processes[i];
	return NULL;
}

const struct hm_published_pool *sample_find_pool(const struct sample_process *process,
						 const struct hm_published_pool *pool)
{
	unsigned int i;

	for (i = 0; process && i < process->nr_pools; i++)
		if (process->pools[i].number == pool->number)
			return &process->pools[i];
	return NULL;
}

unsigned int sample_users(const struct sample *sample)
{
	unsigned int i, users = 0;

	for (i = 0; i < sample->nr; i++)
		users += !sample->processes[i].other;
	return users;
}

uint64_t sample_on_gpus(const struct sample_process *p, bool *known)
{
	uint64_t bytes = 0;
	unsigned int i;

	*known = true;
	for (i = 0; i < p->nr_gpus; i++) {
		if (p->gpus[i].bytes == GPU_BYTES_UNKNOWN)
			*known = false;
		else
			bytes += p->gpus[i].bytes;
	}
	return bytes;
}

char *sample_gpus_text(const struct sample_process *p)
{
	char *text = xstrdup(p->nr_gpus ? "" : "-"), *more;
	unsigned int i;

	for (i = 0; i < p->nr_gpus; i++) {
		const uint64_t bytes = p->gpus[i].bytes;

		more = xasprintf("%s%s%u: %s", text, i ? ", " : "", p->gpus[i].gpu,
				 bytes == GPU_BYTES_UNKNOWN ? "not known" : size_text(bytes));
		free(text);
		text = more;
	}
	return text;
}

static bool is_on_device(uint32_t location)
{
	const uint32_t kind = HETMEM_LOC_KIND(location);

	return kind == HETMEM_DEVICE || kind == HETMEM_FOREIGN || kind == HETMEM_COHERENT;
}

uint64_t sample_on_device(const struct sample_process *p)
{
	uint64_t bytes = 0;
	unsigned int i;

	for (i = 0; i < p->nr_locations; i++)
		if (is_on_device(p->locations[i].location))
			bytes += p->locations[i].bytes;
	return bytes;
}

uint64_t sample_on_host(const struct sample_process *p)
{
	uint64_t bytes = 0;
	unsigned int i;

	for (i = 0; i < p->nr_locations; i++)
		if (HETMEM_LOC_KIND(p->locations[i].location) == HETMEM_HOST)
			bytes += p->locations[i].bytes;
	return bytes;
}

/* The module does not count what other drivers move. */
static bool has_foreign(const struct sample_process *p)
{
	unsigned int i;

	for (i = 0; i < p->nr_locations; i++)
		if (is_on_device(p->locations[i].location) &&
		    HETMEM_LOC_KIND(p->locations[i].location) != HETMEM_DEVICE)
			return true;
	return false;
}

double sample_rate(uint64_t before, uint64_t after, double seconds)
{
	const double rate = after > before && seconds > 0 ? (after - before) / seconds : 0;

	return rate < MAX_RATE ? rate : MAX_RATE;
}

struct sample_moves sample_moves(const struct sample_process *before,
				 const struct sample_process *after, double seconds)
{
	struct sample_moves moves = { .source = SOURCE_NONE };

	if (!before)
		return moves;
	if (before->counted && after->counted && !has_foreign(before) && !has_foreign(after)) {
		moves.source = SOURCE_MODULE;
		moves.to_device = sample_rate(before->to_device, after->to_device, seconds);
		moves.to_host = sample_rate(before->to_host, after->to_host, seconds);
	} else if (before->residency == SOURCE_MODULE && after->residency == SOURCE_MODULE &&
		   !before->partial && !after->partial) {
		const uint64_t was = sample_on_device(before), is = sample_on_device(after);

		moves.source = SOURCE_ESTIMATE;
		moves.to_device = sample_rate(was, is, seconds);
		moves.to_host = sample_rate(is, was, seconds);
	}
	return moves;
}

char *sample_locations_text(const struct sample_process *p)
{
	char *text = xstrdup(""), *more, name[64];
	unsigned int i;

	if (p->residency == SOURCE_NONE) {
		free(text);
		return xasprintf("not known: %s", p->why);
	}
	for (i = 0; i < p->nr_locations; i++) {
		more = xasprintf("%s%s%s %s", text, i ? ", " : "",
				 location_text(p->locations[i].location, name, sizeof(name)),
				 size_text(p->locations[i].bytes));
		free(text);
		text = more;
	}
	more = xasprintf("%s%s", p->partial ? "at least: " : "", *text ? text : "none");
	free(text);
	return more;
}

uint64_t sample_live(const struct hm_published_pool *pool)
{
	return pool->allocs > pool->frees ? pool->allocs - pool->frees : 0;
}

/* Tracked ranges. */

/*
 * Fills @stats of the first range after @at in any of the contexts. Returns the context's
 * descriptor, or a negative errno: -ENOENT there is none; -EPERM none of them answers.
 */
static int next_range(const int *fds, int nr, uint64_t at, struct hetmem_cmd_stats *stats)
{
	struct hetmem_cmd_stats next;
	int i, err, found = -EPERM;

	for (i = 0; i < nr; i++) {
		err = hm_kmod_next_range(fds[i], at, &next);
		if (!err && (found < 0 || next.start < stats->start)) {
			*stats = next;
			found = fds[i];
		} else if (err != -EPERM && found == -EPERM) {
			found = err;
		}
	}
	return found;
}

static struct sample_range range_of(const struct hetmem_cmd_stats *stats)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);

	return (struct sample_range){
		.start = stats->start, .end = stats->end,
		.on_device = stats->on_device * page,
		.to_device = stats->to_device * page,
		.to_host = stats->to_host * page,
		.thrashed = stats->thrashed, .dirty_blocks = stats->dirty_blocks,
	};
}

ssize_t sample_ranges(pid_t pid, size_t most, double pause, double end,
		      void (*each)(const struct sample_range *range, void *arg), void *arg)
{
	int fds[HM_PEER_CONTEXTS], nr = hm_peer_contexts(pid, fds, HM_PEER_CONTEXTS), fd, i;
	struct hetmem_cmd_stats stats;
	struct sample_range range;
	uint64_t at = 0;
	ssize_t found = 0;

	if (nr < 0)
		return nr;
	for (fd = 0; most && now() < end; most--) {
		fd = next_range(fds, nr, at, &stats);
		if (fd < 0)
			break;
		at = stats.end;
		hm_kmod_refresh(fd, &stats, pause * 1e9, end < NEVER ? end * 1e9 : UINT64_MAX);
		range = range_of(&stats);
		each(&range, arg);
		found++;
	}
	for (i = 0; i < nr; i++)
		close(fds[i]);
	return !found && fd == -EPERM ? fd : found;
}
