/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: page sizes, NUMA nodes, limits, swap. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

/* The bracketed word of "always [madvise] never", or the whole line. */
static char *chosen(char *line)
{
	char *open = line ? strchr(line, '[') : NULL;

	if (open) {
		open[1 + strcspn(open + 1, "]")] = '\0';
		memmove(line, open + 1, strlen(open + 1) + 1);
	}
	return line;
}

static void check_pages(struct doctor *doctor)
{
	char *mode = chosen(doctor_line(doctor,
			"/sys/kernel/mm/transparent_hugepage/enabled"));
	char *size = doctor_line(doctor,
			"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
	bool never = !mode || !strcmp(mode, "never");

	doctor_report(doctor, CHECK_OK, "page size", NULL, "%s",
		      size_text(sysconf(_SC_PAGESIZE)));
	doctor_report(doctor, never ? CHECK_NOTE : CHECK_OK, "huge pages",
		      never && mode ?
		      "'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root" :
		      NULL,
		      "transparent ones: %s%s%s", mode ? mode : "not there",
		      size && mode ? ", of " : "",
		      size && mode ? size_text(strtoull(size, NULL, 10)) : "");
	if (never && mode)
		doctor_show(doctor);
	free(mode);
	free(size);
}

static char *below(const struct doctor *doctor, const char *format,
		   const char *name, const char *file)
{
	char *path = xasprintf("%s/%s/%s", format, name, file);
	char *line = doctor_line(doctor, path);

	free(path);
	return line;
}

/* Appends " text" or ", text". */
static void append(char **all, const char *text)
{
	char *longer = *all ? xasprintf("%s, %s", *all, text) : xstrdup(text);

	free(*all);
	*all = longer;
}

static int by_version(const struct dirent **a, const struct dirent **b)
{
	return strverscmp((*a)->d_name, (*b)->d_name);
}

static int is_pool(const struct dirent *entry)
{
	return !strncmp(entry->d_name, "hugepages-", 10);
}

static int is_node(const struct dirent *entry)
{
	return !strncmp(entry->d_name, "node", 4) && entry->d_name[4] >= '0' &&
	       entry->d_name[4] <= '9';
}

static int list(const struct doctor *doctor, const char *path,
		int (*filter)(const struct dirent *), struct dirent ***entries)
{
	char *full = xasprintf("%s%s", doctor->root, path);
	int nr = scandir(full, entries, filter, by_version);

	free(full);
	return nr;
}

static void check_hugetlb(struct doctor *doctor)
{
	static const char dir[] = "/sys/kernel/mm/hugepages";
	struct dirent **pools;
	char *all = NULL;
	int nr = list(doctor, dir, is_pool, &pools), i;

	for (i = 0; i < nr; i++) {
		uint64_t kib = strtoull(pools[i]->d_name + 10, NULL, 10);
		char *have = below(doctor, dir, pools[i]->d_name,
				   "nr_hugepages");
		char *free_pages = below(doctor, dir, pools[i]->d_name,
					 "free_hugepages");
		char *text = xasprintf("%s: %s (%s free)",
				       size_text(kib << 10),
				       have ? have : "?",
				       free_pages ? free_pages : "?");

		append(&all, text);
		free(text);
		free(have);
		free(free_pages);
		free(pools[i]);
	}
	if (nr >= 0)
		free(pools);
	doctor_report(doctor, all ? CHECK_OK : CHECK_NOTE, "hugetlb pools",
		      NULL, "%s", all ? all : "none");
	free(all);
}

static void check_nodes(struct doctor *doctor)
{
	static const char dir[] = "/sys/devices/system/node";
	struct dirent **nodes;
	char *distances = NULL, *bare = NULL;
	int nr = list(doctor, dir, is_node, &nodes), i;

	for (i = 0; i < nr; i++) {
		const char *name = nodes[i]->d_name;
		char *cpus = below(doctor, dir, name, "cpulist");
		char *distance = below(doctor, dir, name, "distance");
		char *text = xasprintf("%s: %s", name + 4,
				       distance ? distance : "?");

		append(&distances, text);
		if (cpus && !*cpus)
			append(&bare, name + 4);
		free(text);
		free(cpus);
		free(distance);
		free(nodes[i]);
	}
	if (nr >= 0)
		free(nodes);
	if (nr <= 0)
		doctor_report(doctor, CHECK_NOTE, "NUMA nodes", NULL,
			      "the kernel has no NUMA: one node");
	else
		doctor_report(doctor, CHECK_OK, "NUMA nodes", NULL,
			      "%d; without CPUs: %s; distances %s", nr,
			      bare ? bare : "none", distances);
	free(distances);
	free(bare);
}

/* How to raise it; @at: the soft limit in the line, the hard one follows. */
static const char *raise_memlock(const struct doctor *doctor, const char *at)
{
	at += strcspn(at, " \n");
	at += strspn(at, " ");
	if (!strncmp(at, "unlimited", 9))
		return "type 'ulimit -l unlimited' in the shell that starts the program";
	if (doctor_exists(doctor, "/etc/security/limits.conf"))
		return "raise 'memlock' in /etc/security/limits.conf and log in again";
	return "start the program as root after 'ulimit -l unlimited'";
}

/* The soft limit, as text in bytes or "unlimited". */
static void check_memlock(struct doctor *doctor)
{
	static const char key[] = "Max locked memory";
	char *limits = read_file(doctor->root, "/proc/self/limits", 65536,
				 NULL);
	char *at = limits ? strstr(limits, key) : NULL;
	unsigned long long bytes;
	bool unlimited;

	if (!at) {
		doctor_report(doctor, CHECK_NOTE, "RLIMIT_MEMLOCK", NULL,
			      "cannot be read");
		free(limits);
		return;
	}
	at += strlen(key);
	at += strspn(at, " ");
	unlimited = !strncmp(at, "unlimited", 9);
	bytes = strtoull(at, NULL, 10);
	if (unlimited || bytes >= (64ULL << 20))
		doctor_report(doctor, CHECK_OK, "RLIMIT_MEMLOCK", NULL, "%s",
			      unlimited ? "unlimited" : size_text(bytes));
	else
		doctor_report(doctor, CHECK_NOTE, "RLIMIT_MEMLOCK",
			      raise_memlock(doctor, at), "%s: little can be pinned",
			      size_text(bytes));
	if (!unlimited && bytes < (64ULL << 20))
		doctor_show(doctor);
	free(limits);
}

static void check_swap(struct doctor *doctor)
{
	char *swaps = read_file(doctor->root, "/proc/swaps", 65536, NULL);
	char *save = NULL, *line;
	unsigned long kib = 0, size;
	int nr = 0;

	line = swaps ? strtok_r(swaps, "\n", &save) : NULL;
	/* After the header. A name can hold no space there. */
	while (line && (line = strtok_r(NULL, "\n", &save))) {
		if (sscanf(line, "%*s %*s %lu", &size) != 1)
			continue;
		kib += size;
		nr++;
	}
	if (nr)
		doctor_report(doctor, CHECK_OK, "swap", NULL, "%s, areas: %d",
			      size_text((uint64_t)kib << 10), nr);
	else
		doctor_report(doctor, CHECK_NOTE, "swap", NULL,
			      "none: a device that makes room needs free host memory");
	free(swaps);
}

void doctor_memory(struct doctor *doctor)
{
	check_pages(doctor);
	check_hugetlb(doctor);
	check_nodes(doctor);
	check_memlock(doctor);
	check_swap(doctor);
}
