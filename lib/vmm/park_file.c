// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Contents in a file: see park_file.h.
 *
 * Threads take pieces in order. The first error ends the work of all, and its text is the
 * caller's. A thread that cannot be made is not needed: the caller copies, too.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "driver/check.h"
#include "vmm/park.h"
#include "vmm/park_file.h"
#include "vmm/vmm_impl.h"

/* A copy between device and staging memory, and a read or write of the file. */
#define PIECE_BYTES	((uint64_t)4 << 20)
/* Pieces that are under way at a time. */
#define MAX_WORKERS	4
/* Direct access takes multiples of the block size of the device, which is less. */
#define FILE_UNIT	((uint64_t)64 << 10)

/* Linux 2.6.26 and later; <linux/magic.h> of some systems lacks the first. */
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC	0x958458f6
#endif
#ifndef RAMFS_MAGIC
#define RAMFS_MAGIC	0x858458f6
#endif

/**
 * struct hm_park_file - a file without a name
 * @fork: closes it in a forked child, where it would hold its room
 * @fd, @dev, @ino: a program may close the descriptor, and get its number again
 * @bytes: its size
 * @direct: around the page cache
 */
struct hm_park_file {
	struct hm_fork fork;
	int fd;
	dev_t dev;
	ino_t ino;
	uint64_t bytes;
	bool direct;
};

/**
 * struct job - copies of one direction
 * @next: begin of the next piece
 * @stop: a thread has failed; @err, @text: the first error, with @lock
 */
struct job {
	struct pool *p;
	const struct hm_contents *c;
	struct hm_park_file *f;
	bool save;
	uint64_t next;
	bool stop;
	pthread_mutex_t lock;
	int err;
	char text[256];
};

struct worker {
	struct job *job;
	void *staging;
	CUstream stream;
	pthread_t thread;
};

/* Files. */

static int errno_of(int error)
{
	switch (error) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ENAMETOOLONG:
		return -EINVAL;
	case EACCES:
	case EPERM:
		return -EACCES;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return -ENOSPC;
	case EROFS:
	case ENOMEM:
	case EMFILE:
	case ENFILE:
		return -error;
	default:
		return -EIO;
	}
}

/* @what: of a file in @dir. Reads errno. */
static int file_error(const char *what, const char *dir)
{
	const int error = errno;

	return hm_error(errno_of(error), "park=%s: %s: %s", dir, what, strerror(error));
}

/* A file with a name, for a moment. */
static int open_named(const char *dir)
{
	char *name;
	int fd, error;

	if (asprintf(&name, "%s/.hetmem-XXXXXX", dir) < 0) {
		errno = ENOMEM;
		return -1;
	}
	fd = mkostemp(name, O_CLOEXEC);
	error = errno;
	if (fd >= 0)
		unlink(name);
	free(name);
	errno = error;
	return fd;
}

/* A new file in @dir, for this user. Not one of the standard streams. errno. */
static int open_file(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600), high;

	/* Old kernels take O_TMPFILE for O_DIRECTORY. */
	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT ||
		       errno == EINVAL))
		fd = open_named(dir);
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return high;
}

static bool is_in_memory(int fd)
{
	struct statfs s;

	return !fstatfs(fd, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC ||
				    s.f_type == HUGETLBFS_MAGIC);
}

int hm_park_directory(const char *path, bool disk, char **real)
{
	int fd, err = 0;

	*real = realpath(path, NULL);
	if (!*real)
		return file_error("the directory", path);
	fd = open_file(*real);
	if (fd < 0)
		err = file_error("a file there", *real);
	else if (disk && is_in_memory(fd))
		err = hm_error(-EOPNOTSUPP, "park=%s: its files are in memory, which is the device's own: give a directory on a disk",
			       *real);
	if (fd >= 0)
		close(fd);
	if (err) {
		free(*real);
		*real = NULL;
	}
	return err;
}

static int no_room(const struct pool *p, uint64_t bytes, uint64_t most, const char *reason)
{
	return hm_error(-ENOSPC, "sleep: %llu bytes of contents do not fit into park=%s: at most %llu (%s)",
			(unsigned long long)bytes, p->opt.park_dir, (unsigned long long)most,
			reason);
}

