// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions that a program calls in place of its allocator's and of mmap(2).
 *
 * The next allocator in the order of the loader (libc's, jemalloc's) serves what is small and
 * what no block can be made for. dlsym() finds it at the first call. dlsym() itself may call
 * these functions: until it is done they hand out parts of a static array.
 *
 * Pointers that are no multiple of HM_UNIT are no blocks: for them free() costs a test and
 * a jump.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/mempolicy.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "preload/preload.h"

#define export	__attribute__((visibility("default")))

struct hm_settings hm_settings = { .min = SIZE_MAX, .policy = -1 };
struct hm_counters hm_counters;

/* Not in libc's headers. */
void free_sized(void *p, size_t size);
void free_aligned_sized(void *p, size_t align, size_t size);
void dallocx(void *p, int flags);
void sdallocx(void *p, size_t size, int flags);
size_t sallocx(const void *p, int flags);
size_t xallocx(void *p, size_t size, size_t extra, int flags);
void *rallocx(void *p, size_t size, int flags);

/* Why no block is made, for the report. */
static const char *off;

void hm_say(const char *a, const char *b, const char *c)
{
	const char *const parts[] = { "hetmem run: ", a, b, c, "\n" };
	struct iovec io[5];
	size_t i;

	for (i = 0; i < 5; i++)
		io[i] = (struct iovec){ (void *)parts[i], strlen(parts[i]) };
	if (writev(STDERR_FILENO, io, 5) < 0)
		return;
}

/* Memory for dlsym(). Each piece has its size in front of it. */
#define EARLY_BYTES	((size_t)64 << 10)
#define EARLY_ALIGN	((size_t)16)

static _Alignas(4096) char early[EARLY_BYTES];
static atomic_size_t early_used;

static bool is_early(const void *p)
{
	return (uintptr_t)p - (uintptr_t)early < EARLY_BYTES;
}

/* Zeroes: nothing is used twice. */
static void *early_alloc(size_t size, size_t align)
{
	size_t at, end;

	if (align < EARLY_ALIGN)
		align = EARLY_ALIGN;
	if (size > EARLY_BYTES || align > 4096) {
		errno = ENOMEM;
		return NULL;
	}
	at = atomic_load(&early_used);
	do {
		end = ((at + EARLY_ALIGN + align - 1) & ~(align - 1)) + size;
		if (end > EARLY_BYTES) {
			errno = ENOMEM;
			return NULL;
		}
	} while (!atomic_compare_exchange_weak(&early_used, &at,
					       (end + EARLY_ALIGN - 1) & ~(EARLY_ALIGN - 1)));
	*(size_t *)(early + end - size - EARLY_ALIGN) = size;
	return early + end - size;
}

static size_t early_size(const void *p)
{
	return *(const size_t *)((const char *)p - EARLY_ALIGN);
}

/* The next allocator. Until resolve() the calls are those that find it. */
static void *first_malloc(size_t size);
static void *first_calloc(size_t nr, size_t size);
static void *first_realloc(void *p, size_t size);
static void first_free(void *p);
static void *first_memalign(size_t align, size_t size);
static void *first_aligned_alloc(size_t align, size_t size);
static int first_posix_memalign(void **p, size_t align, size_t size);
static size_t first_usable_size(void *p);
static int first_trim(size_t pad);

static struct {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t nr, size_t size);
	void *(*realloc)(void *p, size_t size);
	void (*free)(void *p);
	void *(*memalign)(size_t align, size_t size);
	void *(*aligned_alloc)(size_t align, size_t size);
	int (*posix_memalign)(void **p, size_t align, size_t size);
	size_t (*usable_size)(void *p);
	int (*trim)(size_t pad);
	/* Of jemalloc; NULL without it. */
	void (*dallocx)(void *p, int flags);
	void (*sdallocx)(void *p, size_t size, int flags);
	void *(*rallocx)(void *p, size_t size, int flags);
	size_t (*xallocx)(void *p, size_t size, size_t extra, int flags);
	size_t (*sallocx)(const void *p, int flags);
} next = {
	.malloc = first_malloc,
	.calloc = first_calloc,
	.realloc = first_realloc,
	.free = first_free,
	.memalign = first_memalign,
	.aligned_alloc = first_aligned_alloc,
	.posix_memalign = first_posix_memalign,
	.usable_size = first_usable_size,
	.trim = first_trim,
};

