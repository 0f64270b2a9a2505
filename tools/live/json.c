/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem status --json: what the text has, with nothing rounded. null: not known. */
#include <errno.h>
#include <stdio.h>

#include "map/source.h"
#include "status.h"
#include "util.h"

#ifdef HAVE_JSON_C
#include "json_text.h"

#define add(object, name, value)	json_object_object_add(object, name, value)

static struct json_object *json_rate(double value, bool known)
{
	return known ? json_object_new_int64(value) : NULL;
}

static struct json_object *json_device(const struct sample_device *d)
{
	struct json_object *o = json_object_new_object();

	add(o, "id", json_object_new_int(d->id));
	add(o, "name", json_text(d->name));
	add(o, "capacity_bytes", json_count(d->capacity));
	add(o, "used_bytes", json_count(d->used));
	add(o, "limit_bytes", json_count(d->limit));
	return o;
}

static struct json_object *json_module(const struct sample_module *was,
				       const struct sample_module *m, double seconds)
{
	struct json_object *o = json_object_new_object(), *devices = json_object_new_array();
	unsigned int i;

	for (i = 0; i < m->nr_devices; i++)
		json_object_array_add(devices, json_device(&m->devices[i]));
	add(o, "to_device_bytes", json_count(m->to_device));
	add(o, "to_host_bytes", json_count(m->to_host));
	add(o, "to_device_bytes_per_second",
	    json_rate(sample_rate(was->to_device, m->to_device, seconds), was->loaded));
	add(o, "to_host_bytes_per_second",
	    json_rate(sample_rate(was->to_host, m->to_host, seconds), was->loaded));
	add(o, "unmoved_pages", json_count(m->failed_pages));
	add(o, "thrashed", json_count(m->thrashed));
	add(o, "hints", json_count(m->hints));
	add(o, "events", json_count(m->events));
	add(o, "events_dropped", json_count(m->events_dropped));
	add(o, "contexts", json_count(m->contexts));
	add(o, "ranges", json_count(m->ranges));
	add(o, "kernel_bytes", json_count(m->kernel_bytes));
	add(o, "pinned_bytes", json_count(m->pinned));
	add(o, "devices", devices);
	return o;
}

static struct json_object *json_gpus(const struct gpus *g)
{
	struct json_object *all = json_object_new_array(), *o;
	unsigned int i;

	for (i = 0; i < g->nr; i++) {
		o = json_object_new_object();
		add(o, "gpu", json_object_new_int(i));
		add(o, "name", json_text(g->gpus[i].name));
		add(o, "total_bytes", g->gpus[i].known ? json_count(g->gpus[i].total) : NULL);
		add(o, "used_bytes", g->gpus[i].known ? json_count(g->gpus[i].used) : NULL);
		json_object_array_add(all, o);
	}
	return all;
}

/* null: NVML cannot be asked. */
static struct json_object *json_held(const struct gpus *g, const struct sample_process *p)
{
	struct json_object *all, *o;
	unsigned int i;

	if (!g->there || *g->why)
		return NULL;
	all = json_object_new_array();
	for (i = 0; i < p->nr_gpus; i++) {
		o = json_object_new_object();
		add(o, "gpu", json_object_new_int(p->gpus[i].gpu));
		add(o, "bytes", p->gpus[i].bytes == GPU_BYTES_UNKNOWN ? NULL :
		    json_count(p->gpus[i].bytes));
		json_object_array_add(all, o);
	}
	return all;
}

static struct json_object *json_pool(const struct hm_published_pool *old,
				     const struct hm_published_pool *p, double seconds)
{
	struct json_object *o = json_object_new_object();

	add(o, "pool", json_count(p->number));
	add(o, "provider", json_text(p->provider));
	add(o, "device", json_object_new_int(p->device));
	add(o, "tag", json_text(p->tag));
	add(o, "limit_bytes", p->max ? json_count(p->max) : NULL);
	add(o, "requested_bytes", json_count(p->requested));
	add(o, "requested_peak_bytes", json_count(p->requested_peak));
	add(o, "reserved_bytes", json_count(p->reserved));
	add(o, "reserved_peak_bytes", json_count(p->reserved_peak));
	add(o, "live_blocks", json_count(sample_live(p)));
	add(o, "allocations", json_count(p->allocs));
	add(o, "frees", json_count(p->frees));
	add(o, "failures", json_count(p->failed));
	add(o, "driver_calls", json_count(p->driver_calls));
	add(o, "host_wait_ns", json_count(p->host_wait_ns));
	add(o, "pressures", json_count(p->pressures));
	add(o, "parked_bytes", json_count(p->parked));
	add(o, "spilled_bytes", json_count(p->spilled));
	add(o, "spilled_total_bytes", json_count(p->spilled_total));
	add(o, "fetched_total_bytes", json_count(p->fetched_total));
	add(o, "allocations_per_second",
	    json_rate(old ? sample_rate(old->allocs, p->allocs, seconds) : 0, old));
	add(o, "spilled_bytes_per_second",
	    json_rate(old ? sample_rate(old->spilled_total, p->spilled_total, seconds) : 0, old));
	add(o, "fetched_bytes_per_second",
	    json_rate(old ? sample_rate(old->fetched_total, p->fetched_total, seconds) : 0, old));
	return o;
}

