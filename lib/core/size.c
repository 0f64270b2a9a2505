// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sizes as people write them, for specs, options and environment variables alike: one
 * reader, so that a size means the same number of bytes everywhere.
 *
 * Bare letters and the units of IEC 80000-13 are powers of 1024: 64K, 64KiB. The units of the
 * SI are powers of 1000, as Dask and RMM read them: 64KB.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "core/core.h"

/* Digits after the point: more would not matter to any size. */
#define MOST_FRACTION	1000000

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit units[] = {
	{ "", 1 }, { "B", 1 },
	{ "K", 1ULL << 10 }, { "KiB", 1ULL << 10 }, { "KB", 1000 },
	{ "M", 1ULL << 20 }, { "MiB", 1ULL << 20 }, { "MB", 1000000 },
	{ "G", 1ULL << 30 }, { "GiB", 1ULL << 30 }, { "GB", 1000000000 },
	{ "T", 1ULL << 40 }, { "TiB", 1ULL << 40 }, { "TB", 1000000000000 },
};

static bool read_digits(const char **at, uint64_t *number)
{
	if (!isdigit((unsigned char)**at))
		return false;
	for (*number = 0; isdigit((unsigned char)**at); ++*at)
		if (__builtin_mul_overflow(*number, 10, number) ||
		    __builtin_add_overflow(*number, (unsigned int)(**at - '0'), number))
			return false;
	return true;
}

/* The digits after a point as @part of @scale. */
static bool read_fraction(const char **at, uint64_t *part, uint64_t *scale)
{
	*part = 0;
	*scale = 1;
	if (**at != '.')
		return true;
	if (!isdigit((unsigned char)*++*at))
		return false;
	for (; isdigit((unsigned char)**at); ++*at) {
		if (*scale == MOST_FRACTION)
			return false;
		*part = *part * 10 + (**at - '0');
		*scale *= 10;
	}
	return true;
}

/* "e9" makes @factor 1000000000; no exponent leaves it. */
static bool read_exponent(const char **at, uint64_t *factor)
{
	uint64_t exponent;

	if (tolower((unsigned char)**at) != 'e')
		return true;
	++*at;
	if (**at == '+')
		++*at;
	if (!read_digits(at, &exponent) || exponent > 18)
		return false;
	while (exponent--)
		if (__builtin_mul_overflow(*factor, 10, factor))
			return false;
	return true;
}

static bool read_unit(const char *at, uint64_t *factor)
{
	size_t i;

	while (*at == ' ' || *at == '\t')
		at++;
	for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcasecmp(at, units[i].name))
			return !__builtin_mul_overflow(*factor, units[i].factor, factor);
	return false;
}

bool hm_parse_size(const char *text, uint64_t *bytes)
{
	uint64_t whole, part, scale, high, low, factor = 1;

	if (!read_digits(&text, &whole) || !read_fraction(&text, &part, &scale) ||
	    !read_exponent(&text, &factor) || !read_unit(text, &factor))
		return false;
	/* Half a byte is a mistake: a unit was forgotten. */
	if (part && factor == 1)
		return false;
	return !__builtin_mul_overflow(whole, factor, &high) &&
	       !__builtin_mul_overflow(part, factor, &low) &&
	       !__builtin_add_overflow(high, low / scale, bytes) && *bytes <= INT64_MAX;
}
