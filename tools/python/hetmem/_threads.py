# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Settings of a thread that threads inherit that it starts.

threading.Thread.start is replaced only while there is something to inherit.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

# Called in the starting thread. Returns what the new thread calls first, or None.
Heritage = Callable[[], Optional[Callable[[], None]]]

_lock = threading.Lock()
_heritages: list[Heritage] = []
_start = threading.Thread.start


def _forget() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _start_with(thread: threading.Thread) -> None:
    """threading.Thread.start() of threads that inherit."""
    settings = [made for made in (heritage() for heritage in [*_heritages]) if made]
    if not settings:
        _start(thread)
        return
    before = thread.__dict__.get("run")
    run = thread.run

    def put_back() -> None:
        if before is None:
            del thread.run
        else:
            thread.run = before  # type: ignore[method-assign]

    def covered() -> None:
        put_back()
        for setting in settings:
            setting()
        run()

    thread.run = covered  # type: ignore[method-assign]
    try:
        _start(thread)
    except BaseException:
        put_back()
        raise


def inherit(heritage: Heritage) -> None:
    """Asks @heritage at each start of a thread. A second call has no effect."""
    with _lock:
        if heritage not in _heritages:
            _heritages.append(heritage)
        threading.Thread.start = _start_with  # type: ignore[method-assign, assignment]


def disinherit(heritage: Heritage) -> None:
    """Ends inherit()."""
    with _lock:
        if heritage in _heritages:
            _heritages.remove(heritage)
        if not _heritages and threading.Thread.start is _start_with:
            threading.Thread.start = _start  # type: ignore[method-assign]
