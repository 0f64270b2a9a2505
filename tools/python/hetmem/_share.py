# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""One piece of memory as an array of NumPy and as an array of CuPy.

hetmem.cupy.asarray() and hetmem.numpy.asarray() are to_cupy() and to_numpy() here.
Both ask the driver whose memory an array has, so the array may be of any owner.

The two directions differ in what can go wrong:

- The CPU must not read before the device has written. So to_numpy() waits for the
  stream.
- Nobody must reuse the memory while the device still uses it. NumPy frees at once. So
  an array of CuPy keeps the array of NumPy by a _Keeper, which drops it after the
  work on the streams that were recorded.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import functools
import importlib
import os
import sys
import threading
from typing import Any, Callable

from .core import Stream, StreamLike, stream_handle
from .place import _bounds

# Kinds of memory and attributes of a device, of the CUDA Runtime.
_UNREGISTERED, _HOST, _DEVICE, _MANAGED = range(4)
_PAGEABLE_ACCESS, _CONCURRENT_ACCESS = 88, 89
_CPU = -1

# Arrays that wait for the device, at most. Then the host waits for the first one.
_MOST_PENDING = 64


def _numpy() -> Any:
    return importlib.import_module("numpy")


def _cupy() -> Any:
    return importlib.import_module("cupy")


def is_cupy(thing: Any) -> bool:
    """Is @thing an array of CuPy? Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(thing, cupy.ndarray)


def is_device(thing: Any) -> bool:
    """Is @thing an array of a device, and none of the CPU?"""
    return is_cupy(thing) or (
        not isinstance(thing, _numpy().ndarray)
        and getattr(thing, "__cuda_array_interface__", None) is not None
        and getattr(thing, "__array_interface__", None) is None
    )


class _Handle:
    """A stream that is known by its handle, for CuPy."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _stream(stream: StreamLike | None) -> Any:
    """@stream as an object of CuPy; None: the current one of the thread."""
    cuda = _cupy().cuda
    if stream is None:
        return cuda.get_current_stream()
    if isinstance(stream, cuda.stream._BaseStream):
        return stream
    handle = stream_handle(stream)
    if handle in (Stream.HOST, Stream.UNKNOWN) or handle < 0:
        raise ValueError(f"{stream!r} is no stream of a device")
    if handle in (0, Stream.LEGACY):
        return cuda.Stream.null
    if handle == Stream.PER_THREAD:
        return cuda.Stream.ptds
    # CuPy 14 takes objects, and keeps them.
    made = getattr(cuda.Stream, "from_external", None)
    if made is None:
        return cuda.ExternalStream(handle)
    return made(stream if hasattr(stream, "__cuda_stream__") else _Handle(handle))


@functools.cache
def _attribute(attribute: int, device: int) -> bool:
    return bool(_cupy().cuda.runtime.deviceGetAttribute(attribute, device))


def _kinds(start: int, size: int) -> tuple[Any, Any]:
    """What the driver knows about the first and the last byte."""
    ask = _cupy().cuda.runtime.pointerGetAttributes
    return ask(start), ask(start + size - 1)


def _managed(device: int) -> str:
    if _attribute(_CONCURRENT_ACCESS, device):
        return ""
    return f"the CPU and device {device} cannot use managed memory at one time"


def _unreached(start: int, size: int, device: int) -> str:
    """Why @device cannot use this memory of the host; "": it can."""
    if _attribute(_PAGEABLE_ACCESS, device):
        return ""
    ends = _kinds(start, size)
    kinds = {end.type for end in ends}
    if kinds == {_MANAGED}:
        return _managed(device)
    if kinds == {_HOST} and ends[0].devicePointer == start:
        return ""
    return (
        f"device {device} cannot use the memory of the array: make the array after "
        "hetmem.unify()"
    )


def _misaligned(array: Any) -> bool:
    """Would a kernel fault on it? Elements must be at multiples of their size."""
    size = max(array.dtype.itemsize, 1)
    if size & size - 1 or array.dtype.names is not None:
        size = array.dtype.alignment
    steps = [step for step, n in zip(array.strides, array.shape) if n > 1]
    return any(at % size for at in (array.__array_interface__["data"][0], *steps))


