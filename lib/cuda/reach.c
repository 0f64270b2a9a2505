// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The ways in which programs reach the driver, and this object's own way to it.
 *
 * A program that is linked with libcuda.so.1 gets the symbols of entry.c, because this object
 * is preloaded. A program that asks dlsym(), dlvsym() or cuGetProcAddress() gets a function
 * of the driver's, which is replaced by the function of the same name here. Functions are
 * compared by address: so it does not matter by which path, handle or version a program asks,
 * and a function that is not in calls.h reaches the program as the driver has it.
 *
 * Exceptions. dlsym(RTLD_NEXT) of an object that has a function of that name itself is left
 * alone: that object interposes, too, and would call itself for ever. Interposers before this
 * one call this one. Interposers behind it are called by it.
 *
 * libc's dlsym() is found in libc's own tables, since every lookup by name finds the dlsym()
 * of this object.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

#define CUDA_LIBRARY	"libcuda.so.1"
#define NAME_MOST	96

/* @done: @fn is the answer; 0: ask libc. */
struct hm_dl_answer {
	void *fn;
	long done;
};

typedef void *dlsym_fn(void *handle, const char *name);
typedef void *dlvsym_fn(void *handle, const char *name, const char *version);

/* Where entry.c jumps: to the next interposer's functions, else to libc's. */
dlsym_fn *hm_next_dlsym;
dlvsym_fn *hm_next_dlvsym;
/* entry.c's dlsym(), by a name that the linker does not wrap. */
dlsym_fn hm_own_dlsym;
struct hm_dl_answer hm_dlsym_answer(void *handle, const char *name, void *unused, void *caller);
struct hm_dl_answer hm_dlvsym_answer(void *handle, const char *name, const char *version,
				     void *caller);
dlsym_fn __wrap_dlsym;	/* of libhetmem.a, see the Makefile */
uint64_t hetmem_cuda_count(const char *name);

static bool active;
static bool settings_read;
static void *driver;
/* What hm_cuda_next has once it is known. */
static void *found[HM_CUDA_NR];
/* Functions of names in calls.h that cuGetProcAddress() returned in a version unknown here. */
uint64_t hm_cuda_unknown;

/* libc. */

static dlsym_fn *libc_dlsym;
static dlvsym_fn *libc_dlvsym;

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

struct tables {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *hash;
	const char *soname;
};

/* The loader has relocated the addresses in its objects, and not those of the kernel's. */
static const void *relocated(uintptr_t base, uintptr_t address)
{
	return (const void *)(address < base ? base + address : address);
}

static struct tables find_tables(uintptr_t base, const ElfW(Dyn) *dynamic)
{
	struct tables t = { 0 };
	size_t soname = 0;

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		if (dynamic->d_tag == DT_SYMTAB)
			t.symbols = relocated(base, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_STRTAB)
			t.strings = relocated(base, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_GNU_HASH)
			t.hash = relocated(base, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_SONAME)
			soname = dynamic->d_un.d_val;
	}
	if (soname && t.strings)
		t.soname = t.strings + soname;
	return t;
}

/* The function @name that the object at @base defines; NULL: none. */
static void *find_function(const struct tables *t, uintptr_t base, const char *name)
{
	const uint32_t *buckets, *chain, hash = gnu_hash(name);
	uint32_t i;

	if (!t->symbols || !t->strings || !t->hash || !t->hash[0])
		return NULL;
	buckets = t->hash + 4 + t->hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	chain = buckets + t->hash[0];
	i = buckets[hash % t->hash[0]];
	if (i < t->hash[1])
		return NULL;
	for (;; i++) {
		const uint32_t here = chain[i - t->hash[1]];
		const ElfW(Sym) *s = &t->symbols[i];

		if ((here | 1) == (hash | 1) && s->st_shndx != SHN_UNDEF &&
		    ELF64_ST_TYPE(s->st_info) == STT_FUNC && !strcmp(t->strings + s->st_name, name))
			return (void *)(base + s->st_value);
		if (here & 1)
			return NULL;
	}
}

