// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Arrays and mipmapped arrays that the driver allocates, charged to the limit().
 *
 * Charged are the bytes of the texels. The driver rounds them up, and does not tell how far.
 * Sparse arrays and those of deferred mapping have no memory of their own. An array ends with
 * its context.
 *
 * The lock covers the trees. No call of the driver or of a resource is made with it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

/* CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING. */
#define NO_MEMORY	(0x40U | 0x80U)

enum kind { PLAIN, MIPMAPPED, NR_KINDS };

/**
 * struct array - one that is charged
 * @range: its handle
 */
struct array {
	struct hm_range range;
	struct array *next;
	CUdevice device;
	CUcontext ctx;
	size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *arrays[NR_KINDS];

/*
 * Bits of a texel, for each channel or for all. Formats that are not here, of videos and of
 * later drivers, count as 8 bits for each channel.
 */
static uint64_t bits_of(const struct hm_cuda_array_shape *shape)
{
	static const struct {
		unsigned char first, last, bits;
		bool whole;
	} formats[] = {
		{ 0x01, 0x01, 8, false }, { 0x02, 0x02, 16, false }, { 0x03, 0x03, 32, false },
		{ 0x08, 0x08, 8, false }, { 0x09, 0x09, 16, false }, { 0x0a, 0x0a, 32, false },
		{ 0x10, 0x10, 16, false }, { 0x20, 0x20, 32, false },
		{ 0x50, 0x50, 32, true },
		/* BC1 and BC4 have 8 bytes for 16 texels, the other BC formats 16. */
		{ 0x91, 0x92, 4, true }, { 0x93, 0x96, 8, true },
		{ 0x97, 0x98, 4, true }, { 0x99, 0x9e, 8, true },
		/* NV12 has 12 bits for a texel. */
		{ 0xb0, 0xb0, 12, true },
		{ 0xc0, 0xc0, 8, true }, { 0xc1, 0xc1, 16, true }, { 0xc2, 0xc2, 32, true },
		{ 0xc3, 0xc3, 16, true }, { 0xc4, 0xc4, 32, true }, { 0xc5, 0xc5, 64, true },
		{ 0xc6, 0xc6, 8, true }, { 0xc7, 0xc7, 16, true }, { 0xc8, 0xc8, 32, true },
		{ 0xc9, 0xc9, 16, true }, { 0xca, 0xca, 32, true }, { 0xcb, 0xcb, 64, true },
	};
	size_t i;

	for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (shape->format >= formats[i].first && shape->format <= formats[i].last)
			return formats[i].whole ? formats[i].bits :
				(uint64_t)formats[i].bits * shape->channels;
	return 8ULL * shape->channels;
}

/* Bytes of one level. 0: a size that the driver refuses. */
static size_t level_bytes(const struct hm_cuda_array_shape *shape)
{
	const size_t height = shape->height ? shape->height : 1;
	const size_t depth = shape->depth ? shape->depth : 1;
	size_t texels, bits;

	if (__builtin_mul_overflow(shape->width, height, &texels) ||
	    __builtin_mul_overflow(texels, depth, &texels) ||
	    __builtin_mul_overflow(texels, bits_of(shape), &bits))
		return 0;
	return bits / 8 + (bits % 8 > 0);
}

/* CUDA_ARRAY3D_LAYERED: @depth is a number of layers, which all levels have. */
#define LAYERED	0x01U

static size_t half(size_t size)
{
	return size > 1 ? size / 2 : size;
}

static size_t all_bytes(const struct hm_cuda_array_shape *shape, unsigned int levels)
{
	struct hm_cuda_array_shape level = *shape;
	size_t sum = 0;

	if (shape->flags & NO_MEMORY)
		return 0;
	for (; levels; levels--) {
		if (__builtin_add_overflow(sum, level_bytes(&level), &sum))
			return 0;
		if (level.width <= 1 && level.height <= 1 &&
		    (level.depth <= 1 || shape->flags & LAYERED))
			break;
		level.width = half(level.width);
		level.height = half(level.height);
		if (!(shape->flags & LAYERED))
			level.depth = half(level.depth);
	}
	return sum;
}

/* Takes what begin() charged back unless the driver made the array. */
static void finish(enum kind kind, CUdevice device, size_t size, CUresult res, void *handle)
{
	struct array *a = res || !size ? NULL : malloc(sizeof(*a));
	bool added = false;

	if (a) {
		*a = (struct array){
			.range = { (uintptr_t)handle, (uintptr_t)handle + 1 },
			.device = device, .ctx = hm_cuda_current(), .size = size,
		};
		pthread_mutex_lock(&lock);
		added = !hm_range_insert(&arrays[kind], &a->range);
		pthread_mutex_unlock(&lock);
	}
	if (added)
		return;
	free(a);
	if (size)
		hm_cuda_uncharge(device, size);
}

/* Charges it. *@size: 0: nothing is charged. False: it is beyond the limit. */
static bool begin(const struct hm_cuda_array_shape *shape, unsigned int levels, CUdevice *device,
		  size_t *size)
{
	*size = 0;
	if (!shape || hm_cuda_is_child() || !hm_cuda_current_device(device))
		return true;
	*size = all_bytes(shape, levels);
	return !*size || hm_cuda_charge(*device, *size);
}

CUresult HM_CUDA_EXPORT cuArrayCreate_v2(void **array, const struct hm_cuda_array_2d *desc)
{
	struct hm_cuda_array_shape shape;
	CUdevice device = 0;
	CUresult res;
	size_t size;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuArrayCreate_v2)(array, desc);
	HM_CUDA_COUNT(cuArrayCreate_v2);
	if (!array || !desc)
		return HM_CUDA_NEXT(cuArrayCreate_v2)(array, desc);
	shape = (struct hm_cuda_array_shape){
		.width = desc->width, .height = desc->height,
		.format = desc->format, .channels = desc->channels,
	};
	if (!begin(&shape, 1, &device, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuArrayCreate_v2)(array, desc);
	finish(PLAIN, device, size, res, *array);
	return res;
}

CUresult HM_CUDA_EXPORT cuArray3DCreate_v2(void **array, const struct hm_cuda_array_shape *desc)
{
	CUdevice device = 0;
	CUresult res;
	size_t size;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuArray3DCreate_v2)(array, desc);
	HM_CUDA_COUNT(cuArray3DCreate_v2);
	if (!array)
		return HM_CUDA_NEXT(cuArray3DCreate_v2)(array, desc);
	if (!begin(desc, 1, &device, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuArray3DCreate_v2)(array, desc);
	finish(PLAIN, device, size, res, *array);
	return res;
}

CUresult HM_CUDA_EXPORT cuMipmappedArrayCreate(void **array,
					       const struct hm_cuda_array_shape *desc,
					       unsigned int levels)
{
	CUdevice device = 0;
	CUresult res;
	size_t size;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMipmappedArrayCreate)(array, desc, levels);
	HM_CUDA_COUNT(cuMipmappedArrayCreate);
	if (!array)
		return HM_CUDA_NEXT(cuMipmappedArrayCreate)(array, desc, levels);
	if (!begin(desc, levels, &device, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuMipmappedArrayCreate)(array, desc, levels);
	finish(MIPMAPPED, device, size, res, *array);
	return res;
}

/* Once it is destroyed, another thread can get the handle at once. */
static struct array *take(enum kind kind, void *handle)
{
	struct hm_range *found = NULL;

