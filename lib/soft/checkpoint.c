// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A process that another one puts to sleep: cuCheckpointProcessLock() and the like.
 *
 * With HETMEM_SOFT_SLEEP=1 a process listens on an abstract socket that is named after its
 * PID. The thread that listens answers one request after the other. Requests of other users
 * are refused, except root's. The asking process compares the PID of the socket's owner.
 *
 * A locked process stops in hm_soft_lock(). Its streams have finished what they were given. A
 * checkpoint copies the memory of all devices and gives the pages back. Managed memory and
 * handles that were exported or imported refuse it, as with NVIDIA's drivers before 610.
 *
 * The listening thread takes the world's lock itself. It never takes fork's.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "soft/soft.h"

#define VARIABLE	"HETMEM_SOFT_SLEEP"
#define SECOND		1000000000ULL
/* A process that does not send its request is not waited for longer. */
#define PATIENCE_S	5

enum op { OP_STATE, OP_LOCK, OP_CHECKPOINT, OP_RESTORE, OP_UNLOCK };

struct request {
	enum op op;
	unsigned int timeout_ms;
};

struct reply {
	CUresult res;
	CUprocessState state;
};

/* What was at @addr, or in @handle if that is not NULL. */
struct soft_saved {
	struct soft_saved *next;
	uintptr_t addr;
	struct soft_handle *handle;
	size_t size;
	char data[];
};

/* Contents. With the lock. */


static bool read_all(int fd, char *data, size_t size, uint64_t offset)
{
	ssize_t n;

	for (; size; data += n, size -= n, offset += n) {
		n = pread(fd, data, size, offset);
		if (n <= 0)
			return false;
	}
	return true;
}

static bool write_all(int fd, const char *data, size_t size, uint64_t offset)
{
	ssize_t n;

	for (; size; data += n, size -= n, offset += n) {
		n = pwrite(fd, data, size, offset);
		if (n <= 0)
			return false;
	}
	return true;
}

/* Adds room for a copy to the list. NULL: no memory. */
static struct soft_saved *add_saved(struct soft_world *w, size_t size)
{
	struct soft_saved *s = malloc(sizeof(*s) + size);

	if (!s)
		return NULL;
	*s = (struct soft_saved){ .next = w->sleep.saved, .size = size };
	w->sleep.saved = s;
	return s;
}

static void free_saved(struct soft_world *w)
{
	struct soft_saved *s;

	while ((s = w->sleep.saved)) {
		w->sleep.saved = s->next;
		free(s);
	}
}

struct look {
	struct soft_world *w;
	bool stuck;
	bool failed;
};

static void check_memory(struct hm_range *range, void *arg)
{
	const struct soft_memory *m = (void *)range;
	struct look *l = arg;

	if (m->kind == SOFT_MANAGED)
		l->stuck = true;
}

static void check_handle(struct hm_range *range, void *arg)
{
	const struct soft_handle *h = (void *)range;
	struct look *l = arg;

	if (h->shared)
		l->stuck = true;
}

static void save_memory(struct hm_range *range, void *arg)
{
	const struct soft_memory *m = (void *)range;
	const size_t size = range->end - range->start;
	struct look *l = arg;
	struct soft_saved *s;

	if (m->kind != SOFT_DEVICE || l->failed)
		return;
	s = add_saved(l->w, size);
	l->failed = !s;
	if (!s)
		return;
	s->addr = range->start;
	memcpy(s->data, (const void *)range->start, size);
}

static void save_handle(struct hm_range *range, void *arg)
{
	struct soft_handle *h = (void *)range;
	struct look *l = arg;
	struct soft_saved *s;

	if (hm_soft_handle_host(h) || l->failed)
		return;
	s = add_saved(l->w, h->size);
	if (s)
		s->handle = h;
	l->failed = !s || !read_all(hm_soft_handle_fd(h), s->data, h->size, h->offset);
}

/* The pages go back to the system: what is read there now is zero. */
static void give_back(const struct soft_saved *s)
{
	if (s->handle)
		fallocate(hm_soft_handle_fd(s->handle), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  s->handle->offset, s->size);
	/* Memory of a graph is no part of a file. */
	else if (madvise((void *)s->addr, s->size, MADV_REMOVE))
		madvise((void *)s->addr, s->size, MADV_DONTNEED);
}

