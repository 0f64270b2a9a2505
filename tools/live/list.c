/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem list: the module's contexts, or the tracked ranges of one process. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <hetmem.h>

#include "hint/peer.h"
#include "map/source.h"
#include "options.h"
#include "platform/kmod_hint.h"
#include "sample.h"
#include "util.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

#define MAX_RANGES	(1U << 20)
#define MAX_CONTEXTS	65536
#define MAX_POOLS	64

static int help(void)
{
	puts("Usage: hetmem list [--json] [PID]\n"
	     "Lists who has the module open; or with PID which ranges that process\n"
	     "tracks, what was counted for each, and what of them is in pools of other\n"
	     "drivers.\n\n"
	     "  --json  the same as JSON\n\n"
	     "Root sees all, others their own. The ranges of a process need the rights\n"
	     "of ptrace on it. HETMEM_PUBLISH=0 in its environment leaves them to root.");
	return EXIT_OK;
}

/* "/proc/PID/comm", or "?". */
static char *name_of(pid_t pid)
{
	char *path = xasprintf("/proc/%d/comm", pid);
	char *name = read_line(NULL, path);

	free(path);
	return name ? name : xstrdup("?");
}

static char *user_of(uid_t uid)
{
	const struct passwd *user = getpwuid(uid);

	return user ? xstrdup(user->pw_name) : xasprintf("%u", uid);
}

static void print_contexts(const struct hetmem_list_entry *e, size_t nr)
{
	static const struct table_column columns[] = {
		{ "PID", true }, { "USER", false }, { "NAME", false }, { "RANGES", true },
		{ "PINNED", true }, { "HINTS", true }, { "LETS OTHERS", false },
	};
	const uint64_t page = sysconf(_SC_PAGESIZE);
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	size_t i;

	for (i = 0; i < nr; i++) {
		char *user = user_of(e[i].uid), *name = name_of(e[i].pid);
		char pid[16], ranges[16], hints[16];
		const bool look = e[i].flags & HETMEM_LIST_SHAREABLE;
		const bool ask = e[i].flags & HETMEM_LIST_ALLOW_HINTS;
		const char *cells[] = {
			pid, user, name, ranges, size_text(e[i].nr_pinned * page), hints,
			look && ask ? "look, hint" : look ? "look" : ask ? "hint" : "-",
		};

		snprintf(pid, sizeof(pid), "%u", e[i].pid);
		snprintf(ranges, sizeof(ranges), "%u", e[i].nr_ranges);
		snprintf(hints, sizeof(hints), "%u", e[i].nr_hints);
		if (!(e[i].flags & HETMEM_LIST_EXECUTOR))
			strcpy(hints, "-");
		table_row(table, cells);
		free(user);
		free(name);
	}
	table_print(table);
}

struct ranges {
	struct sample_range *range;
	size_t nr;
};

static void keep_range(const struct sample_range *range, void *arg)
{
	struct ranges *r = arg;

	r->range = xrealloc_array(r->range, r->nr + 1, sizeof(*r->range));
	r->range[r->nr++] = *range;
}

