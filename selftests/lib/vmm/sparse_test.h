/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The tests of sparse blocks share this. */
#ifndef HETMEM_SELFTESTS_SPARSE_TEST_H
#define HETMEM_SELFTESTS_SPARSE_TEST_H

#include "shrink_test.h"

static int sparse(struct hetmem_resource *res, size_t bytes, hetmem_stream s, char **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = s, .flags = HETMEM_ALLOC_SPARSE,
	};

	return hetmem_alloc_with(res, &params, (void **)p);
}

__attribute__((unused))
static char *get_sparse(struct hetmem_resource *res, size_t bytes)
{
	char *p = NULL;

	need(!sparse(res, bytes, NULL, &p), "sparse: %s", hetmem_last_error());
	return p;
}

#define UNITS	64

/* Contents of a unit, which is mapped, parked and given back whole: both ends of it. */
#define PART	((size_t)64 << 10)

__attribute__((unused))
static int write_unit(char *unit, int byte, CUstream s)
{
	int err = drv->cuMemsetD8Async((uintptr_t)unit, byte, PART, s);

	return err ? err : (int)drv->cuMemsetD8Async((uintptr_t)unit + GRANULE - PART, byte, PART, s);
}

__attribute__((unused))
static bool has_unit(const char *unit, int byte)
{
	return all_bytes(unit, byte, PART) && all_bytes(unit + GRANULE - PART, byte, PART);
}

/* What hetmem_committed() has to say of a block. */
struct mirror {
	char *p;
	bool has[UNITS];
};

/* Whether the list is that of @m, merged and in order. */
__attribute__((unused))
static bool listed(struct hetmem_resource *res, const struct mirror *m)
{
	struct hetmem_extent e[UNITS], want[UNITS];
	size_t nr = 0, u;

	for (u = 0; u < UNITS; u++) {
		if (!m->has[u])
			continue;
		if (nr && want[nr - 1].offset + want[nr - 1].length == u * GRANULE)
			want[nr - 1].length += GRANULE;
		else
			want[nr++] = (struct hetmem_extent){ u * GRANULE, GRANULE };
	}
	if (nr && hetmem_committed(res, m->p, e, nr - 1) != -ENOSPC)
		return false;
	return hetmem_committed(res, m->p, e, UNITS) == (ssize_t)nr &&
		!memcmp(e, want, nr * sizeof(*e));
}

#endif /* HETMEM_SELFTESTS_SPARSE_TEST_H */
