#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The command where the modules are, and a guide's driver beside them: all parts of vm/, in one
# guest. Each part loads the modules anew, with its own parameters.
#
# usage: tools-vm.t [PART]...     these parts only
. "$(dirname "$0")/tools-lib.sh"
. selftests/t/guest.sh

kernel=stock-7
[ $# -gt 0 ] || set -- driver map live record run hint bench
mkdir -p build/log

# need_executor: the program that carries out hints, from the guide.
need_executor()
{
	[ ! -e "$tmp/executor" ] || return
	awk '/^```c$/ { n++; on = n == 1; next } /^```$/ { on = 0 } on' Documentation/hints.md >"$tmp/executor.c"
	check 'a program that carries out hints' gcc -Iinclude -Iinclude/uapi -o "$tmp/executor" \
		"$tmp/executor.c" build/libhetmem.a -lnuma -lpthread -ldl
	files+=(-f "$tmp/executor")
}

# need_input: a file of 64 MiB.
need_input()
{
	[ ! -e "$tmp/input" ] || return
	head -c 64M /dev/urandom >"$tmp/input"
	files+=(-f "$tmp/input:/input")
}

# Each part's script begins with these.
cat >"$tmp/prelude.sh" <<'EOS'
rm -rf /tmp/*
export HETMEM_DRIVER=soft
try() { echo "BEGIN $1"; shift; "$@" 2>&1; echo "END $?"; }
begin() { rm -f /tmp/out; "$@" >/tmp/out & pid=$!; while [ ! -s /tmp/out ]; do sleep 0.1; done; }
# reload NAME=VALUE...: the modules anew; parameters of hetmem_emu.ko. A module that is still used
# fails to load again, and so does the part.
reload()
{
	for module in example test_hmm hetmem_emu hetmem; do
		! grep -q "^$module " /proc/modules || rmmod $module || exit
	done
	insmod /lib/modules/hetmem.ko && insmod /lib/modules/hetmem_emu.ko "$@" || exit
}
EOS

files=() modules=''
for name; do
	# shellcheck source=/dev/null
	. "selftests/t/vm/$name.sh" || { echo "Bail out! there is no part $name"; exit 1; }
	"prepare_$name"
	cat "$tmp/prelude.sh" "$tmp/$name.sh" >"$tmp/$name.full"
	files+=(-f "$tmp/$name.full:/vm/$name.sh")
	add_part "$name" sh "/vm/$name.sh"
done
if [ -z "$modules" ]; then
	check 'the modules build' selftests/vm/build-modules $kernel
	modules=$(tail -n 1 "$tmp/out")
fi
boot -k $kernel -t 2100 -m 2048 -n -L build/log/tools-vm \
	-f "$modules/hetmem.ko:/lib/modules/hetmem.ko" -f "$modules/hetmem_emu.ko:/lib/modules/hetmem_emu.ko" \
	-f build/libhetmem-soft.so:/lib/x86_64-linux-gnu/libhetmem-soft.so -f "$hetmem:/bin/hetmem" "${files[@]}"
for name; do
	check "$name came to its end" part_output "$name"
	cp "$tmp/out" "$tmp/all"
	no_complaint "$name"
	"judge_$name"
done
done_testing
