/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Replays with spill=: one pass counts the moves. hetmem_on_remap() announces each of them;
 * the bytes of host memory come from the statistics.
 *
 * A spilled block that is freed takes its spilled bytes with it. A block that is live when
 * the recording ends counts as freed then.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <hetmem/move.h>

#include "replay.h"
#include "spec/spec.h"

/* Blocks up to this size never move. */
#define STAYS	((size_t)1 << 20)

static const struct hm_spec *find_spill(const struct hm_spec *spec)
{
	const struct hm_spec *found = NULL;
	int i;

	if (hm_spec_value(spec, "spill")->given)
		return spec;
	for (i = 0; i < spec->nr_children && !found; i++)
		found = find_spill(spec->children[i]);
	return found;
}

static bool has_kind(const struct hm_spec *spec, const char *kind)
{
	bool has = !strcmp(spec->kind->name, kind);
	int i;

	for (i = 0; i < spec->nr_children && !has; i++)
		has = has_kind(spec->children[i], kind);
	return has;
}

bool replay_has_kind(const char *text, const char *kind)
{
	struct hm_spec *spec;
	bool has;

	if (hm_spec_parse(text, &spec))
		return false;
	has = has_kind(spec, kind);
	hm_spec_free(spec);
	return has;
}

bool replay_same_file(const char *path, const char *other)
{
	struct stat a, b;

	return path && !stat(path, &a) && !stat(other, &b) && S_ISREG(b.st_mode) &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool logs_to(const struct hm_spec *spec, const char *path)
{
	bool does = replay_same_file(hm_spec_value(spec, "file")->text, path);
	int i;

	for (i = 0; i < spec->nr_children && !does; i++)
		does = logs_to(spec->children[i], path);
	return does;
}

bool replay_logs_to(const char *text, const char *path)
{
	struct hm_spec *spec;
	bool does;

	if (hm_spec_parse(text, &spec))
		return false;
	does = logs_to(spec, path);
	hm_spec_free(spec);
	return does;
}

bool replay_has_spill(const char *text, uint64_t total, uint64_t *limit)
{
	const struct hm_spec *with;
	struct hm_spec *spec;

	*limit = 0;
	if (hm_spec_parse(text, &spec))
		return false;
	with = find_spill(spec);
	if (with && hm_spec_value(with, "max")->given)
		*limit = hm_spec_bytes(with, "max", total);
	hm_spec_free(spec);
	return with;
}

/* Options. */

static int check_value(const char *option, enum hm_param_type type, const char *text)
{
	const struct hm_param param = { .name = option, .type = type, .not_zero = true };
	struct hm_value value;
	char why[128];

	if (!text || !hm_value_parse(&param, text, &value, why, sizeof(why)))
		return 0;
	return usage_error("replay", "--%s: '%s' is not %s", option, text, why);
}

int replay_spill_check(const struct replay_spill_options *o)
{
	int status = check_value("spill", HM_PARAM_SIZE, o->spill);

	if (!status)
		status = check_value("max", HM_PARAM_SHARE, o->max);
	if (!status)
		status = check_value("movable", HM_PARAM_SIZE, o->movable);
	if (!status && !o->spill && (o->max || o->movable))
		return usage_error("replay", "--%s goes with --spill",
				   o->max ? "max" : "movable");
	return status;
}

char *replay_spill_spec(const struct replay_spill_options *o, const struct replay_trace *t)
{
	const struct hm_param param = { .name = "max", .type = HM_PARAM_SHARE };
	struct hm_value value = { .number = 0 };
	const char *movable = o->movable ? o->movable : "4M";
	char why[128], share[32];
	const char *max = o->max;

	if (max && !hm_value_parse(&param, max, &value, why, sizeof(why)) && value.percent) {
		const double bytes = (double)t->peak_requested * value.number / 1e6;

		snprintf(share, sizeof(share), "%lluM",
			 (unsigned long long)((bytes + 0xfffff) / 0x100000));
		max = share;
	}
	return xasprintf("device-pool(%s%s%sspill=%s,movable=%s,launcher=single)",
			 max ? "max=" : "", max ? max : "", max ? "," : "", o->spill, movable);
}

/* Watching moves. */

static bool holds(const struct replay_watch *watch, uint32_t block, uintptr_t at)
{
	const uintptr_t start = (uintptr_t)watch->world->ptrs[block];

	return at >= start && at - start < watch->blocks[block].size;
}

/* NULL: memory of no block that the replay knows. */
static struct replay_watched *find_block(const struct replay_watch *watch, const void *ptr)
{
	uint32_t i;

	for (i = 0; i < watch->nr_live; i++)
		if (holds(watch, watch->live[i], (uintptr_t)ptr))
			return &watch->blocks[watch->live[i]];
	return NULL;
}

static void keep_move(struct replay_watch *watch, const struct replay_watched *b, size_t bytes,
		      bool back)
{
	struct replay_spill *s = watch->spill;

	if (!watch->keep)
		return;
	if (s->nr == REPLAY_MOVES) {
		s->left_out++;
		return;
	}
	if (!(s->nr & (s->nr - 1)))
		s->log = xrealloc_array(s->log, s->nr ? 2 * s->nr : 1, sizeof(*s->log));
	s->log[s->nr++] = (struct replay_move){
		.bytes = bytes, .event = watch->at, .back = back,
		.age = b ? watch->at - b->made : REPLAY_NONE,
	};
}

static void moved(struct replay_watch *watch, const struct hetmem_remap *remap, bool back)
{
	struct replay_watched *b = find_block(watch, remap->ptr);
	struct replay_spill *s = watch->spill;

	s->moves[back]++;
	s->bytes[back] += remap->bytes;
	watch->recent_moves[back]++;
	s->spilled += back ? -remap->bytes : remap->bytes;
	if (b)
		b->spilled += back ? -remap->bytes : remap->bytes;
	if (s->spilled > s->most)
		s->most = s->spilled;
	if (s->spilled > watch->recent)
		watch->recent = s->spilled;
	keep_move(watch, b, remap->bytes, back);
}

static void on_remap(const struct hetmem_remap *remap, void *arg)
{
	const bool back = remap->cause == HETMEM_REMAP_FETCH;
	struct replay_watch *watch = arg;

	if (!back && remap->cause != HETMEM_REMAP_SPILL)
		return;
	if (!remap->after) {
		if (!watch->under_way[back]++)
			watch->since[back] = replay_now();
		return;
	}
	if (!--watch->under_way[back])
		watch->spill->ns[back] += replay_now() - watch->since[back];
	if (!remap->error)
		moved(watch, remap, back);
}

int replay_watch_open(struct replay_watch *watch, struct replay_world *w,
		      struct hetmem_resource *res, const char *spec, bool keep,
		      struct replay_spill *spill)
{
	const uint32_t blocks = w->trace->blocks;

	*watch = (struct replay_watch){
		.world = w, .res = res, .keep = keep, .spill = spill,
	};
	if (hetmem_on_remap(res, on_remap, watch))
		return complain(EXIT_FAILED, "replay", "%s: no block moves: %s", spec,
				hetmem_last_error());
	watch->blocks = xcalloc(blocks, sizeof(*watch->blocks));
	watch->live = xcalloc(blocks, sizeof(*watch->live));
	return 0;
}

static void forget(struct replay_watch *watch, uint32_t block)
{
	struct replay_watched *b = &watch->blocks[block];
	const uint32_t last = watch->live[--watch->nr_live];

	watch->live[b->slot] = last;
	watch->blocks[last].slot = b->slot;
	watch->spill->spilled -= b->spilled;
	watch->spill->freed += b->spilled;
}

int replay_watch_step(struct replay_watch *watch, size_t at)
{
	const struct replay_step *s = &watch->world->trace->steps[at];
	int err;

	watch->at = at;
	if (s->op == REPLAY_FREE && watch->world->ptrs[s->block] &&
	    watch->blocks[s->block].size)
		forget(watch, s->block);
	err = replay_step(watch->world, watch->res, s);
	if (s->op != REPLAY_ALLOC || err || s->size <= STAYS)
		return err;
	watch->blocks[s->block] = (struct replay_watched){
		.size = s->size, .made = at, .slot = watch->nr_live,
	};
	watch->live[watch->nr_live++] = s->block;
	return 0;
}

void replay_watch_close(struct replay_watch *watch)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct replay_spill *s = watch->spill;

	if (!watch->blocks)
		return;
	if (!hetmem_resource_stats(watch->res, &stats))
		s->host = stats.spill_host_peak;
	s->freed += s->spilled;
	s->spilled = 0;
	hetmem_off_remap(watch->res, on_remap, watch);
	free(watch->blocks);
	free(watch->live);
}

