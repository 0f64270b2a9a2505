// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/sysfs.h"

#include <dirent.h>
#include <sys/stat.h>

long sysfs_read(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), SYSFS "%s", name);
	return read_long(path);
}

int sysfs_write(const char *name, const char *text)
{
	char path[256];
	int fd, ret = 0;

	snprintf(path, sizeof(path), SYSFS "%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

int sysfs_set(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return sysfs_write(name, text);
}

long nr_contexts(void)
{
	return sysfs_read("stats/contexts");
}

struct abi_file {
	char name[64];		/* below SYSFS, "*" for <id> or <n> */
	mode_t mode;
	bool there;
};

struct abi {
	struct abi_file files[64];
	unsigned int nr;
	unsigned int flaws;
};

/* "devices/0/name" and "devices/<id>/name" are "devices/" "*" "/name"; "GPU-..." likewise. */
static void abi_name(char *to, size_t size, const char *from)
{
	size_t n = 0;

	while (*from && n < size - 1) {
		const bool digit = *from == '<' || (*from >= '0' && *from <= '9');

		if (n && ((to[n - 1] == '/' && digit) || (n >= 4 && !memcmp(to + n - 4, "GPU-", 4)))) {
			to[n++] = '*';
			from += strcspn(from, "/");
		} else {
			to[n++] = *from++;
		}
	}
	to[n] = 0;
}

static int abi_read(struct abi *abi)
{
	const char *path = getenv("HETMEM_ABI");
	struct abi_file *file = NULL;
	char line[256], name[128];
	FILE *f;

	memset(abi, 0, sizeof(*abi));
	f = fopen(path ? path : "/vm/abi", "r");
	if (!f) {
		fprintf(stderr, "# set HETMEM_ABI to the file in Documentation/ABI/testing\n");
		return -errno;
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "What: " SYSFS "%127s", name) == 1) {
			if (abi->nr == ARRAY_SIZE(abi->files))
				break;
			file = &abi->files[abi->nr++];
			abi_name(file->name, sizeof(file->name), name);
		} else if (file && sscanf(line, "Description: %127[^,.]",
					  name) == 1) {
			file->mode = !strcmp(name, "Read only") ? 0444 :
				     !strcmp(name, "Read/write") ? 0644 :
				     !strcmp(name, "Write only") ? 0200 : 0;
		}
	}
	fclose(f);
	return 0;
}

static void abi_flaw(struct abi *abi, const char *name, const char *what)
{
	fprintf(stderr, "# %s: %s\n", name, what);
	abi->flaws++;
}

/* One line, with no blank in it. */
static bool abi_one_value(const char *path)
{
	char text[256] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	close(fd);
	return n > 1 && strcspn(text, " \t\n") == (size_t)n - 1 &&
	       text[n - 1] == '\n';
}

static void abi_check_file(struct abi *abi, const char *name, mode_t mode)
{
	char path[256], pattern[64];
	unsigned int i;

	abi_name(pattern, sizeof(pattern), name);
	for (i = 0; i < abi->nr; i++) {
		if (strcmp(abi->files[i].name, pattern))
			continue;
		abi->files[i].there = true;
		if (abi->files[i].mode != (mode & 0777))
			abi_flaw(abi, name, "not as readable, writable as documented");
		snprintf(path, sizeof(path), SYSFS "%s", name);
		if (mode & 0444 && !abi_one_value(path))
			abi_flaw(abi, name, "is not one value");
		return;
	}
	abi_flaw(abi, name, "is not documented");
}

/* @dir: "" or a name that ends in a slash. */
static void abi_walk(struct abi *abi, const char *dir)
{
	/* Of every device in sysfs, and the core's to document. */
	static const char core[] = " dev power subsystem uevent ";
	char path[256], name[96], word[96];
	struct dirent *e;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof(path), SYSFS "%s", dir);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		snprintf(word, sizeof(word), " %.80s ", e->d_name);
		if (e->d_name[0] == '.' || (!*dir && strstr(core, word)))
			continue;
		snprintf(name, sizeof(name), "%s%.60s", dir, e->d_name);
		snprintf(path, sizeof(path), SYSFS "%s", name);
		if (lstat(path, &st)) {
			abi_flaw(abi, name, strerror(errno));
		} else if (S_ISDIR(st.st_mode)) {
			strcat(name, "/");
			abi_walk(abi, name);
		} else {
			abi_check_file(abi, name, st.st_mode);
		}
	}
	if (d)
		closedir(d);
}

int abi_compare(bool all)
{
	struct abi abi;
	unsigned int i, k;
	int ret = abi_read(&abi);

	if (ret)
		return ret;
	if (abi.nr < 20 || abi.nr == ARRAY_SIZE(abi.files))
		abi_flaw(&abi, "documentation", "too short or too long");
	abi_walk(&abi, "");
	for (i = 0; i < abi.nr; i++) {
		size_t dir = strcspn(abi.files[i].name, "*");
		bool must = all || !abi.files[i].name[dir];

		for (k = 0; k < abi.nr && !must; k++)
			must = abi.files[k].there &&
			       !strncmp(abi.files[k].name, abi.files[i].name,
					dir + 1);
		if (must && !abi.files[i].there)
			abi_flaw(&abi, abi.files[i].name,
				 "is documented and not there");
	}
	return abi.flaws;
}