static void print_ranges(const struct ranges *r)
{
	static const struct table_column columns[] = {
		{ "RANGE", false }, { "SIZE", true }, { "ON DEVICE", true }, { "TO DEVICE", true },
		{ "TO HOST", true }, { "THRASH", true }, { "CHANGED BLOCKS", true },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	size_t i;

	for (i = 0; i < r->nr; i++) {
		const struct sample_range *s = &r->range[i];
		char addresses[64], thrash[32], dirty[32];
		const char *cells[] = {
			addresses, size_text(s->end - s->start), size_text(s->on_device),
			size_text(s->to_device), size_text(s->to_host), thrash, dirty,
		};

		snprintf(addresses, sizeof(addresses), "%" PRIx64 "-%" PRIx64, s->start, s->end);
		snprintf(thrash, sizeof(thrash), "%" PRIu64, s->thrashed);
		snprintf(dirty, sizeof(dirty), "%" PRIu64, s->dirty_blocks);
		table_row(table, cells);
	}
	table_print(table);
}

/* "GPU-8f6aef44-1a5d-1978-3d98-5cc4d0fa0446", as nvidia-smi has it. */
static void uuid_text(const unsigned char uuid[16], char text[48])
{
	char *at = text + sprintf(text, "GPU-");
	int i;

	for (i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			      uuid[i]);
}

/* Adds what one context reports. Only the one that bound a device has its UUID. */
static size_t add_pools(int fd, struct hetmem_pool_info *pools, size_t nr)
{
	static const unsigned char none[16];
	struct hetmem_pool_info more[MAX_POOLS] = { 0 };
	struct hetmem_cmd_info info = {
		.size = sizeof(info), .pools = (uintptr_t)more,
		.pool_size = sizeof(*more), .nr_pools = MAX_POOLS,
	};
	size_t i, j;

	if (ioctl(fd, HETMEM_IOC_INFO, &info))
		return nr;
	for (i = 0; i < info.nr_pools && i < MAX_POOLS; i++) {
		for (j = 0; j < nr && pools[j].location != more[i].location; j++)
			;
		if (j == MAX_POOLS)
			continue;
		if (j == nr)
			pools[nr++] = more[i];
		else if (memcmp(more[i].uuid, none, sizeof(none)))
			pools[j] = more[i];
	}
	return nr;
}

/* Pools of other drivers that have memory of the ranges, or that the process has named. */
static void print_pools(pid_t pid)
{
	static const struct table_column columns[] = {
		{ "POOL", false }, { "SIZE", true }, { "OF THESE RANGES", true },
		{ "DEVICE", false },
	};
	int fds[HM_PEER_CONTEXTS], nr_fds = hm_peer_contexts(pid, fds, HM_PEER_CONTEXTS), i;
	struct hetmem_pool_info pools[MAX_POOLS];
	struct table *table = NULL;
	size_t nr = 0, p;

	for (i = 0; i < nr_fds; i++) {
		nr = add_pools(fds[i], pools, nr);
		close(fds[i]);
	}
	for (p = 0; p < nr; p++) {
		char name[64], uuid[48], device[64] = "-";
		const char *cells[] = {
			location_text(pools[p].location, name, sizeof(name)),
			size_text(pools[p].capacity), size_text(pools[p].seen), device,
		};

		uuid_text(pools[p].uuid, uuid);
		if (strspn(uuid + 4, "0-") != strlen(uuid + 4))
			snprintf(device, sizeof(device), "%s%s", uuid,
				 pools[p].flags & HETMEM_POOL_SEVERAL ? " and others" : "");
		else if (!pools[p].seen)
			continue;
		if (!table)
			table = table_new(columns, ARRAY_SIZE(columns));
		table_row(table, cells);
	}
	if (table) {
		puts("");
		table_print(table);
	}
}

#ifdef HAVE_JSON_C
#define add(object, name, value)	json_object_object_add(object, name, value)

static void print_array(struct json_object *array)
{
	puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PRETTY |
					    JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(array);
}

static void json_contexts(const struct hetmem_list_entry *e, size_t nr)
{
	struct json_object *array = json_object_new_array(), *o;
	size_t i;

	for (i = 0; i < nr; i++) {
		char *name = name_of(e[i].pid);

		o = json_object_new_object();
		add(o, "pid", json_object_new_int64(e[i].pid));
		add(o, "uid", json_object_new_int64(e[i].uid));
		add(o, "name", json_text(name));
		add(o, "ranges", json_object_new_int64(e[i].nr_ranges));
		add(o, "pinned_pages", json_object_new_int64(e[i].nr_pinned));
		add(o, "hints_waiting", json_object_new_int64(e[i].nr_hints));
		add(o, "executor", json_object_new_boolean(e[i].flags & HETMEM_LIST_EXECUTOR));
		add(o, "shareable", json_object_new_boolean(e[i].flags & HETMEM_LIST_SHAREABLE));
		add(o, "allows_hints",
		    json_object_new_boolean(e[i].flags & HETMEM_LIST_ALLOW_HINTS));
		json_object_array_add(array, o);
		free(name);
	}
	print_array(array);
}

static void json_ranges(const struct ranges *r)
{
	struct json_object *array = json_object_new_array(), *o;
	size_t i;

	for (i = 0; i < r->nr; i++) {
		const struct sample_range *s = &r->range[i];

		o = json_object_new_object();
		add(o, "start", json_address(s->start));
		add(o, "end", json_address(s->end));
		add(o, "on_device_bytes", json_object_new_int64(s->on_device));
		add(o, "to_device_bytes", json_object_new_int64(s->to_device));
		add(o, "to_host_bytes", json_object_new_int64(s->to_host));
		add(o, "thrashed", json_object_new_int64(s->thrashed));
		add(o, "changed_blocks", json_object_new_int64(s->dirty_blocks));
		json_object_array_add(array, o);
	}
	print_array(array);
}
#else
static void json_contexts(const struct hetmem_list_entry *e, size_t nr)
{
	(void)e;
	(void)nr;
}

static void json_ranges(const struct ranges *r)
{
	(void)r;
}
#endif

static int refused(pid_t pid, int err)
{
	switch (err) {
	case -ESRCH:
	case -EINVAL:
	case -ENOENT:
		return complain(EXIT_FAILED, "list",
				"there is no process %d; type 'hetmem list' for those that have the module open",
				pid);
	case -EACCES:
	case -EPERM:
		return not_permitted("list", pid);
	case -ENXIO:
		return complain(EXIT_FAILED, "list",
				"process %d does not have /dev/hetmem open; type 'hetmem list' for those that have",
				pid);
	default:
		return complain(EXIT_FAILED, "list", "process %d: %s", pid, strerror(-err));
	}
}

static int list_ranges(pid_t pid, bool json)
{
	struct ranges r = { NULL, 0 };
	ssize_t nr = sample_ranges(pid, MAX_RANGES, 0, INFINITY, keep_range, &r);

	if (nr >= 0 && json)
		json_ranges(&r);
	else if (r.nr)
		print_ranges(&r);
	else if (nr >= 0)
		printf("process %d tracks no range\n", pid);
	if (nr >= 0 && !json)
		print_pools(pid);
	free(r.range);
	return nr < 0 ? refused(pid, nr) : EXIT_OK;
}

/* Without our own, which is open for this. */
static size_t drop_own(struct hetmem_list_entry *e, size_t nr)
{
	size_t i, kept = 0;

	for (i = 0; i < nr; i++)
		if ((pid_t)e[i].pid != getpid())
			e[kept++] = e[i];
	return kept;
}

static int list_contexts(const struct hm_kmod *kmod, bool json)
{
	struct hetmem_list_entry *e = NULL;
	int64_t nr = 0, room;
	size_t n;

	do {
		room = nr + 16;
		e = xrealloc_array(e, room, sizeof(*e));
		nr = hm_kmod_list(kmod->fd, e, room);
	} while (nr > room && room < MAX_CONTEXTS);
	if (nr < 0) {
		free(e);
		return complain(EXIT_FAILED, "list", "LIST: %s", strerror(-nr));
	}
	n = drop_own(e, nr < room ? nr : room);
	if (json)
		json_contexts(e, n);
	else if (n)
		print_contexts(e, n);
	else
		puts("no process has the module open");
	free(e);
	return EXIT_OK;
}

int cmd_list(int argc, char **argv)
{
	char reason[HM_REASON_LEN];
	struct hm_kmod kmod;
	bool json = false;
	long pid = 0;
	int c, ret;

	while ((c = next_option("list", argc, argv)) != -1) {
		if (c == 'h')
			return help();
		if (c != 'j')
			return option_error("list", c, argv);
		json = true;
	}
	if (optind + 1 < argc)
		return usage_error("list", "one PID at a time, '%s' is too many", argv[optind + 1]);
	if (optind < argc && !parse_number(argv[optind], 1, INT32_MAX, &pid))
		return usage_error("list", "'%s' is not a PID", argv[optind]);
#ifndef HAVE_JSON_C
	if (json)
		return complain(EXIT_USAGE, "list",
				"built without json-c; type 'apt-get install libjson-c-dev' and build again");
#endif
	if (hm_kmod_open(&kmod, NULL, reason, sizeof(reason)))
		return complain(EXIT_FAILED, "list",
				"%s; without the module, 'hetmem status' lists who publishes pools",
				reason);
	ret = pid ? list_ranges(pid, json) : list_contexts(&kmod, json);
	hm_kmod_close(&kmod);
	return ret;
}