static atomic_int resolving;
static void (*next_free)(void *p);

/* In place of the next free() where the static array was used. */
static void free_unless_early(void *p)
{
	if (!is_early(p))
		next_free(p);
}

struct call {
	const char *name;
	void **to;
};

/* What is not there remains as it is. */
static void find_calls(const struct call *calls, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++) {
		void *found = dlsym(RTLD_NEXT, calls[i].name);

		if (found)
			*calls[i].to = found;
	}
}

/* False: dlsym() is at work, in this thread or another. */
static bool resolve(void)
{
	void *(*next_malloc)(size_t size) = NULL;
	const int error = errno;
	int no = 0;
	const struct call calls[] = {
		{ "malloc", (void **)&next_malloc },
		{ "calloc", (void **)&next.calloc },
		{ "realloc", (void **)&next.realloc },
		{ "free", (void **)&next_free },
		{ "memalign", (void **)&next.memalign },
		{ "aligned_alloc", (void **)&next.aligned_alloc },
		{ "posix_memalign", (void **)&next.posix_memalign },
		{ "malloc_usable_size", (void **)&next.usable_size },
		{ "malloc_trim", (void **)&next.trim },
	};

	if (!atomic_compare_exchange_strong(&resolving, &no, 1))
		return false;
	find_calls(calls, sizeof(calls) / sizeof(calls[0]));
	/* libc's dlsym() allocates only for an error: free() has less to do without. */
	next.free = atomic_load(&early_used) ? free_unless_early : next_free;
	next.malloc = next_malloc;
	atomic_store(&resolving, 0);
	errno = error;
	return true;
}

/* After resolve(): a name that is not there is an error, for which dlsym() allocates. */
static void resolve_jemalloc(void)
{
	const struct call calls[] = {
		{ "dallocx", (void **)&next.dallocx },
		{ "sdallocx", (void **)&next.sdallocx },
		{ "rallocx", (void **)&next.rallocx },
		{ "xallocx", (void **)&next.xallocx },
		{ "sallocx", (void **)&next.sallocx },
	};

	find_calls(calls, sizeof(calls) / sizeof(calls[0]));
}

static void *first_malloc(size_t size)
{
	return resolve() ? next.malloc(size) : early_alloc(size, EARLY_ALIGN);
}

static void *first_calloc(size_t nr, size_t size)
{
	if (resolve())
		return next.calloc(nr, size);
	return early_alloc(size && nr > EARLY_BYTES / size ? SIZE_MAX : nr * size, EARLY_ALIGN);
}

static void *first_realloc(void *p, size_t size)
{
	/* Nothing is known of another's @p yet. Nobody has one so early. */
	return resolve() ? next.realloc(p, size) : p ? NULL : early_alloc(size, EARLY_ALIGN);
}

static void first_free(void *p)
{
	if (resolve() && !is_early(p))
		next.free(p);
}

static void *first_memalign(size_t align, size_t size)
{
	return resolve() ? next.memalign(align, size) : early_alloc(size, align);
}

static void *first_aligned_alloc(size_t align, size_t size)
{
	return resolve() ? next.aligned_alloc(align, size) : early_alloc(size, align);
}

static int first_posix_memalign(void **p, size_t align, size_t size)
{
	if (resolve())
		return next.posix_memalign(p, align, size);
	*p = early_alloc(size, align);
	return *p ? 0 : ENOMEM;
}

static size_t first_usable_size(void *p)
{
	return resolve() ? next.usable_size(p) : 0;
}

static int first_trim(size_t pad)
{
	return resolve() ? next.trim(pad) : 0;
}

static bool is_large(size_t size)
{
	return unlikely(size >= hm_settings.min);
}

static bool is_power(size_t n)
{
	return n && !(n & (n - 1));
}

/* Only those that may be a block's or NULL. */
static bool may_be_block(const void *p)
{
	return unlikely(!((uintptr_t)p & (HM_UNIT - 1)));
}

export void *malloc(size_t size)
{
	void *p;

	if (is_large(size)) {
		p = hm_block_alloc(size, 1, false);
		if (p)
			return p;
	}
	return next.malloc(size);
}

export void *calloc(size_t nr, size_t size)
{
	size_t bytes;
	void *p;

	if (!__builtin_mul_overflow(nr, size, &bytes) && is_large(bytes)) {
		p = hm_block_alloc(bytes, 1, true);
		if (p)
			return p;
	}
	return next.calloc(nr, size);
}

