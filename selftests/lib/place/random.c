// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * All placement calls at random, by threads whose parts of an arena share pages, with a
 * model: what every byte is, what is advised about every page, what is attached. CPU and
 * device write, children are forked, memory is mapped anew, the driver fails. No call
 * changes a byte, and no byte of a neighbour.
 *
 * random [SEED [STEPS]]: the order of threads is the machine's, the steps of each are the
 * seed's.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "platform/machine.h"

#define THREADS		3U
#define PAGES		24U		/* of a thread, less than one in all */
#define MAX_ATTACHED	8U
#define NOWHERE		HETMEM_LOC(HETMEM_UNKNOWN, 0)

static struct hetmem *hm;
static const struct hm_api *d;
static size_t page, part;
static unsigned int steps = 250, attached, released;
static uint64_t seed = 1;
static bool fails;		/* the driver may fail */
static bool registers;		/* a device does not use all memory */
static bool mixed;		/* another does, except what is registered */

struct advice {
	uint32_t preferred;
	uint32_t flags;
	uint64_t devices;
};

/* One thread's part of one arena. */
struct piece {
	unsigned char *mem;
	unsigned char *bytes;		/* as they should be */
	bool managed;
	uintptr_t first;		/* page that no neighbour has a part of */
	struct advice advice[PAGES];	/* from there on */
	unsigned int nr_pages;
	struct { unsigned char *p; size_t size, reg; } attached[MAX_ATTACHED];
	struct { unsigned char *p; size_t size; unsigned int users; } regs[MAX_ATTACHED];
	unsigned int nr_attached;
};

struct worker {
	uint64_t random;
	unsigned int number;
	unsigned char *staging;
	CUcontext ctx;
	CUstream stream;
	struct piece pieces[2];
	unsigned int nr_pieces;
	char bad[200];
	unsigned int step;
};

static unsigned int chance(struct worker *w, unsigned int n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 20) % n;
}

__attribute__((format(printf, 2, 3)))
static void wrong(struct worker *w, const char *fmt, ...)
{
	va_list args;

	if (*w->bad)
		return;
	va_start(args, fmt);
	vsnprintf(w->bad, sizeof(w->bad), fmt, args);
	va_end(args);
}

/* An error only if the driver fails, or if a part of the range alone is page-locked. */
static bool done(struct worker *w, int err, const char *what)
{
	if (err == -EINVAL && registers &&
	    strstr(hetmem_last_error(), mixed ? "" : "split it"))
		return false;
	if (err && !(__atomic_load_n(&fails, __ATOMIC_RELAXED) &&
		     err == -EIO))
		wrong(w, "%s: %d: %s", what, err, hetmem_last_error());
	return !err;
}

static uint32_t location(struct worker *w)
{
	switch (chance(w, 4)) {
	case 0:
		return HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	case 1:
		return HETMEM_LOC(HETMEM_HOST, 0);
	default:
		return HETMEM_LOC(HETMEM_DEVICE, chance(w, hetmem_device_count(hm)));
	}
}

static void range(struct worker *w, size_t *from, size_t *size)
{
	*from = chance(w, part);
	*size = 1 + chance(w, chance(w, 2) ? part - *from : 1 + (part - *from) / 8);
}

static void fill(struct worker *w, unsigned char *to, size_t size)
{
	const unsigned int value = chance(w, 256);
	size_t i;

	for (i = 0; i < size; i++)
		to[i] = value + i * 7;
}

static void check(struct worker *w, const struct piece *p, size_t from, size_t size,
		  const char *what)
{
	if (memcmp(p->mem + from, p->bytes + from, size))
		wrong(w, "%s: [%zu, +%zu) is not what was written", what, from, size);
}

static void cpu_writes(struct worker *w, struct piece *p)
{
	size_t from, size;

	range(w, &from, &size);
	d->cuStreamSynchronize(w->stream);
	fill(w, p->bytes + from, size);
	memcpy(p->mem + from, p->bytes + from, size);
}

