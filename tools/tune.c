/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem tune: the settings of the module, below /sys/class/misc/hetmem/. A setting has the
 * name of its file. Everything that was typed or that a file has is checked before anything
 * is written. If the kernel refuses one, those before it are put back.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "options.h"
#include "util.h"

#define SYSFS		"/sys/class/misc/hetmem"
#define DEFAULT_FILE	"/etc/hetmem.conf"
#define MAX_FILE	65536
#define MAX_SETTINGS	256

struct fixed {
	const char *name;
	uint64_t min, max;
	const char *help;
};

static const struct fixed fixed[] = {
	{ "caps/user_kb", 0, UINT32_MAX, "KiB of kernel memory for the contexts of one user" },
	{ "caps/total_kb", 0, UINT32_MAX, "KiB of it for all users together" },
	{ "caps/pinned_kb", 0, UINT32_MAX, "KiB of memory that one user may pin" },
	{ "caps/max_hints", 1, 1024, "hints of one user that may wait for one process" },
	{ "thrash/count", 2, 1000000, "times back and forth that make a block thrash" },
	{ "thrash/window_ms", 1, 3600000, "within so many milliseconds" },
};

/**
 * struct setting - one that there is here
 * @is_limit: of a device; @max is its capacity then
 */
struct setting {
	char *name;
	uint64_t min, max, value;
	const char *help;
	bool is_limit;
};

/**
 * struct tune - what was asked for, and the settings that there are here
 * @unreadable: a setting whose file is there and has no number, or ""
 */
struct tune {
	const char *root;
	const char *file;
	bool save, restore;
	struct setting settings[MAX_SETTINGS];
	size_t nr;
	char unreadable[64];
};

/* A change that was asked for. */
struct change {
	struct setting *setting;
	uint64_t value;
};

static int help(void)
{
	puts("Usage: hetmem tune [NAME | NAME=VALUE...]\n"
	     "       hetmem tune --save | --restore [--file FILE]\n"
	     "Shows the settings of hetmem.ko, or one, or sets them until it is unloaded.\n\n"
	     "  --save       writes what is set to a file, which replaces the old one at once\n"
	     "  --restore    sets what the file has; hetmem-tune.service does so when the\n"
	     "               module is loaded\n"
	     "  --file FILE  the file (" DEFAULT_FILE ")\n\n"
	     "A VALUE can end in K, M, G or T. Setting and saving need root.");
	return EXIT_OK;
}

static char *path_of(const char *name)
{
	return xasprintf(SYSFS "/%s", name);
}

/* False: there is no such file. */
static bool read_value(const struct tune *t, const char *name, uint64_t *value)
{
	char *path = path_of(name), *line = read_line(t->root, path), *rest;
	bool good = line != NULL;

	if (good) {
		errno = 0;
		*value = strtoull(line, &rest, 10);
		good = !errno && rest != line && !*rest;
	}
	free(line);
	free(path);
	return good;
}

static bool is_there(const struct tune *t, const char *name)
{
	char *path = xasprintf("%s" SYSFS "/%s", t->root, name);
	const bool there = !access(path, F_OK);

	free(path);
	return there;
}

static void add_setting(struct tune *t, char *name, uint64_t min, uint64_t max, const char *text,
			bool is_limit)
{
	struct setting *s = &t->settings[t->nr];
	uint64_t value;

	if (t->nr == MAX_SETTINGS || !read_value(t, name, &value)) {
		if (is_there(t, name))
			snprintf(t->unreadable, sizeof(t->unreadable), "%s", name);
		free(name);
		return;
	}
	*s = (struct setting){ name, min, max, value, text, is_limit };
	t->nr++;
}

