/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem keep: a process that holds descriptors of exported memory by name, so that the memory
 * outlives its workers. keep/protocol.h has the messages.
 *
 * One thread waits in ppoll() and uses no CPU without a request. It never waits for a client:
 * sockets do not block, and a client that asks again before it took its answer is disconnected.
 * Another thread closes descriptors, since a close can take any time: a file of FUSE, a socket
 * that lingers. Each user has bounds of names, bytes, descriptors and connections. No driver is
 * called, and no descriptor is looked into.
 *
 * Locking: closing.lock protects the list and keeper.nr_fds. All else is the first thread's.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <linux/sockios.h>

#include "keep/protocol.h"
#include "options.h"
#include "util.h"

#define SUB		"keep"
#define MAX_NAMES	65536
#define DEFAULT_NAMES	1024
#define DEFAULT_BYTES	((uint64_t)1 << 40)
/* Connections: of one user, and of all. */
#define USER_CLIENTS	64
#define ALL_CLIENTS	256
#define MAX_GROUPS	64
/* Descriptors that the keeper needs for itself, and for one message. */
#define SPARE_FDS	(ALL_CLIENTS + HETMEM_KEEP_SEGMENTS + 16)
/* While the system has no descriptor for a connection, the listener is left alone for this time. */
#define FULL_NS		100000000

/* Descriptors of one message. Closing them takes no memory. */
struct fds {
	struct fds *next;
	size_t *count;
	uint32_t nr;
	int fds[HETMEM_KEEP_SEGMENTS];
};

struct block {
	char name[HETMEM_KEEP_NAME];
	uint64_t generation, bytes;
	uid_t uid;
	gid_t gid;
	uint32_t mode;
	struct fds *fds;
	uint64_t *lengths;
};

/* @used: generations of the blocks that it handed over or got */
struct client {
	int fd;
	struct ucred who;
	gid_t groups[MAX_GROUPS];
	unsigned int nr_groups, nr_used;
	uint64_t *used;
};

/*
 * @blocks: oldest first; @nr_fds: of all blocks, and those that are not closed yet; @most_fds: of
 * RLIMIT_NOFILE; @full: no descriptor for a connection
 */
struct keeper {
	struct sockaddr_un at;
	int listener;
	mode_t mode;
	uid_t overflow;
	unsigned int names;
	uint64_t bytes;
	size_t nr_fds, most_fds;
	bool full;
	uint64_t generation;
	struct block *blocks;
	size_t nr_blocks, room;
	struct client *clients[ALL_CLIENTS];
	unsigned int nr_clients;
};

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static int help(void)
{
	printf("Usage: hetmem keep [--socket PATH] [--mode MODE] [--names N] [--bytes SIZE]\n"
	       "       hetmem keep --list [--socket PATH]\n"
	       "       hetmem keep --drop NAME [--socket PATH]\n"
	       "Keeps exported device memory by name, for workers that come and go.\n\n"
	       "  --socket PATH  where it listens (HETMEM_KEEPER, or one for this user)\n"
	       "  --mode MODE    of the socket: who may connect (0600)\n"
	       "  --names N      blocks that a user may have (%d)\n"
	       "  --bytes SIZE   bytes that a user may have (1T)\n"
	       "  --list         print the blocks of the keeper, and who uses them\n"
	       "  --drop NAME    have the keeper give up a block\n\n"
	       "It runs until a signal ends it. Then memory without another user is released.\n",
	       DEFAULT_NAMES);
	return EXIT_OK;
}

/* Permissions. */

static bool is_root(const struct client *c)
{
	return !c->who.uid;
}

static bool may_get(const struct client *c, const struct block *b)
{
	unsigned int i;

	if (is_root(c) || c->who.uid == b->uid)
		return true;
	if (b->mode & 0006)
		return true;
	if (!(b->mode & 0060))
		return false;
	for (i = 0; i < c->nr_groups; i++)
		if (c->groups[i] == b->gid)
			return true;
	return c->who.gid == b->gid;
}