static void device_writes(struct worker *w, struct piece *p)
{
	size_t from, size;

	range(w, &from, &size);
	/* The work before this may still read what is there. */
	d->cuStreamSynchronize(w->stream);
	fill(w, p->bytes + from, size);
	memcpy(w->staging, p->bytes + from, size);
	if (d->cuMemcpyAsync((uintptr_t)p->mem + from, (uintptr_t)w->staging, size,
			     w->stream))
		wrong(w, "cuMemcpyAsync fails");
}

/* The memory is the CPU's when the call returns: nothing else is waited for. */
static void moves(struct worker *w, struct piece *p)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	size_t from, size;

	range(w, &from, &size);
	if (done(w, hetmem_move(hm, p->mem + from, size, location(w), w->stream, 0, &m),
		 "move"))
		check(w, p, from, size, m.how);
}

static void prefetches(struct worker *w, struct piece *p)
{
	struct hetmem_prefetch_range r[8];
	size_t from, size, nr = 1 + chance(w, 8), i;

	range(w, &from, &size);
	if (chance(w, 2)) {
		done(w, hetmem_prefetch(hm, p->mem + from, size, location(w), w->stream,
					NULL), "prefetch");
		return;
	}
	for (i = 0; i < nr; i++) {
		struct piece *any = &w->pieces[chance(w, w->nr_pieces)];

		range(w, &from, &size);
		r[i] = (struct hetmem_prefetch_range){
			.size = sizeof(r[i]), .ptr = any->mem + from, .bytes = size,
			.location = location(w), .result = 1,
		};
	}
	done(w, hetmem_prefetch_batch(hm, r, nr, w->stream), "batch");
	for (i = 0; i < nr; i++)
		if (r[i].result > 0 || r[i].piece >= nr)
			wrong(w, "range %zu of a batch has no result", i);
}

static void apply(struct advice *a, int what, uint32_t where)
{
	const bool host = HETMEM_LOC_KIND(where) == HETMEM_HOST;
	const uint64_t bit = host ? 0 : 1ULL << HETMEM_LOC_INDEX(where);
	const uint32_t flag = host ? HETMEM_ADVISED_BY_HOST : 0;

	if (what == HETMEM_ADVISE_PREFERRED || what == HETMEM_ADVISE_NOT_PREFERRED)
		a->preferred = what == HETMEM_ADVISE_PREFERRED ? where : NOWHERE;
	else if (what == HETMEM_ADVISE_ACCESSED_BY) {
		a->devices |= bit;
		a->flags |= flag;
	} else if (what == HETMEM_ADVISE_NOT_ACCESSED_BY) {
		a->devices &= ~bit;
		a->flags &= ~flag;
	} else if (what == HETMEM_ADVISE_READ_MOSTLY)
		a->flags |= HETMEM_ADVISED_READ_MOSTLY;
	else
		a->flags &= ~HETMEM_ADVISED_READ_MOSTLY;
}

static bool advise(struct worker *w, struct piece *p, size_t from, size_t size, int what,
		   uint32_t where)
{
	const uintptr_t start = (uintptr_t)p->mem + from;
	struct hetmem_moved m = { .size = sizeof(m) };
	uintptr_t at;

	if (!done(w, hetmem_advise(hm, (void *)start, size, what, where, &m), "advise"))
		return false;
	if (!strcmp(m.how, "none"))
		return true;
	for (at = start & ~(page - 1); at < start + size; at += page)
		if (at >= p->first && at < p->first + p->nr_pages * page)
			apply(&p->advice[(at - p->first) / page], what, where);
	return true;
}

