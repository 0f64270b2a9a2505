/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Memfds of other processes, which are found by their names in /proc/PID/fd. */
#ifndef HETMEM_PLATFORM_MEMFD_H
#define HETMEM_PLATFORM_MEMFD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The number of @pid in its own PID namespace; @pid itself if that is not known. */
pid_t hm_inner_pid(pid_t pid);

/*
 * Whether @path, a descriptor of O_PATH, is a memfd; *@inode: its inode, -1: not known. The check
 * calls no file system. Other calls could block for ever in a FUSE server, so they come after it.
 */
bool hm_is_memfd(int path, long long *inode);

/*
 * Opens the memfd @path, which hm_is_memfd() knows, with @flags of open(2). It has @size bytes and
 * all of @seals, and @owner made it. Returns a descriptor; -1: it is another file.
 */
int hm_memfd_open(int path, size_t size, int seals, uid_t owner, int flags);

#endif /* HETMEM_PLATFORM_MEMFD_H */
