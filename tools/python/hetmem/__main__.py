# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""python -m hetmem: the hetmem command.

The wheel has the command beside the library, so that both are of one version
and the command is there without another installation.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from . import _library


def command() -> str | None:
    """The command: of the wheel, of the repository, or in PATH."""
    for folder in _library.folders():
        path = Path(folder) / "hetmem"
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    # The entry point of this very package is no answer.
    mine = Path(sys.argv[0]).resolve()
    found = shutil.which("hetmem")
    return found if found and Path(found).resolve() != mine else None


def main() -> None:
    path = command()
    if path is None:
        sys.exit("hetmem: no command hetmem: install the wheel, or type: make install")
    sys.stdout.flush()
    os.execv(path, ["hetmem", *sys.argv[1:]])


if __name__ == "__main__":
    main()
