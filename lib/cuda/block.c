// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The device memory that this process has, by address: blocks of the program, and regions that
 * the library itself has from the driver. One lock covers both. A forked child never takes it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *blocks;
/* First addresses. A block can begin there, too. */
static void *regions;
/* The driver's own ids are small numbers: the highest bit keeps these apart. */
static unsigned long long last_id = 1ULL << 63;

static bool insert(struct hm_cuda_block *copy)
{
	bool added;

	pthread_mutex_lock(&lock);
	if (!copy->id)
		copy->id = ++last_id;
	added = !hm_range_insert(&blocks, &copy->range);
	pthread_mutex_unlock(&lock);
	if (!added)
		free(copy);
	return added;
}

bool hm_cuda_block_add(const struct hm_cuda_block *block)
{
	struct hm_cuda_block *copy = malloc(sizeof(*copy));

	if (!copy)
		return false;
	*copy = *block;
	copy->id = 0;
	return insert(copy);
}

void hm_cuda_block_put(const struct hm_cuda_block *block)
{
	struct hm_cuda_block *copy = malloc(sizeof(*copy));

	/* Without host memory the block is the driver's to refuse: it stays allocated. */
	if (!copy)
		return;
	*copy = *block;
	insert(copy);
}

bool hm_cuda_block_find(CUdeviceptr ptr, struct hm_cuda_block *block)
{
	const struct hm_cuda_block *found;

	pthread_mutex_lock(&lock);
	found = (const void *)hm_range_find(&blocks, ptr, 1);
	if (found)
		*block = *found;
	pthread_mutex_unlock(&lock);
	return found;
}

static void remove_block(struct hm_cuda_block *found, struct hm_cuda_block *block)
{
	*block = *found;
	hm_range_erase(&blocks, &found->range);
	free(found);
}

bool hm_cuda_block_take(CUdeviceptr ptr, unsigned int kinds, struct hm_cuda_block *block)
{
	struct hm_cuda_block *found;

	pthread_mutex_lock(&lock);
	found = (void *)hm_range_find(&blocks, ptr, 1);
	if (found && (found->range.start != ptr || !(kinds >> found->kind & 1)))
		found = NULL;
	if (found)
		remove_block(found, block);
	pthread_mutex_unlock(&lock);
	return found;
}

struct drop {
	CUdevice device;
	CUcontext ctx;
	struct hm_cuda_block *found;
};

static void look(struct hm_range *range, void *arg)
{
	struct hm_cuda_block *block = (void *)range;
	struct drop *d = arg;

	if (d->ctx ? block->ctx != d->ctx : block->device != d->device)
		return;
	block->next = d->found;
	d->found = block;
}

void hm_cuda_block_drop(CUdevice device, CUcontext ctx,
			void (*each)(const struct hm_cuda_block *block))
{
	struct drop d = { .device = device, .ctx = ctx };
	struct hm_cuda_block *block;

	pthread_mutex_lock(&lock);
	hm_range_walk(&blocks, look, &d);
	for (block = d.found; block; block = block->next)
		hm_range_erase(&blocks, &block->range);
	pthread_mutex_unlock(&lock);
	while ((block = d.found)) {
		d.found = block->next;
		each(block);
		free(block);
	}
}

static void add_charged(struct hm_range *range, void *arg)
{
	const struct hm_cuda_block *block = (void *)range;

	if (block->kind == HM_CUDA_CHARGED)
		*(uint64_t *)arg += range->end - range->start;
}

uint64_t hm_cuda_block_charged(void)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&lock);
	hm_range_walk(&blocks, add_charged, &sum);
	pthread_mutex_unlock(&lock);
	return sum;
}

void hm_cuda_region_add(CUdeviceptr ptr)
{
	struct hm_range *region = malloc(sizeof(*region));

	if (!region)
		return;
	*region = (struct hm_range){ ptr, ptr + 1 };
	pthread_mutex_lock(&lock);
	if (hm_range_insert(&regions, region))
		free(region);
	pthread_mutex_unlock(&lock);
}

void hm_cuda_region_remove(CUdeviceptr ptr)
{
	struct hm_range *region;

	pthread_mutex_lock(&lock);
	region = hm_range_find(&regions, ptr, 1);
	if (region)
		hm_range_erase(&regions, region);
	pthread_mutex_unlock(&lock);
	free(region);
}

bool hm_cuda_is_region(CUdeviceptr ptr)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = hm_range_find(&regions, ptr, 1);
	pthread_mutex_unlock(&lock);
	return is;
}
