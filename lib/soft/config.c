// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's environment:
 *
 * HETMEM_SOFT_MACHINE	what devices there are, see machine.c
 * HETMEM_SOFT_DEVICES	how many devices there are (as the machine has); emulated
 *			ones without a machine are all there
 * HETMEM_SOFT_MEMORY	bytes of each, with K, M, G, unless the machine says so
 *			(256M, or the emulated one's)
 * HETMEM_SOFT_SHARED	a file: all processes that name it share the devices' memory
 * HETMEM_SOFT_HOST_MEMORY	bytes of all handles of the host's memory (no bound)
 * HETMEM_SOFT_FAIL	"cuMemCreate:3,cuMemMap:1=CUDA_ERROR_MAP_FAILED": the
 *			nth call of that name fails, "*" is every one;
 *			CUDA_ERROR_UNKNOWN if no error is named, OUT_OF_MEMORY
 *			for calls that allocate
 * HETMEM_SOFT_DELAY	"cuMemcpyAsync:100us,cuMemMap:1ms": each call of that
 *			name takes longer: on the stream if it gives work to
 *			one, else itself; "cuMemMap:3:1ms": only the third one
 * HETMEM_SOFT_SEED	a number (1): in which order a launch does what the graph
 *			leaves open, another one each time; 0: as captured
 * HETMEM_SOFT_DEBUG	not empty and not 0: reports on stderr what was not
 *			freed when the driver is closed
 * HETMEM_SOFT_CHECK	the same, and check mode, see check.c
 * HETMEM_SOFT_SLEEP	not empty and not 0: other processes can put this one to sleep,
 *			see checkpoint.c
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

static bool is_call(const char *name)
{
	static const char *const names[] = {
#define CALL(member, base, symbol, version, need) #base,
		HM_DRIVER_CALLS(CALL)
		HM_PROGRAM_CALLS(CALL)
#undef CALL
		"cuLaunchKernel",	/* of struct hm_soft */
	};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

static CUresult default_error(const char *call)
{
	if (strstr(call, "Alloc") || !strcmp(call, "cuMemCreate") ||
	    !strcmp(call, "cuMemAddressReserve"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_ERROR_UNKNOWN;
}

/* "3", "*", "3=CUDA_ERROR_..." */
static int parse_fail(struct soft_rule *rule, const char *text)
{
	char *end;

	rule->error = default_error(rule->call);
	if (*text == '*') {
		end = (char *)text + 1;
	} else {
		errno = 0;
		rule->nth = strtoul(text, &end, 10);
		if (end == text || *text == '-' || errno || !rule->nth)
			return -EINVAL;
	}
	if (!*end)
		return 0;
	if (*end != '=' || !hm_soft_error_by_name(end + 1, &rule->error))
		return -EINVAL;
	return rule->error ? 0 : -EINVAL;
}

/* "100us", "3:100us" */
static int parse_delay(struct soft_rule *rule, const char *text)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} units[] = {
		{ "ns", 1 }, { "us", 1000 }, { "ms", 1000000 },
		{ "s", 1000000000 },
	};
	unsigned long long value;
	unsigned int i;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end == ':' && end != text && *text != '-' && value) {
		rule->nth = value;
		text = end + 1;
		value = strtoull(text, &end, 10);
	}
	if (end == text || *text == '-' || errno)
		return -EINVAL;
	for (i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(end, units[i].unit))
			continue;
		if (__builtin_mul_overflow(value, units[i].ns, &rule->delay))
			return -EINVAL;
		return 0;
	}
	return -EINVAL;
}

static int parse_list(struct soft_rule *rules, unsigned int *nr,
		      const char *text,
		      int (*parse)(struct soft_rule *rule, const char *text))
{
	char *copy, *item, *save = NULL, *colon;
	int err = 0;

	if (!text || !*text)
		return 0;
	copy = strdup(text);
	if (!copy)
		return -ENOMEM;
	for (item = strtok_r(copy, ",", &save); item && !err;
	     item = strtok_r(NULL, ",", &save)) {
		struct soft_rule *rule = &rules[*nr];

		colon = strchr(item, ':');
		if (!colon || *nr == SOFT_MAX_RULES) {
			err = -EINVAL;
			break;
		}
		*colon = '\0';
		memset(rule, 0, sizeof(*rule));
		if (!is_call(item)) {
			err = -EINVAL;
			break;
		}
		snprintf(rule->call, sizeof(rule->call), "%s", item);
		err = parse(rule, colon + 1);
		(*nr)++;
	}
	free(copy);
	return err;
}

