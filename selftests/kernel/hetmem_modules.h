/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Loading and unloading the modules under test. They are looked for in
 * $HETMEM_MODULES, else in /lib/modules, where the virtual machine has them,
 * and come back with the parameters that they had.
 */
#ifndef HETMEM_MODULES_H
#define HETMEM_MODULES_H

#include "hetmem_test.h"

#include <dirent.h>

struct module {
	const char *name;
	char params[256];
};

HELPER bool module_loaded(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", name);
	return access(path, F_OK) == 0;
}

/* Remember what it was loaded with. */
HELPER void module_params(struct module *m)
{
	char path[512], value[128];
	struct dirent *e;
	size_t len = 0;
	DIR *dir;
	FILE *f;

	m->params[0] = 0;
	snprintf(path, sizeof(path), "/sys/module/%s/parameters", m->name);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/sys/module/%s/parameters/%s",
			 m->name, e->d_name);
		f = fopen(path, "r");
		if (f && fscanf(f, "%127s", value) == 1)
			len += snprintf(m->params + len,
					sizeof(m->params) - len, "%s=%s ",
					e->d_name, value);
		if (f)
			fclose(f);
		if (len >= sizeof(m->params))
			break;
	}
	if (dir)
		closedir(dir);
}

HELPER int module_load(const struct module *m)
{
	const char *dir = getenv("HETMEM_MODULES");
	char path[512];
	int fd, ret = 0;

	snprintf(path, sizeof(path), "%s/%s.ko", dir ? dir : "/lib/modules",
		 m->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		ret = -errno;
		fprintf(stderr, "# no %s: set HETMEM_MODULES\n", path);
		return ret;
	}
	if (syscall(SYS_finit_module, fd, m->params, 0))
		ret = -errno;
	close(fd);
	return ret;
}

/* -EAGAIN: somebody uses it. */
HELPER int module_unload_once(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? -errno : 0;
}

/* For who may use it for a moment longer: a process that is being reaped. */
HELPER int module_unload(const char *name)
{
	int i, ret = -EAGAIN;

	for (i = 0; i < 500 && ret == -EAGAIN; i++) {
		ret = module_unload_once(name);
		if (ret == -EAGAIN)
			usleep(5000);
	}
	return ret;
}

#endif /* HETMEM_MODULES_H */
