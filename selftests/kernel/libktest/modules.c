// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/modules.h"

#include <dirent.h>

bool module_loaded(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", name);
	return access(path, F_OK) == 0;
}

void module_params(struct module *m)
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

int module_load(const struct module *m)
{
	const char *dir = getenv("HETMEM_MODULES");
	char path[512];
	int fd, ret = 0;

	dir = dir ? dir : "/lib/modules";
	snprintf(path, sizeof(path), "%s/%s.ko", dir, m->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		snprintf(path, sizeof(path), "%s/foreign/%s.ko", dir, m->name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
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

int module_unload_once(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? -errno : 0;
}

int module_unload(const char *name)
{
	int ret;

	return EVENTUALLY((ret = module_unload_once(name)) != -EAGAIN) ? ret :
								 -EAGAIN;
}
