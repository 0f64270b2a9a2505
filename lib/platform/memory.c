// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How much memory the host has left: MemAvailable, the page cache that the kernel can
 * drop, and the bytes that the cgroups of the process still allow.
 *
 * The limit of a cgroup holds for all cgroups below it. So each one from the process's own
 * up to the root of the mount is read. The usage of a cgroup includes page cache, which
 * the kernel drops before an allocation fails: it counts as free. All files are read
 * below a root directory, which is "" except in tests.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/platform.h"

/* A limit of cgroup v1 from here on means no limit. */
#define NO_LIMIT	((uint64_t)1 << 60)

/* Returns the contents of a file, NUL-terminated; NULL: no such file, or no memory. */
static char *read_all(const char *path)
{
	size_t room = 16384, len = 0;
	char *text = malloc(room), *grown;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : 1;

	while (text && n > 0) {
		if (len + 1 == room) {
			grown = realloc(text, room *= 2);
			if (!grown)
				break;
			text = grown;
		}
		n = read(fd, text + len, room - len - 1);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n > 0)
			len += n;
	}
	if (fd >= 0)
		close(fd);
	if (!text || n) {
		free(text);
		return NULL;
	}
	text[len] = '\0';
	return text;
}

/* Finds the number after @key, which begins a line or follows a blank. False: none. */
static bool find_number(const char *text, const char *key, uint64_t *number)
{
	const size_t len = strlen(key);
	const char *at = text;

	while ((at = strstr(at, key))) {
		if ((at == text || at[-1] == '\n' || at[-1] == ' ') &&
		    sscanf(at + len, " %" SCNu64, number) == 1)
			return true;
		at += len;
	}
	return false;
}

static bool find_kib(const char *text, const char *key, uint64_t *bytes)
{
	uint64_t kib;

	if (!find_number(text, key, &kib) || kib > UINT64_MAX >> 10)
		return false;
	*bytes = kib << 10;
	return true;
}

/* Clean pages of files: the kernel can drop them without writing. */
static bool find_cache(const char *text, uint64_t *bytes)
{
	uint64_t active, inactive, dirty = 0, writeback = 0;

	if (!find_kib(text, "Active(file):", &active) ||
	    !find_kib(text, "Inactive(file):", &inactive))
		return false;
	find_kib(text, "Dirty:", &dirty);
	find_kib(text, "Writeback:", &writeback);
	*bytes = active + inactive;
	dirty += writeback;
	*bytes -= dirty < *bytes ? dirty : *bytes;
	return true;
}

static void read_meminfo(const char *root, struct hm_host_memory *m)
{
	char path[PATH_MAX], *text;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	text = read_all(path);
	if (!text)
		return;
	find_kib(text, "MemTotal:", &m->total);
	find_kib(text, "MemAvailable:", &m->available);
	find_cache(text, &m->cache);
	free(text);
}

uint64_t hm_node_free(const char *root, int node)
{
	uint64_t bytes = HETMEM_MEMORY_UNKNOWN, cache;
	char path[PATH_MAX], *text;

	snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%d/meminfo",
		 root, node);
	text = read_all(path);
	if (text && find_kib(text, "MemFree:", &bytes) && find_cache(text, &cache))
		bytes += cache;
	free(text);
	return bytes;
}

uint64_t hm_addresses_used(void)
{
	char *text = read_all("/proc/self/statm");
	uint64_t pages = 0;

	if (text)
		sscanf(text, "%" SCNu64, &pages);
	free(text);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Replaces octal escapes of the kernel (\040) by their characters, in place. */
static void unescape(char *text)
{
	unsigned int value;
	char *to = text;

	for (; *text; to++) {
		if (sscanf(text, "\\%3o", &value) == 1 && value < 256) {
			*to = (char)value;
			text += 4;
		} else {
			*to = *text++;
		}
	}
	*to = '\0';
}

/**
 * struct files - names of a version of cgroups
 * @type: its file system
 * @limits, @current: files
 * @cache: keys of memory.stat: two kinds of pages of files
 */
struct files {
	const char *type;
	const char *limits[2];
	const char *current;
	const char *cache[2];
};

static const struct files v1 = {
	.type = "cgroup",
	.limits = { "memory.limit_in_bytes" },
	.current = "memory.usage_in_bytes",
	.cache = { "total_active_file", "total_inactive_file" },
};

static const struct files v2 = {
	.type = "cgroup2",
	.limits = { "memory.max", "memory.high" },
	.current = "memory.current",
	.cache = { "active_file", "inactive_file" },
};

/* Whether @word is in @list, separated by commas, which ends at a colon or a NUL. */
static bool has_word(const char *list, const char *word)
{
	const size_t len = strlen(word);
	size_t n;

	for (;; list += n + 1) {
		n = strcspn(list, ",:");
		if (n == len && !strncmp(list, word, len))
			return true;
		if (list[n] != ',')
			return false;
	}
}

/* Writes the process's path in the hierarchy of @f to @path of PATH_MAX bytes. */
static bool find_path(const char *text, const struct files *f, char *path)
{
	const char *line = text, *controllers, *at;
	size_t len;

	for (; line && *line; line = strchr(line, '\n'), line += !!line) {
		controllers = strchr(line, ':');
		at = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!at)
			return false;
		if (f == &v2 ? strncmp(line, "0::", 3) :
		    !has_word(controllers + 1, "memory"))
			continue;
		len = strcspn(at + 1, "\n");
		if (len >= PATH_MAX)
			return false;
		memcpy(path, at + 1, len);
		path[len] = '\0';
		return true;
	}
	return false;
}

