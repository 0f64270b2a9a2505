/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The messages to a process under libhetmem-cuda.so, of 'hetmem sleep --served' and 'hetmem
 * wake', and of a process that opens shared memory: one request and one answer a connection.
 *
 * The process listens on a socket in /tmp, of mode 0600. Both ends look at SO_PEERCRED: the
 * process answers its own user and root only, and the other accepts answers only of the
 * process that it asked.
 */
#ifndef HETMEM_CUDA_ASK_H
#define HETMEM_CUDA_ASK_H

#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define HM_CUDA_ASK_MAGIC	0x6b736d68U
#define HM_CUDA_ASK_VERSION	1
/* The longest wait that a request can name. */
#define HM_CUDA_ASK_WAIT_MS	600000

enum hm_cuda_ask_op { HM_CUDA_ASK_STATE, HM_CUDA_ASK_SLEEP, HM_CUDA_ASK_WAKE, HM_CUDA_ASK_MEMORY };

/**
 * struct hm_cuda_ask - a request
 * @op: enum hm_cuda_ask_op
 * @wait_ms: how long calls in flight and the work of the GPUs may take
 */
struct hm_cuda_ask {
	uint32_t magic;
	uint32_t version;
	uint32_t op;
	uint32_t wait_ms;
};

#define HM_CUDA_TOKEN	16

/* HM_CUDA_ASK_MEMORY: only of the same user. @token: of the handle. */
struct hm_cuda_ask_memory {
	struct hm_cuda_ask ask;
	unsigned char token[HM_CUDA_TOKEN];
};

/**
 * struct hm_cuda_memory - an answer, and a descriptor with it if there is no error
 * @err: 0, or a negative errno; -ENOENT: the block was freed
 * @size: bytes of the block
 * @length: bytes of the memory behind it
 */
struct hm_cuda_memory {
	uint32_t magic;
	int32_t err;
	uint64_t size;
	uint64_t length;
};

/**
 * struct hm_cuda_answer - an answer
 * @err: 0, or a negative errno; @text has the reason then
 * @asleep: whether the process sleeps now
 * @moved: bytes of device memory that sleep gives back
 * @stays: bytes of device memory that are known to stay
 */
struct hm_cuda_answer {
	uint32_t magic;
	int32_t err;
	uint32_t asleep;
	uint32_t reserved;
	uint64_t moved;
	uint64_t stays;
	char text[256];
};

/*
 * The socket of the process @pid, as its own PID namespace counts. @root: "", or the root of
 * that process.
 */
static inline struct sockaddr_un hm_cuda_ask_name(const char *root, pid_t pid)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	snprintf(name.sun_path, sizeof(name.sun_path), "%s/tmp/.hetmem-cuda-%d", root, (int)pid);
	return name;
}

#endif /* HETMEM_CUDA_ASK_H */