	if (hm_cuda_is_child())
		return NULL;
	pthread_mutex_lock(&lock);
	found = hm_range_find(&arrays[kind], (uintptr_t)handle, 1);
	if (found)
		hm_range_erase(&arrays[kind], found);
	pthread_mutex_unlock(&lock);
	return (struct array *)found;
}

static void end(enum kind kind, struct array *a, CUresult res)
{
	bool back = false;

	if (a && res) {
		pthread_mutex_lock(&lock);
		back = !hm_range_insert(&arrays[kind], &a->range);
		pthread_mutex_unlock(&lock);
	}
	if (!a || back)
		return;
	hm_cuda_uncharge(a->device, a->size);
	free(a);
}

#define DESTROY(name, kind)						\
CUresult HM_CUDA_EXPORT name(void *array)				\
{									\
	struct array *a;						\
	CUresult res;							\
									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(array);			\
	HM_CUDA_COUNT(name);						\
	a = take(kind, array);						\
	res = HM_CUDA_NEXT(name)(array);				\
	end(kind, a, res);						\
	return res;							\
}

DESTROY(cuArrayDestroy, PLAIN)
DESTROY(cuMipmappedArrayDestroy, MIPMAPPED)

struct drop {
	CUdevice device;
	CUcontext ctx;
	struct array *found;
};

static void look(struct hm_range *range, void *arg)
{
	struct array *a = (void *)range;
	struct drop *d = arg;

	if (d->ctx ? a->ctx != d->ctx : a->device != d->device)
		return;
	a->next = d->found;
	d->found = a;
}

static void add_size(struct hm_range *range, void *arg)
{
	*(uint64_t *)arg += ((struct array *)range)->size;
}

uint64_t hm_cuda_array_bytes(void)
{
	uint64_t sum = 0;
	int kind;

	pthread_mutex_lock(&lock);
	for (kind = 0; kind < NR_KINDS; kind++)
		hm_range_walk(&arrays[kind], add_size, &sum);
	pthread_mutex_unlock(&lock);
	return sum;
}

void hm_cuda_array_drop(CUdevice device, CUcontext ctx)
{
	struct drop d = { .device = device, .ctx = ctx };
	struct array *a;
	int kind;

	for (kind = 0; kind < NR_KINDS; kind++) {
		d.found = NULL;
		pthread_mutex_lock(&lock);
		hm_range_walk(&arrays[kind], look, &d);
		for (a = d.found; a; a = a->next)
			hm_range_erase(&arrays[kind], &a->range);
		pthread_mutex_unlock(&lock);
		while ((a = d.found)) {
			d.found = a->next;
			if (ctx)
				hm_cuda_uncharge(a->device, a->size);
			free(a);
		}
	}
}
