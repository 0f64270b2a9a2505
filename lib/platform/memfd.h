/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Memfds of other processes, which are found by their names in /proc/PID/fd. */
#ifndef HETMEM_PLATFORM_MEMFD_H
#define HETMEM_PLATFORM_MEMFD_H

#include <stdbool.h>
#include <sys/types.h>

/* The number of @pid in its own PID namespace; @pid itself if that is not known. */
pid_t hm_inner_pid(pid_t pid);

/*
 * Whether @path, a descriptor of O_PATH, is a memfd; *@inode: its inode, -1: not known. The check
 * calls no file system. Other calls could block for ever in a FUSE server, so they come after it.
 */
bool hm_is_memfd(int path, long long *inode);

#endif /* HETMEM_PLATFORM_MEMFD_H */
