#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The patches for Linux in selftests/upstream/: they apply, a kernel with them builds without a
# warning, and does what Documentation/upstream.md says.
. "$(dirname "$0")/tap.sh"
. selftests/t/guest.sh

kernel=upstream-7.3
mkdir -p build/log
check "$kernel builds" selftests/vm/kernel "$kernel"
dir=$(tail -n 1 "$tmp/out")
check 'the program builds' make build/selftests/kernel/upstream/hmm_upstream
add_part upstream hmm_upstream
boot -k "$kernel" -t 300 -l "$dir/modules/test_hmm.ko" -L build/log/$kernel \
	-f build/selftests/kernel/upstream/hmm_upstream
check 'the patched kernel does what is documented' part_output upstream
no_complaint upstream
patches() { ls selftests/upstream; }
documented() { grep -oE '[0-9]{4}-[a-z-]+\.patch' Documentation/upstream.md | sort -u; }
empty 'each patch is documented' diff <(patches) <(documented)
done_testing
