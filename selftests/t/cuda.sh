# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# For tests of libhetmem-cuda.so: programs that call CUDA and know nothing of hetmem. Their
# libcuda.so.1 is that of selftests/cuda/libcuda.c, upon the soft driver. HETMEM_TEST_SAN:
# the sanitizers that everything is built with; empty: none.
san=${HETMEM_TEST_SAN:-}
case $san in
'') built=build ;;
thread) built=build/tsan ;;
*) built=build/asan ;;
esac
[ -z "$san" ] || HETMEM=$built/hetmem
if [ -n "$san" ] && [ "$(uname -m)" = x86_64 ]; then
	made=$(make "SAN=$san" "$built/hetmem" "$built/libhetmem-cuda.so" cuda-tests 2>&1) || { echo "Bail out! $made"; exit 1; }
fi
. "$(dirname "${BASH_SOURCE[0]}")/tools-lib.sh"

[ "$(uname -m)" = x86_64 ] || skip_all 'libhetmem-cuda.so is for x86-64'
[ -n "$san" ] || check 'the programs build' make all cuda-tests

programs=$top/$built/selftests/cuda
library=$top/$built/libhetmem-cuda.so
export LD_LIBRARY_PATH=$programs:$top/$built
export -n HETMEM_CUDA_SPEC HETMEM_CUDA_SET HETMEM_CUDA_REPORT HETMEM_CUDA_PRELOAD LD_PRELOAD HETMEM_SOFT_SLEEP HETMEM_DRIVER
# What is preloaded comes before the sanitizer that it needs. The soft driver joins its last
# threads at a later call, if there is one.
export ASAN_OPTIONS=verify_asan_link_order=0:detect_stack_use_after_return=1:intercept_tls_get_addr=0 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=report_thread_leaks=0:atexit_sleep_ms=0

# device SPEC PROGRAM [ARGUMENT...]: as 'hetmem run --device SPEC' does, which refuses programs
# that have a sanitizer. $device_set: for --device-set.
device()
{
	local spec=$1

	shift
	if [ -z "$san" ]; then
		"$hetmem" run --device "$spec" ${device_set:+--device-set "$device_set"} "$@"
	else
		LD_PRELOAD=$library HETMEM_CUDA_SPEC=$spec HETMEM_CUDA_SET=${device_set:-} "$@"
	fi
}

# device_tests: what programs get.
device_tests()
{
	local spec pool specs

	"$programs/states" >"$tmp/native"
	also 'the states are reached' sh -c "[ \"\$(grep -c 'normal 0/0 .* failed 700/0 forked 3/0' '$tmp/native')\" -ge 5 ]"
	also 'every served call is among them' sh -c "! grep -Eq 'no row|died' '$tmp/native'"
	# It forks thousands of times: two specs are enough for a sanitizer.
	specs=(device-pool 'limit(pool(managed),max=64M)')
	[ -n "$san" ] || specs+=('pool(device)' 'pool(async)' 'stats(device)')
	for spec in "${specs[@]}"; do
		check "results are the driver's: $spec" diff "$tmp/native" <(device "$spec" "$programs/states")
	done
	for pool in device-pool 'pool(device)' 'stats(pool(async))' 'pool(vmm,handle=2M)'; do
		check "serve: $pool" device "limit($pool,max=64M)" "$programs/serve"
		check "threads: $pool" device "limit($pool,max=64M)" "$programs/threads"
		check "charged: $pool" device "limit($pool,max=64M)" "$programs/charged"
		check "graphs: $pool" device "limit($pool,max=64M)" "$programs/graphs" $RANDOM
		check "handles: $pool" device "limit($pool,max=64M)" "$programs/handles" $RANDOM
	done
	for spec in device-pool 'limit(pool(vmm,handle=2M),max=64M)'; do
		check "asks: $spec" device "$spec" "$programs/asks"
	done
	for spec in 'pool(vmm(export=fd))' 'limit(pool(vmm(export=fd)),max=64M)' 'stats(pool(vmm(export=fd)))'; do
		check "ipc: $spec" device "$spec" "$programs/ipc"
	done
	for spec in device-pool 'pool(device)' 'limit(pool(vmm,handle=2M),max=64M)'; do
		check "ipc: not of $spec" device "$spec" "$programs/ipc" refused
	done
	device_set=sync=off check 'sync=off' device 'limit(device-pool,max=64M)' "$programs/serve" nosync
	for spec in device-pool 'limit(pool(vmm,handle=2M),max=128M)'; do
		HETMEM_SOFT_DEVICES=2 check "peers: $spec" device "$spec" "$programs/peers"
	done
	HETMEM_SOFT_DEVICES=2 check 'peers that the spec has' device 'pool(vmm(peers=1))' "$programs/peers" spec
	device_set=managed=on check 'managed=on' device 'limit(pool(managed),max=64M)' "$programs/charged" managed
	device_set=ipc=on check 'ipc=on' device 'limit(device-pool,max=64M)' "$programs/charged" ipc
	HETMEM_SOFT_CHECK=1 check 'check mode has nothing to say' device 'limit(device-pool,max=64M)' "$programs/serve"
}