static struct json_object *json_locations(const struct sample_process *p)
{
	struct json_object *array = json_object_new_array(), *o;
	char name[64];
	unsigned int i;

	for (i = 0; i < p->nr_locations; i++) {
		o = json_object_new_object();
		add(o, "location", json_text(location_text(p->locations[i].location, name,
							   sizeof(name))));
		add(o, "bytes", json_count(p->locations[i].bytes));
		json_object_array_add(array, o);
	}
	return array;
}

static struct json_object *json_process(const struct gpus *gpus, const struct sample_process *was,
					const struct sample_process *p, double seconds)
{
	const struct sample_moves moves = sample_moves(was, p, seconds);
	const bool known = moves.source != SOURCE_NONE;
	struct json_object *o = json_object_new_object();
	struct json_object *pools = p->hidden ? NULL : json_object_new_array();
	unsigned int i;

	for (i = 0; i < p->nr_pools; i++)
		json_object_array_add(pools, json_pool(sample_find_pool(was, &p->pools[i]),
						       &p->pools[i], seconds));
	add(o, "pid", json_object_new_int(p->pid));
	add(o, "uid", json_object_new_int64(p->uid));
	add(o, "name", json_text(p->name));
	add(o, "uses_hetmem", json_object_new_boolean(!p->other));
	add(o, "gpu_memory", json_held(gpus, p));
	add(o, "tracked", p->tracked || !p->hidden ? json_object_new_boolean(p->tracked) : NULL);
	add(o, "ranges", p->tracked ? json_count(p->ranges) : NULL);
	add(o, "pinned_bytes", p->tracked ? json_count(p->pinned) : NULL);
	add(o, "hints_waiting", p->executor ? json_count(p->waiting) : NULL);
	add(o, "thrashed", p->all_ranges ? json_count(p->thrashed) : NULL);
	add(o, "to_device_bytes", p->counted ? json_count(p->to_device) : NULL);
	add(o, "to_host_bytes", p->counted ? json_count(p->to_host) : NULL);
	add(o, "to_device_bytes_per_second", json_rate(moves.to_device, known));
	add(o, "to_host_bytes_per_second", json_rate(moves.to_host, known));
	add(o, "moves_source", known ? json_text(sample_source_name(moves.source)) : NULL);
	add(o, "memory", json_locations(p));
	add(o, "memory_source", p->residency == SOURCE_NONE ? NULL :
	    json_text(sample_source_name(p->residency)));
	add(o, "memory_complete",
	    json_object_new_boolean(p->residency != SOURCE_NONE && !p->partial));
	add(o, "pools", pools);
	add(o, "pools_unlisted", p->hidden ? NULL : json_count(p->unlisted));
	return o;
}

int status_json(const struct sample *before, const struct sample *after)
{
	const double seconds = after->time - before->time;
	struct json_object *o = json_object_new_object(), *processes = json_object_new_array();
	unsigned int i;

	for (i = 0; i < after->nr; i++)
		json_object_array_add(processes,
				      json_process(&after->gpus, sample_find(before, &after->processes[i]),
						   &after->processes[i], seconds));
	add(o, "seconds", json_object_new_double(seconds));
	add(o, "module", after->module.loaded ?
	    json_module(&before->module, &after->module, seconds) : NULL);
	add(o, "gpus", after->gpus.there && !*after->gpus.why ? json_gpus(&after->gpus) : NULL);
	add(o, "gpus_note", *after->gpus.why && after->gpus.there ? json_text(after->gpus.why) : NULL);
	add(o, "processes", processes);
	add(o, "elsewhere", json_object_new_int(after->elsewhere));
	add(o, "hidden", json_object_new_int(after->hidden));
	add(o, "left_out", json_object_new_int(after->left_out));
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY |
					    JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
	return 0;
}
#else
int status_json(const struct sample *before, const struct sample *after)
{
	(void)before;
	(void)after;
	return -EOPNOTSUPP;
}
#endif
