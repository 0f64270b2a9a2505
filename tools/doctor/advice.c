/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem doctor: advice. What this machine does not have is not advised: a command, a
 * directory and a source tree are looked for first. NULL means that there is nothing to
 * type here.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

bool doctor_has_command(const struct doctor *doctor, const char *name)
{
	static const char *const places[] = {
		"/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin",
	};
	bool has = false;
	size_t i;

	for (i = 0; !has && i < ARRAY_SIZE(places); i++) {
		char *path = xasprintf("%s/%s", places[i], name);

		has = doctor_exists(doctor, path);
		free(path);
	}
	return has;
}

bool doctor_is_debian(const struct doctor *doctor)
{
	return doctor_exists(doctor, "/etc/debian_version");
}

/* @path below /lib/modules/RELEASE, as a copy; NULL: the release is not known. */
static char *modules_path(const struct doctor *doctor, const char *path)
{
	/* The release is a file's content: no way out of the place. */
	if (!doctor->release || strchr(doctor->release, '/'))
		return NULL;
	return xasprintf("/lib/modules/%s%s", doctor->release, path);
}

static bool modules_have(const struct doctor *doctor, const char *path)
{
	char *full = modules_path(doctor, path);
	bool have = full && doctor_exists(doctor, full);

	free(full);
	return have;
}

bool doctor_has_headers(const struct doctor *doctor)
{
	return modules_have(doctor, "/build");
}

bool doctor_has_module(const struct doctor *doctor, const char *file)
{
	char *path = modules_path(doctor, "/modules.dep"), *text, *name;
	bool has;

	if (!path)
		return false;
	text = read_file(doctor->root, path, 16 << 20, NULL);
	name = xasprintf("/%s", file);
	has = text && strstr(text, name);
	free(name);
	free(text);
	free(path);
	return has;
}

static bool is_tree(const char *path)
{
	char *makefile = xasprintf("%s/Makefile", path);
	char *demo = xasprintf("%s/selftests/demo", path);
	bool is = !access(makefile, R_OK) && !access(demo, X_OK);

	free(demo);
	free(makefile);
	return is;
}

/* hetmem's source: the current directory, or that of build/hetmem. As a copy. */
static char *find_tree(void)
{
	char exe[PATH_MAX], *slash;
	ssize_t len;
	int i;

	if (is_tree("."))
		return xstrdup("");
	len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (len <= 0)
		return NULL;
	exe[len] = '\0';
	for (i = 0; i < 2; i++) {
		slash = strrchr(exe, '/');
		if (!slash)
			return NULL;
		*slash = '\0';
	}
	return is_tree(exe) ? xstrdup(exe) : NULL;
}

void doctor_advice_begin(struct doctor *doctor)
{
	char *tree = doctor_has_command(doctor, "make") || !doctor->live ? find_tree() : NULL;

	doctor->tree = tree;
	if (tree)
		doctor->demo = *tree ? xasprintf("type 'make -C %s demo' to see it in a virtual machine", tree) :
			xstrdup("type 'make demo' to see it in a virtual machine");
}

void doctor_advice_end(struct doctor *doctor)
{
	free(doctor->tree);
	free(doctor->demo);
}

char *doctor_other_kernel(const struct doctor *doctor)
{
	return xasprintf("boot a kernel with the options that are missing%s",
			 doctor_is_debian(doctor) ? " (Debian's 7.x have them)" : "");
}

char *doctor_load(const struct doctor *doctor, const char *module)
{
	const char *c = doctor->tree && *doctor->tree ? " -C " : "";
	const char *tree = doctor->tree ? doctor->tree : "";
	const char *slash = *tree ? "/" : "";
	char *file = xasprintf("%s.ko", module);
	char *advice;

	if (!doctor->loads)
		advice = NULL;
	else if (doctor_has_module(doctor, file) && doctor_has_command(doctor, "modprobe"))
		advice = xasprintf("type 'modprobe %s' as root", module);
	else if (doctor->tree && doctor_has_headers(doctor))
		advice = xasprintf("type 'make%s%s module' and 'insmod %s%sbuild/%s' as root",
				   c, tree, tree, slash, file);
	else if (doctor_has_headers(doctor))
		advice = xstrdup("build and install it from hetmem's source: 'make module modules_install'");
	else if (modules_have(doctor, "") && doctor_has_command(doctor, "apt-get"))
		advice = xasprintf("install the kernel's headers first: 'apt-get install linux-headers-%s'",
				   doctor->release);
	else
		advice = NULL;
	free(file);
	return advice;
}
