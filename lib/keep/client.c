// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The client of a keeper: <hetmem/keep.h> has what it is for, protocol.h the messages.
 *
 * Locking: hetmem_keeper.lock is held for one request and its answer, 10 s at most. A
 * connection that timed out is never used again: an answer could come late.
 */
#include <errno.h>
#include <pthread.h>

#include "core/core.h"
#include "keep/protocol.h"

/* The time for each of a request and its answer. */
#define PATIENCE_S	5

struct hetmem_keeper {
	pthread_mutex_t lock;
	int fd;
	pid_t pid;
	bool broken;
};

static void close_all(const int *fds, uint32_t nr)
{
	while (nr)
		close(fds[--nr]);
}

/* Accepts keepers of root and of this user only. */
static int check_peer(int fd)
{
	struct ucred who;
	socklen_t len = sizeof(who);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len))
		return hm_error(-errno, "keeper_open: %s", strerror(errno));
	if (who.uid && who.uid != geteuid())
		return hm_error(-EPERM, "keeper_open: the keeper is user %u's: use one of root or of this user",
				who.uid);
	return 0;
}

static int reach(const char *path, int *out)
{
	const struct timeval patience = { .tv_sec = PATIENCE_S };
	struct sockaddr_un name;
	int fd, err;

	if (hm_keep_address(path, &name))
		return hm_error(-ENAMETOOLONG, "keeper_open: the path of a socket has at most %zu bytes",
				sizeof(name.sun_path) - 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return hm_error(-errno, "keeper_open: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	err = connect(fd, (const struct sockaddr *)&name, sizeof(name)) ?
		hm_error(-errno, "keeper_open: %s: %s: start one by 'hetmem keep'", name.sun_path,
			 strerror(errno)) : check_peer(fd);
	if (err)
		close(fd);
	else
		*out = fd;
	return err;
}

int hetmem_keeper_open(const char *path, struct hetmem_keeper **keeper)
{
	struct hetmem_keeper *k;
	int err;

	if (!keeper)
		return hm_error(-EINVAL, "keeper_open: keeper is NULL");
	k = calloc(1, sizeof(*k));
	if (!k)
		return hm_error(-ENOMEM, "keeper_open: no host memory");
	err = reach(path, &k->fd);
	if (err) {
		free(k);
		return err;
	}
	pthread_mutex_init(&k->lock, NULL);
	k->pid = getpid();
	*keeper = k;
	return 0;
}

void hetmem_keeper_close(struct hetmem_keeper *keeper)
{
	if (!keeper)
		return;
	close(keeper->fd);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}

static int broken(struct hetmem_keeper *k, const char *what, int err)
{
	k->broken = true;
	return err == -EAGAIN || err == -EWOULDBLOCK ?
		hm_error(-ETIMEDOUT, "%s: the keeper did not answer within %d s", what, PATIENCE_S) :
		hm_error(-EPIPE, "%s: the keeper has ended, or refused this connection", what);
}

/*
 * Sends @m with @nr_fds descriptors of @fds. Puts the answer into @m and its descriptors into
 * @fds. The caller holds the lock.
 */
static int exchange(struct hetmem_keeper *k, const char *what, struct hm_keep_message *m, int *fds,
		    uint32_t nr_fds)
{
	union hm_keep_control control;
	struct iovec data = { m, hm_keep_size(m->nr) };
	struct msghdr msg = { .msg_iov = &data, .msg_iovlen = 1 };
	uint32_t nr;
	ssize_t n;

	m->magic = HM_KEEP_MAGIC;
	m->version = HM_KEEP_VERSION;
	if (nr_fds)
		hm_descriptors_attach(&msg, &control, fds, nr_fds);
	do
		n = sendmsg(k->fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return broken(k, what, -errno);
	data.iov_len = sizeof(*m);
	msg.msg_control = &control;
	msg.msg_controllen = sizeof(control);
	do
		n = recvmsg(k->fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return broken(k, what, n ? -errno : -EPIPE);
	nr = hm_descriptors_detach(&msg, fds, HETMEM_KEEP_SEGMENTS);
	if (msg.msg_flags & MSG_CTRUNC) {
		/* The rest of them did not fit: this process has as many as it may have. */
		close_all(fds, nr);
		return hm_error(-EMFILE, "%s: no descriptors: raise 'ulimit -n'", what);
	}
	if ((size_t)n < HM_KEEP_HEADER || m->magic != HM_KEEP_MAGIC ||
	    m->nr > HETMEM_KEEP_SEGMENTS || (size_t)n != hm_keep_size(m->nr) ||
	    nr != (m->err ? 0 : m->nr)) {
		close_all(fds, nr);
		return broken(k, what, -EPIPE);
	}
	return m->err;
}

/* Takes the lock, calls exchange(), and sets the text of an error. */
static int ask(struct hetmem_keeper *k, const char *what, struct hm_keep_message *m, int *fds,
	       uint32_t nr_fds)
{
	char name[HETMEM_KEEP_NAME];
	int err;

	snprintf(name, sizeof(name), "%s", m->name);
	if (k->pid != getpid())
		return hm_error(-EOWNERDEAD, "%s: a forked child: open a connection of its own", what);
	pthread_mutex_lock(&k->lock);
	err = k->broken ? broken(k, what, -EPIPE) : exchange(k, what, m, fds, nr_fds);
	pthread_mutex_unlock(&k->lock);
	switch (err) {
	case -ENOENT:
		return hm_error(err, "%s: the keeper has no block \"%s\"", what, name);
	case -EEXIST:
		return hm_error(err, "%s: \"%s\" is taken: drop it first", what, name);
	case -EDQUOT:
		return hm_error(err, "%s: \"%s\" is beyond the keeper's bounds for this user", what, name);
	case -EACCES:
	case -EPERM:
		return hm_error(err, "%s: \"%s\" is another user's", what, name);
	case -EINVAL:
		return hm_error(err, "%s: the keeper refused \"%s\"", what, name);
	default:
		return err;
	}
}

static int begin(struct hm_keep_message *m, const char *what, struct hetmem_keeper *k,
		 enum hm_keep_op op, const char *name)
{
	if (!k || !name)
		return hm_error(-EINVAL, "%s: %s is NULL", what, k ? "name" : "keeper");
	if (!hm_keep_is_name(name))
		return hm_error(-EINVAL, "%s: a name has 1 to %d letters, digits, '.', '_', '-' or '/'", what,
				HETMEM_KEEP_NAME - 1);
	memset(m, 0, sizeof(*m));
	m->op = op;
	snprintf(m->name, sizeof(m->name), "%s", name);
	return 0;
}

int hetmem_keep(struct hetmem_keeper *keeper, struct hetmem_resource *res, void *ptr,
		const char *name, unsigned int mode)
{
	struct hetmem_segment segments[HETMEM_KEEP_SEGMENTS];
	int fds[HETMEM_KEEP_SEGMENTS], sent[HETMEM_KEEP_SEGMENTS];
	struct hm_keep_message m;
	int err = begin(&m, "keep", keeper, HM_KEEP_PUT, name);
	ssize_t nr, i;

	if (!err && !hm_keep_is_mode(mode))
		err = hm_error(-EINVAL, "keep: mode %#o is none of 0600, 0660, 0666", mode);
	if (err)
		return err;
	nr = hetmem_export(res, ptr, fds, segments, HETMEM_KEEP_SEGMENTS);
	if (nr < 0)
		return nr;
	for (i = 0; i < nr; i++) {
		m.lengths[i] = segments[i].length;
		m.bytes += segments[i].length;
	}
	m.nr = nr;
	m.mode = mode;
	memcpy(sent, fds, nr * sizeof(*fds));
	err = ask(keeper, "keep", &m, sent, nr);
	close_all(fds, nr);
	return err;
}

int hetmem_kept_import(struct hetmem_keeper *keeper, struct hetmem *hm, int device,
		       const char *name, void **ptr, size_t *bytes)
{
	struct hetmem_segment segments[HETMEM_KEEP_SEGMENTS] = { 0 };
	int fds[HETMEM_KEEP_SEGMENTS], err;
	struct hm_keep_message m;
	size_t at = 0;
	uint32_t i;

	if (!hm || !ptr || !bytes)
		return hm_error(-EINVAL, "kept_import: %s is NULL", !hm ? "hm" : !ptr ? "ptr" : "bytes");
	err = begin(&m, "kept_import", keeper, HM_KEEP_GET, name);
	if (!err)
		err = ask(keeper, "kept_import", &m, fds, 0);
	if (err)
		return err;
	for (i = 0; i < m.nr; i++) {
		segments[i].offset = at;
		segments[i].length = m.lengths[i];
		at += m.lengths[i];
	}
	err = hetmem_import(hm, device, fds, segments, m.nr, ptr);
	close_all(fds, m.nr);
	if (!err)
		*bytes = at;
	return err;
}

int hetmem_kept_drop(struct hetmem_keeper *keeper, const char *name)
{
	int fds[HETMEM_KEEP_SEGMENTS];
	struct hm_keep_message m;
	int err = begin(&m, "kept_drop", keeper, HM_KEEP_DROP, name);

	return err ? err : ask(keeper, "kept_drop", &m, fds, 0);
}

int hetmem_kept_next(struct hetmem_keeper *keeper, uint64_t after, struct hetmem_kept *kept)
{
	struct hm_keep_message m = { .op = HM_KEEP_NEXT, .generation = after };
	int fds[HETMEM_KEEP_SEGMENTS], err;

	if (!keeper || !kept)
		return hm_error(-EINVAL, "kept_next: %s is NULL", keeper ? "kept" : "keeper");
	if (kept->size < sizeof(*kept))
		return hm_error(-EINVAL, "kept_next: kept->size is %zu, set it to sizeof(struct hetmem_kept)",
				kept->size);
	err = ask(keeper, "kept_next", &m, fds, 0);
	if (err == -ENOENT)
		return hm_error(err, "kept_next: the keeper has no more blocks");
	if (err)
		return err;
	*kept = (struct hetmem_kept){
		.size = kept->size, .bytes = m.bytes, .generation = m.generation, .uid = m.uid,
		.mode = m.mode, .segments = m.segments, .users = m.users, .pid = m.pid,
	};
	snprintf(kept->name, sizeof(kept->name), "%s", m.name);
	return 0;
}
