/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A context with a BACKGROUND command, and its eventfd. */
#ifndef LIBKTEST_BACKGROUND_H
#define LIBKTEST_BACKGROUND_H

#include <poll.h>
#include <sys/eventfd.h>

#include "libktest/commands.h"

struct job {
	int fd;
	int eventfd;
	uint64_t command;	/* as BACKGROUND gets them */
	uint32_t command_size;
	struct hetmem_cmd_migrate move;
	struct hetmem_cmd_background cmd;
};

static inline void job_set(struct job *job, const void *p, size_t size, uint32_t location)
{
	job->command = (uintptr_t)&job->move;
	job->command_size = sizeof(job->move);
	job->move = (struct hetmem_cmd_migrate){
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = location,
	};
}

static inline int job_open(struct job *job)
{
	memset(job, 0, sizeof(*job));
	job->fd = hm_open();
	job->eventfd = eventfd(0, EFD_CLOEXEC);
	return job->fd < 0 ? job->fd : job->eventfd < 0 ? -errno : 0;
}

static inline void job_close(struct job *job)
{
	close(job->fd);
	close(job->eventfd);
}

static inline int job_call(struct job *job, uint32_t flags)
{
	job->cmd = (struct hetmem_cmd_background){
		.size = sizeof(job->cmd),
		.flags = flags,
		.command = job->command,
		.command_size = job->command_size,
		.eventfd = flags ? -1 : job->eventfd,
	};
	return hm_ioctl(job->fd, HETMEM_IOC_BACKGROUND, &job->cmd);
}

static inline int job_begin(struct job *job)
{
	return job_call(job, 0);
}

static inline int job_collect(struct job *job)
{
	return job_call(job, HETMEM_BACKGROUND_COLLECT);
}

/* Commands that have ended since the last call: waits for one. 0: none did. */
static inline uint64_t job_wait(struct job *job)
{
	uint64_t nr = 0;

	if (poll_one(job->eventfd, PATIENCE_MS) != POLLIN ||
	    read(job->eventfd, &nr, sizeof(nr)) != sizeof(nr))
		return 0;
	return nr;
}

#endif
