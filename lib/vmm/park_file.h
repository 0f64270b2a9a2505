/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * park=PATH: the contents of a sleeping pool, in a file of the directory PATH. The file has
 * no name, so it ends with the process, however that ends. It has room for all contents
 * before anything is written, and it is complete before the pool gives up its memory.
 *
 * Several threads copy. Each has a piece of page-locked memory, a stream, and a piece of the
 * file at a time. The file is read and written around the page cache where its file system
 * can do that. Elsewhere the cache is written out and dropped piece by piece: on an
 * integrated device it is the memory that the sleep gives back.
 *
 * pool->sleep_lock protects a file. pool->lock is not held here.
 */
#ifndef HETMEM_VMM_PARK_FILE_H
#define HETMEM_VMM_PARK_FILE_H

#include "pool/pool_impl.h"

struct hm_park_file;

/* Device memory [@addr, @addr + @bytes) that is saved, @at bytes from the begin of all. */
struct hm_span {
	uint64_t addr;
	uint64_t bytes;
	uint64_t at;
};

/**
 * struct hm_contents - what is copied
 * @staging: provider of memory for the copies
 * @spans, @nr: by address
 * @bytes: of all
 */
struct hm_contents {
	struct hm_provider *staging;
	const struct hm_span *spans;
	size_t nr;
	uint64_t bytes;
};

/*
 * Checks the directory @path; *@real is its absolute path, to be freed. Errors:
 * -EINVAL: it is no directory;
 * -EACCES, -EROFS: no file can be made there;
 * -EOPNOTSUPP: @disk, and its files are in memory;
 * -ENOSPC, -ENOMEM, -EMFILE, -ENFILE, -EIO.
 */
int hm_park_directory(const char *path, bool disk, char **real);

/*
 * Writes @c to a new file in pool->opt.park_dir. Errors, after which there is no file:
 * -ENOSPC: there is no room, and the text has the number of bytes that fit;
 * -ENOMEM, -EIO, and those of hm_park_directory().
 */
int hm_park_file_save(struct pool *p, const struct hm_contents *c, struct hm_park_file **out);

/* Reads all back. -ENOMEM, -EIO: the contents are still in the file. */
int hm_park_file_load(struct pool *p, const struct hm_contents *c, struct hm_park_file *f);

/*
 * Reads [@at, @at + @bytes) of the contents to host memory. -ENOMEM, -EIO. They stay in the
 * file.
 */
int hm_park_file_read(struct pool *p, struct hm_park_file *f, uint64_t at, uint64_t bytes,
		      void *to);

/* The contents are lost. NULL does nothing. */
void hm_park_file_close(struct hm_park_file *f);

#endif /* HETMEM_VMM_PARK_FILE_H */
