/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The mappings of a process, from /proc/PID/maps. */
#ifndef HETMEM_TOOLS_MAPS_H
#define HETMEM_TOOLS_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * struct vma - one mapping
 * @start: first byte
 * @end: first byte behind it
 * @perms: "rw-p"
 * @why: HETMEM_WHY_* as far as the line in maps tells
 * @name: file, [heap], or a guess in parentheses; control characters escaped
 */
struct vma {
	uint64_t start;
	uint64_t end;
	char perms[5];
	uint32_t why;
	char *name;
};

struct vmas {
	struct vma *vma;
	size_t nr;
};

/*
 * Reads the mappings of @pid in user space, in order of address. -ESRCH no
 * such process, -EACCES not permitted, -ENODATA it has no memory (a kernel
 * thread, a zombie). Free with vmas_free() in any case.
 */
int vmas_read(struct vmas *vmas, pid_t pid);
/* Likewise, until @end of now(); -ETIME: there are more mappings than those in @vmas. */
int vmas_read_until(struct vmas *vmas, pid_t pid, double end);
void vmas_free(struct vmas *vmas);

/* Parses one line of maps; false if it is not one. @line is modified. */
bool vma_parse(struct vma *vma, char *line);

/* Cuts @vmas to [@start, @end). */
void vmas_clip(struct vmas *vmas, uint64_t start, uint64_t end);

/*
 * Drops the mappings of shared libraries: files with code in the process, and the kernel's
 * own ([vdso]). The program itself stays: the kernel maps it below its libraries. Returns how
 * many bytes were dropped.
 */
uint64_t vmas_drop_libraries(struct vmas *vmas);

/* Keeps the @nr largest, in order of address. Returns how many bytes were dropped. */
uint64_t vmas_keep_largest(struct vmas *vmas, size_t nr);

#endif
