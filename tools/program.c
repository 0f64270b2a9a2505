/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* See program.h. Nothing in the file is trusted: every offset is compared with its size. */
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"
#include "util.h"

struct file {
	const unsigned char *data;
	size_t size;
};

/* NULL: it is not all in the file. */
static const void *part(const struct file *f, uint64_t at, uint64_t nr, uint64_t size)
{
	uint64_t bytes;

	if (__builtin_mul_overflow(nr, size, &bytes) || at > f->size || bytes > f->size - at ||
	    at % _Alignof(uint64_t))
		return NULL;
	return f->data + at;
}

/* A string of the table at @strings; NULL: it does not end there. */
static const char *string(const struct file *f, const Elf64_Shdr *strings, uint64_t at)
{
	const char *s;

	if (at >= strings->sh_size || strings->sh_offset > f->size ||
	    strings->sh_size > f->size - strings->sh_offset)
		return NULL;
	s = (const char *)f->data + strings->sh_offset + at;
	return memchr(s, 0, strings->sh_size - at) ? s : NULL;
}

static bool has_loader(const struct file *f, const Elf64_Ehdr *head)
{
	const Elf64_Phdr *p = part(f, head->e_phoff, head->e_phnum, sizeof(*p));
	size_t i;

	for (i = 0; p && i < head->e_phnum; i++)
		if (p[i].p_type == PT_INTERP)
			return true;
	/* Headers that cannot be read are the kernel's to refuse. */
	return !p;
}

static const char *objection_of(const char *name, bool own_malloc)
{
	if (!strcmp(name, "__asan_init") || !strcmp(name, "__tsan_init") ||
	    !strcmp(name, "__msan_init") || !strcmp(name, "__hwasan_init") ||
	    !strcmp(name, "__lsan_init"))
		return "has a sanitizer, which replaces malloc itself; run it without 'hetmem run'";
	if (own_malloc && !strcmp(name, "malloc"))
		return "has a malloc of its own, which comes first; build it without, or run it without 'hetmem run'";
	return NULL;
}

/* What the dynamic symbols tell. */
static const char *symbols(const struct file *f, const Elf64_Ehdr *head, bool is_malloc)
{
	const Elf64_Shdr *s = part(f, head->e_shoff, head->e_shnum, sizeof(*s));
	const char *name, *objection = NULL;
	const Elf64_Sym *symbol;
	size_t i, k;

	for (i = 0; s && i < head->e_shnum; i++) {
		if (s[i].sh_type != SHT_DYNSYM || s[i].sh_link >= head->e_shnum)
			continue;
		symbol = part(f, s[i].sh_offset, s[i].sh_size / sizeof(*symbol), sizeof(*symbol));
		for (k = 0; symbol && !objection && k < s[i].sh_size / sizeof(*symbol); k++) {
			name = string(f, &s[s[i].sh_link], symbol[k].st_name);
			if (name)
				objection = objection_of(name, is_malloc &&
							 symbol[k].st_shndx != SHN_UNDEF);
		}
	}
	return objection;
}

static const char *look(const struct file *f, bool is_malloc)
{
	const Elf64_Ehdr *head = part(f, 0, 1, sizeof(*head));

	if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG))
		return NULL;
	if (head->e_ident[EI_CLASS] != ELFCLASS64)
		return "is a 32-bit program; hetmem is for 64-bit ones";
	if (!has_loader(f, head))
		return "is linked statically, so no library can be put into it; link it dynamically, or run it without 'hetmem run'";
	return symbols(f, head, is_malloc);
}

const char *program_objection(const char *path, bool is_malloc)
{
	const char *objection = NULL;
	struct file f = { NULL, 0 };
	struct stat st;
	void *data;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0) {
		data = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (data != MAP_FAILED) {
			f.data = data;
			f.size = st.st_size;
			objection = look(&f, is_malloc);
			munmap(data, f.size);
		}
	}
	close(fd);
	return objection;
}
