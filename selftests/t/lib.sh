# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# The library's own tests, built with the sanitizers $san; if empty, with none. Those that
# need the modules run with the kernels, in kernel-*.t; those that need a GPU, with make
# check-gpu.
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=atexit_sleep_ms=0

case ${san?} in
'') dir=build ;;
address*) dir=build/asan ;;
thread) dir=build/tsan ;;
esac
check 'they build' make SAN="$san" host-tests
for source in $(find selftests/lib selftests/soft -name '*.c' | sort); do
	path=${source%.c} name=${source#selftests/}
	name=${name%.c}${dir#build}
	case ${path##*/} in
	vm_*|gpu_*) continue ;;
	# They count basic blocks, which are not the library's there.
	steps|bounded) [ -z "$san" ] || continue ;;
	# These have no threads, and compile libraries meanwhile.
	cuda_*|nvml_*) [ "$san" != thread ] || continue ;;
	esac
	program "$name" limited 600 "$dir/$path"
done
done_testing
