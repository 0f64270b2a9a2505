// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The symbols that a program finds here before those of libcuda.so.1 and of libc: one for
 * each function in calls.h, dlsym() and dlvsym().
 *
 * A function goes through the gate (gate.h), counts the call, and calls the next function; a
 * served one calls the C function hm_served_NAME. The return address of the program moves to
 * the thread's word of the gate, and comes back at the end. So no argument moves, in no
 * register and on no stack, and any function of any driver can be passed. The cost: an unwinder
 * inside the driver ends here, as it does not find the program's frame.
 *
 * A call inside a call jumps to the next function. Before its first call a function leads to
 * hm_cuda_resolve, which saves the registers that can hold arguments and asks hm_cuda_find().
 * A closed gate leads to hm_cuda_wait, which does the same with hm_cuda_pause().
 *
 * dlsym() and dlvsym() ask reach.c for an answer. If there is none, they jump to the next
 * function: its return address is the program's then, which RTLD_NEXT and RTLD_DEFAULT need.
 */
#include "cuda/cuda.h"

#ifndef __x86_64__
#error "entry.c is for x86-64 only: the Makefile leaves lib/cuda out elsewhere"
#endif

#define TEXT(x)		#x
#define EXPAND(x)	TEXT(x)

uint64_t hm_cuda_counts[HM_CUDA_NR];

