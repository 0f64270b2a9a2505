// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Attached memory, without the module: what each machine does, attachments that share
 * a registration, owners, bad ranges, failures of the driver, forked children, threads, and
 * a random program with a model of what is attached.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#include "below.h"
#include "place/foreign_memory.h"
#include "platform/machine.h"

#define PAGES	64U

static struct hetmem *hm;

static int attach(void *p, size_t size)
{
	return hetmem_attach(hm, p, size, &owned, NULL);
}

static void machines(void)
{
	static const struct { const char *machine; const char *how; } rows[] = {
		{ "managed", "driver" }, { "none", "driver" }, { "hmm", "none" },
		{ "ats node=0", "none" }, { "cdmm", "none" }, { "integrated", "none" },
		{ "hmm; managed", "driver" },
	};
	struct hetmem_moved m = { .size = sizeof(m) };
	char *p = pages(4);
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		hm = open_machine(rows[i].machine);
		need(hm, "%s: %s", rows[i].machine, hetmem_last_error());
		released = 0;
		is(hetmem_attach(hm, p + 8, 2 * page, &owned, &m), 0, "%s: attached",
		   rows[i].machine);
		ok(!strcmp(m.how, rows[i].how) && (*m.how == 'd' || *m.reason),
		   "%s: %s", m.how, m.reason);
		is(is_pinned(hm, p + 8), *m.how == 'd', "registered or not");
		is(hetmem_detach(hm, p + 8, 2 * page), 0, "detached");
		is(released, 1, "the owner is released");
		ok(!is_pinned(hm, p + 8), "nothing is registered");
		is(attach(p, page), 0, "attached, and left so");
		hetmem_close(hm);
		is(released, 2, "close releases it");
	}
	hm = open_machine("managed driver.registered=no; managed driver.registers=no");
	need(hm, "opens");
	is(attach(p, page), -EOPNOTSUPP, "devices that cannot: %s", hetmem_last_error());
	hetmem_close(hm);
	munmap(p, 4 * page);
}

static void sharing(void)
{
	char *p = pages(8);

	released = 0;
	is(attach(p + 100, 4 * page), 0, "attached");
	is(attach(p + 100, 4 * page), 0, "again");
	is(attach(p + page, page), 0, "a part of it");
	is(attach(p + 3 * page, 4 * page), -EEXIST, "over its end: %s",
	   hetmem_last_error());
	is(attach(p, 2 * page), -EEXIST, "over its beginning");
	is(attach(p, 8 * page), -EEXIST, "around it");
	is(attach(p + 100 + 4 * page, page), 0, "beside it, in a page of both");
	is(hetmem_detach(hm, p + 100, 3 * page), -ENOENT, "of another size");
	is(hetmem_detach(hm, p, 4 * page), -ENOENT, "at another address");
	is(hetmem_detach(hm, p + 100, 4 * page), 0, "one of the three");
	is(hetmem_detach(hm, p + 100, 4 * page), 0, "two");
	is(released, 2, "two owners are released");
	ok(is_pinned(hm, p + page), "registered for the third");
	is(hetmem_detach(hm, p + page, page), 0, "the last");
	ok(!is_pinned(hm, p + page), "ends it");
	is(hetmem_detach(hm, p + page, page), -ENOENT, "once more");
	is(hetmem_detach(hm, p + 100 + 4 * page, page), 0, "the neighbour");
	is(released, 4, "each owner once");
	munmap(p, 8 * page);
}

static void chunks(void)
{
	struct hetmem_attach_params params = owned;
	char *p = pages(8);

	params.chunk = 2 * page;
	soft_rules("cuMemHostRegister:99", NULL);
	is(hetmem_attach(hm, p + 5, 6 * page, &params, NULL), 0, "in chunks");
	is(hm->soft->made(0), 4, "that end at multiples of a page");
	soft_rules(NULL, NULL);
	ok(is_pinned(hm, p + 5) && is_pinned(hm, p + 6 * page), "all of it");
	is(hetmem_detach(hm, p + 5, 6 * page), 0, "detached");
	ok(!is_pinned(hm, p + 5) && !is_pinned(hm, p + 6 * page), "all of it");
	soft_rules("cuMemHostRegister:3=CUDA_ERROR_OUT_OF_MEMORY", NULL);
	is(hetmem_attach(hm, p, 6 * page, &params, NULL), -ENOMEM, "the third fails");
	soft_rules(NULL, NULL);
	ok(!is_pinned(hm, p) && !is_pinned(hm, p + 2 * page), "and none is left");
	params.chunk = 100;
	is(hetmem_attach(hm, p, page, &params, NULL), -EINVAL, "no pages");
	munmap(p, 8 * page);
}

