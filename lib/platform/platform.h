/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The machine: one verdict per device, and the host's memory nodes.
 *
 * A verdict is made of facts. The driver, NVML, the kernel's files and hetmem.ko
 * each fill in those that they know (driver/device.c calls them); detect.c reads
 * all of them, and nothing else, and judges. A fact that nobody could tell counts
 * as "no" or "none". Nothing changes after the verdict. No other file tests an
 * attribute of the driver for what is decided here.
 */
#ifndef HETMEM_PLATFORM_PLATFORM_H
#define HETMEM_PLATFORM_PLATFORM_H

#include "core/core.h"

struct hm_kmod;

/* detect.c */

/* In the order in which they are shown; the row of each is in detect.c. */
enum hm_fact_id {
	HM_FACT_INTEGRATED,
	HM_FACT_PAGEABLE,
	HM_FACT_HOST_TABLES,
	HM_FACT_MANAGED,
	HM_FACT_CONCURRENT,
	HM_FACT_DIRECT,
	HM_FACT_REGISTERS,
	HM_FACT_REGISTERED,
	HM_FACT_NODE,
	HM_FACT_HOST_NODE,
	HM_FACT_NVML,
	HM_FACT_NVML_MODE,
	HM_FACT_NVML_NODE,
	HM_FACT_NODE_ONLINE,
	HM_FACT_NODE_MEMORY,
	HM_FACT_NODE_CPUS,
	HM_FACT_DEVICE_PRIVATE,
	HM_FACT_MODULE,
	HM_FACT_MODULE_DEVICE,
	HM_FACT_NR
};

enum hm_fact_type {
	HM_FACT_BOOL,	/* 0 "no", 1 "yes" */
	HM_FACT_NUMBER,	/* of a node or a device; -1 "none" */
	HM_FACT_MODE,	/* enum hm_mode */
	HM_FACT_SIZE,	/* bytes */
};

/* Values of HM_FACT_NVML_MODE: NVML's own. */
enum hm_mode { HM_MODE_NONE, HM_MODE_HMM, HM_MODE_ATS };

/**
 * struct hm_fact_row - what a fact is
 * @source: who tells it; @what: one word. Doctor shows both, and a description of
 *	a machine for the soft driver names a fact "source.what".
 */
struct hm_fact_row {
	const char *source;
	const char *what;
	enum hm_fact_type type;
};

extern const struct hm_fact_row hm_fact_rows[HM_FACT_NR];

/* @text: of the value, or why it is not known */
struct hm_fact {
	bool known;
	int64_t value;
	char text[56];
};

#define HM_MAX_CONTRADICTIONS	12

/**
 * struct hm_platform - the verdict about a device, with its evidence
 * @contradictions: of @facts, one line each
 */
struct hm_platform {
	struct hetmem_platform verdict;
	struct hm_fact facts[HM_FACT_NR];
	unsigned int nr_contradictions;
	char contradictions[HM_MAX_CONTRADICTIONS][120];
};

/* All facts are unknown. */
void hm_platform_init(struct hm_platform *p);

void hm_fact_set(struct hm_platform *p, enum hm_fact_id id, int64_t value);
__attribute__((format(printf, 3, 4)))
void hm_fact_unknown(struct hm_platform *p, enum hm_fact_id id,
		     const char *fmt, ...);

/* "yes", "none", "96G", ... as @id has them. False: it is not one. */
bool hm_fact_parse(enum hm_fact_id id, const char *text, int64_t *value);

/* Node that somebody says is the device's memory, -1: nobody does. */
int hm_platform_node(const struct hm_platform *p);

/* Makes the verdict of the facts, and finds what contradicts. */
void hm_platform_judge(struct hm_platform *p);

/* kernel.c: the kernel's own files, and what hetmem.ko tells. */

void hm_kernel_facts(struct hm_platform *p, int node);

/* @config: what hm_kernel_device_private() returned */
void hm_module_facts(struct hm_platform *p, const struct hm_kmod *kmod,
		     int module_id, int config);

/*
 * Whether the running kernel has CONFIG_DEVICE_PRIVATE, by its configuration as
 * a plain file: 1, 0, or -1 if there is none that can be read.
 */
int hm_kernel_device_private(void);

/* memory.c: what the host has left. */

/**
 * struct hm_host_memory - in bytes; HETMEM_MEMORY_UNKNOWN: the kernel does not tell
 * @available: MemAvailable
 * @cache: clean pages of files
 * @cgroup: that the process may still take; unknown: there is no limit
 * @cgroup_limit: of the cgroup that leaves the least
 * @cgroup_name: its path below the mount
 */
struct hm_host_memory {
	uint64_t total;
	uint64_t available;
	uint64_t cache;
	uint64_t cgroup;
	uint64_t cgroup_limit;
	char cgroup_name[48];
};

/* @root: before the path of each file, "" except in tests. */
void hm_host_memory(const char *root, struct hm_host_memory *m);

/* Addresses that the process has mapped or reserved, in bytes; 0: nobody tells. */
uint64_t hm_addresses_used(void);

/* Free memory of a node and clean pages of files there, or unknown. */
uint64_t hm_node_free(const char *root, int node);

/* numa.c: host nodes by move_pages(2). */

bool hm_numa_there(void);
bool hm_numa_has_node(int node);
int hm_numa_nodes(void);
ssize_t hm_numa_residency(uintptr_t start, uintptr_t end, size_t page_size,
			  struct hetmem_run *runs, size_t nr, uintptr_t *next);
int hm_numa_move(uintptr_t start, uintptr_t end, size_t page_size, int node,
		 struct hetmem_moved *moved);

/*
 * Pages of [@start, @end) that are touched from now on come from @node if it has
 * any; -1: from where the process's policy says. Nothing moves, and after an error
 * all policies are as before. -EFAULT: part of it is not mapped; -EINVAL: a mapping
 * cannot be split there; -ENOSYS: this kernel has no NUMA; -ENOMEM.
 */
int hm_numa_prefer(uintptr_t start, uintptr_t end, int node);

/* maps.c: what is mapped. */

/**
 * struct hm_vma - one mapping
 * @why: HETMEM_WHY_* of what keeps its pages on the host with HMM, 0: nothing
 */
struct hm_vma {
	uintptr_t start;
	uintptr_t end;
	uint32_t why;
	bool readable;
	bool writable;
};

/**
 * struct hm_maps - a look at the address space of this process
 * @text: NULL: the kernel answers queries
 * @asked, @last: of @text: the last question, and its answer
 */
struct hm_maps {
	int fd;
	void *text;
	uintptr_t asked;
	struct hm_vma last;
};

/* -EIO: there is no /proc, or no memory. */
int hm_maps_open(struct hm_maps *maps);
void hm_maps_close(struct hm_maps *maps);
/*
 * The first mapping that ends after @addr; false: there is none. Text is read from the
 * beginning if @addr is lower than in the call before: ask about lower addresses first.
 */
bool hm_maps_next(struct hm_maps *maps, uintptr_t addr, struct hm_vma *vma);

#endif /* HETMEM_PLATFORM_PLATFORM_H */
