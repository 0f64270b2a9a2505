// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Asking other processes of this user: for free memory of their pools (hetmem_reclaim()), or to
 * hold less (`hetmem set`). core/asked.h has the channel, pool/set.c answers.
 *
 * Both files of a process are found by their names in /proc/PID/fd, which the kernel opens to
 * the process's user only. What is read there is checked: sizes and seals, then who made it.
 *
 * A request for memory goes to the pools with the most free memory first. A pool that gives less,
 * or does not answer in half of the time, is made up for by the next ones. Waiting is a look each
 * millisecond, until the time is over. A pool gives whole handles: one that stayed below what it
 * was asked for is asked again, for twice as much each time.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/hetmem.h"
#include "hint/ask.h"
#include "platform/memfd.h"

/* Descriptors of a process, and processes, that are looked at. */
#define MAX_FDS		65536
#define MAX_TARGETS	1024
#define DEFAULT_MS	3000
#define MAX_MS		600000

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Opens the link @name of @dir if it is a memfd @memfd of @size bytes that @owner made; or -1. */
static int open_memfd(DIR *dir, const char *name, const char *memfd, size_t size, uid_t owner,
		      int flags)
{
	char target[64], want[64];
	long long inode;
	int fd, path;
	ssize_t len;

	snprintf(want, sizeof(want), "/memfd:%s (deleted)", memfd);
	len = readlinkat(dirfd(dir), name, target, sizeof(target));
	if (len != (ssize_t)strlen(want) || memcmp(target, want, len))
		return -1;
	path = openat(dirfd(dir), name, O_PATH | O_CLOEXEC);
	if (path < 0)
		return -1;
	fd = hm_is_memfd(path, &inode) ?
		hm_memfd_open(path, size, HM_PUBLISH_SEALS, owner, flags) : -1;
	close(path);
	return fd;
}

static bool read_figures(struct hm_target *t, int fd, pid_t inner)
{
	const bool good = pread(fd, &t->figures, sizeof(t->figures), 0) == sizeof(t->figures) &&
		t->figures.magic == HM_PUBLISH_MAGIC && t->figures.version == HM_PUBLISH_VERSION &&
		t->figures.pid == (uint32_t)inner;

	close(fd);
	return good;
}

