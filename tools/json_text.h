/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Text for json-c that need not be of characters that JSON can have. */
#ifndef HETMEM_TOOLS_JSON_TEXT_H
#define HETMEM_TOOLS_JSON_TEXT_H

#include <json-c/json.h>
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

#endif /* HETMEM_TOOLS_JSON_TEXT_H */
