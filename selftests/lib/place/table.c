// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What each call does on each machine with each kind of memory: the table of
 * Documentation/placement.md. Each answer is a letter: d the driver, p move_pages(2),
 * m mbind(2), - nothing. In upper case: with a reason, because something else was done, or
 * because no page moved (these pages were never touched). A - has a reason, too.
 */
#include <ctype.h>
#include <sys/mman.h>

#include "platform/machine.h"

#define LEN	((size_t)1 << 20)

static struct hetmem *hm;

enum memory { MANAGED, MALLOCED, SYSTEM, PINNED, DEVICE, VMM, NR_MEMORY };

static const char *const memories[NR_MEMORY] = {
	"managed", "malloc'd", "system", "pinned", "device", "VMM",
};

#define DEVICE0	HETMEM_LOC(HETMEM_DEVICE, 0)
#define ANY	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define NODE0	HETMEM_LOC(HETMEM_HOST, 0)

/* @advice: -1: a prefetch, -2: discard */
static const struct {
	const char *name;
	int advice;
	uint32_t location;
} calls[] = {
	{ "prefetch to the device", -1, DEVICE0 },
	{ "prefetch to the host", -1, ANY },
	{ "prefetch to node 0", -1, NODE0 },
	{ "discard", -2, 0 },
	{ "prefer the device", HETMEM_ADVISE_PREFERRED, DEVICE0 },
	{ "prefer the host", HETMEM_ADVISE_PREFERRED, ANY },
	{ "prefer node 0", HETMEM_ADVISE_PREFERRED, NODE0 },
	{ "prefer nothing", HETMEM_ADVISE_NOT_PREFERRED, 0 },
	{ "accessed by the device", HETMEM_ADVISE_ACCESSED_BY, DEVICE0 },
	{ "accessed by the host", HETMEM_ADVISE_ACCESSED_BY, ANY },
	{ "not accessed by the device", HETMEM_ADVISE_NOT_ACCESSED_BY, DEVICE0 },
	{ "read mostly", HETMEM_ADVISE_READ_MOSTLY, 0 },
	{ "not read mostly", HETMEM_ADVISE_NOT_READ_MOSTLY, 0 },
};

#define NR_CALLS	(sizeof(calls) / sizeof(calls[0]))

/* Malloc'd and system memory are alike, and so are all that stay where they are. */
static const struct {
	const char *machine;
	const char *managed;
	const char *pageable;
} rows[] = {
	{ "none", NULL, "--P---mm-----" },
	{ "managed", "ddddddddddddd", "--P---mm-----" },
	{ "managed driver.concurrent=no", "-------------", "--P---mm-----" },
	{ "hmm", "ddddddddddddd", "ddd-dddddddDd" },
	{ "ats node=0", "ddddddddddddd", "ddd-mmmm-----" },
	{ "cdmm host_node=0", "ddddddddddddd", "D-P-Mmmm-----" },
	{ "cdmm", "ddddddddddddd", "D-P--mmm-----" },
	{ "integrated", "-------------", "--P---mm-----" },
};

static void *get(enum memory memory, struct hetmem_resource **res)
{
	static const char *const specs[NR_MEMORY] = {
		[MANAGED] = "managed", [PINNED] = "pinned", [DEVICE] = "device",
		[VMM] = "pool(vmm)",
	};
	void *p = NULL;

	*res = NULL;
	if (memory == MALLOCED) {
		p = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		need(p != MAP_FAILED, "memory");
		return p;
	}
	if (memory == SYSTEM) {
		need(!hetmem_system_alloc(hm, LEN, &p), "system memory");
		return p;
	}
	need(!hetmem_resource_create(hm, specs[memory], res) &&
	     !hetmem_alloc(*res, LEN, 0, NULL, &p), "%s: %s", specs[memory],
	     hetmem_last_error());
	return p;
}

static void put(enum memory memory, struct hetmem_resource *res, void *p)
{
	if (memory == MALLOCED)
		munmap(p, LEN);
	else if (memory == SYSTEM)
		hetmem_system_free(hm, p);
	else
		need(!hetmem_free(res, p, 0, NULL) && !hetmem_resource_destroy(res),
		     "freed: %s", hetmem_last_error());
}

static int make(size_t call, void *p, struct hetmem_moved *m)
{
	*m = (struct hetmem_moved){ .size = sizeof(*m), .how = "", .reason = "x" };
	if (calls[call].advice == -1)
		return hetmem_prefetch(hm, p, LEN, calls[call].location, NULL, m);
	if (calls[call].advice == -2)
		return hetmem_discard(hm, p, LEN, NULL, m);
	return hetmem_advise(hm, p, LEN, calls[call].advice, calls[call].location, m);
}