static int by_number(const void *a, const void *b)
{
	const long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void find_limits(struct tune *t)
{
	char *path = xasprintf("%s" SYSFS "/devices", t->root), *name;
	long ids[MAX_SETTINGS], id;
	DIR *dir = opendir(path);
	struct dirent *entry;
	uint64_t capacity;
	size_t nr = 0, i;

	while (dir && nr < MAX_SETTINGS && (entry = readdir(dir)))
		if (parse_number(entry->d_name, 0, 0x7fff, &id))
			ids[nr++] = id;
	if (dir)
		closedir(dir);
	free(path);
	qsort(ids, nr, sizeof(*ids), by_number);
	for (i = 0; i < nr; i++) {
		name = xasprintf("devices/%ld/capacity", ids[i]);
		if (read_value(t, name, &capacity))
			add_setting(t, xasprintf("devices/%ld/limit", ids[i]), 0, capacity,
				    "bytes of the device that may be used", true);
		free(name);
	}
}

/* 0, or an exit status. */
static int find_settings(struct tune *t)
{
	char *path = xasprintf("%s" SYSFS "/caps", t->root);
	const bool loaded = !access(path, F_OK);
	size_t i;

	free(path);
	if (!loaded)
		return complain(EXIT_FAILED, "tune",
				"hetmem.ko is not loaded; type 'hetmem doctor' for how to load it");
	for (i = 0; i < ARRAY_SIZE(fixed); i++)
		add_setting(t, xstrdup(fixed[i].name), fixed[i].min, fixed[i].max, fixed[i].help,
			    false);
	find_limits(t);
	return 0;
}

static struct setting *find(struct tune *t, const char *name, size_t len)
{
	size_t i;

	for (i = 0; i < t->nr; i++)
		if (strlen(t->settings[i].name) == len && !memcmp(t->settings[i].name, name, len))
			return &t->settings[i];
	return NULL;
}

/* "NAME=VALUE" of @where. 0, or an exit status. */
static int parse_change(struct tune *t, const char *text, const char *where, struct change *change)
{
	const size_t len = strcspn(text, "=");

	change->setting = find(t, text, len);
	if (!change->setting)
		return complain(EXIT_USAGE, "tune",
				"%sthere is no setting '%.*s' here; type 'hetmem tune' for those there are",
				where, (int)(len > 64 ? 64 : len), text);
	if (!text[len])
		return usage_error("tune", "%s'%s' has no value", where, text);
	if (!hm_parse_size(text + len + 1, &change->value) || change->value < change->setting->min ||
	    change->value > change->setting->max)
		return complain(EXIT_USAGE, "tune",
				"%s'%.64s' is not a value of %s: give %" PRIu64 " to %" PRIu64,
				where, text + len + 1, change->setting->name, change->setting->min,
				change->setting->max);
	return 0;
}

/* 0 or a negative errno. */
static int write_value(const struct tune *t, const char *name, uint64_t value)
{
	char *path = xasprintf("%s" SYSFS "/%s", t->root, name), text[32];
	int fd, err = 0, len = snprintf(text, sizeof(text), "%" PRIu64 "\n", value);

	fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY);
	if (fd < 0 || write(fd, text, len) != len)
		err = -errno;
	if (fd >= 0)
		close(fd);
	free(path);
	return err;
}

/* All of them or none. 0, or an exit status. */
static int apply(const struct tune *t, const struct change *changes, size_t nr)
{
	size_t i, done;
	int err = 0;

	for (done = 0; done < nr && !err; done++)
		err = write_value(t, changes[done].setting->name, changes[done].value);
	if (!err)
		return 0;
	for (i = done - 1; i--;)
		write_value(t, changes[i].setting->name, changes[i].setting->value);
	if (err == -EACCES || err == -EPERM)
		return complain(EXIT_FAILED, "tune", "not permitted to set %s; become root",
				changes[done - 1].setting->name);
	return complain(EXIT_FAILED, "tune", "%s: %s; nothing was changed",
			changes[done - 1].setting->name, strerror(-err));
}

static int set(struct tune *t, char **typed, size_t nr)
{
	struct change *changes = xcalloc(nr, sizeof(*changes));
	int ret = 0;
	size_t i;

	for (i = 0; i < nr && !ret; i++)
		ret = parse_change(t, typed[i], "", &changes[i]);
	if (!ret)
		ret = apply(t, changes, nr);
	free(changes);
	return ret;
}

static int show_one(struct tune *t, const char *name)
{
	const struct setting *s = find(t, name, strlen(name));

	if (!s)
		return complain(EXIT_USAGE, "tune",
				"there is no setting '%.64s' here; type 'hetmem tune' for those there are",
				name);
	printf("%" PRIu64 "\n", s->value);
	return EXIT_OK;
}

