/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What `hetmem map --self` shows: memory of every kind, made for it. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hetmem.h>

#include "map.h"
#include "util.h"

#define MIB	((size_t)1 << 20)

static void name_it(struct vmas *vmas, void *p, size_t size, const char *perms,
		    uint32_t why, const char *name)
{
	struct vma *vma;

	vmas->vma = xrealloc_array(vmas->vma, vmas->nr + 1,
				   sizeof(*vmas->vma));
	vma = &vmas->vma[vmas->nr++];
	vma->start = (uintptr_t)p;
	vma->end = vma->start + size;
	memcpy(vma->perms, perms, 5);
	vma->why = why;
	vma->name = xstrdup(name);
}

static void *map(size_t size, int prot, int flags, int fd)
{
	void *p = mmap(NULL, size, prot, flags, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void make_file(struct vmas *vmas, size_t page)
{
	volatile const char *p;
	off_t size;
	int fd;

	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	size = lseek(fd, 0, SEEK_END);
	size = (size + page - 1) & -page;
	p = size > 0 ? map(size, PROT_READ, MAP_PRIVATE, fd) : NULL;
	if (p) {
		/* One page; readahead may map its neighbours too. */
		(void)*p;
		name_it(vmas, (void *)p, size, "r--p", HETMEM_WHY_FILE,
			"file: this program, first page read");
	}
	close(fd);
}

static int by_address(const void *a, const void *b)
{
	const struct vma *l = a, *r = b;

	return l->start < r->start ? -1 : l->start > r->start;
}

void map_self_make(struct vmas *vmas)
{
	const int private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	const int rw = PROT_READ | PROT_WRITE;
	size_t page = sysconf(_SC_PAGESIZE), i;
	struct hetmem *hm;
	void *ptr;
	char *p;

	memset(vmas, 0, sizeof(*vmas));
	p = map(4 * MIB, rw, private, -1);
	if (p) {
		madvise(p, 4 * MIB, MADV_NOHUGEPAGE);
		memset(p, 1, 2 * MIB);
		for (i = 3 * MIB; i < 4 * MIB; i += 4 * page)
			p[i] = 1;
		name_it(vmas, p, 4 * MIB, "rw-p", 0,
			"anonymous: half written, then nothing, then every 4th page");
	}
	p = map(MIB, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
	if (p) {
		memset(p, 1, MIB / 2);
		name_it(vmas, p, MIB, "rw-s", HETMEM_WHY_SHMEM,
			"shared: first half written");
	}
	/* Within the limit for locked memory that most systems have. */
	p = map(4 * page, rw, private, -1);
	if (p) {
		bool locked = !mlock(p, 4 * page);

		name_it(vmas, p, 4 * page, "rw-p",
			locked ? HETMEM_WHY_MLOCKED : 0,
			locked ? "locked: not written, yet all there" :
			"not locked: the limit for that is too low");
	}
	p = map(MIB, PROT_NONE, private, -1);
	if (p)
		name_it(vmas, p, MIB, "---p", HETMEM_WHY_NOT_READABLE,
			"reserved: not accessible");
	make_file(vmas, page);

	/* The library stays open: closing it ends what it tracks. */
	if (!hetmem_open(&hm, NULL) &&
	    !hetmem_system_alloc(hm, 4 * MIB, &ptr)) {
		struct hetmem_moved moved = { .size = sizeof(moved) };
		const char *name = "hetmem: 4 MiB written";

		memset(ptr, 1, 4 * MIB);
		if (!hetmem_prefetch(hm, (char *)ptr + 2 * MIB, 2 * MIB,
				     HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
				     &moved) && moved.moved)
			name = "hetmem: 4 MiB written, half sent to device 0";
		name_it(vmas, ptr, 4 * MIB, "rw-p", 0, name);
	}
	if (vmas->nr)
		qsort(vmas->vma, vmas->nr, sizeof(*vmas->vma), by_address);
}