int replay_spill_pass(struct replay_world *w, const char *spec, bool keep,
		      struct replay_spill *spill)
{
	struct replay_watch watch;
	struct hetmem_resource *res;
	uint64_t failures = 0;
	int status;
	size_t i;

	if (!replay_has_spill(spec, w->hm->devices[0].props.total, &spill->limit))
		return 0;
	if (hetmem_resource_create(w->hm, spec, &res))
		return complain(EXIT_FAILED, "replay", "%s: %s", spec, hetmem_last_error());
	status = replay_watch_open(&watch, w, res, spec, keep, spill);
	for (i = 0; !status && i < w->trace->nr; i++)
		failures += !!replay_watch_step(&watch, i);
	replay_watch_close(&watch);
	replay_drain(w, res);
	hetmem_resource_destroy(res);
	spill->failures = failures;
	spill->known = !status;
	spill->timed = !w->hm->soft;
	return status;
}

/* Printing. */

static const char *count_text(char *text, size_t len, uint64_t count)
{
	snprintf(text, len, "%llu", (unsigned long long)count);
	return text;
}

static const char *ms_text(char *text, size_t len, const struct replay_spill *s, int way)
{
	snprintf(text, len, s->timed ? "%.2f" : "-", s->ns[way] / 1e6);
	return text;
}

