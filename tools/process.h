/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef HETMEM_TOOLS_PROCESS_H
#define HETMEM_TOOLS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * struct process - what /proc/PID/stat says of a process
 * @name: escaped
 * @ended: nobody has waited for it yet. It can have contexts: other threads can go on
 * @started: in clock ticks: tells two processes with one PID apart
 * @stack: where its stack begins, which changes when it runs another program; 0: one is being
 *	loaded, or the caller may not know
 */
struct process {
	char name[64];
	bool ended;
	uint64_t started, stack;
};

/*
 * Reads it. Errors:
 * -ESRCH: there is no such process;
 * others: /proc cannot be read: the process can be alive.
 */
int process_read(struct process *process, pid_t pid);

#endif
