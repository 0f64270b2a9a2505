# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The logger "hetmem". The program decides what is shown, and where.

WARNING: PyTorch is in plain mode, or allocate() found no memory.
INFO: a framework is enabled, a compiler starts, memory sleeps or wakes.
DEBUG: a resource is made or closed, or another call failed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

LOGGER = logging.getLogger("hetmem")
# Without a handler of the program Python would print warnings to stderr.
LOGGER.addHandler(logging.NullHandler())


@contextlib.contextmanager
def timed(text: str, *arguments: object) -> Iterator[None]:
    """Logs @text, and how long the block took, if it succeeds."""
    since = time.monotonic()
    yield
    took = (time.monotonic() - since) * 1000
    LOGGER.info(f"{text}: %.1f ms", *arguments, took)
