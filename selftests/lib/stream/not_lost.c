// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A call that fails is no proof that a stream was destroyed: what was freed on it is used
 * again behind an event of it, and nobody synchronizes its context. A wait that failed is not
 * taken for made.
 */
#include "pool_gate.h"

static unsigned int nr_syncs;

static CUresult count_sync(void)
{
	nr_syncs++;
	return real.cuCtxSynchronize();
}

/* Memory that is freed on one stream, and asked for on another while @rule holds. */
static void failing(const char *rule, bool once)
{
	struct hm_pool_options opt = { .max = 8 * MIB, .wait_ms = HM_POOL_NO_WAIT };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q = NULL;
	int err;

	make_pool("vmm", &opt);
	put(get(512, b), 512, b);
	p = get(4 * MIB, a);
	close_gate(a);
	put(p, 4 * MIB, a);
	soft_rules(rule, NULL);
	err = hetmem_alloc(pool, 6 * MIB, 0, b, &q);
	soft_rules(NULL, NULL);
	if (once)
		is(err, 0, "%s: a call that fails once is made again: %s", rule,
		   err ? hetmem_last_error() : "");
	else
		ok(err < 0, "%s: the allocation fails: %s", rule, hetmem_last_error());
	if (err)
		is(hetmem_alloc(pool, 6 * MIB, 0, b, &q), 0, "%s: then it works: %s", rule,
		   hetmem_last_error());
	ok(is_held_up(b), "%s: in order, not later than the gate", rule);
	open_gate();
	put(q, 0, b);
	nr_syncs = 0;
	is(hetmem_stream_retire(pool, a), 0, "%s: it can be retired", rule);
	is(hetmem_stream_retire(pool, b), 0, "%s: so can the other", rule);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", rule);
	is(nr_syncs, 0, "%s: no context was synchronized", rule);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

int main(void)
{
	open_soft("");
	count_calls();
	hm->driver.cuCtxSynchronize = count_sync;
	failing("cuStreamIsCapturing:1=CUDA_ERROR_UNKNOWN", true);
	failing("cuStreamIsCapturing:2=CUDA_ERROR_UNKNOWN", true);
	failing("cuStreamIsCapturing:1=CUDA_ERROR_INVALID_HANDLE", true);
	failing("cuStreamWaitEvent:1=CUDA_ERROR_UNKNOWN", false);
	failing("cuStreamWaitEvent:*=CUDA_ERROR_UNKNOWN", false);
	failing("cuStreamIsCapturing:*=CUDA_ERROR_UNKNOWN", false);
	failing("cuStreamIsCapturing:*=CUDA_ERROR_INVALID_HANDLE", false);
	close_soft();
	return tap_end();
}
