// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The keeper: blocks outlive the process that made them, and are mapped by name; whoever may not
 * have them does not get them; a client that lies, stalls or sends rubbish is disconnected, and
 * the others are served.
 *
 * The keeper, each worker and each other user is a child process. A child's exit status is the
 * line of its first failed check, modulo 251, plus 1; 0: all is good.
 */
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <hetmem/keep.h>

#include "soft_driver.h"
#include "keep/protocol.h"

int cmd_keep(int argc, char **argv);

#define MIB	((size_t)1 << 20)
#define BLOCKS	100
#define HOST	HETMEM_STREAM_HOST

/* In a child. */
#define check(cond) do {						\
	if (!(cond)) {							\
		printf("# line %d: %s: %s\n", __LINE__, #cond, hetmem_last_error());	\
		fflush(stdout);						\
		_exit(__LINE__ % 251 + 1);				\
	}								\
} while (0)

/* The process whose calloc() fails, 0: none. */
static pid_t *out_of_memory, keeper;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
	if (out_of_memory && __atomic_load_n(out_of_memory, __ATOMIC_ACQUIRE) == getpid())
		return NULL;
	return __real_calloc(n, size);
}

static char dir[] = "/tmp/hetmem-keep-XXXXXX", path[64];

/* The command with @args after "keep", in a child with the descriptors and the user given. */
static pid_t command(const char *const *args, rlim_t descriptors, uid_t uid)
{
	const struct rlimit limit = { descriptors, descriptors };
	char *argv[12] = { (char *)"keep" };
	pid_t pid;
	int argc = 1, null;

	fflush(stdout);
	pid = fork();
	if (pid)
		return pid;
	while (args[argc - 1]) {
		argv[argc] = (char *)args[argc - 1];
		argc++;
	}
	null = open("/dev/null", O_WRONLY);
	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	if ((descriptors && setrlimit(RLIMIT_NOFILE, &limit)) || (uid && setreuid(uid, uid)))
		_exit(99);
	_exit(cmd_keep(argc, argv));
}

static int status_of(pid_t pid)
{
	int status = -1;

	need(waitpid(pid, &status, 0) == pid, "a child");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool is_up(void)
{
	struct hetmem_keeper *k;

	if (hetmem_keeper_open(path, &k))
		return false;
	hetmem_keeper_close(k);
	return true;
}

static pid_t start(const char *const *args, rlim_t descriptors)
{
	const pid_t pid = command(args, descriptors, 0);

	need(pid > 0 && wait_until(is_up()), "a keeper: %s", hetmem_last_error());
	return pid;
}

static void stop(pid_t pid)
{
	kill(pid, SIGTERM);
	is(status_of(pid), 0, "the keeper ends");
	ok(access(path, F_OK), "and leaves no socket");
}

static pid_t start_plain(void)
{
	return start((const char *const[]){ "--socket", path, NULL }, 0);
}

/* What @fn finds in a child process. */
static int in_child(void (*fn)(void))
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		fn();
		_exit(0);
	}
	return status_of(pid);
}

static struct hetmem_keeper *join(void)
{
	struct hetmem_keeper *k = NULL;

	check(!hetmem_keeper_open(path, &k));
	return k;
}

/* Workers. */

static void hand_over(void)
{
	struct hetmem_keeper *k = join();
	struct hetmem_resource *res;
	char name[32];
	void *p;
	int i;

	open_soft("");
	check(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &res));
	for (i = 0; i < BLOCKS; i++) {
		check(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p));
		memset(p, i + 1, 2 * MIB);
		snprintf(name, sizeof(name), "model/layer.%d", i);
		check(!hetmem_keep(k, res, p, name, 0600));
	}
	check(hetmem_keep(k, res, p, "model/layer.7", 0600) == -EEXIST);
	check(hetmem_keep(k, res, p, "mode", 0640) == -EINVAL);
	check(hetmem_keep(k, res, p, "", 0600) == -EINVAL);
	check(hetmem_keep(k, res, p, "a b", 0600) == -EINVAL);
	check(hetmem_keep(k, res, p, "0123456789012345678901234567890123456789012345678901234567890123",
			  0600) == -EINVAL);
	check(hetmem_keep(k, res, &k, "none", 0600) == -EINVAL);
	/* It is killed with all of its memory. */
	kill(getpid(), SIGKILL);
}

