#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# selftests/gpu/report: from what was measured to the page, with nothing lost or made up
# on the way.
. "$(dirname "$0")/tools-lib.sh"

# A tree of its own, in which it may write.
tree=$tmp/tree
mkdir -p "$tree/selftests/gpu" "$tree/Documentation" "$tmp/none" "$tmp/m"
cp selftests/gpu/report "$tree/selftests/gpu/"
cp Documentation/performance.md "$tree/Documentation/"
report=$tree/selftests/gpu/report

# replay TRACE RATIO FIRST PEER_FIRST SECOND PEER_SECOND: as of `hetmem replay --json`.
replay()
{
	cat >"$tmp/m/replay-$1.out" <<-END
	[ { "trace":"$1", "spec":"device-pool", "driver":"cuda", "events":1000,
	    "first_pass_ms":$3, "second_pass_ms":$5,
	    "peer_first_pass_ms":$4, "peer_second_pass_ms":$6,
	    "driver_calls":{ "cuMemCreate":1234, "cuMemMap":7 }, "system_calls":3,
	    "host_wait_ms":0.0, "peak_requested":1073741824, "ratio":$2, "failures":0 } ]
	END
}
replay gpt2 1.0204 40 100 30 100
replay gnn 1.0404 90 100 20 100
cat >"$tmp/m/bench-alloc.out" <<-END
	[ { "what":"one stream", "spec":"device-pool", "threads":1, "ns_pair":61.4, "peer":"cuMemAllocAsync",
	    "peer_ns_pair":800, "driver_calls":{ "cuStreamGetId":2.00 }, "system_calls":0 } ]
END
printf 'name, driver\nNVIDIA H200, 580.1, 0\nLinux 6.18.1 x86_64\nmodel name\t: A CPU\n16\n' \
	>"$tmp/m/machine.txt"
echo '<svg></svg>' >"$tmp/m/gnn.svg"

exits 1 'nothing was measured' "$report" "$tmp/none"
also 'and that is said' grep -q 'nothing in .* was measured' "$tmp/err"
exits 2 'no directory' "$report"
check 'what was measured becomes tables' "$report" "$tmp/m"
also 'the machine is named' grep -q 'NVIDIA H200, driver 580.1; Linux 6.18.1, 16 cores of an A CPU' "$tmp/out"
also 'a ratio that is good enough' grep -q '^| gpt2 | 1.00 GiB | 1.0204 | - | 1.121 | 1.070 | 1.207 | 1.030, 1.10 | yes | - |$' "$tmp/out"
also 'a peer that was not replayed is said to be known from before' \
	grep -q 'except the memory of the peers' "$tmp/out"
also 'one that is not' grep -q '^| gnn | .* | no, by 1.0% | - |$' "$tmp/out"
also 'a pass' grep -q '^| gpt2 | first | 40.00 | 100.00 | 0.400 | 0.500 | 40.0 us | yes |$' "$tmp/out"
also 'one that is too long' grep -q '^| gpt2 | second | 30.00 | 100.00 | 0.300 | 0.200 | 30.0 us | no, by 1.50 times |$' "$tmp/out"
also 'calls' grep -q '^| gpt2 | 1,234 | 7 | 0 |' "$tmp/out"
also 'a pair' grep -q '^| `device-pool` | 61 | 800 | 0.077 | cuStreamGetId 2 | 0 | 100 | yes |$' "$tmp/out"
also 'the picture' grep -q '(plots/gnn.svg)' "$tmp/out"
also 'and no other' test "$(grep -c '(plots/' "$tmp/out")" -eq 1
also 'what was not taken is not there' sh -c "! grep -qE 'resnet|hetmem_grow|Metadata' '$tmp/out'"
sed -n '/^### What was not reached/,$p' "$tmp/out" >"$tmp/missed"
also 'what was missed is listed' test "$(grep -cE '^\| (gpt2: second pass|gnn: memory) ' "$tmp/missed")" -eq 2
also 'and nothing else' test "$(grep -c '^|' "$tmp/missed")" -eq 4
cp "$tmp/out" "$tmp/tables"

