/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The resources under test: one row for each kind, and for each stack that takes a path of
 * its own. A new resource gets a row here. conformance.h runs its tests on each row, and
 * model/ runs random programs on each row.
 */
#ifndef HETMEM_SELFTESTS_ROWS_H
#define HETMEM_SELFTESTS_ROWS_H

#include <stddef.h>

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)

#define CPU_ONLY	(1U << 0)	/* no device may reach it */
#define FORKS		(1U << 1)	/* a child has it, copy-on-write */
#define UNLIMITED	(1U << 2)	/* as much as the host has */

/**
 * struct row - a resource under test
 * @largest: bytes that one block of it can have, 0: what there is
 */
struct row {
	const char *spec;
	unsigned int flags;
	size_t largest;
};

static const struct row rows[] = {
	/* providers, a region an allocation */
	{ "device", 0, 0 },
	{ "managed", UNLIMITED, 0 },
	{ "async", 0, 0 },
	{ "pinned", UNLIMITED, 0 },
	{ "registered", UNLIMITED, 0 },
	{ "registered(fork=copy)", UNLIMITED, 0 },
	{ "system(device=0)", UNLIMITED | FORKS, 0 },
	{ "host", CPU_ONLY | UNLIMITED | FORKS, 0 },
	{ "custom(name=host)", CPU_ONLY | UNLIMITED | FORKS, 0 },
	{ "custom(name=device)", 0, 0 },
	/* the pool, over each */
	{ "pool(vmm)", 0, 0 },
	{ "pool(vmm,streams=retired)", 0, 0 },
	{ "pool(vmm,handle=2M)", 0, 0 },
	{ "pool(vmm,unit=4M)", 0, 0 },
	{ "pool(vmm,comm=on)", 0, 0 },
	{ "pool(vmm(export=fd))", 0, 0 },
	{ "pool(vmm(stripe=0/1),max=128M)", 0, 0 },
	{ "pool(vmm,max=24M,wait=100ms)", 0, 0 },
	{ "pool(device)", 0, 0 },
	{ "pool(async)", 0, 0 },
	{ "pool(managed,max=48M)", 0, 0 },
	{ "pool(pinned,max=48M)", 0, 0 },
	{ "pool(registered,max=48M)", 0, 0 },
	{ "pool(system(device=0),max=48M)", FORKS, 0 },
	{ "pool(host,max=48M)", CPU_ONLY | FORKS, 0 },
	{ "pool(custom(name=host),max=48M)", CPU_ONLY | FORKS, 0 },
	{ "pool(custom(name=memfd))", CPU_ONLY, 0 },
	{ "pool(custom(name=device))", 0, 0 },
	{ "classes(managed,max=48M)", 0, 0 },
	{ "classes(device)", 0, 0 },
	{ "classes(system(device=0),max=48M)", FORKS, 0 },
	{ "classes(system(device=0,populate=2),max=48M)", FORKS, 0 },
	{ "classes(registered,max=48M,streams=retired)", 0, 0 },
	{ "classes(host,max=48M)", CPU_ONLY | FORKS, 0 },
	{ "classes(custom(name=host),max=48M)", CPU_ONLY | FORKS, 0 },
	{ "pool(custom(name=mapped))", 0, 0 },
	/* adaptors */
	{ "stats(pool(vmm))", 0, 0 },
	{ "limit(pool(vmm),max=32M)", 0, 0 },
	{ "headroom(pool(vmm),keep=1M)", 0, 0 },
	{ "headroom(device)", 0, 0 },
	{ "headroom(pool(system(device=0),max=48M))", FORKS, 0 },
	{ "watermark(pool(vmm),at=4M,every=0s)", 0, 0 },
	{ "watermark(device,at=50%)", 0, 0 },
	{ "watermark(pool(host,max=48M),at=10%,every=0s)", CPU_ONLY | FORKS, 0 },
	{ "log(pool(vmm),file=/dev/null,full=on)", 0, 0 },
	{ "history(pool(vmm),events=100)", 0, 0 },
	{ "history(pool(host,max=48M),events=1,callers=0)", CPU_ONLY | FORKS, 0 },
	{ "guard(history(pool(vmm)))", 0, 0 },
	{ "retry(pool(vmm),times=2)", 0, 0 },
	{ "fallback(pool(vmm,max=8M,wait=0s),pool(managed,max=32M))", 0, 0 },
	{ "binning(pool(vmm),device,at=1M)", 0, 0 },
	{ "align(pool(vmm),align=4K)", 0, 0 },
	{ "guard(pool(vmm))", 0, 0 },
	{ "guard(pool(host,max=48M))", CPU_ONLY | FORKS, 0 },
	{ "fixed(pool(vmm),size=512K,count=40)", 0, 512 << 10 },
	{ "fixed(pool(host),size=512K,count=40)", CPU_ONLY | FORKS,
	  512 << 10 },
	{ "stats(limit(guard(pool(vmm)),max=32M))", 0, 0 },
	{ "stats(fallback(fixed(device,size=64K,count=8),pool(vmm)))", 0, 0 },
	/* the named ones */
	{ "device-pool", 0, 0 },
	{ "unified", UNLIMITED, 0 },
	{ "unified(over=registered)", UNLIMITED, 0 },
	{ "unified(over=host,max=48M)", CPU_ONLY | FORKS, 0 },
};

#define NR_ROWS	(sizeof(rows) / sizeof(rows[0]))

#endif /* HETMEM_SELFTESTS_ROWS_H */
