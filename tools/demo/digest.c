/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* SHA-256 by libmd: see digest.h. */
#include <stdlib.h>
#include <sys/types.h>

#include "digest.h"
#include "util.h"

#ifdef HAVE_LIBMD
#include <sha2.h>

struct digest {
	SHA2_CTX ctx;
};

bool digest_there(void)
{
	return true;
}

struct digest *digest_new(void)
{
	struct digest *digest = xcalloc(1, sizeof(*digest));

	SHA256Init(&digest->ctx);
	return digest;
}

struct digest *digest_copy(const struct digest *digest)
{
	struct digest *copy = xcalloc(1, sizeof(*copy));

	*copy = *digest;
	return copy;
}

void digest_add(struct digest *digest, const void *data, size_t size)
{
	SHA256Update(&digest->ctx, data, size);
}

void digest_end(struct digest *digest, char text[DIGEST_TEXT])
{
	SHA256End(&digest->ctx, text);
	free(digest);
}
#else
bool digest_there(void)
{
	return false;
}

struct digest *digest_new(void)
{
	abort();
}

struct digest *digest_copy(const struct digest *digest)
{
	(void)digest;
	abort();
}

void digest_add(struct digest *digest, const void *data, size_t size)
{
	(void)digest;
	(void)data;
	(void)size;
}

void digest_end(struct digest *digest, char text[DIGEST_TEXT])
{
	(void)digest;
	(void)text;
}
#endif