static void map_all(void)
{
	struct hetmem_kept kept = { .size = sizeof(kept) };
	struct hetmem_keeper *k = join();
	struct timespec from, to;
	unsigned char *p[BLOCKS];
	size_t bytes, n = 0;
	char name[32];
	void *q;
	int i;

	open_soft("");
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (i = 0; i < BLOCKS; i++) {
		snprintf(name, sizeof(name), "model/layer.%d", i);
		check(!hetmem_kept_import(k, hm, 0, name, (void **)&p[i], &bytes) && bytes == 2 * MIB);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("# %d blocks are mapped in %.1f ms\n", BLOCKS,
	       (to.tv_sec - from.tv_sec) * 1e3 + (to.tv_nsec - from.tv_nsec) / 1e6);
	fflush(stdout);
	for (i = 0; i < BLOCKS; i++)
		check(all_bytes(p[i], i + 1, 2 * MIB));
	memset(p[3], 77, 2 * MIB);
	while (!hetmem_kept_next(k, kept.generation, &kept)) {
		check(kept.users == 1 && kept.pid == getpid() && kept.uid == geteuid());
		check(kept.mode == 0600 && kept.bytes == 2 * MIB && kept.segments == 1);
		n++;
	}
	check(n == BLOCKS);
	check(hetmem_kept_import(k, hm, 0, "none", &q, &bytes) == -ENOENT);
	check(hetmem_kept_import(k, hm, 0, "../x y", &q, &bytes) == -EINVAL);
	check(!hetmem_kept_drop(k, "model/layer.3"));
	check(hetmem_kept_drop(k, "model/layer.3") == -ENOENT);
	check(hetmem_kept_import(k, hm, 0, "model/layer.3", &q, &bytes) == -ENOENT);
	/* What is mapped stays. */
	check(all_bytes(p[3], 77, 2 * MIB));
	for (i = 0; i < BLOCKS; i++)
		check(!hetmem_import_close(hm, p[i]));
	check(!device_used());
	hetmem_keeper_close(k);
	close_soft();
}

/* Raw messages. */

static int raw(void)
{
	struct sockaddr_un at;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	need(fd >= 0 && !hm_keep_address(path, &at), "a socket");
	need(!connect(fd, (const struct sockaddr *)&at, sizeof(at)), "connected");
	return fd;
}

static struct hm_keep_message request(enum hm_keep_op op, const char *name, uint32_t nr)
{
	struct hm_keep_message m = {
		.magic = HM_KEEP_MAGIC, .version = HM_KEEP_VERSION, .op = op, .nr = nr, .mode = 0600,
	};
	uint32_t i;

	snprintf(m.name, sizeof(m.name), "%s", name);
	for (i = 0; i < nr && i < HETMEM_KEEP_SEGMENTS; i++) {
		m.lengths[i] = 2 * MIB;
		m.bytes += 2 * MIB;
	}
	return m;
}

static ssize_t send_raw(int fd, struct hm_keep_message *m, size_t size, int of, uint32_t nr_fds)
{
	union hm_keep_control control;
	struct iovec data = { m, size };
	struct msghdr msg = { .msg_iov = &data, .msg_iovlen = 1 };
	int fds[HETMEM_KEEP_SEGMENTS];
	uint32_t i;

	for (i = 0; i < nr_fds; i++)
		fds[i] = of;
	if (nr_fds)
		hm_descriptors_attach(&msg, &control, fds, nr_fds);
	return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* The errno of the answer; 1: the keeper has ended the connection. */
static int answer_of(int fd)
{
	struct hm_keep_message m;
	ssize_t n = recv(fd, &m, sizeof(m), 0);

	return n <= 0 ? 1 : m.err;
}

static int put_raw(int fd, const char *name, int of, uint32_t nr)
{
	struct hm_keep_message m = request(HM_KEEP_PUT, name, nr);

	if (send_raw(fd, &m, hm_keep_size(nr), of, nr) < 0)
		return 1;
	return answer_of(fd);
}

/* What is no request ends the connection. */
static void rubbish(const char *what, struct hm_keep_message m, size_t size, uint32_t nr_fds)
{
	const int fd = raw(), null = open("/dev/null", O_RDONLY);

	need(send_raw(fd, &m, size, null, nr_fds) == (ssize_t)size, "sent");
	is(answer_of(fd), 1, "%s ends the connection", what);
	close(null);
	close(fd);
}

static void all_rubbish(void)
{
	struct hm_keep_message good = request(HM_KEEP_GET, "x", 0), m = good;

	rubbish("half a header", good, HM_KEEP_HEADER / 2, 0);
	rubbish("one byte", good, 1, 0);
	rubbish("more than a header", good, HM_KEEP_HEADER + 8, 0);
	m.magic++;
	rubbish("another magic", m, HM_KEEP_HEADER, 0);
	m = good;
	m.version++;
	rubbish("another version", m, HM_KEEP_HEADER, 0);
	m = good;
	m.op = HM_KEEP_NEXT + 1;
	rubbish("an unknown request", m, HM_KEEP_HEADER, 0);
	m = good;
	memset(m.name, 'x', sizeof(m.name));
	rubbish("a name without an end", m, HM_KEEP_HEADER, 0);
	rubbish("a descriptor too many", good, HM_KEEP_HEADER, 1);
	m = request(HM_KEEP_PUT, "x", 2);
	rubbish("a descriptor too few", m, hm_keep_size(2), 1);
	rubbish("lengths that are not there", m, hm_keep_size(1), 2);
	m.nr = 2000;
	rubbish("2,000 handles", m, sizeof(m), HETMEM_KEEP_SEGMENTS);
	m.nr = UINT32_MAX;
	rubbish("4 billion handles", m, hm_keep_size(2), 2);
}

/* Requests that are refused. The connection goes on. */
static void refused(void)
{
	const int fd = raw(), null = open("/dev/null", O_RDONLY);
	struct hm_keep_message m = request(HM_KEEP_PUT, "x", 2);

	m.bytes--;
	send_raw(fd, &m, hm_keep_size(2), null, 2);
	is(answer_of(fd), -EINVAL, "a sum that is none");
	m = request(HM_KEEP_PUT, "x", 2);
	m.lengths[0] = m.lengths[1] = (uint64_t)1 << 63;
	m.bytes = 0;
	send_raw(fd, &m, hm_keep_size(2), null, 2);
	is(answer_of(fd), -EINVAL, "lengths that overflow");
	m = request(HM_KEEP_PUT, "x", 0);
	send_raw(fd, &m, hm_keep_size(0), null, 0);
	is(answer_of(fd), -EINVAL, "a block of nothing");
	m = request(HM_KEEP_PUT, "x", 1);
	m.mode = 0644;
	send_raw(fd, &m, hm_keep_size(1), null, 1);
	is(answer_of(fd), -EINVAL, "a mode that reads alone");
	is(put_raw(fd, "full", null, HETMEM_KEEP_SEGMENTS), 0, "as many handles as there can be");
	is(put_raw(fd, "full", null, 1), -EEXIST, "a name twice");
	is(put_raw(fd, "null", null, 1), 0, "a descriptor that is no memory is taken");
	close(null);
	close(fd);
}

/* What a block lies about shows when it is mapped. */
static void lies(void)
{
	struct hetmem_keeper *k = join();
	struct hetmem_resource *res;
	struct hetmem_segment segment;
	struct hm_keep_message m;
	const int fd = raw();
	size_t bytes;
	void *p, *q = &bytes;
	int memory;

	open_soft("");
	check(hetmem_kept_import(k, hm, 0, "null", &q, &bytes) == -EINVAL && q == &bytes);
	check(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &res));
	check(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p));
	check(hetmem_export(res, p, &memory, &segment, 1) == 1);
	m = request(HM_KEEP_PUT, "larger", 1);
	m.lengths[0] = m.bytes = 4 * MIB;
	send_raw(fd, &m, hm_keep_size(1), memory, 1);
	check(!answer_of(fd));
	check(hetmem_kept_import(k, hm, 0, "larger", &q, &bytes) == -EINVAL && q == &bytes);
	check(!put_raw(fd, "right", memory, 1));
	check(!hetmem_kept_import(k, hm, 0, "right", &q, &bytes) && bytes == 2 * MIB);
	check(!hetmem_import_close(hm, q));
	close(fd);
	hetmem_keeper_close(k);
	hetmem_resource_destroy(res);
	close_soft();
}