static const ElfW(Dyn) *find_dynamic(const struct dl_phdr_info *info)
{
	int i;

	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

static int look_for_libc(struct dl_phdr_info *info, size_t size, void *unused)
{
	const ElfW(Dyn) *dynamic = find_dynamic(info);
	struct tables t;

	(void)size;
	(void)unused;
	if (!dynamic)
		return 0;
	t = find_tables(info->dlpi_addr, dynamic);
	if (!t.soname || strcmp(t.soname, "libc.so.6"))
		return 0;
	libc_dlvsym = find_function(&t, info->dlpi_addr, "dlvsym");
	libc_dlsym = find_function(&t, info->dlpi_addr, "dlsym");
	return 1;
}

/* Constructors of other objects can call dlsym() before the one below has run. */
static void find_libc(void)
{
	void *next;

	if (__atomic_load_n(&hm_next_dlsym, __ATOMIC_ACQUIRE))
		return;
	dl_iterate_phdr(look_for_libc, NULL);
	if (!libc_dlsym || !libc_dlvsym) {
		hm_cuda_say("this C library has no dlsym() to call: glibc 2.34 or later is needed, run the program without 'hetmem run --device'");
		abort();
	}
	next = libc_dlsym(RTLD_NEXT, "dlvsym");
	hm_next_dlvsym = next ? next : (void *)libc_dlvsym;
	next = libc_dlsym(RTLD_NEXT, "dlsym");
	__atomic_store_n(&hm_next_dlsym, next ? next : (void *)libc_dlsym, __ATOMIC_RELEASE);
}

void *__wrap_dlsym(void *handle, const char *name)
{
	find_libc();
	return libc_dlsym(handle, name);
}

bool hm_cuda_is_active(void)
{
	if (hm_unlikely(!__atomic_load_n(&settings_read, __ATOMIC_ACQUIRE))) {
		active = hm_cuda_read_settings();
		__atomic_store_n(&settings_read, true, __ATOMIC_RELEASE);
	}
	return active;
}

/* Names. */

static int compare(const void *name, const void *row)
{
	return strcmp(name, *(const char *const *)row);
}

/* Returns the index of a function in calls.h, or -1. */
static int find_call(const char *name)
{
	const char *const *row;

	if (!name || name[0] != 'c' || name[1] != 'u')
		return -1;
	row = bsearch(name, hm_cuda_names, HM_CUDA_NR, sizeof(*row), compare);
	return row ? row - hm_cuda_names : -1;
}

uint64_t HM_CUDA_EXPORT hetmem_cuda_count(const char *name)
{
	const int call = find_call(name);

	return call < 0 ? 0 : __atomic_load_n(&hm_cuda_counts[call], __ATOMIC_RELAXED);
}

/* Objects. */

static struct link_map *object_of(const void *address)
{
	struct link_map *map = NULL;
	Dl_info info;

	return address && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

/* Whether @fn is in a libcuda.so.1, wherever that was loaded from. */
static bool is_drivers(const void *fn)
{
	struct link_map *map = object_of(fn);
	struct tables t;

	if (!map || !map->l_ld)
		return false;
	t = find_tables(map->l_addr, map->l_ld);
	return t.soname && !strcmp(t.soname, CUDA_LIBRARY);
}

/* The driver's library. @load: if the program has not loaded it. NULL: there is none. */
static void *find_driver(bool load)
{
	void *library = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);

	if (library)
		return library;
	/* Its functions are kept: the program's dlclose() must not unload it. */
	library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
	if (!library && load)
		library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library)
		__atomic_store_n(&driver, library, __ATOMIC_RELEASE);
	return library;
}

