/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Finding the contexts of another process; the command uses it too. */
#ifndef HETMEM_HINT_PEER_H
#define HETMEM_HINT_PEER_H

#include <sys/types.h>

/* More than a process has of the module's files in practice. */
#define HM_PEER_CONTEXTS	16

/*
 * Copies the files of the module that @pid opened itself to @fds, at most
 * @nr, close-on-exec. Returns how many, at least one; -ESRCH or -ENOENT no such
 * process, -EINVAL not a process, -EPERM, -ENXIO it has none.
 */
int hm_peer_contexts(pid_t pid, int *fds, unsigned int nr);

#endif /* HETMEM_HINT_PEER_H */