/* Blocks. */

static struct block *find(struct keeper *k, const char *name)
{
	size_t i;

	for (i = 0; i < k->nr_blocks; i++)
		if (!strcmp(k->blocks[i].name, name))
			return &k->blocks[i];
	return NULL;
}

/* Descriptors that are to be closed. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct fds *first;
} closing = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL };

static void *close_them(void *arg)
{
	struct fds *d;
	uint32_t i;

	(void)arg;
	pthread_mutex_lock(&closing.lock);
	for (;;) {
		while (!closing.first)
			pthread_cond_wait(&closing.more, &closing.lock);
		d = closing.first;
		closing.first = d->next;
		pthread_mutex_unlock(&closing.lock);
		for (i = 0; i < d->nr; i++)
			close(d->fds[i]);
		pthread_mutex_lock(&closing.lock);
		*d->count -= d->nr;
		free(d);
	}
	return NULL;
}

static void count_fds(struct keeper *k, uint32_t nr)
{
	pthread_mutex_lock(&closing.lock);
	k->nr_fds += nr;
	pthread_mutex_unlock(&closing.lock);
}

/* Takes @fds, which are counted, or NULL. */
static void close_all(struct keeper *k, struct fds *fds)
{
	if (!fds || !fds->nr) {
		free(fds);
		return;
	}
	fds->count = &k->nr_fds;
	pthread_mutex_lock(&closing.lock);
	fds->next = closing.first;
	closing.first = fds;
	pthread_cond_signal(&closing.more);
	pthread_mutex_unlock(&closing.lock);
}

static bool has_room(struct keeper *k)
{
	bool room;

	pthread_mutex_lock(&closing.lock);
	room = k->nr_fds + SPARE_FDS <= k->most_fds;
	pthread_mutex_unlock(&closing.lock);
	return room;
}

static void remove_block(struct keeper *k, struct block *b)
{
	close_all(k, b->fds);
	free(b->lengths);
	k->nr_blocks--;
	memmove(b, b + 1, (k->blocks + k->nr_blocks - b) * sizeof(*b));
}

/* Whether @uid may have another block of @bytes and @nr descriptors. */
static bool is_within(const struct keeper *k, uid_t uid, uint64_t bytes, uint32_t nr)
{
	size_t i, names = 1, fds = nr;
	uint64_t sum = bytes;

	if (bytes > k->bytes)
		return false;
	for (i = 0; i < k->nr_blocks; i++) {
		if (k->blocks[i].uid != uid)
			continue;
		names++;
		fds += k->blocks[i].fds->nr;
		sum += k->blocks[i].bytes;
		if (sum > k->bytes)
			return false;
	}
	/* Others have room for as many again. */
	return names <= k->names && fds <= k->most_fds / 2;
}

static bool is_sum(const struct hm_keep_message *m)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < m->nr; i++) {
		if (!m->lengths[i] || m->lengths[i] > INT64_MAX - sum)
			return false;
		sum += m->lengths[i];
	}
	return sum == m->bytes;
}

static bool use(struct client *c, uint64_t generation)
{
	uint64_t *used;
	unsigned int i;

	for (i = 0; i < c->nr_used; i++)
		if (c->used[i] == generation)
			return true;
	used = realloc(c->used, (c->nr_used + 1) * sizeof(*used));
	if (!used)
		return false;
	c->used = used;
	c->used[c->nr_used++] = generation;
	return true;
}

/* Blocks that are gone are not counted: a client uses at most what there is. */
static void forget(struct keeper *k, uint64_t generation)
{
	unsigned int i, n;

	for (i = 0; i < k->nr_clients; i++) {
		struct client *c = k->clients[i];

		for (n = 0; n < c->nr_used; n++)
			if (c->used[n] == generation)
				c->used[n--] = c->used[--c->nr_used];
	}
}

