/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* `hetmem replay --json`: an array, an object for each run. */
#include <stdio.h>
#include <stdlib.h>

#include "count_calls.h"
#include "replay.h"

#ifdef HAVE_JSON_C
#include "json_text.h"

/* null where nothing was taken. */
static void add_number(struct json_object *object, const char *key,
		       double value)
{
	json_object_object_add(object, key, json_figure(value, "%.4f"));
}

/* Of characters that JSON can have: a file may be called anything. */
static void add_text(struct json_object *object, const char *key,
		     const char *text)
{
	json_object_object_add(object, key, json_text(text));
}

static void add_count(struct json_object *object, const char *key,
		      int64_t value)
{
	json_object_object_add(object, key, value < 0 ? NULL :
			       json_object_new_int64(value));
}

/* A member only where there is a reason. */
static void add_reason(struct json_object *object, const char *key, const char *why)
{
	if (why)
		add_text(object, key, why);
}

/* Three members: NAME_ms, the median, NAME_min_ms and NAME_max_ms. */
static void add_time(struct json_object *object, const char *name, const struct replay_time *t)
{
	const struct {
		const char *tail;
		double ms;
	} parts[] = {
		{ "ms", t->median }, { "min_ms", t->least }, { "max_ms", t->most },
	};
	char key[64];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		snprintf(key, sizeof(key), "%s_%s", name, parts[i].tail);
		add_number(object, key, parts[i].ms);
	}
}

/* Both versions of a call have one name. */
static struct json_object *calls(const struct replay_result *r)
{
	struct json_object *object, *old;
	unsigned int i;

	if (!r->calls_known)
		return NULL;
	object = json_object_new_object();
	for (i = 0; i < count_calls_nr(); i++) {
		int64_t before = 0;

		if (!r->calls[i])
			continue;
		if (json_object_object_get_ex(object, count_calls_name(i),
					      &old))
			before = json_object_get_int64(old);
		add_count(object, count_calls_name(i), before + r->calls[i]);
	}
	return object;
}

static void add_times(struct json_object *object, const char *key,
		      const uint64_t *ns)
{
	struct json_object *times = json_object_new_object();
	unsigned int i;

	for (i = 0; i < time_calls_nr(); i++)
		if (ns[i])
			add_number(times, time_calls_name(i), ns[i] / 1e6);
	json_object_object_add(object, key, times);
}

static struct json_object *json_moves(const struct replay_spill *s)
{
	struct json_object *array = json_object_new_array(), *object;
	size_t i;

	for (i = 0; i < s->nr; i++) {
		object = json_object_new_object();
		add_count(object, "event", s->log[i].event);
		add_text(object, "to", s->log[i].back ? "device" : "host");
		add_count(object, "bytes", s->log[i].bytes);
		add_count(object, "age", s->log[i].age == REPLAY_NONE ? -1 : (int64_t)s->log[i].age);
		json_object_array_add(array, object);
	}
	return array;
}

static struct json_object *json_spill(const struct replay_spill *s, bool moves)
{
	struct json_object *object;

	if (!s->known)
		return NULL;
	object = json_object_new_object();
	add_count(object, "max", s->limit ? (int64_t)s->limit : -1);
	add_count(object, "moves_out", s->moves[0]);
	add_count(object, "bytes_out", s->bytes[0]);
	add_count(object, "moves_back", s->moves[1]);
	add_count(object, "bytes_back", s->bytes[1]);
	add_count(object, "most_spilled", s->most);
	add_count(object, "host_peak", s->host);
	add_number(object, "host_ratio", s->most ? (double)s->host / s->most : -1);
	add_count(object, "freed_spilled", s->freed);
	add_number(object, "out_ms", s->timed ? s->ns[0] / 1e6 : -1);
	add_number(object, "back_ms", s->timed ? s->ns[1] / 1e6 : -1);
	add_count(object, "failures", s->failures);
	if (moves) {
		json_object_object_add(object, "moves", json_moves(s));
		add_count(object, "moves_left_out", s->left_out);
	}
	return object;
}

static struct json_object *json_run(const struct replay_result *r, const struct replay_how *how)
{
	struct json_object *object = json_object_new_object();

	add_text(object, "trace", r->trace->name);
	add_text(object, "spec", r->spec);
	add_text(object, "driver", r->driver);
	add_count(object, "events", r->trace->nr);
	add_number(object, "ns_per_event", r->ns_per_event);
	add_number(object, "ns_p99", r->ns_p99);
	add_time(object, "first_pass", &r->pass[0]);
	add_time(object, "second_pass", &r->pass[1]);
	add_time(object, "peer_first_pass", &r->peer_pass[0]);
	add_time(object, "peer_second_pass", &r->peer_pass[1]);
	add_time(object, "device_first", &r->device[0]);
	add_time(object, "device_second", &r->device[1]);
	add_time(object, "peer_device_first", &r->peer_device[0]);
	add_time(object, "peer_device_second", &r->peer_device[1]);
	add_reason(object, "times_why", replay_times_why(r));
	add_reason(object, "peer_why", replay_peer_why(r));
	json_object_object_add(object, "driver_calls", calls(r));
	add_count(object, "system_calls", r->system_calls);
	add_number(object, "host_wait_ms", r->host_wait_ms);
	add_count(object, "peak_requested", r->peak_requested);
	add_count(object, "peak_reserved", r->imitated ? -1 : (int64_t)r->peak_reserved);
	add_number(object, "ratio", r->imitated ? -1 : r->ratio);
	add_reason(object, "ratio_why", replay_ratio_why(r));
	add_count(object, "peak_needed",
		  r->needed_known ? (int64_t)r->needed.needed : -1);
	add_count(object, "peak_least",
		  r->needed_known ? (int64_t)r->needed.least : -1);
	add_number(object, "needed_ratio", r->needed_known && !r->imitated ?
		   (double)r->needed_reserved / r->needed.needed : -1);
	add_number(object, "least_ratio", r->needed_known && !r->imitated ?
		   (double)r->needed_reserved / r->needed.least : -1);
	add_count(object, "failures", r->failures);
	add_reason(object, "failures_why", *r->why ? r->why : NULL);
	if (r->times_known) {
		add_times(object, "driver_ms", r->driver_ns[0]);
		add_times(object, "driver_second_ms", r->driver_ns[1]);
	}
	if (r->metadata >= 0) {
		add_count(object, "metadata_blocks", r->peak_blocks);
		add_count(object, "metadata_mapped", r->peak_mapped);
		add_count(object, "metadata_bytes", r->metadata);
	}
	json_object_object_add(object, "spill", json_spill(&r->spill, how->moves));
	return object;
}

int replay_json(const struct replay_result *results, size_t nr, const struct replay_how *how)
{
	struct json_object *array = json_object_new_array();
	size_t i;

	for (i = 0; i < nr; i++)
		json_object_array_add(array, json_run(&results[i], how));
	puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PRETTY));
	json_object_put(array);
	return EXIT_OK;
}
#else
int replay_json(const struct replay_result *results, size_t nr, const struct replay_how *how)
{
	(void)results;
	(void)nr;
	(void)how;
	return complain(EXIT_USAGE, "replay",
			"--json: this was built without libjson-c-dev");
}
#endif
