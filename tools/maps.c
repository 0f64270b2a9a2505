/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The mappings of a process: see maps.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/hetmem.h>

#include "maps.h"
#include "util.h"

/* Of maps, between two looks at the clock. */
#define LINES_PER_LOOK	256

static bool starts_with(const char *s, const char *prefix)
{
	return !strncmp(s, prefix, strlen(prefix));
}

static uint32_t why_of(const struct vma *vma, uint64_t inode, const char *name)
{
	uint32_t why = 0;

	if (starts_with(name, "[v") || starts_with(name, "/secretmem"))
		why |= HETMEM_WHY_SPECIAL;
	else if (starts_with(name, "/anon_hugepage"))
		why |= HETMEM_WHY_HUGETLB;
	else if (starts_with(name, "/SYSV") || starts_with(name, "/memfd:") ||
		 starts_with(name, "/dev/shm/") ||
		 starts_with(name, "/dev/zero"))
		why |= HETMEM_WHY_SHMEM;
	else if (inode && starts_with(name, "/dev/"))
		why |= HETMEM_WHY_SPECIAL;
	else if (inode)
		why |= HETMEM_WHY_FILE;
	if (vma->perms[0] != 'r')
		why |= HETMEM_WHY_NOT_READABLE;
	return why;
}

bool vma_parse(struct vma *vma, char *line)
{
	unsigned int major, minor;
	uint64_t offset, inode;
	int name_at = 0;
	char *name;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64
		   " %x:%x %" SCNu64 " %n", &vma->start, &vma->end, vma->perms,
		   &offset, &major, &minor, &inode, &name_at) != 7)
		return false;
	if (vma->start >= vma->end || strlen(vma->perms) != 4)
		return false;
	name = name_at ? line + name_at : line + strlen(line);
	vma->why = why_of(vma, inode, name);
	if (!*name)
		name = vma->perms[0] == '-' ? "(reserved)" : "(anonymous)";
	vma->name = xescape(name);
	return true;
}

int vmas_read(struct vmas *vmas, pid_t pid)
{
	return vmas_read_until(vmas, pid, INFINITY);
}

int vmas_read_until(struct vmas *vmas, pid_t pid, double end)
{
	char path[64], *line = NULL;
	uint64_t last = 0, lines = 0;
	size_t room = 0;
	struct vma vma;
	int ret = 0;
	FILE *file;

	memset(vmas, 0, sizeof(*vmas));
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	file = fopen(path, "re");
	if (!file)
		return errno == ENOENT ? -ESRCH : -errno;
	while (errno = 0, getline(&line, &room, file) >= 0) {
		if (++lines % LINES_PER_LOOK == 0 && now() >= end) {
			errno = ETIME;
			break;
		}
		if (!vma_parse(&vma, line))
			continue;
		/* The vsyscall page is the kernel's; the rest is in order. */
		if (vma.start >> 63 || vma.start < last) {
			free(vma.name);
			continue;
		}
		last = vma.end;
		vmas->vma = xrealloc_array(vmas->vma, vmas->nr + 1,
					   sizeof(vma));
		vmas->vma[vmas->nr++] = vma;
	}
	/* Rights are checked at open or at read, as the kernel pleases. */
	if (errno)
		ret = -errno;
	else if (!vmas->nr)
		ret = -ENODATA;
	free(line);
	fclose(file);
	return ret;
}

void vmas_free(struct vmas *vmas)
{
	size_t i;

	for (i = 0; i < vmas->nr; i++)
		free(vmas->vma[i].name);
	free(vmas->vma);
	memset(vmas, 0, sizeof(*vmas));
}

void vmas_clip(struct vmas *vmas, uint64_t start, uint64_t end)
{
	size_t from, to = 0;

	for (from = 0; from < vmas->nr; from++) {
		struct vma vma = vmas->vma[from];

		if (vma.end <= start || vma.start >= end) {
			free(vma.name);
			continue;
		}
		if (vma.start < start)
			vma.start = start;
		if (vma.end > end)
			vma.end = end;
		vmas->vma[to++] = vma;
	}
	vmas->nr = to;
}

/* Keeps those that @keep marks. Returns the bytes of the others. */
static uint64_t keep_marked(struct vmas *vmas, const bool *keep)
{
	uint64_t dropped = 0;
	size_t from, to = 0;

	for (from = 0; from < vmas->nr; from++) {
		struct vma *vma = &vmas->vma[from];

		if (keep[from]) {
			vmas->vma[to++] = *vma;
			continue;
		}
		dropped += vma->end - vma->start;
		free(vma->name);
	}
	vmas->nr = to;
	return dropped;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint64_t vmas_drop_libraries(struct vmas *vmas)
{
	const char **code = xcalloc(vmas->nr, sizeof(*code));
	bool *keep = xcalloc(vmas->nr, sizeof(*keep));
	const char *program = NULL;
	uint64_t dropped;
	size_t i, nr = 0;

	for (i = 0; i < vmas->nr; i++) {
		const struct vma *vma = &vmas->vma[i];

		if (vma->perms[2] != 'x' || *vma->name != '/')
			continue;
		if (!program)
			program = vma->name;
		if (strcmp(vma->name, program))
			code[nr++] = vma->name;
	}
	qsort(code, nr, sizeof(*code), by_name);
	for (i = 0; i < vmas->nr; i++) {
		const char *name = vmas->vma[i].name;

		keep[i] = strncmp(name, "[v", 2) &&
			!bsearch(&name, code, nr, sizeof(*code), by_name);
	}
	dropped = keep_marked(vmas, keep);
	free(keep);
	free(code);
	return dropped;
}

struct size_of {
	uint64_t size;
	size_t index;
};

/* The largest first; of equal ones the one at the lower address. */
static int by_size(const void *a, const void *b)
{
	const struct size_of *l = a, *r = b;

	if (l->size != r->size)
		return l->size < r->size ? 1 : -1;
	return l->index < r->index ? -1 : 1;
}

uint64_t vmas_keep_largest(struct vmas *vmas, size_t nr)
{
	struct size_of *sizes = xcalloc(vmas->nr, sizeof(*sizes));
	bool *keep = xcalloc(vmas->nr, sizeof(*keep));
	uint64_t dropped;
	size_t i;

	for (i = 0; i < vmas->nr; i++)
		sizes[i] = (struct size_of){ vmas->vma[i].end - vmas->vma[i].start, i };
	qsort(sizes, vmas->nr, sizeof(*sizes), by_size);
	for (i = 0; i < vmas->nr && i < nr; i++)
		keep[sizes[i].index] = true;
	dropped = keep_marked(vmas, keep);
	free(keep);
	free(sizes);
	return dropped;
}
