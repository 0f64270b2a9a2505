// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A program with twice the memory of the emulated device, under a headroom(): it
 * prefetches what it is about to use, the device works on it, the CPU checks. What does
 * not fit stays on the host and is used there; nothing is lost, and the device is in use at
 * the end.
 */
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define PIECE	(MIB / 2)

static size_t page;
static const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);

static struct hetmem_memory_info info_of(int device)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };

	need(!hetmem_memory_info(hm, device, &info), "%s", hetmem_last_error());
	return info;
}

static uint64_t on_device(void)
{
	const struct hetmem_memory_info info =
		info_of(0);

	return info.total - info.figures[HETMEM_MEMORY_MODULE].bytes;
}

static void figures(void)
{
	const struct hetmem_memory_info info = info_of(0);
	const struct hetmem_memory_figure *f = &info.figures[HETMEM_MEMORY_MODULE];

	ok(f->bytes != HETMEM_MEMORY_UNKNOWN && f->counts, "the module tells: %s",
	   f->source);
	is(info.total, 8 * MIB, "total");
	ok(info.usable <= 8 * MIB - info.reserve, "usable: %llu",
	   (long long)info.usable);
}

/* The whole of a range that is trimmed goes as far as there is room. */
static void trimmed(struct hetmem_resource *res, unsigned char *p, size_t size)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	const uint64_t most = info_of(0).usable;

	is(hetmem_prefetch(hm, p, size, device0, NULL, &moved), 0, "all of it: %s",
	   moved.reason);
	ok(strstr(moved.reason, "fit on device 0"), "is trimmed, with the number");
	is(moved.why, HETMEM_WHY_NO_MEMORY, "for want of room");
	ok(moved.moved + moved.already <= most / page && moved.not_moved >=
	   (size - most) / page, "%llu pages went, %llu stayed",
	   (long long)moved.moved, (long long)moved.not_moved);
	ok(info_of(0).figures[HETMEM_MEMORY_MODULE].bytes >= info_of(0).reserve,
	   "the reserve is left");
	/* What is there already needs no room. */
	is(hetmem_prefetch(hm, p, moved.why_addr - (uintptr_t)p, device0, NULL, &moved),
	   0, "what went: %s", moved.reason);
	is(hetmem_prefetch(hm, p + size - 4 * MIB, 4 * MIB, device0, NULL, &moved), -ENOMEM,
	   "what does not: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "fit"), "with the number");
	(void)res;
}

static void work_on(unsigned char *p, size_t size)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	size_t at, refused = 0, wrong = 0, round, i;
	CUstream s;

	need(!drv->cuStreamCreate(&s, 0), "a stream");
	for (round = 1; round <= 2; round++) {
		for (at = 0; at < size; at += PIECE) {
			int err = hetmem_prefetch(hm, p + at, PIECE, device0, s,
						  &moved);

			refused += err == -ENOMEM;
			wrong += err && err != -ENOMEM;
			wrong += !!drv->cuMemsetD8Async((uintptr_t)p + at,
							(at / PIECE + round) & 255,
							PIECE, s);
		}
		wrong += !!drv->cuStreamSynchronize(s);
		for (i = 0; i < size; i += 512)
			wrong += p[i] != ((i / PIECE + round) & 255);
	}
	is(wrong, 0, "contents, and no error but the refusals");
	printf("# %zu pieces were refused\n", refused);
	/* As long as the device is the one that works, it is in use. */
	for (at = 0; at < size; at += PIECE) {
		hetmem_prefetch(hm, p + at, PIECE, device0, s, NULL);
		drv->cuMemsetD8Async((uintptr_t)p + at, 7, PIECE, s);
	}
	is(drv->cuStreamSynchronize(s), 0, "the last round");
	ok(on_device() >= 8 * MIB * 80 / 100, "%llu of %zu bytes of the device are in use",
	   (long long)on_device(), 8 * MIB);
	ok(all_bytes(p, 7, size), "contents");
	drv->cuStreamDestroy(s);
}

int main(void)
{
	const size_t size = 16 * MIB;
	struct hetmem_resource *res;
	unsigned char *p;

	page = sysconf(_SC_PAGESIZE);
	open_soft(NULL);
	figures();
	need(!hetmem_resource_create(hm, "headroom(pool(system(device=0)),keep=2%)", &res),
	     "a headroom: %s", hetmem_last_error());
	need(!hetmem_alloc(res, size, 0, HETMEM_STREAM_HOST, (void **)&p),
	     "twice the device: %s", hetmem_last_error());
	memset(p, 1, size);
	trimmed(res, p, size);
	ok(all_bytes(p, 1, size), "contents");
	work_on(p, size);
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(res), 0, "nothing is left");
	close_soft();
	return tap_end();
}
