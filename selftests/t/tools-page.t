#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The pages of hetmem report and replay, in a browser: zoom, hover, findings, light and dark.
. "$(dirname "$0")/tools-lib.sh"
. selftests/vm/lib.sh
need chromium:chromium

export HETMEM_DRIVER=soft
traces=selftests/traces
# Blocks of several sizes, more than fit in what moves below.
cat >"$tmp/moves.awk" <<'EOA'
BEGIN {
	print "Thread,Time,Action,Pointer,Size,Stream"
	for (round = 0; round < 40; round++) {
		for (i = 1; i <= 6; i++)
			printf "1,0,allocate,0x%x,%d,0\n", round * 16 + i, i * 2097152
		for (i = 1; i <= 6; i++)
			printf "1,0,free,0x%x,%d,0\n", round * 16 + i, i * 2097152
	}
}
EOA
awk -f "$tmp/moves.awk" >"$tmp/a file's.csv"
check 'a page of a replay' "$hetmem" replay --memory --html "$tmp/replay.html" --spec device-pool \
	--spec 'pool(vmm,max=24M,spill=64M,launcher=single,movable=1M)' "$tmp/a file's.csv"
check 'a page of a spec with any text' "$hetmem" replay --memory --html "$tmp/tag.html" \
	--spec 'pool(vmm,tag="<b id=injected>")' $traces/table.csv.gz
check 'a recording' "$hetmem" record -o "$tmp/record" --interval 10 -- python3 -c '
held = [bytearray(4 << 20) for _ in range(8)]
for i in range(300000):
    held[i % 8][i] = 1
del held[:4]
sum(range(3000000))'
check 'its page' "$hetmem" report --html "$tmp/report.html" "$tmp/record"
cp "$(command -v dd)" "$tmp/<b id=injected>"
check 'a recording of a program with any name' "$hetmem" record -o "$tmp/name" --interval 10 -- \
	"$tmp/<b id=injected>" if=/dev/zero of=/dev/null bs=1M count=2000
check 'its page' "$hetmem" report --html "$tmp/hostile.html" "$tmp/name"
check 'all traces' "$hetmem" replay --memory --html "$tmp/all.html" $traces/{table,serve}.csv.gz
check 'the data of all' python3 selftests/t/page.py data "$tmp"/*.html
also 'a page is small' test "$(cat "$tmp"/*.html | wc -c)" -lt 1500000
also 'commands of a replay name its file for a shell' \
	grep -qF 'moves \u0027'"$tmp"'/a file\u0027\u005c\u0027\u0027s.csv\u0027' "$tmp/replay.html"
program 'in Chromium' limited 300 python3 selftests/t/page.py "$tmp"

# What cannot be written.
exits 1 'replay: no folder' "$hetmem" replay --memory --html "$tmp/none/x" $traces/table.csv.gz
also 'one line' test "$(grep -c '' "$tmp/err")" -eq 1
exits 1 'replay: a full disk' "$hetmem" replay --memory --html /dev/full $traces/table.csv.gz
exits 1 'report: no folder' "$hetmem" report --html "$tmp/none/x" "$tmp/record"
exits 1 'report: a full disk' "$hetmem" report --html /dev/full "$tmp/record"
cp "$tmp/record" "$tmp/itself"
wrong 'report: the recording itself' 'is the recording; name another file with --html' \
	report --html "$tmp/itself" "$tmp/itself"
also 'it is as it was' cmp "$tmp/record" "$tmp/itself"
exits 1 'a trace without blocks' sh -c "echo Thread,Time,Action,Pointer,Size,Stream | '$hetmem' replay --html '$tmp/empty.html' -"
also 'has one line' grep -q 'allocates nothing' "$tmp/err"
done_testing
