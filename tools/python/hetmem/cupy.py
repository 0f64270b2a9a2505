# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""CuPy on hetmem.

    import hetmem.cupy
    hetmem.cupy.enable()

New arrays get memory of hetmem, on the current stream. An allocation that fails
raises cupy.cuda.memory.OutOfMemoryError, whose __cause__ has the library's text.
Freed memory is used again after all work on the stream of the allocation. If an
array is used on another stream, call record(array, stream). Arrays outlive
disable().
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import threading
from collections.abc import Iterator
from typing import Any, Callable

from . import _abi, _library, _process
from ._library import HetmemError
from .core import Resource, Stream, StreamLike, stream_handle

_lock = threading.Lock()
_allocator: Any = None
_before: Any = None


def _memory() -> tuple[Any, Any]:
    """cupy.cuda, and its module of memory."""
    cuda = importlib.import_module("cupy").cuda
    return cuda, cuda.memory


def _functions() -> tuple[Callable[[int, int], int], Callable[[int, int], None]]:
    """What PythonFunctionAllocator calls. It is called for every array."""
    library = _library.library()
    cuda, memory = _memory()
    try_alloc, free = library.hetmem_torch_try_alloc, library.hetmem_torch_free
    current_stream, local = cuda.get_current_stream, threading.local()
    pointer, byref, unknown = _abi.P, ctypes.byref, int(Stream.UNKNOWN)

    def cupy_alloc(size: int, device: int) -> int:
        try:
            result, at = local.result
        except AttributeError:
            result = pointer()
            at = byref(result)
            local.result = result, at
        code = try_alloc(size, device, current_stream().ptr, at)
        if code:
            fail(code, size, device)
        return result.value or 0

    def fail(code: int, size: int, device: int) -> None:
        cause = _library.error(code)
        if code != -errno.ENOMEM:
            raise cause
        total = _process.resource(device).stats().requested
        raise memory.OutOfMemoryError(size, total) from cause

    def cupy_free(ptr: int, device: int) -> None:
        free(ptr, 0, device, unknown)

    return cupy_alloc, cupy_free


def _make() -> Any:
    """The allocator: one for the process, since arrays keep it."""
    global _allocator
    if _allocator is None:
        _, memory = _memory()
        _allocator = memory.PythonFunctionAllocator(*_functions())
        # Arrays are freed at the end of the interpreter, too.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_allocator))
    return _allocator


def enable(spec: str | None = None) -> None:
    """Makes hetmem the allocator of CuPy in this process.

    @spec: what device memory is made of; None: HETMEM_RESOURCE of the environment,
    else "device-pool". It is that of hetmem.torch, too.
    """
    global _before
    cuda, _ = _memory()
    with _lock:
        if _before is not None:
            raise HetmemError(errno.EALREADY, "hetmem.cupy is enabled already")
        before = cuda.get_allocator()
        with _process.choosing(spec):
            cuda.set_allocator(_make().malloc)
        _before = before


def disable() -> None:
    """New arrays get memory of the allocator that there was before."""
    global _before
    with _lock:
        if _before is not None:
            _memory()[0].set_allocator(_before)
            _before = None


def enabled() -> bool:
    return _before is not None


@contextlib.contextmanager
def using(spec: str | None = None) -> Iterator[None]:
    """New arrays of the calling thread are of hetmem until the end of the block."""
    cuda, _ = _memory()
    with _lock, _process.choosing(spec):
        allocator = _make()
    with cuda.using_allocator(allocator.malloc):
        yield


def resource(device: int = 0) -> Resource:
    """The resource behind CuPy on @device."""
    if _allocator is None:
        raise HetmemError(errno.EINVAL, "call hetmem.cupy.enable() before")
    return _process.resource(device)


def record(array: Any, stream: StreamLike) -> None:
    """Reports that @stream uses @array: its memory is used again after that."""
    memory = array.data.mem
    resource(int(memory.device_id)).record(int(memory.ptr), stream_handle(stream))