export void free(void *p)
{
	if (may_be_block(p) && (!p || hm_block_free(p)))
		return;
	next.free(p);
}

/*
 * Copies @old bytes of @p to a new allocation of @size, and frees @p. If there is no memory to
 * shrink @p, returns @p: programs do not expect that shrinking fails.
 */
static void *move(void *p, size_t old, size_t size)
{
	void *to = malloc(size);

	if (!to)
		return size <= old ? p : NULL;
	memcpy(to, p, old < size ? old : size);
	free(p);
	return to;
}

export void *realloc(void *p, size_t size)
{
	size_t old;
	void *to;

	if (!p)
		return malloc(size);
	if (unlikely(is_early(p)))
		return move(p, early_size(p), size);
	old = may_be_block(p) ? hm_block_size(p) : 0;
	if (!old) {
		/* Another's that becomes a block: at least it is copied only this time. */
		if (!is_large(size) || next.usable_size == first_usable_size)
			return next.realloc(p, size);
		to = hm_block_alloc(size, 1, false);
		if (!to)
			return next.realloc(p, size);
		old = next.usable_size(p);
		memcpy(to, p, old < size ? old : size);
		next.free(p);
		return to;
	}
	/* As libc's does. */
	if (!size) {
		free(p);
		return NULL;
	}
	if (is_large(size)) {
		to = hm_block_resize(p, size);
		if (to)
			return to;
	}
	return move(p, old, size);
}

export void *memalign(size_t align, size_t size)
{
	void *p;

	if (is_large(size) && is_power(align)) {
		p = hm_block_alloc(size, align, false);
		if (p)
			return p;
	}
	return next.memalign(align, size);
}

export void *aligned_alloc(size_t align, size_t size)
{
	void *p;

	if (is_large(size) && is_power(align)) {
		p = hm_block_alloc(size, align, false);
		if (p)
			return p;
	}
	return next.aligned_alloc(align, size);
}

export int posix_memalign(void **out, size_t align, size_t size)
{
	void *p;

	if (is_large(size) && is_power(align) && align >= sizeof(void *)) {
		p = hm_block_alloc(size, align, false);
		if (p) {
			*out = p;
			return 0;
		}
	}
	return next.posix_memalign(out, align, size);
}

export size_t malloc_usable_size(void *p)
{
	size_t size;

	if (!p)
		return 0;
	if (unlikely(is_early(p)))
		return early_size(p);
	size = may_be_block(p) ? hm_block_size(p) : 0;
	return size ? size : next.usable_size(p);
}

export int malloc_trim(size_t pad)
{
	const bool trimmed = hm_block_trim();

	return next.trim(pad) || trimmed;
}

/* C23: sizes that the caller knows anyway. */
export void free_sized(void *p, size_t size)
{
	(void)size;
	free(p);
}

export void free_aligned_sized(void *p, size_t align, size_t size)
{
	(void)align;
	(void)size;
	free(p);
}

/*
 * jemalloc's own calls take what malloc() returned, so they may be given a block. Those that
 * allocate remain jemalloc's.
 */
/* Whether the next allocator does not know @p. */
static bool is_ours(const void *p)
{
	return (may_be_block(p) && hm_block_size(p)) || is_early(p);
}

#define MALLOCX_ZERO	0x40
#define MALLOCX_ALIGN(flags)	((size_t)1 << ((flags) & 0x3f))

export void dallocx(void *p, int flags)
{
	if (!next.dallocx || is_ours(p))
		free(p);
	else
		next.dallocx(p, flags);
}

export void sdallocx(void *p, size_t size, int flags)
{
	if (!next.sdallocx || is_ours(p))
		free(p);
	else
		next.sdallocx(p, size, flags);
}

export size_t sallocx(const void *p, int flags)
{
	if (!next.sallocx || is_ours(p))
		return malloc_usable_size((void *)p);
	return next.sallocx(p, flags);
}

/* In place: a block has what it has. */
export size_t xallocx(void *p, size_t size, size_t extra, int flags)
{
	if (!next.xallocx || is_ours(p))
		return malloc_usable_size(p);
	return next.xallocx(p, size, extra, flags);
}