static void check_advice(struct worker *w, const struct piece *p)
{
	struct hetmem_advised a[4];
	uintptr_t at = p->first, next;
	const uintptr_t end = at + p->nr_pages * page;
	const struct advice none = { .preferred = NOWHERE }, *m;
	ssize_t n, i;

	while (at < end) {
		n = hetmem_advised(hm, (void *)at, end - at, a, 4, &next);
		if (n < 0 || next <= at) {
			wrong(w, "advised: %zd", n);
			return;
		}
		for (i = 0; at < next; at += page) {
			struct advice is = none;

			while (i < n && a[i].end <= at)
				i++;
			if (i < n && a[i].start <= at) {
				is.preferred = a[i].preferred;
				is.flags = a[i].flags;
				is.devices = a[i].devices;
			}
			m = &p->advice[(at - p->first) / page];
			if (m->preferred != is.preferred || m->flags != is.flags ||
			    m->devices != is.devices)
				wrong(w, "advice about page %zu is not that of the model",
				      (at - p->first) / page);
		}
	}
}

static void advises(struct worker *w, struct piece *p)
{
	size_t from, size;

	range(w, &from, &size);
	advise(w, p, from, size, chance(w, 6), location(w));
	check_advice(w, p);
}

static void count_release(void *owner)
{
	__atomic_add_fetch((unsigned int *)owner, 1, __ATOMIC_RELAXED);
}

static bool detach(struct worker *w, struct piece *p, unsigned int i)
{
	if (!done(w, hetmem_detach(hm, p->attached[i].p, p->attached[i].size), "detach"))
		return false;
	p->regs[p->attached[i].reg].users--;
	p->attached[i] = p->attached[--p->nr_attached];
	return true;
}

static void attaches(struct worker *w, struct piece *p)
{
	struct hetmem_attach_params params = {
		.size = sizeof(params), .release = count_release, .owner = &released,
		.chunk = chance(w, 3) ? 0 : page * (1 + chance(w, 3)),
	};
	struct hetmem_moved m = { .size = sizeof(m) };
	size_t from, size, i, free_one = MAX_ATTACHED, within = MAX_ATTACHED;
	bool overlaps = false;
	int err;

	if (p->nr_attached == MAX_ATTACHED || (p->nr_attached && chance(w, 2))) {
		detach(w, p, chance(w, p->nr_attached));
		return;
	}
	range(w, &from, &size);
	for (i = 0; i < MAX_ATTACHED; i++) {
		unsigned char *start = p->regs[i].p, *end = start + p->regs[i].size;

		if (!p->regs[i].users)
			free_one = i;
		else if (!p->regs[i].size)
			continue;
		else if (p->mem + from >= start && p->mem + from + size <= end)
			within = i;
		else if (p->mem + from < end && start < p->mem + from + size)
			overlaps = true;
	}
	err = hetmem_attach(hm, p->mem + from, size, &params, &m);
	if (overlaps && err == -EEXIST)
		return;
	if (overlaps && !err)
		wrong(w, "attached across registrations");
	if (!done(w, err, "attach"))
		return;
	if (!strcmp(m.how, "driver") !=
	    (registers && !p->managed && within == MAX_ATTACHED))
		wrong(w, "attached by %s: %s", m.how, m.reason);
	__atomic_add_fetch(&attached, 1, __ATOMIC_RELAXED);
	i = within < MAX_ATTACHED ? within : free_one;
	if (!p->regs[i].users) {
		/* Without a registration nothing overlaps. */
		p->regs[i].p = p->mem + from;
		p->regs[i].size = strcmp(m.how, "driver") ? 0 : size;
	}
	p->regs[i].users++;
	p->attached[p->nr_attached].p = p->mem + from;
	p->attached[p->nr_attached].size = size;
	p->attached[p->nr_attached++].reg = i;
}

/* In place of the driver's: pages that are discarded in part lose all of their contents. */
static struct hm_driver real;

static CUresult poison(CUdeviceptr *ptrs, size_t *sizes, size_t nr, unsigned long long flags,
		       CUstream stream)
{
	const uintptr_t start = *ptrs & ~(page - 1);
	const uintptr_t end = (*ptrs + *sizes + page - 1) & ~(page - 1);
	const CUresult res = real.cuMemDiscardBatchAsync(ptrs, sizes, nr, flags, stream);

	if (res || d->cuStreamSynchronize(stream))
		return res;
	memset((void *)start, 0xdb, end - start);
	return res;
}

