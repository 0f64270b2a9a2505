// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources over several: what one of them cannot do is not half done by all,
 * so that it can be done again, and the rest goes on.
 */
#include "by_spec.h"

#define MIB	((size_t)1 << 20)

static CUstream a;

/* Of a stream the pools ask the driver; the second one is told lies. */
static void captures(void)
{
	struct hetmem_resource *res = make("binning(pool(vmm),pool(vmm),at=1M)");
	void *p, *q;
	int err;

	need(!soft_rules("cuStreamGetId:2", NULL), "a rule");
	err = hetmem_capture_begin(res, a, 7);
	ok(err < 0, "capture_begin: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	is(hetmem_capture_begin(res, a, 7), 0, "begins, when it is tried again");
	p = get(res, 1000, a);
	q = get(res, 2 * MIB, a);
	ok(p && q, "both have memory");
	is(hetmem_free(res, p, 0, a) | hetmem_free(res, q, 0, a), 0, "freed");
	is(hetmem_capture_release(res, a, 7), -EBUSY, "not to be released yet");
	is(hetmem_capture_end(res, a, 8), -EINVAL, "no such id");
	is(hetmem_capture_end(res, a, 7), 0, "ends");
	is(hetmem_capture_begin(res, a, 7), 0, "begins again");
	is(hetmem_capture_end(res, a, 7), 0, "ends again");
	need(!soft_rules("cuStreamGetId:2", NULL), "a rule");
	err = hetmem_capture_release(res, a, 7);
	ok(err < 0, "capture_release: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	is(hetmem_capture_release(res, a, 7), 0, "what is left is released");
	is(hetmem_capture_release(res, a, 7), -ENOENT, "once");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static void sleeps(void)
{
	struct hetmem_resource *res =
		make("binning(pool(vmm),pool(vmm,comm=on),at=1M)");
	void *p = get(res, 1000, a), *q;
	int err;

	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), -EBUSY, "one does not sleep: %s",
	   hetmem_last_error());
	ok(strstr(hetmem_last_error(), "communication"), "says why");
	q = get(res, 1000, a);
	ok(q, "nor does the other");
	memset(p, 1, 1000);
	is(hetmem_free(res, p, 0, a) | hetmem_free(res, q, 0, a), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "destroyed");

	res = make("binning(pool(vmm),pool(vmm),at=1M)");
	p = get(res, 1000, a);
	q = get(res, 2 * MIB, a);
	need(!soft_rules("cuMemUnmap:2", NULL), "a rule");
	err = hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD);
	ok(err < 0, "one fails: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	memset(p, 1, 1000);
	memset(q, 1, 2 * MIB);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "both sleep");
	is(hetmem_wake(res, NULL), 0, "and wake");
	memset(q, 1, 2 * MIB);
	is(hetmem_free(res, p, 0, a) | hetmem_free(res, q, 0, a), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

int main(void)
{
	open_soft("");
	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), "a stream");
	captures();
	sleeps();
	drv->cuStreamDestroy(a);
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