static void bad_ranges(void)
{
	struct hetmem_attach_params params = owned;
	struct hetmem_moved m = { .size = sizeof(m) };
	int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int fd = memfd_create("shared", MFD_CLOEXEC);
	struct hetmem_resource *res;
	char *p = pages(8), *q;
	void *d;

	released = 0;
	is(hetmem_attach(NULL, p, page, &owned, NULL), -EINVAL, "no library");
	is(attach(p, 0), -EINVAL, "no bytes");
	is(attach(p, SIZE_MAX), -EINVAL, "too many");
	is(hetmem_attach(hm, p, page, NULL, NULL), -EINVAL, "nobody watches: %s",
	   hetmem_last_error());
	params.release = NULL;
	params.flags = HETMEM_ATTACH_PROMISE;
	is(hetmem_attach(hm, p, page, &params, NULL), 0, "but a promise will do");
	is(hetmem_detach(hm, p, page), 0, "kept");
	params.flags = 4;
	is(hetmem_attach(hm, p, page, &params, NULL), -EINVAL, "unknown flags");
	params.size = 8;
	is(hetmem_attach(hm, p, page, &params, NULL), -EINVAL, "small params");
	m.size = 8;
	is(hetmem_attach(hm, p, page, &owned, &m), -EINVAL, "a small result");
	m.size = sizeof(m);

	munmap(p + 2 * page, page);
	is(attach(p, 4 * page), -EINVAL, "a hole: %s", hetmem_last_error());
	mprotect(p + page, page, PROT_NONE);
	is(attach(p, 2 * page), -EACCES, "not readable");
	mprotect(p + page, page, PROT_READ);
	is(hetmem_attach(hm, p, 2 * page, &owned, &m), 0, "read-only");
	ok(!strcmp(m.how, "driver") && strstr(m.reason, "read"), "%s", m.reason);
	is(hetmem_detach(hm, p, 2 * page), 0, "detached");
	q = mmap(NULL, page, PROT_READ, MAP_PRIVATE, exe, 0);
	is(attach(q, page), 0, "a file");
	is(hetmem_detach(hm, q, page), 0, "detached");
	soft_rules("cuMemHostRegister:1=CUDA_ERROR_INVALID_VALUE", NULL);
	mprotect(q, page, PROT_READ | PROT_WRITE);
	is(attach(q, page), -EINVAL, "a file that the driver cannot pin");
	ok(strstr(hetmem_last_error(), "copy it"), "%s", hetmem_last_error());
	soft_rules(NULL, NULL);
	munmap(q, page);
	need(!ftruncate(fd, page), "a file");
	q = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	is(attach(q, page), 0, "shared memory");
	is(hetmem_detach(hm, q, page), 0, "detached");
	munmap(q, page);

	need(!hetmem_resource_create(hm, "device", &res) &&
	     !hetmem_alloc(res, page, 0, NULL, &d), "device memory");
	is(attach(d, page), -EINVAL, "a device's memory");
	is(hetmem_free(res, d, 0, NULL) + hetmem_resource_destroy(res), 0, "freed");
	need(!hetmem_resource_create(hm, "managed", &res) &&
	     !hetmem_alloc(res, page, 0, NULL, &d), "managed memory");
	is(hetmem_attach(hm, d, page, &owned, &m), 0, "managed memory");
	ok(!strcmp(m.how, "none") && strstr(m.reason, "managed"), "%s", m.reason);
	is(hetmem_detach(hm, d, page), 0, "detached");
	is(hetmem_free(res, d, 0, NULL) + hetmem_resource_destroy(res), 0, "freed");
	need(!hetmem_resource_create(hm, "pinned", &res) &&
	     !hetmem_alloc(res, page, 0, NULL, &d), "pinned memory");
	is(hetmem_attach(hm, d, page, &owned, &m), 0, "pinned memory");
	ok(!strcmp(m.how, "none") && strstr(m.reason, "page-locked"), "%s", m.reason);
	is(hetmem_detach(hm, d, page), 0, "detached");
	is(hetmem_free(res, d, 0, NULL) + hetmem_resource_destroy(res), 0, "freed");
	is(released, 5, "owners of what was attached only");
	munmap(p, 8 * page);
	close(exe);
	close(fd);
}

static void failures(void)
{
	static const struct { const char *rule; int err; } rows[] = {
		{ "cuMemHostRegister:1=CUDA_ERROR_LAUNCH_FAILED", -EIO },
		{ "cuMemHostRegister:1=CUDA_ERROR_OUT_OF_MEMORY", -ENOMEM },
		{ "cuMemHostRegister:1=CUDA_ERROR_NOT_SUPPORTED", -EOPNOTSUPP },
		{ "cuMemHostRegister:1=CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
		  -EEXIST },
		{ "cuCtxGetCurrent:1=CUDA_ERROR_LAUNCH_FAILED", -EIO },
	};
	char *p = pages(2);
	size_t i;

	released = 0;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		soft_rules(rows[i].rule, NULL);
		is(attach(p, page), rows[i].err, "%s", rows[i].rule);
		ok(strstr(hetmem_last_error(), "CUDA_ERROR_"), "%s", hetmem_last_error());
		soft_rules(NULL, NULL);
		is(hetmem_detach(hm, p, page), -ENOENT, "nothing is attached");
	}
	is(attach(p, page), 0, "attached");
	soft_rules("cuMemHostUnregister:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_detach(hm, p, page), -EIO, "a detach that fails");
	is(released, 0, "keeps the owner");
	soft_rules(NULL, NULL);
	is(hetmem_detach(hm, p, page), 0, "until it succeeds");
	is(released, 1, "and no longer");
	munmap(p, 2 * page);
}