static void discards(struct worker *w, struct piece *p)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	size_t from, size;
	bool lost;

	range(w, &from, &size);
	lost = done(w, hetmem_discard(hm, p->mem + from, size, w->stream, &m), "discard") &&
	       !strcmp(m.how, "driver");
	d->cuStreamSynchronize(w->stream);
	if (lost) {
		fill(w, p->bytes + from, size);
		memcpy(p->mem + from, p->bytes + from, size);
	}
}

/* Fresh memory at the same pages, after what place.h asks for. */
static void maps_anew(struct worker *w, struct piece *p)
{
	const uintptr_t first = p->first + chance(w, p->nr_pages) * page;
	const size_t size = page * (1 + chance(w, (p->first + p->nr_pages * page - first) /
						  page));
	const size_t from = first - (uintptr_t)p->mem;
	int i;

	d->cuStreamSynchronize(w->stream);
	while (p->nr_attached)
		if (!detach(w, p, p->nr_attached - 1))
			return;
	for (i = 0; i < hetmem_device_count(hm); i++)
		if (!advise(w, p, from, size, HETMEM_ADVISE_NOT_ACCESSED_BY,
			    HETMEM_LOC(HETMEM_DEVICE, i)))
			return;
	for (i = HETMEM_ADVISE_NOT_PREFERRED; i <= HETMEM_ADVISE_NOT_READ_MOSTLY; i += 2)
		if (!advise(w, p, from, size, i, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)))
			return;
	/* In one call: another thread's mmap() would get a hole. */
	if (mmap((void *)first, size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		wrong(w, "mmap fails");
	memset(p->bytes + from, 0, size);
	check(w, p, from, size, "mapped anew");
}

static void forks(struct worker *w, struct piece *p)
{
	int status = -1;
	pid_t child;

	d->cuStreamSynchronize(w->stream);
	child = fork();
	if (!child) {
		int bad = memcmp(p->mem, p->bytes, part) != 0;

		bad |= (hetmem_prefetch(hm, p->mem, part, HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
					NULL) != -EOWNERDEAD) << 1;
		bad |= (hetmem_attach(hm, p->mem, part, NULL, NULL) != -EOWNERDEAD) << 2;
		bad |= (hetmem_advise(hm, p->mem, part, 0, 0, NULL) != -EOWNERDEAD) << 3;
		memset(p->mem, 0xee, part);
		hetmem_close(hm);
		_exit(bad);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		wrong(w, "a child: %#x", status);
}

static void step(struct worker *w)
{
	struct piece *p = &w->pieces[chance(w, w->nr_pieces)];
	const unsigned int what = chance(w, 100);
	const bool in_context = what < 25 || chance(w, 3);

	d->cuCtxSetCurrent(in_context ? w->ctx : NULL);
	if (what < 15)
		cpu_writes(w, p);
	else if (what < 25)
		device_writes(w, p);
	else if (what < 40)
		prefetches(w, p);
	else if (what < 55)
		moves(w, p);
	else if (what < 72)
		advises(w, p);
	else if (what < 88)
		attaches(w, p);
	else if (what < 94)
		discards(w, p);
	else if (what < 98 && !p->managed)
		maps_anew(w, p);
	else if (!p->managed)
		forks(w, p);
	d->cuCtxSetCurrent(w->ctx);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int i;

	if (d->cuCtxSetCurrent(w->ctx) ||
	    d->cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING)) {
		wrong(w, "no stream");
		return NULL;
	}
	for (w->step = 0; w->step < steps && !*w->bad; w->step++) {
		step(w);
		if (w->step % 16)
			continue;
		d->cuStreamSynchronize(w->stream);
		for (i = 0; i < w->nr_pieces; i++)
			check(w, &w->pieces[i], 0, part, "in between");
		if (w->number)
			continue;
		/* Every other time some call of the driver fails now and then. */
		__atomic_store_n(&fails, true, __ATOMIC_RELAXED);
		soft_rules(w->step / 16 % 2 ? "cuMemPrefetchAsync:3,cuMemAdvise:3,"
			   "cuMemHostRegister:3,cuMemHostUnregister:2,"
			   "cuEventRecord:2,cuMemDiscardBatchAsync:2" : NULL,
			   "cuMemcpyAsync:1ms");
	}
	d->cuStreamSynchronize(w->stream);
	d->cuStreamDestroy(w->stream);
	d->cuCtxSetCurrent(NULL);
	return NULL;
}

static void make_piece(struct worker *w, unsigned char *arena, bool managed)
{
	struct piece *p = &w->pieces[w->nr_pieces++];
	unsigned int i;

	p->mem = arena + w->number * part;
	p->managed = managed;
	p->bytes = calloc(1, part);
	need(p->bytes, "memory");
	memset(p->mem, 0, part);
	p->first = ((uintptr_t)p->mem + page - 1) & ~(page - 1);
	p->nr_pages = ((uintptr_t)p->mem + part - p->first) / page;
	for (i = 0; i < PAGES; i++)
		p->advice[i].preferred = NOWHERE;
}

static void run(const char *machine, bool has_managed)
{
	static struct worker workers[THREADS];
	const size_t size = THREADS * PAGES * page;
	unsigned char *anon = mmap(NULL, size, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t threads[THREADS];
	CUdeviceptr managed = 0;
	unsigned int i, j;
	CUcontext ctx;

	hm = open_machine(machine);
	need(hm && anon != MAP_FAILED, "%s: %s", machine, hetmem_last_error());
	d = api_of(hm);
	real = hm->driver;
	if (real.cuMemDiscardBatchAsync)
		hm->driver.cuMemDiscardBatchAsync = poison;
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx), "a context");
	if (has_managed)
		need(!d->cuMemAllocManaged(&managed, size, CU_MEM_ATTACH_GLOBAL),
		     "managed memory");
	attached = released = 0;
	fails = registers = mixed = false;
	for (i = 0; i < (unsigned int)hetmem_device_count(hm); i++)
		registers |= !platform_of(hm, i).pageable;
	for (i = 0; i < (unsigned int)hetmem_device_count(hm); i++)
		mixed |= registers && platform_of(hm, i).pageable;
	memset(workers, 0, sizeof(workers));
	for (i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];

		w->number = i;
		w->random = (seed + i + 1) * 0x9e3779b97f4a7c15ULL;
		w->ctx = ctx;
		w->staging = malloc(part);
		need(w->staging, "memory");
		make_piece(w, anon, false);
		if (managed)
			make_piece(w, (unsigned char *)(uintptr_t)managed, true);
	}
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&threads[i], NULL, work, &workers[i]), "threads");
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	soft_rules(NULL, NULL);
	for (i = 0; i < THREADS; i++) {
		struct worker *w = &workers[i];

		for (j = 0; j < w->nr_pieces; j++) {
			check(w, &w->pieces[j], 0, part, "at the end");
			check_advice(w, &w->pieces[j]);
			free(w->pieces[j].bytes);
		}
		ok(!*w->bad, "%s: thread %u, %u steps from seed %llu: %s", machine, i,
		   w->step, (unsigned long long)seed, w->bad);
		free(w->staging);
	}
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
	is(released, attached, "every owner was released once");
	munmap(anon, size);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		steps = strtoul(argv[2], NULL, 0);
	page = sysconf(_SC_PAGESIZE);
	part = (PAGES - 1) * page - 1000;
	run("managed; managed", true);
	run("hmm; hmm", true);
	run("ats node=0; ats node=0", true);
	run("cdmm host_node=0", true);
	run("integrated", true);
	run("hmm; managed", true);
	run("none", false);
	return tap_end();
}
