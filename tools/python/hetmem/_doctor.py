# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What `hetmem doctor` reports, for programs."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterable
from typing import Any

from ._command import command
from ._library import HetmemError


def doctor(require: str | Iterable[str] = ()) -> dict[str, Any]:
    """Reports what works on this machine, as `hetmem doctor --json` does.

    The keys are "uses", "checks", "devices", "missing" and "memory_moves". A process
    of its own looks, so the calling process opens no device.

    @require: names of uses, such as "hmm" or ["pytorch", "sleep"]. If one of them does
    not work, raises HetmemError with errno.EOPNOTSUPP and the reason. A name that is
    no use raises ValueError.
    """
    path = command()
    if path is None:
        raise HetmemError(
            errno.ENOENT, "no command hetmem: install the wheel, or type: make install"
        )
    required = [require] if isinstance(require, str) else list(require)
    words = ["--require", ",".join(required)] if required else []
    result = subprocess.run(
        [path, "doctor", "--json", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = result.stderr.strip().split("\n")[-1].removeprefix("hetmem doctor: ")
    if result.returncode == 2 and required:
        raise ValueError(said)
    if result.returncode == 1 and required:
        raise HetmemError(errno.EOPNOTSUPP, said)
    try:
        found: dict[str, Any] = json.loads(result.stdout)
    except ValueError:
        raise HetmemError(
            errno.EIO, f"{path} doctor ended with {result.returncode}: {said}"
        ) from None
    return found