/* After success the block has the descriptors. */
static int put(struct keeper *k, struct client *c, const struct hm_keep_message *m,
	       struct fds *fds)
{
	struct block b = {
		.bytes = m->bytes, .uid = c->who.uid, .gid = c->who.gid, .mode = m->mode, .fds = fds,
	};
	struct block *blocks;

	if (!m->nr || !hm_keep_is_mode(m->mode) || !is_sum(m))
		return -EINVAL;
	if (find(k, m->name))
		return -EEXIST;
	if (!is_within(k, c->who.uid, m->bytes, m->nr))
		return -EDQUOT;
	if (k->nr_blocks == k->room) {
		blocks = realloc(k->blocks, (2 * k->room + 16) * sizeof(b));
		if (!blocks)
			return -ENOMEM;
		k->blocks = blocks;
		k->room = 2 * k->room + 16;
	}
	b.lengths = calloc(m->nr, sizeof(*b.lengths));
	if (!b.lengths || !use(c, k->generation + 1)) {
		free(b.lengths);
		return -ENOMEM;
	}
	memcpy(b.lengths, m->lengths, m->nr * sizeof(*m->lengths));
	strcpy(b.name, m->name);
	b.generation = ++k->generation;
	k->blocks[k->nr_blocks++] = b;
	return 0;
}

static int drop(struct keeper *k, const struct client *c, const char *name)
{
	struct block *b = find(k, name);

	if (!b)
		return -ENOENT;
	if (!is_root(c) && c->who.uid != b->uid)
		return -EPERM;
	forget(k, b->generation);
	remove_block(k, b);
	return 0;
}

/* Describes @b in @m, without descriptors. */
static void describe(const struct keeper *k, const struct block *b, struct hm_keep_message *m)
{
	unsigned int i, n;

	m->bytes = b->bytes;
	m->generation = b->generation;
	m->uid = b->uid;
	m->mode = b->mode;
	m->segments = b->fds->nr;
	strcpy(m->name, b->name);
	for (i = 0; i < k->nr_clients; i++)
		for (n = 0; n < k->clients[i]->nr_used; n++)
			if (k->clients[i]->used[n] == b->generation) {
				m->users++;
				m->pid = k->clients[i]->who.pid;
			}
}

/* The first block after @generation. */
static const struct block *next(const struct keeper *k, uint64_t generation)
{
	size_t i;

	for (i = 0; i < k->nr_blocks; i++)
		if (k->blocks[i].generation > generation)
			return &k->blocks[i];
	return NULL;
}

/* Messages. */

/* Whether it was taken. A client whose socket is full does not read. */
static bool answer(const struct client *c, struct hm_keep_message *m, const struct block *with)
{
	struct iovec data = { m, 0 };
	struct msghdr msg = { .msg_iov = &data, .msg_iovlen = 1 };
	union hm_keep_control control;

	m->magic = HM_KEEP_MAGIC;
	m->version = HM_KEEP_VERSION;
	m->nr = with ? with->fds->nr : 0;
	data.iov_len = hm_keep_size(m->nr);
	if (with) {
		memcpy(m->lengths, with->lengths, m->nr * sizeof(*with->lengths));
		hm_descriptors_attach(&msg, &control, with->fds->fds, m->nr);
	}
	return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)data.iov_len;
}

/* The answer to @ask, which came with @fds. *@took: a block has them now. */
static bool obey(struct keeper *k, struct client *c, const struct hm_keep_message *ask,
		 struct fds *fds, bool *took)
{
	struct hm_keep_message m = { 0 };
	const struct block *b = NULL;

	switch (ask->op) {
	case HM_KEEP_PUT:
		m.err = put(k, c, ask, fds);
		*took = !m.err;
		m.generation = k->generation;
		break;
	case HM_KEEP_GET:
		b = find(k, ask->name);
		m.err = !b ? -ENOENT : !may_get(c, b) ? -EACCES : use(c, b->generation) ? 0 : -ENOMEM;
		if (m.err)
			b = NULL;
		else
			describe(k, b, &m);
		break;
	case HM_KEEP_DROP:
		m.err = drop(k, c, ask->name);
		break;
	default:
		b = next(k, ask->generation);
		if (b)
			describe(k, b, &m);
		else
			m.err = -ENOENT;
		b = NULL;
	}
	return answer(c, &m, b);
}