/* A client that does not read its answers does not keep others from theirs. */
static void stalls(void)
{
	struct hm_keep_message m = request(HM_KEEP_GET, "full", 0);
	const int fd = raw(), other = raw(), null = open("/dev/null", O_RDONLY);
	unsigned int sent = 0, i, ended = 0;
	int fds[80];

	while (sent < 100000 && send_raw(fd, &m, HM_KEEP_HEADER, 0, 0) > 0)
		sent++;
	ok(sent < 100000, "a client that only asks is disconnected, after %u requests", sent);
	is(put_raw(other, "served", null, 1), 0, "another one is served");
	for (i = 0; i < 80; i++)
		fds[i] = raw();
	for (i = 0; i < 80; i++) {
		m = request(HM_KEEP_NEXT, "", 0);
		ended += send_raw(fds[i], &m, HM_KEEP_HEADER, 0, 0) < 0 || answer_of(fds[i]) == 1;
	}
	ok(ended >= 16 && ended < 80, "%u of 80 connections of one user are too many", ended);
	for (i = 0; i < 80; i++)
		close(fds[i]);
	close(other);
	close(null);
	close(fd);
}

static void bounds(void)
{
	pid_t pid = start((const char *const[]){ "--socket", path, "--names", "4", "--bytes", "16M",
						 NULL }, 0);
	const int null = open("/dev/null", O_RDONLY);
	int fd = raw(), i, n;
	char name[16];

	for (n = 0; n < 8; n++) {
		snprintf(name, sizeof(name), "n%d", n);
		i = put_raw(fd, name, null, 1);
		if (i)
			break;
	}
	is(n, 4, "as many names as --names");
	is(i, -EDQUOT, "and no more");
	for (i = 0; i < 4; i++) {
		struct hm_keep_message m;

		snprintf(name, sizeof(name), "n%d", i);
		m = request(HM_KEEP_DROP, name, 0);
		send_raw(fd, &m, HM_KEEP_HEADER, 0, 0);
		is(answer_of(fd), 0, "dropped");
	}
	is(put_raw(fd, "a", null, 9), -EDQUOT, "more than --bytes at once");
	is(put_raw(fd, "a", null, 5), 0, "10 MiB");
	is(put_raw(fd, "b", null, 4), -EDQUOT, "18 MiB");
	is(put_raw(fd, "b", null, 3), 0, "16 MiB");
	close(fd);
	stop(pid);
	pid = start((const char *const[]){ "--socket", path, NULL }, 1100);
	fd = raw();
	is(put_raw(fd, "a", null, HETMEM_KEEP_SEGMENTS), 0, "a block of 253 descriptors, of 1,100");
	is(put_raw(fd, "b", null, HETMEM_KEEP_SEGMENTS), 0, "another one");
	is(put_raw(fd, "c", null, HETMEM_KEEP_SEGMENTS), -EDQUOT, "half of them are for others");
	/* The descriptors that were refused are closed by then. */
	ok(wait_until(!put_raw(fd, "c", null, 44)), "what is left of a half");
	is(put_raw(fd, "d", null, 1), -EDQUOT, "and no more");
	close(fd);
	stop(pid);
	is(status_of(command((const char *const[]){ "--socket", path, NULL }, 600, 0)), 1,
	   "600 descriptors are too few");
	close(null);
}