static CUresult checkpoint(struct soft_world *w)
{
	struct look l = { .w = w };
	const struct soft_saved *s;

	hm_range_walk(&w->memory, check_memory, &l);
	hm_range_walk(&w->handles, check_handle, &l);
	if (l.stuck)
		return CUDA_ERROR_NOT_SUPPORTED;
	hm_range_walk(&w->memory, save_memory, &l);
	hm_range_walk(&w->handles, save_handle, &l);
	if (l.failed) {
		free_saved(w);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (s = w->sleep.saved; s; s = s->next)
		give_back(s);
	w->sleep.state = CU_PROCESS_STATE_CHECKPOINTED;
	return CUDA_SUCCESS;
}

static CUresult restore(struct soft_world *w)
{
	const struct soft_saved *s;

	for (s = w->sleep.saved; s; s = s->next) {
		if (!s->handle)
			memcpy((void *)s->addr, s->data, s->size);
		else if (!write_all(hm_soft_handle_fd(s->handle), s->data, s->size,
				    s->handle->offset))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	free_saved(w);
	w->sleep.state = CU_PROCESS_STATE_LOCKED;
	return CUDA_SUCCESS;
}

/* States. With the lock. */

static bool is_busy(const struct soft_world *w)
{
	const struct CUstream_st *s;

	for (s = w->streams; s; s = s->next)
		if (s->first || (s->tail && !s->tail->done))
			return true;
	return false;
}

/* @ms: 0: without end. False: the time is over, or the driver ends. */
static bool wait_until_idle(struct soft_world *w, unsigned int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000L;
	if (until.tv_nsec >= (long)SECOND) {
		until.tv_sec++;
		until.tv_nsec -= SECOND;
	}
	while (is_busy(w)) {
		if (w->sleep.stop)
			return false;
		if (!ms)
			pthread_cond_wait(&w->changed, &w->lock);
		else if (pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT)
			return !is_busy(w);
	}
	return true;
}

static CUresult lock_process(struct soft_world *w, unsigned int ms)
{
	/* From here on no thread of the program gives a stream more work. */
	w->sleep.state = CU_PROCESS_STATE_LOCKED;
	if (wait_until_idle(w, ms))
		return CUDA_SUCCESS;
	w->sleep.state = CU_PROCESS_STATE_RUNNING;
	return CUDA_ERROR_NOT_READY;
}

static CUresult carry_out(struct soft_world *w, const struct request *r)
{
	static const CUprocessState needed[] = {
		[OP_LOCK] = CU_PROCESS_STATE_RUNNING,
		[OP_CHECKPOINT] = CU_PROCESS_STATE_LOCKED,
		[OP_RESTORE] = CU_PROCESS_STATE_CHECKPOINTED,
		[OP_UNLOCK] = CU_PROCESS_STATE_LOCKED,
	};

	if (r->op > OP_UNLOCK)
		return CUDA_ERROR_INVALID_VALUE;
	if (r->op == OP_STATE)
		return CUDA_SUCCESS;
	if (w->sleep.state != needed[r->op])
		return CUDA_ERROR_ILLEGAL_STATE;
	switch (r->op) {
	case OP_LOCK:
		return lock_process(w, r->timeout_ms);
	case OP_CHECKPOINT:
		return checkpoint(w);
	case OP_RESTORE:
		return restore(w);
	default:
		w->sleep.state = CU_PROCESS_STATE_RUNNING;
		return CUDA_SUCCESS;
	}
}

/* The side that is asked. */

static bool may_ask(int fd)
{
	struct ucred who;
	socklen_t len = sizeof(who);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) &&
		(!who.uid || who.uid == geteuid());
}

static void answer(struct soft_world *w, int fd)
{
	const struct timeval patience = { .tv_sec = PATIENCE_S };
	struct reply reply = { .res = CUDA_ERROR_NOT_PERMITTED };
	struct request request;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (recv(fd, &request, sizeof(request), 0) != sizeof(request))
		return;
	if (may_ask(fd)) {
		pthread_mutex_lock(&w->lock);
		reply.res = carry_out(w, &request);
		reply.state = w->sleep.state;
		pthread_cond_broadcast(&w->changed);
		pthread_mutex_unlock(&w->lock);
	}
	send(fd, &reply, sizeof(reply), MSG_NOSIGNAL);
}

static void *listening(void *arg)
{
	struct soft_world *w = arg;
	int fd;

	hm_soft_is_worker = true;
	/* soft_close() shuts the socket down. */
	while ((fd = accept4(w->sleep.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == EINTR ||
	       errno == ECONNABORTED || errno == EMFILE) {
		if (fd < 0)
			continue;
		answer(w, fd);
		close(fd);
	}
	return NULL;
}

static socklen_t name_of(struct sockaddr_un *name, int pid)
{
	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	return offsetof(struct sockaddr_un, sun_path) + 1 +
		snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "hetmem-soft-%d", pid);
}

int hm_soft_begin_sleep(struct soft_world *w, char *reason, size_t len)
{
	const char *text = getenv(VARIABLE);
	struct sockaddr_un name;
	const socklen_t size = name_of(&name, getpid());
	sigset_t all, old;
	int err;

	if (!text || !*text || !strcmp(text, "0"))
		return 0;
	w->sleep.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	err = w->sleep.fd < 0 || bind(w->sleep.fd, (struct sockaddr *)&name, size) ||
		listen(w->sleep.fd, 16) ? errno : 0;
	if (!err) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		err = pthread_create(&w->sleep.asked, NULL, listening, w);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	if (!err)
		return 0;
	snprintf(reason, len, VARIABLE ": no socket: %s", strerror(err));
	if (w->sleep.fd >= 0)
		close(w->sleep.fd);
	w->sleep.fd = -1;
	return -EINVAL;
}

void hm_soft_end_sleep(struct soft_world *w)
{
	pthread_mutex_lock(&w->lock);
	w->sleep.stop = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	if (w->sleep.fd >= 0) {
		shutdown(w->sleep.fd, SHUT_RDWR);
		pthread_join(w->sleep.asked, NULL);
		close(w->sleep.fd);
	}
	free_saved(w);
}

/* The side that asks. */

/* A socket of the process @pid itself; -1: there is none. */
static int reach(int pid)
{
	struct sockaddr_un name;
	const socklen_t size = name_of(&name, pid);
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&name, size) ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || who.pid != pid) {
		close(fd);
		return -1;
	}
	return fd;
}

