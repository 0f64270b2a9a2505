/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Opening /dev/hetmem: for the library, the command and libhetmem-preload.so alike.
 *
 * The first open() of a process visits all its mappings, and the kernel starts over at
 * each signal that arrives before the end. A timer can fire more often than that takes.
 * So the calling thread takes no signals until open() returns. The freezer, debuggers
 * and completions of io_uring interrupt open() all the same; each try is bounded.
 */
#ifndef HM_CORE_DEVICE_OPEN_H
#define HM_CORE_DEVICE_OPEN_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#define HM_OPEN_TRIES	16

/* Return: a descriptor that execve() closes, or a negative errno. */
static inline int hm_device_open(const char *path)
{
	int fd = -1, err = EINTR, i;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (i = 0; i < HM_OPEN_TRIES && fd < 0 && (err == EINTR || err == EAGAIN); i++) {
		fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
		err = errno;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return fd < 0 ? -err : fd;
}

#endif /* HM_CORE_DEVICE_OPEN_H */
