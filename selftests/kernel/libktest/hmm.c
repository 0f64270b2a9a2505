// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/hmm.h"
#include "libktest/view.h"

static int open_device(const char *name, int nr)
{
	char path[48];
	int fd;

	snprintf(path, sizeof(path), "/dev/%s%d", name, nr);
	do {
		fd = open(path, O_RDWR | O_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0)
		fprintf(stderr, "# no %s: load test_hmm\n", path);
	return fd < 0 ? -errno : fd;
}

int gpu_open(int nr)
{
	return open_device("hmm_dmirror", nr);
}

int gpu_open_2m(int nr)
{
	return open_device("hmm_dmirror_2m", nr);
}

int gpu_call(int gpu, unsigned long nr, void *p, size_t size, void *data,
	     struct hmm_dmirror_cmd *cmd)
{
	*cmd = (struct hmm_dmirror_cmd){
		.addr = (uintptr_t)p,
		.ptr = (uintptr_t)data,
		.npages = NR(size),
	};
	return hm_ioctl(gpu, nr, cmd);
}

int to_gpu_at(int gpu, char *p, size_t size, uint64_t seed,
	      size_t offset)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int i, ret = -ENOMEM;

	/* A page that is busy for a moment is left behind: -ENOENT. */
	for (i = 0; data && i < 50; i++) {
		ret = gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_DEV, p, size, data,
			       &cmd);
		if (!ret && cmd.cpages != (uint64_t)NR(size))
			ret = -ENODATA;
		if (!ret && mismatch_at(data, size, seed, offset) >= 0)
			ret = -EILSEQ;
		if (ret != -ENOENT)
			break;
		gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_SYS, p, size, data, &cmd);
		/* time: the pace of looks */
		usleep(1000);
	}
	free(data);
	return ret;
}

int to_gpu(int gpu, char *p, size_t size, uint64_t seed)
{
	return to_gpu_at(gpu, p, size, seed, 0);
}

int from_gpu(int gpu, char *p, size_t size)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int ret;

	ret = data ? gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_SYS, p, size, data,
			      &cmd) : -ENOMEM;
	free(data);
	return ret;
}

uint32_t foreign_at(int fd, const void *p)
{
	uint32_t loc = run_at(fd, p).location;

	return HETMEM_LOC_KIND(loc) == HETMEM_FOREIGN ? loc : NO_LOC;
}

int pool_at(int fd, uint32_t location, struct hetmem_pool_info *pool)
{
	struct hetmem_pool_info pools[64];
	struct hetmem_cmd_info cmd = {
		.size = sizeof(cmd),
		.pool_size = sizeof(pools[0]),
		.pools = (uintptr_t)pools,
		.nr_pools = ARRAY_SIZE(pools),
	};
	unsigned int i;
	int ret = hm_ioctl(fd, HETMEM_IOC_INFO, &cmd);

	for (i = 0; !ret && i < cmd.nr_pools && i < ARRAY_SIZE(pools); i++) {
		if (pools[i].location != location)
			continue;
		*pool = pools[i];
		return 0;
	}
	return ret ? ret : -ENOENT;
}
