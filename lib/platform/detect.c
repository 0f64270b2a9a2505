// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The verdict about a device: how it and the CPU share memory, made of facts that
 * others gathered. Nothing here asks the machine.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/platform.h"

const struct hm_fact_row hm_fact_rows[HM_FACT_NR] = {
	[HM_FACT_INTEGRATED] = { "driver", "integrated", HM_FACT_BOOL },
	[HM_FACT_PAGEABLE] = { "driver", "pageable", HM_FACT_BOOL },
	[HM_FACT_HOST_TABLES] = { "driver", "host_tables", HM_FACT_BOOL },
	[HM_FACT_MANAGED] = { "driver", "managed", HM_FACT_BOOL },
	[HM_FACT_CONCURRENT] = { "driver", "concurrent", HM_FACT_BOOL },
	[HM_FACT_DIRECT] = { "driver", "direct", HM_FACT_BOOL },
	[HM_FACT_REGISTERS] = { "driver", "registers", HM_FACT_BOOL },
	[HM_FACT_REGISTERED] = { "driver", "registered", HM_FACT_BOOL },
	[HM_FACT_NODE] = { "driver", "node", HM_FACT_NUMBER },
	[HM_FACT_HOST_NODE] = { "driver", "host_node", HM_FACT_NUMBER },
	[HM_FACT_NVML] = { "nvml", "library", HM_FACT_BOOL },
	[HM_FACT_NVML_MODE] = { "nvml", "addressing", HM_FACT_MODE },
	[HM_FACT_NVML_NODE] = { "nvml", "node", HM_FACT_NUMBER },
	[HM_FACT_NODE_ONLINE] = { "kernel", "node_online", HM_FACT_BOOL },
	[HM_FACT_NODE_MEMORY] = { "kernel", "node_memory", HM_FACT_SIZE },
	[HM_FACT_NODE_CPUS] = { "kernel", "node_cpus", HM_FACT_BOOL },
	[HM_FACT_DEVICE_PRIVATE] = { "kernel", "device_private", HM_FACT_BOOL },
	[HM_FACT_MODULE] = { "module", "loaded", HM_FACT_BOOL },
	[HM_FACT_MODULE_DEVICE] = { "module", "device", HM_FACT_NUMBER },
};

static const char *const mode_names[] = {
	[HM_MODE_NONE] = "none", [HM_MODE_HMM] = "HMM", [HM_MODE_ATS] = "ATS",
};

#define NR_MODES	(int)(sizeof(mode_names) / sizeof(mode_names[0]))

const char *hetmem_platform_name(int kind)
{
	static const char *const names[] = {
		[HETMEM_PLATFORM_NONE] = "none",
		[HETMEM_PLATFORM_MANAGED] = "managed",
		[HETMEM_PLATFORM_HMM] = "HMM",
		[HETMEM_PLATFORM_ATS] = "ATS",
		[HETMEM_PLATFORM_CDMM] = "CDMM",
		[HETMEM_PLATFORM_INTEGRATED] = "integrated",
	};
	const int nr = sizeof(names) / sizeof(names[0]);

	return kind >= 0 && kind < nr ? names[kind] : "unknown";
}

void hm_platform_init(struct hm_platform *p)
{
	int id;

	memset(p, 0, sizeof(*p));
	for (id = 0; id < HM_FACT_NR; id++)
		hm_fact_unknown(p, id, "not asked");
}

static void print_size(char *text, size_t len, int64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	int64_t rest = bytes;
	unsigned int unit = 0;

	/* Exact up to three digits, then rounded down. */
	while (rest >= 10240 && unit < 4) {
		rest >>= 10;
		unit++;
	}
	snprintf(text, len, "%lld %s", (long long)rest, units[unit]);
}

