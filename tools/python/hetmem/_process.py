# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The resources that frameworks of this process share: hetmem_torch_resource().

The library makes them at the first allocation on a device, from HETMEM_RESOURCE. So
the spec of a process is chosen once, before that, and forked and spawned children
have the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator

from . import _abi, _library
from .core import Library, Resource, _Handle

_lock = threading.Lock()
_chosen: str | None = None


def check_spec(spec: str) -> None:
    """Refuses a spec that is wrong on every machine.

    The soft driver parses it: opening CUDA would make children that fork() later
    unable to use it.
    """
    try:
        with Library("soft", module="") as library:
            library.explain(spec)
    except _library.HetmemError as error:
        if error.errno == errno.EINVAL:
            raise


def host_memory() -> int:
    """Bytes that the host has left: usable of hetmem_memory_info().

    The soft driver reads the figures of the host, too, and opens no device.
    """
    info = _abi.MemoryInfo(size=ctypes.sizeof(_abi.MemoryInfo))
    with Library("soft", module="") as library:
        _library.check(
            _library.library().hetmem_memory_info(
                library.pointer, -1, ctypes.byref(info)
            )
        )
    return 0 if info.usable == _abi.MEMORY_UNKNOWN else int(info.usable)


def _given(spec: str | None) -> str:
    return spec or os.environ.get("HETMEM_RESOURCE") or "device-pool"


def chosen() -> str | None:
    return _chosen


def is_chosen(spec: str | None) -> bool:
    """Whether the process has this spec. None is what choosing() takes it for."""
    return _given(spec) == _chosen


@contextlib.contextmanager
def choosing(spec: str | None) -> Iterator[str]:
    """Makes @spec the one of the process, None: the one of the environment.

    If the block fails, everything is as before.
    """
    global _chosen
    given = _given(spec)
    check_spec(given)
    with _lock:
        before, variable = _chosen, os.environ.get("HETMEM_RESOURCE")
        if before is not None and before != given:
            raise _library.HetmemError(
                errno.EBUSY,
                f"another framework of this process uses {before}: "
                "all have one spec for the process",
            )
        _chosen = os.environ["HETMEM_RESOURCE"] = given
        try:
            yield given
        except BaseException:
            _chosen = before
            del os.environ["HETMEM_RESOURCE"]
            if variable is not None:
                os.environ["HETMEM_RESOURCE"] = variable
            raise


def change(spec: str) -> None:
    """Gives devices that are not used yet, and children, another spec."""
    global _chosen
    check_spec(spec)
    with _lock:
        _chosen = os.environ["HETMEM_RESOURCE"] = spec


def resource(device: int = 0) -> Resource:
    """The resource of the frameworks on @device."""
    lib = _library.library()
    res = lib.hetmem_torch_resource(_library.integer(device))
    if not res:
        text = lib.hetmem_last_error().decode()
        raise _library.HetmemError(errno.ENODEV, text)
    return Resource(_Handle(0, shared=True), res, _chosen or "current", owned=False)
