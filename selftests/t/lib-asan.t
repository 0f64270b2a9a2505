#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The library's own tests, under the address and undefined behaviour sanitizers.
san=address,undefined
. "$(dirname "$0")/lib.sh"
