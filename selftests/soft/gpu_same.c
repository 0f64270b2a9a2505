// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver beside the real one: the same calls, and what each says.
 * What it prints of the real one is what same_h200.h is made of.
 */
#include "same_all.h"

/* What the library's fast paths cost in calls of the driver. Only told. */
static void times(void)
{
	static const char *const names[] = {
		"cuStreamGetId", "cuStreamIsCapturing",
		"cuThreadExchangeStreamCaptureMode", "cuStreamGetCtx",
	};
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	const int nr = 100000;
	struct hetmem *hm;
	double start;
	int i, j;

	d = open_driver(DRIVER, &hm);
	d->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	for (j = 0; j < 4; j++) {
		start = ms_now();
		for (i = 0; i < nr; i++) {
			if (j == 0)
				d->cuStreamGetId(a, &id);
			else if (j == 1)
				d->cuStreamIsCapturing(a, &status);
			else if (j == 2)
				d->cuThreadExchangeStreamCaptureMode(&mode);
			else
				d->cuStreamGetCtx(a, &some_ctx);
		}
		printf("# %s: %.1f ns\n", names[j],
		       (ms_now() - start) * 1e6 / nr);
	}
	d->cuStreamDestroy(a);
	close_driver(d, hm);
}

/* gpu_same [PART OF A NAME] */
int main(int argc, char **argv)
{
	static char real[NR_PROBES][TEXT], soft[NR_PROBES][TEXT];
	const char *named = argc > 1 ? argv[1] : "";
	size_t i;

	ask(DRIVER, named, true, real);
	ask("soft", named, false, soft);
	for (i = 0; i < NR_PROBES; i++)
		if (strstr(name_of(i), named) &&
		    !ok(!strcmp(real[i], soft[i]), "%s", name_of(i)))
			printf("# %s\n# soft: %s\n", real[i], soft[i]);
	times();
	return tap_end();
}
