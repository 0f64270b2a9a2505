// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * log(R,file=,full=): a line for every call, in RMM's columns
 *
 *	Thread,Time,Action,Pointer,Size,Stream
 *
 * Time is in microseconds since the log began, a stream is the driver's id of
 * it (0 is the legacy stream, 18446744073709551615 the host), since handles
 * are used again. With full=on also record_stream, retire, and the edges that
 * the program tells of: record, wait, sync, whose Pointer is the event.
 *
 * An allocation is written after it was made and a free before: in the
 * order of the lines no address is given out that is still in use.
 *
 * Lines gather in a buffer of our own and not in one of stdio's: a forked
 * child, which does not write, would flush that a second time when it ends.
 * Logs that are never destroyed are written when the library is unloaded.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adaptor/adaptor.h"
#include "core/snapshot.h"

#define BUFFER		(64 << 10)
#define LINE		160

/**
 * struct log - the adaptor
 * @device, @inode: of the file
 * @lock: its own lock protects what follows
 * @fd: -1 once it cannot be written
 * @error: why
 * @generation: of the process that writes
 */
struct log {
	struct hetmem_resource resource;
	bool full;
	unsigned int generation;
	uint64_t start;
	struct log *next;
	dev_t device;
	ino_t inode;
	struct hm_lock lock;
	int fd;
	int error;
	size_t used;
	char buffer[BUFFER];
};

/*
 * All logs, for the end of the process, and how many there ever were. A child
 * has the lock free and the list whole: it closes logs of its own.
 */
static struct hm_lock logs_lock;
static pthread_once_t logs_once = PTHREAD_ONCE_INIT;
static struct log *logs;
static unsigned int nr_logs;

static void make_logs_lock(void)
{
	hm_lock_init(&logs_lock, HM_FORK_LOGS);
}

static bool is_writer(const struct log *l)
{
	return l->generation == hm_generation();
}

/* With the lock. */
static void flush(struct log *l)
{
	size_t done = 0;
	ssize_t n;

	while (l->fd >= 0 && done < l->used) {
		n = write(l->fd, l->buffer + done, l->used - done);
		if (n > 0) {
			done += n;
		} else if (n < 0 && errno != EINTR) {
			l->error = errno;
			close(l->fd);
			l->fd = -1;
		}
	}
	l->used = 0;
}

__attribute__((destructor))
static void flush_all(void)
{
	struct log *l;

	pthread_once(&logs_once, make_logs_lock);
	hm_lock(&logs_lock);
	for (l = logs; l; l = l->next) {
		if (!is_writer(l))
			continue;
		hm_lock(&l->lock);
		flush(l);
		hm_unlock(&l->lock);
	}
	hm_unlock(&logs_lock);
}

static unsigned long thread_id(void)
{
	static __thread unsigned long id;

	if (!id)
		id = syscall(SYS_gettid);
	return id;
}

/* Of a captured stream the driver says no id, and the asking is illegal. */
static unsigned long long stream_id(const struct log *l, hetmem_stream stream)
{
	struct hm_thread_page *page;
	const struct hm_driver *d = &l->resource.hm->driver;
	const size_t slot = ((uintptr_t)stream >> 4) % 16;
	unsigned long long id;

	if (!stream || stream == HETMEM_STREAM_LEGACY)
		return 0;
	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN ||
	    !d->cuStreamGetId)
		return (uintptr_t)stream;
	page = hm_thread_page();
	if (hm_capture_ask(l->resource.hm, stream))
		return page && page->ids[slot].stream == stream ? page->ids[slot].id :
			(uintptr_t)stream;
	if (d->cuStreamGetId(stream, &id))
		return (uintptr_t)stream;
	if (page) {
		page->ids[slot].stream = stream;
		page->ids[slot].id = id;
	}
	return id;
}

static void line(struct log *l, const char *action, const void *ptr,
		 size_t size, hetmem_stream stream)
{
	unsigned long long id;

	if (!is_writer(l))
		return;
	id = stream_id(l, stream);
	hm_lock(&l->lock);
	if (BUFFER - l->used < LINE)
		flush(l);
	l->used += snprintf(l->buffer + l->used, LINE, "%lu,%llu,%s,0x%llx,%zu,%llu\n",
			    thread_id(),
			    (unsigned long long)(hm_now() / 1000 - l->start),
			    action, (unsigned long long)(uintptr_t)ptr, size,
			    id);
	hm_unlock(&l->lock);
}

static int log_alloc(struct hetmem_resource *self, size_t size, size_t align,
		     hetmem_stream stream, void **ptr)
{
	struct log *l = (struct log *)self;
	struct hetmem_resource *up = self->upstream;
	int err = up->ops->alloc(up, size, align, stream, ptr);

	if (err)
		line(l, "allocate failure", NULL, size, stream);
	else
		line(l, "allocate", *ptr, size, stream);
	return err;
}

static int log_free(struct hetmem_resource *self, void *ptr, size_t *size,
		    hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;

	line((struct log *)self, "free", ptr, *size, stream);
	return up->ops->free(up, ptr, size, stream);
}

static int log_edge(struct log *l, const struct hm_ctl_edge *edge)
{
	static const char *const names[] = { "record", "wait", "sync" };
	int err = hm_ctl_upstream(&l->resource, HM_CTL_EDGE, (void *)edge);

	if (!l->full)
		return err;
	line(l, names[edge->edge], edge->event, 0, edge->stream);
	return err == -EOPNOTSUPP ? 0 : err;
}

