// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the kernel tells about a device's memory: the files of its nodes, its
 * configuration where that is a plain file, and hetmem.ko.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "platform/kmod.h"
#include "platform/platform.h"

#define NODES	"/sys/devices/system/node"

/*
 * The file's first @len - 1 bytes, NUL-terminated. False: not there. A read
 * of one byte of a node's list returns nothing: the kernel keeps a byte for a NUL.
 */
static bool read_file(const char *path, char *text, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	do {
		n = read(fd, text, len - 1);
	} while (n < 0 && errno == EINTR);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n >= 0;
}

static void node_facts(struct hm_platform *p, int node)
{
	char path[64], text[256];
	unsigned long long kib;
	const char *total;

	snprintf(path, sizeof(path), NODES "/node%d/meminfo", node);
	total = read_file(path, text, sizeof(text)) ?
		strstr(text, "MemTotal:") : NULL;
	if (total && sscanf(total, "MemTotal: %llu kB", &kib) == 1)
		hm_fact_set(p, HM_FACT_NODE_MEMORY, kib << 10);
	else
		hm_fact_unknown(p, HM_FACT_NODE_MEMORY, "no %s", path);

	snprintf(path, sizeof(path), NODES "/node%d/cpulist", node);
	if (read_file(path, text, sizeof(text)))
		hm_fact_set(p, HM_FACT_NODE_CPUS,
			    text[0] >= '0' && text[0] <= '9');
	else
		hm_fact_unknown(p, HM_FACT_NODE_CPUS, "no %s", path);
}

void hm_kernel_facts(struct hm_platform *p, int node)
{
	char path[64];

	if (node < 0) {
		hm_fact_unknown(p, HM_FACT_NODE_ONLINE, "no node was named");
		hm_fact_unknown(p, HM_FACT_NODE_MEMORY, "no node was named");
		hm_fact_unknown(p, HM_FACT_NODE_CPUS, "no node was named");
		return;
	}
	if (access(NODES, F_OK)) {
		hm_fact_set(p, HM_FACT_NODE_ONLINE, hm_numa_has_node(node));
		hm_fact_unknown(p, HM_FACT_NODE_MEMORY, "no " NODES);
		hm_fact_unknown(p, HM_FACT_NODE_CPUS, "no " NODES);
		return;
	}
	snprintf(path, sizeof(path), NODES "/node%d", node);
	hm_fact_set(p, HM_FACT_NODE_ONLINE, !access(path, F_OK));
	node_facts(p, node);
}

void hm_module_facts(struct hm_platform *p, const struct hm_kmod *kmod,
		     int module_id, int config)
{
	const bool there = hm_kmod_there(kmod);

	hm_fact_set(p, HM_FACT_MODULE, there);
	hm_fact_set(p, HM_FACT_MODULE_DEVICE, module_id);
	/* The module was built for this kernel: its word is better. */
	if (there)
		hm_fact_set(p, HM_FACT_DEVICE_PRIVATE, kmod->info.features &
			    HETMEM_FEATURE_DEVICE_PRIVATE);
	else if (config >= 0)
		hm_fact_set(p, HM_FACT_DEVICE_PRIVATE, config);
	else
		hm_fact_unknown(p, HM_FACT_DEVICE_PRIVATE,
				"no module, no plain configuration");
}

/* 1, 0 or -1: no such file, or it is no configuration. */
static int search_config(const char *path)
{
	FILE *file = fopen(path, "re");
	bool any = false, has = false;
	char line[256];

	if (!file)
		return -1;
	while (!has && fgets(line, sizeof(line), file)) {
		any = any || !strncmp(line, "CONFIG_", 7);
		has = !strcmp(line, "CONFIG_DEVICE_PRIVATE=y\n");
	}
	fclose(file);
	return has ? 1 : any ? 0 : -1;
}

int hm_kernel_device_private(void)
{
	static const char *const paths[] = {
		"/boot/config-%s", "/lib/modules/%s/config",
		"/lib/modules/%s/build/.config",
	};
	struct utsname name;
	char path[128];
	int config = -1;
	size_t i;

	if (uname(&name))
		return -1;
	for (i = 0; i < sizeof(paths) / sizeof(paths[0]) && config < 0; i++) {
		snprintf(path, sizeof(path), paths[i], name.release);
		config = search_config(path);
	}
	return config;
}