/* The end of the keeper. */
static void ends(void)
{
	pid_t pid = start_plain();
	struct hetmem_kept kept = { .size = sizeof(kept) };
	struct hetmem_keeper *k;

	is(status_of(command((const char *const[]){ "--socket", path, NULL }, 0, 0)), 1,
	   "a second keeper at one socket");
	need(!hetmem_keeper_open(path, &k), "connected");
	kill(pid, SIGKILL);
	is(status_of(pid), 128 + SIGKILL, "the keeper is killed");
	is(hetmem_kept_next(k, 0, &kept), -EPIPE, "%s", hetmem_last_error());
	is(hetmem_kept_drop(k, "x"), -EPIPE, "and remains so");
	hetmem_keeper_close(k);
	is(hetmem_keeper_open(path, &k), -ECONNREFUSED, "%s", hetmem_last_error());
	pid = start_plain();
	need(!hetmem_keeper_open(path, &k), "the next one takes its place");
	is(hetmem_kept_next(k, 0, &kept), -ENOENT, "and has nothing");
	kept.size--;
	is(hetmem_kept_next(k, 0, &kept), -EINVAL, "a short struct");
	hetmem_keeper_close(k);
	stop(pid);
	is(hetmem_keeper_open(path, &k), -ENOENT, "%s", hetmem_last_error());
	is(hetmem_keeper_open("/tmp/0123456789012345678901234567890123456789012345678901234567890123456789"
			      "012345678901234567890123456789012345678901234567890123456789", &k),
	   -ENAMETOOLONG, "%s", hetmem_last_error());
}