export void *rallocx(void *p, size_t size, int flags)
{
	const size_t old = may_be_block(p) ? hm_block_size(p) : 0;
	void *to;

	if (next.rallocx && !old && !is_early(p))
		return next.rallocx(p, size, flags);
	to = MALLOCX_ALIGN(flags) > HM_UNIT ? NULL : realloc(p, size);
	if (to && flags & MALLOCX_ZERO && size > old)
		memset((char *)to + old, 0, size - old);
	return to;
}

export void *mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p;

	if (hm_settings.mmap && is_large(size) && !addr && size <= PTRDIFF_MAX - HM_UNIT &&
	    flags == (MAP_PRIVATE | MAP_ANONYMOUS) && prot == (PROT_READ | PROT_WRITE) &&
	    !(offset & (off_t)(hm_page_size - 1))) {
		p = hm_pages_map(hm_whole_pages(size), HM_UNIT);
		if (p) {
			hm_block_mapped(p, hm_whole_pages(size));
			return p;
		}
	}
	return hm_sys_mmap(addr, size, prot, flags, fd, offset);
}

export void *mmap64(void *addr, size_t size, int prot, int flags, int fd, off64_t offset)
	__attribute__((alias("mmap")));

export int munmap(void *addr, size_t size)
{
	if (hm_settings.mmap && may_be_block(addr))
		hm_block_unmapped(addr);
	return hm_sys_munmap(addr, size);
}

export void *mremap(void *old, size_t old_size, size_t size, int flags, ...)
{
	void *to = NULL;
	va_list args;

	if (flags & MREMAP_FIXED) {
		va_start(args, flags);
		to = va_arg(args, void *);
		va_end(args);
	}
	if (hm_settings.mmap && may_be_block(old))
		hm_block_unmapped(old);
	return (void *)syscall(SYS_mremap, old, old_size, size, flags, to);
}

/*
 * Limits of address space: cached blocks would take room from the program's other mappings. They
 * are noted here, because a sandbox can forbid a system call at each free().
 */
atomic_bool hm_limited;

static void note_limit(int resource, const struct rlimit *limit)
{
	if ((resource == RLIMIT_AS || resource == RLIMIT_DATA) && limit->rlim_cur != RLIM_INFINITY)
		atomic_store_explicit(&hm_limited, true, memory_order_relaxed);
}

static void read_limit(int resource)
{
	struct rlimit limit;

	if (!syscall(SYS_prlimit64, 0, resource, NULL, &limit))
		note_limit(resource, &limit);
}

/* Blocks that are cached already go, too. */
export int prlimit(pid_t pid, __rlimit_resource_t resource, const struct rlimit *limit,
		   struct rlimit *old)
{
	const int ret = syscall(SYS_prlimit64, pid, resource, limit, old);
	const int error = errno;

	if (!ret && limit && (!pid || pid == getpid())) {
		note_limit(resource, limit);
		if (atomic_load_explicit(&hm_limited, memory_order_relaxed))
			hm_block_trim();
		errno = error;
	}
	return ret;
}

export int prlimit64(pid_t pid, __rlimit_resource_t resource, const struct rlimit64 *limit,
		     struct rlimit64 *old)
{
	return prlimit(pid, resource, (const struct rlimit *)limit, (struct rlimit *)old);
}

export int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	return prlimit(0, resource, limit, NULL);
}

export int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	return setrlimit(resource, (const struct rlimit *)limit);
}

/* A line KEY=VALUE without its end. */
static bool read_setting(const char *key, const char *value)
{
	const char *at = value;
	long long n;

	if (!strcmp(key, HM_RUN_REPORT))
		hm_settings.report = value;
	else if (!strcmp(key, HM_RUN_SPEC))
		hm_settings.spec = value;
	else if (!strcmp(key, HM_RUN_HETMEM))
		hm_settings.library = value;
	else if (!strcmp(key, HM_RUN_NODES))
		return hm_run_nodes(value, hm_settings.nodes);
	else if (!strcmp(key, HM_RUN_MMAP))
		hm_settings.mmap = !strcmp(value, "1");
	else if (!strcmp(key, HM_RUN_AGENT))
		hm_settings.agent = !strcmp(value, "1");
	else if (!strcmp(key, HM_RUN_POLICY)) {
		n = hm_run_number(&at, MPOL_MAX - 1);
		hm_settings.policy = n;
		return n >= 0 && !*at;
	} else {
		return false;
	}
	return true;
}

/* Settings are read here and stay as they were when the program started. */
static char text[8192];

