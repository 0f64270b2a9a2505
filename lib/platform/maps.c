// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The mappings of this process: /proc/self/maps, by queries (PROCMAP_QUERY, Linux
 * 6.11), else as text that is read once. HMM leaves files, shared memory, huge pages
 * of hugetlbfs and special mappings on the host without a report, so the mappings are
 * read before a prefetch. The text has no page sizes: there, only anonymous memory of
 * hugetlbfs is told from files and shared memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "platform/platform.h"

/* As in <linux/fs.h> from 6.11 on. */
struct query {
	uint64_t size;
	uint64_t query_flags;
	uint64_t query_addr;
	uint64_t vma_start;
	uint64_t vma_end;
	uint64_t vma_flags;
	uint64_t vma_page_size;
	uint64_t vma_offset;
	uint64_t inode;
	uint32_t dev_major;
	uint32_t dev_minor;
	uint32_t vma_name_size;
	uint32_t build_id_size;
	uint64_t vma_name_addr;
	uint64_t build_id_addr;
};

#define QUERY			_IOWR('f', 17, struct query)
#define QUERY_READABLE		0x01
#define QUERY_WRITABLE		0x02
#define QUERY_COVERING_OR_NEXT	0x10

static bool begins(const char *name, const char *with)
{
	return !strncmp(name, with, strlen(with));
}

/* @name: as the kernel shows it */
static uint32_t why_of(const char *name, bool inode, bool readable)
{
	uint32_t why = readable ? 0 : HETMEM_WHY_NOT_READABLE;

	if (begins(name, "[v"))
		return why | HETMEM_WHY_SPECIAL;
	if (begins(name, "/anon_hugepage"))
		return why | HETMEM_WHY_HUGETLB;
	if (begins(name, "/memfd:") || begins(name, "/dev/shm/") ||
	    begins(name, "/dev/zero") || begins(name, "/SYSV"))
		return why | HETMEM_WHY_SHMEM;
	return inode ? why | HETMEM_WHY_FILE : why;
}

static bool ask(int fd, uintptr_t addr, struct hm_vma *vma, int *err)
{
	char name[256] = "";
	struct query q = {
		.size = sizeof(q), .query_flags = QUERY_COVERING_OR_NEXT,
		.query_addr = addr, .vma_name_addr = (uintptr_t)name,
		.vma_name_size = sizeof(name),
	};

	*err = ioctl(fd, QUERY, &q) ? errno : 0;
	if (*err == ENAMETOOLONG) {
		q.vma_name_addr = q.vma_name_size = 0;
		*err = ioctl(fd, QUERY, &q) ? errno : 0;
	}
	if (*err)
		return false;
	vma->start = q.vma_start;
	vma->end = q.vma_end;
	vma->readable = q.vma_flags & QUERY_READABLE;
	vma->writable = q.vma_flags & QUERY_WRITABLE;
	vma->why = why_of(name, q.inode, vma->readable);
	/* Whatever its name: files, memfds and System V memory can be of hugetlbfs. */
	if (q.vma_page_size > (uint64_t)sysconf(_SC_PAGESIZE))
		vma->why = (vma->why & HETMEM_WHY_NOT_READABLE) | HETMEM_WHY_HUGETLB;
	return true;
}

static bool read_line(FILE *text, struct hm_vma *vma)
{
	unsigned long start, end, inode;
	char line[512], access[8];
	int at = 0, c = 0;

	if (!fgets(line, sizeof(line), text))
		return false;
	/* A name may be longer than @line: skip the rest. */
	if (!strchr(line, '\n'))
		do {
			c = fgetc(text);
		} while (c != '\n' && c != EOF);
	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu %n", &start, &end, access,
		   &inode, &at) < 4)
		return false;
	vma->start = start;
	vma->end = end;
	vma->readable = access[0] == 'r';
	vma->writable = access[1] == 'w';
	vma->why = why_of(line + at, inode, vma->readable);
	return true;
}

int hm_maps_open(struct hm_maps *maps)
{
	struct hm_vma vma;
	int err;

	*maps = (struct hm_maps){ .text = NULL };
	maps->fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (maps->fd < 0)
		return hm_error(-EIO, "/proc/self/maps: %s", strerror(errno));
	if (ask(maps->fd, 0, &vma, &err) || err == ENOENT)
		return 0;
	maps->text = fdopen(maps->fd, "r");
	if (maps->text)
		return 0;
	close(maps->fd);
	return hm_error(-EIO, "/proc/self/maps: %s", strerror(ENOMEM));
}

void hm_maps_close(struct hm_maps *maps)
{
	if (maps->text)
		fclose(maps->text);
	else
		close(maps->fd);
}

bool hm_maps_next(struct hm_maps *maps, uintptr_t addr, struct hm_vma *vma)
{
	int err;

	if (!maps->text)
		return ask(maps->fd, addr, vma, &err);
	if (addr < maps->asked) {
		rewind(maps->text);
		maps->last = (struct hm_vma){ 0 };
	}
	maps->asked = addr;
	while (maps->last.end <= addr)
		if (!read_line(maps->text, &maps->last))
			return false;
	*vma = maps->last;
	return true;
}
