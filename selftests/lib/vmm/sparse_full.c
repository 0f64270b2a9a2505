// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks at max=: a commit counts the units that are parked in its own range, keeps them
 * while it looks for more memory, and is all or nothing.
 */
#include "sparse_test.h"

#define LIMIT	8	/* units of max= */

/* What every committed unit must have: memory of its own. */
static bool has_memory(char *p, const struct mirror *m, unsigned int units)
{
	unsigned int u;
	unsigned char c;

	for (u = 0; u < units; u++)
		if (m->has[u] && drv->cuMemsetD8Async((CUdeviceptr)(uintptr_t)p + u * GRANULE, 1 + u, GRANULE, NULL))
			return false;
	for (u = 0; u < units; u++)
		if (m->has[u] && (drv->cuMemcpyDtoHAsync(&c, (CUdeviceptr)(uintptr_t)p + (u + 1) * GRANULE - 1, 1, NULL) ||
				drv->cuStreamSynchronize(NULL) || c != 1 + u))
			return false;
	return true;
}

static void own_units(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=16M)");
	struct mirror m = { .p = get_sparse(res, 32 * GRANULE) };
	unsigned int u;

	is(hetmem_commit(res, m.p, 0, LIMIT * GRANULE, NULL), 0, "all that max= allows");
	is(hetmem_decommit(res, m.p, 0, LIMIT * GRANULE, NULL), 0, "parked");
	drv->cuCtxSynchronize();
	is(hetmem_commit(res, m.p, 0, (LIMIT + 1) * GRANULE, NULL), -ENOMEM, "a unit too many");
	ok(listed(res, &m), "nothing is committed");
	is(hetmem_commit(res, m.p, 2 * GRANULE, LIMIT * GRANULE, NULL), 0, "as many elsewhere");
	for (u = 2; u < LIMIT + 2; u++)
		m.has[u] = true;
	ok(listed(res, &m), "all of them");
	ok(has_memory(m.p, &m, 32), "with memory");
	is(held(res), LIMIT * GRANULE, "not above max=");
	hetmem_free(res, m.p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/*
 * The device is full, and free memory is in handles of all sizes: some are units, the others are
 * given back for new units.
 */
static void other_handles(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get_sparse(res, 800 * MIB);
	void *block = NULL;

	need(!hetmem_alloc(res, 800 * MIB, 0, NULL, &block), "a block: %s", hetmem_last_error());
	is(hetmem_commit(res, p, 0, 800 * MIB, NULL), -ENOMEM, "no room");
	need(!hetmem_free(res, block, 0, NULL), "free");
	is(hetmem_commit(res, p, 0, 800 * MIB, NULL), 0, "all that was freed is committed: %s",
	   hetmem_last_error());
	hetmem_free(res, p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static void random_commits(unsigned int round)
{
	struct hetmem_resource *res = make("pool(vmm,max=16M)");
	struct mirror m[2] = { { .p = get_sparse(res, UNITS * GRANULE) },
			       { .p = get_sparse(res, UNITS * GRANULE) } };
	unsigned int n, u, from, length, total, missing, right = 0, tries = 0;
	int err;

	seed = round;
	for (n = 0; n < 150; n++) {
		struct mirror *one = &m[below(2)];

		from = below(UNITS);
		length = 1 + below(UNITS - from < 12 ? UNITS - from : 12);
		for (total = 0, u = 0; u < UNITS; u++)
			total += m[0].has[u] + m[1].has[u];
		for (missing = 0, u = from; u < from + length; u++)
			missing += !one->has[u];
		drv->cuCtxSynchronize();
		tries++;
		if (below(2) && missing == length) {
			err = hetmem_commit(res, one->p, from * GRANULE, length * GRANULE, NULL);
			right += err == (total + length > LIMIT ? -ENOMEM : 0);
			for (u = from; u < from + length && !err; u++)
				one->has[u] = true;
		} else if (!missing) {
			err = hetmem_decommit(res, one->p, from * GRANULE, length * GRANULE, NULL);
			right += !err;
			for (u = from; u < from + length && !err; u++)
				one->has[u] = false;
		} else {
			for (u = 0; u < UNITS && !one->has[u]; u++)
				;
			if (u < UNITS) {
				err = hetmem_decommit(res, one->p, u * GRANULE, GRANULE, NULL);
				right += !err;
				one->has[u] = false;
			} else {
				right++;
			}
		}
		if (!listed(res, &m[0]) || !listed(res, &m[1]) || held(res) > LIMIT * GRANULE ||
		    !has_memory(m[0].p, &m[0], UNITS) || !has_memory(m[1].p, &m[1], UNITS))
			right -= 1000;
	}
	is(right, tries, "round %u: as many as max= allows, each with memory", round);
	hetmem_free(res, m[0].p, 0, NULL);
	hetmem_free(res, m[1].p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
}

int main(int argc, char **argv)
{
	unsigned int round, rounds = argc > 1 ? strtoul(argv[1], NULL, 0) : 20;

	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	own_units();
	other_handles();
	for (round = 1; round <= rounds; round++)
		random_commits(round);
	close_soft();
	return tap_end();
}
