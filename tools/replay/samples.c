/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Samples of a replay, for pictures. */
#include <stdlib.h>
#include <string.h>

#include "samples.h"

static int by_start(const void *a, const void *b)
{
	const struct replay_extent *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

static void take_extents(struct replay_samples *p, const struct replay_world *w,
			 const struct replay_watch *watch, const size_t *sizes)
{
	uint32_t i;

	p->extents = xcalloc(w->trace->blocks, sizeof(*p->extents));
	for (i = 0; i < w->trace->blocks; i++)
		if (w->ptrs[i])
			p->extents[p->nr_extents++] = (struct replay_extent){
				(uintptr_t)w->ptrs[i], sizes[i],
				watch->blocks && watch->blocks[i].spilled };
	qsort(p->extents, p->nr_extents, sizeof(*p->extents), by_start);
}

/* The sample of a time, with the most that was @requested; what follows is the next one's. */
static void take_sample(struct replay_samples *p, struct replay_watch *watch,
			struct hetmem_resource *res, uint64_t requested)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	hetmem_resource_stats(res, &stats);
	p->samples[p->nr_samples++] = (struct replay_sample){
		.bytes = { requested, stats.reserved, watch->recent },
		.moves = { watch->recent_moves[0], watch->recent_moves[1] },
	};
	watch->recent = watch->spill ? watch->spill->spilled : 0;
	watch->recent_moves[0] = watch->recent_moves[1] = 0;
}

/*
 * A sample is of the most that was requested since the one before, so that no
 * peak is left out. In one thread, whatever the order: the picture is of what
 * was recorded.
 */
int replay_samples_take(struct replay_samples *p, struct hetmem *hm, const struct replay_result *r,
			const struct replay_how *how)
{
	struct replay_watch watch = { .spill = NULL };
	struct replay_spill spill = { .known = false };
	const struct replay_trace *t = r->trace;
	size_t every = t->nr / REPLAY_SAMPLES + 1, i;
	size_t *sizes = xcalloc(t->blocks, sizeof(*sizes));
	struct hetmem_resource *res = NULL;
	uint64_t requested = 0, most = 0;
	struct replay_world w;
	int status;

	status = replay_world_open(&w, hm, t, how);
	if (!status && hetmem_resource_create(hm, r->spec, &res))
		status = complain(EXIT_FAILED, "replay", "%s",
				  hetmem_last_error());
	if (!status && r->spill.known)
		status = replay_watch_open(&watch, &w, res, r->spec, false, &spill);
	for (i = 0; !status && i < t->nr; i++) {
		const struct replay_step *s = &t->steps[i];

		if (r->spill.known)
			replay_watch_step(&watch, i);
		else
			replay_step(&w, res, s);
		if (s->op == REPLAY_ALLOC) {
			requested += s->size;
			sizes[s->block] = s->size;
		} else if (s->op == REPLAY_FREE) {
			requested -= s->size;
		}
		if (requested > most)
			most = requested;
		if (i == t->peak_step)
			take_extents(p, &w, &watch, sizes);
		if (i % every && i != t->nr - 1)
			continue;
		take_sample(p, &watch, res, most);
		most = 0;
	}
	replay_watch_close(&watch);
	if (res) {
		replay_drain(&w, res);
		hetmem_resource_destroy(res);
	}
	replay_world_close(&w);
	free(sizes);
	return status;
}

void replay_samples_free(struct replay_samples *p)
{
	free(p->extents);
	free(p);
}

#define FAR	((uintptr_t)1 << 30)

uintptr_t replay_samples_step(const struct replay_samples *p, size_t i)
{
	const struct replay_extent *e = &p->extents[i];
	uintptr_t step = i + 1 < p->nr_extents ? e[1].start - e->start : e->size;

	return step < FAR + e->size ? step : e->size;
}

uintptr_t replay_samples_span(const struct replay_samples *p)
{
	uintptr_t span = 0;
	size_t i;

	for (i = 0; i < p->nr_extents; i++)
		span += replay_samples_step(p, i);
	return span ? span : 1;
}
