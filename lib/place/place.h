/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Placement inside the library: the kind of memory of a range, its mover, the advice
 * about it.
 *
 * A call checks its range and its location, makes a plan (the mover, and the reason to
 * report), and carries the plan out. Making a plan changes nothing and calls the driver
 * only to ask about a pointer. Every choice follows from the verdicts of platform/.
 */
#ifndef HETMEM_PLACE_PLACE_H
#define HETMEM_PLACE_PLACE_H

#include "driver/hetmem.h"

enum hm_memory {
	HM_PAGEABLE,		/* the process's own; also memory unknown to the driver */
	HM_MANAGED,
	HM_PINNED,		/* page-locked or registered host memory */
	HM_DRIVERS_OWN,		/* of a device, VMM mappings too */
};

/**
 * struct hm_span - the range of a call
 * @start, @end: the whole pages that overlap [@ptr, @ptr + @size)
 */
struct hm_span {
	const void *ptr;
	size_t size;
	uintptr_t start;
	uintptr_t end;
	enum hm_memory memory;
};

enum hm_way { HM_WAY_NONE, HM_WAY_MODULE, HM_WAY_DRIVER, HM_WAY_PAGES };

/**
 * struct hm_plan - how to move a span
 * @reason: NONE: why nothing moves it; DRIVER: what the driver does instead, or ""
 * @location: as the mover numbers it
 * @why: HETMEM_WHY_* of the mappings that the driver does not move
 */
struct hm_plan {
	enum hm_way way;
	const char *reason;
	uint32_t location;
	uint32_t why;
};

/* prefetch.c; functions that return int: 0 or a negative errno, its text has "@what: ". */

extern const struct hetmem_moved hm_nothing_moved;

/* Checks @hm, its owner and the size of @moved, which may be NULL. */
int hm_place_enter(struct hetmem *hm, const char *what,
		   const struct hetmem_moved *moved);
/* Fills @span except @span->memory; does not call the driver. -EINVAL. */
int hm_place_pages(const struct hetmem *hm, const char *what, const void *ptr,
		   size_t size, struct hm_span *span);
/*
 * Fills all of @span. -EINVAL: also if its two ends are different kinds of memory;
 * -EIO, -ENOMEM: the driver fails and does not report the kind.
 */
int hm_place_span(struct hetmem *hm, const char *what, const void *ptr,
		  size_t size, struct hm_span *span);
int hm_place_location(struct hetmem *hm, const char *what, uint32_t location);
/* -EIO, -ENOMEM: the driver fails. An address that the driver does not know is HM_PAGEABLE. */
int hm_memory_of(struct hetmem *hm, const void *ptr, enum hm_memory *memory);

void hm_place_plan(struct hetmem *hm, const struct hm_span *span,
		   uint32_t location, struct hm_plan *plan);
/* @maps: for many spans, lower addresses first; NULL: only this one */
int hm_place_carry_out(struct hetmem *hm, const struct hm_span *span,
		       const struct hm_plan *plan, hetmem_stream stream,
		       struct hm_maps *maps, struct hetmem_moved *moved);

/* As hm_driver_error(), but -EINVAL if the driver refuses an argument. */
int hm_place_error(const struct hetmem *hm, const char *call, CUresult res);
/* 0: all of @span is mapped. -EINVAL: the text has the first address that is not. */
int hm_place_mapped(const struct hm_span *span, const char *what);
/* Returns why a device of this kind does not use memory of the process. */
const char *hm_not_pageable(const struct hetmem *hm, int kind);

/* Tests for hm_any_platform(). */
bool hm_moves_pageable(const struct hetmem_platform *p);
bool hm_moves_managed(const struct hetmem_platform *p);
bool hm_is_integrated(const struct hetmem_platform *p);
bool hm_is_not_concurrent(const struct hetmem_platform *p);

extern const char hm_one_memory[];
extern const char hm_stays[];
extern const char hm_page_locked[];

/* advise.c */

struct hm_place;

/* -ENOMEM. Sets hm->place and hm->memory_ops. */
int hm_place_open(struct hetmem *hm);
/* In a forked child, too. */
void hm_place_close(struct hetmem *hm);
/* Forgets advice about the parts of [@start, @end) that are not mapped. */
void hm_place_unmapped(struct hetmem *hm, uintptr_t start, uintptr_t end);

/* attach.c: likewise; sets hm->attach. In a forked child close makes no driver call. */
int hm_attach_open(struct hetmem *hm);
void hm_attach_close(struct hetmem *hm);

/* replica.c: frees all replicas. Their resources are live, or gone together with theirs. */
void hm_replicas_close(struct hetmem *hm);

#endif /* HETMEM_PLACE_PLACE_H */