/* Limits that come before the file system. A file that exceeds RLIMIT_FSIZE is a signal. */
static int check_limits(const struct pool *p, const struct hm_park_file *f)
{
	uint64_t most = UINT64_MAX;
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur < f->bytes)
		return no_room(p, f->bytes, limit.rlim_cur, "RLIMIT_FSIZE");
	if (is_in_memory(f->fd))
		most = hm_host_usable(p->res.hm);
	return f->bytes <= most ? 0 :
		no_room(p, f->bytes, most, "its files are in memory: what the host has left, less its reserve");
}

/* Takes the room for all contents, where the file system can promise it. */
static int take_room(const struct pool *p, const struct hm_park_file *f)
{
	struct statfs s;
	int err = check_limits(p, f), res;

	if (err)
		return err;
	do
		res = fallocate(f->fd, 0, 0, f->bytes);
	while (res && errno == EINTR);
	if (!res)
		return 0;
	err = errno_of(errno);
	if (err == -ENOSPC && !fstatfs(f->fd, &s))
		return no_room(p, f->bytes, (uint64_t)s.f_bavail * s.f_bsize,
			       "what the file system has left for this user");
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return file_error("room", p->opt.park_dir);
	if (!fstatfs(f->fd, &s) && (uint64_t)s.f_bavail * s.f_bsize < f->bytes)
		return no_room(p, f->bytes, (uint64_t)s.f_bavail * s.f_bsize,
			       "what the file system has left for this user");
	return ftruncate(f->fd, f->bytes) ? file_error("its size", p->opt.park_dir) : 0;
}

/* Whether the descriptor is still that of the file. */
static bool is_there(const struct hm_park_file *f)
{
	struct stat st;

	return f->fd >= 0 && !fstat(f->fd, &st) && st.st_dev == f->dev && st.st_ino == f->ino;
}

static void fork_hold(struct hm_fork *fork)
{
	(void)fork;
}

static void fork_let_go(struct hm_fork *fork, bool child)
{
	struct hm_park_file *f = hm_container(fork, struct hm_park_file, fork);

	if (!child)
		return;
	if (is_there(f))
		close(f->fd);
	f->fd = -1;
}

void hm_park_file_close(struct hm_park_file *f)
{
	if (!f)
		return;
	hm_fork_remove(&f->fork);
	if (is_there(f))
		close(f->fd);
	free(f);
}

static int make_file(const struct pool *p, uint64_t bytes, struct hm_park_file **out)
{
	struct hm_park_file *f = calloc(1, sizeof(*f));
	struct stat st;
	int err;

	if (!f)
		return hm_error(-ENOMEM, "sleep: no host memory");
	f->bytes = (bytes + FILE_UNIT - 1) & ~(FILE_UNIT - 1);
	f->fd = open_file(p->opt.park_dir);
	if (f->fd < 0 || fstat(f->fd, &st)) {
		err = file_error("a file there", p->opt.park_dir);
		if (f->fd >= 0)
			close(f->fd);
		free(f);
		return err;
	}
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	f->fork = (struct hm_fork){
		.level = HM_FORK_POOL, .hold = fork_hold, .let_go = fork_let_go,
	};
	hm_fork_add(&f->fork);
	err = take_room(p, f);
	if (err) {
		hm_park_file_close(f);
		return err;
	}
	f->direct = !fcntl(f->fd, F_SETFL, O_DIRECT);
	*out = f;
	return 0;
}

/* Pieces. A thread that fails tells the others. */

static void fail(struct job *job, int err)
{
	pthread_mutex_lock(&job->lock);
	if (!job->err) {
		job->err = err;
		snprintf(job->text, sizeof(job->text), "%s", hetmem_last_error());
	}
	pthread_mutex_unlock(&job->lock);
	__atomic_store_n(&job->stop, true, __ATOMIC_RELAXED);
}

/* Direct access was promised and is refused: goes on through the page cache. */
static bool give_up_direct(struct hm_park_file *f, int error)
{
	if (error != EINVAL || !__atomic_exchange_n(&f->direct, false, __ATOMIC_RELAXED))
		return false;
	return !fcntl(f->fd, F_SETFL, 0);
}

/* Reads or writes all of a piece. */
static int transfer_piece(const struct job *job, char *buf, uint64_t at, uint64_t bytes)
{
	const char *what = job->save ? "a write" : "a read";
	struct hm_park_file *f = job->f;
	uint64_t done = 0;
	ssize_t n;

	while (done < bytes) {
		n = job->save ? pwrite(f->fd, buf + done, bytes - done, at + done) :
			pread(f->fd, buf + done, bytes - done, at + done);
		if (n > 0)
			done += n;
		else if (!n)
			return hm_error(-EIO, "park=%s: %s: the file ends before the contents",
					job->p->opt.park_dir, what);
		else if (errno != EINTR && !give_up_direct(f, errno))
			return file_error(what, job->p->opt.park_dir);
	}
	return 0;
}

