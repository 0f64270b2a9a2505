// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints from one process to another through the library: who may ask whom, by
 * which way it got hold of the other's file, and what it is told when the
 * other ends.
 */
#include <signal.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kernel/hetmem_fd.h"
#include "soft_driver.h"

#define MIB		((size_t)1 << 20)
#define DEVICE		HETMEM_LOC(HETMEM_DEVICE, 0)
#define ANY_HOST	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define OWNER		1000
#define OTHER		1001

enum role { ROOT, SAME_USER, OTHER_USER, ONLY_NICE, NR_ROLES };

static const char *const role_names[NR_ROLES] = {
	"root", "the same user", "another user", "another user with SYS_NICE",
};

/* At the same address in every process; the owner's is the one that counts. */
static char *memory;

static int set_user(uid_t uid)
{
	return setresgid(uid, uid, uid) || setresuid(uid, uid, uid) ?
		-errno : 0;
}

static int become(enum role role)
{
	uint64_t caps = 1ULL << CAP_SYS_NICE;
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2] = {
		{ .effective = caps, .permitted = caps },
	};

	switch (role) {
	case ROOT:
		return 0;
	case SAME_USER:
		return set_user(OWNER);
	case OTHER_USER:
		return set_user(OTHER);
	default:
		if (prctl(PR_SET_KEEPCAPS, 1) || set_user(OTHER) ||
		    syscall(SYS_capset, &head, data))
			return -errno;
		return 0;
	}
}

static uint64_t on_device(void)
{
	struct hetmem_run runs[64];
	uint64_t pages = 0;
	uintptr_t next;
	ssize_t n, i;

	n = hetmem_residency(hm, memory, MIB, runs, NULL, 64, &next);
	for (i = 0; i < n; i++)
		if (runs[i].location == DEVICE)
			pages += runs[i].end - runs[i].start;
	return pages / sysconf(_SC_PAGESIZE);
}

/*
 * The process that is asked: an ordinary user's. Each byte that comes is
 * answered with the number of pages on the device; the end is the end.
 */
static void be_owner(int sock, unsigned int flags)
{
	struct hetmem_executor_params params = { .size = sizeof(params),
						 .flags = flags };
	struct hetmem_executor *x;
	uint64_t pages;
	size_t i;
	char byte;

	if (hetmem_open(&hm, NULL) || hetmem_executor_open(hm, &params, &x))
		_exit(1);
	if (set_user(OWNER))
		_exit(2);
	/* Otherwise nobody but root could take a file from it. */
	prctl(PR_SET_DUMPABLE, 1);
	memset(memory, 0x5a, MIB);
	if (send_fd(sock, hetmem_executor_fd(x)))
		_exit(3);
	while (read(sock, &byte, 1) == 1) {
		pages = on_device();
		if (write(sock, &pages, sizeof(pages)) != sizeof(pages))
			_exit(4);
	}
	for (i = 0; i < MIB; i++)
		if (memory[i] != 0x5a)
			_exit(5);
	hetmem_executor_close(x);
	hetmem_close(hm);
	_exit(0);
}

struct owner {
	pid_t pid;
	int sock;
	int fd;
};

static struct owner start_owner(unsigned int flags)
{
	struct owner o;
	int sock[2];

	need(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock),
	     "a socket");
	o.pid = fork();
	if (!o.pid) {
		close(sock[0]);
		be_owner(sock[1], flags);
	}
	close(sock[1]);
	o.sock = sock[0];
	o.fd = receive_fd(o.sock);
	need(o.fd >= 0, "an owner that sends its file");
	return o;
}

static uint64_t owners_pages(const struct owner *o)
{
	uint64_t pages = UINT64_MAX;

	if (write(o->sock, "?", 1) != 1 ||
	    read(o->sock, &pages, sizeof(pages)) != sizeof(pages))
		return UINT64_MAX;
	return pages;
}

static void end_owner(const struct owner *o)
{
	int status = -1;

	close(o->sock);
	waitpid(o->pid, &status, 0);
	is(status, 0, "the owner ends well, contents and all");
	close(o->fd);
}

