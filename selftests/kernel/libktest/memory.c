// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/memory.h"

#include <sys/mount.h>
#include <sys/stat.h>

#include <linux/mempolicy.h>

#define NR_HUGEPAGES	"/proc/sys/vm/nr_hugepages"
#define THP_ENABLED	"/sys/kernel/mm/transparent_hugepage/enabled"

#ifndef SYS_memfd_secret
#define SYS_memfd_secret	447
#endif

int make_file(size_t size, uint64_t seed)
{
	char dir[] = "/tmp/hetmem-XXXXXX", path[sizeof(dir) + 2];
	char *buf;
	int fd = -1, ret = -ENOMEM;

	if (mkdir("/tmp", 01777) && errno != EEXIST)
		return -errno;
	if (!mkdtemp(dir))
		return -errno;
	if (mount("none", dir, "ramfs", 0, NULL)) {
		ret = -errno;
		rmdir(dir);
		return ret;
	}
	snprintf(path, sizeof(path), "%s/f", dir);
	buf = malloc(size);
	if (buf) {
		fill(buf, size, seed);
		fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
		ret = fd < 0 ? -errno : fd;
		if (fd >= 0 && write(fd, buf, size) != (ssize_t)size)
			ret = -EIO;
		free(buf);
	}
	if (ret < 0 && fd >= 0)
		close(fd);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	return ret;
}

bool thp_possible(void)
{
	char mode[64] = "";
	FILE *f = fopen(THP_ENABLED, "r");

	if (!f)
		return false;
	if (!fgets(mode, sizeof(mode), f))
		mode[0] = 0;
	fclose(f);
	return !strstr(mode, "[never]");
}

void *map_aligned(struct mem *m, size_t size)
{
	m->map_size = size + HUGE_SIZE;
	m->map = mmap(NULL, m->map_size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->map == MAP_FAILED)
		return MAP_FAILED;
	return (void *)(((uintptr_t)m->map + HUGE_SIZE - 1) &
			~(HUGE_SIZE - 1));
}

/* A number of smaps of the mapping that begins at or holds @p, or -1. */
static long smaps_kb(const void *p, const char *name)
{
	const size_t len = strlen(name);
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long start, end, kb;
	bool here = false;
	char line[512];
	long ret = -1;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)p && (uintptr_t)p < end;
		else if (here && !strncmp(line, name, len) &&
			 sscanf(line + len, ": %lu", &kb) == 1)
			ret = kb;
	}
	fclose(f);
	return ret;
}

long huge_mapped(const void *p)
{
	return smaps_kb(p, "AnonHugePages");
}

long resident(const void *p)
{
	return smaps_kb(p, "Rss");
}

void mem_unmap(struct mem *m)
{
	if (m->map && m->map != MAP_FAILED)
		munmap(m->map, m->map_size);
	if (m->fd >= 0)
		close(m->fd);
	if (m->old_hugepages >= 0)
		write_long(NR_HUGEPAGES, m->old_hugepages);
	m->map = NULL;
	m->fd = -1;
	m->old_hugepages = -1;
}

static int mem_map_hugetlb(struct mem *m)
{
	long want = m->size / HUGE_SIZE;

	m->old_hugepages = read_long(NR_HUGEPAGES);
	if (m->old_hugepages < 0) {
		m->lacks = "hugetlb";
		return -EOPNOTSUPP;
	}
	write_long(NR_HUGEPAGES, m->old_hugepages + want);
	if (read_long(NR_HUGEPAGES) < m->old_hugepages + want)
		return -ENOMEM;
	m->map_size = m->size;
	m->map = mmap(NULL, m->size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
		      MAP_HUGE_2MB, -1, 0);
	m->p = m->map;
	return m->map == MAP_FAILED ? -errno : 0;
}

