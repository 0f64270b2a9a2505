// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Memfds of other processes, see memfd.h. fdinfo tells on which mount a file is. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/memfd.h"

pid_t hm_inner_pid(pid_t pid)
{
	char path[64], line[256];
	pid_t found = pid;
	const char *last;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	status = fopen(path, "re");
	while (status && fgets(line, sizeof(line), status)) {
		last = strncmp(line, "NSpid:", 6) ? NULL : strrchr(line, '\t');
		if (last)
			found = strtol(last, NULL, 10);
	}
	if (status)
		fclose(status);
	return found;
}

/* Where an own descriptor leads; -1: not known. Linux reports inodes from 5.14 on. */
struct fdinfo {
	long long mount, inode;
};

static struct fdinfo read_fdinfo(int fd)
{
	struct fdinfo info = { -1, -1 };
	char path[64], line[256];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "mnt_id: %lld", &info.mount) != 1)
			sscanf(line, "ino: %lld", &info.inode);
	if (file)
		fclose(file);
	return info;
}

/* The mount of all memfds; -1: not known. */
static long long memfd_mount(void)
{
	const int fd = memfd_create("hetmem", MFD_CLOEXEC);
	long long mount;

	if (fd < 0)
		return -1;
	mount = read_fdinfo(fd).mount;
	close(fd);
	return mount;
}

bool hm_is_memfd(int path, long long *inode)
{
	const struct fdinfo info = read_fdinfo(path);
	static long long known;
	long long mount = __atomic_load_n(&known, __ATOMIC_RELAXED);

	/* Retry if there was no free descriptor. */
	if (mount <= 0) {
		mount = memfd_mount();
		__atomic_store_n(&known, mount, __ATOMIC_RELAXED);
	}
	*inode = info.inode;
	return mount >= 0 && info.mount == mount;
}

int hm_memfd_open(int path, size_t size, int seals, uid_t owner, int flags)
{
	char again[64];
	struct stat st;
	int fd, has;

	if (fstat(path, &st) || !S_ISREG(st.st_mode) || st.st_size != (off_t)size ||
	    st.st_uid != owner)
		return -1;
	snprintf(again, sizeof(again), "/proc/self/fd/%d", path);
	fd = open(again, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -1;
	has = fcntl(fd, F_GET_SEALS);
	if (has >= 0 && (has & seals) == seals)
		return fd;
	close(fd);
	return -1;
}
