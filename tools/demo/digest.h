/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* SHA-256 by libmd, which is optional. */
#ifndef HETMEM_TOOLS_DIGEST_H
#define HETMEM_TOOLS_DIGEST_H

#include <stdbool.h>
#include <stddef.h>

#define DIGEST_TEXT	65

struct digest;

/* False: built without libmd; then nothing else here may be called. */
bool digest_there(void);

struct digest *digest_new(void);

/* A second one that has seen the same bytes. */
struct digest *digest_copy(const struct digest *digest);
void digest_add(struct digest *digest, const void *data, size_t size);

/* Writes the sum in hexadecimal and frees @digest. */
void digest_end(struct digest *digest, char text[DIGEST_TEXT]);

#endif