# A program against the allocator: one goal is reached, one is not, one has none.
worst() { echo "{ \"name\":\"$1\", \"what\":\"w\", \"n\":1000, \"ns_call\":100.0, \"ns_slowest\":$2, \"ns_held\":90,
	\"instructions_held\":$3, \"ratio\":$4, \"goal\":$5, \"stopped\":$6 }"; }
{
	echo "[ $(worst holes 2000 50000 1.2 1.25 false), $(worst kv 2000 null 1.2 1.1 false),"
	echo "$(worst streams-8 null null 9 null false), $(worst merge 70000000000 null 1 null true) ]"
} >"$tmp/m/bench-worst.out"
check 'programs against an allocator' "$report" "$tmp/m"
also 'a goal that is reached' grep -q '^| holes | w | 1,000 | 100 ns | 2000 ns | 90 ns | 50,000 | 1.200 | 1.25 | yes |$' "$tmp/out"
also 'one that is not' grep -q '^| kv | .* | 1.200 | 1.10 | no, by 9.1% |$' "$tmp/out"
also 'none' grep -q '^| streams-8 | w | 1,000 | 100 ns | - | 90 ns | - | 9.000 | - |  |$' "$tmp/out"
also 'one that was stopped' grep -q '^| merge | .* | stopped |$' "$tmp/out"
: >"$tmp/m/bench-worst.out"

# Memory of both: a goal that is missed, and a row without.
both() { echo "{ \"name\":\"$1\", \"what\":\"$1\", \"unit\":\"ms\", \"ours\":2.5, \"peer\":2, \"peer_name\":\"copies\",
	\"ratio\":1.25 $2 }"; }
echo "{ \"bench\":\"unified\", \"rows\":[ $(both small ', "goal":"at most", "limit":1.1, "met":false'), $(both back '') ] }" \
	>"$tmp/m/bench-unified.out"
check 'memory of both' "$report" "$tmp/m"
also 'what missed its goal' grep -q '^| small | 2.50 | copies | 2.00 | 1.250 | 1.100 | no, by 1.14 times |$' "$tmp/out"
also 'what has none' grep -q '^| back | 2.50 | copies | 2.00 | 1.250 | - |  |$' "$tmp/out"
: >"$tmp/m/bench-unified.out"
echo "{ \"bench\":\"spill\", \"rows\":[ $(both out ', "goal":"at most", "limit":1.1, "met":false'), $(both first '') ] }" \
	>"$tmp/m/bench-spill.out"
check 'blocks that move' "$report" "$tmp/m"
also 'one that missed its goal' grep -q '^| out | 2.5 | copies | 2.0 | 1.25 | 1.10 | no, by 1.14 times |$' "$tmp/out"
also 'one that has none' grep -q '^| first | 2.5 | copies | 2.0 | 1.25 | - |  |$' "$tmp/out"
: >"$tmp/m/bench-spill.out"

# Of threads only the spec with streams=retired was taken: it is not the other one.
echo '[ { "what":"own streams", "spec":"device-pool(streams=retired)", "threads":16, "ns_pair":41.0,
	"peer_ns_pair":900, "driver_calls":{}, "system_calls":0 } ]' >"$tmp/m/bench-threads.out"
check 'threads, one spec' "$report" "$tmp/m"
also 'stands in its own column' grep -q '^| own streams | 16 | - | 41 | - | - | - | - | 100 |' "$tmp/out"
rm "$tmp/m/bench-threads.out"

# RMM beside us: the second pass has a goal, which is wider for gnn and table.
# rmm TRACE FIRST SECOND PEER_FIRST PEER_SECOND: as of replay_rmm; the peer is the tuned pool.
rmm()
{
	local side='"peer_version":"26.10.0", "failures":0, "events":1000'

	cat >"$tmp/m/rmm-$1.out" <<-END
	[ { "trace":"$1", "spec":"device-pool", "driver":"cuda", $side, "ratio":1.0204, "peer":"rmm-pool-tuned",
	    "first_pass_ms":$2, "second_pass_ms":$3, "peer_first_pass_ms":$4, "peer_second_pass_ms":$5,
	    "peer_ratio":1.1003, "peer_failures":0, "peer_initial":1181116006 },
	  { "trace":"$1", "spec":"device-pool", "driver":"cuda", $side, "ratio":1.0204, "peer":"rmm-async",
	    "first_pass_ms":$2, "second_pass_ms":$3, "peer_first_pass_ms":200, "peer_second_pass_ms":100,
	    "peer_ratio":1.2071, "peer_failures":2 } ]
	END
}
also 'no RMM, no table' sh -c "! grep -q RMM '$tmp/out'"
rmm gpt2 40 50 46 46
rmm gnn 60 9.5 7.5 5
rmm table 30 6.3 4.2 3.15
check 'beside RMM' "$report" "$tmp/m"
also 'the version is named' grep -q 'two resources of RMM 26.10.0,' "$tmp/out"
also 'a first pass has no goal' grep -q '^| gpt2 | first | 40.00 | 46.00 | 200.00 | 0.870 | 0.200 |  |  |$' "$tmp/out"
also 'a second pass that is too long' \
	grep -q '^| gpt2 | second | 50.00 | 46.00 | 100.00 | 1.087 | 0.500 | 1.0 | no, by 8.7% |$' "$tmp/out"
