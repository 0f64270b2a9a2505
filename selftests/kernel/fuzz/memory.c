// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The fuzzer's memory.
 *
 * An arena belongs to one thread, which alone changes its contents and its
 * mapping and knows what must be in each page of it; all others may ask the
 * kernel to look at it and to move it. The wild area belongs to nobody.
 */
#include "fuzz.h"

#include <linux/mempolicy.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif

static char *arena_page(const struct arena *a, unsigned int i)
{
	return a->p + i * page_size();
}

static void arena_check_bytes(const struct arena *a, unsigned int i,
			      const void *bytes, const char *how)
{
	bool good = false;

	if (a->state[i] != PAGE_ZERO)
		good = mismatch(bytes, page_size(), a->seed[i]) < 0;
	if (!good && a->state[i] != PAGE_PATTERN)
		good = all_zero(bytes, page_size());
	if (!good)
		wrong("%s: page %u of %u (kind %d, state %d, seed %x) at %p is wrong: word 0 is %llx, should be %llx",
		      how, i, a->pages, a->kind, a->state[i], a->seed[i],
		      arena_page(a, i), *(unsigned long long *)bytes,
		      (unsigned long long)pattern_word(a->seed[i], 0));
	atomic_fetch_add(&board->verified, 1);
}

void arena_check(const struct arena *a, unsigned int first, unsigned int nr,
		 const char *how)
{
	unsigned int i;

	for (i = first; i < first + nr; i++)
		arena_check_bytes(a, i, arena_page(a, i), how);
}

static void arena_write(struct arena *a, unsigned int i)
{
	a->seed[i] = ++a->next_seed;
	a->state[i] = PAGE_PATTERN;
	fill(arena_page(a, i), page_size(), a->seed[i]);
}

bool arena_is_shared(const struct arena *a)
{
	return a->kind == ARENA_SHARED;
}

/* Part of the arena is unmapped and mapped anew, as it was made. */
static void arena_map(struct arena *a, unsigned int first, unsigned int nr)
{
	int flags = MAP_FIXED | (arena_is_shared(a) ? MAP_SHARED : MAP_PRIVATE);
	size_t size = nr * page_size();
	char *p = arena_page(a, first);

	if (a->fd < 0)
		flags |= MAP_ANONYMOUS;
	if (mmap(p, size, PROT_READ | PROT_WRITE, flags, a->fd,
		 a->fd < 0 ? 0 : first * page_size()) != p)
		wrong("mmap of an arena: %d", errno);
	if (a->kind == ARENA_HUGE)
		madvise(p, size, MADV_HUGEPAGE);
	if (!arena_is_shared(a))
		memset(a->state + first, PAGE_ZERO, nr);
}

void arena_make(struct fuzzer *f, unsigned int pages)
{
	struct arena *a = &f->arena;
	unsigned int i;

	a->kind = pick(&f->r, ARENA_NR);
	a->pages = pages;
	a->slot = 0;
	a->p = at(ARENA(f->nr, 0));
	a->next_seed = pick(&f->r, 1U << 30);
	a->fd = -1;
	if (a->kind == ARENA_COW || a->kind == ARENA_SHARED) {
		a->fd = syscall(SYS_memfd_create, "fuzz", 1U);
		if (a->fd < 0 || ftruncate(a->fd, pages * page_size()))
			wrong("memfd: %d", errno);
	}
	memset(a->state, PAGE_ZERO, sizeof(a->state));
	arena_map(a, 0, pages);
	for (i = 0; i < pages; i++) {
		if (!one_in(&f->r, 8))
			arena_write(a, i);
	}
}

/* A part of the arena: mostly a few pages, sometimes all of it. */
static void arena_part(struct fuzzer *f, unsigned int *first, unsigned int *nr)
{
	unsigned int pages = f->arena.pages;

	if (one_in(&f->r, 24)) {
		*first = 0;
		*nr = pages;
		return;
	}
	*first = pick(&f->r, pages);
	*nr = 1 + pick(&f->r, one_in(&f->r, 8) ? 512 : 16);
	if (*nr > pages - *first)
		*nr = pages - *first;
}

/*
 * The contents stay. Nothing is left to KSM, here and below: a child that lets it merge what
 * its parent migrates stops the kernel, see "KSM" in Documentation/kernel-interface.md.
 */
static const int advice_keeps[] = {
	MADV_COLD, MADV_PAGEOUT, MADV_NORMAL, MADV_UNMERGEABLE,
	MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE, MADV_WILLNEED,
	MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_SEQUENTIAL, MADV_RANDOM,
};