static int log_alloc_with(struct log *l, struct hm_ctl_alloc *arg)
{
	int err = hm_ctl_upstream(&l->resource, HM_CTL_ALLOC_WITH, arg);

	line(l, err ? "allocate failure" : "allocate", err ? NULL : arg->ptr,
	     arg->size, arg->stream);
	return err;
}

static int log_restore(struct log *l, struct hm_ctl_restore *arg)
{
	size_t from, to, i;
	int err = hm_restore_upstream(&l->resource, arg, &from, &to);

	for (i = from; !err && arg->step == HM_RESTORE_DO && i < to; i++) {
		const struct hetmem_restored *b = &arg->blocks[i];

		if (b->kind != HETMEM_RESTORED_KEPT)
			line(l, b->kind == HETMEM_RESTORED_FREED ? "free" :
			     "allocate", b->ptr, b->bytes, b->stream);
	}
	return err;
}

static int log_poll(struct log *l)
{
	int error, err = hm_ctl_upstream(&l->resource, HM_CTL_POLL, NULL);

	if (!is_writer(l) || (err && err != -EOPNOTSUPP))
		return err;
	hm_lock(&l->lock);
	error = l->error;
	l->error = 0;
	hm_unlock(&l->lock);
	if (error)
		return hm_error(-error, "log: cannot write: %s",
				strerror(error));
	return err;
}

static int log_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct log *l = (struct log *)self;
	struct hm_ctl_stream *use = arg;

	switch (op) {
	case HM_CTL_EDGE:
		return log_edge(l, arg);
	case HM_CTL_POLL:
		return log_poll(l);
	case HM_CTL_ALLOC_WITH:
		return log_alloc_with(l, arg);
	case HM_CTL_RESTORE:
		return log_restore(l, arg);
	case HM_CTL_RECORD:
		if (l->full)
			line(l, "record_stream", use->ptr, 0, use->stream);
		break;
	case HM_CTL_RETIRE:
		if (l->full)
			line(l, "retire", NULL, 0, use->stream);
		break;
	default:
		break;
	}
	return hm_ctl_upstream(self, op, arg);
}

static void log_destroy(struct hetmem_resource *self)
{
	struct log *l = (struct log *)self, **p;

	hm_lock(&logs_lock);
	for (p = &logs; *p; p = &(*p)->next) {
		if (*p == l) {
			*p = l->next;
			break;
		}
	}
	hm_unlock(&logs_lock);
	if (is_writer(l))
		flush(l);
	if (l->fd >= 0)
		close(l->fd);
	hm_lock_destroy(&l->lock);
	hm_resource_free(self);
}

static const struct hm_resource_ops log_ops = {
	.name = "log",
	.alloc = log_alloc,
	.free = log_free,
	.ctl = log_ctl,
	.destroy = log_destroy,
};

/* @file with its %p and %n, see adaptor.h. False: too long. */
static bool expand(const char *file, unsigned int nr, char *path, size_t len)
{
	size_t n = 0;

	for (; *file && n < len; file++) {
		if (file[0] == '%' && (file[1] == 'p' || file[1] == 'n')) {
			n += snprintf(path + n, len - n, "%d", file[1] == 'p' ?
				      (int)getpid() : (int)nr);
			file++;
		} else {
			path[n++] = *file;
		}
	}
	if (n >= len)
		return false;
	path[n] = '\0';
	return true;
}

/* The one of this process that writes the same file. With the lock of all. */
static bool is_written(const struct log *l)
{
	const struct log *other;

	for (other = logs; other; other = other->next)
		if (is_writer(other) && other->device == l->device &&
		    other->inode == l->inode)
			return true;
	return false;
}

/* With the lock of all. */
static int open_file(struct log *l, const char *file)
{
	char path[PATH_MAX];
	struct stat st;
	int err;

	if (!expand(file, nr_logs + 1, path, sizeof(path)))
		return hm_error(-ENAMETOOLONG, "log: %s: too long", file);
	l->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (l->fd < 0 || fstat(l->fd, &st))
		return hm_error(-errno, "log: %s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return 0;
	l->device = st.st_dev;
	l->inode = st.st_ino;
	err = is_written(l) ? EBUSY : ftruncate(l->fd, 0) ? errno : 0;
	if (err == EBUSY)
		return hm_error(-EBUSY, "log: %s: another log of this process writes it: put %%n into file= for its number",
				path);
	return err ? hm_error(-err, "log: %s: %s", path, strerror(err)) : 0;
}

int hm_log_create(struct hetmem_resource *upstream, const char *file,
		  bool full, struct hetmem_resource **res)
{
	struct log *l = hm_adaptor_new(sizeof(*l), &log_ops, upstream);
	int err;

	if (!l)
		return -ENOMEM;
	l->fd = -1;
	pthread_once(&logs_once, make_logs_lock);
	hm_lock_init(&l->lock, HM_FORK_ADAPTOR);
	l->full = full;
	l->generation = hm_generation();
	l->start = hm_now() / 1000;
	l->used = snprintf(l->buffer, LINE,
			   "Thread,Time,Action,Pointer,Size,Stream\n");
	hm_lock(&logs_lock);
	err = open_file(l, file);
	if (!err) {
		nr_logs++;
		l->next = logs;
		logs = l;
	}
	hm_unlock(&logs_lock);
	if (!err) {
		*res = &l->resource;
		return 0;
	}
	if (l->fd >= 0)
		close(l->fd);
	hm_lock_destroy(&l->lock);
	free(l);
	return err;
}