/* Other users: only root can become them. */

static void become(uid_t uid)
{
	check(!setgroups(0, NULL) && !setregid(uid, uid) && !setreuid(uid, uid));
}

static void outside(void)
{
	struct hetmem_keeper *k;

	become(1001);
	check(hetmem_keeper_open(path, &k) == -EACCES);
}

static void guest(void)
{
	struct hetmem_keeper *k;
	size_t bytes;
	void *p;

	become(1001);
	k = join();
	open_soft("");
	check(hetmem_kept_import(k, hm, 0, "private", &p, &bytes) == -EACCES);
	/* It is /dev/null: the keeper gives it, and the driver does not. */
	check(hetmem_kept_import(k, hm, 0, "public", &p, &bytes) == -EINVAL);
	check(hetmem_kept_drop(k, "public") == -EPERM);
	hetmem_keeper_close(k);
	close_soft();
}

/* Two users take half of the descriptors each: there are none for a third block. */
static void crowd(void)
{
	const int null = open("/dev/null", O_RDONLY);
	int fd;

	become(1001);
	fd = raw();
	check(!put_raw(fd, "guest", null, HETMEM_KEEP_SEGMENTS));
	check(put_raw(fd, "guest2", null, 1) == -EMFILE);
	check(put_raw(fd, "guest2", null, HETMEM_KEEP_SEGMENTS) == -EMFILE);
}

static void nobody(void)
{
	struct hetmem_kept kept = { .size = sizeof(kept) };
	struct hetmem_keeper *k;

	become(65534);
	k = join();
	check(hetmem_kept_next(k, 0, &kept) == -EPIPE);
}

static void strangers_keeper(void)
{
	struct hetmem_keeper *k;

	become(1002);
	check(hetmem_keeper_open(path, &k) == -EPERM);
}

