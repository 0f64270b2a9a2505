// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pages of blocks: aligned, huge, on the nodes of the policy, tracked by the module.
 *
 * The module's file is opened when the first block is made. A context belongs to one address
 * space, so a forked child must not use its parent's: a page with MADV_WIPEONFORK shows the
 * child that it is one. It closes the inherited file and opens its own.
 *
 * The program may close descriptors that it does not know, and open others in their place.
 * So the file's number is high, and the device is compared before each call.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/hetmem.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/device_open.h"
#include "preload/preload.h"

#define DEVICE		"/dev/hetmem"
/* Shells use numbers up to 255, programs that count theirs low ones. */
#define HIGH_FD		700

enum { FD_UNTRIED = -2, FD_NONE = -1 };

size_t hm_page_size = 4096;
static atomic_int module_fd = FD_UNTRIED;
static atomic_ullong module_device;
static _Atomic(struct hm_here *) here_page;

void *hm_sys_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, addr, size, prot, flags, fd, offset);
}

int hm_sys_munmap(void *addr, size_t size)
{
	return syscall(SYS_munmap, addr, size);
}

void hm_pages_advise(void *start, size_t size)
{
	/* Without huge pages or NUMA in the kernel the memory is as good as any. */
	if (size >= HM_UNIT)
		syscall(SYS_madvise, start, size, MADV_HUGEPAGE);
	if (hm_settings.policy >= 0)
		syscall(SYS_mbind, start, size, hm_settings.policy,
			hm_settings.policy == MPOL_LOCAL ? NULL : hm_settings.nodes,
			(unsigned long)HM_RUN_NODES_MAX, 0);
}

/* Maps more than is asked for, and unmaps what stands out on both sides. */
static void *map_aligned(size_t size, size_t align, int prot)
{
	const size_t room = size + align - hm_page_size;
	uintptr_t start, at;
	void *p;

	if (room < size)
		return NULL;
	p = hm_sys_mmap(NULL, room, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	start = (uintptr_t)p;
	at = (start + align - 1) & ~(uintptr_t)(align - 1);
	if (at > start)
		hm_sys_munmap(p, at - start);
	if (start + room > at + size)
		hm_sys_munmap((void *)(at + size), start + room - at - size);
	return (void *)at;
}

void *hm_pages_map(size_t size, size_t align)
{
	void *p = map_aligned(size, align, PROT_READ | PROT_WRITE);

	if (p)
		hm_pages_advise(p, size);
	else
		errno = ENOMEM;
	return p;
}

bool hm_pages_resize(void *start, size_t old_size, size_t size)
{
	return (void *)syscall(SYS_mremap, start, old_size, size, 0) != MAP_FAILED;
}

void *hm_pages_reserve(size_t size)
{
	/* PROT_NONE does not count for RLIMIT_DATA and overcommit. mremap() replaces it. */
	return map_aligned(size, HM_UNIT, PROT_NONE);
}

bool hm_pages_move(void *old, size_t old_size, void *target, size_t size)
{
	return (void *)syscall(SYS_mremap, old, old_size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
			       target) != MAP_FAILED;
}

struct hm_here *hm_here(void)
{
	struct hm_here *page = atomic_load(&here_page), *other = NULL;

	if (page)
		return page;
	page = hm_sys_mmap(NULL, hm_page_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	if (syscall(SYS_madvise, page, hm_page_size, MADV_WIPEONFORK)) {
		hm_sys_munmap(page, hm_page_size);
		return NULL;
	}
	atomic_store(&page->module, 1);
	if (atomic_compare_exchange_strong(&here_page, &other, page))
		return page;
	hm_sys_munmap(page, hm_page_size);
	return other;
}

static bool is_module(int fd)
{
	struct stat st;

	return fd >= 0 && !fstat(fd, &st) && S_ISCHR(st.st_mode) &&
	       st.st_rdev == atomic_load(&module_device);
}

/* Lets the user's `hetmem list`, `top` and `record` look, as programs with pools do. */
static void allow_looks(int fd)
{
	const char *value = secure_getenv("HETMEM_PUBLISH");
	struct hetmem_cmd_allow cmd = { .size = sizeof(cmd), .allowed = HETMEM_SHAREABLE };

	if (!value || strcmp(value, "0"))
		ioctl(fd, HETMEM_IOC_ALLOW, &cmd);
}

static int open_module(void)
{
	int none = FD_UNTRIED, fd, high;
	struct stat st;

	fd = hm_device_open(DEVICE);
	if (fd >= 0) {
		high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
		if (high >= 0) {
			close(fd);
			fd = high;
		}
		if (!fstat(fd, &st) && S_ISCHR(st.st_mode)) {
			atomic_store(&module_device, st.st_rdev);
			allow_looks(fd);
		} else {
			close(fd);
			fd = FD_NONE;
		}
	}
	if (atomic_compare_exchange_strong(&module_fd, &none, fd < 0 ? FD_NONE : fd))
		return fd;
	if (fd >= 0)
		close(fd);
	return none;
}

/* Of a context of this address space; negative: there is none. */
static int find_module(void)
{
	int fd = atomic_load(&module_fd);
	struct hm_here *here;

	if (fd == FD_NONE)
		return fd;
	here = hm_here();
	if (!here)
		return FD_NONE;
	if (!atomic_load(&here->module)) {
		/* The parent's file. Another thread of ours can be here, too: close once. */
		if (atomic_compare_exchange_strong(&module_fd, &fd, FD_UNTRIED) && is_module(fd))
			close(fd);
		atomic_store(&here->module, 1);
		fd = atomic_load(&module_fd);
	}
	if (fd == FD_UNTRIED)
		return open_module();
	if (is_module(fd))
		return fd;
	/* The program has closed it: the context and its ranges are gone. */
	atomic_compare_exchange_strong(&module_fd, &fd, FD_NONE);
	return FD_NONE;
}

void hm_pages_track(void *start, size_t size)
{
	struct hetmem_cmd_track cmd = {
		.size = sizeof(cmd), .start = (uintptr_t)start, .end = (uintptr_t)start + size,
	};
	int fd = find_module();

	if (fd >= 0 && !ioctl(fd, HETMEM_IOC_TRACK, &cmd))
		hm_count(&hm_counters.tracked);
}

void hm_pages_untrack(void *start, size_t size)
{
	struct hetmem_cmd_untrack cmd = {
		.size = sizeof(cmd), .start = (uintptr_t)start, .end = (uintptr_t)start + size,
	};
	int fd = find_module();

	if (fd >= 0)
		ioctl(fd, HETMEM_IOC_UNTRACK, &cmd);
}