void hm_fact_set(struct hm_platform *p, enum hm_fact_id id, int64_t value)
{
	struct hm_fact *fact = &p->facts[id];
	const size_t len = sizeof(fact->text);

	fact->known = true;
	fact->value = value;
	switch (hm_fact_rows[id].type) {
	case HM_FACT_BOOL:
		fact->value = !!value;
		snprintf(fact->text, len, "%s", value ? "yes" : "no");
		break;
	case HM_FACT_NUMBER:
		if (value < 0)
			snprintf(fact->text, len, "none");
		else
			snprintf(fact->text, len, "%lld", (long long)value);
		break;
	case HM_FACT_MODE:
		if (value < 0 || value >= NR_MODES)
			hm_fact_unknown(p, id, "mode %lld", (long long)value);
		else
			snprintf(fact->text, len, "%s", mode_names[value]);
		break;
	case HM_FACT_SIZE:
		print_size(fact->text, len, value);
		break;
	}
}

void hm_fact_unknown(struct hm_platform *p, enum hm_fact_id id,
		     const char *fmt, ...)
{
	static const char unknown[] = "unknown: ";
	struct hm_fact *fact = &p->facts[id];
	va_list args;

	fact->known = false;
	fact->value = 0;
	memcpy(fact->text, unknown, sizeof(unknown));
	va_start(args, fmt);
	vsnprintf(fact->text + sizeof(unknown) - 1,
		  sizeof(fact->text) - sizeof(unknown) + 1, fmt, args);
	va_end(args);
}

static bool parse_number(const char *text, int64_t *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtol(text, &end, 10);
	return !*end && !errno && *value <= INT32_MAX;
}

bool hm_fact_parse(enum hm_fact_id id, const char *text, int64_t *value)
{
	uint64_t bytes;

	switch (hm_fact_rows[id].type) {
	case HM_FACT_BOOL:
		*value = !strcmp(text, "yes");
		return *value || !strcmp(text, "no");
	case HM_FACT_NUMBER:
		*value = -1;
		return !strcmp(text, "none") || parse_number(text, value);
	case HM_FACT_MODE:
		for (*value = 0; *value < NR_MODES; ++*value)
			if (!strcasecmp(text, mode_names[*value]))
				return true;
		return false;
	case HM_FACT_SIZE:
		if (!hm_parse_size(text, &bytes))
			return false;
		*value = bytes;
		return true;
	}
	return false;
}

static bool yes(const struct hm_platform *p, enum hm_fact_id id)
{
	return p->facts[id].known && p->facts[id].value > 0;
}

static bool no(const struct hm_platform *p, enum hm_fact_id id)
{
	return p->facts[id].known && !p->facts[id].value;
}

static int number(const struct hm_platform *p, enum hm_fact_id id)
{
	return p->facts[id].known ? (int)p->facts[id].value : -1;
}

int hm_platform_node(const struct hm_platform *p)
{
	/* A driver before CUDA 12.2 does not know; NVML may. */
	return number(p, p->facts[HM_FACT_NODE].known ? HM_FACT_NODE :
		      HM_FACT_NVML_NODE);
}

/* Where the kernel cannot be asked, the driver's word counts. */
static bool has_node(const struct hm_platform *p)
{
	return hm_platform_node(p) >= 0 && !no(p, HM_FACT_NODE_ONLINE) &&
	       !no(p, HM_FACT_NODE_MEMORY);
}

static int kind_of(const struct hm_platform *p)
{
	if (yes(p, HM_FACT_INTEGRATED))
		return HETMEM_PLATFORM_INTEGRATED;
	if (!yes(p, HM_FACT_PAGEABLE))
		return yes(p, HM_FACT_CONCURRENT) ? HETMEM_PLATFORM_MANAGED :
			HETMEM_PLATFORM_NONE;
	if (!yes(p, HM_FACT_HOST_TABLES))
		return HETMEM_PLATFORM_HMM;
	return has_node(p) ? HETMEM_PLATFORM_ATS : HETMEM_PLATFORM_CDMM;
}

__attribute__((format(printf, 2, 3)))
static void contradict(struct hm_platform *p, const char *fmt, ...)
{
	va_list args;

	if (p->nr_contradictions == HM_MAX_CONTRADICTIONS)
		return;
	va_start(args, fmt);
	vsnprintf(p->contradictions[p->nr_contradictions++],
		  sizeof(p->contradictions[0]), fmt, args);
	va_end(args);
}

