/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What a user or 'hetmem run --device' gives to libhetmem-cuda.so, in the environment. */
#ifndef HETMEM_CUDA_SETTINGS_H
#define HETMEM_CUDA_SETTINGS_H

#define HM_CUDA_LIBRARY	"libhetmem-cuda.so"

/* The spec of device memory. Without it nothing is interposed. */
#define HM_CUDA_SPEC	"HETMEM_CUDA_SPEC"
/* NAME=on and NAME=off of these, with commas. */
#define HM_CUDA_SET	"HETMEM_CUDA_SET"
#define HM_CUDA_SWITCHES(X)	X(sync) X(managed) X(ipc)
#define HM_CUDA_SET_VALUES	"sync=, managed= or ipc=, and on or off"
/* A file: a line is appended to it when a process ends. */
#define HM_CUDA_REPORT	"HETMEM_CUDA_REPORT"

#endif /* HETMEM_CUDA_SETTINGS_H */