/* Gives the page cache of a piece back. */
static int drop_cache(const struct job *job, uint64_t at, uint64_t bytes)
{
	const struct hm_park_file *f = job->f;

	if (__atomic_load_n(&f->direct, __ATOMIC_RELAXED))
		return 0;
	if (job->save && sync_file_range(f->fd, at, bytes, SYNC_FILE_RANGE_WAIT_BEFORE |
					 SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) &&
	    errno != EINVAL && errno != ESPIPE && errno != ENOSYS)
		return file_error("a write", job->p->opt.park_dir);
	posix_fadvise(f->fd, at, bytes, POSIX_FADV_DONTNEED);
	return 0;
}

/* The span that has the byte @at of the contents. */
static const struct hm_span *span_at(const struct hm_contents *c, uint64_t at)
{
	size_t low = 0, high = c->nr, mid;

	while (high - low > 1) {
		mid = low + (high - low) / 2;
		if (c->spans[mid].at <= at)
			low = mid;
		else
			high = mid;
	}
	return &c->spans[low];
}

/* Copies the contents from @at on between device and staging memory. */
static int copy_piece(const struct worker *w, uint64_t at, uint64_t bytes)
{
	const struct hm_driver *d = &w->job->p->res.hm->driver;
	const struct hm_span *s = span_at(w->job->c, at);
	const uint64_t staging = (uintptr_t)w->staging;
	CUresult res = CUDA_SUCCESS, sync;
	uint64_t done, n, device, host;
	bool mapped;

	for (done = 0; done < bytes && !res; done += n) {
		if (at + done == s->at + s->bytes)
			s++;
		device = s->addr + (at + done - s->at);
		n = s->at + s->bytes - (at + done);
		if (n > bytes - done)
			n = bytes - done;
		n = hm_park_same_state(vmm_of(w->job->p), device, n, &mapped);
		host = staging + done;
		if (mapped)
			res = d->cuMemcpyAsync(w->job->save ? host : device,
					       w->job->save ? device : host, n, w->stream);
	}
	/* After an error, too: the copies use the staging memory. */
	sync = hm_park_finish(d, w->stream);
	if (res)
		return hm_driver_error(d, "cuMemcpyAsync", res);
	return sync ? hm_driver_error(d, "cuStreamSynchronize", sync) : 0;
}

static int do_piece(const struct worker *w, uint64_t at)
{
	const struct job *job = w->job;
	const uint64_t left = job->c->bytes - at;
	const uint64_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
	/* The file is as long. */
	const uint64_t in_file = (bytes + FILE_UNIT - 1) & ~(FILE_UNIT - 1);
	int err = 0;

	if (job->save)
		err = copy_piece(w, at, bytes);
	if (!err)
		err = transfer_piece(job, w->staging, at, in_file);
	if (!err)
		err = drop_cache(job, at, in_file);
	if (!err && !job->save)
		err = copy_piece(w, at, bytes);
	return err;
}

/* In the device's context. */
static void do_pieces(struct worker *w)
{
	const struct hm_driver *d = &w->job->p->res.hm->driver;
	struct job *job = w->job;
	CUresult res = d->cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING);
	uint64_t at;
	int err = 0;

	if (res) {
		fail(job, hm_driver_error(d, "cuStreamCreate", res));
		return;
	}
	hm_check_parks(job->p->res.hm, w->stream, true);
	while (!err && !__atomic_load_n(&job->stop, __ATOMIC_RELAXED)) {
		at = __atomic_fetch_add(&job->next, PIECE_BYTES, __ATOMIC_RELAXED);
		if (at >= job->c->bytes)
			break;
		err = do_piece(w, at);
		if (err)
			fail(job, err);
	}
	hm_check_parks(job->p->res.hm, w->stream, false);
	hm_retry_once(d->cuStreamDestroy(w->stream));
}

static void *run_worker(void *arg)
{
	struct worker *w = arg;
	struct hetmem *hm = w->job->p->res.hm;
	struct hm_context saved;
	int err = hm_provider_enter(w->job->p->provider, &saved);

	if (err) {
		fail(w->job, err);
		return NULL;
	}
	do_pieces(w);
	hm_context_leave(hm, &saved);
	return NULL;
}

