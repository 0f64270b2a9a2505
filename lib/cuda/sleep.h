/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef HETMEM_CUDA_SLEEP_H
#define HETMEM_CUDA_SLEEP_H

struct hm_cuda_ask;
struct hm_cuda_answer;

/* Carries out a request, and fills the answer. Takes as long as the request allows. */
void hm_cuda_sleep_obey(const struct hm_cuda_ask *ask, struct hm_cuda_answer *answer);
/*
 * The process ends: no sleep begins any more, and the socket goes. Waits for a sleep that has
 * begun. A process that sleeps keeps the socket until it is woken.
 */
void hm_cuda_sleep_end(void);

/* world.c: an export table that was asked for; NULL: none. Text that lasts. */
const char *hm_cuda_has_table(void);

#endif /* HETMEM_CUDA_SLEEP_H */
