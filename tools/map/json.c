/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem map --json`. One mapping is built and printed at a time, so that a
 * large process needs no large memory here.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <hetmem.h>

#include "map.h"
#include "picture.h"
#include "util.h"

#ifdef HAVE_JSON_C
#include "json_text.h"

struct builder {
	struct json_object *runs;
	struct totals totals;
};

static struct json_object *json_location(uint32_t location)
{
	char text[64];

	return json_object_new_string(location_text(location, text,
						    sizeof(text)));
}

static struct json_object *json_why(uint32_t why)
{
	struct json_object *array = json_object_new_array();
	char text[64];
	int bit;

	for (bit = 0; bit < 32; bit++)
		if (why & (1U << bit))
			json_object_array_add(array, json_object_new_string(
				hetmem_why_names(1U << bit, text,
						 sizeof(text))));
	return array;
}

static int add_run(const struct hetmem_run *run, void *arg)
{
	struct json_object *object = json_object_new_object();
	struct builder *builder = arg;

	totals_add(&builder->totals, run);
	json_object_object_add(object, "start", json_address(run->start));
	json_object_object_add(object, "end", json_address(run->end));
	json_object_object_add(object, "location",
			       json_location(run->location));
	json_object_object_add(object, "order",
			       json_object_new_int(run->order));
	json_object_object_add(object, "why", json_why(run->why));
	json_object_array_add(builder->runs, object);
	return 0;
}

static void print(struct json_object *object)
{
	fputs(json_object_to_json_string_ext(object,
					     JSON_C_TO_STRING_NOSLASHESCAPE),
	      stdout);
	json_object_put(object);
}

static int print_vma(struct source *source, const struct vma *vma,
		     struct builder *builder)
{
	struct json_object *object = json_object_new_object();
	int ret;

	builder->runs = json_object_new_array();
	ret = source_walk(source, vma, vma->start, vma->end, add_run, builder);
	json_object_object_add(object, "start", json_address(vma->start));
	json_object_object_add(object, "end", json_address(vma->end));
	json_object_object_add(object, "perms",
			       json_object_new_string(vma->perms));
	json_object_object_add(object, "name",
			       json_object_new_string(vma->name));
	json_object_object_add(object, "runs", builder->runs);
	print(object);
	return ret;
}

static struct json_object *json_tallies(const struct tally *tally, size_t nr,
					const char *key,
					struct json_object *(*value)(uint32_t),
					uint64_t page_size)
{
	struct json_object *array = json_object_new_array();
	size_t i;

	for (i = 0; i < nr; i++) {
		struct json_object *object = json_object_new_object();
		uint64_t pages = tally[i].pages;

		json_object_object_add(object, key, value(tally[i].key));
		json_object_object_add(object, "pages",
				       json_object_new_int64(pages));
		json_object_object_add(object, "bytes",
				       json_object_new_int64(pages *
							     page_size));
		json_object_array_add(array, object);
	}
	return array;
}

int map_json(struct source *source, const struct vmas *vmas)
{
	struct builder builder = { .totals.page_size = source->page_size };
	int ret = 0;
	size_t i;

	printf("{\"pid\": %d, \"source\": \"%s\", \"page_size\": %" PRIu64 ",\n\"note\": ",
	       source->pid, source->context >= 0 ? "module" : "pagemap",
	       source->page_size);
	print(json_object_new_string(source->note ? source->note : ""));
	printf(",\n\"vmas\": [");
	for (i = 0; i < vmas->nr && !ret; i++) {
		fputs(i ? ",\n" : "\n", stdout);
		ret = print_vma(source, &vmas->vma[i], &builder);
	}
	printf("],\n\"complete\": %s,\n\"totals\": ", ret ? "false" : "true");
	print(json_tallies(builder.totals.locations,
			   builder.totals.nr_locations, "location",
			   json_location, source->page_size));
	printf(",\n\"why\": ");
	print(json_tallies(builder.totals.whys, builder.totals.nr_whys, "why",
			   json_why, source->page_size));
	puts("}");
	return ret;
}
#else
int map_json(struct source *source, const struct vmas *vmas)
{
	(void)source;
	(void)vmas;
	return -EOPNOTSUPP;
}
#endif
