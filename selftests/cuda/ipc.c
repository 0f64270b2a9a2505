// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ipc: two processes share memory by cuIpcGetMemHandle() and cuIpcOpenMemHandle(). The second
 * one is this program again ("peer"): it reads commands of a line each, and answers. "native"
 * runs without the interposer. What else asks the first one's socket, or answers in its place,
 * is garbage, stalls, floods, and lies.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include "cuda/ask.h"
#include "cuda/libcuda.h"
#include "cuda/program.h"
#include "lib/wait.h"

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream);

#define BLOCKS	3

struct peer {
	pid_t pid;
	FILE *to, *from;
};

static CUstream stream;

static struct peer begin_peer(const char *program, const char *how)
{
	struct peer peer = { 0 };
	int to[2], from[2];

	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		return peer;
	peer.pid = fork();
	if (!peer.pid) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		if (!strcmp(how, "native"))
			unsetenv("LD_PRELOAD");
		execl(program, program, how, (char *)NULL);
		_exit(9);
	}
	close(to[0]);
	close(from[1]);
	peer.to = fdopen(to[1], "w");
	peer.from = fdopen(from[0], "r");
	return peer;
}

/* Sends a command with a handle, and returns the number that the peer answers. */
static long ask_peer(struct peer *peer, const char *command, long number,
		     const struct hm_cuda_ipc_handle *handle)
{
	static const struct hm_cuda_ipc_handle none;
	const unsigned char *bytes = (const void *)(handle ? handle : &none);
	long answer = -9999;
	size_t i;

	fprintf(peer->to, "%s %ld ", command, number);
	for (i = 0; i < sizeof(*handle); i++)
		fprintf(peer->to, "%02x", bytes[i]);
	fprintf(peer->to, "\n");
	fflush(peer->to);
	if (fscanf(peer->from, "%ld", &answer) != 1)
		return -9998;
	return answer;
}

static int end_peer(struct peer *peer)
{
	int status = -1;

	fclose(peer->to);
	fclose(peer->from);
	waitpid(peer->pid, &status, 0);
	return status;
}

static bool is_filled(CUdeviceptr p, unsigned char value, size_t size)
{
	unsigned char *host = malloc(size);
	bool same = !cuMemcpyDtoHAsync_v2(host, p, size, stream) && !cuStreamSynchronize(stream);
	size_t i;

	for (i = 0; i < size && same; i++)
		same = host[i] == value;
	free(host);
	return same;
}

/* The peer. "open": the result; the pointer is @opened. */
static int serve_peer(void)
{
	struct hm_cuda_ipc_handle handle;
	CUdeviceptr opened = 0, base;
	char command[16], hex[200];
	size_t size, i;
	long number;

	if (!start() || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
		return 1;
	while (scanf("%15s %ld %199s", command, &number, hex) == 3) {
		long answer = -1;

		for (i = 0; i < sizeof(handle); i++)
			sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&handle.bytes[i]);
		if (!strcmp(command, "open")) {
			const CUdeviceptr before = opened;

			answer = cuIpcOpenMemHandle_v2(&opened, handle, number);
			if (!answer && before && before == opened)
				answer = -2;
		} else if (!strcmp(command, "size")) {
			answer = cuMemGetAddressRange_v2(&base, &size, opened + 1) ||
				base != opened ? -1 : (long)size;
		} else if (!strcmp(command, "whole")) {
			answer = !cuMemGetAddressRange_v2(&base, &size, opened) &&
				is_filled(opened, number, size);
		} else if (!strcmp(command, "fill")) {
			answer = cuMemGetAddressRange_v2(&base, &size, opened) ||
				cuMemsetD8Async(opened, number, size, stream) ||
				cuStreamSynchronize(stream);
		} else if (!strcmp(command, "free")) {
			answer = cuMemFree_v2(opened);
		} else if (!strcmp(command, "again")) {
			answer = cuIpcGetMemHandle(&handle, opened);
		} else if (!strcmp(command, "close")) {
			answer = cuIpcCloseMemHandle(opened);
		} else if (!strcmp(command, "forget")) {
			answer = opened = 0;
		} else if (!strcmp(command, "reset")) {
			answer = cuDevicePrimaryCtxRelease_v2(0) || !start();
		}
		printf("%ld\n", answer);
		fflush(stdout);
	}
	return 0;
}