static void users(void)
{
	const char *const args[] = { "--socket", path, "--mode", "0666", NULL };
	struct hm_keep_message m;
	int fd, null;
	pid_t pid;

	if (geteuid()) {
		ok(true, "other users: # SKIP this is not root");
		return;
	}
	pid = start_plain();
	is(in_child(outside), 0, "the socket keeps others out");
	stop(pid);
	pid = start(args, 0);
	fd = raw();
	null = open("/dev/null", O_RDONLY);
	is(put_raw(fd, "private", null, 1), 0, "a block of mode 0600");
	m = request(HM_KEEP_PUT, "public", 1);
	m.mode = 0666;
	send_raw(fd, &m, hm_keep_size(1), null, 1);
	is(answer_of(fd), 0, "a block of mode 0666");
	is(in_child(guest), 0, "another user");
	is(in_child(nobody), 0, "the overflow user is refused");
	close(fd);
	stop(pid);
	pid = start((const char *const[]){ "--socket", path, "--mode", "0666", NULL }, 1100);
	fd = raw();
	is(put_raw(fd, "a", null, HETMEM_KEEP_SEGMENTS), 0, "half of 1,100 descriptors");
	is(put_raw(fd, "b", null, HETMEM_KEEP_SEGMENTS), 0, "are for one user");
	is(in_child(crowd), 0, "then there are none for another one's second block");
	is(put_raw(fd, "c", null, 1), -EMFILE, "nor for others");
	m = request(HM_KEEP_DROP, "a", 0);
	send_raw(fd, &m, HM_KEEP_HEADER, 0, 0);
	is(answer_of(fd), 0, "a block is dropped");
	ok(wait_until(!put_raw(fd, "c", null, 1)), "and there is room again");
	close(fd);
	close(null);
	stop(pid);
	need(!chmod(dir, 0777), "a directory for all");
	pid = command(args, 0, 1001);
	need(wait_until(is_up() || !access(path, F_OK)), "a keeper of another user");
	is(in_child(strangers_keeper), 0, "its memory is not mapped by a third one");
	kill(pid, SIGTERM);
	is(status_of(pid), 0, "it ends");
}

/* Every request needs some memory. */
static void no_memory(void)
{
	struct hetmem_keeper *k = join();
	struct hetmem_kept kept = { .size = sizeof(kept) };
	struct hetmem_resource *res;
	void *p;

	open_soft("");
	check(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &res));
	check(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p));
	check(!hetmem_keep(k, res, p, "before", 0600));
	__atomic_store_n(out_of_memory, keeper, __ATOMIC_RELEASE);
	check(hetmem_keep(k, res, p, "none", 0600) == -ENOMEM);
	check(!hetmem_kept_drop(k, "before"));
	check(hetmem_kept_next(k, 0, &kept) == -ENOENT);
	__atomic_store_n(out_of_memory, 0, __ATOMIC_RELEASE);
	check(!hetmem_keep(k, res, p, "after", 0600));
	check(!hetmem_kept_drop(k, "after"));
	hetmem_keeper_close(k);
}

static void typed(const char *what, const char *const *args)
{
	is(status_of(command(args, 0, 0)), 2, "%s", what);
}

int main(void)
{
	const char *const drops[] = { "--socket", path, "--drop", "null", NULL };
	const char *const lists[] = { "--socket", path, "--list", NULL };
	pid_t pid;

	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	hang_limit(true);
	out_of_memory = mmap(NULL, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			     -1, 0);
	need(out_of_memory != MAP_FAILED, "shared memory");
	need(mkdtemp(dir) && !chmod(dir, 0755), "a directory");
	snprintf(path, sizeof(path), "%s/socket", dir);
	pid = start_plain();
	is(in_child(hand_over), 128 + SIGKILL, "a worker hands over %d blocks, and is killed", BLOCKS);
	is(in_child(map_all), 0, "the next worker has them");
	stop(pid);
	pid = start_plain();
	all_rubbish();
	refused();
	is(in_child(lies), 0, "a block that is another than was said is not mapped");
	stalls();
	is(status_of(command(lists, 0, 0)), 0, "--list");
	is(status_of(command(drops, 0, 0)), 0, "--drop");
	is(status_of(command(drops, 0, 0)), 1, "--drop of none");
	stop(pid);
	keeper = start_plain();
	is(in_child(no_memory), 0, "a keeper without memory refuses, and goes on");
	stop(keeper);
	bounds();
	ends();
	users();
	typed("a mode that reads alone", (const char *const[]){ "--mode", "0644", NULL });
	typed("no names", (const char *const[]){ "--names", "0", NULL });
	typed("no size", (const char *const[]){ "--bytes", "x", NULL });
	typed("a word", (const char *const[]){ "word", NULL });
	typed("both", (const char *const[]){ "--list", "--drop", "x", NULL });
	unlink(path);
	rmdir(dir);
	return tap_end();
}