/* A process that cannot be reached is one without the driver, for NVIDIA's as well. */
static CUresult ask(int pid, enum op op, unsigned int timeout_ms, CUprocessState *state)
{
	const struct request request = { .op = op, .timeout_ms = timeout_ms };
	struct reply reply;
	const int fd = reach(pid);
	ssize_t n = -1;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request))
		n = recv(fd, &reply, sizeof(reply), MSG_WAITALL);
	close(fd);
	if (n != sizeof(reply))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (state && !reply.res)
		*state = reply.state;
	return reply.res;
}

static bool is_zero(const void *args, size_t size)
{
	const char *c = args;
	size_t i;

	for (i = 0; c && i < size; i++)
		if (c[i])
			return false;
	return true;
}

static CUresult process_state(int pid, CUprocessState *state)
{
	SOFT_ENTER(cuCheckpointProcessGetState);
	return state ? ask(pid, OP_STATE, 0, state) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult process_lock(int pid, CUcheckpointLockArgs *args)
{
	SOFT_ENTER(cuCheckpointProcessLock);
	if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof(args->reserved1))))
		return CUDA_ERROR_INVALID_VALUE;
	return ask(pid, OP_LOCK, args ? args->timeoutMs : 0, NULL);
}

static CUresult process_checkpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	SOFT_ENTER(cuCheckpointProcessCheckpoint);
	return is_zero(args, sizeof(*args)) ? ask(pid, OP_CHECKPOINT, 0, NULL) :
		CUDA_ERROR_INVALID_VALUE;
}

static CUresult process_restore(int pid, CUcheckpointRestoreArgs *args)
{
	SOFT_ENTER(cuCheckpointProcessRestore);
	return is_zero(args, sizeof(*args)) ? ask(pid, OP_RESTORE, 0, NULL) :
		CUDA_ERROR_INVALID_VALUE;
}

static CUresult process_unlock(int pid, CUcheckpointUnlockArgs *args)
{
	SOFT_ENTER(cuCheckpointProcessUnlock);
	return is_zero(args, sizeof(*args)) ? ask(pid, OP_UNLOCK, 0, NULL) :
		CUDA_ERROR_INVALID_VALUE;
}

void hm_soft_fill_checkpoint(struct hm_api *d)
{
	d->cuCheckpointProcessGetState = process_state;
	d->cuCheckpointProcessLock = process_lock;
	d->cuCheckpointProcessCheckpoint = process_checkpoint;
	d->cuCheckpointProcessRestore = process_restore;
	d->cuCheckpointProcessUnlock = process_unlock;
}