/* In a process of its own: what asking comes to, as an exit status. */
static int ask_as(enum role role, const struct owner *o, bool adopt,
		  uint32_t location)
{
	struct hetmem_hinted h = { .size = sizeof(h) };
	struct hetmem_peer *peer;
	int status = -1, err;
	pid_t pid = fork();

	if (!pid) {
		if (become(role))
			_exit(255);
		if (adopt)
			err = hetmem_peer_adopt(dup(o->fd), &peer);
		else
			err = hetmem_peer_open(o->pid, &peer);
		/* Apart from what the hint says. */
		if (err)
			_exit(128 - err);
		err = hetmem_hint(peer, (uintptr_t)memory, MIB, location, NULL, 10000,
				  &h);
		_exit(-err);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define NOT_OPENED(err)	(128 + (err))

static void who_may(unsigned int flags, const char *name,
		    const int (*want)[2])
{
	struct owner o = start_owner(flags | HETMEM_EXECUTOR_THREAD);
	const uint64_t all = MIB / sysconf(_SC_PAGESIZE);
	enum role role;
	int adopt, got;

	for (role = 0; role < NR_ROLES; role++) {
		for (adopt = 0; adopt < 2; adopt++) {
			got = ask_as(role, &o, adopt, DEVICE);
			is(got, want[role][adopt], "%s, %s, %s", name,
			   role_names[role], adopt ? "with a file it was given" :
			   "which takes the file");
			is(owners_pages(&o), got ? 0 : all, "which %s", got ?
			   "moves nothing" : "moves all");
			ask_as(ROOT, &o, true, ANY_HOST);
		}
	}
	end_owner(&o);
}

/* The file outlives its process where somebody has a copy. */
static void gone(void)
{
	struct owner o = start_owner(HETMEM_EXECUTOR_THREAD);
	struct hetmem_peer *peer, *none;
	int status;

	need(!hetmem_peer_open(o.pid, &peer), "a peer: %s",
	     hetmem_last_error());
	kill(o.pid, SIGKILL);
	waitpid(o.pid, &status, 0);
	is(hetmem_hint(peer, (uintptr_t)memory, MIB, DEVICE, NULL, 1000, NULL),
	   -ENXIO, "a process that has gone: %s", hetmem_last_error());
	is(hetmem_peer_open(o.pid, &none), -ESRCH, "is not found: %s",
	   hetmem_last_error());
	hetmem_peer_close(peer);
	close(o.sock);
	close(o.fd);
}

/* Nobody there runs the executor, so that the hint waits when it dies. */
static void dies(void)
{
	struct owner o = start_owner(0);
	struct hetmem_peer *peer;
	int status;
	pid_t pid;

	need(!hetmem_peer_open(o.pid, &peer), "a peer");
	pid = fork();
	if (!pid) {
		/* Its hint waits. */
		wait_until(thread_sleeps(getppid(), getppid()));
		kill(o.pid, SIGKILL);
		_exit(0);
	}
	is(hetmem_hint(peer, (uintptr_t)memory, MIB, DEVICE, NULL, 60000, NULL),
	   -EOWNERDEAD, "a process that dies: %s", hetmem_last_error());
	waitpid(pid, &status, 0);
	waitpid(o.pid, &status, 0);
	hetmem_peer_close(peer);
	close(o.sock);
	close(o.fd);
}

/* A child has its parent's file, and a hint to it must not reach the parent. */
static void inherited(void)
{
	struct hetmem_executor_params params = {
		.size = sizeof(params), .flags = HETMEM_EXECUTOR_THREAD,
	};
	struct hetmem_executor *x;
	struct hetmem_peer *peer;
	int status, hold[2];
	pid_t pid;
	char byte;

	need(!hetmem_open(&hm, NULL) && !hetmem_executor_open(hm, &params, &x),
	     "an executor");
	need(!pipe(hold), "a pipe");
	pid = fork();
	if (!pid) {
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	is(hetmem_peer_open(pid, &peer), -ENXIO, "a child has no file of its own: %s",
	   hetmem_last_error());
	close(hold[1]);
	waitpid(pid, &status, 0);
	is(status, 0, "it ends");
	hetmem_executor_close(x);
	hetmem_close(hm);
}

int main(void)
{
	/* { takes the file, was given it } */
	static const int closed[NR_ROLES][2] = {
		{ 0, 0 },
		{ EPERM, EPERM },
		{ NOT_OPENED(EPERM), EPERM },
		{ NOT_OPENED(EPERM), 0 },
	};
	static const int allowed[NR_ROLES][2] = {
		{ 0, 0 },
		{ 0, 0 },
		{ NOT_OPENED(EPERM), 0 },
		{ NOT_OPENED(EPERM), 0 },
	};

	need(!geteuid(), "root");
	memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory != MAP_FAILED, "memory");
	setenv("HETMEM_DRIVER", "soft", 1);
	who_may(0, "hints not allowed", closed);
	who_may(HETMEM_EXECUTOR_ALLOW, "allowed", allowed);
	gone();
	dies();
	inherited();
	return tap_end();
}
