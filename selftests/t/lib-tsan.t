#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The library's own tests, under the thread sanitizer.
san=thread
. "$(dirname "$0")/lib.sh"