static void shares(const char *program)
{
	static const size_t sizes[BLOCKS] = { 1000, MIB, 5 * MIB };
	struct hm_cuda_ipc_handle handle[BLOCKS], again;
	struct peer peer = begin_peer(program, "peer");
	CUdeviceptr p[BLOCKS], q;
	unsigned int capable = 0;
	size_t i;

	for (i = 0; i < BLOCKS; i++) {
		ok(!cuMemAlloc_v2(&p[i], sizes[i]) && !cuMemsetD8Async(p[i], i + 1, sizes[i], stream) &&
		   !cuStreamSynchronize(stream), "a block of %zu bytes", sizes[i]);
		ok(!cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
					  p[i]) && capable, "that can be shared");
		is(cuIpcGetMemHandle(&handle[i], p[i]), 0, "is shared");
		ok(!cuIpcGetMemHandle(&again, p[i] + 999) && !memcmp(&again, &handle[i], sizeof(again)),
		   "by one handle, from any of its addresses");
		is(cuIpcOpenMemHandle_v2(&q, handle[i], 1), CUDA_ERROR_INVALID_CONTEXT,
		   "its own process does not open it");
		is(ask_peer(&peer, "forget", 0, NULL), 0, "the peer begins");
		is(ask_peer(&peer, "open", 0, &handle[i]), CUDA_ERROR_INVALID_VALUE, "flags are checked");
		is(ask_peer(&peer, "open", 1, &handle[i]), 0, "the peer opens it");
		is(ask_peer(&peer, "size", 0, NULL), (long)sizes[i], "and sees its size alone");
		is(ask_peer(&peer, "whole", i + 1, NULL), 1, "and its contents");
		is(ask_peer(&peer, "fill", 77, NULL), 0, "which it changes");
		ok(is_filled(p[i], 77, sizes[i]), "for both");
		is(ask_peer(&peer, "free", 0, NULL), CUDA_ERROR_INVALID_VALUE, "it cannot free it");
		ok(ask_peer(&peer, "again", 0, NULL) != 0, "nor share it further");
		is(ask_peer(&peer, "open", 1, &handle[i]), -2, "opened again it is where it was");
		is(ask_peer(&peer, "close", 0, NULL), 0, "one close");
		is(ask_peer(&peer, "whole", 77, NULL), 1, "keeps it open");
		is(cuMemFree_v2(p[i]), 0, "it is freed here");
		is(ask_peer(&peer, "whole", 77, NULL), 1, "and is whole there");
		is(ask_peer(&peer, "close", 0, NULL), 0, "the last close");
		ok(ask_peer(&peer, "close", 0, NULL) != 0, "is the last one");
		is(ask_peer(&peer, "open", 1, &handle[i]), CUDA_ERROR_INVALID_HANDLE,
		   "a freed block is not opened");
	}
	ok(!cuMemAlloc_v2(&q, MIB) && !cuMemsetD8Async(q, 5, MIB, stream) &&
	   !cuStreamSynchronize(stream) && !cuIpcGetMemHandle(&again, q), "one more block");
	is(ask_peer(&peer, "open", 1, &again), 0, "is opened");
	is(ask_peer(&peer, "reset", 0, NULL), 0, "the peer's context ends");
	is(ask_peer(&peer, "size", 0, NULL), -1, "and what it had opened");
	ok(ask_peer(&peer, "close", 0, NULL) != 0, "which it cannot close");
	is(ask_peer(&peer, "forget", 0, NULL), 0, "with a context anew");
	is(ask_peer(&peer, "open", 1, &again), 0, "it is opened");
	is(ask_peer(&peer, "whole", 5, NULL), 1, "and whole");
	again.bytes[9] ^= 1;
	is(ask_peer(&peer, "open", 1, &again), CUDA_ERROR_INVALID_HANDLE, "another token opens nothing");
	again.bytes[0] ^= 1;
	ok(ask_peer(&peer, "open", 1, &again) > CUDA_ERROR_UNKNOWN, "another handle is the driver's");
	is(end_peer(&peer), 0, "the peer ends");
	is(cuMemFree_v2(q), 0, "it is freed");
}

