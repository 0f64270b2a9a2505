/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem status`. */
#ifndef HETMEM_TOOLS_STATUS_H
#define HETMEM_TOOLS_STATUS_H

#include "sample.h"

/* The text exposition format of Prometheus: one sample, its counters since each began. */
void status_prometheus(const struct sample *sample);

/* Both samples as one JSON object. -EOPNOTSUPP: built without json-c. */
int status_json(const struct sample *before, const struct sample *after);

#endif