static void arena_advise(struct fuzzer *f, unsigned int first,
			 unsigned int nr)
{
	struct arena *a = &f->arena;
	size_t size = nr * page_size();
	char *p = arena_page(a, first);
	unsigned int i;

	switch (pick(&f->r, 4)) {
	case 0:
		if (!madvise(p, size, one_in(&f->r, 2) ? MADV_DONTNEED :
			     MADV_DONTNEED_LOCKED) && !arena_is_shared(a))
			memset(a->state + first, PAGE_ZERO, nr);
		else if (!arena_is_shared(a))
			/* Locked parts stop it where they begin. */
			for (i = first; i < first + nr; i++)
				if (a->state[i] == PAGE_PATTERN)
					a->state[i] = PAGE_EITHER;
		break;
	case 1:
		madvise(p, size, MADV_FREE);
		for (i = first; i < first + nr; i++)
			if (a->state[i] == PAGE_PATTERN && !arena_is_shared(a))
				a->state[i] = PAGE_EITHER;
		break;
	default:
		madvise(p, size, PICK(&f->r, advice_keeps));
		break;
	}
}

/* Moves it to another address; what cannot be moved is made anew. */
static void arena_move(struct fuzzer *f)
{
	unsigned int slot = pick(&f->r, FUZZ_SLOTS);
	struct arena *a = &f->arena;
	size_t size = a->pages * page_size();
	char *to = at(ARENA(f->nr, slot));
	int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
	unsigned int i;
	bool whole;

	if (slot == a->slot)
		return;
	/* What may be shared with a page that was left behind is no good. */
	if (one_in(&f->r, 4))
		flags |= MREMAP_DONTUNMAP;
	munlock(a->p, size);
	whole = mremap(a->p, size, size, flags, to) == to;
	munmap(a->p, size);
	a->slot = slot;
	a->p = to;
	if (whole)
		return;
	arena_map(a, 0, a->pages);
	for (i = 0; i < a->pages; i += 1 + pick(&f->r, 4))
		arena_write(a, i);
}

static void arena_protect(struct fuzzer *f, unsigned int first,
			  unsigned int nr)
{
	static const int prots[] = { PROT_NONE, PROT_READ, PROT_WRITE,
				     PROT_READ | PROT_EXEC };
	char *p = arena_page(&f->arena, first);
	size_t size = nr * page_size();

	mprotect(p, size, PICK(&f->r, prots));
	if (one_in(&f->r, 2))
		/* time: a random while without access */
		usleep(pick(&f->r, 500));
	if (mprotect(p, size, PROT_READ | PROT_WRITE))
		wrong("mprotect of an arena: %d", errno);
}

static void numa_move(struct fuzzer *f, char *p, size_t size)
{
	unsigned long mask = 1 + pick(&f->r, 3);
	void *pages[16];
	int nodes[16], status[16];
	unsigned int i;

	switch (pick(&f->r, 3)) {
	case 0:
		syscall(SYS_mbind, p, size, MPOL_PREFERRED, &mask, 8UL,
			MPOL_MF_MOVE);
		break;
	case 1:
		syscall(SYS_mbind, p, size, MPOL_DEFAULT, NULL, 0UL, 0);
		break;
	default:
		for (i = 0; i < 16 && i * page_size() < size; i++) {
			pages[i] = p + i * page_size();
			nodes[i] = pick(&f->r, 2);
		}
		syscall(SYS_move_pages, 0, (unsigned long)i, pages, nodes,
			status, 2 /* MPOL_MF_MOVE */);
		break;
	}
}

/* The device reads, or writes a new pattern. */
static void arena_access(struct fuzzer *f, unsigned int first, unsigned int nr)
{
	struct worker *w = f->w;
	struct arena *a = &f->arena;
	struct hetmem_emu_cmd_access cmd = { .size = sizeof(cmd) };
	unsigned int i, n = pick(&f->r, FUZZ_DEVICES);
	char *buf = f->scratch + SCRATCH_SIZE / 2;
	bool write = one_in(&f->r, 2);
	int ret;

	if (w->device[n] < 0)
		return;
	if (nr > SCRATCH_SIZE / 2 / page_size())
		nr = SCRATCH_SIZE / 2 / page_size();
	cmd.op = write ? HETMEM_EMU_WRITE : HETMEM_EMU_READ;
	cmd.flags = pick(&f->r, 2) ? HETMEM_EMU_MIGRATE : 0;
	cmd.addr = (uintptr_t)arena_page(a, first);
	cmd.length = nr * page_size();
	cmd.data = (uintptr_t)buf;
	for (i = 0; write && i < nr; i++)
		fill(buf + i * page_size(), page_size(), a->next_seed + 1 + i);
	ret = hm_ioctl(w->device[n], HETMEM_EMU_IOC_ACCESS, &cmd);
	if (cmd.done > cmd.length || (!ret && cmd.done != cmd.length))
		wrong("ACCESS returns %d with %llu of %llu bytes done", ret,
		      cmd.done, cmd.length);
	if ((ret == -EFAULT || ret == -EPERM) && !w->limited)
		wrong("ACCESS of memory that is there returns %d", ret);
	for (i = 0; i < nr && !write; i++) {
		if ((i + 1) * page_size() <= cmd.done)
			arena_check_bytes(a, first + i, buf + i * page_size(),
					  "read by the device");
	}
	for (i = 0; i < nr && write; i++) {
		if (i * page_size() >= cmd.done)
			break;
		a->seed[first + i] = a->next_seed + 1 + i;
		a->state[first + i] = PAGE_PATTERN;
		if ((i + 1) * page_size() > cmd.done)
			arena_write(a, first + i);
	}
	if (write)
		a->next_seed += nr + 1;
}