static void check_attributes(struct hm_platform *p)
{
	const bool integrated = yes(p, HM_FACT_INTEGRATED);

	if (yes(p, HM_FACT_HOST_TABLES) && no(p, HM_FACT_PAGEABLE))
		contradict(p, "the driver says: uses the CPU's page tables, but no pageable access");
	if (yes(p, HM_FACT_PAGEABLE) && no(p, HM_FACT_CONCURRENT) && !integrated)
		contradict(p, "the driver says: pageable access, but no concurrent managed access");
	if (yes(p, HM_FACT_CONCURRENT) && no(p, HM_FACT_MANAGED))
		contradict(p, "the driver says: concurrent managed access, but no managed memory");
	if (number(p, HM_FACT_NODE) >= 0 && no(p, HM_FACT_HOST_TABLES))
		contradict(p, "the driver says: its memory is node %d, but it does not use the CPU's page tables",
			   number(p, HM_FACT_NODE));
}

static void check_nvml(struct hm_platform *p)
{
	const int mode = !yes(p, HM_FACT_PAGEABLE) ? HM_MODE_NONE :
		yes(p, HM_FACT_HOST_TABLES) ? HM_MODE_ATS : HM_MODE_HMM;
	const int node = number(p, HM_FACT_NODE);
	const int nvml_node = number(p, HM_FACT_NVML_NODE);

	if (p->facts[HM_FACT_NVML_MODE].known &&
	    p->facts[HM_FACT_NVML_MODE].value != mode)
		contradict(p, "NVML says: addressing mode %s; the driver's attributes say %s",
			   p->facts[HM_FACT_NVML_MODE].text, mode_names[mode]);
	if (!p->facts[HM_FACT_NODE].known || nvml_node < 0 || nvml_node == node)
		return;
	if (node < 0)
		contradict(p, "NVML says: its memory is node %d; the driver says: none",
			   nvml_node);
	else
		contradict(p, "NVML says: its memory is node %d; the driver says: node %d",
			   nvml_node, node);
}

static void check_kernel(struct hm_platform *p, int kind)
{
	const int node = hm_platform_node(p);

	if (node >= 0 && no(p, HM_FACT_NODE_ONLINE))
		contradict(p, "its memory is said to be node %d, which the kernel does not have",
			   node);
	else if (node >= 0 && no(p, HM_FACT_NODE_MEMORY))
		contradict(p, "its memory is said to be node %d, which has no memory",
			   node);
	else if (node >= 0 && yes(p, HM_FACT_NODE_CPUS) &&
		 kind != HETMEM_PLATFORM_INTEGRATED)
		contradict(p, "its memory is said to be node %d, which has CPUs: that is the host's",
			   node);
	if (kind == HETMEM_PLATFORM_HMM && no(p, HM_FACT_DEVICE_PRIVATE))
		contradict(p, "the driver says HMM, but this kernel has no CONFIG_DEVICE_PRIVATE");
	if (number(p, HM_FACT_HOST_NODE) >= 0 &&
	    !hm_numa_has_node(number(p, HM_FACT_HOST_NODE)))
		contradict(p, "its nearest node is said to be %d, which the kernel does not have",
			   number(p, HM_FACT_HOST_NODE));
}

void hm_platform_judge(struct hm_platform *p)
{
	const int kind = kind_of(p), host = number(p, HM_FACT_HOST_NODE);

	p->verdict = (struct hetmem_platform){
		.size = sizeof(p->verdict),
		.kind = kind,
		.pageable = yes(p, HM_FACT_PAGEABLE),
		.moves = kind == HETMEM_PLATFORM_HMM ||
			 kind == HETMEM_PLATFORM_ATS,
		.managed = yes(p, HM_FACT_MANAGED),
		.concurrent = yes(p, HM_FACT_CONCURRENT),
		.registers = yes(p, HM_FACT_REGISTERS),
		.registered = yes(p, HM_FACT_REGISTERED),
		.node = kind == HETMEM_PLATFORM_ATS ? hm_platform_node(p) : -1,
		.host_node = hm_numa_has_node(host) ? host : -1,
	};
	p->nr_contradictions = 0;
	check_attributes(p);
	check_nvml(p);
	check_kernel(p, kind);
}
