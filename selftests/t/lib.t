#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The library's own tests, as they are, under the address and undefined behaviour
# sanitizers, and under the thread sanitizer. Those that need the modules run with the
# kernels, in kernel-*.t; those that need a GPU, with make check-gpu.
. "$(dirname "$0")/tap.sh"

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=atexit_sleep_ms=0

check 'they build' make host-tests
check 'they build with sanitizers' make SAN=address,undefined host-tests
check 'they build with the thread sanitizer' make SAN=thread host-tests
for dir in build build/asan build/tsan; do
	for source in $(find selftests/lib selftests/soft -name '*.c' | sort); do
		path=${source%.c} name=${source#selftests/}
		name=${name%.c}${dir#build}
		case ${path##*/} in
		vm_*|gpu_*) continue ;;
		# They count instructions, which are not the library's there.
		steps|bounded) [ "$dir" = build ] || continue ;;
		# These have no threads, and compile libraries meanwhile.
		cuda_*|nvml_*) [ "$dir" != build/tsan ] || continue ;;
		esac
		program "$name" limited 600 "$dir/$path"
	done
done
done_testing