/* False: a line is wrong; *@wrong is it. */
static bool read_settings(const char *from, size_t *min, const char **wrong)
{
	char *line, *end, *value;
	const char *at;
	long long n;

	*min = HM_RUN_MIN_DEFAULT;
	*wrong = "it is too long";
	if (strlen(from) >= sizeof(text))
		return false;
	strcpy(text, from);
	for (line = text; *line; line = end) {
		end = line + strcspn(line, "\n");
		if (*end)
			*end++ = '\0';
		*wrong = line;
		value = strchr(line, '=');
		if (!value)
			return false;
		*value++ = '\0';
		if (strcmp(line, HM_RUN_MIN)) {
			if (!read_setting(line, value))
				return false;
			continue;
		}
		at = value;
		n = hm_run_number(&at, HM_RUN_MIN_MOST);
		if (n < (long long)HM_RUN_MIN_LEAST || *at)
			return false;
		*min = n;
	}
	*wrong = HM_RUN_SPEC;
	return !hm_settings.spec == !hm_settings.library;
}

/* What keeps book of every allocation itself; NULL: there is none. */
static const char *find_sanitizer(void)
{
	static const char *const marks[][2] = {
		{ "__asan_init", "AddressSanitizer" }, { "__tsan_init", "ThreadSanitizer" },
		{ "__msan_init", "MemorySanitizer" }, { "__hwasan_init", "HWAddressSanitizer" },
		{ "__lsan_init", "LeakSanitizer" },
	};
	size_t i;

	for (i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
		if (dlsym(RTLD_DEFAULT, marks[i][0]))
			return marks[i][1];
	return NULL;
}

/*
 * Whether another malloc() comes before ours: the program's own, or one that is preloaded
 * first. A program that is linked to fixed addresses can have an entry for ours, undefined.
 */
static bool is_behind_another(void)
{
	void *found = dlsym(RTLD_DEFAULT, "malloc");
	const ElfW(Sym) *symbol;
	Dl_info info;

	return found != (void *)malloc &&
	       dladdr1(found, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol &&
	       symbol->st_shndx != SHN_UNDEF;
}

__attribute__((constructor))
static void begin(void)
{
	const char *from = getenv(HM_RUN_VARIABLE), *wrong;
	const int error = errno;
	size_t min;

	resolve();
	resolve_jemalloc();
	hm_page_size = sysconf(_SC_PAGESIZE);
	wrong = find_sanitizer();
	if (wrong) {
		hm_say(wrong, " is in this program, and replaces malloc itself; run the program "
		       "without 'hetmem run'", "");
		_exit(2);
	}
	if (is_behind_another())
		off = "another malloc comes first";
	if (!read_settings(from ? from : "", &min, &wrong)) {
		hm_say("this process runs without it: wrong in " HM_RUN_VARIABLE ": ", wrong,
		       "; start it by 'hetmem run'");
		off = "wrong settings";
	}
	read_limit(RLIMIT_AS);
	read_limit(RLIMIT_DATA);
	errno = error;
	if (!off)
		hm_settings.min = min;
}

/* RLIMIT_FSIZE must not end the program: consumes the SIGXFSZ of the write. */
static void write_line(int fd, const char *line, size_t size)
{
	const struct timespec none = { 0, 0 };
	sigset_t signal, before;

	sigemptyset(&signal);
	sigaddset(&signal, SIGXFSZ);
	sigprocmask(SIG_BLOCK, &signal, &before);
	/* One write: lines of processes that end together do not mix. */
	if (write(fd, line, size) < 0 && errno == EFBIG && !sigismember(&before, SIGXFSZ))
		sigtimedwait(&signal, NULL, &none);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

__attribute__((destructor))
static void end(void)
{
	char line[512];
	int fd, n;

	if (!hm_settings.report)
		return;
	fd = open(hm_settings.report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
	if (fd < 0)
		return;
	n = snprintf(line, sizeof(line), "pid=%d command=%.64s blocks=%zu peak=%zu cached=%zu "
		     "moved=%zu tracked=%zu resource=%zu mappings=%zu%s%s\n", getpid(),
		     program_invocation_short_name, hm_counters.blocks, hm_counters.peak,
		     hm_counters.cached, hm_counters.moved, hm_counters.tracked,
		     hm_counters.resource, hm_counters.mappings, off ? " off: " : "", off ? off : "");
	if (n > 0)
		write_line(fd, line, n);
	close(fd);
}