/* Without the interposer the handle is the driver's to refuse. */
static void is_nothing_elsewhere(const char *program)
{
	struct peer peer = begin_peer(program, "native");
	struct hm_cuda_ipc_handle handle;
	CUdeviceptr p;

	ok(!cuMemAlloc_v2(&p, MIB) && !cuIpcGetMemHandle(&handle, p), "a shared block");
	ok(ask_peer(&peer, "open", 1, &handle) > CUDA_ERROR_UNKNOWN,
	   "a peer without it gets the driver's error");
	is(end_peer(&peer), 0, "the peer ends");
	is(cuMemFree_v2(p), 0, "it is freed");
}

static int connect_to(pid_t pid)
{
	const struct sockaddr_un name = hm_cuda_ask_name("", pid);
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (!connect(fd, (const struct sockaddr *)&name, sizeof(name)))
		return fd;
	close(fd);
	return -1;
}

/* Clients that never ask, or ask for what is not there: the peer is served. */
static void hostile_clients(const char *program)
{
	struct peer peer = begin_peer(program, "peer");
	struct hm_cuda_ask_memory ask = { .ask = {
		HM_CUDA_ASK_MAGIC, HM_CUDA_ASK_VERSION, HM_CUDA_ASK_MEMORY, 0,
	} };
	struct hm_cuda_ipc_handle handle;
	struct hm_cuda_memory memory;
	int stalled[200], i, wrong = 0;
	CUdeviceptr p;

	ok(!cuMemAlloc_v2(&p, MIB) && !cuMemsetD8Async(p, 9, MIB, stream) &&
	   !cuStreamSynchronize(stream) && !cuIpcGetMemHandle(&handle, p), "a shared block");
	for (i = 0; i < 200; i++)
		stalled[i] = connect_to(getpid());
	is(ask_peer(&peer, "open", 1, &handle), 0, "is opened beside 200 clients that stall");
	is(ask_peer(&peer, "whole", 9, NULL), 1, "whole");
	is(ask_peer(&peer, "close", 0, NULL), 0, "and closed");
	for (i = 0; i < 200; i++)
		close(stalled[i]);
	for (i = 0; i < 500; i++) {
		const int fd = connect_to(getpid());
		unsigned char garbage[64];
		size_t j, size = 1 + i % sizeof(garbage);

		for (j = 0; j < sizeof(garbage); j++)
			garbage[j] = i * 7 + j * 13;
		ask.token[i % HM_CUDA_TOKEN] = i;
		if (i % 2) {
			send(fd, garbage, size, MSG_NOSIGNAL);
		} else if (send(fd, &ask, sizeof(ask), MSG_NOSIGNAL) != sizeof(ask) ||
			   recv(fd, &memory, sizeof(memory), 0) != sizeof(memory) ||
			   memory.err != -ENOENT) {
			wrong++;
		}
		close(fd);
	}
	is(wrong, 0, "250 tokens open nothing, beside 250 times garbage");
	ask_peer(&peer, "forget", 0, NULL);
	is(ask_peer(&peer, "open", 1, &handle), 0, "the block is opened after it");
	is(end_peer(&peer), 0, "the peer ends");
	is(cuMemFree_v2(p), 0, "it is freed");
}

