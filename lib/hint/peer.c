// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Asking another process to move its memory, through a context of that
 * process: passed by it, or copied with pidfd_getfd(2) after a look through
 * /proc/PID/fd. A process may have several, each with its own say on who may
 * ask, so all of them are tried.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/hetmem.h"
#include "platform/kmod_hint.h"
#include "hint/peer.h"

#define DEVICE_PATH	"/dev/hetmem"

/* As it is on all architectures; older headers lack it. */
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_open	434
#define SYS_pidfd_getfd	438
#endif

/**
 * struct hetmem_peer - another process, as it can be asked
 * @fds: its contexts, ours to close
 */
struct hetmem_peer {
	unsigned int nr;
	int fds[HM_PEER_CONTEXTS];
};

/* An ioctl of ours to a file of another driver could do anything. */
static bool is_module_file(int fd)
{
	struct stat ours, theirs;

	return !stat(DEVICE_PATH, &ours) && S_ISCHR(ours.st_mode) &&
	       !fstat(fd, &theirs) && S_ISCHR(theirs.st_mode) &&
	       ours.st_rdev == theirs.st_rdev;
}

/*
 * A context belongs to the process that opened it; after a fork() that is
 * another one, whose memory it is.
 */
static bool is_its_own(pid_t pid, const char *fd)
{
	char path[64], line[256];
	bool its_own = false;
	int opener;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%s", pid, fd);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "hetmem-pid: %d", &opener) == 1)
			its_own = opener == pid;
	if (file)
		fclose(file);
	return its_own;
}

static bool names_module(DIR *dir, const char *fd)
{
	char target[sizeof(DEVICE_PATH) + 1];
	ssize_t len = readlinkat(dirfd(dir), fd, target, sizeof(target));

	return len == (ssize_t)strlen(DEVICE_PATH) &&
	       !memcmp(target, DEVICE_PATH, len);
}

int hm_peer_contexts(pid_t pid, int *fds, unsigned int nr)
{
	unsigned int n = 0;
	struct dirent *entry;
	int pidfd, err = 0;
	char path[32];
	DIR *dir;

	/* First, so that it is the same process all along. */
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		err = errno == EACCES ? -EPERM : -errno;
	while (dir && n < nr && (entry = readdir(dir))) {
		int fd;

		if (!names_module(dir, entry->d_name) ||
		    !is_its_own(pid, entry->d_name))
			continue;
		fd = syscall(SYS_pidfd_getfd, pidfd, atoi(entry->d_name), 0);
		if (fd < 0) {
			/* Closed since it was listed, or we are not allowed to. */
			if (errno != EBADF)
				err = -errno;
			continue;
		}
		if (is_module_file(fd))
			fds[n++] = fd;
		else
			close(fd);
	}
	if (dir)
		closedir(dir);
	close(pidfd);
	return n ? (int)n : err ? err : -ENXIO;
}

static struct hetmem_peer *new_peer(void)
{
	return calloc(1, sizeof(struct hetmem_peer));
}

int hetmem_peer_open(pid_t pid, struct hetmem_peer **out)
{
	struct hetmem_peer *peer;
	int nr;

	if (!out || pid <= 0)
		return hm_error(-EINVAL, "peer: %s", out ? "no pid" :
				"peer is NULL");
	if (access(DEVICE_PATH, F_OK))
		return hm_error(-EOPNOTSUPP, "there is no %s: load the module",
				DEVICE_PATH);
	peer = new_peer();
	if (!peer)
		return hm_error(-ENOMEM, "peer: no memory");
	nr = hm_peer_contexts(pid, peer->fds, HM_PEER_CONTEXTS);
	if (nr < 0) {
		free(peer);
		switch (nr) {
		case -ESRCH:
		case -EINVAL:	/* a thread, not a process */
		case -ENOENT:
			return hm_error(-ESRCH, "there is no process %d",
					pid);
		case -EPERM:
			return hm_error(-EPERM, "not permitted to take a file of process %d, which needs the rights of ptrace",
					pid);
		case -ENXIO:
			return hm_error(-ENXIO, "process %d has no %s open",
					pid, DEVICE_PATH);
		default:
			return hm_error(nr, "process %d: %s", pid,
					strerror(-nr));
		}
	}
	peer->nr = nr;
	*out = peer;
	return 0;
}

