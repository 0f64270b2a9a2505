/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Touches an address, and returns the signal that this gives, 0 if none. Any other fault
 * ends the program, that of a stream, too.
 */
#ifndef HETMEM_SELFTESTS_TOUCH_H
#define HETMEM_SELFTESTS_TOUCH_H

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

static sigjmp_buf fault;
static _Thread_local volatile sig_atomic_t touching;

static void on_fault(int sig)
{
	if (touching)
		siglongjmp(fault, sig);
	signal(sig, SIG_DFL);
}

static void catch_faults(void)
{
	struct sigaction sa = { .sa_handler = on_fault };

	sigaction(SIGSEGV, &sa, NULL);
}

static int touch_as(uintptr_t addr, int write)
{
	int sig = sigsetjmp(fault, 1);

	touching = !sig;
	if (!sig && write)
		*(volatile unsigned char *)addr = 1;
	else if (!sig)
		(void)*(volatile unsigned char *)addr;
	touching = 0;
	return sig;
}

static int touch(uintptr_t addr)
{
	return touch_as(addr, 0);
}

static int touch_write(uintptr_t addr)
{
	return touch_as(addr, 1);
}

#endif /* HETMEM_SELFTESTS_TOUCH_H */
