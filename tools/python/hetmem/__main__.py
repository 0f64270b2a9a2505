# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""python -m hetmem: the hetmem command.

The wheel has the command beside the library, so that both are of one version
and the command is there without another installation.
"""

from __future__ import annotations

import os
import sys

from ._command import command


def main() -> None:
    """Runs the command with the arguments of this process, in its place."""
    path = command()
    if path is None:
        sys.exit("hetmem: no command hetmem: install the wheel, or type: make install")
    sys.stdout.flush()
    os.execv(path, ["hetmem", *sys.argv[1:]])


if __name__ == "__main__":
    main()
