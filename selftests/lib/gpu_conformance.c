// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every resource over CUDA. What a GPU has more of than the soft driver in
 * conformance.c is limited by max= where a test takes all there is. An
 * argument: only rows that contain it.
 */
#include "conformance.h"

/* Rows of the table that would take the whole GPU, and what is run instead. */
static const struct {
	const char *spec;
	const char *limited;
} limits[] = {
	{ "device", "limit(device,max=64M)" },
	{ "async", "limit(async,max=64M)" },
	{ "pool(vmm)", "pool(vmm,max=64M)" },
	{ "pool(vmm,streams=retired)", "pool(vmm,streams=retired,max=64M)" },
	{ "pool(vmm,handle=2M)", "pool(vmm,handle=2M,max=64M)" },
	{ "pool(vmm,comm=on)", "pool(vmm,comm=on,max=64M)" },
	/* Every block has a handle of its own. */
	{ "pool(vmm(export=fd))", "pool(vmm(export=fd),max=384M)" },
	{ "pool(device)", "pool(device,max=64M)" },
	{ "pool(async)", "pool(async,max=64M)" },
	{ "stats(pool(vmm))", "stats(pool(vmm,max=64M))" },
	{ "log(pool(vmm),file=/dev/null,full=on)",
	  "log(pool(vmm,max=64M),file=/dev/null,full=on)" },
	{ "retry(pool(vmm),times=2)", "retry(pool(vmm,max=64M),times=2)" },
	{ "binning(pool(vmm),device,at=1M)",
	  "binning(pool(vmm,max=64M),limit(device,max=64M),at=1M)" },
	{ "custom(name=device)", "limit(custom(name=device),max=64M)" },
	{ "pool(custom(name=device))", "pool(custom(name=device),max=64M)" },
	{ "pool(custom(name=mapped))", "pool(custom(name=mapped),max=64M)" },
	{ "classes(device)", "classes(device,max=64M)" },
	{ "headroom(pool(vmm),keep=1M)", "headroom(pool(vmm,max=64M),keep=1M)" },
	{ "headroom(device)", "headroom(limit(device,max=64M))" },
	{ "watermark(pool(vmm),at=4M,every=0s)", "watermark(pool(vmm,max=64M),at=4M,every=0s)" },
	{ "watermark(device,at=50%)", "watermark(limit(device,max=64M),at=32M)" },
	{ "history(pool(vmm),events=100)",
	  "history(pool(vmm,max=64M),events=100)" },
	{ "guard(history(pool(vmm)))", "guard(history(pool(vmm,max=64M)))" },
	{ "align(pool(vmm),align=4K)", "align(pool(vmm,max=64M),align=4K)" },
	{ "guard(pool(vmm))", "guard(pool(vmm,max=64M))" },
	{ "stats(fallback(fixed(device,size=64K,count=8),pool(vmm)))",
	  "stats(fallback(fixed(device,size=64K,count=8),pool(vmm,max=64M)))" },
	{ "device-pool", "device-pool(max=64M)" },
};

static const char *limited(const char *spec)
{
	size_t i;

	for (i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		if (!strcmp(limits[i].spec, spec))
			return limits[i].limited;
	return spec;
}

int main(int argc, char **argv)
{
	struct row one;
	size_t i;

	open_driver("cuda");
	for (i = 0; i < NR_ROWS; i++) {
		one = rows[i];
		row = &one;
		one.spec = limited(rows[i].spec);
		/* Here a device reaches system memory only with HMM or ATS. */
		if (strstr(one.spec, "system") && !hm->devices[0].platform.pageable)
			one.flags |= CPU_ONLY;
		if (argc > 1 && !strstr(one.spec, argv[1]))
			continue;
		run_row();
	}
	close_driver();
	return tap_end();
}