int mem_map(struct mem *m, enum mem_kind kind, size_t size,
	    uint64_t seed)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE;
	int ret;

	*m = (struct mem){
		.kind = kind, .size = size, .fd = -1, .old_hugepages = -1,
	};
	switch (kind) {
	case MEM_HUGETLB:
		ret = mem_map_hugetlb(m);
		if (!ret)
			fill(m->p, size, seed);
		return ret;
	case MEM_THP:
		if (!thp_possible()) {
			m->lacks = "transparent huge pages";
			return -EOPNOTSUPP;
		}
		m->p = map_aligned(m, size);
		if (m->p == MAP_FAILED || madvise(m->p, size, MADV_HUGEPAGE))
			return -errno;
		fill(m->p, size, seed);
		return huge_mapped(m->p) * KiB == size ? 0 : -ENOMEM;
	case MEM_FILE_READ:
		prot = PROT_READ;
		/* fall through */
	case MEM_FILE_COW:
	case MEM_FILE_SHARED:
		m->fd = make_file(size, kind == MEM_FILE_READ ? seed : ~seed);
		if (m->fd < 0)
			return m->fd;
		if (kind == MEM_FILE_SHARED)
			flags = MAP_SHARED;
		break;
	case MEM_MEMFD:
		m->fd = syscall(SYS_memfd_create, "hetmem", 1U);
		if (m->fd < 0 || ftruncate(m->fd, size))
			return -errno;
		flags = MAP_SHARED;
		break;
	case MEM_SHARED_ANON:
		flags = MAP_SHARED | MAP_ANONYMOUS;
		break;
	case MEM_ANON:
	case MEM_MLOCKED:
		flags |= MAP_ANONYMOUS;
		break;
	}
	m->map_size = size;
	m->map = mmap(NULL, size, prot, flags, m->fd, 0);
	if (m->map == MAP_FAILED)
		return -errno;
	m->p = m->map;
	if (kind == MEM_ANON || kind == MEM_MLOCKED)
		madvise(m->p, size, MADV_NOHUGEPAGE);
	if (kind == MEM_MLOCKED && mlock(m->p, size))
		return -errno;
	if (prot & PROT_WRITE)
		fill(m->p, size, seed);
	return mismatch(m->p, size, seed) < 0 ? 0 : -EIO;
}

uint32_t mem_why(enum mem_kind kind)
{
	switch (kind) {
	case MEM_FILE_READ:
	case MEM_FILE_COW:
	case MEM_FILE_SHARED:
		return HETMEM_WHY_FILE;
	case MEM_SHARED_ANON:
	case MEM_MEMFD:
		return HETMEM_WHY_SHMEM;
	case MEM_HUGETLB:
		return HETMEM_WHY_HUGETLB;
	case MEM_MLOCKED:
		return HETMEM_WHY_MLOCKED;
	default:
		return 0;
	}
}

bool mem_is_huge(enum mem_kind kind)
{
	return kind == MEM_THP || kind == MEM_HUGETLB;
}

bool mem_moves(enum mem_kind kind)
{
	switch (kind) {
	case MEM_ANON:
	case MEM_FILE_COW:
	case MEM_THP:
	case MEM_MLOCKED:
		return true;
	default:
		return false;
	}
}

char *map_filled(size_t size, uint64_t seed)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_NOHUGEPAGE);
	fill(p, size, seed);
	return p;
}

int special_mapping(char **p, size_t *size)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[512];
	int ret = -ENOENT;

	if (!f)
		return -errno;
	while (ret && fgets(line, sizeof(line), f)) {
		if (!strstr(line, "[vvar]") ||
		    sscanf(line, "%lx-%lx ", &start, &end) != 2)
			continue;
		*p = (char *)start;
		*size = end - start;
		ret = 0;
	}
	fclose(f);
	return ret;
}

int map_secret(void *at, size_t size)
{
	int fd = syscall(SYS_memfd_secret, O_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, size) ||
	    mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 0) == MAP_FAILED)
		ret = -errno;
	close(fd);
	return ret;
}

int host_node(void *p)
{
	int status = -ENOENT;

	if (syscall(SYS_move_pages, 0, 1UL, &p, NULL, &status, 0))
		return errno == ENOSYS ? 0 : -errno;
	return status;
}

int no_numa_balancing(void *p, size_t size)
{
	if (syscall(SYS_mbind, p, size, MPOL_LOCAL, NULL, 0UL, 0U))
		return errno == ENOSYS ? 0 : -errno;
	return 0;
}
