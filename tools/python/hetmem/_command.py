# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Finds the hetmem command of this package."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from . import _library


def command() -> str | None:
    """Returns the path of the command: of the wheel, of the repository, or in PATH."""
    for folder in _library.folders():
        path = Path(folder) / "hetmem"
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    # The entry point of this very package is no answer.
    mine = Path(sys.argv[0]).resolve()
    found = shutil.which("hetmem")
    return found if found and Path(found).resolve() != mine else None