static bool is_request(const struct hm_keep_message *m, size_t size, uint32_t nr_fds)
{
	return size >= HM_KEEP_HEADER && m->magic == HM_KEEP_MAGIC &&
		m->version == HM_KEEP_VERSION && m->op <= HM_KEEP_NEXT &&
		m->nr <= HETMEM_KEEP_SEGMENTS && size == hm_keep_size(m->nr) &&
		nr_fds == (m->op == HM_KEEP_PUT ? m->nr : 0) &&
		(m->op == HM_KEEP_PUT || !m->nr) &&
		(m->op == HM_KEEP_NEXT || hm_keep_is_name(m->name));
}

/*
 * One request of @c, if there is one. Descriptors are taken only while there are enough for any
 * message, and memory to hold them. false: the connection ends.
 */
static bool serve(struct keeper *k, struct client *c)
{
	struct fds *fds = calloc(1, sizeof(*fds));
	struct hm_keep_message m, none = { .err = fds ? -EMFILE : -ENOMEM };
	struct iovec data = { &m, sizeof(m) };
	union hm_keep_control control;
	const bool room = fds && has_room(k);
	struct msghdr msg = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = room ? &control : NULL,
		.msg_controllen = room ? sizeof(control) : 0,
	};
	bool took = false, good = false;
	int waiting = 0;
	ssize_t n;

	if (ioctl(c->fd, SIOCOUTQ, &waiting) || waiting)
		goto out;
	n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
	good = n < 0 && (errno == EAGAIN || errno == EINTR);
	if (n < 0)
		goto out;
	if (room) {
		fds->nr = hm_descriptors_detach(&msg, fds->fds, HETMEM_KEEP_SEGMENTS);
		count_fds(k, fds->nr);
	}
	if (n && msg.msg_flags & MSG_CTRUNC && !room)
		good = answer(c, &none, NULL);
	else
		good = n > 0 && !(msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) &&
			is_request(&m, n, fds ? fds->nr : 0) && obey(k, c, &m, fds, &took);
out:
	if (!took)
		close_all(k, fds);
	return good;
}

/* Connections. */

static void leave(struct keeper *k, unsigned int i)
{
	struct client *c = k->clients[i];

	close(c->fd);
	free(c->used);
	free(c);
	k->clients[i] = k->clients[--k->nr_clients];
}

static bool may_connect(const struct keeper *k, const struct ucred *who)
{
	unsigned int i, of_user = 0;

	for (i = 0; i < k->nr_clients; i++)
		of_user += k->clients[i]->who.uid == who->uid;
	return who->uid != k->overflow && of_user < USER_CLIENTS && k->nr_clients < ALL_CLIENTS;
}

static void welcome(struct keeper *k)
{
	const int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *c = fd < 0 ? NULL : calloc(1, sizeof(*c));
	socklen_t len = sizeof(c->who);

	k->full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
	if (!c || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c->who, &len) ||
	    !may_connect(k, &c->who)) {
		free(c);
		if (fd >= 0)
			close(fd);
		return;
	}
	c->fd = fd;
	len = sizeof(c->groups);
	/* A user in more than MAX_GROUPS groups has the rights of the first one only. */
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, c->groups, &len))
		c->nr_groups = len / sizeof(gid_t);
	k->clients[k->nr_clients++] = c;
}

