#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem run --device.
. "$(dirname "$0")/cuda.sh"

# What is wrong.
wrong '--device that is wrong' 'character 1' run --device 'nothing()' true
wrong '--device that is empty' 'is empty' run --device '' true
wrong '--device of host memory' "device 0 cannot use.*take device-pool" run --device 'pool(host)' true
wrong '--device of a device that is not there' 'no device 9' run --device 'pool(vmm(device=9))' true
wrong '--device-set alone' "needs '--device'" run --device-set sync=off true
for set in sync sync=maybe '' 'sync=on,' ',sync=on' 'sync=on managed=on' managed=1; do
	wrong "--device-set $set" 'is not one of sync=, managed= or ipc=' run --device device-pool --device-set "$set" true
done
wrong 'managed=on of device memory' 'managed=on: the CPU cannot use.*take pool.managed' run --device device-pool --device-set sync=off,managed=on true
wrong 'a static program' 'is linked statically' run --device device-pool /bin/busybox true
HETMEM_CUDA_PRELOAD=$tmp/none wrong 'a library that is not there' 'HETMEM_CUDA_PRELOAD' run --device device-pool true
LD_LIBRARY_PATH='' wrong 'no driver' 'libcuda.so.1 not found' run --device device-pool true
for set in sync= sync=maybe x ',' managed ipc=2; do
	LD_PRELOAD=$library HETMEM_CUDA_SPEC=device-pool HETMEM_CUDA_SET=$set /bin/true 2>"$tmp/err"
	status=$?
	: >"$tmp/out"
	one_line 2 'HETMEM_CUDA_SET: .* is not one of sync=, managed= or ipc='
	judge "HETMEM_CUDA_SET=$set"
done
LD_PRELOAD=$library HETMEM_CUDA_SPEC='limit(' /bin/true 2>"$tmp/err"
status=$?
: >"$tmp/out"
one_line 2 'HETMEM_CUDA_SPEC: .*character'
judge 'HETMEM_CUDA_SPEC that is wrong'
LD_PRELOAD=$library HETMEM_CUDA_SPEC='pool(vmm(device=9))' "$programs/threads" child 2>"$tmp/err"
status=$?
: >"$tmp/out"
one_line 1 'device 0: .*no device 9'
judge 'HETMEM_CUDA_SPEC that this device has not: allocations fail'
check 'without a variable nothing changes' diff <("$programs/states") <(LD_PRELOAD=$library "$programs/states")

# Statuses, arguments, environment.
for want in 0 1 7 255; do
	exits $want "exit $want" "$hetmem" run --device device-pool sh -c "exit $want"
done
check 'only this library is preloaded' "$hetmem" run --device device-pool \
	sh -c "[ \"\$LD_PRELOAD\" = '$library' ] && [ -z \"\$HETMEM_RUN\" ]"
check 'with --min both are' "$hetmem" run --device device-pool --min 4M \
	sh -c "[ \"\$LD_PRELOAD\" = '$library:$top/build/libhetmem-preload.so' ] && [ -n \"\$HETMEM_RUN\" ]"

# All ways of reaching the driver.
for way in linked dlopen path dlvsym default next; do
	program=$programs/reach
	[ $way != linked ] || program=$programs/reach-linked
	driver=libcuda.so.1
	[ $way != path ] || driver=$programs/libcuda.so.1
	check "reached: $way" "$hetmem" run --device 'limit(device-pool,max=64M)' "$program" $way "$driver"
done

# What a call costs: the instructions up to the first return, with one access to the gate's word on each way.
instructions()
{
	objdump -d --no-show-raw-insn "$library" | awk '/<cuLaunchKernel>:$/ { on = 1; next }
		on { n++; fs += /(pop|cmpq|movq|push) .*%fs:/ } on && /ret/ { print n, fs; exit }'
}
check 'a call costs 13 instructions' test "$(instructions)" = '13 4'

device_tests

# Reports and recordings.
check 'a report' "$hetmem" run --device device-pool --report "$tmp/report" "$programs/threads" child
also 'counts by name' grep -Eq '^pid=[0-9]+ command=threads unknown=0 (.* )?cuInit=1 .*cuMemAlloc_v2=1 ' "$tmp/report"
check 'a report of tables' "$hetmem" run --device 'limit(device-pool,max=64M)' --report "$tmp/tables" "$programs/charged"
also 'counts them by id' grep -q ' table:01020300-0000-0000-0000-0000000000ff=2$' "$tmp/tables"
check 'a recording' "$hetmem" run --device "log(device-pool,file=$tmp/log.csv)" "$programs/threads" child
also 'has the calls' grep -q alloc "$tmp/log.csv"
check 'can be replayed' env HETMEM_DRIVER=soft "$hetmem" replay "$tmp/log.csv"

# Another object that interposes, before this one and behind it.
for order in "$programs/another.so:$library" "$library:$programs/another.so"; do
	check "another interposer: ${order//"$top/build/"/}" env LD_PRELOAD="$order" HETMEM_CUDA_SPEC=device-pool \
		HETMEM_TEST_ANOTHER=1 "$programs/threads" child
done

done_testing
