// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The memfd of a process's statistics, see publish.h, and that of requests to it, see asked.h.
 *
 * They exist while a pool does. Mappings are shared, so that figures are written where they
 * are read, without a system call. A forked child must not write there: its handler puts a
 * copy over the same addresses, private, or that of a memfd of its own if a pool goes on.
 *
 * A program may close descriptors that are not its own, and get their numbers again. The
 * descriptor is closed only if it still is the memfd.
 *
 * Locking: publish_lock, which fork() holds, protects all but the figures.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/asked.h"
#include "core/core.h"

/* Linux 6.3. Older headers lack it, older kernels refuse it. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL		0x0008U
#endif
/* Linux 5.1, likewise. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE	0x0010
#endif

static struct hm_lock publish_lock;
static pthread_once_t publish_once = PTHREAD_ONCE_INIT;

/**
 * struct file - a memfd, and where this process has it
 * @spare: room for a forked child's copy: in the child there may be none left
 * @fd: -1: there is none
 */
struct file {
	const char *name;
	size_t size;
	mode_t mode;
	void *page, *spare;
	int fd;
	dev_t dev;
	ino_t ino;
};

/*
 * @used: also of pools that are dead in this child; @numbers: ever given
 * @answers: of pools that others can ask; @answering: a thread is in there
 * @deaf: in a child: the requests are the parent's
 */
static struct {
	struct file figures, requests;
	unsigned int nr_used;
	bool used[HM_PUBLISH_POOLS];
	uint64_t numbers;
	struct {
		void (*answer)(void *arg);
		void *arg;
		bool answering;
	} answers[HM_PUBLISH_POOLS];
	bool deaf;
} publishing = {
	.figures = { HM_PUBLISH_NAME, sizeof(struct hm_published), S_IRUSR, .fd = -1 },
	.requests = { HM_ASKED_NAME, sizeof(struct hm_asked), S_IRUSR | S_IWUSR, .fd = -1 },
};

static struct hm_published *figures(void)
{
	return publishing.figures.page;
}

static struct hm_asked *requests(void)
{
	return publishing.requests.page;
}

static bool is_ours(int fd, dev_t dev, ino_t ino)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == dev && st.st_ino == ino;
}

static void close_ours(struct file *f)
{
	if (f->fd >= 0 && is_ours(f->fd, f->dev, f->ino))
		close(f->fd);
	f->fd = -1;
}

/* Not one of the standard streams, which a program may have closed. */
static int make_memfd(const char *name)
{
	int fd, high;

	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return high;
}

/* A file that grows beyond RLIMIT_FSIZE ends the program by SIGXFSZ. */
static bool may_have_file(size_t size)
{
	struct rlimit limit;

	return !getrlimit(RLIMIT_FSIZE, &limit) &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= size);
}

/*
 * Gives @fd its size and its memory. A store to a hole for which there is no memory would end
 * the program by SIGBUS.
 */
static bool fill(int fd, size_t size)
{
	int err;

	do
		err = fallocate(fd, 0, 0, size);
	while (err && errno == EINTR);
	return !err;
}

/* Nobody changes its size. Nobody else maps the figures for writing, if the kernel forbids that. */
static bool seal(const struct file *f, int fd)
{
	const int seals = HM_PUBLISH_SEALS;

	return (!(f->mode & S_IWUSR) && !fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE)) ||
	       !fcntl(fd, F_ADD_SEALS, seals);
}

/* An empty file of the right size, mapped at *@page, and room for a copy; or -1. */
static int make_file(const struct file *f, void **page, void **spare)
{
	int fd = may_have_file(f->size) ? make_memfd(f->name) : -1;

	if (fd < 0)
		return -1;
	*page = MAP_FAILED;
	*spare = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*spare != MAP_FAILED && !fchmod(fd, f->mode) && fill(fd, f->size))
		*page = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*page != MAP_FAILED && seal(f, fd))
		return fd;
	if (*page != MAP_FAILED)
		munmap(*page, f->size);
	if (*spare != MAP_FAILED)
		munmap(*spare, f->size);
	close(fd);
	return -1;
}

