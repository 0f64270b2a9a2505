/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the kernel says of this process's memory: see resident.h. */
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "resident.h"

void resident_begin(void)
{
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}

int64_t resident_anonymous(void)
{
	static const char key[] = "\nAnonymous:";
	char text[4096];
	const char *line;
	ssize_t n;
	int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = '\0';
	line = strstr(text, key);
	return line ? strtoll(line + sizeof(key) - 1, NULL, 10) * 1024 : -1;
}