/* A process without the interposer that has a socket of that name, and answers wrongly. */
static void lie(int way, int ready)
{
	const struct sockaddr_un name = hm_cuda_ask_name("", getpid());
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct hm_cuda_memory memory = { HM_CUDA_ASK_MAGIC, 0, MIB, 2 * MIB };
	struct iovec iov = { &memory, sizeof(memory) };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { .header = {
		.cmsg_len = CMSG_LEN((way == 5 ? 2 : 1) * sizeof(int)),
		.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
	} };
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = CMSG_SPACE((way == 5 ? 2 : 1) * sizeof(int)),
	};
	int fds[2] = { fd, fd }, client;
	char byte;

	unlink(name.sun_path);
	if (bind(fd, (const struct sockaddr *)&name, sizeof(name)) || listen(fd, 4) ||
	    write(ready, "", 1) != 1)
		_exit(1);
	client = accept(fd, NULL, NULL);
	memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
	if (way == 0)
		message.msg_control = NULL, message.msg_controllen = 0;
	else if (way == 1)
		memory.magic = 1;
	else if (way == 2)
		memory.size = 3 * MIB;
	else if (way == 3)
		iov.iov_len = 3;
	else if (way == 4)
		memory.err = 7;
	/* 5: two descriptors. 6: one that is no memory. 7: no answer. */
	if (way < 7)
		sendmsg(client, &message, MSG_NOSIGNAL);
	/* Until the peer has gone. */
	while (read(client, &byte, 1) > 0)
		;
	unlink(name.sun_path);
	_exit(0);
}

/* Descriptors that the process @pid has. */
static int nr_fds(pid_t pid)
{
	char path[32];
	int nr = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	need(dir, "%s", path);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

static void hostile_servers(const char *program)
{
	struct peer peer = begin_peer(program, "peer");
	struct hm_cuda_ipc_handle handle;
	int way, before = 0;
	CUdeviceptr p;

	ok(!cuMemAlloc_v2(&p, MIB) && !cuIpcGetMemHandle(&handle, p), "a handle");
	for (way = 0; way < 8; way++) {
		int ready[2], status = -1;
		char byte;
		pid_t pid;
		long res;

		need(!pipe(ready), "a pipe");
		pid = fork();
		if (!pid)
			lie(way, ready[1]);
		need(read(ready[0], &byte, 1) == 1, "it listens");
		close(ready[0]);
		close(ready[1]);
		/* As struct content in lib/cuda/ipc.c: the PID follows the token. */
		memcpy(&handle.bytes[24], &pid, sizeof(pid));
		res = ask_peer(&peer, "open", 1, &handle);
		is(res, way < 6 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_MAP_FAILED,
		   "a wrong answer, %d, opens nothing", way);
		waitpid(pid, &status, 0);
		is(status, 0, "and the peer has gone from there");
		/* The first call opens what the library needs. */
		if (!way)
			before = nr_fds(peer.pid);
	}
	is(ask_peer(&peer, "open", 1, &handle), CUDA_ERROR_INVALID_HANDLE, "a process that has ended");
	is(nr_fds(peer.pid), before, "no descriptor of theirs is left");
	is(end_peer(&peer), 0, "the peer ends");
	is(cuMemFree_v2(p), 0, "it is freed");
}

/* A spec that cannot share refuses, and changes nothing. */
static void refuses(void)
{
	struct hm_cuda_ipc_handle handle = { "before" };
	unsigned int capable = 1;
	CUdeviceptr p;

	ok(!cuMemAlloc_v2(&p, 3 * MIB), "a block");
	cuIpcGetMemHandle(&handle, p);
	ok(!strcmp(handle.bytes, "before") && fake_last().args[1] == 1, "gets no handle");
	ok(!cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p) &&
	   !capable, "which can be asked for");
	ok(!cuMemsetD8Async(p, 1, 3 * MIB, stream) && is_filled(p, 1, 3 * MIB), "it works");
	is(cuMemFree_v2(p), 0, "it is freed");
}

int main(int argc, char **argv)
{
	if (argc > 1 && (!strcmp(argv[1], "peer") || !strcmp(argv[1], "native")))
		return serve_peer();
	need(start() && !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a context");
	if (argc > 1) {
		refuses();
		return tap_end();
	}
	shares(argv[0]);
	is_nothing_elsewhere(argv[0]);
	hostile_clients(argv[0]);
	hostile_servers(argv[0]);
	return tap_end();
}
