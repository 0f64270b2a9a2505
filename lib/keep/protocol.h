/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The messages between a keeper and its clients, over a SOCK_SEQPACKET socket. A client sends
 * one request and waits for its answer. Each is one packet of an exact size: a header and @nr
 * lengths, and of HM_KEEP_PUT and the answer of HM_KEEP_GET also @nr descriptors. The keeper
 * closes the connection of a client that sends anything else, or does not take its answer.
 */
#ifndef HETMEM_KEEP_PROTOCOL_H
#define HETMEM_KEEP_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include <hetmem/keep.h>

#include "core/descriptors.h"

#define HM_KEEP_MAGIC	0x706b6d68U
#define HM_KEEP_VERSION	1

enum hm_keep_op { HM_KEEP_PUT, HM_KEEP_GET, HM_KEEP_DROP, HM_KEEP_NEXT };

/**
 * struct hm_keep_message - a request or an answer
 * @op: of a request; @err: of an answer, 0 or a negative errno
 * @nr: of lengths
 * @generation: HM_KEEP_NEXT: in: after which; else and out: of the block
 * The rest is as in struct hetmem_kept.
 */
struct hm_keep_message {
	uint32_t magic;
	uint32_t version;
	union {
		uint32_t op;
		int32_t err;
	};
	uint32_t nr;
	uint64_t bytes;
	uint64_t generation;
	uint32_t uid;
	uint32_t mode;
	uint32_t segments;
	uint32_t users;
	int32_t pid;
	uint32_t reserved;
	char name[HETMEM_KEEP_NAME];
	uint64_t lengths[HETMEM_KEEP_SEGMENTS];
};

#define HM_KEEP_HEADER	offsetof(struct hm_keep_message, lengths)

static inline size_t hm_keep_size(uint32_t nr)
{
	return HM_KEEP_HEADER + nr * sizeof(uint64_t);
}

/* Room for the descriptors of one message. */
union hm_keep_control {
	struct cmsghdr align;
	char room[CMSG_SPACE(HETMEM_KEEP_SEGMENTS * sizeof(int))];
};

/* 1 to 63 bytes of letters, digits and "._-/"; @name has HETMEM_KEEP_NAME bytes at most. */
static inline bool hm_keep_is_name(const char *name)
{
	const size_t len = strnlen(name, HETMEM_KEEP_NAME);

	return len && len < HETMEM_KEEP_NAME &&
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == len;
}

static inline bool hm_keep_is_mode(uint32_t mode)
{
	return mode == 0600 || mode == 0660 || mode == 0666;
}

/* Where the keeper of this user listens if nothing else is said. -1: the path is too long. */
static inline int hm_keep_address(const char *path, struct sockaddr_un *name)
{
	const char *dir = secure_getenv("XDG_RUNTIME_DIR");
	int len;

	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (!path)
		path = secure_getenv("HETMEM_KEEPER");
	if (path)
		len = snprintf(name->sun_path, sizeof(name->sun_path), "%s", path);
	else if (dir && *dir == '/')
		len = snprintf(name->sun_path, sizeof(name->sun_path), "%s/hetmem-keep", dir);
	else
		len = snprintf(name->sun_path, sizeof(name->sun_path), "/tmp/.hetmem-keep-%u",
			       (unsigned int)geteuid());
	return len > 0 && (size_t)len < sizeof(name->sun_path) ? 0 : -1;
}

#endif /* HETMEM_KEEP_PROTOCOL_H */