static bool map_requests(struct hm_target *t, int fd, pid_t inner)
{
	struct hm_asked *asked = mmap(NULL, sizeof(*asked), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (asked != MAP_FAILED && asked->magic == HM_ASKED_MAGIC &&
	    asked->version == HM_ASKED_VERSION && asked->pid == (uint32_t)inner) {
		t->asked = asked;
		t->fd = fd;
		return true;
	}
	if (asked != MAP_FAILED)
		munmap(asked, sizeof(*asked));
	close(fd);
	return false;
}

static int find_files(struct hm_target *t, DIR *dir, uid_t owner)
{
	const pid_t inner = hm_inner_pid(t->pid);
	unsigned int looks = 0;
	struct dirent *entry;
	bool found = false;
	int fd;

	while ((!found || !t->asked) && looks++ < MAX_FDS && (entry = readdir(dir))) {
		fd = found ? -1 : open_memfd(dir, entry->d_name, HM_PUBLISH_NAME,
					     sizeof(t->figures), owner, O_RDONLY);
		if (fd >= 0)
			found = read_figures(t, fd, inner);
		fd = t->asked ? -1 : open_memfd(dir, entry->d_name, HM_ASKED_NAME,
						sizeof(*t->asked), owner, O_RDWR);
		if (fd >= 0)
			map_requests(t, fd, inner);
	}
	return found && t->asked ? 0 : -ENXIO;
}

static int lock(struct hm_target *t, uint64_t deadline)
{
	while (flock(t->fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (hm_now() >= deadline)
			return -EBUSY;
		nap();
	}
	return 0;
}

int hm_target_open(pid_t pid, uint64_t deadline, struct hm_target *t)
{
	char path[64];
	struct stat st;
	DIR *dir;
	int err;

	*t = (struct hm_target){ .pid = pid, .fd = -1 };
	snprintf(path, sizeof(path), "/proc/%d", pid);
	if (stat(path, &st))
		return -ESRCH;
	if (geteuid() && st.st_uid != geteuid())
		return -EPERM;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? -ESRCH : errno == EACCES ? -EPERM : -errno;
	err = find_files(t, dir, st.st_uid);
	closedir(dir);
	if (!err)
		err = lock(t, deadline);
	if (err)
		hm_target_close(t);
	return err;
}

/* Each entry is written by one process at a time: this one has the lock. */
static void withdraw(struct hm_asked_pool *p)
{
	if (__atomic_load_n(&p->answered, __ATOMIC_RELAXED) !=
	    __atomic_load_n(&p->request, __ATOMIC_RELAXED))
		__atomic_store_n(&p->op, HM_ASKED_NOTHING, __ATOMIC_RELAXED);
}

void hm_target_close(struct hm_target *t)
{
	unsigned int i;

	if (!t->asked)
		return;
	for (i = 0; i < HM_PUBLISH_POOLS; i++)
		withdraw(&t->asked->pools[i]);
	munmap(t->asked, sizeof(*t->asked));
	close(t->fd);
	t->asked = NULL;
}

uint32_t hm_target_ask(struct hm_target *t, unsigned int i, enum hm_asked_op op, uint64_t bytes)
{
	struct hm_asked_pool *p = &t->asked->pools[i];
	uint32_t request = __atomic_load_n(&p->request, __ATOMIC_RELAXED) + 1;

	p->number = t->figures.pools[i].number;
	__atomic_store_n(&p->op, op, __ATOMIC_RELAXED);
	p->bytes = bytes;
	/* It can be that of an answer to a process that was killed. */
	if (request == __atomic_load_n(&p->answered, __ATOMIC_RELAXED))
		request++;
	__atomic_store_n(&p->request, request, __ATOMIC_RELEASE);
	return request;
}

bool hm_target_answered(const struct hm_target *t, unsigned int i, uint32_t request,
			struct hm_asked_pool *answer)
{
	const struct hm_asked_pool *p = &t->asked->pools[i];

	if (__atomic_load_n(&p->answered, __ATOMIC_ACQUIRE) != request)
		return false;
	*answer = *p;
	answer->text[sizeof(answer->text) - 1] = '\0';
	return true;
}

bool hm_target_wait(const struct hm_target *t, unsigned int i, uint32_t request, uint64_t deadline,
		    struct hm_asked_pool *answer)
{
	while (!hm_target_answered(t, i, request, answer)) {
		if (hm_now() >= deadline)
			return false;
		nap();
	}
	return true;
}

/* hetmem_reclaim() */

/**
 * struct wish - a pool that can be asked
 * @target, @pool: indices
 * @free: bytes that it may have; @bytes: that it was asked for; @since: when; @given: in all
 * @rounds: answers so far
 */
struct wish {
	size_t target;
	unsigned int pool;
	uint64_t free, bytes, since, given;
	uint32_t request;
	unsigned int rounds;
	enum { WISH_FREE, WISH_ASKED, WISH_ANSWERED } state;
};

struct reclaim {
	const struct hetmem_reclaim *params;
	unsigned char uuid[16];
	uint64_t wanted, given, half, deadline;
	struct hm_target *targets;
	size_t nr_targets;
	struct wish *wishes;
	size_t nr_wishes;
};

static bool is_meant(const struct reclaim *r, const struct hm_published_pool *p)
{
	static const unsigned char none[16];
	const int device = r->params->device;

	if (device == HETMEM_RECLAIM_ALL)
		return true;
	if (device < 0 || p->device < 0)
		return device < 0 && p->device < 0;
	if (memcmp(p->uuid, none, sizeof(none)) && memcmp(r->uuid, none, sizeof(none)))
		return !memcmp(p->uuid, r->uuid, sizeof(none));
	return p->device == device;
}

static int add_wishes(struct reclaim *r, size_t target)
{
	const struct hm_published *page = &r->targets[target].figures;
	struct wish *more;
	unsigned int i;

	more = realloc(r->wishes, (r->nr_wishes + HM_PUBLISH_POOLS) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	r->wishes = more;
	for (i = 0; i < HM_PUBLISH_POOLS; i++) {
		const struct hm_published_pool *p = &page->pools[i];

		if (p->number && p->reserved > p->requested && is_meant(r, p))
			r->wishes[r->nr_wishes++] = (struct wish){
				.target = target, .pool = i, .free = p->reserved - p->requested,
			};
	}
	return 0;
}

static int add_target(struct reclaim *r, pid_t pid)
{
	struct hm_target *more;
	int err;

	more = realloc(r->targets, (r->nr_targets + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	r->targets = more;
	/* A process that others ask all the time is left out. */
	err = hm_target_open(pid, r->half, &r->targets[r->nr_targets]);
	if (err)
		return err == -ENOMEM ? err : 0;
	return add_wishes(r, r->nr_targets++);
}

static int find_targets(struct reclaim *r)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	char path[64];
	struct stat st;
	int err = 0;

	if (!proc)
		return -errno;
	while (!err && r->nr_targets < MAX_TARGETS && (entry = readdir(proc))) {
		const pid_t pid = atoi(entry->d_name);

		snprintf(path, sizeof(path), "/proc/%d", pid);
		if (isdigit((unsigned char)*entry->d_name) && pid != getpid() &&
		    !stat(path, &st) && st.st_uid == geteuid() && hm_now() < r->deadline)
			err = add_target(r, pid);
	}
	closedir(proc);
	return err;
}

static int by_free(const void *one, const void *other)
{
	const uint64_t a = ((const struct wish *)one)->free, b = ((const struct wish *)other)->free;

	return a < b ? 1 : a > b ? -1 : 0;
}

static void take_answer(struct reclaim *r, struct wish *w)
{
	struct hm_asked_pool answer;
	uint64_t done;

	if (!hm_target_answered(&r->targets[w->target], w->pool, w->request, &answer))
		return;
	/* No pool gives more than it was asked for. */
	done = answer.err ? 0 : answer.done < w->bytes ? answer.done : w->bytes;
	w->free = w->bytes == w->free && done < w->bytes ? 0 : w->free - done;
	w->given += done;
	w->rounds += w->rounds < 32;
	w->state = WISH_ANSWERED;
	r->given += done;
}

/* Bytes that may still come from the pools that were asked. *@waits: for any of them. */
static uint64_t take_answers(struct reclaim *r, bool *waits)
{
	const bool late = hm_now() >= r->half;
	uint64_t bytes = 0;
	size_t i;

	*waits = false;
	for (i = 0; i < r->nr_wishes; i++) {
		struct wish *w = &r->wishes[i];

		if (w->state == WISH_ASKED)
			take_answer(r, w);
		if (w->state != WISH_ASKED)
			continue;
		*waits = true;
		if (!late || w->since >= r->half)
			bytes += w->bytes;
	}
	return bytes;
}

/* Asks for @bytes. @again: pools that have answered. Returns whether any was asked. */
static bool ask_more(struct reclaim *r, uint64_t bytes, bool again)
{
	const bool all = bytes >= UINT64_MAX / 2;
	bool asked = false;
	size_t i;

	for (i = 0; i < r->nr_wishes && bytes; i++) {
		struct wish *w = &r->wishes[i];
		uint64_t want = bytes;

		if (!w->free || w->state != (again ? WISH_ANSWERED : WISH_FREE))
			continue;
		if (again && !all)
			want = bytes <= w->free >> w->rounds ? bytes << w->rounds : w->free;
		w->bytes = want < w->free ? want : w->free;
		w->since = hm_now();
		w->request = hm_target_ask(&r->targets[w->target], w->pool, HM_ASKED_RECLAIM, w->bytes);
		w->state = WISH_ASKED;
		bytes -= w->bytes < bytes ? w->bytes : bytes;
		asked = true;
	}
	return asked;
}

static void ask_all(struct reclaim *r)
{
	uint64_t coming;
	bool waits;

	if (r->nr_wishes)
		qsort(r->wishes, r->nr_wishes, sizeof(*r->wishes), by_free);
	for (;;) {
		coming = take_answers(r, &waits);
		coming += r->given;
		if (r->given >= r->wanted || hm_now() >= r->deadline)
			return;
		if (coming < r->wanted && !ask_more(r, r->wanted - coming, false) && !waits &&
		    !ask_more(r, r->wanted - coming, true))
			return;
		nap();
	}
}

/* Reports each process that was asked. */
static void report(const struct reclaim *r, struct hetmem_reclaimed *sum)
{
	size_t i, t;

	for (t = 0; t < r->nr_targets; t++) {
		struct hetmem_reclaimed one = { .size = sizeof(one), .pid = r->targets[t].pid };

		for (i = 0; i < r->nr_wishes; i++) {
			const struct wish *w = &r->wishes[i];

			if (w->target != t || w->state == WISH_FREE)
				continue;
			one.asked = 1;
			one.silent |= w->state == WISH_ASKED;
			one.bytes += w->given;
		}
		if (one.asked && r->params->each)
			r->params->each(r->params->arg, &one);
		sum->asked += one.asked;
		sum->silent += one.silent;
		sum->bytes += one.bytes;
	}
}

static int check_reclaim(const struct hetmem *hm, const struct hetmem_reclaim *params,
			 const struct hetmem_reclaimed *sum)
{
	if (!params || params->size < sizeof(*params))
		return hm_error(-EINVAL, "reclaim: params->size is %zu, set it to sizeof(struct hetmem_reclaim)",
				params ? params->size : 0);
	if (sum && sum->size < sizeof(*sum))
		return hm_error(-EINVAL, "reclaim: reclaimed->size is %zu, set it to sizeof(struct hetmem_reclaimed)",
				sum->size);
	if (params->device < HETMEM_RECLAIM_ALL)
		return hm_error(-EINVAL, "reclaim: no device %d", params->device);
	if (params->device >= 0 && !hm)
		return hm_error(-EINVAL, "reclaim: hm is NULL: a device is looked up there");
	if (params->device >= 0 && params->device >= hm->nr_devices)
		return hm_no_device(hm, "reclaim", params->device);
	if (params->timeout_ms > MAX_MS)
		return hm_error(-EINVAL, "reclaim: timeout_ms is %u, %u at most", params->timeout_ms, MAX_MS);
	return 0;
}

int hetmem_reclaim(struct hetmem *hm, const struct hetmem_reclaim *params,
		   struct hetmem_reclaimed *reclaimed)
{
	struct hetmem_reclaimed sum = { .size = sizeof(sum) };
	int err = check_reclaim(hm, params, reclaimed);
	struct reclaim r = { .params = params };
	uint64_t ns;
	CUuuid uuid;

	if (!err && params->device >= 0)
		err = hm_check_owner(hm);
	if (err)
		return err;
	if (params->device >= 0 && hm->driver.cuDeviceGetUuid &&
	    !hm->driver.cuDeviceGetUuid(&uuid, hm->devices[params->device].handle))
		memcpy(r.uuid, &uuid, sizeof(r.uuid));
	ns = (params->timeout_ms ? params->timeout_ms : DEFAULT_MS) * 1000000ULL;
	r.half = hm_now() + ns / 2;
	r.deadline = r.half + ns / 2;
	r.wanted = params->bytes ? params->bytes : UINT64_MAX;
	err = find_targets(&r);
	if (!err) {
		ask_all(&r);
		report(&r, &sum);
		if (reclaimed)
			*reclaimed = sum;
	}
	while (r.nr_targets)
		hm_target_close(&r.targets[--r.nr_targets]);
	free(r.targets);
	free(r.wishes);
	return err ? hm_error(err, "reclaim: %s", err == -ENOMEM ? "no memory" : "/proc cannot be read") : 0;
}