static void forked(void)
{
	struct hetmem_attach_params params = owned;
	char *p = pages(4);
	int status;

	released = 0;
	memset(p, 7, 4 * page);
	params.flags = HETMEM_ATTACH_DONTFORK;
	need(!attach(p, page) && !hetmem_attach(hm, p + page + 1, 2 * page, &params, NULL),
	     "attached");
	fflush(stdout);
	if (!fork()) {
		int bad = hetmem_detach(hm, p, page) != -EOWNERDEAD;
		unsigned char core;

		bad |= (attach(p, page) != -EOWNERDEAD) << 1;
		bad |= (p[0] != 7 || p[3 * page] != 7 || p[page] != 7) << 2;
		bad |= (!mincore(p + 2 * page, page, &core)) << 3;
		hetmem_close(hm);
		bad |= (released != 0) << 4;
		_exit(bad);
	}
	wait(&status);
	is(status, 0, "a child has the memory and no attachment, unless DONTFORK");
	ok(is_pinned(hm, p) && !released, "the parent's is as it was");
	is(hetmem_detach(hm, p, page) + hetmem_detach(hm, p + page + 1, 2 * page), 0,
	   "detached");
	if (!fork())
		_exit(p[2 * page] != 7);
	wait(&status);
	is(status, 0, "later children have all of it");
	munmap(p, 4 * page);
}

static char *shared_pages;

static void *thread(void *arg)
{
	char *p = shared_pages + (uintptr_t)arg * 8 * page;
	unsigned int i;

	for (i = 0; i < 200; i++)
		if (attach(p, 4 * page) || attach(p + page, 8 + i) ||
		    attach(shared_pages + 40 * page, page) ||
		    hetmem_detach(hm, p, 4 * page) ||
		    hetmem_detach(hm, shared_pages + 40 * page, page) ||
		    hetmem_detach(hm, p + page, 8 + i))
			return p;
	return NULL;
}

static void threads(void)
{
	shared_pages = pages(PAGES);
	released = 0;
	ok(!in_threads(thread), "threads: %s", hetmem_last_error());
	is(released, 4 * 200 * 3, "each owner is released once");
	munmap(shared_pages, PAGES * page);
}

/* What is attached, in the order of attaching; @reg: the first of a registration. */
static struct { unsigned int from, nr, reg; } model[16];
static struct { unsigned int from, nr, users; } regs[16];

static int expect(unsigned int from, unsigned int nr, unsigned int *reg)
{
	unsigned int i, free_one = 16;

	for (i = 0; i < 16; i++) {
		if (!regs[i].users) {
			free_one = free_one == 16 ? i : free_one;
		} else if (from >= regs[i].from &&
			   from + nr <= regs[i].from + regs[i].nr) {
			*reg = i;
			return 0;
		} else if (from < regs[i].from + regs[i].nr &&
			   regs[i].from < from + nr) {
			return -EEXIST;
		}
	}
	*reg = free_one;
	regs[free_one].from = from;
	regs[free_one].nr = nr;
	return 0;
}

static void random_program(void)
{
	const uint64_t begin = seed;
	unsigned int nr = 0, step, i, j, want = 0, bad = 0, reg = 0;
	char *p = pages(PAGES);

	released = 0;
	for (step = 0; step < 2000 && !bad; step++) {
		if (nr < 16 && (!nr || below(2))) {
			unsigned int from = below(PAGES), n = 1 + below(8);
			int err;

			n = from + n > PAGES ? PAGES - from : n;
			err = expect(from, n, &reg);
			bad = attach(p + from * page, n * page) != err;
			if (err)
				continue;
			regs[reg].users++;
			model[nr].from = from;
			model[nr].nr = n;
			model[nr++].reg = reg;
		} else {
			i = below(nr);
			bad = hetmem_detach(hm, p + model[i].from * page,
					    model[i].nr * page);
			/* Of two that are alike the newest ends: they share all. */
			regs[model[i].reg].users--;
			model[i] = model[--nr];
			want++;
		}
		for (i = 0; i < PAGES && !bad; i++) {
			bool pinned = false;

			for (j = 0; j < 16; j++)
				pinned |= regs[j].users && i >= regs[j].from &&
					  i < regs[j].from + regs[j].nr;
			bad = is_pinned(hm, p + i * page) != pinned;
		}
		bad |= released != want;
	}
	ok(!bad, "%u steps from seed %llu", step, (unsigned long long)begin);
	while (nr--)
		hetmem_detach(hm, p + model[nr].from * page, model[nr].nr * page);
	munmap(p, PAGES * page);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	page = sysconf(_SC_PAGESIZE);
	machines();
	hm = open_machine("managed");
	need(hm, "opens: %s", hetmem_last_error());
	sharing();
	chunks();
	bad_ranges();
	failures();
	forked();
	threads();
	random_program();
	ok(!hetmem_attach(hm, &page, 8, &owned, NULL), "left attached");
	hetmem_close(hm);
	return tap_end();
}
