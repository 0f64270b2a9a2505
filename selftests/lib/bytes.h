/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Contents that tell where they belong: byte i of a block is its value + 7 i + i / 4096, modulo
 * 256. They are written and compared a page at a time: a sanitizer looks at each access of a loop,
 * and once at a memcpy().
 */
#ifndef SELFTESTS_BYTES_H
#define SELFTESTS_BYTES_H

#include <stddef.h>
#include <string.h>

#define BYTES_PAGE	4096
/* 7 times this is 1. */
#define BYTES_BACK	183

/* Each page of any block is a part of this. */
static unsigned char bytes_row[BYTES_PAGE + 256];

__attribute__((constructor))
static void make_bytes_row(void)
{
	unsigned int i;

	for (i = 0; i < sizeof(bytes_row); i++)
		bytes_row[i] = 7 * i;
}

/* The contents at @at of a block, and how many bytes follow there, @bytes at most. */
static inline const unsigned char *bytes_at(size_t at, unsigned char value, size_t *bytes)
{
	const size_t in = at % BYTES_PAGE;
	const unsigned char first = value + at / BYTES_PAGE;

	if (*bytes > BYTES_PAGE - in)
		*bytes = BYTES_PAGE - in;
	return bytes_row + (unsigned char)(first * BYTES_BACK) + in;
}

/* Writes to @p what belongs to bytes @at to @at + @bytes of a block. */
static inline void write_bytes(void *p, size_t at, size_t bytes, unsigned char value)
{
	const unsigned char *want;
	size_t done, part;

	for (done = 0; done < bytes; done += part) {
		part = bytes - done;
		want = bytes_at(at + done, value, &part);
		memcpy((unsigned char *)p + done, want, part);
	}
}

/* How many bytes at @p are others. */
static inline size_t wrong_bytes(const void *p, size_t at, size_t bytes, unsigned char value)
{
	const unsigned char *have, *want;
	size_t done, part, i, n = 0;

	for (done = 0; done < bytes; done += part) {
		part = bytes - done;
		want = bytes_at(at + done, value, &part);
		have = (const unsigned char *)p + done;
		if (!memcmp(have, want, part))
			continue;
		for (i = 0; i < part; i++)
			n += have[i] != want[i];
	}
	return n;
}

#endif
