# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Large arrays of NumPy in memory of hetmem.

    import hetmem.numpy
    hetmem.numpy.enable()

NumPy asks a data-memory handler (NEP 49) for the memory of arrays. The handler
is the library's: no Python code runs when an array is allocated or freed. An
array keeps the handler that it was made with, so arrays outlive disable(). The
resource of a handler is never released.

The handler in place is a context variable. enable() sets it for the calling
thread and, unless threads=False, for every threading.Thread that starts later.
Threads that run already, and threads that C code starts, go on with NumPy's own
memory. enable() warns if there are such threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable

from . import _abi, _library, _share, _threads
from ._log import LOGGER
from .core import Resource, StreamLike, default

# Arrays of fewer bytes are NumPy's.
LEAST = 1 << 20

_SET, _GET, _DEFAULT = 304, 305, 306


class _Api:
    """What the package uses of NumPy's C API."""

    def __init__(self) -> None:
        numpy: Any = importlib.import_module("numpy")
        version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
        if version < (1, 22):
            raise _library.HetmemError(
                errno.EOPNOTSUPP,
                f"NumPy {numpy.__version__} has no data-memory handlers: "
                "install 1.22 or later",
            )
        core = importlib.import_module(
            "numpy._core._multiarray_umath"
            if version >= (2, 0)
            else "numpy.core._multiarray_umath"
        )
        python = ctypes.pythonapi
        self.pointer = python.PyCapsule_GetPointer
        self.pointer.restype = _abi.P
        self.pointer.argtypes = [ctypes.py_object, _abi.TEXT]
        # The name must outlive the interpreter's objects: NumPy's own does.
        self.name = python.PyCapsule_GetName
        self.name.restype = _abi.P
        self.name.argtypes = [ctypes.py_object]
        self.capsule = python.PyCapsule_New
        self.capsule.restype = ctypes.py_object
        self.capsule.argtypes = [_abi.P, _abi.P, _abi.P]
        table = ctypes.cast(self.pointer(core._ARRAY_API, None), ctypes.POINTER(_abi.P))
        self.set: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(
            table[_SET]
        )
        self.get: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET])
        own = ctypes.cast(table[_DEFAULT] or 0, ctypes.POINTER(ctypes.py_object))
        self.default: Any = own.contents.value

    def handler(self, capsule: Any) -> int:
        return int(self.pointer(capsule, b"mem_handler"))


_lock = threading.RLock()
_api: _Api | None = None
# What was made, to be used again: resources by spec, capsules by what they refer to.
_resources: dict[str, Resource] = {}
_capsules: dict[tuple[int, int, int], Any] = {}
# Handlers of the package.
_handlers: set[int] = set()
# Set for threads that start, by enable().
_for_threads: Any = None


def _forget() -> None:
    """A forked child makes its own: it cannot use the parent's."""
    global _lock
    _lock = threading.RLock()
    _resources.clear()
    _capsules.clear()


os.register_at_fork(after_in_child=_forget)


def _numpy() -> _Api:
    global _api
    with _lock:
        if _api is None:
            _api = _Api()
        return _api


def _make(resource: Resource | str | None, least: int) -> tuple[Any, Resource]:
    """A capsule of a handler above the one in place, and its resource."""
    least = _library.word(least)
    api = _numpy()
    if not isinstance(resource, Resource):
        spec = resource or "unified"
        if spec not in _resources:
            _resources[spec] = default().resource(spec)
        resource = _resources[spec]
    before = api.get()
    other = api.handler(before)
    key = (resource.pointer, least, other)
    if key not in _capsules:
        handler = _abi.P()
        _library.check(
            _library.library().hetmem_numpy_handler(
                resource.pointer, least, other, ctypes.byref(handler)
            )
        )
        _capsules[key] = api.capsule(handler, api.name(api.default), None)
        _handlers.add(handler.value or 0)
        # Arrays use them until the process ends, later than the interpreter's objects.
        resource._keep()
        for thing in (before, _capsules[key]):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return _capsules[key], resource


def _set(capsule: Any) -> Any:
    """Puts @capsule in place in this context. Returns the one before."""
    return _numpy().set(capsule)


def _covers() -> Callable[[], None] | None:
    """What threads call first."""
    capsule = _for_threads
    if capsule is None:
        return None

    def cover() -> None:
        _set(capsule)

    return cover


def enable(
    resource: Resource | str | None = None,
    *,
    least: int = LEAST,
    threads: bool = True,
) -> Resource:
    """Allocates new arrays of @least bytes or more from @resource.

    @resource: a resource, or a spec; None: "unified". Returns the resource.
    @threads: also in threads that start later; see the top of this module.
    """
    global _for_threads
    with _lock:
        if _for_threads is not None or enabled():
            raise _library.HetmemError(
                errno.EALREADY, "hetmem.numpy is enabled: call disable() before"
            )
        capsule, made = _make(resource, least)
        _set(capsule)
        LOGGER.info("arrays of NumPy of %d bytes or more are of %s", least, made.spec)
        if not threads:
            return made
        _for_threads = capsule
        _threads.inherit(_covers)
    others = threading.active_count() - 1
    if others > 0:
        warnings.warn(
            f"hetmem.numpy: {others} other threads run already and go on with "
            "NumPy's own memory: call enable() before they start",
            RuntimeWarning,
            stacklevel=2,
        )
    return made


def disable() -> None:
    """New arrays of the calling thread, and of threads that start later, get NumPy's
    own memory again. Arrays that there are stay where they are."""
    global _for_threads
    with _lock:
        _for_threads = None
        _threads.disinherit(_covers)
        if enabled():
            _set(_numpy().default)


def enabled() -> bool:
    """Returns whether the calling thread allocates from hetmem."""
    api = _numpy()
    return api.handler(api.get()) in _handlers


@contextlib.contextmanager
def using(
    resource: Resource | str | None = None, *, least: int = LEAST
) -> Iterator[Resource]:
    """Allocates new arrays of the calling thread from a resource in the block."""
    with _lock:
        capsule, made = _make(resource, least)
    before = _set(capsule)
    try:
        yield made
    finally:
        _set(before)


def asarray(
    array: Any,
    *,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    prefetch: bool = False,
) -> Any:
    """Returns @array as an array of NumPy. It has the same memory if the CPU can use
    that, else a copy.

    @array: of CuPy, or whatever else is on a device; others as of numpy.asarray().
    @copy: None: copies if that is needed; False: raises ValueError instead, with the
    reason; True: always copies.
    @stream: the stream that writes @array; None: CuPy's current one. The call waits for
    its work. Wait again after more work of the device, before the CPU uses the result.
    @prefetch: moves the pages to the CPU before the call returns.

    The result keeps the memory of @array.
    """
    return _share.to_numpy(array, copy, stream, prefetch)


def why_copy(array: Any) -> str:
    """Returns why asarray() has to copy @array; "": it does not."""
    return _share.why_to_numpy(array)