/* One change, or look, at the thread's own memory. */
void arena_operate(struct fuzzer *f)
{
	struct arena *a = &f->arena;
	unsigned int first, nr, i;

	arena_part(f, &first, &nr);
	atomic_fetch_add(&board->operations, 1);
	switch (pick(&f->r, 12)) {
	case 0:
	case 1:
		for (i = first; i < first + nr; i++)
			arena_write(a, i);
		break;
	case 2:
		arena_check(a, first, nr, "read by the CPU");
		break;
	case 3:
	case 4:
		arena_advise(f, first, nr);
		break;
	case 5:
		arena_move(f);
		break;
	case 6:
		munmap(arena_page(a, first), nr * page_size());
		arena_map(a, first, nr);
		break;
	case 7:
		arena_protect(f, first, nr);
		break;
	case 8:
		if (one_in(&f->r, 2))
			mlock(arena_page(a, first), nr * page_size());
		else
			munlock(a->p, a->pages * page_size());
		break;
	case 9:
		numa_move(f, arena_page(a, first), nr * page_size());
		break;
	default:
		arena_access(f, first, nr);
		break;
	}
}

/* What may be done to memory whose contents do not count. */
const int advice_wild[17] = {
	MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_COLD, MADV_PAGEOUT,
	MADV_NORMAL, MADV_UNMERGEABLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
	MADV_COLLAPSE, MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK,
	MADV_KEEPONFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
	MADV_DONTNEED_LOCKED,
};

static void wild_part(struct fuzzer *f, char **p, size_t *size)
{
	size_t pages = WILD_SIZE / page_size();
	size_t first = pick(&f->r, pages), nr;

	if (one_in(&f->r, 4))
		first &= ~511UL;
	nr = one_in(&f->r, 3) ? 512UL << pick(&f->r, 3) : 1 + pick(&f->r, 64);
	if (nr > pages - first)
		nr = pages - first;
	*p = at(WILD + first * page_size());
	*size = nr * page_size();
}

static void wild_map(struct fuzzer *f, char *p, size_t size)
{
	static const int prots[] = { PROT_NONE, PROT_READ, PROT_WRITE,
		PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
		PROT_READ | PROT_WRITE | PROT_EXEC };
	int flags = MAP_FIXED, fd = -1;

	switch (pick(&f->r, 8)) {
	case 0:
		flags |= MAP_SHARED | MAP_ANONYMOUS;
		break;
	case 1:
	case 2:
		fd = syscall(SYS_memfd_create, "wild", 1U);
		/* Half of it is behind the end of the file. */
		if (fd >= 0 && ftruncate(fd, one_in(&f->r, 2) ? size : size / 2))
			size = page_size();
		flags |= one_in(&f->r, 2) ? MAP_SHARED : MAP_PRIVATE;
		break;
	case 3:
		flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
		break;
	case 4:
		flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED;
		break;
	default:
		flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
		break;
	}
	mmap(p, size, PICK(&f->r, prots), flags, fd, 0);
	if (fd >= 0)
		close(fd);
}

/* Reads or writes memory that need not be there: no signal, an error. */
static void wild_touch(struct fuzzer *f, char *p, size_t size)
{
	struct iovec to = { f->scratch + SCRATCH_SIZE / 2, SCRATCH_SIZE / 2 };
	struct iovec from = { p, size };

	if (from.iov_len > to.iov_len)
		from.iov_len = to.iov_len;
	if (one_in(&f->r, 2))
		process_vm_readv(getpid(), &to, 1, &from, 1, 0);
	else if (read(f->w->zero, p, from.iov_len) < 0)
		return;
}

/* One change to the memory that everybody changes. */
void wild_operate(struct fuzzer *f)
{
	static const int prots[] = { PROT_NONE, PROT_READ,
				     PROT_READ | PROT_WRITE };
	size_t size, other_size;
	char *p, *other;

	wild_part(f, &p, &size);
	atomic_fetch_add(&board->operations, 1);
	switch (pick(&f->r, 10)) {
	case 0:
		munmap(p, size);
		break;
	case 1:
	case 2:
		wild_map(f, p, size);
		break;
	case 3:
		wild_part(f, &other, &other_size);
		mremap(p, size, other_size, MREMAP_MAYMOVE | MREMAP_FIXED |
		       (one_in(&f->r, 4) ? MREMAP_DONTUNMAP : 0), other);
		break;
	case 4:
		mprotect(p, size, PICK(&f->r, prots));
		break;
	case 5:
	case 6:
		madvise(p, size, PICK(&f->r, advice_wild));
		break;
	case 7:
		if (one_in(&f->r, 2))
			mlock2(p, size, one_in(&f->r, 2) ? 1 : 0);
		else
			munlock(p, size);
		break;
	case 8:
		numa_move(f, p, size);
		break;
	default:
		wild_touch(f, p, size);
		break;
	}
}
