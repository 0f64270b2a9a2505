// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's legacy IPC and its stand-in for a dma-buf: what another
 * process, or the holder of a descriptor, writes is there.
 */
#include <sys/mman.h>
#include <sys/wait.h>

#include "soft_driver.h"

#define SIZE	((size_t)3 << 20)

/* The other process: adds one to what it finds, and tells what went wrong. */
static int other_process(int in)
{
	unsigned char *host;
	CUipcMemHandle ipc;
	CUdeviceptr p = 0;
	size_t i;

	if (read(in, &ipc, sizeof(ipc)) != sizeof(ipc))
		return 1;
	open_soft("");
	host = malloc(SIZE);
	if (drv->cuIpcOpenMemHandle(&p, ipc, 1))
		return 2;
	if (drv->cuMemFree(p) != CUDA_ERROR_INVALID_VALUE)
		return 3;
	if (drv->cuMemcpyDtoHAsync(host, p, SIZE, NULL) ||
	    drv->cuStreamSynchronize(NULL))
		return 4;
	for (i = 0; i < SIZE; i++)
		host[i]++;
	if (drv->cuMemcpyHtoDAsync(p, host, SIZE, NULL) ||
	    drv->cuStreamSynchronize(NULL))
		return 5;
	if (drv->cuIpcCloseMemHandle(p + 4096) != CUDA_ERROR_INVALID_VALUE ||
	    drv->cuIpcCloseMemHandle(p) ||
	    drv->cuIpcCloseMemHandle(p) != CUDA_ERROR_INVALID_VALUE)
		return 6;
	memset(&ipc, 0, sizeof(ipc));
	if (drv->cuIpcOpenMemHandle(&p, ipc, 1) != CUDA_ERROR_INVALID_VALUE)
		return 7;
	close_soft();
	free(host);
	return 0;
}

static void ipc(int out, pid_t pid)
{
	unsigned char *host = malloc(SIZE);
	CUipcMemHandle name;
	CUdeviceptr p, q;
	int status = -1;

	need(!drv->cuMemAlloc(&q, 4096) && !drv->cuMemAlloc(&p, SIZE),
	     "memory");
	drv->cuMemsetD8Async(p, 0x30, SIZE, NULL);
	drv->cuMemsetD8Async(q, 0x50, 4096, NULL);
	drv->cuStreamSynchronize(NULL);
	is(drv->cuIpcGetMemHandle(&name, p + 5000), 0, "a name");
	is(drv->cuIpcOpenMemHandle(&q, name, 1), CUDA_ERROR_INVALID_CONTEXT,
	   "not for this process");
	need(write(out, &name, sizeof(name)) == sizeof(name), "is sent");
	waitpid(pid, &status, 0);
	is(status, 0, "the other process found all as it should be");
	drv->cuMemcpyDtoHAsync(host, p, SIZE, NULL);
	drv->cuStreamSynchronize(NULL);
	ok(all_bytes(host, 0x31, SIZE), "what it wrote is here");
	drv->cuMemcpyDtoHAsync(host, q, 4096, NULL);
	drv->cuStreamSynchronize(NULL);
	ok(all_bytes(host, 0x50, 4096), "and nowhere else");
	drv->cuMemFree(p);
	drv->cuMemFree(q);
	need(!drv->cuMemAlloc(&p, SIZE), "memory");
	drv->cuMemcpyDtoHAsync(host, p, SIZE, NULL);
	drv->cuStreamSynchronize(NULL);
	ok(all_bytes(host, 0, SIZE), "new memory is nobody's");
	drv->cuMemFree(p);
	free(host);
}

/* The first handle of a reservation is the first thing in a file of its own. */
static void dma_buf(void)
{
	const size_t size = 2 << 20;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	const CUmemAccessDesc rw = {
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	unsigned char *p;
	int fd = -1;

	need(!drv->cuMemAddressReserve(&va, size, 0, 0, 0) &&
	     !drv->cuMemCreate(&h, size, &prop, 0) &&
	     !drv->cuMemMap(va, size, 0, h, 0) &&
	     !drv->cuMemSetAccess(va, size, &rw, 1), "a mapping");
	is(drv->cuMemGetHandleForAddressRange(&fd, va, size,
			CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), 0,
	   "a descriptor");
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(p != MAP_FAILED, "can be mapped");
	drv->cuMemsetD8Async(va, 0x44, size, NULL);
	drv->cuStreamSynchronize(NULL);
	ok(all_bytes(p, 0x44, size), "and is the memory");
	munmap(p, size);
	close(fd);
	drv->cuMemUnmap(va, size);
	drv->cuMemRelease(h);
	drv->cuMemAddressFree(va, size);
}

int main(void)
{
	int pipes[2];
	pid_t pid;

	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	need(!pipe(pipes), "a pipe");
	pid = fork();
	if (!pid)
		_exit(other_process(pipes[0]));
	open_soft("");
	ipc(pipes[1], pid);
	dma_buf();
	close_soft();
	return tap_end();
}
