/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A pool over the soft driver for a test, and what is asked of it.
 */
#ifndef HETMEM_SELFTESTS_POOL_H
#define HETMEM_SELFTESTS_POOL_H

#include "provider/vmm.h"
#include "pool/pool.h"
#include "stream/stream.h"
#include "soft_driver.h"
#include "vmm/vmm.h"

#define MIB	((size_t)1 << 20)

static struct hetmem_resource *pool;

__attribute__((unused))
static int try_pool(const char *provider, const struct hm_pool_options *opt)
{
	struct hm_provider *p;
	int err;

	err = strcmp(provider, "vmm") ? hm_device_provider(hm, 0, &p) :
		hm_vmm_provider(hm, 0, NULL, &p);
	if (err)
		return err;
	err = p->caps & HM_PROVIDER_MAPPABLE ?
		hm_vmm_pool_create(p, opt, &pool) :
		hm_pool_create(p, opt, &pool);
	if (err)
		p->ops->destroy(p);
	return err;
}

__attribute__((unused))
static void make_pool(const char *provider, const struct hm_pool_options *opt)
{
	need(!try_pool(provider, opt), "a pool over %s: %s", provider,
	     hetmem_last_error());
}

__attribute__((unused))
static struct hetmem_resource_stats pool_stats(void)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(pool, &s), "statistics");
	return s;
}

__attribute__((unused))
static void *get(size_t size, hetmem_stream stream)
{
	void *p = NULL;

	need(!hetmem_alloc(pool, size, 0, stream, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	return p;
}

__attribute__((unused))
static void put(void *p, size_t size, hetmem_stream stream)
{
	need(!hetmem_free(pool, p, size, stream), "free: %s",
	     hetmem_last_error());
}

#endif /* HETMEM_SELFTESTS_POOL_H */
