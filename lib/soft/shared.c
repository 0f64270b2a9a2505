// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * HETMEM_SOFT_SHARED=FILE: the memory of devices is one for all processes that name the file, as
 * a GPU's is. Each process counts what it has in an entry of its own. The entry of a process that
 * ended, killed or not, counts no more.
 *
 * flock(2) on the file is held for a few instructions; the kernel releases a killed process's.
 * All is called under the driver's lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft/soft.h"

#define PROCESSES	64

struct soft_shared {
	struct {
		pid_t pid;
		uint64_t used[SOFT_MAX_DEVICES];
	} processes[PROCESSES];
};

static struct soft_shared *shared;
static int shared_fd = -1;
static unsigned int mine;

/* Does nothing for a device of one process. */
static void lock(int how)
{
	while (shared && flock(shared_fd, how) && errno == EINTR)
		;
}

static bool is_alive(pid_t pid)
{
	return pid && (!kill(pid, 0) || errno != ESRCH);
}

static bool take_entry(void)
{
	lock(LOCK_EX);
	for (mine = 0; mine < PROCESSES && is_alive(shared->processes[mine].pid); mine++)
		;
	if (mine < PROCESSES) {
		memset(&shared->processes[mine], 0, sizeof(shared->processes[mine]));
		shared->processes[mine].pid = getpid();
	}
	lock(LOCK_UN);
	return mine < PROCESSES;
}

int hm_soft_share(char *reason, size_t len)
{
	const char *path = getenv("HETMEM_SOFT_SHARED");

	if (!path || !*path)
		return 0;
	shared_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (shared_fd >= 0 && !ftruncate(shared_fd, sizeof(*shared)))
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
	if (shared && shared != MAP_FAILED && take_entry())
		return 0;
	snprintf(reason, len, "HETMEM_SOFT_SHARED=%s: name a file that can be written", path);
	hm_soft_unshare();
	return -EINVAL;
}

void hm_soft_unshare(void)
{
	if (shared && shared != MAP_FAILED) {
		if (mine < PROCESSES && shared->processes[mine].pid == getpid())
			shared->processes[mine].pid = 0;
		munmap(shared, sizeof(*shared));
	}
	if (shared_fd >= 0)
		close(shared_fd);
	shared = NULL;
	shared_fd = -1;
}

/* With the file's lock. */
static size_t left(const struct CUctx_st *device)
{
	size_t used = device->used;
	unsigned int i;

	for (i = 0; shared && i < PROCESSES; i++)
		if (i != mine && is_alive(shared->processes[i].pid))
			used += shared->processes[i].used[device->ordinal];
	return used < device->capacity ? device->capacity - used : 0;
}

/* What this process has of it. */
static void set_used(struct CUctx_st *device, size_t used)
{
	device->used = used;
	if (shared)
		__atomic_store_n(&shared->processes[mine].used[device->ordinal], used,
				 __ATOMIC_RELAXED);
}

size_t hm_soft_available(const struct CUctx_st *device)
{
	size_t bytes;

	lock(LOCK_EX);
	bytes = left(device);
	lock(LOCK_UN);
	return bytes;
}

CUresult hm_soft_charge(struct CUctx_st *device, size_t size)
{
	bool fits;

	lock(LOCK_EX);
	fits = size <= left(device);
	if (fits)
		set_used(device, device->used + size);
	lock(LOCK_UN);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void hm_soft_uncharge(struct CUctx_st *device, size_t size)
{
	set_used(device, device->used - size);
}