static void run(struct keeper *k, const sigset_t *waiting)
{
	struct pollfd polls[ALL_CLIENTS + 1];
	const struct timespec pause = { .tv_nsec = FULL_NS };
	unsigned int i, nr;

	while (!ended) {
		nr = k->nr_clients;
		polls[0] = (struct pollfd){ .fd = k->full ? -1 : k->listener, .events = POLLIN };
		for (i = 0; i < nr; i++)
			polls[i + 1] = (struct pollfd){ .fd = k->clients[i]->fd, .events = POLLIN };
		if (ppoll(polls, nr + 1, k->full ? &pause : NULL, waiting) < 0)
			continue;
		k->full = false;
		/* From the last one on: the last one takes the place of one that leaves. */
		for (i = nr; i--;)
			if (polls[i + 1].revents && !serve(k, k->clients[i]))
				leave(k, i);
		if (polls[0].revents)
			welcome(k);
	}
}

/* Beginning and end. */

static uid_t overflow_uid(void)
{
	char *line = read_line("", "/proc/sys/kernel/overflowuid");
	const uid_t uid = line ? strtoul(line, NULL, 10) : 65534;

	free(line);
	return uid;
}

/* A socket that a killed keeper of this user left is removed. */
static bool is_stale(const struct sockaddr_un *at)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct stat st;
	bool stale = fd >= 0 && !lstat(at->sun_path, &st) && S_ISSOCK(st.st_mode) &&
		st.st_uid == geteuid() && connect(fd, (const struct sockaddr *)at, sizeof(*at)) &&
		errno == ECONNREFUSED;

	if (fd >= 0)
		close(fd);
	return stale;
}

/* 0, or the exit status. */
static int begin(struct keeper *k)
{
	const struct sockaddr *at = (const struct sockaddr *)&k->at;
	struct rlimit limit;
	int err;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return complain(EXIT_FAILED, SUB, "no limit of descriptors: %s", strerror(errno));
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	getrlimit(RLIMIT_NOFILE, &limit);
	k->most_fds = limit.rlim_cur < 1U << 20 ? limit.rlim_cur : 1U << 20;
	if (k->most_fds < 2 * SPARE_FDS)
		return complain(EXIT_FAILED, SUB, "'ulimit -n' is %zu: raise it to %d at least", k->most_fds,
				2 * SPARE_FDS);
	k->overflow = overflow_uid();
	k->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (k->listener < 0)
		return complain(EXIT_FAILED, SUB, "no socket: %s", strerror(errno));
	/* The mode of the file that bind() makes. */
	umask(0777 & ~k->mode);
	err = bind(k->listener, at, sizeof(k->at));
	if (err && errno == EADDRINUSE && is_stale(&k->at) && !unlink(k->at.sun_path))
		err = bind(k->listener, at, sizeof(k->at));
	if (err)
		return complain(EXIT_FAILED, SUB, errno == EADDRINUSE ?
				"%s: another keeper runs there, or the file is not this user's (%s)" :
				"%s: %s", k->at.sun_path, strerror(errno));
	if (chmod(k->at.sun_path, k->mode) || listen(k->listener, 64)) {
		unlink(k->at.sun_path);
		return complain(EXIT_FAILED, SUB, "%s: %s", k->at.sun_path, strerror(errno));
	}
	return 0;
}

static int keep(struct keeper *k)
{
	struct sigaction action = { .sa_handler = end };
	sigset_t mine, waiting;
	pthread_t closer;
	int status;

	sigemptyset(&mine);
	sigaddset(&mine, SIGINT);
	sigaddset(&mine, SIGTERM);
	sigaddset(&mine, SIGHUP);
	sigprocmask(SIG_BLOCK, &mine, &waiting);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	status = begin(k);
	if (status)
		return status;
	if (pthread_create(&closer, NULL, close_them, NULL)) {
		unlink(k->at.sun_path);
		return complain(EXIT_FAILED, SUB, "no thread can be made");
	}
	printf("keeps memory at %s\n", k->at.sun_path);
	fflush(stdout);
	run(k, &waiting);
	/* The end of the process closes the rest. */
	unlink(k->at.sun_path);
	return EXIT_OK;
}

/* Clients: --list and --drop. */

