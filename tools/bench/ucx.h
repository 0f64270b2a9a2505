/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * As much of UCX's interface as `hetmem bench transport` calls. libucp is opened at run time, and
 * nothing of UCX is needed to build. UCX reads only the members of a structure that its field
 * mask names, so a structure here has these members at their offsets, and room for the rest.
 * selftests/t/transports.t compares offsets and values with UCX's own headers.
 */
#ifndef HETMEM_TOOLS_BENCH_UCX_H
#define HETMEM_TOOLS_BENCH_UCX_H

#include <stddef.h>
#include <stdint.h>

/* A status is 0, UCX_INPROGRESS, or an error below 0. A request is a pointer or an error. */
enum { UCX_INPROGRESS = 1, UCX_LAST_ERROR = -100 };
enum { UCX_TAG = 1 << 0, UCX_RMA = 1 << 1, UCX_STREAM = 1 << 5 };
enum { UCX_FEATURES = 1 << 0, UCX_REMOTE_ADDRESS = 1 << 0, UCX_FLAGS = 1 << 4, UCX_WAIT_ALL = 1 };
enum { UCX_MAP_ADDRESS = 1 << 0, UCX_MAP_LENGTH = 1 << 1 };

struct ucx_params {
	uint64_t mask, features;
	uint64_t rest[30];
};

struct ucx_worker_params {
	uint64_t mask;
	uint64_t rest[63];
};

struct ucx_ep_params {
	uint64_t mask;
	const void *address;
	uint64_t rest[30];
};

struct ucx_map_params {
	uint64_t mask;
	void *address;
	size_t length;
	uint64_t rest[29];
};

struct ucx_request {
	uint32_t mask, flags;
	uint64_t rest[31];
};

/* The functions, without the ucp_ before their names. */
#define UCX_CALLS(X)									\
	X(void, get_version, (unsigned int *, unsigned int *, unsigned int *))		\
	X(int, init_version, (unsigned int, unsigned int, const struct ucx_params *,	\
			      const void *, void **))					\
	X(int, worker_create, (void *, const struct ucx_worker_params *, void **))	\
	X(unsigned int, worker_progress, (void *))					\
	X(int, worker_get_address, (void *, void **, size_t *))				\
	X(void, worker_release_address, (void *, void *))				\
	X(int, ep_create, (void *, const struct ucx_ep_params *, void **))		\
	X(int, mem_map, (void *, const struct ucx_map_params *, void **))		\
	X(int, mem_unmap, (void *, void *))						\
	X(int, rkey_pack, (void *, void *, void **, size_t *))				\
	X(void, rkey_buffer_release, (void *))						\
	X(int, ep_rkey_unpack, (void *, const void *, void **))				\
	X(void, rkey_destroy, (void *))							\
	X(void *, put_nbx, (void *, const void *, size_t, uint64_t, void *,		\
			    const struct ucx_request *))				\
	X(void *, tag_send_nbx, (void *, const void *, size_t, uint64_t,		\
				 const struct ucx_request *))				\
	X(void *, tag_recv_nbx, (void *, void *, size_t, uint64_t, uint64_t,		\
				 const struct ucx_request *))				\
	X(void *, stream_send_nbx, (void *, const void *, size_t,			\
				    const struct ucx_request *))			\
	X(void *, stream_recv_nbx, (void *, void *, size_t, size_t *,			\
				    const struct ucx_request *))			\
	X(void *, ep_flush_nbx, (void *, const struct ucx_request *))			\
	X(int, request_check_status, (void *))						\
	X(void, request_free, (void *))

struct ucx {
#define X(type, name, args) type (*name) args;
	UCX_CALLS(X)
#undef X
	const char *(*status_string)(int);
};

#endif
