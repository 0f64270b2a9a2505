/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Values for json-c: text of any characters, numbers that JSON's readers can hold. */
#ifndef HETMEM_TOOLS_JSON_TEXT_H
#define HETMEM_TOOLS_JSON_TEXT_H

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#include "util.h"

/* A string, escaped; NULL, which is JSON's null, for NULL. */
static inline struct json_object *json_text(const char *text)
{
	char *clean = text ? xescape(text) : NULL;
	struct json_object *object = clean ? json_object_new_string(clean) : NULL;

	free(clean);
	return object;
}

/* Larger ones come from liars only. */
static inline struct json_object *json_count(uint64_t value)
{
	return json_object_new_int64(value > INT64_MAX ? INT64_MAX : value);
}

/* As printf() formats it; NULL, which is JSON's null, for a negative one. */
static inline struct json_object *json_figure(double value, const char *format)
{
	char text[64];

	if (value < 0)
		return NULL;
	snprintf(text, sizeof(text), format, value);
	return json_object_new_double_s(value, text);
}

/* JSON numbers are doubles to many readers: addresses are strings. */
static inline struct json_object *json_address(uint64_t address)
{
	char text[32];

	snprintf(text, sizeof(text), "0x%" PRIx64, address);
	return json_object_new_string(text);
}

#endif /* HETMEM_TOOLS_JSON_TEXT_H */
