/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem map`. */
#ifndef HETMEM_TOOLS_MAP_H
#define HETMEM_TOOLS_MAP_H

#include "maps.h"
#include "source.h"

/*
 * Makes memory of every kind in this process: anonymous, huge, file, shared,
 * locked, reserved, moved to a device where that can be done. Leaves its
 * mappings in @vmas, named. It stays until the process ends.
 */
void map_self_make(struct vmas *vmas);

/*
 * Prints what is in @vmas as JSON. 0, or a negative errno of the walk; the
 * JSON is complete even then, and says so. -EOPNOTSUPP: built without
 * json-c.
 */
int map_json(struct source *source, const struct vmas *vmas);

#endif
