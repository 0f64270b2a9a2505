/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * All that drivers are asked to say, in one row.
 */
#ifndef HETMEM_SELFTESTS_SAME_ALL_H
#define HETMEM_SELFTESTS_SAME_ALL_H

#include "same_capture.h"
#include "same_graph.h"
#include "same_host.h"
#include "same_memory.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define NR_PLAIN	(COUNT(memory_probes) + COUNT(host_probes) + \
			 COUNT(graph_probes))
#define NR_PROBES	(NR_PLAIN + COUNT(capture_probes))

static const struct probe *plain_at(size_t i)
{
	if (i < COUNT(memory_probes))
		return &memory_probes[i];
	i -= COUNT(memory_probes);
	if (i < COUNT(host_probes))
		return &host_probes[i];
	return &graph_probes[i - COUNT(host_probes)];
}

static const char *name_of(size_t i)
{
	return i < NR_PLAIN ? plain_at(i)->name :
		capture_probes[i - NR_PLAIN].name;
}

/* What @driver says to what is named so; it is printed where @tell is set. */
static void ask(const char *driver, const char *named, bool tell,
		char (*texts)[TEXT])
{
	struct hetmem *hm;
	size_t i;

	d = open_driver(driver, &hm);
	d->cuCtxGetCurrent(&ctx);
	for (i = 0; i < NR_PROBES; i++) {
		said = texts[i];
		said[0] = 0;
		if (!strstr(name_of(i), named))
			continue;
		prepare();
		if (i < NR_PLAIN)
			plain_at(i)->fn();
		else
			in_all_modes(capture_probes[i - NR_PLAIN].call);
		finish();
		if (!tell)
			continue;
		printf("# { \"%s\", \"%s\" },\n", name_of(i), said);
		fflush(stdout);
	}
	close_driver(d, hm);
}

#endif /* HETMEM_SELFTESTS_SAME_ALL_H */