int hetmem_peer_adopt(int fd, struct hetmem_peer **out)
{
	struct hetmem_peer *peer;

	if (!out)
		return hm_error(-EINVAL, "peer: peer is NULL");
	if (!is_module_file(fd))
		return hm_error(-EINVAL, "peer: descriptor %d is no file of %s",
				fd, DEVICE_PATH);
	peer = new_peer();
	if (!peer)
		return hm_error(-ENOMEM, "peer: no memory");
	peer->fds[peer->nr++] = fd;
	*out = peer;
	return 0;
}

void hetmem_peer_close(struct hetmem_peer *peer)
{
	unsigned int i;

	if (!peer)
		return;
	for (i = 0; i < peer->nr; i++)
		close(peer->fds[i]);
	free(peer);
}

static int hint_error(int err)
{
	const char *text;

	switch (err) {
	case -EPERM:
		text = "it does not allow hints, and that needs CAP_SYS_NICE";
		break;
	case -ENXIO:
		text = "it carries out no hints for this location, or has ended";
		break;
	case -ENOTUNIQ:
		text = "the location is several devices: name one by its UUID";
		break;
	case -EAGAIN:
		text = "too many hints are waiting there";
		break;
	case -EDQUOT:
		text = "the administrator's limit for that device leaves no room (foreign/GPU-UUID in sysfs)";
		break;
	case -ETIMEDOUT:
		text = "no answer in time";
		break;
	case -EOWNERDEAD:
		text = "it ended, or carries out no hints any more";
		break;
	default:
		text = strerror(-err);
	}
	return hm_error(err, "hint: %s", text);
}

int hetmem_hint(struct hetmem_peer *peer, uint64_t start, uint64_t size,
		uint32_t location, const unsigned char *uuid,
		unsigned int timeout_ms, struct hetmem_hinted *hinted)
{
	const uint64_t mask = sysconf(_SC_PAGESIZE) - 1;
	struct hm_answer answer = { 0 };
	uint64_t last;
	unsigned int i;
	int err = -EPERM;

	if (!peer)
		return hm_error(-EINVAL, "hint: peer is NULL");
	if (hinted && hinted->size < sizeof(*hinted))
		return hm_error(-EINVAL, "hint: hinted->size is %zu, set it to sizeof(struct hetmem_hinted)",
				hinted->size);
	if (!size || __builtin_add_overflow(start, size - 1, &last) ||
	    (last | mask) == UINT64_MAX)
		return hm_error(-EINVAL, "hint: [%#llx, +%llu) is no range",
				(long long)start, (unsigned long long)size);
	/* Any context will do, if only it lets us. */
	for (i = 0; i < peer->nr && err == -EPERM; i++)
		err = hm_kmod_hint(peer->fds[i], start & ~mask,
				   (last | mask) + 1, location, uuid,
				   timeout_ms, &answer);
	if (hinted) {
		hinted->answered = !err;
		hinted->moved = err ? 0 : answer.moved;
	}
	if (err)
		return hint_error(err);
	if (answer.result)
		return hm_error(answer.result, "hint: the process answers: %s",
				strerror(-answer.result));
	return 0;
}

ssize_t hetmem_list(struct hetmem *hm, struct hetmem_list_entry *entries,
		    size_t nr)
{
	int64_t n;
	int err;

	if (!hm || (nr && !entries))
		return hm_error(-EINVAL, "list: %s is NULL",
				hm ? "entries" : "hm");
	err = hm_check_owner(hm);
	if (err)
		return err;
	if (!hm_kmod_there(&hm->kmod))
		return hm_error(-EOPNOTSUPP, "list: %s",
				hm->reasons[HETMEM_FEATURE_MODULE]);
	n = hm_kmod_list(hm->kmod.fd, entries, nr);
	return n < 0 ? hm_error(n, "LIST: %s", strerror(-n)) : n;
}
