/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What 'hetmem run' tells the preloaded library, in one environment variable: lines KEY=VALUE,
 * the key one of those below. The tool checks every value before it starts the program. A
 * line that the library cannot read switches it off, with one line on stderr.
 */
#ifndef HETMEM_PRELOAD_SETTINGS_H
#define HETMEM_PRELOAD_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#define HM_RUN_VARIABLE	"HETMEM_RUN"
#define HM_RUN_LIBRARY	"libhetmem-preload.so"

/* Bytes, decimal: smaller allocations are left to the next allocator. */
#define HM_RUN_MIN	"min"
/* MPOL_* of <linux/mempolicy.h>, decimal. Not there: the process's own policy. */
#define HM_RUN_POLICY	"policy"
/* Nodes of the policy: decimal numbers and ranges, "0-1,3". */
#define HM_RUN_NODES	"nodes"
/* "1": large private anonymous mappings of mmap(2), too. */
#define HM_RUN_MMAP	"mmap"
/* A path: a line is appended to it when a process ends. */
#define HM_RUN_REPORT	"report"
/* Memory comes from this resource of libhetmem. */
#define HM_RUN_SPEC	"spec"
/* "1": libhetmem's agent runs in each process that uses the resource. */
#define HM_RUN_AGENT	"agent"
/* The path of libhetmem, for HM_RUN_SPEC. */
#define HM_RUN_HETMEM	"library"

/*
 * Least size, if none is given: the smallest block that has a whole huge page. Below it a
 * block has none, so a mapping of its own costs page faults and saves nothing.
 */
#define HM_RUN_MIN_DEFAULT	((size_t)2 << 20)
/* What --min may be. Most blocks below 64 KiB are reused often: mmap(2) for each is slow. */
#define HM_RUN_MIN_LEAST	((size_t)64 << 10)
#define HM_RUN_MIN_MOST		((size_t)1 << 40)

/* The highest node number plus one. */
#define HM_RUN_NODES_MAX	1024
#define HM_RUN_NODE_WORD	(8 * sizeof(long))

/*
 * Reads a decimal number of digits only and moves *@text behind it. Returns -1 if there is
 * none, or if it exceeds @most. Calls nothing: the preloaded library reads its settings
 * before the program's allocator works.
 */
static inline long long hm_run_number(const char **text, long long most)
{
	long long n = 0;

	if (**text < '0' || **text > '9')
		return -1;
	for (; **text >= '0' && **text <= '9'; (*text)++) {
		n = 10 * n + **text - '0';
		if (n > most)
			return -1;
	}
	return n;
}

/* Adds the nodes of the list @text to @mask. Returns false if @text is not such a list. */
static inline bool hm_run_nodes(const char *text, unsigned long *mask)
{
	long long first, last;

	do {
		first = hm_run_number(&text, HM_RUN_NODES_MAX - 1);
		last = first;
		if (*text == '-') {
			text++;
			last = hm_run_number(&text, HM_RUN_NODES_MAX - 1);
		}
		if (first < 0 || last < first)
			return false;
		for (; first <= last; first++)
			mask[first / HM_RUN_NODE_WORD] |= 1UL << first % HM_RUN_NODE_WORD;
	} while (*text++ == ',');
	return !text[-1];
}

#endif /* HETMEM_PRELOAD_SETTINGS_H */
