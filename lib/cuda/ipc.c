// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory of cuMemAlloc() that processes share by cuIpcGetMemHandle() and cuIpcOpenMemHandle().
 *
 * The driver's own handle would be of the memory around a block. A handle of ours has the PID of
 * the process that shares, and a random token. The process that opens it asks the first one's
 * socket (listen.c) for a descriptor of the block's memory, and maps that. Only a process of the
 * same user that is under this library, too, can open it. For any other the handle is nothing
 * that the driver knows.
 *
 * A block can be shared if its memory is no other block's: in a pool over vmm(export=fd). From
 * then on it does not move. After its free the memory stays until the last process has closed
 * it; the handle opens nothing any more.
 *
 * As with the driver's handles, the processes agree on when the contents are complete: by an
 * event, or by waiting for the stream first. A close waits for all earlier work of its context.
 *
 * Locks: @lock covers both trees. hetmem_export() is called with it, so that no block is freed
 * during the call. Nothing waits with it. A forked child never takes it.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/descriptors.h"
#include "cuda/ask.h"
#include "cuda/ipc.h"
#include "cuda/listen.h"
#include "cuda/prototypes.h"

/* The first bytes of a handle. The last ones are 0. */
static const char magic[8] = "hetmem\1";

struct content {
	char magic[sizeof(magic)];
	unsigned char token[HM_CUDA_TOKEN];
	int32_t pid;
	char zero[64 - sizeof(magic) - HM_CUDA_TOKEN - sizeof(int32_t)];
};

_Static_assert(sizeof(struct content) == sizeof(struct hm_cuda_ipc_handle), "a handle");

/* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: the only value that the driver takes. */
#define ONLY_FLAG	1U

/* How long a process that shares memory may take to answer. */
#define WAIT_NS		5000000000ULL

/**
 * struct shared - a block that this process shares
 * @range: as of the block
 */
struct shared {
	struct hm_range range;
	CUdevice device;
	unsigned char token[HM_CUDA_TOKEN];
};

/**
 * struct opened - a block of another process
 * @range: as of the block here
 * @refs: opens without a close
 */
struct opened {
	struct hm_range range;
	struct hm_cuda_device *device;
	struct content content;
	unsigned int refs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *shares;
static void *opens;

/* The process that shares. */

bool hm_cuda_ipc_can_share(const struct hm_cuda_block *block)
{
	struct hm_cuda_device *d = hm_cuda_open_device(block->device);

	/* It says how many descriptors there are, and exports nothing. */
	return block->kind == HM_CUDA_SERVED && d && hm_cuda_is_listening() &&
		hetmem_export(d->resource, (void *)block->range.start, NULL, NULL, 0) == -ENOSPC;
}

/* Returns a descriptor, or a negative errno. The caller holds the lock. */
static int export(CUdevice device, uintptr_t ptr, uint64_t *length)
{
	struct hm_cuda_device *d = hm_cuda_open_device(device);
	struct hetmem_segment segment;
	ssize_t n;
	int fd;

	if (!d)
		return -ENOENT;
	n = hetmem_export(d->resource, (void *)ptr, &fd, &segment, 1);
	*length = segment.length;
	return n == 1 ? fd : n < 0 ? (int)n : -EOPNOTSUPP;
}

/* Shares the block. Returns NULL and an error in *@err if that fails. The caller holds the lock. */
static struct shared *share(const struct hm_cuda_block *block, int *err)
{
	struct shared *s = (void *)hm_range_find(&shares, block->range.start, 1);
	uint64_t length;
	int fd;

