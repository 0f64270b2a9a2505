// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks: addresses first, memory where it is committed. Decommitted units are parked,
 * and serve others when these need memory.
 */
#include "shrink_test.h"

static int sparse(struct hetmem_resource *res, size_t bytes, hetmem_stream s, char **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = s, .flags = HETMEM_ALLOC_SPARSE,
	};

	return hetmem_alloc_with(res, &params, (void **)p);
}

static char *get_sparse(struct hetmem_resource *res, size_t bytes)
{
	char *p = NULL;

	need(!sparse(res, bytes, NULL, &p), "sparse: %s", hetmem_last_error());
	return p;
}

static void basic(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get_sparse(res, 1 << 30), *q;
	size_t made;

	is(held(res), 0, "addresses are no memory");
	is(stats(res).requested, 0, "nor requested");
	is(stats(res).addresses, (size_t)1 << 30, "but counted");
	is(hetmem_commit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "commit: %s", hetmem_last_error());
	is(held(res), 4 * MIB, "two units");
	is(stats(res).requested, 4 * MIB, "requested");
	memset(p + 8 * MIB, 5, 4 * MIB);
	is(hetmem_commit(res, p, 8 * MIB, 2 * MIB, NULL), -EEXIST, "twice");
	is(hetmem_commit(res, p, 6 * MIB, 4 * MIB, NULL), -EEXIST, "in part");
	is(held(res), 4 * MIB, "all or nothing");
	is(hetmem_decommit(res, p, 0, 2 * MIB, NULL), -ENOENT, "not committed");
	is(hetmem_commit(res, p, MIB, 2 * MIB, NULL), -EINVAL, "no unit");
	is(hetmem_commit(res, p, 0, MIB, NULL), -EINVAL, "no unit's length");
	is(hetmem_commit(res, p, 1 << 30, 2 * MIB, NULL), -EINVAL, "beyond");
	is(hetmem_commit(res, p, SIZE_MAX - MIB, 2 * MIB, NULL), -EINVAL, "overflow");
	ok(all_bytes(p + 8 * MIB, 5, 4 * MIB), "contents");
	is(hetmem_decommit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "decommit");
	is(held(res), 4 * MIB, "parked");
	is(stats(res).requested, 0, "not requested");
	made = stats(res).driver_calls;
	is(hetmem_commit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "again");
	is(hetmem_decommit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "and again");
	is(stats(res).driver_calls, made, "without a call of the driver");
	is(hetmem_commit(res, p, 100 * MIB, 4 * MIB, NULL), 0, "elsewhere");
	is(held(res), 4 * MIB, "the same memory");
	is(hetmem_decommit(res, p, 100 * MIB, 4 * MIB, NULL), 0, "parked there");
	q = get(res, 4 * MIB, NULL);
	is(held(res), 4 * MIB, "an allocation takes it");
	memset(q, 1, 4 * MIB);
	is(hetmem_commit(res, p, 100 * MIB, 2 * MIB, NULL), 0, "where it was: %s", hetmem_last_error());
	memset(p + 100 * MIB, 2, 2 * MIB);
	ok(all_bytes(q, 1, 4 * MIB), "apart");
	is(held(res), 6 * MIB, "new memory");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(hetmem_commit(res, p, 0, 2 * MIB, NULL), -EBUSY, "asleep");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	ok(all_bytes(q, 1, 4 * MIB) && all_bytes(p + 100 * MIB, 2, 2 * MIB), "contents stay");
	is(hetmem_decommit(res, p, 100 * MIB, 2 * MIB, NULL), 0, "parked");
	hetmem_trim(res, 0, NULL);
	is(held(res), 4 * MIB, "a trim takes it");
	is(hetmem_commit(res, p, 0, 1 << 26, NULL), 0, "64 MiB");
	is(hetmem_free(res, p, 1 << 26, NULL), -EINVAL, "its size is that of its addresses");
	is(hetmem_free(res, p, 1 << 30, NULL), 0, "free");
	is(stats(res).requested, 4 * MIB, "requested");
	is(stats(res).addresses, 0, "no addresses");
	made = stats(res).driver_calls;
	is(get_sparse(res, 1 << 30) == p, 1, "the next has the same addresses");
	is(hetmem_commit(res, p, 0, 1 << 26, NULL), 0, "and units");
	is(stats(res).driver_calls, made, "without a call of the driver");
	hetmem_free(res, p, 0, NULL);
	hetmem_free(res, q, 0, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(device_used(), 0, "the driver agrees");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	basic();
	close_soft();
	return tap_end();
}