static CUresult absent(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

void *hm_cuda_find(unsigned int call)
{
	void *next = __atomic_load_n(&found[call], __ATOMIC_ACQUIRE), *library;

	if (next)
		return next;
	find_libc();
	next = libc_dlsym(RTLD_NEXT, hm_cuda_names[call]);
	library = next ? NULL : find_driver(true);
	if (library)
		next = libc_dlsym(library, hm_cuda_names[call]);
	if (!next)
		return absent;
	__atomic_store_n(&hm_cuda_next[call], next, __ATOMIC_RELEASE);
	__atomic_store_n(&found[call], next, __ATOMIC_RELEASE);
	return next;
}

/* Whether the object of the caller comes before this one in the order of lookup. */
static bool is_before(const struct link_map *object)
{
	const struct link_map *self = object_of(hm_cuda_own[0]);

	for (; object; object = object->l_next)
		if (object == self)
			return true;
	return false;
}

static bool has_function(const struct link_map *object, const char *name)
{
	struct tables t = find_tables(object->l_addr, object->l_ld);

	return find_function(&t, object->l_addr, name);
}

static void *lookup(void *handle, const char *name, const char *version)
{
	return version ? libc_dlvsym(handle, name, version) : libc_dlsym(handle, name);
}

static struct hm_dl_answer answer_next(int call, const struct link_map *caller)
{
	if (!caller || is_before(caller) || has_function(caller, hm_cuda_names[call]) ||
	    !find_driver(false))
		return (struct hm_dl_answer){ 0 };
	return (struct hm_dl_answer){ hm_cuda_own[call], 1 };
}

/* Without the driver in the process a program that looks for it finds nothing. */
static struct hm_dl_answer answer_default(int call, const char *version)
{
	void *fn = lookup(RTLD_DEFAULT, hm_cuda_names[call], version);

	if (is_drivers(fn) || (fn == hm_cuda_own[call] && find_driver(false)))
		return (struct hm_dl_answer){ hm_cuda_own[call], 1 };
	if (fn == hm_cuda_own[call])
		return (struct hm_dl_answer){ lookup(RTLD_NEXT, hm_cuda_names[call], version), 1 };
	return (struct hm_dl_answer){ 0 };
}

/* Whether @name is a function of the driver that is younger than calls.h. */
static bool is_unknown(void *handle, const char *name)
{
	return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' &&
		is_drivers(libc_dlsym(handle == RTLD_NEXT ? RTLD_DEFAULT : handle, name));
}

static struct hm_dl_answer answer(void *handle, const char *name, const char *version,
				  void *caller)
{
	int call;
	void *fn;

	find_libc();
	call = find_call(name);
	/* An object that asks for libc's by version would lead the program past this one. */
	if (version && name && !strcmp(name, "dlsym") &&
	    object_of(lookup(handle, name, version)) == object_of(libc_dlsym))
		return (struct hm_dl_answer){ hm_own_dlsym, hm_cuda_is_active() };
	if (!hm_cuda_is_active())
		return (struct hm_dl_answer){ 0 };
	if (call < 0 && is_unknown(handle, name))
		__atomic_add_fetch(&hm_cuda_unknown, 1, __ATOMIC_RELAXED);
	if (call < 0)
		return (struct hm_dl_answer){ 0 };
	if (handle == RTLD_NEXT)
		return answer_next(call, object_of(caller));
	if (handle == RTLD_DEFAULT)
		return answer_default(call, version);
	fn = lookup(handle, name, version);
	if (!is_drivers(fn))
		return (struct hm_dl_answer){ 0 };
	return (struct hm_dl_answer){ hm_cuda_own[call], 1 };
}

__attribute__((used))
struct hm_dl_answer hm_dlsym_answer(void *handle, const char *name, void *unused, void *caller)
{
	(void)unused;
	return answer(handle, name, NULL, caller);
}

__attribute__((used))
struct hm_dl_answer hm_dlvsym_answer(void *handle, const char *name, const char *version,
				     void *caller)
{
	return answer(handle, name, version, caller);
}

/* cuGetProcAddress(). */

/* The versions of a function that calls.h can have, and their forms for streams. */
static const char *const versions[] = { "", "_v2", "_v3", "_v4" };
static const char *const forms[] = { "", "_ptsz", "_ptds" };

#define NR_FORMS	(sizeof(forms) / sizeof(forms[0]))
#define NR_NAMES	(sizeof(versions) / sizeof(versions[0]) * NR_FORMS)

/* Writes the @i-th exported name that @base can have. Returns its index in calls.h, or -1. */
static int nth_name(const char *base, size_t i)
{
	char name[NAME_MOST];
	const char *version = versions[i / NR_FORMS], *form = forms[i % NR_FORMS];

	if (strlen(base) + strlen(version) + strlen(form) >= sizeof(name))
		return -1;
	strcpy(name, base);
	strcat(name, version);
	strcat(name, form);
	return find_call(name);
}

/*
 * Returns what the program gets for @fn, which the next cuGetProcAddress() has returned for
 * @base.
 */
static void *replace(const char *base, void *fn)
{
	void *library = find_driver(true);
	size_t i;
	int call;

	if (!base || !fn)
		return fn;
	for (i = 0; i < NR_NAMES; i++) {
		call = nth_name(base, i);
		if (call >= 0 && (fn == hm_cuda_find(call) || (library && fn ==
		    libc_dlsym(library, hm_cuda_names[call]))))
			return hm_cuda_own[call];
	}
	__atomic_add_fetch(&hm_cuda_unknown, 1, __ATOMIC_RELAXED);
	return fn;
}

CUresult HM_CUDA_EXPORT cuGetProcAddress(const char *symbol, void **fn, int version,
					 cuuint64_t flags)
{
	CUresult res = HM_CUDA_NEXT(cuGetProcAddress)(symbol, fn, version, flags);

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuGetProcAddress);
	if (!res && fn)
		*fn = replace(symbol, *fn);
	return res;
}

CUresult HM_CUDA_EXPORT cuGetProcAddress_v2(const char *symbol, void **fn, int version,
					    cuuint64_t flags,
					    CUdriverProcAddressQueryResult *status)
{
	CUresult res = HM_CUDA_NEXT(cuGetProcAddress_v2)(symbol, fn, version, flags, status);

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuGetProcAddress_v2);
	if (!res && fn)
		*fn = replace(symbol, *fn);
	return res;
}

__attribute__((constructor))
static void begin(void)
{
	find_libc();
	hm_cuda_is_active();
}
