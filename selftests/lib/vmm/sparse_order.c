// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A unit that one stream decommitted while it had work: another stream's commit is ordered
 * behind this work, where the unit is parked and where it goes to.
 */
#include <sched.h>

#include "pool_gate.h"

#define UNIT	((size_t)2 << 20)

static void *get_sparse(struct hetmem_resource *res, size_t bytes)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .flags = HETMEM_ALLOC_SPARSE,
	};
	void *p = NULL;

	need(!hetmem_alloc_with(res, &params, &p), "sparse: %s", hetmem_last_error());
	return p;
}

/* Unit 0 is used, held up, and decommitted on one stream. Unit @to is committed on another. */
static void behind(const char *spec, unsigned int to)
{
	struct hetmem_resource *res = NULL;
	CUstream s[2] = { new_stream(), new_stream() };
	unsigned char last = 0;
	unsigned int i, early = 0;
	char *p;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
	p = get_sparse(res, 8 * UNIT);
	is(hetmem_commit(res, p, 0, UNIT, s[0]), 0, "%s: commit: %s", spec, hetmem_last_error());
	close_gate(s[0]);
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, UNIT, s[0]), "work");
	is(hetmem_decommit(res, p, 0, UNIT, s[0]), 0, "%s: decommit", spec);
	is(hetmem_commit(res, p, to * UNIT, UNIT, s[1]), 0, "%s: commit: %s", spec, hetmem_last_error());
	need(!drv->cuMemsetD8Async((uintptr_t)p + to * UNIT, 2, UNIT, s[1]), "work");
	for (i = 0; i < 2000 && !early; i++) {
		early = drv->cuStreamQuery(s[1]) == CUDA_SUCCESS;
		sched_yield();
	}
	is(early, 0, "%s: unit %u: behind the work on unit 0", spec, to);
	open_gate();
	need(!drv->cuMemcpyDtoHAsync(&last, (uintptr_t)p + (to + 1) * UNIT - 1, 1, s[1]) &&
	     !drv->cuStreamSynchronize(s[1]) && !drv->cuStreamSynchronize(s[0]), "read");
	is(last, 2, "%s: unit %u: what was written last", spec, to);
	hetmem_free(res, p, 0, s[1]);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

int main(void)
{
	open_soft("");
	behind("pool(vmm)", 0);
	behind("pool(vmm,max=2M)", 5);
	behind("pool(vmm,max=2M,wait=1ms)", 5);
	close_soft();
	return tap_end();
}
