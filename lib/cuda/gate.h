/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A gate before every call of the driver: while it is closed, no thread of the program is
 * inside a call, and new calls wait.
 *
 * Each thread has a word. 0: it is outside. HM_GATE_NEW: the gate does not know the thread
 * yet. HM_GATE_LATE: the thread ends. Any other value: it is inside a call. A call is let in
 * by one store, to the word, and one load, of hm_gate_closed; it leaves by one store. The two
 * can be reordered: hm_gate_close() orders them by membarrier(2) instead, which makes every
 * running thread execute a full barrier.
 *
 * A call inside a call is let through: the outer one keeps the gate from closing.
 *
 * entry.c has the same in assembly. There the word is the return address of the program.
 */
#ifndef HETMEM_CUDA_GATE_H
#define HETMEM_CUDA_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define HM_GATE_NEW	1
#define HM_GATE_LATE	2

/* The linker puts it at a fixed distance from the thread pointer: the object is preloaded. */
extern _Thread_local uintptr_t hm_gate_word __attribute__((tls_model("initial-exec")));
/* 1: closed. A futex. */
extern uint32_t hm_gate_closed;

/*
 * For a call that was not let in: registers the thread, or waits while the gate is closed. The
 * gate can be closed afterwards: try again.
 */
void hm_gate_wait(void);

/*
 * Closes the gate, and waits until no other thread is inside a call. One thread at a time may
 * call it; a thread inside a call may. After an error the gate is open. Errors:
 * -EBUSY: a call did not leave within @wait_ms;
 * -ENOSYS: the kernel has no membarrier();
 * -ENOMEM: a thread could not be registered, as there was no host memory.
 */
int hm_gate_close(unsigned int wait_ms);
void hm_gate_open(void);

/* Returns whether the caller has come in, and leaves by hm_gate_leave(). */
static inline bool hm_gate_enter(uintptr_t inside)
{
	for (;;) {
		const uintptr_t word = __atomic_load_n(&hm_gate_word, __ATOMIC_RELAXED);

		if (word && word != HM_GATE_NEW)
			return false;
		if (!word) {
			__atomic_store_n(&hm_gate_word, inside, __ATOMIC_RELAXED);
			/* The processor may still reorder them, see above. The compiler may not. */
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
			if (!__atomic_load_n(&hm_gate_closed, __ATOMIC_ACQUIRE))
				return true;
			__atomic_store_n(&hm_gate_word, 0, __ATOMIC_RELEASE);
		}
		hm_gate_wait();
	}
}

static inline void hm_gate_leave(void)
{
	__atomic_store_n(&hm_gate_word, 0, __ATOMIC_RELEASE);
}

#endif /* HETMEM_CUDA_GATE_H */
