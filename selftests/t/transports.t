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

# hetmem bench transport opens the same UCX by itself.
hetmem=$PWD/build/hetmem
bench()
{
	local transports=$1

	shift
	env UCX_TLS="$transports" LD_LIBRARY_PATH="$PWD/build/transports/libucx/lib" \
		"$hetmem" bench transport "$@"
}
# judged NAME ROWS: that many rows, each right and measured.
judged()
{
	also "$1" test "$(grep -c '"wrong_bytes":0' "$tmp/out")" -eq "$2"
	also 'each has a rate and a first use' \
		test "$(grep -cE '"(gb_s|first_ms)":[0-9.e+-]*[1-9]' "$tmp/out")" -eq $(($2 * 2))
}
check 'bench transport over sm' bench sm --driver soft --json --size 3 --spec device --spec 'pool(vmm,handle=2M)'
judged 'two specs, three ways, two directions' 12
also 'a block of two parts' test "$(grep -c '"parts":2' "$tmp/out")" -eq 6
check 'bench transport over tcp' bench tcp --driver soft --json --size 2 --spec 'pool(host)'
judged 'one spec' 6
check 'bench transport as a table' bench sm --driver soft --size 2 --spec device --spec system
also 'a row for each, with its contents' test "$(grep -cE '^(device|system) .* right$' "$tmp/out")" -eq 2
exits 1 'a spec that cannot be made' bench sm --driver soft --size 2 --spec 'limit(device,max=1M)' --spec device
also 'has one reason' test "$(grep -c 'limit(device,max=1M): .*beyond' "$tmp/err")" -eq "$(wc -l <"$tmp/err")"
also 'and the next one is measured' grep -qE '^device .* right$' "$tmp/out"

# Its structures are UCX's.
cat >"$tmp/layout.c" <<'END'
#include <ucp/api/ucp.h>
#include "ucx.h"
#define SAME(a, b) _Static_assert((a) == (b), #a " is " #b)
#define MEMBER(ours, a, theirs, b) SAME(offsetof(struct ours, a), offsetof(theirs, b)); \
	_Static_assert(sizeof(struct ours) >= sizeof(theirs), #ours)
MEMBER(ucx_params, mask, ucp_params_t, field_mask);
MEMBER(ucx_params, features, ucp_params_t, features);
MEMBER(ucx_worker_params, mask, ucp_worker_params_t, field_mask);
MEMBER(ucx_ep_params, mask, ucp_ep_params_t, field_mask);
MEMBER(ucx_ep_params, address, ucp_ep_params_t, address);
MEMBER(ucx_map_params, mask, ucp_mem_map_params_t, field_mask);
MEMBER(ucx_map_params, address, ucp_mem_map_params_t, address);
MEMBER(ucx_map_params, length, ucp_mem_map_params_t, length);
MEMBER(ucx_request, mask, ucp_request_param_t, op_attr_mask);
MEMBER(ucx_request, flags, ucp_request_param_t, flags);
SAME(UCX_INPROGRESS, UCS_INPROGRESS);
SAME(UCX_LAST_ERROR, UCS_ERR_LAST);
SAME(UCX_FEATURES, UCP_PARAM_FIELD_FEATURES);
SAME(UCX_TAG, UCP_FEATURE_TAG);
SAME(UCX_RMA, UCP_FEATURE_RMA);
SAME(UCX_STREAM, UCP_FEATURE_STREAM);
SAME(UCX_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(UCX_MAP_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME(UCX_MAP_LENGTH, UCP_MEM_MAP_PARAM_FIELD_LENGTH);
SAME(UCX_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
SAME(UCX_WAIT_ALL, UCP_STREAM_RECV_FLAG_WAITALL);
END
check 'the structures are those of UCX' gcc -std=gnu11 -fsyntax-only -Wno-enum-compare -Itools/bench \
	-isystem build/ucx-wheels/libucx/include "$tmp/layout.c"
done_testing
