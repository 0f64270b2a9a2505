#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Blocks that UCX sends between two processes, upon host memory: UCX's shared memory and TCP on
# loopback. UCX is a wheel, which pip fetches. The test is skipped if the registry has no answer.
. "$(dirname "$0")/tap.sh"

probe=build/transports/ucx
export UCX_LOG_LEVEL=error
unset LD_LIBRARY_PATH UCX_NET_DEVICES

if ! make -s build/ucx-wheels/fetched >"$tmp/fetch" 2>&1; then
	pass "blocks sent by UCX # SKIP $(tail -n 1 "$tmp/fetch")"
	done_testing
	exit
fi
check 'make transports' make transports

# sent TRANSPORTS SPECS SIZES ARGS...: each message of each spec arrives with its contents.
sent()
{
	local transports=$1 specs=$2 sizes=$3 nr

	shift 3
	read -ra list <<<"$specs"
	check "$transports: ${specs// /, } of $sizes MiB $*" \
		env UCX_TLS="$transports" $probe --driver soft "$@" "$sizes" 2 "${list[@]}"
	# Three ways in two directions, each once with odd sizes.
	nr=$((${#list[@]} * 12 * $(tr ',' '\n' <<<"$sizes" | wc -l)))
	also "$transports: $nr results" test "$(grep -c ', right$' "$tmp/out")" -eq "$nr"
}

sent sm 'system host' 1,5
sent tcp 'system host' 1,3
sent sm 'pool(host)' 1,7 --junk
sent tcp 'pool(host)' 2 --junk
# The soft driver's device memory is the host's.
sent sm 'device pool(device) pool(vmm) pool(vmm,comm=on) pool(vmm,handle=2M)' 1,5 --junk
sent tcp 'pool(vmm,comm=on) pool(vmm(export=fd))' 3

# A failure ends the pair that has it, and the next spec is tried.
exits 1 'a spec that is wrong' $probe --driver soft 1 1 'pool(nothing)' system
also 'is the only one that fails' test "$(grep -c 'FAILED$' "$tmp/out")" -eq 1
also 'and the next one is right' test "$(grep -c ', right$' "$tmp/out")" -eq 12
for size in 0 x '1,' ',1' 1,x 16385; do
	exits 2 "size '$size'" $probe --driver soft "$size" 1 system
done
for rounds in 0 x -1; do
	exits 2 "rounds '$rounds'" $probe --driver soft 1 "$rounds" system
done
exits 2 'no spec' $probe 1 1
exits 2 'an option that is not there' $probe --nothing 1 1 system
done_testing
