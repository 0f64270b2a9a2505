/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Another driver's device memory: the kernel's own test_hmm, which knows
 * nothing of hetmem, as two GPUs. Its commands as plain functions.
 */
#ifndef HETMEM_HMM_TEST_H
#define HETMEM_HMM_TEST_H

#include "hetmem_mem.h"

#include <test_hmm_uapi.h>

#define NR(size) ((uint64_t)((size) / page_size()))
#define NO_LOC	HETMEM_LOC(HETMEM_UNKNOWN, 0)

/* One of test_hmm's devices, for this process. Closing it evicts its pages. */
HELPER int gpu_open(int nr)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/dev/hmm_dmirror%d", nr);
	do {
		fd = open(path, O_RDWR | O_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0)
		fprintf(stderr, "# no %s: load test_hmm\n", path);
	return fd < 0 ? -errno : fd;
}

HELPER int gpu_call(int gpu, unsigned long nr, void *p, size_t size, void *data,
		    struct hmm_dmirror_cmd *cmd)
{
	*cmd = (struct hmm_dmirror_cmd){
		.addr = (uintptr_t)p,
		.ptr = (uintptr_t)data,
		.npages = NR(size),
	};
	return hm_ioctl(gpu, nr, cmd);
}

/*
 * Prefetch to the GPU. It answers with the data that it has there, which must
 * be the pattern. Return: 0 or a negative errno.
 */
HELPER int to_gpu_at(int gpu, char *p, size_t size, uint64_t seed,
		     size_t offset)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int i, ret = -ENOMEM;

	/* A page that is busy for a moment is left behind: -ENOENT. */
	for (i = 0; data && i < 50; i++) {
		ret = gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_DEV, p, size, data,
			       &cmd);
		if (!ret && cmd.cpages != NR(size))
			ret = -ENODATA;
		if (!ret && mismatch_at(data, size, seed, offset) >= 0)
			ret = -EILSEQ;
		if (ret != -ENOENT)
			break;
		gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_SYS, p, size, data, &cmd);
		usleep(1000);
	}
	free(data);
	return ret;
}

HELPER int to_gpu(int gpu, char *p, size_t size, uint64_t seed)
{
	return to_gpu_at(gpu, p, size, seed, 0);
}

/* The GPU's driver brings pages back of its own accord. */
HELPER int from_gpu(int gpu, char *p, size_t size)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int ret;

	ret = data ? gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_SYS, p, size, data,
			      &cmd) : -ENOMEM;
	free(data);
	return ret;
}

HELPER char *map_pattern(size_t size, uint64_t seed)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_NOHUGEPAGE);
	fill(p, size, seed);
	return p;
}

/* The only foreign location in the range, or NO_LOC. */
HELPER uint32_t foreign_at(int fd, const void *p)
{
	uint32_t loc = run_at(fd, p).location;

	return HETMEM_LOC_KIND(loc) == HETMEM_FOREIGN ? loc : NO_LOC;
}

#endif /* HETMEM_HMM_TEST_H */
