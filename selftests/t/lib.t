#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The library's own tests, as they are.
san=
. "$(dirname "$0")/lib.sh"
