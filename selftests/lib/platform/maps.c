// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The mappings, by both ways of asking: queries of newer kernels, and the text that
 * all kernels have. They agree about mappings of every kind.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform/platform.h"
#include "tap.h"

#define NR	8U

static size_t page;
static char *p;

static void map(unsigned int at, int prot, int flags, int fd)
{
	need(mmap(p + at * page, page, prot, flags | MAP_FIXED, fd, 0) != MAP_FAILED,
	     "maps page %u", at);
}

static void make(void)
{
	char name[300];
	int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int fd = memfd_create("shared", MFD_CLOEXEC), named;

	memset(name, 'x', sizeof(name));
	name[200] = '\0';
	named = memfd_create(name, MFD_CLOEXEC);
	p = mmap(NULL, NR * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		 -1, 0);
	need(p != MAP_FAILED && exe >= 0 && fd >= 0 && named >= 0 &&
	     !ftruncate(fd, page) && !ftruncate(named, page), "files");
	map(1, PROT_READ, MAP_PRIVATE, exe);
	map(2, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	map(3, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1);
	mprotect(p + 4 * page, page, PROT_NONE);
	munmap(p + 5 * page, page);
	map(6, PROT_READ | PROT_WRITE, MAP_SHARED, named);
	close(exe);
	close(fd);
	close(named);
}

static const struct {
	unsigned int at;
	uint32_t why;
	bool readable, writable;
} want[] = {
	{ 0, 0, true, true },
	{ 1, HETMEM_WHY_FILE, true, false },
	{ 2, HETMEM_WHY_SHMEM, true, true },
	{ 3, HETMEM_WHY_SHMEM, true, false },
	{ 4, HETMEM_WHY_NOT_READABLE, false, false },
	{ 6, HETMEM_WHY_SHMEM, true, true },
	{ 7, 0, true, true },
};

static void walk(struct hm_maps *maps, const char *how)
{
	uintptr_t at = (uintptr_t)p;
	struct hm_vma vma;
	size_t i;

	for (i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		const uintptr_t start = (uintptr_t)p + want[i].at * page;

		need(hm_maps_next(maps, at, &vma), "%s: a mapping", how);
		ok(vma.start <= start && vma.end >= start + page, "%s: page %u", how,
		   want[i].at);
		ok(vma.why == want[i].why && vma.readable == want[i].readable &&
		   vma.writable == want[i].writable, "%#x, %d, %d", vma.why,
		   vma.readable, vma.writable);
		at = vma.end;
	}
	need(hm_maps_next(maps, (uintptr_t)p, &vma) && vma.start <= (uintptr_t)p &&
	     hm_maps_next(maps, (uintptr_t)p, &vma) && vma.start <= (uintptr_t)p,
	     "%s: back, and the same again", how);
	while (hm_maps_next(maps, at, &vma)) {
		need(vma.end > at, "%s: goes on", how);
		at = vma.end;
	}
	ok(at > (uintptr_t)p + NR * page, "%s: and comes to an end", how);
}

int main(void)
{
	struct hm_maps maps;

	page = sysconf(_SC_PAGESIZE);
	make();
	need(!hm_maps_open(&maps), "opens");
	walk(&maps, maps.text ? "text, the kernel's only way" : "queries");
	hm_maps_close(&maps);
	need(!hm_maps_open(&maps), "opens again");
	if (!maps.text)
		maps.text = fdopen(maps.fd, "r");
	walk(&maps, "text");
	hm_maps_close(&maps);
	return tap_end();
}