static void add_row(struct table *table, const struct replay_result *r)
{
	const struct replay_spill *s = &r->spill;
	char out[24], back[24], failed[24], ratio[24], out_ms[32], back_ms[32];

	snprintf(ratio, sizeof(ratio), s->most ? "%.4f" : "-", (double)s->host / s->most);
	table_row(table, (const char *[]){
		r->trace->name, r->spec, s->limit ? size_text(s->limit) : "-",
		count_text(out, sizeof(out), s->moves[0]), size_text(s->bytes[0]),
		ms_text(out_ms, sizeof(out_ms), s, 0),
		count_text(back, sizeof(back), s->moves[1]), size_text(s->bytes[1]),
		ms_text(back_ms, sizeof(back_ms), s, 1),
		size_text(s->most), size_text(s->host), ratio, size_text(s->freed),
		count_text(failed, sizeof(failed), s->failures) });
}

static void print_moves(const struct replay_result *r)
{
	const struct replay_spill *s = &r->spill;
	size_t i;

	if (!s->nr)
		return;
	printf("\n%s, %s: moves\n%10s  %-6s  %12s  %10s\n", r->trace->name, r->spec, "EVENT",
	       "TO", "BYTES", "AGE");
	for (i = 0; i < s->nr; i++) {
		const struct replay_move *m = &s->log[i];

		printf("%10u  %-6s  %12llu  ", m->event, m->back ? "device" : "host",
		       (unsigned long long)m->bytes);
		if (m->age == REPLAY_NONE)
			printf("%10s\n", "-");
		else
			printf("%10u\n", m->age);
	}
	if (s->left_out)
		printf("and %llu more\n", (unsigned long long)s->left_out);
}

void replay_spill_print(const struct replay_result *results, size_t nr)
{
	static const struct table_column columns[] = {
		{ "TRACE", false }, { "SPEC", false }, { "MAX", true }, { "OUT", true },
		{ "BYTES", true }, { "MS", true }, { "BACK", true }, { "BYTES", true },
		{ "MS", true }, { "SPILLED", true }, { "HOST", true }, { "RATIO", true },
		{ "FREED", true }, { "FAILED", true },
	};
	struct table *table = NULL;
	size_t i;

	for (i = 0; i < nr; i++) {
		if (!results[i].spill.known)
			continue;
		if (!table)
			table = table_new(columns, ARRAY_SIZE(columns));
		add_row(table, &results[i]);
	}
	if (!table)
		return;
	putchar('\n');
	table_print(table);
	puts("\nBlocks that move, in a pass of their own: OUT to the host and BACK, with the time in\n"
	     "moves, of a GPU only; SPILLED at most; HOST: memory held for it at most, and over\n"
	     "SPILLED; FREED: still spilled when the block was freed. If allocations FAILED, raise\n"
	     "max= or spill=, or lower movable=.");
	for (i = 0; i < nr; i++)
		print_moves(&results[i]);
}