static int show_all(const struct tune *t)
{
	static const struct table_column columns[] = {
		{ "SETTING", false }, { "VALUE", true }, { "FROM", true }, { "TO", true },
		{ "WHAT", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	size_t i;

	for (i = 0; i < t->nr; i++) {
		const struct setting *s = &t->settings[i];
		char value[32], min[32], max[32];
		const char *cells[] = { s->name, value, min, max, s->help };

		snprintf(value, sizeof(value), "%" PRIu64, s->value);
		snprintf(min, sizeof(min), "%" PRIu64, s->min);
		snprintf(max, sizeof(max), "%" PRIu64, s->max);
		table_row(table, cells);
	}
	table_print(table);
	return EXIT_OK;
}

/* rename() would replace a device such as /dev/null, too. 0, or an exit status. */
static int check_replace(const char *to)
{
	struct stat st;

	if (lstat(to, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		return 0;
	return complain(EXIT_FAILED, "tune", "'%s' is no regular file; give another with --file", to);
}

/* The new file replaces the old one by rename(): no reader sees a part of it. */
static int write_file(const struct tune *t, const char *to)
{
	char *new = xasprintf("%s.XXXXXX", to);
	int err, fd = mkostemp(new, O_CLOEXEC);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
	size_t i;

	err = out ? 0 : errno;
	if (out) {
		fputs("# The settings of hetmem.ko, by 'hetmem tune --save'.\n", out);
		for (i = 0; i < t->nr; i++)
			/* One that is the capacity is no limit. */
			if (!t->settings[i].is_limit || t->settings[i].value < t->settings[i].max)
				fprintf(out, "%s=%" PRIu64 "\n", t->settings[i].name,
					t->settings[i].value);
		errno = 0;
		if (fflush(out) || ferror(out) || fchmod(fd, 0644) || fsync(fd))
			err = errno ? errno : EIO;
		fclose(out);
	}
	if (!err && rename(new, to))
		err = errno;
	if (err && fd >= 0)
		unlink(new);
	if (err)
		complain(EXIT_FAILED, "tune", "%s: %s%s", to, strerror(err),
			 err == EACCES || err == EPERM ? "; become root" : "");
	free(new);
	return err ? EXIT_FAILED : EXIT_OK;
}

static int save(const struct tune *t)
{
	char *to;
	int ret;

	/* The new file would lose this setting, which the old one may have. */
	if (t->unreadable[0])
		return complain(EXIT_FAILED, "tune", "cannot read %s; nothing was saved",
				t->unreadable);
	/* A file beyond RLIMIT_FSIZE is an error like any other, and leaves nothing. */
	signal(SIGXFSZ, SIG_IGN);
	to = xasprintf("%s%s", t->root, t->file);
	ret = check_replace(to);
	if (!ret)
		ret = write_file(t, to);
	free(to);
	return ret;
}

/*
 * Whether @line is the limit of a device that is not there. At boot a device may come after
 * the module, or not at all: the other settings do not wait for it.
 */
static bool is_absent(struct tune *t, const char *line)
{
	const size_t len = strcspn(line, "=");
	int id, end = 0;

	return sscanf(line, "devices/%5d/limit%n", &id, &end) == 1 && end && (size_t)end == len &&
	       line[len] && !find(t, line, len);
}

/* One line of the file. 0: there is no change in it, 1, or -1: an error was written. */
static int parse_line(struct tune *t, char *line, const char *where, struct change *change)
{
	line += strspn(line, " \t");
	line[strcspn(line, "#\r")] = '\0';
	while (*line && strchr(" \t", line[strlen(line) - 1]))
		line[strlen(line) - 1] = '\0';
	if (!*line)
		return 0;
	if (is_absent(t, line)) {
		complain(EXIT_OK, "tune", "%sleft out: there is no such device: %.64s", where, line);
		return 0;
	}
	return parse_change(t, line, where, change) ? -1 : 1;
}

static int restore(struct tune *t)
{
	struct change changes[MAX_SETTINGS];
	size_t nr = 0, len = 0, number = 0;
	char *text = read_file(t->root, t->file, MAX_FILE, &len), *line, *next, *where;
	int ret = 0, found;

	if (!text)
		return complain(EXIT_FAILED, "tune", "%s: %s%s", t->file, strerror(errno),
				errno == ENOENT ? "; type 'hetmem tune --save' first" : "");
	if (strlen(text) != len) {
		free(text);
		return complain(EXIT_FAILED, "tune", "%s is no text", t->file);
	}
	for (line = text; line && !ret; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		where = xasprintf("%s, line %zu: ", t->file, ++number);
		if (nr == MAX_SETTINGS)
			ret = complain(EXIT_FAILED, "tune", "%s has more than %d settings",
				       t->file, MAX_SETTINGS);
		found = ret ? 0 : parse_line(t, line, where, &changes[nr]);
		free(where);
		if (found < 0)
			ret = EXIT_FAILED;
		else
			nr += found;
	}
	free(text);
	return ret ? ret : apply(t, changes, nr);
}

/* 0, or the exit status; -1 for help. */
static int parse(struct tune *t, int argc, char **argv)
{
	int c;

	t->root = "";
	while ((c = next_option("tune", argc, argv)) != -1) {
		switch (c) {
		case 's':
			t->save = true;
			break;
		case 'r':
			t->restore = true;
			break;
		case 'f':
			if (!*optarg)
				return usage_error("tune", "--file needs a name");
			t->file = optarg;
			break;
		case 'R':
			t->root = optarg;
			break;
		case 'h':
			return -1;
		default:
			return option_error("tune", c, argv);
		}
	}
	if (t->save && t->restore)
		return usage_error("tune", "--save and --restore do not go together");
	if ((t->save || t->restore) && optind < argc)
		return usage_error("tune", "%s takes no setting; set first, then save",
				   t->save ? "--save" : "--restore");
	if (t->file && !t->save && !t->restore)
		return usage_error("tune", "--file is for --save and --restore");
	for (c = optind; argc - optind > 1 && c < argc; c++)
		if (!strchr(argv[c], '='))
			return usage_error("tune", "'%s' has no value: give NAME=VALUE", argv[c]);
	if (!t->file)
		t->file = DEFAULT_FILE;
	return 0;
}

int cmd_tune(int argc, char **argv)
{
	struct tune t = { 0 };
	int ret = parse(&t, argc, argv);
	size_t i;

	if (ret)
		return ret < 0 ? help() : ret;
	ret = find_settings(&t);
	if (ret)
		return ret;
	if (t.save)
		ret = save(&t);
	else if (t.restore)
		ret = restore(&t);
	else if (optind == argc)
		ret = show_all(&t);
	else if (optind + 1 == argc && !strchr(argv[optind], '='))
		ret = show_one(&t, argv[optind]);
	else
		ret = set(&t, argv + optind, argc - optind);
	for (i = 0; i < t.nr; i++)
		free(t.settings[i].name);
	return ret;
}
