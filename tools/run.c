/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem run: a program's large allocations become huge-page, NUMA-placed, tracked memory, by
 * a preloaded library. With --device its memory of GPUs comes from a spec, by another one.
 * Everything that was typed is checked here, before the program starts: the libraries only
 * read what they are given (lib/preload/settings.h, lib/cuda/settings.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <linux/mempolicy.h>
#include <numa.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <hetmem.h>

#include "cuda/settings.h"
#include "options.h"
#include "platform/platform.h"
#include "preload/settings.h"
#include "program.h"
#include "spec/spec.h"
#include "util.h"

/* The library has room for so many. */
#define SETTINGS_MOST	8191

/**
 * struct options - what was typed
 * @policy: MPOL_*, -1: not given
 * @nodes: of @policy, as text; NULL: it has none
 * @device, @device_set: NULL: not given; @managed: the latter has managed=on
 * @blocks: an option is given that is about allocations of the host
 */
struct options {
	const char *spec;
	uint64_t min;
	int policy;
	char *nodes;
	const char *policy_text;
	bool agent;
	bool mmap;
	const char *report;
	const char *device;
	char *device_set;
	bool managed;
	bool blocks;
	char **command;
};

static int help(void)
{
	puts("Usage: hetmem run [OPTION]... [--] COMMAND [ARGUMENT]...\n"
	     "Runs COMMAND with its large allocations in huge pages, which hetmem.ko tracks.\n\n"
	     "  --min SIZE       allocations of SIZE or more (2M)\n"
	     "  --policy POLICY  where their pages are: local, interleave, interleave=NODES,\n"
	     "                   prefer=NODE or bind=NODES; NODES as in 0-1,3 (as the process)\n"
	     "  --spec SPEC      from a memory resource, see 'hetmem spec --help'\n"
	     "  --agent          carries out hints and ends thrashing (SPEC: system)\n"
	     "  --mmap           large private anonymous mappings of mmap(), too\n"
	     "  --report FILE    appends a line for each process when it ends\n"
	     "  --device SPEC    CUDA's memory from a resource: 'limit(device-pool,max=20G)'\n"
	     "  --device-set LIST  sync=off: cuMemFree() does not wait; managed=on, ipc=on\n\n"
	     "COMMAND needs no change. What it starts gets the same. Programs that are linked\n"
	     "statically, or set-user-ID, or have a malloc of their own, get nothing.\n\n"
	     "Exit status: COMMAND's; 2 cannot do what was typed, 126 COMMAND cannot be run,\n"
	     "127 COMMAND was not found.\n\n"
	     "  hetmem run -- python3 simulate.py\n"
	     "  hetmem run --min 1M --policy interleave sort -S 8G input");
	return EXIT_OK;
}

/* Of the nodes that this process may use, in the form that --policy takes. */
static char *node_list(const struct bitmask *nodes)
{
	char *list = xstrdup(""), *more;
	int node, last;

	for (node = 0; node < (int)nodes->size && node < HM_RUN_NODES_MAX; node = last + 1) {
		last = node;
		if (!numa_bitmask_isbitset(nodes, node))
			continue;
		while (last + 1 < HM_RUN_NODES_MAX && last + 1 < (int)nodes->size &&
		       numa_bitmask_isbitset(nodes, last + 1))
			last++;
		more = last > node ? xasprintf("%s%s%d-%d", list, *list ? "," : "", node, last) :
			xasprintf("%s%s%d", list, *list ? "," : "", node);
		free(list);
		list = more;
	}
	return list;
}

/* Tries the policy on a page. 0, or the exit status. */
static int try_policy(struct options *o)
{
	unsigned long mask[HM_RUN_NODES_MAX / HM_RUN_NODE_WORD] = { 0 };
	struct bitmask *allowed;
	char *list;
	size_t i;
	void *page;
	long err;

	/* libnuma prints a line of its own where seccomp refuses this, as containers do. */
	if (syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0) && errno == EPERM)
		return complain(EXIT_USAGE, "run",
				"'%s' is refused here: get_mempolicy: %s; leave '--policy' out, or give the container CAP_SYS_NICE",
				o->policy_text, strerror(EPERM));
	if (numa_available() < 0)
		return complain(EXIT_USAGE, "run", "this kernel has no NUMA policies, leave '--policy' out");
	allowed = numa_get_mems_allowed();
	list = node_list(allowed);
	if (o->policy == MPOL_INTERLEAVE && !o->nodes)
		o->nodes = xstrdup(list);
	if (o->nodes && !hm_run_nodes(o->nodes, mask))
		return usage_error("run", "'%s' has no list of nodes such as 0-1,3", o->policy_text);
	for (i = 0; i < HM_RUN_NODES_MAX; i++)
		if (mask[i / HM_RUN_NODE_WORD] >> i % HM_RUN_NODE_WORD & 1 &&
		    (i >= allowed->size || !numa_bitmask_isbitset(allowed, i)))
			return complain(EXIT_USAGE, "run", "'%s': this process may not use node %zu, only %s",
					o->policy_text, i, list);
	if (o->policy == MPOL_PREFERRED && strspn(o->nodes, "0123456789") != strlen(o->nodes))
		return usage_error("run", "'%s': one node only", o->policy_text);
	numa_bitmask_free(allowed);
	free(list);

	page = mmap(NULL, sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return complain(EXIT_FAILED, "run", "out of memory");
	err = syscall(SYS_mbind, page, sysconf(_SC_PAGESIZE), o->policy, o->nodes ? mask : NULL,
		      (unsigned long)HM_RUN_NODES_MAX, 0);
	if (err)
		return complain(EXIT_USAGE, "run", "'%s' is refused here: mbind: %s; leave '--policy' out",
				o->policy_text, strerror(errno));
	munmap(page, sysconf(_SC_PAGESIZE));
	return 0;
}

/* 0, or the exit status. */
static int parse_policy(struct options *o, const char *s)
{
	static const struct {
		const char *name;
		int policy;
		bool may, must;
	} policies[] = {
		{ "local", MPOL_LOCAL, false, false },
		{ "interleave", MPOL_INTERLEAVE, true, false },
		{ "prefer", MPOL_PREFERRED, true, true },
		{ "bind", MPOL_BIND, true, true },
	};
	const size_t len = strcspn(s, "=");
	size_t i;

	for (i = 0; i < ARRAY_SIZE(policies); i++)
		if (strlen(policies[i].name) == len && !strncmp(s, policies[i].name, len) &&
		    (s[len] ? policies[i].may : !policies[i].must))
			break;
	if (i == ARRAY_SIZE(policies))
		return usage_error("run", "'%s' is not local, interleave, interleave=NODES, prefer=NODE or bind=NODES",
				   s);
	free(o->nodes);
	o->policy = policies[i].policy;
	o->nodes = s[len] ? xstrdup(s + len + 1) : NULL;
	o->policy_text = s;
	return 0;
}

/* Adds words such as "sync=off", with commas. False: one is none of them. */
static bool add_switches(struct options *o, const char *text)
{
#define SWITCH(name)	#name "=on", #name "=off",
	static const char *const words[] = { HM_CUDA_SWITCHES(SWITCH) };
#undef SWITCH
	const char *word = text;
	char *before = o->device_set;
	size_t i, len;

	do {
		len = strcspn(word, ",");
		for (i = 0; i < ARRAY_SIZE(words); i++)
			if (strlen(words[i]) == len && !strncmp(words[i], word, len))
				break;
		if (i == ARRAY_SIZE(words))
			return false;
		if (!strncmp(word, "managed=", strlen("managed=")))
			o->managed = !strncmp(word, "managed=on", len);
		word += len;
	} while (*word++);
	o->device_set = xasprintf("%s%s%s", before ? before : "", before ? "," : "", text);
	free(before);
	return true;
}

/* 0, or the exit status; -1 for help. */
static int parse(struct options *o, int argc, char **argv)
{
	int c, status;

	while ((c = next_option("run", argc, argv)) != -1) {
		switch (c) {
		case 's':
			if (!*optarg)
				return usage_error("run", "'--spec' is empty");
			o->spec = optarg;
			o->blocks = true;
			break;
		case 'd':
			if (!*optarg)
				return usage_error("run", "'--device' is empty");
			o->device = optarg;
			break;
		case 'D':
			if (!add_switches(o, optarg))
				return usage_error("run", "'%s' is not one of " HM_CUDA_SET_VALUES,
						   optarg);
			break;
		case 'm':
			if (!hm_parse_size(optarg, &o->min) ||
			    o->min < HM_RUN_MIN_LEAST || o->min > HM_RUN_MIN_MOST)
				return usage_error("run", "'%s' is not a size from 64K to 1T", optarg);
			o->blocks = true;
			break;
		case 'p':
			status = parse_policy(o, optarg);
			if (status)
				return status;
			o->blocks = true;
			break;
		case 'a':
			o->agent = true;
			o->blocks = true;
			break;
		case 'M':
			o->mmap = true;
			o->blocks = true;
			break;
		case 'r':
			o->report = optarg;
			break;
		case 'h':
			return -1;
		default:
			return option_error("run", c, argv);
		}
	}
	o->command = argv + optind;
	if (!*o->command)
		return usage_error("run", "which command? Give it after the options");
	if (o->device_set && !o->device)
		return usage_error("run", "'--device-set' needs '--device'");
	/* The blocks of malloc() are the purpose without --device. */
	if (!o->device)
		o->blocks = true;
	if (o->agent && !o->spec)
		o->spec = "system";
	if (o->spec && o->policy >= 0)
		return usage_error("run", "with '--spec' the spec has the node, '--policy' does not apply: system(node=N)");
	return 0;
}

/* Whether memory of the resource is a program's to use, and the agent can run. 0, or the exit status. */
static int try_spec(const char *text, bool agent)
{
	struct hetmem_access access = { .size = sizeof(access) };
	struct hetmem_resource *res;
	struct hm_spec *spec;
	struct hetmem *hm;
	int status = 0;

	if (hm_spec_parse(text, &spec))
		return complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	hm_spec_free(spec);
	if (hetmem_open(&hm, NULL))
		return complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	if (hetmem_resource_create(hm, text, &res)) {
		status = complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	} else {
		if (hetmem_resource_access(res, &access) || !access.host)
			status = complain(EXIT_USAGE, "run", "the CPU cannot use all memory of '%s'; take system, unified or host",
					  text);
		/* HETMEM_AGENT has started it already, or said why not. */
		else if (agent && !secure_getenv("HETMEM_AGENT") && hetmem_agent_start(hm, NULL))
			status = complain(EXIT_USAGE, "run", "%s; or leave '--agent' out", hetmem_last_error());
		hetmem_resource_destroy(res);
	}
	hetmem_close(hm);
	return status;
}

/* Whether the spec works on the first device. 0, or the exit status. */
static int try_device(const char *text, bool managed)
{
	const struct hetmem_params params = { .size = sizeof(params), .driver = "cuda" };
	struct hetmem_access access = { .size = sizeof(access) };
	struct hetmem_resource *res;
	struct hm_spec *spec;
	struct hetmem *hm;
	int status = 0;

	if (hm_spec_parse(text, &spec))
		return complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	hm_spec_free(spec);
	if (hetmem_open(&hm, &params))
		return complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	if (hetmem_resource_create(hm, text, &res)) {
		status = complain(EXIT_USAGE, "run", "%s", hetmem_last_error());
	} else {
		if (hetmem_resource_access(res, &access) || !(access.devices & 1))
			status = complain(EXIT_USAGE, "run", "device 0 cannot use all memory of '%s'; take device-pool",
					  text);
		else if (managed && !access.host)
			status = complain(EXIT_USAGE, "run", "managed=on: the CPU cannot use all memory of '%s'; take pool(managed)",
					  text);
		hetmem_resource_destroy(res);
	}
	hetmem_close(hm);
	return status;
}

static bool is_readable(const char *path)
{
	return !access(path, R_OK);
}

/* The directory of this program, without a slash at the end; NULL: unknown. */
static char *own_directory(void)
{
	char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
	char *slash;

	if (len <= 0)
		return NULL;
	path[len] = '\0';
	slash = strrchr(path, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	return xstrdup(path);
}

/*
 * The library @name: what the variable @by names, else beside this program (where it is built,
 * and in the Python package), else where 'make install' or a package puts it. NULL: nowhere.
 */
static char *find_library(const char *own, const char *name, const char *by)
{
	static const char *const places[] = {
		"", "../lib/hetmem/", "../lib64/hetmem/", "../lib/*/hetmem/",
	};
	const char *named = secure_getenv(by);
	char *found = NULL;
	size_t i;

	if (named)
		return is_readable(named) ? realpath(named, NULL) : NULL;
	for (i = 0; own && !found && i < ARRAY_SIZE(places); i++) {
		char *pattern = xasprintf("%s/%s%s", own, places[i], name);
		glob_t at;

		if (!glob(pattern, 0, NULL, &at)) {
			found = realpath(at.gl_pathv[0], NULL);
			globfree(&at);
		}
		free(pattern);
	}
	return found;
}

/* libhetmem, beside the library or one directory up. */
static char *find_hetmem(const char *library)
{
	static const char *const places[] = {
		"libhetmem.so.0", "../libhetmem.so.0",
	};
	const int len = strrchr(library, '/') + 1 - library;
	char *path;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(places); i++) {
		path = xasprintf("%.*s%s", len, library, places[i]);
		if (is_readable(path))
			return path;
		free(path);
	}
	return NULL;
}

/* LD_PRELOAD with @library first and once, and what was there before. 0, or the exit status. */
static int set_preload(const char *library)
{
	const char *before = getenv("LD_PRELOAD");
	char *all = xstrdup(library), *old, *word, *rest, *more;

	if (strpbrk(library, ": \t\n"))
		return complain(EXIT_USAGE, "run", "the loader cannot read the path '%s': install hetmem where no blank and no colon is",
				library);
	old = xstrdup(before ? before : "");
	for (word = strtok_r(old, ": ", &rest); word; word = strtok_r(NULL, ": ", &rest)) {
		if (!strcmp(word, library))
			continue;
		if (strstr(word, "libasan") || strstr(word, "libtsan") || strstr(word, "liblsan") ||
		    strstr(word, "libhwasan") || strstr(word, "libclang_rt"))
			return complain(EXIT_USAGE, "run", "LD_PRELOAD has a sanitizer, '%s', which replaces malloc itself; unset it, or run without 'hetmem run'",
					word);
		more = xasprintf("%s:%s", all, word);
		free(all);
		all = more;
	}
	free(old);
	if (setenv("LD_PRELOAD", all, 1))
		return complain(EXIT_FAILED, "run", "out of memory");
	free(all);
	return 0;
}

/* Appends a line KEY=VALUE to @text, which it frees. */
static char *add(char *text, const char *key, const char *value)
{
	char *more = xasprintf("%s%s=%s\n", text, key, value);

	free(text);
	return more;
}

static char *add_number(char *text, const char *key, long long value)
{
	char *number = xasprintf("%lld", value);

	text = add(text, key, number);
	free(number);
	return text;
}

/* The file exists then, and can be appended to. NULL: an error was told. */
static char *report_path(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	char *full;

	if (fd < 0) {
		complain(EXIT_USAGE, "run", "cannot append to '%s': %s; name another file with '--report'",
			 path, strerror(errno));
		return NULL;
	}
	close(fd);
	full = realpath(path, NULL);
	if (!full)
		complain(EXIT_USAGE, "run", "cannot find '%s': %s", path, strerror(errno));
	return full;
}

/* 0, or the exit status. */
static int set_settings(const struct options *o, const char *library)
{
	char *text = xstrdup(""), *path;

	text = add_number(text, HM_RUN_MIN, o->min);
	if (o->policy >= 0)
		text = add_number(text, HM_RUN_POLICY, o->policy);
	if (o->nodes)
		text = add(text, HM_RUN_NODES, o->nodes);
	if (o->mmap)
		text = add(text, HM_RUN_MMAP, "1");
	if (o->agent)
		text = add(text, HM_RUN_AGENT, "1");
	if (o->report) {
		path = report_path(o->report);
		if (!path)
			return EXIT_USAGE;
		if (strchr(path, '\n'))
			return complain(EXIT_USAGE, "run", "'%s' has a newline; name another file with '--report'",
					path);
		text = add(text, HM_RUN_REPORT, path);
		free(path);
	}
	if (o->spec) {
		if (strchr(o->spec, '\n'))
			return usage_error("run", "'--spec' has a newline");
		path = find_hetmem(library);
		if (!path)
			return complain(EXIT_USAGE, "run", "'--spec' needs libhetmem.so.0 beside '%s' or one directory up; install the library",
					library);
		text = add(text, HM_RUN_SPEC, o->spec);
		text = add(text, HM_RUN_HETMEM, path);
		free(path);
	}
	if (strlen(text) > SETTINGS_MOST)
		return complain(EXIT_USAGE, "run", "options of more than %d bytes; shorten '--spec' or '--report'",
				SETTINGS_MOST);
	if (setenv(HM_RUN_VARIABLE, text, 1))
		return complain(EXIT_FAILED, "run", "out of memory");
	free(text);
	return 0;
}

/* 0, or the exit status. */
static int set_device(const struct options *o, const char *library)
{
	char *path = NULL;
	int bad;

	(void)library;
	if (o->report) {
		path = report_path(o->report);
		if (!path)
			return EXIT_USAGE;
	}
	bad = setenv(HM_CUDA_SPEC, o->device, 1);
	bad |= o->device_set ? setenv(HM_CUDA_SET, o->device_set, 1) : unsetenv(HM_CUDA_SET);
	bad |= path ? setenv(HM_CUDA_REPORT, path, 1) : unsetenv(HM_CUDA_REPORT);
	free(path);
	return bad ? complain(EXIT_FAILED, "run", "out of memory") : 0;
}

/* The file that execvp() runs; NULL: there is none. */
static char *find_command(const char *name)
{
	const char *path = getenv("PATH");
	struct stat st;
	char *full;
	size_t len;

	if (strchr(name, '/'))
		return xstrdup(name);
	for (path = path ? path : "/bin:/usr/bin"; *name; path += len + 1) {
		len = strcspn(path, ":");
		full = xasprintf("%.*s%s%s", (int)len, path, len ? "/" : "", name);
		if (!access(full, X_OK) && !stat(full, &st) && S_ISREG(st.st_mode))
			return full;
		free(full);
		if (!path[len])
			break;
	}
	return NULL;
}

/* 0, or the exit status. */
static int check_command(const char *name, bool is_malloc)
{
	char *full = find_command(name);
	const char *objection = full ? program_objection(full, is_malloc) : NULL;

	free(full);
	if (objection)
		return complain(EXIT_USAGE, "run", "'%s' %s", name, objection);
	return 0;
}

static int start(char **command)
{
	execvp(command[0], command);
	if (errno == ENOENT)
		return no_command("run", command[0]);
	return complain(EXIT_CANNOT_RUN, "run", "cannot run '%s': %s", command[0], strerror(errno));
}

/* The library @name goes before what LD_PRELOAD has. 0, or the exit status. */
static int preload(const struct options *o, const char *name, const char *by,
		   int (*set)(const struct options *o, const char *library))
{
	char *own = own_directory(), *library = find_library(own, name, by);
	char *file = secure_getenv(by) ? xasprintf("such file as %s has", by) : xstrdup(name);
	int status;

	if (library)
		status = set(o, library);
	else
		status = complain(EXIT_USAGE, "run", "there is no %s near '%s'; install hetmem again, or name it in %s",
				  file, own ? own : "/proc/self/exe", by);
	if (!status)
		status = set_preload(library);
	free(file);
	free(library);
	free(own);
	return status;
}

int cmd_run(int argc, char **argv)
{
	struct options o = { .min = HM_RUN_MIN_DEFAULT, .policy = -1 };
	int status = parse(&o, argc, argv);

	if (status)
		return status < 0 ? help() : status;
	if (o.policy >= 0)
		status = try_policy(&o);
	if (!status && o.spec)
		status = try_spec(o.spec, o.agent);
	if (!status && o.device)
		status = try_device(o.device, o.managed);
	if (!status)
		status = check_command(o.command[0], o.blocks);
	if (!status && o.blocks)
		status = preload(&o, HM_RUN_LIBRARY, "HETMEM_PRELOAD", set_settings);
	if (!status && o.device)
		status = preload(&o, HM_CUDA_LIBRARY, "HETMEM_CUDA_PRELOAD", set_device);
	if (!status)
		status = start(o.command);
	free(o.nodes);
	free(o.device_set);
	return status;
}
