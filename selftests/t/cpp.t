#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# <hetmem/resource.hpp>: compiled without a warning, and its programs run on the soft
# driver. The one with RMM's own resources needs RMM's wheels, which pip fetches.
. "$(dirname "$0")/tap.sh"
export HETMEM_DRIVER=soft LD_LIBRARY_PATH=build

# shellcheck disable=SC2054
flags=(-Wall -Wextra -Werror -Wpedantic -Iinclude -Iinclude/uapi)
libs=(build/libhetmem.a -lnuma -ldl -lpthread)
for std in 17 20; do
	check "it compiles alone as C++$std" sh -c "echo '#include <hetmem/resource.hpp>' |
		g++ -x c++ -std=c++$std ${flags[*]} -fsyntax-only -"
	check 'and the program of standard containers' g++ -std=c++$std "${flags[@]}" \
		-o "$tmp/pmr" selftests/cpp/pmr.cpp "${libs[@]}"
	check 'which runs' "$tmp/pmr"
	also 'without a failure' sh -c "grep -q '^1\.\.' '$tmp/out' && ! grep -q '^not' '$tmp/out'"
done
# The programs of cpp.md: of standard containers, and of RMM.
awk -v to="$tmp/page" '/^```cpp$/ { on = ++nr; next } /^```$/ { on = 0 } on { print >(to on ".cpp") }' \
	Documentation/cpp.md
check 'the first program of cpp.md compiles' g++ -std=c++17 "${flags[@]}" -o "$tmp/page1" \
	"$tmp/page1.cpp" "${libs[@]}"
check 'and runs' "$tmp/page1"
if make -s build/rmm-wheels/fetched >"$tmp/fetch" 2>&1; then
	check 'the program of RMM compiles' make -s build/rmm/resource
	check 'and runs' build/rmm/resource
	also 'without a failure' sh -c "grep -q '^1\.\.' '$tmp/out' && ! grep -q '^not' '$tmp/out'"
	check 'the second program of cpp.md compiles' make -s build/rmm/page RMM_SOURCE="$tmp/page2.cpp"
	check 'and runs' build/rmm/page
else
	pass "RMM's resources # SKIP $(tail -1 "$tmp/fetch")"
fi
done_testing
