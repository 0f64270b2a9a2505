/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The checksum of recordings, see format.h. */
#include <stdbool.h>

#include "format.h"

#define POLYNOMIAL	0xedb88320

uint32_t record_crc(uint32_t crc, const void *data, size_t len)
{
	static uint32_t table[256];
	static bool made;
	const unsigned char *p = data;
	uint32_t i, bit;

	for (i = 0; !made && i < 256; i++) {
		table[i] = i;
		for (bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
	}
	made = true;
	crc = ~crc;
	while (len--)
		crc = crc >> 8 ^ table[(crc ^ *p++) & 0xff];
	return ~crc;
}