/* Threads of the library take no signals of the program. */
static bool start_worker(struct worker *w)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	if (pthread_sigmask(SIG_SETMASK, &all, &before))
		return false;
	err = pthread_create(&w->thread, NULL, run_worker, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !err;
}

/* As many workers as there are pieces and memory for: one at least. */
static unsigned int workers_for(const struct job *job)
{
	const uint64_t usable = hm_host_usable(job->p->res.hm);
	uint64_t nr = (job->c->bytes + PIECE_BYTES - 1) / PIECE_BYTES;

	if (nr > MAX_WORKERS)
		nr = MAX_WORKERS;
	while (nr > 1 && nr * PIECE_BYTES > usable)
		nr--;
	return nr;
}

/* The first of @workers is the caller. */
static int run(struct job *job, struct worker *workers, unsigned int nr)
{
	unsigned int i, started = 1;

	pthread_mutex_init(&job->lock, NULL);
	while (started < nr && start_worker(&workers[started]))
		started++;
	run_worker(&workers[0]);
	for (i = 1; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	pthread_mutex_destroy(&job->lock);
	return job->err ? hm_error(job->err, "%s", job->text) : 0;
}

static int copy_all(struct job *job)
{
	struct hm_provider *staging = job->c->staging;
	struct worker workers[MAX_WORKERS] = { { .job = NULL } };
	const unsigned int most = workers_for(job);
	unsigned int nr;
	int err = 0;

	for (nr = 0; nr < most && !err; nr++) {
		workers[nr].job = job;
		err = hm_provider_alloc_region(staging, PIECE_BYTES, HETMEM_STREAM_HOST,
					       &workers[nr].staging);
		if (err)
			break;
	}
	/* Fewer take longer. */
	if (nr)
		err = run(job, workers, nr);
	while (nr--)
		hm_retry_once(hm_provider_free_region(staging, workers[nr].staging, PIECE_BYTES,
						      HETMEM_STREAM_HOST));
	return err;
}

int hm_park_file_save(struct pool *p, const struct hm_contents *c, struct hm_park_file **out)
{
	struct job job = { .p = p, .c = c, .save = true };
	int err = make_file(p, c->bytes, &job.f);

	if (err)
		return err;
	err = copy_all(&job);
	/* A write through the page cache can fail as late as this. */
	if (!err && !job.f->direct && fdatasync(job.f->fd) && errno != EINVAL)
		err = file_error("a write", p->opt.park_dir);
	if (err)
		hm_park_file_close(job.f);
	else
		*out = job.f;
	return err;
}

static int check_there(const struct pool *p, const struct hm_park_file *f, const char *what)
{
	return is_there(f) ? 0 :
		hm_error(-EIO, "%s: the file in %s was closed by the program, and the contents are lost with it",
			 what, p->opt.park_dir);
}

int hm_park_file_load(struct pool *p, const struct hm_contents *c, struct hm_park_file *f)
{
	struct job job = { .p = p, .c = c, .f = f };
	int err = check_there(p, f, "wake");

	return err ? err : copy_all(&job);
}

/* Direct access takes whole units of the file, and memory at such a boundary. */
int hm_park_file_read(struct pool *p, struct hm_park_file *f, uint64_t at, uint64_t bytes,
		      void *to)
{
	const struct job job = { .p = p, .f = f };
	const uint64_t room = bytes < PIECE_BYTES - FILE_UNIT ?
		(bytes + 2 * FILE_UNIT - 1) & ~(FILE_UNIT - 1) : PIECE_BYTES;
	const uint64_t end = at + bytes;
	uint64_t first, unit, n;
	int err = check_there(p, f, "parked_read");
	void *buf;

	if (err)
		return err;
	if (posix_memalign(&buf, FILE_UNIT, room))
		return hm_error(-ENOMEM, "parked_read: no host memory");
	for (; at < end && !err; at += n) {
		first = at & ~(FILE_UNIT - 1);
		n = end - at < room - (at - first) ? end - at : room - (at - first);
		unit = (at - first + n + FILE_UNIT - 1) & ~(FILE_UNIT - 1);
		err = transfer_piece(&job, buf, first, unit);
		if (!err)
			memcpy((char *)to + (bytes - (end - at)), (char *)buf + (at - first), n);
		if (!err)
			err = drop_cache(&job, first, unit);
	}
	free(buf);
	return err;
}
