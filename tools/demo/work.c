/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem demo: what the CPU and the device do with the memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"

/* What a prefetch leaves behind is asked for again so often. */
#define MAX_ROUNDS	4

int demo_sum(struct demo *demo, const char *what, const char *expected)
{
	struct digest *digest = digest_new();
	double begin = now();
	char text[DIGEST_TEXT];
	size_t at, n;

	demo_step("CPU: SHA-256 of the memory");
	for (at = 0; at < demo->size; at += n) {
		n = demo->size - at < DEMO_PIECE ? demo->size - at :
		    DEMO_PIECE;
		digest_add(digest, demo->data + at, n);
		demo_progress(at + n, demo->size);
	}
	digest_end(digest, text);
	if (strcmp(text, expected))
		return demo_fail("wrong contents: SHA-256 is %s, %s has %s",
				 text, what, expected);
	demo_done("%.12s... as %s, %.3f GB/s", text, what,
		  demo->size / (now() - begin) / 1e9);
	return 0;
}

int demo_device_waits(struct demo *demo, const char *call, CUresult result)
{
	if (result == CUDA_SUCCESS) {
		call = "cuStreamSynchronize";
		result = demo->driver->cuStreamSynchronize(demo->stream);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return demo_fail("%s: %s", call, hm_cuda_name(demo->driver, result));
}

int demo_prefetch(struct demo *demo, const char *what, void *ptr, size_t size,
		  uint32_t location, bool speed)
{
	bool to_device = HETMEM_LOC_KIND(location) == HETMEM_DEVICE;
	struct hetmem_moved moved;
	uint64_t all = 0;
	double begin = now(), seconds;
	int round, ret;

	demo_step("%s", what);
	/* A page that is busy for a moment stays where it is: ask again. */
	for (round = 0; round < MAX_ROUNDS; round++) {
		memset(&moved, 0, sizeof(moved));
		moved.size = sizeof(moved);
		ret = hetmem_prefetch(demo->hm, ptr, size, location,
				      demo->stream, &moved);
		if (ret)
			return demo_fail("prefetch: %s", hetmem_last_error());
		all += moved.moved;
		if (!moved.not_moved || (moved.why & HETMEM_WHY_NO_MEMORY))
			break;
	}
	ret = demo_device_waits(demo, "", CUDA_SUCCESS);
	if (ret)
		return ret;
	seconds = now() - begin;
	if (!strcmp(moved.how, "none"))
		return demo_fail("nothing moved: %s", moved.reason ?
				 moved.reason : "no reason given");
	if (!strcmp(moved.how, "module"))
		demo_done("%lu pages moved by the module, %lu not",
			  (unsigned long)all, (unsigned long)moved.not_moved);
	else
		demo_done("%s by the %s", size_text(size), moved.how);
	if (speed)
		demo_speed(demo, to_device ? "to the device" :
			   "to the host, in bulk", size, seconds);
	return 0;
}

int demo_device_fills(struct demo *demo, void *ptr, size_t size)
{
	CUresult result;

	result = demo->driver->cuMemsetD8Async((uintptr_t)ptr, DEMO_VALUE,
					       size, demo->stream);
	if (result == CUDA_SUCCESS)
		return 0;
	return demo_fail("cuMemsetD8Async: %s",
			 hm_cuda_name(demo->driver, result));
}

/* The device copies all of it, and what it has copied is summed up. */
int demo_device_reads(struct demo *demo)
{
	const struct hm_driver *driver = demo->driver;
	struct digest *digest = digest_new();
	char text[DIGEST_TEXT];
	double reading = 0, begin;
	CUdeviceptr buffer = 0;
	void *piece = NULL;
	CUresult result;
	size_t at, n;
	int ret;

	demo_step("device: reads all of it");
	result = driver->cuMemAlloc(&buffer, DEMO_PIECE);
	ret = demo_device_waits(demo, "cuMemAlloc", result);
	if (!ret) {
		/* Pinned: ordinary memory might be moved to the device itself. */
		result = driver->cuMemHostAlloc(&piece, DEMO_PIECE, 0);
		ret = demo_device_waits(demo, "cuMemHostAlloc", result);
	}
	for (at = 0; !ret && at < demo->size; at += n) {
		n = demo->size - at < DEMO_PIECE ? demo->size - at :
		    DEMO_PIECE;
		begin = now();
		result = driver->cuMemcpyAsync(buffer,
					       (uintptr_t)demo->data + at, n,
					       demo->stream);
		ret = demo_device_waits(demo, "cuMemcpyAsync", result);
		reading += now() - begin;
		if (ret)
			break;
		result = driver->cuMemcpyDtoHAsync(piece, buffer, n,
						   demo->stream);
		ret = demo_device_waits(demo, "cuMemcpyDtoHAsync", result);
		if (ret)
			break;
		digest_add(digest, piece, n);
		demo_progress(at + n, demo->size);
	}
	digest_end(digest, text);
	if (buffer)
		driver->cuMemFree(buffer);
	if (piece)
		driver->cuMemFreeHost(piece);
	if (ret)
		return ret;
	if (strcmp(text, demo->sum))
		return demo_fail("the device read something else: SHA-256 is %s, the file has %s",
				 text, demo->sum);
	demo_done("%.12s... as the file, %zd pages still on the device", text,
		  demo_on_device(demo, demo->data, demo->mapped));
	demo_speed(demo, "device reads", demo->size, reading);
	return 0;
}

/* One byte of each page, as a program that just goes on would. */
int demo_fault_back(struct demo *demo, size_t size)
{
	volatile const char *data = demo->data;
	double begin = now();
	size_t at;

	demo_step("CPU: touches %s, faults bring it back", size_text(size));
	for (at = 0; at < size; at += demo->page) {
		(void)data[at];
		if (!(at % DEMO_PIECE))
			demo_progress(at, size);
	}
	demo_speed(demo, "to the host, by faults", size, now() - begin);
	demo_done("done");
	return 0;
}
