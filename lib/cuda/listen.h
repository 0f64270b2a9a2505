/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef HETMEM_CUDA_LISTEN_H
#define HETMEM_CUDA_LISTEN_H

#include <stdbool.h>

/* Starts the thread that others ask, once. Without a socket there is none. */
void hm_cuda_listen_begin(void);
/* Whether this process has one. */
bool hm_cuda_is_listening(void);
/* The process ends, see hm_cuda_sleep_end(). */
void hm_cuda_listen_end(void);
/* Removes the name of the socket. */
void hm_cuda_listen_remove(void);

#endif /* HETMEM_CUDA_LISTEN_H */