@functools.lru_cache(maxsize=256)
def _supports(dtype: Any) -> bool:
    """Has CuPy this type?"""
    if dtype.hasobject:
        return False
    try:
        # With memory of its own it accepts types that it has no kernels for.
        _cupy().ndarray((0,), dtype)
    except (TypeError, ValueError):
        return False
    return True


def _check_type(array: Any) -> None:
    if isinstance(array, _numpy().ma.MaskedArray):
        raise TypeError("CuPy has no masked arrays: call filled() before")
    if not _supports(array.dtype.newbyteorder("=")):
        raise TypeError(f"CuPy has no arrays of {array.dtype}")


def _why_to_cupy(array: Any, device: int) -> str:
    """Why @array of NumPy has to be copied for @device."""
    if not array.size:
        return ""
    if not array.dtype.isnative:
        return f"the byte order of {array.dtype} is not the one of the device"
    if not array.flags.writeable:
        return "the array is read-only, and CuPy has no such arrays"
    if _misaligned(array):
        return f"an element of {array.dtype} is not at a multiple of its size"
    start, size = _extent(array)
    return _unreached(start, size, device)


def _why_to_numpy(array: Any) -> str:
    """Why @array of CuPy has to be copied for the CPU."""
    if not array.size:
        return ""
    start, size = _extent(array)
    ends = _kinds(start, size)
    kinds = {end.type for end in ends}
    if kinds == {_MANAGED}:
        return _managed(int(array.data.device_id))
    if kinds == {_UNREGISTERED}:
        # Of the system: the device uses the page tables of the CPU.
        return ""
    if kinds == {_HOST} and ends[0].hostPointer == start:
        return ""
    return (
        "the CPU cannot use the memory of the array: make the array after "
        "hetmem.unify()"
    )


def _extent(array: Any) -> tuple[int, int]:
    address = array.data.ptr if is_cupy(array) else array.__array_interface__["data"][0]
    return _bounds(int(address), array.shape, array.strides, array.dtype.itemsize)


def _prefetch(start: int, size: int, to: int, stream: Any) -> None:
    """Moves the pages, if the driver does. It is a hint: failing is no error."""
    runtime = _cupy().cuda.runtime
    if _kinds(start, size)[0].type in (_UNREGISTERED, _MANAGED):
        with contextlib.suppress(runtime.CUDARuntimeError):
            runtime.memPrefetchAsync(start, size, to, stream.ptr)


class _Keeper:
    """Owner of the memory of an array of CuPy: keeps the array of NumPy.

    CuPy drops it with the last array that has the memory, which can be while the
    device works on it.
    """

    __slots__ = ("array", "device", "pid", "streams", "thread")

    def __init__(self, array: Any, device: int, stream: Any) -> None:
        self.array = array
        self.device = device
        # As objects: a stream lives until its use has been waited for.
        self.streams = [stream]
        self.thread = threading.get_ident()
        self.pid = os.getpid()

    def record(self, stream: Any) -> None:
        if stream not in self.streams:
            self.streams.append(stream)

    def events(self) -> list[Any]:
        """Events after the work that there is now."""
        cuda = _cupy().cuda
        found: list[Any] = []
        with cuda.Device(self.device):
            for stream in self.streams:
                if stream.ptr == Stream.PER_THREAD and self.thread != (
                    threading.get_ident()
                ):
                    cuda.Device(self.device).synchronize()
                elif not stream.done:
                    found.append(stream.record(cuda.Event(disable_timing=True)))
        return found

    def __del__(
        self,
        finalizing: Callable[[], bool] = sys.is_finalizing,
        getpid: Callable[[], int] = os.getpid,
    ) -> None:
        if finalizing():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.array))
            return
        # A forked child has no work on a device.
        if getpid() != self.pid:
            return
        try:
            events = self.events()
        except Exception:
            # While a stream is captured nobody may ask. The graph uses the memory
            # for as long as it lives, and the context's error forever.
            _lost.append(self.array)
            return
        if events:
            _pending.append((events, self.array))
        _poll()


# Arrays that the device still uses, and the events of these uses.
_pending: collections.deque[tuple[list[Any], Any]] = collections.deque()
# Arrays that are never released.
_lost: list[Any] = []


def _poll() -> None:
    """Drops the arrays whose work is complete. Waits if there are too many."""
    while True:
        try:
            events, array = _pending.popleft()
        except IndexError:
            return
        try:
            for event in events:
                if len(_pending) >= _MOST_PENDING:
                    event.synchronize()
                elif not event.done:
                    _pending.appendleft((events, array))
                    return
        except Exception:
            _lost.append(array)