int hm_soft_parse_rules(struct soft_rule *rules, unsigned int *nr,
			const char *fail, const char *delay)
{
	int err = parse_list(rules, nr, fail, parse_fail);

	return err ? err : parse_list(rules, nr, delay, parse_delay);
}

bool hm_soft_parse_size(const char *text, size_t *size)
{
	uint64_t bytes;

	if (!hm_parse_size(text, &bytes) || !bytes)
		return false;
	*size = bytes;
	return true;
}

static int configure_devices(struct soft_world *w, char *reason, size_t len)
{
	const char *text = getenv("HETMEM_SOFT_DEVICES");
	const char *memory = getenv("HETMEM_SOFT_MEMORY");
	size_t capacity = 0;
	long count = -1;
	char *end;
	int err, i;

	if (memory && *memory && !hm_soft_parse_size(memory, &capacity)) {
		snprintf(reason, len, "HETMEM_SOFT_MEMORY=%s: use a size like 256M",
			 memory);
		return -EINVAL;
	}
	if (text && *text) {
		count = strtol(text, &end, 10);
		if (*end || count < 0 || count > SOFT_MAX_DEVICES) {
			snprintf(reason, len, "HETMEM_SOFT_DEVICES=%s: use 0 to %d",
				 text, SOFT_MAX_DEVICES);
			return -EINVAL;
		}
	}
	err = hm_soft_machine(w, count, capacity, reason, len);
	if (err)
		return err;
	for (i = 0; i < w->nr_devices; i++) {
		w->devices[i].ordinal = i;
		w->devices[i].pool.live = true;
		w->devices[i].pool.device = i;
	}
	return 0;
}

static int configure_host(struct soft_world *w, char *reason, size_t len)
{
	const char *text = getenv("HETMEM_SOFT_HOST_MEMORY");

	w->host_capacity = PTRDIFF_MAX;
	if (!text || !*text || hm_soft_parse_size(text, &w->host_capacity))
		return 0;
	snprintf(reason, len, "HETMEM_SOFT_HOST_MEMORY=%s: use a size like 256M",
		 text);
	return -EINVAL;
}

static int configure_seed(struct soft_world *w, char *reason, size_t len)
{
	const char *text = getenv("HETMEM_SOFT_SEED");
	char *end;

	w->seed = 1;
	if (!text || !*text)
		return 0;
	errno = 0;
	w->seed = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno)
		return 0;
	snprintf(reason, len, "HETMEM_SOFT_SEED=%s: use a number", text);
	return -EINVAL;
}

int hm_soft_configure(struct soft_world *w, char *reason, size_t len)
{
	const char *fail = getenv("HETMEM_SOFT_FAIL");
	const char *delay = getenv("HETMEM_SOFT_DELAY");
	const char *debug = getenv("HETMEM_SOFT_DEBUG");
	const char *check = getenv("HETMEM_SOFT_CHECK");

	w->check = check && *check && strcmp(check, "0");
	w->debug = w->check || (debug && *debug && strcmp(debug, "0"));
	if (hm_soft_parse_rules(w->rules, &w->nr_rules, fail, NULL)) {
		snprintf(reason, len, "HETMEM_SOFT_FAIL=%s: use CALL:N[=CUDA_ERROR_...],...",
			 fail);
		return -EINVAL;
	}
	if (hm_soft_parse_rules(w->rules, &w->nr_rules, NULL, delay)) {
		snprintf(reason, len, "HETMEM_SOFT_DELAY=%s: use CALL:100us,...",
			 delay);
		return -EINVAL;
	}
	if (configure_seed(w, reason, len) || configure_host(w, reason, len))
		return -EINVAL;
	if (configure_devices(w, reason, len))
		return -EINVAL;
	return hm_soft_share(reason, len);
}
