// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Values in specs: sizes (core/size.c), percentages, times, words.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "pool/pool.h"
#include "spec/spec.h"

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit time_units[] = {
	{ "ns", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 },
	{ NULL, 0 },
};

static const struct unit no_unit[] = {
	{ "", 1 }, { NULL, 0 },
};

static const struct unit percent_unit[] = {
	{ "%", 10000 }, { NULL, 0 },	/* of millionths */
};

/*
 * Digits, with a fraction of at most six if @fraction, and a unit: their
 * product. False: not such a number, or too large.
 */
static bool parse_scaled(const char *text, const struct unit *units,
			 bool fraction, uint64_t *number)
{
	uint64_t whole = 0, part = 0, scale = 1, high, low;
	const char *at = text;

	if (!isdigit((unsigned char)*at))
		return false;
	for (; isdigit((unsigned char)*at); at++)
		if (__builtin_mul_overflow(whole, 10, &whole) ||
		    __builtin_add_overflow(whole, *at - '0', &whole))
			return false;
	if (fraction && *at == '.') {
		if (!isdigit((unsigned char)*++at))
			return false;
		for (; isdigit((unsigned char)*at); at++) {
			if (scale == 1000000)
				return false;
			part = part * 10 + (*at - '0');
			scale *= 10;
		}
	}
	for (; units->name; units++)
		if (!strcasecmp(at, units->name))
			break;
	if (!units->name)
		return false;
	if (__builtin_mul_overflow(whole, units->factor, &high) ||
	    __builtin_mul_overflow(part, units->factor, &low))
		return false;
	return !__builtin_add_overflow(high, low / scale, number);
}

static bool parse_word(const char *words, const char *text, uint64_t *index)
{
	size_t len = strlen(text), n;

	for (*index = 0; *words; (*index)++) {
		n = strcspn(words, "|");
		if (n == len && !strncmp(words, text, n))
			return true;
		words += n + (words[n] == '|');
	}
	return false;
}

/* The part of @text up to the next '/', and where the one behind it begins. */
static const char *next_part(const char *text, char *part, size_t len)
{
	size_t n = strcspn(text, "/");

	if (n >= len)
		return NULL;
	memcpy(part, text, n);
	part[n] = '\0';
	return text + n + (text[n] == '/');
}

int hm_value_sizes(const char *text, uint64_t sizes[HM_SPEC_CHILDREN])
{
	const char *end = text + strlen(text);
	char part[40];
	int n = 0;

	do {
		text = next_part(text, part, sizeof(part));
		if (!text || n == HM_SPEC_CHILDREN - 1 ||
		    !hm_parse_size(part, &sizes[n]) || (n && sizes[n] <= sizes[n - 1]))
			return -EINVAL;
		n++;
	} while (text < end || end[-1] == '/');
	return n;
}

/* Ordinals, as bits. */
static bool parse_devices(const char *text, uint64_t *bits)
{
	const char *end = text + strlen(text);
	uint64_t ordinal;
	char part[8];

	*bits = 0;
	do {
		text = next_part(text, part, sizeof(part));
		if (!text || !parse_scaled(part, no_unit, false, &ordinal) ||
		    ordinal >= HM_MAX_DEVICES)
			return false;
		*bits |= 1ULL << ordinal;
	} while (text < end || end[-1] == '/');
	return true;
}

int hm_value_parse(const struct hm_param *param, const char *text,
		   struct hm_value *value, char *why, size_t len)
{
	uint64_t sizes[HM_SPEC_CHILDREN];
	bool good = false;
	int n;

	value->percent = false;
	value->word = false;
	value->path = false;
	value->number = 0;
	switch (param->type) {
	case HM_PARAM_SHARE:
		if (strchr(text, '%')) {
			value->percent = true;
			good = parse_scaled(text, percent_unit, true,
					    &value->number) &&
			       value->number && value->number <= 1000000;
			snprintf(why, len, "a percentage above 0 and up to 100");
			break;
		}
		/* fall through */
	case HM_PARAM_SIZE:
		value->word = param->words && parse_word(param->words, text, &value->number);
		value->path = param->path && strchr(text, '/');
		if (value->word || value->path)
			return 0;
		good = hm_parse_size(text, &value->number);
		snprintf(why, len, "a size like 4096, 64K, 1.5GiB%s%s%s",
			 param->type == HM_PARAM_SHARE ? ", or 90%" :
			 param->words ? ", or one of " : "", param->words ? param->words : "",
			 param->path ? ", or a directory like /var/tmp" : "");
		break;
	case HM_PARAM_POWER:
		good = hm_parse_size(text, &value->number) && value->number &&
		       !(value->number & (value->number - 1));
		snprintf(why, len, "a power of two like 4K, 2M");
		break;
	case HM_PARAM_NUMBER:
		good = parse_scaled(text, no_unit, false, &value->number) &&
		       value->number <= INT32_MAX;
		snprintf(why, len, "a number");
		break;
	case HM_PARAM_TIME:
		good = parse_scaled(text, time_units, true, &value->number);
		snprintf(why, len, "a time like 100us, 5ms, 1s");
		break;
	case HM_PARAM_SWITCH:
		good = parse_word("off|on", text, &value->number);
		snprintf(why, len, "on or off");
		break;
	case HM_PARAM_WORD:
		good = parse_word(param->words, text, &value->number);
		snprintf(why, len, "one of %s", param->words);
		break;
	case HM_PARAM_TEXT:
		good = *text;
		snprintf(why, len, "text");
		break;
	case HM_PARAM_TAG:
		good = *text && strlen(text) < HM_TAG_LEN;
		snprintf(why, len, "text of at most %d characters",
			 HM_TAG_LEN - 1);
		break;
	case HM_PARAM_DEVICES:
		good = parse_devices(text, &value->number);
		snprintf(why, len, "ordinals of devices like 1/2/3%s", strchr(text, ':') ?
			 ", which all write: an alias with HETMEM_ALIAS_READ is read only" : "");
		break;
	case HM_PARAM_SIZES:
		n = hm_value_sizes(text, sizes);
		good = n > 0;
		value->number = good ? n : 0;
		snprintf(why, len, "at most %d ascending sizes like 64K/1M",
			 HM_SPEC_CHILDREN - 1);
		break;
	}
	if (param->not_zero && good && !value->number) {
		good = false;
		snprintf(why, len, "more than 0");
	}
	return good ? 0 : -EINVAL;
}
