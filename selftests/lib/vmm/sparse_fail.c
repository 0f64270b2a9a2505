// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every driver call that commits and decommits make fails once, in turn. A call that fails
 * leaves the list of committed ranges and the contents as they were, and succeeds when it is
 * made again. Nothing is left when the resource is destroyed.
 */
#include "sparse_test.h"
#include "failing_calls.h"

/* Beyond this the same path is taken again. */
#define MOST	12

static unsigned int wrong;

/* Fails at most once. */
#define twice(call)	({ int err_ = (call); err_ ? (call) : 0; })

static void expect(bool good, const char *rule, const char *what)
{
	if (!good && wrong++ < 20)
		printf("# %s: %s: %s\n", rule, what, hetmem_last_error());
}

struct world {
	struct hetmem_resource *res;
	struct mirror m;
	unsigned char value[UNITS];
	CUstream s[2];
	const char *rule;
};

static int change_once(struct world *w, bool commit, unsigned int from, unsigned int nr,
		       CUstream s)
{
	const size_t offset = from * GRANULE, length = nr * GRANULE;

	return commit ? hetmem_commit(w->res, w->m.p, offset, length, s) :
		hetmem_decommit(w->res, w->m.p, offset, length, s);
}

/* Commits or decommits units, and gives each that is committed a value of its own. */
static void change(struct world *w, bool commit, unsigned int from, unsigned int nr, CUstream s)
{
	const size_t requested = stats(w->res).requested;
	static unsigned char value;
	unsigned int u;
	int err = change_once(w, commit, from, nr, s);

	if (err) {
		expect(listed(w->res, &w->m), w->rule, "all or nothing");
		expect(stats(w->res).requested == requested, w->rule, "requested");
		expect(hetmem_last_error()[0], w->rule, "a text");
		err = change_once(w, commit, from, nr, s);
	}
	expect(!err, w->rule, commit ? "the second commit" : "the second decommit");
	for (u = from; u < from + nr && !err; u++) {
		w->m.has[u] = commit;
		w->value[u] = ++value;
		if (commit)
			expect(!twice(write_unit(w->m.p + u * GRANULE, value, s)), w->rule, "a use");
	}
	expect(listed(w->res, &w->m), w->rule, "the list");
}

static void check_contents(struct world *w)
{
	unsigned int u;

	expect(!twice(drv->cuStreamSynchronize(w->s[0])), w->rule, "the first stream");
	expect(!twice(drv->cuStreamSynchronize(w->s[1])), w->rule, "the second stream");
	for (u = 0; u < UNITS; u++)
		expect(!w->m.has[u] || has_unit(w->m.p + u * GRANULE, w->value[u]), w->rule,
		       "contents");
}

static void work(struct world *w)
{
	struct hetmem_resource *res = w->res;
	void *other = NULL;
	char *p = NULL;

	expect(!twice(sparse(res, UNITS * GRANULE, w->s[0], &p)), w->rule, "addresses");
	w->m.p = p;
	change(w, true, 0, 3, w->s[0]);
	change(w, false, 0, 3, w->s[0]);
	change(w, true, 0, 1, w->s[0]);
	/* Two of these are parked here, in use by another stream; two are new. */
	change(w, true, 1, 4, w->s[1]);
	change(w, false, 2, 3, w->s[1]);
	change(w, true, 20, 4, w->s[0]);
	check_contents(w);
	change(w, false, 20, 4, w->s[0]);
	expect(!twice(hetmem_alloc(res, 6 * MIB, 0, w->s[1], &other)), w->rule, "a block of parked units");
	expect(!twice(drv->cuMemsetD8Async((uintptr_t)other, 0xff, 6 * MIB, w->s[1])), w->rule, "its use");
	change(w, true, 20, 4, w->s[0]);
	expect(!twice(hetmem_free(res, other, 0, w->s[1])), w->rule, "its free");
	change(w, true, 40, 5, w->s[0]);
	check_contents(w);
	change(w, false, 40, 5, w->s[0]);
	hetmem_trim(res, 0, NULL);
	change(w, true, 40, 2, w->s[1]);
	expect(!twice(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP)), w->rule, "sleep");
	expect(!twice(hetmem_wake(res, NULL)), w->rule, "wake");
	check_contents(w);
	expect(!twice(hetmem_free(res, p, 0, w->s[1])), w->rule, "the free");
}

/* Returns how many calls of that name there were; see failing_calls.h. */
static long run_failing(const char *call, unsigned int nth)
{
	const char *rule = failing_rule(call, nth);
	struct world w = { .rule = rule };
	long made;

	w.res = make("pool(vmm,wait=60s)");
	w.s[0] = new_stream();
	w.s[1] = new_stream();
	soft_rules(rule, NULL);
	work(&w);
	made = failing_made(call, nth);
	soft_rules(NULL, NULL);
	drv->cuCtxSynchronize();
	hetmem_trim(w.res, 0, NULL);
	expect(!stats(w.res).requested, rule, "nothing is requested");
	expect(!hetmem_resource_destroy(w.res), rule, "destroyed");
	expect(!device_used(), rule, "all is given back");
	drv->cuStreamDestroy(w.s[0]);
	drv->cuStreamDestroy(w.s[1]);
	return made;
}

int main(void)
{
	unsigned int nth;
	long made;
	size_t i;

	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	count_made(from)
		run_failing(NULL, from);
	for (i = 0; i < NR_CALLS; i++) {
		if (!is_made[i])
			continue;
		wrong = 0;
		for (made = nth = 1; nth <= MOST && nth <= made && !wrong; nth++)
			made = run_failing(calls[i], nth);
		ok(!wrong, "%s fails, %u of %ld", calls[i], nth - 1, made);
	}
	close_soft();
	return tap_end();
}
