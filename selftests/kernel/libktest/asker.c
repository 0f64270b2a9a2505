// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/asker.h"

#define STACK	(64 * KiB)
#define LISTED	64

static void *ask(void *arg)
{
	struct asker *a = arg;

	a->ret = hm_ioctl(a->fd, HETMEM_IOC_HINT, &a->cmd);
	return NULL;
}

int asker_start(struct asker *a, int fd, const void *p, size_t size,
		uint32_t location, const void *uuid)
{
	pthread_attr_t attr;
	int ret;

	*a = (struct asker){
		.fd = fd,
		.cmd = {
			.size = sizeof(a->cmd),
			.start = (uintptr_t)p,
			.end = (uintptr_t)p + size,
			.location = location,
			.timeout_ms = FOREVER_MS,
		},
	};
	if (uuid)
		memcpy(a->cmd.uuid, uuid, sizeof(a->cmd.uuid));
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	ret = pthread_create(&a->thread, &attr, ask, a);
	pthread_attr_destroy(&attr);
	return -ret;
}

int asker_end(struct asker *a)
{
	pthread_join(a->thread, NULL);
	return a->ret;
}

long hints_waiting(int fd, pid_t pid)
{
	struct hetmem_list_entry list[LISTED];
	int nr = hm_list(fd, list, LISTED), i;
	long sum = 0;

	for (i = 0; i < nr && i < LISTED; i++)
		if (list[i].pid == (uint32_t)pid)
			sum += list[i].nr_hints;
	return nr < 0 ? nr : sum;
}
