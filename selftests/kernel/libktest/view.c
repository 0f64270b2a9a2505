// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/view.h"

void view_free(struct view *v)
{
	free(v->runs);
	v->runs = NULL;
}

uint64_t view_total(const struct view *v, uint32_t loc)
{
	size_t i;

	for (i = 0; i < v->nr_totals; i++)
		if (v->totals[i].location == loc)
			return v->totals[i].pages;
	return 0;
}

uint64_t view_pages(const struct view *v, uint32_t loc)
{
	uint64_t pages = 0;
	size_t i;

	for (i = 0; i < v->nr_runs; i++)
		if (v->runs[i].location == loc)
			pages += (v->runs[i].end - v->runs[i].start) /
				 page_size();
	return pages;
}

uint64_t view_kind(const struct view *v, uint32_t kind)
{
	uint64_t pages = 0;
	size_t i;

	for (i = 0; i < v->nr_totals; i++)
		if (HETMEM_LOC_KIND(v->totals[i].location) == kind)
			pages += v->totals[i].pages;
	return pages;
}

const struct hetmem_run *view_at(const struct view *v, const void *p)
{
	uint64_t addr = (uintptr_t)p;
	size_t i;

	for (i = 0; i < v->nr_runs; i++)
		if (v->runs[i].start <= addr && addr < v->runs[i].end)
			return &v->runs[i];
	return NULL;
}

static bool on_device(uint32_t location)
{
	const uint32_t kind = HETMEM_LOC_KIND(location);

	return kind == HETMEM_DEVICE || kind == HETMEM_FOREIGN ||
	       kind == HETMEM_COHERENT;
}

const char *view_flaw(const struct view *v)
{
	uint64_t at = v->start, sum = 0;
	size_t i;

	for (i = 0; i < v->nr_runs; i++) {
		const struct hetmem_run *r = &v->runs[i];

		if (r->start != at)
			return r->start < at ? "runs overlap or are unsorted" :
					       "a gap between runs";
		if (r->end <= r->start || r->end > v->end)
			return "a run is empty or leaves the range";
		if ((r->start | r->end) % page_size())
			return "a run is unaligned";
		if (r->flags || r->reserved)
			return "flags or reserved of a run are not zero";
		if (HETMEM_LOC_KIND(r->location) > HETMEM_ZERO)
			return "no such kind of location";
		if (on_device(r->location) && r->why)
			return "a why for pages on a device";
		if (view_total(v, r->location) != view_pages(v, r->location))
			return "total and runs of a location differ";
		at = r->end;
	}
	if (at != v->end)
		return "runs end before the range";
	for (i = 0; i < v->nr_totals; i++) {
		if (v->totals[i].reserved)
			return "reserved of a total is not zero";
		if (!v->totals[i].pages)
			return "an empty total";
		sum += v->totals[i].pages;
	}
	if (sum != (v->end - v->start) / page_size())
		return "totals do not add up to the range";
	return "";
}

int view_add_totals(struct view *v, const struct hetmem_total *t,
		    unsigned int nr)
{
	unsigned int i;
	size_t j;

	for (i = 0; i < nr; i++) {
		for (j = 0; j < v->nr_totals; j++)
			if (v->totals[j].location == t[i].location)
				break;
		if (j == HETMEM_MAX_TOTALS)
			return -ENOSPC;
		if (j == v->nr_totals)
			v->totals[v->nr_totals++] = t[i];
		else
			v->totals[j].pages += t[i].pages;
	}
	return 0;
}

int view_take_by(int fd, const void *p, size_t size, unsigned int room,
		 struct view *v)
{
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	int ret;

	memset(v, 0, sizeof(*v));
	v->start = (uintptr_t)p;
	v->end = v->start + size;
	for (uint64_t at = v->start; at < v->end;) {
		struct hetmem_cmd_residency cmd = {
			.start = at,
			.end = v->end,
			.nr_runs = room,
			.run_size = sizeof(struct hetmem_run),
			.totals = (uintptr_t)totals,
			.nr_totals = HETMEM_MAX_TOTALS,
			.total_size = sizeof(struct hetmem_total),
		};

		v->runs = realloc(v->runs,
				  (v->nr_runs + room) * sizeof(*v->runs));
		if (!v->runs)
			return -ENOMEM;
		cmd.runs = (uintptr_t)(v->runs + v->nr_runs);
		ret = hm_residency(fd, &cmd);
		if (ret)
			return ret;
		if (cmd.walk_end < at || cmd.walk_end > v->end ||
		    cmd.walk_end == at || cmd.filled_runs > room ||
		    cmd.filled_totals > HETMEM_MAX_TOTALS) {
			fprintf(stderr, "# RESIDENCY at %llx: walk_end %llx\n",
				(unsigned long long)at, cmd.walk_end);
			return -EBADMSG;
		}
		v->nr_runs += cmd.filled_runs;
		ret = view_add_totals(v, totals, cmd.filled_totals);
		if (ret)
			return ret;
		at = cmd.walk_end;
	}
	if (*view_flaw(v)) {
		fprintf(stderr, "# RESIDENCY: %s\n", view_flaw(v));
		return -EBADMSG;
	}
	return 0;
}

int view_take(int fd, const void *p, size_t size, struct view *v)
{
	return view_take_by(fd, p, size, 256, v);
}

void view_print(const struct view *v)
{
	size_t i;

	for (i = 0; i < v->nr_runs && i < 40; i++)
		fprintf(stderr, "#   %llx-%llx location %x order %u why %x\n",
			v->runs[i].start, v->runs[i].end, v->runs[i].location,
			v->runs[i].order, v->runs[i].why);
}

long pages_at(int fd, const void *p, size_t size, uint32_t loc)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);

	if (!ret)
		ret = view_total(&v, loc);
	view_free(&v);
	return ret;
}

long pages_of_kind(int fd, const void *p, size_t size, uint32_t kind)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);

	if (!ret)
		ret = view_kind(&v, kind);
	view_free(&v);
	return ret;
}

long pages_why(int fd, const void *p, size_t size, uint32_t why)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);
	size_t i;

	for (i = 0; ret >= 0 && i < v.nr_runs; i++) {
		if (v.runs[i].why & why)
			ret += (v.runs[i].end - v.runs[i].start) / page_size();
	}
	view_free(&v);
	return ret;
}

long pages_pinned(int fd, const void *p, size_t size)
{
	return pages_why(fd, p, size, HETMEM_WHY_PINNED_BY_US);
}

struct hetmem_run run_at(int fd, const void *p)
{
	struct hetmem_run run;
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + page_size(),
		.runs = (uintptr_t)&run,
		.nr_runs = 1,
		.run_size = sizeof(struct hetmem_run),
	};

	if (hm_residency(fd, &cmd) || cmd.filled_runs != 1)
		memset(&run, 0xff, sizeof(run));
	return run;
}