/* Where the new page belongs, with what is there now. False: nothing has changed. */
static bool open_file(struct file *f)
{
	void *page, *spare;
	struct stat st;
	int fd = make_file(f, &page, &spare);

	if (fd < 0)
		return false;
	if (fstat(fd, &st))
		goto fail;
	if (f->page) {
		memcpy(page, f->page, f->size);
		if (mremap(page, f->size, f->size, MREMAP_MAYMOVE | MREMAP_FIXED, f->page) == MAP_FAILED)
			goto fail;
	} else {
		f->page = page;
	}
	f->spare = spare;
	f->fd = fd;
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	return true;
fail:
	munmap(page, f->size);
	munmap(spare, f->size);
	close(fd);
	return false;
}

static void drop_file(struct file *f)
{
	if (f->page)
		munmap(f->page, f->size);
	if (f->spare)
		munmap(f->spare, f->size);
	f->page = f->spare = NULL;
	close_ours(f);
}

/* Falls silent if that fails. Without requests, others only read. */
static void make_published(void)
{
	if (!open_file(&publishing.figures))
		return;
	figures()->version = HM_PUBLISH_VERSION;
	figures()->pid = getpid();
	__atomic_store_n(&figures()->magic, HM_PUBLISH_MAGIC, __ATOMIC_RELEASE);
	if (publishing.deaf || !open_file(&publishing.requests))
		return;
	requests()->version = HM_ASKED_VERSION;
	requests()->pid = getpid();
	__atomic_store_n(&requests()->magic, HM_ASKED_MAGIC, __ATOMIC_RELEASE);
}

/*
 * Puts a private copy in the place of the shared page. The spare moves there, which needs no
 * memory. A process with as many mappings as it may have cannot move one, but replace one.
 */
static bool make_private(struct file *f)
{
	void *spare = f->spare, *page = f->page;

	memcpy(spare, page, f->size);
	if (mremap(spare, f->size, f->size, MREMAP_MAYMOVE | MREMAP_FIXED, page) == MAP_FAILED) {
		if (mmap(page, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			 -1, 0) == MAP_FAILED)
			return false;
		memcpy(page, spare, f->size);
		munmap(spare, f->size);
	}
	f->spare = NULL;
	return true;
}

/* In a child: the parent's figures are the parent's. Devices' pools are dead here. */
static void leave_parent(void)
{
	bool goes_on = false;
	unsigned int i;

	for (i = 0; i < HM_PUBLISH_POOLS; i++)
		publishing.answers[i].answering = false;
	if (requests() && publishing.requests.spare) {
		publishing.deaf = !make_private(&publishing.requests);
		close_ours(&publishing.requests);
		for (i = 0; i < HM_PUBLISH_POOLS && !publishing.deaf; i++)
			requests()->pools[i].request = requests()->pools[i].answered;
	}
	/* Without a spare it is private already. */
	if (!figures() || !publishing.figures.spare || !make_private(&publishing.figures))
		return;
	close_ours(&publishing.figures);
	for (i = 0; i < HM_PUBLISH_POOLS; i++) {
		struct hm_published_pool *pool = &figures()->pools[i];

		if (pool->number && pool->flags & HM_PUBLISHED_FORK)
			goes_on = true;
		else
			pool->number = 0;
	}
	if (goes_on)
		make_published();
}

static void hold(struct hm_fork *fork)
{
	pthread_mutex_lock(&((struct hm_lock *)fork)->mutex);
}

static void let_go(struct hm_fork *fork, bool child)
{
	if (child)
		leave_parent();
	pthread_mutex_unlock(&((struct hm_lock *)fork)->mutex);
}

static void init_lock(void)
{
	pthread_mutex_init(&publish_lock.mutex, NULL);
	publish_lock.fork = (struct hm_fork){
		.level = HM_FORK_PUBLISH, .hold = hold, .let_go = let_go,
	};
	hm_fork_add(&publish_lock.fork);
}