also 'one that is nearly twice as long' \
	grep -q '^| gnn | second | 9.50 | 5.00 | 100.00 | 1.900 | 0.095 | 2.0 | yes |$' "$tmp/out"
also 'twice is within the goal' grep -q '^| table | second | 6.30 | 3.15 | .* | 2.000 | 0.063 | 2.0 | yes |$' "$tmp/out"
also 'memory, and what failed' grep -q '^| gpt2 | 1.0204 | 1.1003 | 1.2071 | 0 | 2 |$' "$tmp/out"
also 'what was missed is listed' \
	grep -q '^| gpt2: second pass beside RMM | 1.09 of RMM.s tuned pool | 1.00 of .* | 8.7% |' "$tmp/out"
rmm gnn 60 8.5 7.5 5
mv "$tmp/m/rmm-gnn.out" "$tmp/m/rmm-time-gnn.out"
rmm gnn 60 10.5 7.5 5
check 'with a goal that is missed' "$report" "$tmp/m"
also 'the option has a goal of its own' \
	grep -q '^| gnn | second, prefer=time | 8.50 | 5.00 | - | 1.700 | - | 1.5 | no, by 1.13 times |$' "$tmp/out"
also 'it is said' grep -q '^| gnn | second | .* | 2.100 | 0.105 | 2.0 | no, by 5.0% |$' "$tmp/out"
# One of both was not taken.
sed -i 's/rmm-pool-tuned/rmm-other/' "$tmp/m/rmm-gnn.out"
check 'without the tuned pool' "$report" "$tmp/m"
also 'it is left out' grep -q '^| gnn | second | 10.50 | - | 100.00 | - | 0.105 | 2.0 | - |$' "$tmp/out"
also 'of the memory, too' grep -q '^| gnn | 1.0204 | - | 1.2071 | - | 2 |$' "$tmp/out"
rm "$tmp"/m/rmm-*

# What cuMemAllocAsync's pool held, where it was replayed by the driver that has it.
async()
{
	echo "[ { \"trace\":\"$1\", \"spec\":\"device-pool\", \"driver\":\"$2\", \"ratio\":9.0 },
		{ \"trace\":\"$1\", \"spec\":\"async\", \"driver\":\"$2\", \"ratio\":$3 } ]" >"$tmp/m/plot-$1.out"
}
async gpt2 cuda 1.0155
async gnn soft 1.0000
check 'with the peer' "$report" "$tmp/m"
also 'which is a goal, too' grep -q '^| gpt2 | 1.00 GiB | 1.0204 | - | 1.121 | 1.070 | 1.016 | 1.016, 1.10 | no, by 0.5% | - |$' "$tmp/out"
also 'the soft one is none' grep -q '^| gnn | .* | 1.125 | 1.030, 1.10 |' "$tmp/out"
async gnn cuda 1.2000
check 'with both' "$report" "$tmp/m"
also 'only PyTorch is known from before' grep -q 'except the memory of PyTorch.s allocators' "$tmp/out"
rm "$tmp"/m/plot-*

page=$tree/Documentation/performance.md
outside() { awk '/report: from here/ { off = 1 } !off; /report: to here/ { off = 0 }' "$1"; }
check 'they are written into the page' "$report" --write "$tmp/m"
also 'between the marks' diff -B <(sed -n '/report: from here/,/report: to here/{//!p}' "$page") \
	<(cat "$tmp/tables")
also 'and nowhere else' diff <(outside Documentation/performance.md) <(outside "$page")
also 'pictures get the licence' grep -q SPDX "$tree/Documentation/plots/gnn.svg"
cp "$page" "$tmp/once"
check 'a second time' "$report" --write "$tmp/m"
also 'changes nothing' cmp "$tmp/once" "$page"
head -c 400000 /dev/zero | tr '\0' x >>"$tmp/m/gnn.svg"
exits 1 'a picture that is too large is refused' "$report" --write "$tmp/m"

# The page as it is.
empty 'every picture of the page is there' sh -c '
	grep -oE "\(plots/[a-z0-9.]+\)" Documentation/performance.md | tr -d "()" |
	while read -r path; do [ -s "Documentation/$path" ] || echo "$path"; done'
empty 'and none is large' find Documentation/plots -size +300k

# What the command prints is what the report reads.
HETMEM_DRIVER=soft run replay --json selftests/traces/table.csv.gz
rm -f "$tmp"/m/*
cp "$tmp/out" "$tmp/m/replay-table.out"
ratio=$(sed -n 's/.*"ratio":\([0-9.]*\).*/\1/p' "$tmp/out")
check 'what was just measured' "$report" "$tmp/m"
also 'has its ratio' grep -q "^| table | 1.26 GiB | $ratio | " "$tmp/out"
also 'and is not called a figure of a GPU' grep -q "No figure below is a GPU's" "$tmp/out"
done_testing