def _forget() -> None:
    """A forked child cannot ask for the parent's events."""
    _lost.append(list(_pending))
    _pending.clear()


os.register_at_fork(after_in_child=_forget)


def _keep_pending() -> None:
    """At the end of the interpreter nobody waits: what the device uses is not freed."""
    for entry in list(_pending):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(entry))


atexit.register(_keep_pending)


class _Memory:
    """What NumPy asks for memory: keeps the array of CuPy."""

    def __init__(self, array: Any, typestr: str) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": typestr,
            "data": (int(array.data.ptr), False),
        }


def _needs_copy(copy: bool | None, why: str) -> bool:
    """Does @copy, as of numpy.asarray(), lead to a copy? @why: of the memory."""
    if copy is False and why:
        raise ValueError(f"cannot share without a copy: {why}")
    return bool(copy) or bool(why)


def _source(array: Any, copy: bool | None) -> Any:
    """@array as an array of NumPy. Only what has memory of its own is not copied."""
    numpy = _numpy()
    if isinstance(array, numpy.ndarray):
        return array
    if copy is False and getattr(array, "__array_interface__", None) is None:
        try:
            memoryview(array).release()
        except TypeError:
            raise ValueError(
                f"cannot share without a copy: {type(array).__name__} has no memory "
                "of an array"
            ) from None
    return numpy.asarray(array)


def to_cupy(
    array: Any, copy: bool | None, stream: StreamLike | None, prefetch: bool
) -> Any:
    """See hetmem.cupy.asarray()."""
    cupy = _cupy()
    cuda = cupy.cuda
    if is_device(array):
        own = array if is_cupy(array) else cupy.asarray(array)
        if not copy:
            return own
        with _stream(stream):
            return own.copy()
    source = _source(array, copy)
    _check_type(source)
    on = _stream(stream)
    device = cuda.runtime.getDevice()
    _poll()
    if _needs_copy(copy, _why_to_cupy(source, device)):
        native = source.dtype.newbyteorder("=")
        with on:
            return cupy.array(source.astype(native, copy=False))
    if not source.size:
        return cupy.empty(source.shape, source.dtype.newbyteorder("="))
    start, size = _extent(source)
    if prefetch:
        _prefetch(start, size, device, on)
    memory = cuda.UnownedMemory(start, size, _Keeper(source, device, on), device)
    first = source.__array_interface__["data"][0]
    return cupy.ndarray(
        source.shape,
        source.dtype,
        cuda.MemoryPointer(memory, first - start),
        strides=source.strides,
    )


def to_numpy(
    array: Any, copy: bool | None, stream: StreamLike | None, prefetch: bool
) -> Any:
    """See hetmem.numpy.asarray()."""
    numpy = _numpy()
    if not is_device(array):
        source = _source(array, copy)
        return numpy.array(source) if copy else source
    cupy = _cupy()
    source = array if is_cupy(array) else cupy.asarray(array)
    on = _stream(stream)
    if _needs_copy(copy, _why_to_numpy(source)):
        copied = cupy.asnumpy(source, stream=on)
        # CuPy before 13 does not wait if it is given a stream.
        on.synchronize()
        return copied
    if not source.size:
        return numpy.empty(source.shape, source.dtype)
    if prefetch:
        _prefetch(*_extent(source), _CPU, on)
    on.synchronize()
    plain = numpy.dtype(source.dtype.str) == source.dtype
    shared = numpy.asarray(_Memory(source, source.dtype.str))
    # The text of a type lacks the fields of structures.
    return shared if plain else shared.view(source.dtype)


def why_to_cupy(array: Any) -> str:
    """See hetmem.cupy.why_copy()."""
    if is_device(array):
        return ""
    try:
        source = _source(array, False)
    except ValueError as error:
        return str(error).split(": ", 1)[1]
    _check_type(source)
    return _why_to_cupy(source, _cupy().cuda.runtime.getDevice())


def why_to_numpy(array: Any) -> str:
    """See hetmem.numpy.why_copy()."""
    if is_device(array):
        return _why_to_numpy(array if is_cupy(array) else _cupy().asarray(array))
    try:
        _source(array, False)
    except ValueError as error:
        return str(error).split(": ", 1)[1]
    return ""