bool hm_publish_wanted(void)
{
	const char *value = secure_getenv("HETMEM_PUBLISH");

	return !value || strcmp(value, "0");
}

static void copy_name(char *to, const char *from)
{
	strncpy(to, from ? from : "", HM_PUBLISH_NAME_LEN - 1);
	to[HM_PUBLISH_NAME_LEN - 1] = '\0';
}

struct hm_published_pool *hm_publish_add(const char *provider, const char *tag, int device,
					 uint64_t max, uint32_t flags)
{
	struct hm_published_pool *pool = NULL;
	unsigned int i = 0;

	if (!hm_publish_wanted())
		return NULL;
	pthread_once(&publish_once, init_lock);
	hm_lock(&publish_lock);
	if (publishing.figures.fd < 0)
		make_published();
	while (i < HM_PUBLISH_POOLS && publishing.used[i])
		i++;
	if (figures() && i < HM_PUBLISH_POOLS) {
		pool = &figures()->pools[i];
		publishing.used[i] = true;
		publishing.nr_used++;
		memset(pool, 0, sizeof(*pool));
		pool->device = device;
		pool->flags = flags;
		pool->max = max;
		copy_name(pool->provider, provider);
		copy_name(pool->tag, tag);
		/* Last: a reader believes the rest then. */
		__atomic_store_n(&pool->number, ++publishing.numbers, __ATOMIC_RELEASE);
	} else if (figures()) {
		figures()->unlisted++;
	}
	hm_unlock(&publish_lock);
	return pool;
}

struct hm_asked_pool *hm_publish_asked(struct hm_published_pool *pool, void (*answer)(void *arg),
				       void *arg)
{
	struct hm_asked_pool *asked = NULL;
	ptrdiff_t i;

	if (!pool)
		return NULL;
	hm_lock(&publish_lock);
	i = pool - figures()->pools;
	if (requests()) {
		asked = &requests()->pools[i];
		memset(asked, 0, sizeof(*asked));
		publishing.answers[i].answer = answer;
		publishing.answers[i].arg = arg;
	}
	hm_unlock(&publish_lock);
	return asked;
}

void hm_publish_unasked(struct hm_published_pool *pool)
{
	unsigned int naps = 0;
	ptrdiff_t i;

	if (!pool)
		return;
	hm_lock(&publish_lock);
	i = pool - figures()->pools;
	/* For as long as the agent trims the pool. */
	while (publishing.answers[i].answering)
		hm_nap(&publish_lock.mutex, &naps);
	publishing.answers[i].answer = NULL;
	hm_unlock(&publish_lock);
}

bool hm_publish_hears(void)
{
	return !__atomic_load_n(&publishing.deaf, __ATOMIC_RELAXED);
}

static void answer_one(unsigned int i)
{
	const struct hm_asked_pool *asked = &requests()->pools[i];

	if (__atomic_load_n(&asked->request, __ATOMIC_ACQUIRE) ==
	    __atomic_load_n(&asked->answered, __ATOMIC_RELAXED))
		return;
	publishing.answers[i].answering = true;
	hm_unlock(&publish_lock);
	publishing.answers[i].answer(publishing.answers[i].arg);
	hm_lock(&publish_lock);
	publishing.answers[i].answering = false;
}

void hm_publish_answer(void)
{
	unsigned int i;

	pthread_once(&publish_once, init_lock);
	hm_lock(&publish_lock);
	for (i = 0; i < HM_PUBLISH_POOLS; i++)
		if (requests() && publishing.answers[i].answer && !publishing.answers[i].answering)
			answer_one(i);
	hm_unlock(&publish_lock);
}

void hm_publish_remove(struct hm_published_pool *pool)
{
	if (!pool)
		return;
	hm_lock(&publish_lock);
	__atomic_store_n(&pool->number, 0, __ATOMIC_RELEASE);
	publishing.used[pool - figures()->pools] = false;
	if (!--publishing.nr_used) {
		drop_file(&publishing.figures);
		drop_file(&publishing.requests);
	}
	hm_unlock(&publish_lock);
}
