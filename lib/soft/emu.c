// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver on the emulated device: a soft device with HMM on each
 * /dev/hetmem_emuN, which reaches the process's memory by that device's
 * faults, moving what it touches as a GPU would.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/hetmem_emu.h>

#include "soft/soft.h"

/* A page that keeps changing is tried this often. */
#define MAX_RETRIES	64

static bool open_one(struct soft_emu *emu, int nr, size_t page_size)
{
	struct hetmem_emu_cmd_info info = { .size = sizeof(info) };
	char path[32];

	snprintf(path, sizeof(path), "/dev/hetmem_emu%d", nr);
	emu->fd = open(path, O_RDWR | O_CLOEXEC);
	if (emu->fd < 0)
		return false;
	if (ioctl(emu->fd, HETMEM_EMU_IOC_INFO, &info)) {
		close(emu->fd);
		return false;
	}
	emu->module_id = info.id;
	emu->capacity = info.capacity * page_size;
	snprintf(emu->name, sizeof(emu->name), "hetmem_emu%d", nr);
	return true;
}

/* Without the module nothing moves, so there is nothing to emulate. */
void hm_soft_emu_open(struct soft_world *w)
{
	int nr;

	if (!hm_kmod_there(&w->kmod))
		return;
	for (nr = 0; nr < SOFT_MAX_DEVICES; nr++) {
		if (!open_one(&w->emus[nr], nr, w->page_size))
			break;
		w->nr_emus++;
	}
}

void hm_soft_emu_close(struct soft_world *w)
{
	int i;

	for (i = 0; i < w->nr_emus; i++)
		close(w->emus[i].fd);
	w->nr_emus = 0;
}

/*
 * Goes on where it stopped. A device that has no room, or memory that keeps
 * changing, is then used where it is, over the bus.
 */
static CUresult access_memory(struct CUctx_st *ctx,
			      struct hetmem_emu_cmd_access *cmd)
{
	const uint64_t addr = cmd->addr, length = cmd->length;
	const uint64_t data = cmd->data;
	unsigned int retries = 0;
	uint64_t at = 0;
	int err;

	cmd->size = sizeof(*cmd);
	cmd->flags = HETMEM_EMU_MIGRATE;
	while (at < length) {
		cmd->addr = addr + at;
		cmd->length = length - at;
		cmd->data = data ? data + at : 0;
		cmd->done = 0;
		err = ioctl(ctx->emu, HETMEM_EMU_IOC_ACCESS, cmd) ? errno : 0;
		if (cmd->done) {
			at += cmd->done;
			retries = 0;
		} else if (!err || ++retries > MAX_RETRIES) {
			return CUDA_ERROR_UNKNOWN;
		}
		switch (err) {
		case 0:
			break;
		case EBUSY:
		case ENOMEM:
			cmd->flags &= ~HETMEM_EMU_MIGRATE;
			break;
		case EINTR:
			break;
		case EFAULT:
		case EPERM:
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		default:
			return CUDA_ERROR_UNKNOWN;
		}
	}
	return CUDA_SUCCESS;
}

CUresult hm_soft_emu_read(struct CUctx_st *ctx, uintptr_t addr, void *data,
			  size_t size)
{
	struct hetmem_emu_cmd_access cmd = {
		.op = HETMEM_EMU_READ,
		.addr = addr,
		.length = size,
		.data = (uintptr_t)data,
	};

	return access_memory(ctx, &cmd);
}

CUresult hm_soft_emu_write(struct CUctx_st *ctx, uintptr_t addr,
			   const void *data, size_t size)
{
	struct hetmem_emu_cmd_access cmd = {
		.op = HETMEM_EMU_WRITE,
		.addr = addr,
		.length = size,
		.data = (uintptr_t)data,
	};

	return access_memory(ctx, &cmd);
}

/* The pattern lies as if it began at a multiple of 8. */
static CUresult fill_edge(struct CUctx_st *ctx, uintptr_t addr,
			  uint64_t value, size_t size)
{
	const size_t shift = addr & 7;
	unsigned char bytes[16];

	memcpy(bytes, &value, 8);
	memcpy(bytes + 8, &value, 8);
	return hm_soft_emu_write(ctx, addr, bytes + shift, size);
}

CUresult hm_soft_emu_fill(struct CUctx_st *ctx, uintptr_t addr,
			  uint64_t value, size_t size)
{
	struct hetmem_emu_cmd_access cmd = {
		.op = HETMEM_EMU_FILL,
		.value = value,
	};
	size_t head = -addr & 7, body;
	CUresult res = CUDA_SUCCESS;

	if (head > size)
		head = size;
	body = (size - head) & ~(size_t)7;
	if (head)
		res = fill_edge(ctx, addr, value, head);
	if (!res && body) {
		cmd.addr = addr + head;
		cmd.length = body;
		res = access_memory(ctx, &cmd);
	}
	if (!res && size > head + body)
		res = fill_edge(ctx, addr + head + body, value,
				size - head - body);
	return res;
}
