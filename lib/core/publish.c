// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The memfd of a process's statistics, see publish.h.
 *
 * The memfd exists while a pool does. The mapping is shared, so that figures are written where they
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

#include "core/core.h"
#include "core/publish.h"

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

/*
 * @spare: room for a forked child's copy: in the child there may be none left
 * @used: also of pools that are dead in this child; @numbers: ever given
 */
static struct {
	struct hm_published *page, *spare;
	int fd;
	dev_t dev;
	ino_t ino;
	unsigned int nr_used;
	bool used[HM_PUBLISH_POOLS];
	uint64_t numbers;
} publishing = { .fd = -1 };

static bool is_ours(int fd, dev_t dev, ino_t ino)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == dev && st.st_ino == ino;
}

static void close_ours(void)
{
	if (publishing.fd >= 0 && is_ours(publishing.fd, publishing.dev, publishing.ino))
		close(publishing.fd);
	publishing.fd = -1;
}

/* Not one of the standard streams, which a program may have closed. */
static int make_memfd(void)
{
	int fd, high;

	fd = memfd_create(HM_PUBLISH_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(HM_PUBLISH_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return high;
}

/* A file that grows beyond RLIMIT_FSIZE ends the program by SIGXFSZ. */
static bool may_have_file(void)
{
	struct rlimit limit;

	return !getrlimit(RLIMIT_FSIZE, &limit) &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= sizeof(struct hm_published));
}

/*
 * Gives @fd its size and its memory. A store to a hole for which there is no memory would end
 * the program by SIGBUS.
 */
static bool fill(int fd)
{
	int err;

	do
		err = fallocate(fd, 0, 0, sizeof(struct hm_published));
	while (err && errno == EINTR);
	return !err;
}

/* An empty file of the right size, mapped at *@page, and room for a copy; or -1. */
static int make_file(struct hm_published **page, struct hm_published **spare)
{
	const int seals = HM_PUBLISH_SEALS;
	int fd = may_have_file() ? make_memfd() : -1;

	if (fd < 0)
		return -1;
	*page = MAP_FAILED;
	*spare = mmap(NULL, sizeof(**spare), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	if (*spare != MAP_FAILED && !fchmod(fd, S_IRUSR) && fill(fd))
		*page = mmap(NULL, sizeof(**page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* Nobody else maps it for writing, where the kernel knows how to forbid that. */
	if (*page != MAP_FAILED && (!fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) ||
				    !fcntl(fd, F_ADD_SEALS, seals)))
		return fd;
	if (*page != MAP_FAILED)
		munmap(*page, sizeof(**page));
	if (*spare != MAP_FAILED)
		munmap(*spare, sizeof(**spare));
	close(fd);
	return -1;
}

/* Where the new page belongs, with what is there now. Falls silent if that fails. */
static void make_published(void)
{
	struct hm_published *page, *spare;
	struct stat st;
	int fd = make_file(&page, &spare);

	if (fd < 0)
		return;
	if (fstat(fd, &st))
		goto fail;
	if (publishing.page) {
		memcpy(page, publishing.page, sizeof(*page));
		if (mremap(page, sizeof(*page), sizeof(*page), MREMAP_MAYMOVE | MREMAP_FIXED,
			   publishing.page) == MAP_FAILED)
			goto fail;
	} else {
		publishing.page = page;
	}
	publishing.spare = spare;
	publishing.page->version = HM_PUBLISH_VERSION;
	publishing.page->pid = getpid();
	__atomic_store_n(&publishing.page->magic, HM_PUBLISH_MAGIC, __ATOMIC_RELEASE);
	publishing.fd = fd;
	publishing.dev = st.st_dev;
	publishing.ino = st.st_ino;
	return;
fail:
	munmap(page, sizeof(*page));
	munmap(spare, sizeof(*spare));
	close(fd);
}

/*
 * Puts a private copy in the place of the shared page. The spare moves there, which needs no
 * memory. A process with as many mappings as it may have cannot move one, but replace one.
 */
static bool make_private(void)
{
	struct hm_published *spare = publishing.spare, *page = publishing.page;

	memcpy(spare, page, sizeof(*page));
	if (mremap(spare, sizeof(*page), sizeof(*page), MREMAP_MAYMOVE | MREMAP_FIXED,
		   page) == MAP_FAILED) {
		if (mmap(page, sizeof(*page), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			return false;
		memcpy(page, spare, sizeof(*page));
		munmap(spare, sizeof(*page));
	}
	publishing.spare = NULL;
	return true;
}

/* In a child: the parent's figures are the parent's. Devices' pools are dead here. */
static void leave_parent(void)
{
	bool goes_on = false;
	unsigned int i;

	/* Without a spare it is private already. */
	if (!publishing.page || !publishing.spare || !make_private())
		return;
	close_ours();
	for (i = 0; i < HM_PUBLISH_POOLS; i++) {
		struct hm_published_pool *pool = &publishing.page->pools[i];

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
	if (publishing.fd < 0)
		make_published();
	while (i < HM_PUBLISH_POOLS && publishing.used[i])
		i++;
	if (publishing.page && i < HM_PUBLISH_POOLS) {
		pool = &publishing.page->pools[i];
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
	} else if (publishing.page) {
		publishing.page->unlisted++;
	}
	hm_unlock(&publish_lock);
	return pool;
}

void hm_publish_remove(struct hm_published_pool *pool)
{
	if (!pool)
		return;
	hm_lock(&publish_lock);
	__atomic_store_n(&pool->number, 0, __ATOMIC_RELEASE);
	publishing.used[pool - publishing.page->pools] = false;
	if (!--publishing.nr_used) {
		munmap(publishing.page, sizeof(*publishing.page));
		if (publishing.spare)
			munmap(publishing.spare, sizeof(*publishing.spare));
		publishing.page = publishing.spare = NULL;
		close_ours();
	}
	hm_unlock(&publish_lock);
}
