/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Thunks before every call of the driver table: see count_calls.h. */
#include <string.h>

#include "count_calls.h"
#include "driver/calls.h"

#if defined(__x86_64__) || defined(__aarch64__)
#define HAVE_THUNKS	1
#endif

#ifdef HAVE_THUNKS
/* What thunks read and write, by name, so that assembly finds it. */
#define SLOT(member, base, symbol, version, need)			\
	extern void *count_real_##member;				\
	extern uint64_t count_of_##member;				\
	extern char count_thunk_##member[];				\
	void *count_real_##member;					\
	uint64_t count_of_##member;
HM_DRIVER_CALLS(SLOT)
#undef SLOT

#ifdef __x86_64__
#define THUNK(member, base, symbol, version, need)			\
	__asm__(".pushsection .text\n"					\
		".globl count_thunk_" #member "\n"			\
		".hidden count_thunk_" #member "\n"			\
		".hidden count_of_" #member "\n"			\
		".hidden count_real_" #member "\n"			\
		".type count_thunk_" #member ", @function\n"		\
		"count_thunk_" #member ":\n"				\
		"	lock incq count_of_" #member "(%rip)\n"		\
		"	jmp *count_real_" #member "(%rip)\n"		\
		".popsection\n");
#else
/* x16 and x17 are the linker's, for code between a call and its target. */
#define THUNK(member, base, symbol, version, need)			\
	__asm__(".pushsection .text\n"					\
		".globl count_thunk_" #member "\n"			\
		".hidden count_thunk_" #member "\n"			\
		".hidden count_of_" #member "\n"			\
		".hidden count_real_" #member "\n"			\
		".type count_thunk_" #member ", %function\n"		\
		"count_thunk_" #member ":\n"				\
		"	sub sp, sp, #16\n"				\
		"	str x15, [sp]\n"				\
		"	adrp x16, count_of_" #member "\n"		\
		"	add x16, x16, :lo12:count_of_" #member "\n"	\
		"1:	ldxr x15, [x16]\n"				\
		"	add x15, x15, #1\n"				\
		"	stxr w17, x15, [x16]\n"				\
		"	cbnz w17, 1b\n"					\
		"	ldr x15, [sp]\n"				\
		"	add sp, sp, #16\n"				\
		"	adrp x16, count_real_" #member "\n"		\
		"	ldr x16, [x16, :lo12:count_real_" #member "]\n"	\
		"	br x16\n"					\
		".popsection\n");
#endif
HM_DRIVER_CALLS(THUNK)
#undef THUNK
#endif

static const char *const names[] = {
#define NAME(member, base, symbol, version, need) #base,
	HM_DRIVER_CALLS(NAME)
#undef NAME
};

unsigned int count_calls_nr(void)
{
	return sizeof(names) / sizeof(names[0]);
}

const char *count_calls_name(unsigned int index)
{
	return names[index];
}

bool count_calls_begin(struct hetmem *hm)
{
#ifdef HAVE_THUNKS
	/* Any pointer to a function has the same representation here. */
#define BEGIN(member, base, symbol, version, need) do {			\
	void *thunk = count_thunk_##member;				\
									\
	count_of_##member = 0;						\
	memcpy(&count_real_##member, &hm->driver.member, sizeof(void *)); \
	if (count_real_##member)					\
		memcpy(&hm->driver.member, &thunk, sizeof(void *));	\
} while (0);
	HM_DRIVER_CALLS(BEGIN)
#undef BEGIN
	return true;
#else
	(void)hm;
	return false;
#endif
}

void count_calls_end(struct hetmem *hm, uint64_t *counts)
{
#ifdef HAVE_THUNKS
	unsigned int i = 0;

#define END(member, base, symbol, version, need) do {			\
	memcpy(&hm->driver.member, &count_real_##member, sizeof(void *)); \
	counts[i++] = count_of_##member;				\
} while (0);
	HM_DRIVER_CALLS(END)
#undef END
#else
	(void)hm;
	(void)counts;
#endif
}
