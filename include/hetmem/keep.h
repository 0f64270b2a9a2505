/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Memory that outlives the process that made it. `hetmem keep` runs a keeper: a process that
 * holds descriptors of exported blocks by name. A worker hands over a block, and a later worker
 * maps the same memory without a copy. The keeper calls no driver.
 *
 * A descriptor lets its holder read and write the memory. The keeper cannot know what memory a
 * descriptor has: a block is checked when it is mapped, and its contents are as trustworthy as
 * the users that can map it.
 */
#ifndef HETMEM_KEEP_H
#define HETMEM_KEEP_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a block's name with its end. */
#define HETMEM_KEEP_NAME	64
/* A block can have this number of handles at most: a message carries no more descriptors. */
#define HETMEM_KEEP_SEGMENTS	253

/* A connection to a keeper. While it is open, the keeper counts it as a user of its blocks. */
struct hetmem_keeper;

/*
 * Connects to the keeper at the socket @path. NULL: HETMEM_KEEPER of the environment (ignored in
 * a set-user-ID program), or the keeper's default. Any thread may use @keeper. One call at a time
 * runs, and waits at most 5 s for an answer. If the keeper ends, or refuses the connection, later
 * calls return -EPIPE: open another connection. A keeper that does not answer is -ETIMEDOUT, and
 * -EPIPE in later calls. In a forked child they return -EOWNERDEAD. Errors:
 * -ENOENT, -ECONNREFUSED: no keeper runs there;
 * -EACCES: the socket's mode does not let the caller in;
 * -EPERM: the keeper is neither of the caller's user nor root's;
 * -ENAMETOOLONG: @path;
 * -ENOMEM, -EMFILE.
 */
int hetmem_keeper_open(const char *path, struct hetmem_keeper **keeper);

/* Disconnects. Memory that was mapped stays mapped. NULL does nothing. */
void hetmem_keeper_close(struct hetmem_keeper *keeper);

/*
 * Hands over the live block @ptr of @res under @name: 1 to 63 letters, digits, '.', '_', '-' or
 * '/'. @mode is as of a file, with 0 or 6 for each of owner, group and others: 0600, 0660, 0666.
 * The block stays the caller's, too: hetmem_free() ends its own use. Errors:
 * -EINVAL: @name or @mode; @ptr is no live block;
 * -EEXIST: @name is taken: hetmem_kept_drop() first;
 * -EDQUOT: the keeper's bounds of names, bytes or descriptors for this user;
 * -EMFILE: the keeper has no descriptors left;
 * -ENOSPC: the block has more than HETMEM_KEEP_SEGMENTS handles;
 * -EBUSY: the pool is asleep;
 * -EOPNOTSUPP: not a pool over vmm(export=fd);
 * -EPIPE, -ETIMEDOUT, -EOWNERDEAD.
 */
int hetmem_keep(struct hetmem_keeper *keeper, struct hetmem_resource *res, void *ptr,
		const char *name, unsigned int mode);

/*
 * Maps the block @name for @device at *@ptr, and sets *@bytes to its size. Unmap it by
 * hetmem_import_close(). Errors:
 * -ENOENT: no block has this name;
 * -EACCES: its mode;
 * -EINVAL: @name; its descriptors are no device memory, or have other sizes than was said;
 * -EPIPE, -ETIMEDOUT, -EOWNERDEAD;
 * those of hetmem_import().
 */
int hetmem_kept_import(struct hetmem_keeper *keeper, struct hetmem *hm, int device,
		       const char *name, void **ptr, size_t *bytes);

/*
 * The keeper closes its descriptors of @name. The memory is released when nobody has it mapped.
 * For the block's owner and root. Errors:
 * -ENOENT: no block has this name;
 * -EPERM: it is another user's;
 * -EINVAL: @name;
 * -EPIPE, -ETIMEDOUT, -EOWNERDEAD.
 */
int hetmem_kept_drop(struct hetmem_keeper *keeper, const char *name);

/**
 * struct hetmem_kept - a block of a keeper
 * @size: in: sizeof(struct hetmem_kept)
 * @bytes: as its owner said
 * @generation: of the keeper's blocks, the number of this one. Another block of the same name
 *	has a higher one
 * @uid, @mode: owner, and who else can map it
 * @segments: handles
 * @users: connections that mapped it, or handed it over, and are open
 * @pid: of one of them, as the keeper's PID namespace counts; 0: none
 */
struct hetmem_kept {
	size_t size;
	uint64_t bytes;
	uint64_t generation;
	uint32_t uid;
	uint32_t mode;
	uint32_t segments;
	uint32_t users;
	int32_t pid;
	char name[HETMEM_KEEP_NAME];
};

/*
 * Lists the blocks in order of age: fills @kept with the first one whose generation is above
 * @after. Start with 0, go on with @kept->generation. Errors:
 * -ENOENT: there are no more;
 * -EINVAL: @kept->size;
 * -EPIPE, -ETIMEDOUT, -EOWNERDEAD.
 */
int hetmem_kept_next(struct hetmem_keeper *keeper, uint64_t after, struct hetmem_kept *kept);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_KEEP_H */
