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
import math
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from . import _abi, _library, _process, _share
from ._library import HetmemError
from ._log import LOGGER
from ._sparse import Committed, Rows, shape_of, strides_of
from .core import Block, Resource, Stream, StreamLike, default, stream_handle

_lock = threading.Lock()
_allocator: Any = None
_before: Any = None


def _memory() -> tuple[Any, Any]:
    """cupy.cuda, and its module of memory."""
    cuda = importlib.import_module("cupy").cuda
    return cuda, cuda.memory


# CuPy's C functions that return the thread's current stream, with their types: of a
# device, and of the current one. Older versions have only the second one.
_STREAMS = (
    ("get_stream_ptr", b"intptr_t (int)"),
    ("get_current_stream_ptr", b"intptr_t (void)"),
)
Functions = tuple[Callable[[int, int], int], Callable[[int, int], None]]


def _fail(code: int, size: int, device: int) -> None:
    """Raises the exception of an allocation that just failed in this thread."""
    cause = _library.error(code)
    if code != -errno.ENOMEM:
        raise cause
    total = _process.resource(device).stats().requested
    raise _memory()[1].OutOfMemoryError(size, total) from cause


def _streams() -> list[int | None]:
    """The addresses of _STREAMS."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = _abi.P
    pointer.argtypes = [ctypes.py_object, _abi.TEXT]
    try:
        exported = importlib.import_module("cupy_backends.cuda.stream").__pyx_capi__
    except (ImportError, AttributeError):
        exported = {}
    found: list[int | None] = []
    for name, kind in _STREAMS:
        try:
            found.append(pointer(exported.get(name), kind))
        except ValueError:
            found.append(None)
    return found


def _fast_functions() -> Functions | None:
    """The functions in C, unless the package or CuPy lacks a part of them."""
    streams = _streams()
    if not any(streams):
        return None
    # It takes the library that is loaded already: the package's.
    _library.library()
    try:
        calls = ctypes.CDLL(_library.part("libhetmem-cupy.so"))
        calls.hetmem_cupy_set.argtypes = [_abi.P, _abi.P, ctypes.py_object]
        calls.hetmem_cupy_set.restype = None
        calls.hetmem_cupy_set(*streams, None)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [_abi.P, ctypes.py_object, _abi.P]
        alloc, free = (
            make(ctypes.addressof(_abi.P.in_dll(calls, name)), _fail, None)
            for name in ("hetmem_cupy_alloc_method", "hetmem_cupy_free_method")
        )
    except (HetmemError, OSError, AttributeError, ValueError):
        return None
    return alloc, free


def _slow_functions() -> Functions:
    """The same by ctypes."""
    library = _library.library()
    cuda, _ = _memory()
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
            _fail(code, size, device)
        return result.value or 0

    def cupy_free(ptr: int, device: int) -> None:
        free(ptr, 0, device, unknown)

    return cupy_alloc, cupy_free


def _functions() -> Functions:
    """What PythonFunctionAllocator calls. It is called for every array."""
    return _fast_functions() or _slow_functions()


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
    LOGGER.info("CuPy allocates from hetmem")


def disable() -> None:
    """Gives new arrays the allocator that CuPy had before enable()."""
    global _before
    with _lock:
        if _before is not None:
            _memory()[0].set_allocator(_before)
            _before = None


def enabled() -> bool:
    """Returns whether enable() made hetmem the allocator of CuPy."""
    return _before is not None


@contextlib.contextmanager
def using(spec: str | None = None) -> Iterator[None]:
    """Allocates new arrays of the calling thread from hetmem in the block."""
    cuda, _ = _memory()
    with _lock, _process.choosing(spec):
        allocator = _make()
    with cuda.using_allocator(allocator.malloc):
        yield


def resource(device: int = 0) -> Resource:
    """Returns the resource behind CuPy on @device."""
    if _allocator is None:
        raise HetmemError(errno.EINVAL, "call hetmem.cupy.enable() before")
    return _process.resource(device)


def record(array: Any, stream: StreamLike) -> None:
    """Reports that @stream uses @array: its memory is used again after that."""
    memory = array.data.mem
    owner = getattr(memory, "_owner", None)
    if isinstance(owner, Block):
        owner.record(stream)
        return
    if isinstance(owner, _share._Keeper):
        owner.record(_share._stream(stream))
        return
    resource(int(memory.device_id)).record(int(memory.ptr), stream_handle(stream))


# Resources of sparse(), by spec.
_apart: dict[str, Resource] = {}
os.register_at_fork(after_in_child=_apart.clear)


class Sparse(Committed):
    """An array whose memory is made as far as commit() says; see sparse().

    @array: the array of max_shape. Its address never changes.
    @resource: whose memory it is.
    """

    def __init__(
        self, resource: Resource, shape: tuple[int, ...], dim: int, dtype: Any
    ) -> None:
        cupy = importlib.import_module("cupy")
        self.resource = resource
        self.dim = dim
        kind = cupy.dtype(dtype)
        row = math.prod(shape) // shape[dim] * kind.itemsize
        size = row * shape[dim]
        device = int(cupy.cuda.Device().id)
        block = resource.alloc(size, cupy.cuda.get_current_stream(), sparse=True)
        self._rows = Rows(resource, block.ptr, size=size, row=row, limit=shape[dim])
        # The last array of this memory drops the block, which frees itself.
        memory = cupy.cuda.UnownedMemory(block.ptr, size, block, device)
        strides = tuple(step * kind.itemsize for step in strides_of(shape, dim))
        self.array = cupy.ndarray(
            shape, kind, cupy.cuda.MemoryPointer(memory, 0), strides
        )

    def commit(self, rows: int) -> Any:
        """The first @rows indices of the dimension have memory, and no others.

        Returns the array of these. See Sparse.commit() of hetmem.torch. Without memory
        it raises hetmem.OutOfMemoryError.
        """
        if not self._rows.fits(rows):
            self._rows.commit(rows, _memory()[0].get_current_stream())
        return self.array[(slice(None),) * self.dim + (slice(0, rows),)]


def sparse(
    max_shape: int | Iterable[int],
    dtype: Any = float,
    *,
    dim: int = 0,
    spec: str | None = None,
) -> Sparse:
    """Makes an array of @max_shape that has addresses and no memory yet.

    commit(n) of the result makes memory for the first n indices of @dim, on the current
    stream, in units of the pool. It copies nothing. A use of what is not committed is
    an error, which can crash.

    @spec: a pool over vmm(), one for all arrays with this spec. None: CuPy's memory
    after enable(), else a device-pool of the current device.
    """
    shape, outer = shape_of(max_shape, dim)
    device = int(_memory()[0].Device().id)
    if spec is None and _allocator is not None:
        return Sparse(_process.resource(device), shape, outer, dtype)
    text = spec or f"device-pool(device={device})"
    with _lock:
        if text not in _apart:
            _apart[text] = default().resource(text)
    return Sparse(_apart[text], shape, outer, dtype)


def asarray(
    array: Any,
    *,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    prefetch: bool = False,
) -> Any:
    """Returns @array as an array of CuPy. It has the same memory if the current device
    can use that, else a copy.

    @array: of NumPy, or whatever numpy.asarray() takes. One of CuPy is returned.
    @copy: None: copies if that is needed; False: raises ValueError instead, with the
    reason; True: always copies.
    @stream: the stream that uses the result; None: the current one. If another stream
    uses the result, call record().
    @prefetch: moves the pages to the device, on @stream.

    The result keeps the memory of @array until the work on these streams is complete.
    Before the CPU writes to @array, synchronize the stream, or call
    hetmem.numpy.asarray() of the result. CuPy has no read-only arrays: a read-only
    @array is copied. Raises TypeError for types that CuPy lacks.
    """
    return _share.to_cupy(array, copy, stream, prefetch)


def why_copy(array: Any) -> str:
    """Returns why asarray() has to copy @array; "": it does not."""
    return _share.why_to_cupy(array)