/* Finds the mount @point of that hierarchy, and which directory @top it shows. */
static bool find_mount(const char *text, const struct files *f, char *point,
		       char *top)
{
	const char *line = text, *end, *rest;
	char type[32], options[256];

	for (; line && *line; line = *end ? end + 1 : end) {
		char copy[2 * PATH_MAX + 512];

		end = line + strcspn(line, "\n");
		if ((size_t)(end - line) >= sizeof(copy))
			continue;
		memcpy(copy, line, end - line);
		copy[end - line] = '\0';
		rest = strstr(copy, " - ");
		if (!rest ||
		    sscanf(rest, " - %31s %*s %255s", type, options) != 2 ||
		    strcmp(type, f->type) ||
		    (f == &v1 && !has_word(options, "memory")) ||
		    sscanf(copy, "%*s %*s %*s %4095s %4095s", top, point) != 2)
			continue;
		unescape(top);
		unescape(point);
		return true;
	}
	return false;
}

static bool read_number(const char *directory, const char *file, uint64_t *number)
{
	char path[4 * PATH_MAX], *text;
	bool found;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	text = read_all(path);
	/* "max" is no number: there is no limit. */
	found = text && sscanf(text, "%" SCNu64, number) == 1;
	free(text);
	return found;
}

static uint64_t cache_of(const char *directory, const struct files *f)
{
	char path[4 * PATH_MAX], *text;
	uint64_t sum = 0, pages;
	int i;

	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	text = read_all(path);
	for (i = 0; text && i < 2; i++)
		if (find_number(text, f->cache[i], &pages))
			sum += pages;
	free(text);
	return sum;
}

/* Reads one cgroup; keeps its figure if it is the least so far. */
static void ask_cgroup(const char *directory, const struct files *f,
		       const char *name, struct hm_host_memory *m)
{
	uint64_t limit = NO_LIMIT, current, number, cache, left;
	int i;

	for (i = 0; i < 2 && f->limits[i]; i++)
		if (read_number(directory, f->limits[i], &number) &&
		    number < limit)
			limit = number;
	if (limit >= NO_LIMIT || !read_number(directory, f->current, &current))
		return;
	cache = cache_of(directory, f);
	current -= cache < current ? cache : current;
	left = current < limit ? limit - current : 0;
	if (left < m->cgroup) {
		m->cgroup = left;
		m->cgroup_limit = limit;
		snprintf(m->cgroup_name, sizeof(m->cgroup_name), "%s", name);
	}
}

/* From the process's own cgroup to the top of what is mounted. */
static void ask_hierarchy(const char *root, const char *cgroups,
			  const char *mounts, const struct files *f,
			  struct hm_host_memory *m)
{
	char path[PATH_MAX], point[PATH_MAX], top[PATH_MAX];
	char directory[3 * PATH_MAX], *slash;
	const char *below;
	size_t len;

	if (!find_path(cgroups, f, path) || !find_mount(mounts, f, point, top))
		return;
	/* A container may see only its own part of the hierarchy. */
	len = strcmp(top, "/") ? strlen(top) : 0;
	below = !strncmp(path, top, len) ? path + len : "";
	if (!strncmp(below, "/..", 3))
		below = "";
	len = strlen(root) + strlen(point);
	snprintf(directory, sizeof(directory), "%s%s%s", root, point,
		 strcmp(below, "/") ? below : "");
	for (;;) {
		ask_cgroup(directory, f, directory[len] ? directory + len : "/", m);
		slash = strrchr(directory, '/');
		if (!directory[len] || !slash)
			return;
		*slash = '\0';
	}
}

void hm_host_memory(const char *root, struct hm_host_memory *m)
{
	char path[PATH_MAX], *cgroups, *mounts;

	*m = (struct hm_host_memory){
		.total = HETMEM_MEMORY_UNKNOWN,
		.available = HETMEM_MEMORY_UNKNOWN,
		.cache = HETMEM_MEMORY_UNKNOWN,
		.cgroup = HETMEM_MEMORY_UNKNOWN,
		.cgroup_limit = HETMEM_MEMORY_UNKNOWN,
	};
	read_meminfo(root, m);
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	cgroups = read_all(path);
	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	mounts = read_all(path);
	if (cgroups && mounts) {
		ask_hierarchy(root, cgroups, mounts, &v2, m);
		ask_hierarchy(root, cgroups, mounts, &v1, m);
	}
	free(cgroups);
	free(mounts);
}
