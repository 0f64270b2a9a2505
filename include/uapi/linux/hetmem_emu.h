/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * hetmem_emu - an emulated device: the ioctl interface of /dev/hetmem_emuN.
 *
 * The device has memory of its own (device-private pages) and sees the
 * memory of the process that opened its file as a GPU with HMM would: by
 * the same addresses, faulting what it has not. Sizes, growth and the
 * errors that all commands share are as in hetmem.h.
 */
#ifndef _UAPI_LINUX_HETMEM_EMU_H
#define _UAPI_LINUX_HETMEM_EMU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define HETMEM_EMU_TYPE		0xE8

#define HETMEM_EMU_IOC_INFO	_IO(HETMEM_EMU_TYPE, 0x00)
#define HETMEM_EMU_IOC_ACCESS	_IO(HETMEM_EMU_TYPE, 0x01)
#define HETMEM_EMU_IOC_EVICT	_IO(HETMEM_EMU_TYPE, 0x02)

/**
 * struct hetmem_emu_cmd_info - HETMEM_EMU_IOC_INFO
 * @size: sizeof(struct hetmem_emu_cmd_info)
 * @flags: 0
 * @id: out, the device's id in hetmem
 * @reserved: 0
 * @capacity: out, pages it has
 * @used: out, pages in use
 * @to_device: out, pages that came, since loading
 * @to_host: out, pages that left for the host, for whatever reason
 * @cpu_faults: out, CPU faults on its pages
 * @cpu_fault_failures: out, those that failed because the host had no memory
 * @device_faults: out, accesses by the device that faulted
 * @device_fault_failures: out, those that failed
 * @evicted: out, pages that left to make room
 * @huge_to_device: out, huge pages that came whole; their pages are counted
 *	above as well
 * @huge_to_host: out, huge pages that left whole
 * @huge_split: out, huge pages that the kernel took apart on the device
 * @huge_size: out, bytes of a huge page; 0 where the kernel has none for devices
 *	or the module's parameter huge is off
 * @to_device_rounds: out, migrations towards the device that were begun; an
 *	access or MIGRATE that finds the device full begins one anew
 * @cpu_fault_rounds: out, migrations that CPU faults began; each at most 8
 * @cpu_faults_yielded: out, CPU faults that left their page to another CPU's,
 *	and came again; not in @cpu_faults
 */
struct hetmem_emu_cmd_info {
	__u32		size;
	__u32		flags;
	__u32		id;
	__u32		reserved;
	__aligned_u64	capacity;
	__aligned_u64	used;
	__aligned_u64	to_device;
	__aligned_u64	to_host;
	__aligned_u64	cpu_faults;
	__aligned_u64	cpu_fault_failures;
	__aligned_u64	device_faults;
	__aligned_u64	device_fault_failures;
	__aligned_u64	evicted;
	__aligned_u64	huge_to_device;
	__aligned_u64	huge_to_host;
	__aligned_u64	huge_split;
	__aligned_u64	huge_size;
	__aligned_u64	to_device_rounds;
	__aligned_u64	cpu_fault_rounds;
	__aligned_u64	cpu_faults_yielded;
};

enum hetmem_emu_op {
	HETMEM_EMU_READ		= 0,	/* memory -> data */
	HETMEM_EMU_WRITE	= 1,	/* data -> memory */
	HETMEM_EMU_FILL		= 2,	/* value (8 bytes) -> memory */
	/*
	 * Add value to each 64-bit word of the memory, atomically also with
	 * respect to the CPUs. addr and length are multiples of 8.
	 */
	HETMEM_EMU_ADD		= 3,
};

/**
 * struct hetmem_emu_cmd_access - HETMEM_EMU_IOC_ACCESS: play the GPU
 * @size: sizeof(struct hetmem_emu_cmd_access)
 * @flags: HETMEM_EMU_*
 * @op: enum hetmem_emu_op
 * @reserved: 0
 * @addr: in the address space of the file's opener, any alignment for READ
 *	and WRITE, 8 bytes for FILL and ADD
 * @length: bytes, not 0; a multiple of 8 for FILL and ADD
 * @data: buffer of the caller for READ and WRITE, else 0
 * @value: operand of FILL and ADD, else 0
 * @done: out, bytes done, also after an error
 * @faults: out, device faults this took
 *
 * Pages that are on the device are used there. Other pages are used where
 * they are, as over a bus; with HETMEM_EMU_MIGRATE they are first moved to
 * the device, as a GPU's fault handler would, if they are of a kind that
 * can move.
 *
 * Errors: -EFAULT nothing is mapped there, or memory of memfd_secret(2), a
 * userfaultfd handler would have to bring it, or @data cannot be used, -EPERM
 * the mapping forbids it, -EBUSY a page could not be brought (a device full up
 * to its limit that could not make room in a bounded number of evictions, or
 * memory that kept changing), -EINTR a fatal signal.
 */
struct hetmem_emu_cmd_access {
	__u32		size;
	__u32		flags;
	__u32		op;
	__u32		reserved;
	__aligned_u64	addr;
	__aligned_u64	length;
	__aligned_u64	data;
	__aligned_u64	value;
	__aligned_u64	done;
	__aligned_u64	faults;
};

#define HETMEM_EMU_MIGRATE	(1U << 0)

/**
 * struct hetmem_emu_cmd_evict - HETMEM_EMU_IOC_EVICT: make the device forget
 * @size: sizeof(struct hetmem_emu_cmd_evict)
 * @flags: 0
 * @nr_pages: in, how many to evict at least, least recently migrated first
 * @evicted: out
 *
 * Pages of all processes: needs CAP_SYS_ADMIN, else -EPERM.
 */
struct hetmem_emu_cmd_evict {
	__u32		size;
	__u32		flags;
	__aligned_u64	nr_pages;
	__aligned_u64	evicted;
};

#endif /* _UAPI_LINUX_HETMEM_EMU_H */