	if (s)
		return s;
	s = calloc(1, sizeof(*s));
	*err = s ? 0 : -ENOMEM;
	if (s && getrandom(s->token, sizeof(s->token), 0) != sizeof(s->token))
		*err = -EIO;
	/* The first export: the block does not move from here on. */
	fd = *err ? *err : export(block->device, block->range.start, &length);
	if (fd < 0) {
		*err = fd;
		free(s);
		return NULL;
	}
	close(fd);
	s->range = block->range;
	s->device = block->device;
	hm_range_insert(&shares, &s->range);
	return s;
}

static void say_why(int err)
{
	static bool told;

	if (__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
		return;
	if (err == -EOPNOTSUPP)
		hm_cuda_say("cuIpcGetMemHandle: blocks of this spec have memory of other blocks beside them; take 'pool(vmm(export=fd))', or run with '--device-set ipc=on'");
	else if (err == -ENOTCONN)
		hm_cuda_say("cuIpcGetMemHandle: no socket could be made in /tmp; run with '--device-set ipc=on'");
	else
		hm_cuda_say("cuIpcGetMemHandle: %s", hetmem_last_error());
}

CUresult HM_CUDA_EXPORT cuIpcGetMemHandle(struct hm_cuda_ipc_handle *handle, CUdeviceptr ptr)
{
	struct content content = { .pid = getpid() };
	struct hm_cuda_block block;
	struct shared *s = NULL;
	int err = -ENOTCONN;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuIpcGetMemHandle)(handle, ptr);
	HM_CUDA_COUNT(cuIpcGetMemHandle);
	if (hm_cuda_is_child() || !hm_cuda_block_find(ptr, &block) ||
	    block.kind == HM_CUDA_CHARGED)
		return HM_CUDA_NEXT(cuIpcGetMemHandle)(handle, ptr);
	if (!handle || block.kind != HM_CUDA_SERVED)
		return HM_CUDA_NEXT(cuIpcGetMemHandle)(handle, HM_CUDA_NO_ADDRESS);
	memcpy(content.magic, magic, sizeof(magic));
	pthread_mutex_lock(&lock);
	if (hm_cuda_is_listening())
		s = share(&block, &err);
	if (s)
		memcpy(content.token, s->token, sizeof(s->token));
	pthread_mutex_unlock(&lock);
	if (!s) {
		say_why(err);
		return err == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY :
			HM_CUDA_NEXT(cuIpcGetMemHandle)(handle, HM_CUDA_NO_ADDRESS);
	}
	memcpy(handle, &content, sizeof(content));
	return CUDA_SUCCESS;
}

struct search {
	const unsigned char *token;
	struct shared *found;
};

static void compare(struct hm_range *range, void *arg)
{
	struct shared *s = (void *)range;
	struct search *search = arg;

	if (!memcmp(s->token, search->token, sizeof(s->token)))
		search->found = s;
}

int hm_cuda_ipc_export(const unsigned char *token, struct hm_cuda_memory *memory)
{
	struct search search = { .token = token };
	int fd = -ENOENT;

	pthread_mutex_lock(&lock);
	hm_range_walk(&shares, compare, &search);
	if (search.found) {
		memory->size = search.found->range.end - search.found->range.start;
		fd = export(search.found->device, search.found->range.start, &memory->length);
	}
	pthread_mutex_unlock(&lock);
	memory->err = fd < 0 ? fd : 0;
	return fd < 0 ? -1 : fd;
}

/* The caller holds the lock. */
static void forget(struct hm_range *range)
{
	hm_range_erase(&shares, range);
	free(range);
}

void hm_cuda_ipc_forget(CUdeviceptr ptr)
{
	struct hm_range *found;

	if (!__atomic_load_n(&shares, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&lock);
	found = hm_range_find(&shares, ptr, 1);
	if (found)
		forget(found);
	pthread_mutex_unlock(&lock);
}

/* The process that opens. */

static bool is_ours(const struct content *c)
{
	static const char zero[sizeof(c->zero)];

	return !memcmp(c->magic, magic, sizeof(magic)) && !memcmp(c->zero, zero, sizeof(zero));
}

/* Connects and sends the request, as soon as there is room. */
static int ask_there(int fd, const struct content *c, uint64_t deadline)
{
	const struct sockaddr_un name = hm_cuda_ask_name("", c->pid);
	struct hm_cuda_ask_memory ask = { .ask = {
		HM_CUDA_ASK_MAGIC, HM_CUDA_ASK_VERSION, HM_CUDA_ASK_MEMORY, 0,
	} };
	struct ucred who;
	socklen_t len = sizeof(who);

	while (connect(fd, (const struct sockaddr *)&name, sizeof(name))) {
		if (errno != EAGAIN && errno != EINTR)
			return -ENOENT;
		if (hm_now() >= deadline)
			return -ETIMEDOUT;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	/* Another user could have made a socket of that name. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || who.uid != geteuid() ||
	    who.pid != c->pid)
		return -ENOENT;
	memcpy(ask.token, c->token, sizeof(ask.token));
	return send(fd, &ask, sizeof(ask), MSG_NOSIGNAL) == sizeof(ask) ? 0 : -ENOENT;
}

/* Returns the descriptor that came, or a negative errno. */
static int receive(int fd, struct hm_cuda_memory *memory, uint64_t deadline)
{
	struct pollfd polled = { fd, POLLIN, 0 };
	struct iovec iov = { memory, sizeof(*memory) };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof(control),
	};
	uint32_t nr = 0;
	int64_t ms;
	ssize_t n;
	int got = -1;

	while ((ms = (int64_t)(deadline - hm_now()) / 1000000) > 0 && poll(&polled, 1, ms) < 1)
		;
	if (ms <= 0)
		return -ETIMEDOUT;
	n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n >= 0)
		nr = hm_descriptors_detach(&message, &got, 1);
	if (nr == 1 && n == sizeof(*memory) && memory->magic == HM_CUDA_ASK_MAGIC && !memory->err &&
	    memory->size && memory->size <= memory->length)
		return got;
	if (nr)
		close(got);
	return n == sizeof(*memory) && memory->err < 0 ? memory->err : -ENOENT;
}

/* Asks the process that shares. Waits at most WAIT_NS. */
static int fetch(const struct content *c, struct hm_cuda_memory *memory)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const uint64_t deadline = hm_now() + WAIT_NS;
	int err = fd < 0 ? -ENOMEM : ask_there(fd, c, deadline);

	if (!err)
		err = receive(fd, memory, deadline);
	if (fd >= 0)
		close(fd);
	return err;
}

struct look {
	const struct hm_cuda_device *device;
	const struct content *content;
	struct opened *found;
};

static void look(struct hm_range *range, void *arg)
{
	struct opened *o = (void *)range;
	struct look *l = arg;

	if (o->device == l->device && !memcmp(&o->content, l->content, sizeof(o->content)))
		l->found = o;
}

/* Opens a block again that is open already. The caller holds the lock. */
static bool open_again(const struct hm_cuda_device *d, const struct content *c, CUdeviceptr *ptr)
{
	struct look l = { .device = d, .content = c };

	hm_range_walk(&opens, look, &l);
	if (!l.found)
		return false;
	l.found->refs++;
	*ptr = l.found->range.start;
	return true;
}

/* Adds the block at @p. False: no host memory. */
static bool add(struct hm_cuda_device *d, const struct content *c, uintptr_t p, size_t size)
{
	const struct hm_cuda_block block = {
		.range = { p, p + size }, .kind = HM_CUDA_OPENED, .device = d->handle, .ctx = d->ctx,
	};
	struct opened *o = calloc(1, sizeof(*o));

	if (!o || !hm_cuda_block_add(&block)) {
		free(o);
		return false;
	}
	*o = (struct opened){ .range = block.range, .device = d, .content = *c, .refs = 1 };
	hm_range_insert(&opens, &o->range);
	return true;
}

static CUresult result_of(const struct content *c, int err)
{
	if (err == -ENOMEM)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (err == -ENOENT)
		return CUDA_ERROR_INVALID_HANDLE;
	hm_cuda_say("cuIpcOpenMemHandle: process %d: %s", c->pid,
		    err == -ETIMEDOUT ? "no answer within 5 s" :
		    err == -EBUSY ? "it sleeps" : hetmem_last_error());
	return CUDA_ERROR_MAP_FAILED;
}

static CUresult open_ours(struct hm_cuda_device *d, const struct content *c, CUdeviceptr *ptr)
{
	struct hm_cuda_memory memory = { 0 };
	struct hetmem_segment segment = { 0 };
	bool there;
	void *p;
	int err, fd;

	pthread_mutex_lock(&lock);
	there = open_again(d, c, ptr);
	pthread_mutex_unlock(&lock);
	if (there)
		return CUDA_SUCCESS;
	fd = fetch(c, &memory);
	if (fd < 0)
		return result_of(c, fd);
	segment.length = memory.length;
	err = hetmem_import(d->hm, hm_cuda_ordinal(d), &fd, &segment, 1, &p);
	close(fd);
	if (err)
		return result_of(c, err);
	/* Another thread can have opened it in between. */
	pthread_mutex_lock(&lock);
	there = open_again(d, c, ptr);
	if (!there && !add(d, c, (uintptr_t)p, memory.size))
		err = -ENOMEM;
	pthread_mutex_unlock(&lock);
	if (there || err)
		hetmem_import_close(d->hm, p);
	else
		*ptr = (uintptr_t)p;
	return err ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/*
 * Opens a handle of ours. Sets *@passed if the driver has to answer: the handle is not ours, or
 * this process cannot open it.
 */
static CUresult serve_open(CUdeviceptr *ptr, const struct hm_cuda_ipc_handle *handle,
			   unsigned int flags, bool *passed)
{
	struct hm_cuda_device *d;
	struct content c;
	CUresult res;

	memcpy(&c, handle, sizeof(c));
	*passed = !is_ours(&c) || hm_cuda_is_child();
	if (*passed)
		return CUDA_SUCCESS;
	if (!ptr || flags != ONLY_FLAG)
		return CUDA_ERROR_INVALID_VALUE;
	res = hm_cuda_probe_alloc();
	if (res)
		return res;
	/* The driver refuses handles of the same process, too. */
	if (c.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	d = hm_cuda_device(hm_cuda_current(), &res);
	*passed = !d && !res;
	return d ? open_ours(d, &c, ptr) : res;
}

#define OPEN(name)								\
CUresult HM_CUDA_EXPORT name(CUdeviceptr *ptr, struct hm_cuda_ipc_handle handle,	\
			     unsigned int flags)				\
{										\
	CUresult res;								\
	bool passed;								\
										\
	if (!hm_cuda_is_active())						\
		return HM_CUDA_NEXT(name)(ptr, handle, flags);			\
	HM_CUDA_COUNT(name);							\
	res = serve_open(ptr, &handle, flags, &passed);				\
	return passed ? HM_CUDA_NEXT(name)(ptr, handle, flags) : res;		\
}

OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

/* Puts a block back that could not be closed. The caller holds the lock. */
static void put_back(struct opened *o, const struct hm_cuda_block *block)
{
	o->refs = 1;
	hm_range_insert(&opens, &o->range);
	hm_cuda_block_put(block);
}

/* The last close of a block, which is in no tree any more. */
static CUresult close_last(struct opened *o)
{
	struct hm_cuda_block block;
	CUresult res;

	if (!hm_cuda_block_take(o->range.start, 1U << HM_CUDA_OPENED, &block)) {
		free(o);
		return CUDA_ERROR_INVALID_VALUE;
	}
	res = hm_cuda_wait_for_work(block.ctx);
	if (res) {
		pthread_mutex_lock(&lock);
		put_back(o, &block);
		pthread_mutex_unlock(&lock);
		return res;
	}
	/* An error: the addresses stay, and are nobody's. */
	if (hetmem_import_close(o->device->hm, (void *)o->range.start))
		res = CUDA_ERROR_UNKNOWN;
	free(o);
	return res;
}

CUresult HM_CUDA_EXPORT cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct opened *o = NULL;
	bool found;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuIpcCloseMemHandle)(ptr);
	HM_CUDA_COUNT(cuIpcCloseMemHandle);
	if (hm_cuda_is_child())
		return HM_CUDA_NEXT(cuIpcCloseMemHandle)(ptr);
	pthread_mutex_lock(&lock);
	o = (void *)hm_range_find(&opens, ptr, 1);
	found = o && o->range.start == ptr;
	pthread_mutex_unlock(&lock);
	if (!found)
		return HM_CUDA_NEXT(cuIpcCloseMemHandle)(ptr);
	res = hm_cuda_probe_alloc();
	if (res)
		return res;
	pthread_mutex_lock(&lock);
	o = (void *)hm_range_find(&opens, ptr, 1);
	found = o && o->range.start == ptr;
	if (found && --o->refs)
		o = NULL;
	else if (found)
		hm_range_erase(&opens, &o->range);
	pthread_mutex_unlock(&lock);
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	return o ? close_last(o) : CUDA_SUCCESS;
}

struct ends {
	CUdevice device;
	struct hm_range *share;
	struct opened *opened;
};

static void find_share(struct hm_range *range, void *arg)
{
	struct ends *e = arg;

	if (((struct shared *)range)->device == e->device)
		e->share = range;
}

static void find_opened(struct hm_range *range, void *arg)
{
	struct opened *o = (void *)range;
	struct ends *e = arg;

	if (o->device->handle == e->device)
		e->opened = o;
}

void hm_cuda_ipc_end(CUdevice device)
{
	struct ends e = { .device = device };

	for (;;) {
		e.share = NULL;
		e.opened = NULL;
		pthread_mutex_lock(&lock);
		hm_range_walk(&shares, find_share, &e);
		hm_range_walk(&opens, find_opened, &e);
		if (e.share)
			forget(e.share);
		if (e.opened)
			hm_range_erase(&opens, &e.opened->range);
		pthread_mutex_unlock(&lock);
		if (e.opened)
			hetmem_import_close(e.opened->device->hm, (void *)e.opened->range.start);
		free(e.opened);
		if (!e.share && !e.opened)
			return;
	}
}
