#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# README's demonstration as it is typed, in the virtual machine even where it could run here.
. "$(dirname "$0")/tap.sh"

check 'make demo' selftests/demo --vm
also 'all contents are right' grep -q '^All contents verified' "$tmp/out"
done_testing