static int failed(void)
{
	return complain(EXIT_FAILED, SUB, "%s", hetmem_last_error());
}

static int list(const char *path)
{
	static const struct table_column columns[] = {
		{ "NAME", false }, { "BYTES", true }, { "USER", true }, { "MODE", true },
		{ "GENERATION", true }, { "HANDLES", true }, { "USERS", true }, { "PID", true },
	};
	struct hetmem_kept kept = { .size = sizeof(kept) };
	struct hetmem_keeper *keeper;
	char text[7][24];
	struct table *table;
	int err;

	if (hetmem_keeper_open(path, &keeper))
		return failed();
	table = table_new(columns, ARRAY_SIZE(columns));
	while (!(err = hetmem_kept_next(keeper, kept.generation, &kept))) {
		const char *const cells[] = {
			kept.name, text[0], text[1], text[2], text[3], text[4], text[5], text[6],
		};

		snprintf(text[0], sizeof(text[0]), "%llu", (unsigned long long)kept.bytes);
		snprintf(text[1], sizeof(text[1]), "%u", kept.uid);
		snprintf(text[2], sizeof(text[2]), "%04o", kept.mode);
		snprintf(text[3], sizeof(text[3]), "%llu", (unsigned long long)kept.generation);
		snprintf(text[4], sizeof(text[4]), "%u", kept.segments);
		snprintf(text[5], sizeof(text[5]), "%u", kept.users);
		snprintf(text[6], sizeof(text[6]), kept.pid ? "%d" : "-", kept.pid);
		table_row(table, cells);
	}
	table_print(table);
	hetmem_keeper_close(keeper);
	return err == -ENOENT ? EXIT_OK : failed();
}

static int drop_one(const char *path, const char *name)
{
	struct hetmem_keeper *keeper;
	int err = hetmem_keeper_open(path, &keeper);

	if (err)
		return failed();
	err = hetmem_kept_drop(keeper, name);
	hetmem_keeper_close(keeper);
	return err ? failed() : EXIT_OK;
}

static bool parse_mode(const char *s, mode_t *mode)
{
	char *stop;

	*mode = strtoul(s, &stop, 8);
	return *s >= '0' && *s <= '7' && !*stop && hm_keep_is_mode(*mode);
}

int cmd_keep(int argc, char **argv)
{
	static struct keeper k = { .mode = 0600, .names = DEFAULT_NAMES, .bytes = DEFAULT_BYTES };
	const char *path = NULL, *name = NULL;
	bool lists = false;
	long value;
	int c;

	while ((c = next_option(SUB, argc, argv)) != -1) {
		switch (c) {
		case 's':
			path = optarg;
			break;
		case 'm':
			if (!parse_mode(optarg, &k.mode))
				return usage_error(SUB, "'%s' is none of 0600, 0660, 0666", optarg);
			break;
		case 'n':
			if (!parse_number(optarg, 1, MAX_NAMES, &value))
				return usage_error(SUB, "'%s' is not a number from 1 to %d", optarg, MAX_NAMES);
			k.names = value;
			break;
		case 'b':
			if (!parse_mib(optarg, 1, INT64_MAX >> 20, &k.bytes))
				return usage_error(SUB, "'%s' is not a size of 1 MiB or more", optarg);
			break;
		case 'l':
			lists = true;
			break;
		case 'd':
			name = optarg;
			break;
		case 'h':
			return help();
		default:
			return option_error(SUB, c, argv);
		}
	}
	if (optind < argc)
		return usage_error(SUB, "'%s' is too many", argv[optind]);
	if (lists && name)
		return usage_error(SUB, "give '--list' or '--drop', not both");
	if (lists)
		return list(path);
	if (name)
		return drop_one(path, name);
	if (hm_keep_address(path, &k.at))
		return usage_error(SUB, "the path of a socket has at most %zu bytes",
				   sizeof(k.at.sun_path) - 1);
	return keep(&k);
}