asm(".text\n"
    /* Asks a C function where a call goes on, by its index, which is on the stack. */
    ".macro hm_cuda_ask name, function\n"
    ".type \\name, @function\n"
    "\\name:\n"
    ".cfi_startproc\n"
    ".cfi_adjust_cfa_offset 8\n"
    "	pushq	%rbp\n"
    ".cfi_adjust_cfa_offset 8\n"
    ".cfi_rel_offset rbp, 0\n"
    "	movq	%rsp, %rbp\n"
    ".cfi_def_cfa_register rbp\n"
    "	subq	$192, %rsp\n"
    "	andq	$-16, %rsp\n"
    "	movq	%rdi, (%rsp)\n"
    "	movq	%rsi, 8(%rsp)\n"
    "	movq	%rdx, 16(%rsp)\n"
    "	movq	%rcx, 24(%rsp)\n"
    "	movq	%r8, 32(%rsp)\n"
    "	movq	%r9, 40(%rsp)\n"
    "	movq	%rax, 48(%rsp)\n"
    "	movups	%xmm0, 64(%rsp)\n"
    "	movups	%xmm1, 80(%rsp)\n"
    "	movups	%xmm2, 96(%rsp)\n"
    "	movups	%xmm3, 112(%rsp)\n"
    "	movups	%xmm4, 128(%rsp)\n"
    "	movups	%xmm5, 144(%rsp)\n"
    "	movups	%xmm6, 160(%rsp)\n"
    "	movups	%xmm7, 176(%rsp)\n"
    "	movl	8(%rbp), %edi\n"
    "	call	\\function\n"
    "	movq	%rax, %r11\n"
    "	movq	(%rsp), %rdi\n"
    "	movq	8(%rsp), %rsi\n"
    "	movq	16(%rsp), %rdx\n"
    "	movq	24(%rsp), %rcx\n"
    "	movq	32(%rsp), %r8\n"
    "	movq	40(%rsp), %r9\n"
    "	movq	48(%rsp), %rax\n"
    "	movups	64(%rsp), %xmm0\n"
    "	movups	80(%rsp), %xmm1\n"
    "	movups	96(%rsp), %xmm2\n"
    "	movups	112(%rsp), %xmm3\n"
    "	movups	128(%rsp), %xmm4\n"
    "	movups	144(%rsp), %xmm5\n"
    "	movups	160(%rsp), %xmm6\n"
    "	movups	176(%rsp), %xmm7\n"
    "	leave\n"
    ".cfi_def_cfa rsp, 16\n"
    "	leaq	8(%rsp), %rsp\n"
    ".cfi_adjust_cfa_offset -8\n"
    "	jmpq	*%r11\n"
    ".cfi_endproc\n"
    ".size \\name, . - \\name\n"
    ".endm\n"
    "hm_cuda_ask hm_cuda_resolve, hm_cuda_find\n"
    "hm_cuda_ask hm_cuda_wait, hm_cuda_pause\n"
    /* Indexes count up with the names: the assembler has no enumerators. */
    ".set hm_cuda_index, 0\n"
    ".macro hm_cuda_first name\n"
    "hm_cuda_first_\\name:\n"
    "	endbr64\n"
    "	pushq	$hm_cuda_index\n"
    "	jmp	hm_cuda_resolve\n"
    ".set hm_cuda_index, hm_cuda_index + 1\n"
    ".endm\n"
    /* @count: whether it is counted here; @target: the operand of a call and of a jump. */
    ".macro hm_cuda_gate name, count, target:vararg\n"
    ".globl \\name\n"
    ".type \\name, @function\n"
    "\\name:\n"
    ".cfi_startproc\n"
    "	endbr64\n"
    "	movq	hm_gate_word@gottpoff(%rip), %r11\n"
    "	cmpq	$0, %fs:(%r11)\n"
    "	jne	1f\n"
    ".cfi_remember_state\n"
    "	popq	%fs:(%r11)\n"
    ".cfi_adjust_cfa_offset -8\n"
    ".cfi_undefined rip\n"
    "	cmpl	$0, hm_gate_closed(%rip)\n"
    "	jne	2f\n"
    ".if \\count\n"
    "	lock incq hm_cuda_counts + 8 * hm_cuda_index(%rip)\n"
    ".endif\n"
    "	call	\\target\n"
    "	movq	hm_gate_word@gottpoff(%rip), %r11\n"
    "	pushq	%fs:(%r11)\n"
    ".cfi_restore_state\n"
    "	movq	$0, %fs:(%r11)\n"
    "	ret\n"
    ".cfi_remember_state\n"
    ".cfi_adjust_cfa_offset -8\n"
    ".cfi_undefined rip\n"
    "2:	pushq	%fs:(%r11)\n"
    ".cfi_restore_state\n"
    "	movq	$0, %fs:(%r11)\n"
    "3:	pushq	$hm_cuda_index\n"
    ".cfi_adjust_cfa_offset 8\n"
    "	jmp	hm_cuda_wait\n"
    ".cfi_adjust_cfa_offset -8\n"
    "1:	cmpq	$" EXPAND(HM_GATE_NEW) ", %fs:(%r11)\n"
    "	je	3b\n"
    ".if \\count\n"
    "	lock incq hm_cuda_counts + 8 * hm_cuda_index(%rip)\n"
    ".endif\n"
    "	jmp	\\target\n"
    ".cfi_endproc\n"
    ".size \\name, . - \\name\n"
    "hm_cuda_first \\name\n"
    ".endm\n"
#define PASS(name)	"hm_cuda_gate " #name ", 1, *hm_cuda_next + 8 * hm_cuda_index(%rip)\n"
#define SERVE(name)	"hm_cuda_gate " #name ", 0, hm_served_" #name "\n"
    HM_CUDA_CALLS(PASS, SERVE)
#undef PASS
#undef SERVE
    ".data\n"
    ".globl hm_cuda_next\n"
    ".hidden hm_cuda_next\n"
    ".type hm_cuda_next, @object\n"
    ".balign 64\n"
    "hm_cuda_next:\n"
#define NEXT(name)	"	.quad hm_cuda_first_" #name "\n"
    HM_CUDA_CALLS(NEXT, NEXT)
#undef NEXT
    ".size hm_cuda_next, . - hm_cuda_next\n"
    ".section .data.rel.ro, \"aw\"\n"
    ".globl hm_cuda_own\n"
    ".hidden hm_cuda_own\n"
    ".type hm_cuda_own, @object\n"
    ".balign 64\n"
    "hm_cuda_own:\n"
#define OWN(name)	"	.quad " #name "\n"
    HM_CUDA_CALLS(OWN, OWN)
#undef OWN
    ".size hm_cuda_own, . - hm_cuda_own\n"
    ".text\n"
    /* @answer: of struct hm_dl_answer, in two registers; @next: where the function is. */
    ".macro hm_dl_entry name, answer, next\n"
    ".globl \\name\n"
    ".type \\name, @function\n"
    "\\name:\n"
    ".cfi_startproc\n"
    "	endbr64\n"
    "	pushq	%rdi\n"
    ".cfi_adjust_cfa_offset 8\n"
    "	pushq	%rsi\n"
    ".cfi_adjust_cfa_offset 8\n"
    "	pushq	%rdx\n"
    ".cfi_adjust_cfa_offset 8\n"
    "	movq	24(%rsp), %rcx\n"
    "	call	\\answer\n"
    "	movq	%rdx, %rcx\n"
    "	popq	%rdx\n"
    ".cfi_adjust_cfa_offset -8\n"
    "	popq	%rsi\n"
    ".cfi_adjust_cfa_offset -8\n"
    "	popq	%rdi\n"
    ".cfi_adjust_cfa_offset -8\n"
    "	testq	%rcx, %rcx\n"
    "	jz	1f\n"
    "	ret\n"
    "1:	jmpq	*\\next(%rip)\n"
    ".cfi_endproc\n"
    ".size \\name, . - \\name\n"
    ".endm\n"
    ".globl hm_own_dlsym\n"
    ".hidden hm_own_dlsym\n"
    ".set hm_own_dlsym, dlsym\n"
    "hm_dl_entry dlsym, hm_dlsym_answer, hm_next_dlsym\n"
    "hm_dl_entry dlvsym, hm_dlvsym_answer, hm_next_dlvsym\n");

__attribute__((used))
void *hm_cuda_pause(unsigned int call)
{
	hm_gate_wait();
	return hm_cuda_own[call];
}

const char *const hm_cuda_names[HM_CUDA_NR] = {
#define NAME(name)	EXPAND(name),
	HM_CUDA_CALLS(NAME, NAME)
#undef NAME
};
