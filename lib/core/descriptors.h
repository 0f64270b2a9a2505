/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Descriptors in a message between processes, as SCM_RIGHTS. The control data has
 * CMSG_SPACE(NUMBER * sizeof(int)) bytes and the alignment of struct cmsghdr.
 */
#ifndef HETMEM_CORE_DESCRIPTORS_H
#define HETMEM_CORE_DESCRIPTORS_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Attaches @nr descriptors to @msg, in @control. */
static inline void hm_descriptors_attach(struct msghdr *msg, void *control, const int *fds,
					 uint32_t nr)
{
	struct cmsghdr *c = control;

	msg->msg_control = control;
	msg->msg_controllen = CMSG_SPACE(nr * sizeof(int));
	memset(control, 0, msg->msg_controllen);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(nr * sizeof(int));
	memcpy(CMSG_DATA(c), fds, nr * sizeof(int));
}

/*
 * Takes the descriptors of a received message: the first @most are the caller's, in @fds. Closes
 * the others: the padding of the control data has room for one more than was asked for. Returns
 * how many came.
 */
static inline uint32_t hm_descriptors_detach(struct msghdr *msg, int *fds, uint32_t most)
{
	struct cmsghdr *c;
	uint32_t nr = 0;
	size_t at;
	int fd;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (at = CMSG_LEN(0); at + sizeof(fd) <= c->cmsg_len; at += sizeof(fd), nr++) {
			memcpy(&fd, (char *)c + at, sizeof(fd));
			if (nr < most)
				fds[nr] = fd;
			else
				close(fd);
		}
	}
	return nr;
}

#endif /* HETMEM_CORE_DESCRIPTORS_H */
