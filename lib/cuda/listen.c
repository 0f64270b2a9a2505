// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The thread that other processes ask, see ask.h: for a sleep or a wake (sleep.c), or for shared
 * memory (ipc.c). All signals are blocked in it.
 *
 * It carries out one request at a time. It does not wait for a client: up to CLIENTS can be
 * connected without having asked. A further client takes the place of the oldest one, and none
 * has longer than PATIENCE_NS.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/descriptors.h"
#include "cuda/ask.h"
#include "cuda/cuda.h"
#include "cuda/ipc.h"
#include "cuda/listen.h"
#include "cuda/sleep.h"

#define CLIENTS		64
#define PATIENCE_NS	5000000000ULL

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The process that made the socket, and the socket. They are written before there is a thread. */
static pid_t begun;
static int listener = -1;
static struct stat socket_is;

void hm_cuda_listen_remove(void)
{
	const struct sockaddr_un name = hm_cuda_ask_name("", getpid());

	unlink(name.sun_path);
}

static void answer_memory(int client, const struct hm_cuda_ask_memory *ask)
{
	struct hm_cuda_memory memory = { .magic = HM_CUDA_ASK_MAGIC };
	const int fd = hm_cuda_ipc_export(ask->token, &memory);
	struct iovec iov = { &memory, sizeof(memory) };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0)
		hm_descriptors_attach(&message, &control, &fd, 1);
	sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (fd >= 0)
		close(fd);
}

/* A client that has sent something, or has gone. */
static void answer_one(int client)
{
	struct hm_cuda_answer answer = { 0 };
	struct hm_cuda_ask_memory ask;
	struct ucred who;
	socklen_t len = sizeof(who);
	ssize_t n;

	if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &len) ||
	    (who.uid && who.uid != geteuid()))
		return;
	/* A packet: it comes whole, or another size is refused. */
	n = recv(client, &ask, sizeof(ask), MSG_TRUNC | MSG_DONTWAIT);
	if (n == sizeof(ask) && ask.ask.magic == HM_CUDA_ASK_MAGIC &&
	    ask.ask.version == HM_CUDA_ASK_VERSION && ask.ask.op == HM_CUDA_ASK_MEMORY &&
	    who.uid == geteuid()) {
		answer_memory(client, &ask);
	} else if (n == sizeof(ask.ask)) {
		hm_cuda_sleep_obey(&ask.ask, &answer);
		send(client, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}

/* A program that closes all its descriptors can open its own of that number. */
static bool is_listener(void)
{
	struct stat st;

	return !fstat(listener, &st) && st.st_dev == socket_is.st_dev &&
		st.st_ino == socket_is.st_ino;
}

/* Oldest first. [0] is the listener. */
static struct pollfd polled[1 + CLIENTS];
static uint64_t deadlines[1 + CLIENTS];
static nfds_t nr_polled = 1;

static void drop(nfds_t i)
{
	close(polled[i].fd);
	nr_polled--;
	memmove(&polled[i], &polled[i + 1], (nr_polled - i) * sizeof(polled[0]));
	memmove(&deadlines[i], &deadlines[i + 1], (nr_polled - i) * sizeof(deadlines[0]));
}

/* False: the socket has ended. */
static bool accept_one(void)
{
	const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0 && errno == EINVAL)
		return false;
	if (fd < 0) {
		/* No descriptors, for example: a request waits until there are some. */
		nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
		return true;
	}
	if (nr_polled > CLIENTS)
		drop(1);
	polled[nr_polled] = (struct pollfd){ fd, POLLIN, 0 };
	deadlines[nr_polled++] = hm_now() + PATIENCE_NS;
	return true;
}

static void *answer_all(void *arg)
{
	uint64_t now;
	nfds_t i;

	(void)arg;
	polled[0] = (struct pollfd){ listener, POLLIN, 0 };
	for (;;) {
		now = hm_now();
		while (nr_polled > 1 && deadlines[1] <= now)
			drop(1);
		if (poll(polled, nr_polled, nr_polled > 1 ? (int)((deadlines[1] - now) / 1000000 + 1) : -1) < 0)
			continue;
		if (!is_listener())
			return NULL;
		for (i = nr_polled - 1; i; i--) {
			if (!polled[i].revents)
				continue;
			answer_one(polled[i].fd);
			drop(i);
		}
		if (polled[0].revents && !accept_one())
			return NULL;
	}
}

static int listen_there(void)
{
	const struct sockaddr_un name = hm_cuda_ask_name("", getpid());
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	/* The mode of the file that bind() makes. Another process of this number left one. */
	unlink(name.sun_path);
	if (!fchmod(fd, 0600) && !bind(fd, (const struct sockaddr *)&name, sizeof(name)) &&
	    !listen(fd, 16) && !fstat(fd, &socket_is))
		return fd;
	close(fd);
	return -1;
}

void hm_cuda_listen_begin(void)
{
	sigset_t all, old;
	pthread_t thread;

	if (__atomic_load_n(&begun, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&lock);
	if (!begun) {
		listener = listen_there();
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		if (listener >= 0 && !pthread_create(&thread, NULL, answer_all, NULL))
			pthread_detach(thread);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		__atomic_store_n(&begun, getpid(), __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
}

bool hm_cuda_is_listening(void)
{
	return __atomic_load_n(&begun, __ATOMIC_ACQUIRE) == getpid() && listener >= 0;
}

void hm_cuda_listen_end(void)
{
	if (hm_cuda_is_listening())
		hm_cuda_sleep_end();
}
