/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A view: all runs and totals of a range, taken in several RESIDENCY calls and checked. */
#ifndef LIBKTEST_VIEW_H
#define LIBKTEST_VIEW_H

#include "libktest/commands.h"

struct view {
	uint64_t start, end;
	struct hetmem_run *runs;
	size_t nr_runs;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	size_t nr_totals;
};

/*
 * Fill @v with what [p, p + size) looks like, @room runs a call, and check
 * it: -EBADMSG if it is flawed. The caller calls view_free() in any case.
 */
int view_take_by(int fd, const void *p, size_t size, unsigned int room,
		 struct view *v);
int view_take(int fd, const void *p, size_t size, struct view *v);
void view_free(struct view *v);
void view_print(const struct view *v);

/* What is wrong with a complete view, "" if nothing. */
const char *view_flaw(const struct view *v);

/* Adds those of one more call. -ENOSPC: more locations than there can be. */
int view_add_totals(struct view *v, const struct hetmem_total *t, unsigned int nr);

/* Pages of one location, by the totals and by the runs; of one kind; the run of @p. */
uint64_t view_total(const struct view *v, uint32_t loc);
uint64_t view_pages(const struct view *v, uint32_t loc);
uint64_t view_kind(const struct view *v, uint32_t kind);
const struct hetmem_run *view_at(const struct view *v, const void *p);

/* Pages of [p, p + size) at @loc, or at any location of @kind, or an errno. */
long pages_at(int fd, const void *p, size_t size, uint32_t loc);
long pages_of_kind(int fd, const void *p, size_t size, uint32_t kind);

/* Pages of [p, p + size) that have a bit of @why, or an errno. */
long pages_why(int fd, const void *p, size_t size, uint32_t why);

/* Pages of [p, p + size) that RESIDENCY says are pinned, or an errno. */
long pages_pinned(int fd, const void *p, size_t size);

/* The run that the page at @p is in; all ones in @start if that failed. */
struct hetmem_run run_at(int fd, const void *p);

#endif