static char letter(const struct hetmem_moved *m)
{
	static const struct { const char *how; char letter; } letters[] = {
		{ "driver", 'd' }, { "module", 'k' }, { "move_pages", 'p' },
		{ "mbind", 'm' }, { "none", '-' },
	};
	size_t i;

	for (i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
		if (!strcmp(m->how, letters[i].how))
			return *m->reason ? toupper(letters[i].letter) :
				letters[i].letter;
	return '?';
}

static void row(const char *machine, enum memory memory, const char *want)
{
	struct hetmem_resource *res;
	char got[NR_CALLS + 1] = "";
	struct hetmem_moved m;
	void *p = get(memory, &res);
	size_t i, silent = 0;

	for (i = 0; i < NR_CALLS; i++) {
		int err = make(i, p, &m);

		got[i] = err ? '!' : letter(&m);
		if (err)
			printf("# %s: %d: %s\n", calls[i].name, err, hetmem_last_error());
		silent += got[i] == '-' && !*m.reason;
		if (got[i] != want[i])
			printf("# %s, %s memory, %s: %s: %s\n", machine,
			     memories[memory], calls[i].name, m.how, m.reason);
	}
	ok(!strcmp(got, want), "%s, %s memory: %s, not %s", machine, memories[memory],
	   want, got);
	is(silent, 0, "nothing is left undone in silence");
	put(memory, res, p);
}

/* What was advised is told as it was advised, and only what is in force. */
static void remembered(const char *machine, enum memory memory, const char *want)
{
	struct hetmem_advised a[4];
	struct hetmem_resource *res;
	struct hetmem_moved m;
	void *p = get(memory, &res);
	uintptr_t next;
	size_t i, bad = 0;

	for (i = 4; i < NR_CALLS; i++) {
		const int advice = calls[i].advice;
		ssize_t n;

		make(i, p, &m);
		n = hetmem_advised(hm, p, LEN, a, 4, &next);
		bad += n < 0 || next != (uintptr_t)p + LEN;
		if (advice == HETMEM_ADVISE_PREFERRED && want[i] != '-')
			bad += n != 1 || a[0].preferred != calls[i].location;
		else if (advice == HETMEM_ADVISE_ACCESSED_BY && want[i] != '-')
			bad += n != 1 || !(a[0].devices || a[0].flags);
		else if (advice == HETMEM_ADVISE_READ_MOSTLY && want[i] != '-')
			bad += n != 1 || !(a[0].flags & HETMEM_ADVISED_READ_MOSTLY);
		else if (want[i] == '-' && !strpbrk(want + 4, "dDmM"))
			bad += n != 0;
	}
	is(bad, 0, "%s, %s memory: what is advised is told", machine, memories[memory]);
	put(memory, res, p);
	if (memory == MALLOCED) {
		/* Not known to be gone: take it back, as place.h says. */
		void *q = mmap(p, LEN, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

		hetmem_advise(hm, q, LEN, HETMEM_ADVISE_NOT_PREFERRED, 0, NULL);
		hetmem_advise(hm, q, LEN, HETMEM_ADVISE_NOT_READ_MOSTLY, 0, NULL);
		hetmem_advise(hm, q, LEN, HETMEM_ADVISE_NOT_ACCESSED_BY, ANY, NULL);
		hetmem_advise(hm, q, LEN, HETMEM_ADVISE_NOT_ACCESSED_BY, DEVICE0, NULL);
		munmap(q, LEN);
	}
	is(hetmem_advised(hm, p, LEN, a, 4, &next), 0, "and forgotten");
}

int main(void)
{
	static const char stays[] = "-------------";
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		hm = open_machine(rows[i].machine);
		need(hm, "%s: %s", rows[i].machine, hetmem_last_error());
		if (rows[i].managed) {
			row(rows[i].machine, MANAGED, rows[i].managed);
			remembered(rows[i].machine, MANAGED, rows[i].managed);
		}
		row(rows[i].machine, MALLOCED, rows[i].pageable);
		remembered(rows[i].machine, MALLOCED, rows[i].pageable);
		row(rows[i].machine, SYSTEM, rows[i].pageable);
		remembered(rows[i].machine, SYSTEM, rows[i].pageable);
		row(rows[i].machine, PINNED, stays);
		row(rows[i].machine, DEVICE, stays);
		row(rows[i].machine, VMM, stays);
		hetmem_close(hm);
	}
	return tap_end();
}
