# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Libraries, resources and blocks as objects.

A Block keeps its Resource, and a Resource its library, so nothing is released
while it is used. When the interpreter ends, nothing is released by hand: the end
of the process does that. In a forked child, memory of a device cannot be used.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import errno
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Callable, Union

from . import _abi, _library
from ._library import HetmemError, OutOfMemoryError, check, integer, text, word
from ._log import LOGGER, timed

StreamLike = Union[int, Any]


class Stream(enum.IntEnum):
    """Streams that every program has."""

    LEGACY = _abi.STREAM_LEGACY
    PER_THREAD = _abi.STREAM_PER_THREAD
    HOST = _abi.STREAM_HOST
    UNKNOWN = _abi.STREAM_UNKNOWN


def _handle_of(value: int) -> int:
    try:
        return word(value)
    except ValueError:
        raise ValueError(f"{value} is no stream: give its handle") from None


def stream_handle(stream: StreamLike) -> int:
    """Returns the handle of a number, or of a stream of PyTorch, CuPy, Numba or
    cuda.core."""
    if isinstance(stream, int):
        return _handle_of(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return _handle_of((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return _handle_of(getattr(value, "value", value) or 0)
    raise TypeError(f"{type(stream).__name__} is no stream: give its handle")


@dataclasses.dataclass(frozen=True)
class Stats:
    """struct hetmem_resource_stats; bytes, except of counts and host_wait_ns."""

    live: int
    requested: int
    requested_peak: int
    reserved: int
    reserved_peak: int
    metadata: int
    allocs: int
    frees: int
    failed: int
    driver_calls: int
    host_wait_ns: int
    parked: int
    spilled: int
    spill_host: int
    spill_host_peak: int
    spilled_total: int
    fetched_total: int
    spilled_peak: int
    parked_file: int
    pressures: int
    addresses: int
    replicas: int


@dataclasses.dataclass(frozen=True)
class Counter:
    """One count of stats(): now, the most, and the sum of everything added."""

    value: int
    peak: int
    total: int


@dataclasses.dataclass(frozen=True)
class Counters:
    """Bytes and blocks that went through a stats()."""

    bytes: Counter
    blocks: Counter


@dataclasses.dataclass(frozen=True)
class Access:
    """The processors that can use every block of a resource."""

    host: bool
    some_host: bool
    devices: frozenset[int]
    some_devices: frozenset[int]
    unit: int
    """Bytes of a unit of sparse blocks; 0: there are none."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A device of the driver in use."""

    name: str
    platform: str
    managed: bool
    vmm: bool
    host_node: int
    total: int
    granularity: int
    module_id: int


@dataclasses.dataclass(frozen=True)
class MemoryFigure:
    """Free memory as one source reports it. @bytes is None if it is not known.

    @counts: does MemoryInfo.usable depend on it? @source: the call or file, or the
    reason why the figure is not known.
    """

    bytes: int | None
    counts: bool
    source: str


@dataclasses.dataclass(frozen=True)
class MemoryInfo:
    """Free memory of a device or of the host, in bytes.

    @usable: the least figure that counts, less @reserve; None: none is known.
    @least: the name of that figure; None: none is known.
    @pressures: calls of functions of Resource.on_pressure(), for this memory.
    @imported: bytes of other processes that this process maps.
    """

    total: int
    usable: int | None
    reserve: int
    least: str | None
    figures: dict[str, MemoryFigure]
    pressures: int
    imported: int


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that a machine has or lacks, and the reason."""

    name: str
    available: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class Remap:
    """What Resource.on_remap() passes: memory behind an address changes."""

    ptr: int
    bytes: int
    cause: str
    changes: tuple[str, ...]
    after: bool
    error: int


@dataclasses.dataclass(frozen=True)
class Pressure:
    """What Resource.on_pressure() passes: memory would be made beyond @at.

    @bytes: of the allocation, or of the block that grows; 0: of a wake or a fetch.
    @held: bytes that the resource holds.
    """

    bytes: int
    held: int
    at: int


@dataclasses.dataclass(frozen=True)
class Reclaimed:
    """What other processes gave back: @bytes in all. @given: by PID.

    @silent: PIDs of processes that did not answer in time.
    """

    bytes: int
    given: dict[int, int]
    silent: list[int]


class _Single:
    """An object of the library. A copy would release it a second time."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{type(self).__name__} of hetmem cannot be copied or pickled")


class _Handle(_Single):
    """An open library. Its last user closes it, except a shared one."""

    def __init__(self, hm: int, shared: bool = False) -> None:
        self.hm: int | None = hm
        self.shared = shared
        # Has it a resource that is never released?
        self.kept = False
        # Resources that this package made, by their address.
        self.made: weakref.WeakValueDictionary[int, Resource] = (
            weakref.WeakValueDictionary()
        )
        self.lib = _library.library()

    def get(self) -> int:
        if self.hm is None:
            raise ValueError("the library is closed")
        return self.hm

    def close(self) -> None:
        if self.kept:
            return
        hm, self.hm = self.hm, None
        if hm is not None and not self.shared:
            self.lib.hetmem_close(hm)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.close()


def _signed(value: int) -> int:
    """A counter after a push can be below zero."""
    return value - (1 << 64) if value >> 63 else value


def _counters(raw: _abi.Counters) -> Counters:
    return Counters(
        *(
            Counter(_signed(part.value), _signed(part.peak), part.total)
            for part in (raw.bytes, raw.blocks)
        )
    )


class Counting:
    """What went through a stats() since Resource.counters() was entered."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._result: Counters | None = None

    def read(self) -> Counters:
        """The counters now; after the end of the block, those at its end."""
        if self._result is not None:
            return self._result
        raw = _abi.Counters(size=ctypes.sizeof(_abi.Counters))
        self._resource._call("hetmem_counters", ctypes.byref(raw))
        return _counters(raw)

    @property
    def bytes(self) -> Counter:
        """The bytes of read()."""
        return self.read().bytes

    @property
    def blocks(self) -> Counter:
        """The blocks of read()."""
        return self.read().blocks

    def _end(self) -> None:
        raw = _abi.Counters(size=ctypes.sizeof(_abi.Counters))
        self._resource._call("hetmem_counters_pop", ctypes.byref(raw))
        self._result = _counters(raw)


class Alias(_Single):
    """A second address of a block: see Block.alias(). free() or `with` ends it."""

    __slots__ = ("__weakref__", "_live", "block", "ptr", "size")

    def __init__(self, block: Block, size: int, read_only: bool) -> None:
        found = _abi.P()
        flags = _abi.ALIAS_READ if read_only else 0
        block._call("hetmem_alias", word(size), flags, ctypes.byref(found))
        self.block = block
        self.ptr = found.value or 0
        self.size = size
        self._live = [self.ptr]

    def free(self, stream: StreamLike = Stream.LEGACY) -> None:
        """Ends the alias after all work on @stream."""
        try:
            ptr = self._live.pop()
        except IndexError:
            raise ValueError("the alias is free") from None
        try:
            self.block.resource.deallocate(ptr, self.size, stream)
        except BaseException:
            self._live.append(ptr)
            raise

    def __enter__(self) -> Alias:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self.free()

    def __repr__(self) -> str:
        state = "" if self._live else ", free"
        return f"<hetmem.Alias {self.ptr:#x}, {self.size} bytes{state}>"


class Replica(_Single):
    """A copy of a block on another device: see Block.replicate().

    free(), `with`, the free of the block or the end of the object ends it.
    """

    __slots__ = ("__weakref__", "_live", "block", "device", "ptr", "size")

    def __init__(self, block: Block, device: int) -> None:
        found = _abi.P()
        self._live: list[int] = []
        block._call("hetmem_replicate", device, ctypes.byref(found))
        self.block = block
        self.device = device
        self.ptr = found.value or 0
        self.size = block.size
        self._live.append(self.ptr)

    @property
    def _there(self) -> bool:
        return bool(self._live and self.block._live) and not self.block.resource.closed

    def free(self, stream: StreamLike = Stream.LEGACY) -> None:
        """Frees the replica after all work on @stream."""
        if not self._there:
            raise ValueError("the replica is free")
        ptr = self._live.pop()
        try:
            self.block.resource.deallocate(ptr, self.size, stream)
        except BaseException:
            self._live.append(ptr)
            raise

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing() or not getattr(self, "_live", None) or not self._there:
            return
        try:
            self.free()
        except HetmemError as error:
            # A forked child has none of a device's memory.
            if error.errno != errno.EOWNERDEAD:
                raise

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._there:
            self.free()

    def __repr__(self) -> str:
        state = "" if self._there else ", free"
        return (
            f"<hetmem.Replica {self.ptr:#x}, {self.size} bytes, "
            f"device {self.device}{state}>"
        )


class Block(_Single):
    """Memory of a resource. It is freed by free(), or when nothing uses it."""

    __slots__ = ("__weakref__", "_live", "ptr", "resource", "size")

    def __init__(self, resource: Resource, ptr: int, size: int) -> None:
        self.resource = resource
        self.ptr = ptr
        self.size = size
        # pop() gives it to one thread only.
        self._live = [ptr]

    def free(self, stream: StreamLike | None = None) -> None:
        """Frees the block after all work on @stream; by default after all uses
        on the stream of the allocation and on recorded ones."""
        try:
            ptr = self._live.pop()
        except IndexError:
            raise ValueError("the block is free") from None
        try:
            self.resource.deallocate(ptr, stream=stream)
        except BaseException:
            self._live.append(ptr)
            raise

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing() or not getattr(self, "_live", None):
            return
        if self.resource.closed:
            return
        try:
            self.free()
        except HetmemError as error:
            # A forked child has none of a device's memory.
            if error.errno != errno.EOWNERDEAD:
                raise

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self.free()

    def __repr__(self) -> str:
        state = "" if self._live else ", free"
        return f"<hetmem.Block {self.ptr:#x}, {self.size} bytes{state}>"

    def _address(self) -> int:
        if not self._live or self.resource.closed:
            raise ValueError("the block is free")
        return self.ptr

    def _call(self, name: str, *arguments: Any) -> int:
        return self.resource._call(name, self._address(), *arguments)

    def record(self, stream: StreamLike) -> None:
        """Reports a use on another stream: a free takes effect after it, too."""
        self._call("hetmem_record_stream", stream_handle(stream))

    def grow(self, size: int, stream: StreamLike = Stream.LEGACY) -> None:
        """Grows the block to @size bytes at its address."""
        self._call("hetmem_grow", word(size), stream_handle(stream))
        self.size = size

    def shrink(self, size: int, stream: StreamLike = Stream.LEGACY) -> None:
        """Gives back what is behind the first @size bytes. The address stays."""
        self._call(
            "hetmem_shrink", word(size), word(self.size - size), stream_handle(stream)
        )
        self.size = size

    def give_back(
        self, offset: int, length: int, stream: StreamLike = Stream.LEGACY
    ) -> None:
        """Gives back whole handles in @length bytes at @offset. The rest stays."""
        if offset < 0 or length < 0 or offset + length >= self.size:
            raise ValueError("the range ends with the block, or beyond: shrink()")
        self._call("hetmem_shrink", word(offset), word(length), stream_handle(stream))

    def alias(self, size: int | None = None, *, read_only: bool = False) -> Alias:
        """A second address of the first @size bytes, of all without it.

        With @read_only devices cannot write there.
        """
        return Alias(self, self.size if size is None else size, read_only)

    def replicate(self, device: int) -> Replica:
        """Memory of @device for a copy of the block, which refresh() makes.

        Then free() of the block takes a stream, and frees its replicas too.
        """
        return Replica(self, device)

    def refresh(self, stream: StreamLike = Stream.LEGACY) -> None:
        """Copies the block to all of its replicas at once, in the order of @stream."""
        self._call("hetmem_refresh", stream_handle(stream))

    def commit(
        self,
        offset: int,
        length: int,
        stream: StreamLike = Stream.LEGACY,
        *,
        wait: bool = False,
    ) -> None:
        """Backs @length bytes at @offset of a sparse block, for use on @stream.

        Whole units: multiples of the pool's unit=, or up to the end of the block.
        Contents are undefined. If a unit is committed, errno is EEXIST. With @wait the
        stream waits for memory that others decommitted, and the host does not: if there
        is too little, errno is EAGAIN.
        """
        self._call(
            "hetmem_commit_with",
            word(offset),
            word(length),
            int(wait),
            stream_handle(stream),
        )

    def decommit(
        self, offset: int, length: int, stream: StreamLike = Stream.LEGACY
    ) -> None:
        """Gives the memory of these units back, after all work on @stream.

        If a unit is not committed, errno is ENOENT.
        """
        self._call("hetmem_decommit", word(offset), word(length), stream_handle(stream))

    def committed(self) -> list[tuple[int, int]]:
        """The committed ranges of a sparse block: offset and length, in order."""
        room = 16
        while True:
            found = (_abi.Extent * room)()
            try:
                number = self._call("hetmem_committed", found, room)
            except HetmemError as error:
                if error.errno != errno.ENOSPC:
                    raise
                room *= 2
                continue
            return [(part.offset, part.length) for part in found[:number]]

    def parked(self, offset: int = 0, length: int | None = None) -> bytearray:
        """The contents, while the pool sleeps with them. The pool stays asleep.

        @offset, @length: a part of the block; None: the rest.
        """
        size = self.size - offset if length is None else length
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{length} bytes at {offset} are not in {self.size}")
        return self.resource.parked_read(self._address() + offset, size)

    def spill(self, wait: bool = True) -> None:
        """Moves the block to the host. Without @wait it only begins."""
        self._call("hetmem_spill" if wait else "hetmem_spill_async")

    def fetch(self, wait: bool = True) -> None:
        """Moves the block back to the device."""
        self._call("hetmem_fetch" if wait else "hetmem_fetch_async")

    def host_access(self) -> None:
        """Lets the CPU use the spilled parts, until they are fetched."""
        self._call("hetmem_host_access")

    def priority(self, priority: int) -> None:
        """Blocks of the lowest priority are spilled first."""
        self._call("hetmem_priority", integer(priority))

    def memoryview(self) -> memoryview:
        """The block as bytes for the CPU. The view keeps the block."""
        if not self.resource.access().host:
            raise BufferError("the CPU cannot use this memory")
        kind: Any = ctypes.c_ubyte * self.size
        array = kind.from_address(self._address())
        array.block = self
        return memoryview(array).cast("B")

    def _interface(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self._address(), False),
            "version": 3,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.resource.access().host:
            raise AttributeError("the CPU cannot use this memory")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.resource.access().devices:
            raise AttributeError("no device can use this memory")
        return {**self._interface(), "stream": None}


class Resource(_Single):
    """A resource: where memory comes from. It is a context manager.

    Memory that allocate() returned is lost when the resource is collected:
    keep the resource as long as the memory.
    """

    def __init__(self, handle: _Handle, res: int, spec: str, owned: bool) -> None:
        self._handle = handle
        self._res: int | None = res
        self._owned = owned
        self._kept = False
        # Devices of as_current().
        self._current_of: list[int] = []
        # The object that can close what this one borrows.
        self._owner = None if owned else handle.made.get(res)
        if owned:
            handle.made[res] = self
        self._callbacks: dict[Callable[[Remap], None], Any] = {}
        # One that was replaced can still run: each stays as long as the resource.
        self._pressure: dict[Callable[[Pressure], None] | None, Any] = {}
        self._lib = handle.lib
        self.spec = spec
        self._access = self._ask_access()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<hetmem.Resource {self.spec}{state}>"

    def __enter__(self) -> Resource:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.closed and not self._kept:
            self.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing() or getattr(self, "_res", None) is None:
            return
        if self._handle.hm is not None:
            with contextlib.suppress(HetmemError):
                self.close()

    @property
    def closed(self) -> bool:
        """Whether the resource, or its library, was closed."""
        if self._owner is not None and self._owner.closed:
            return True
        return self._res is None or self._handle.hm is None

    @property
    def pointer(self) -> int:
        """struct hetmem_resource *, for C."""
        if self._res is None or self.closed:
            raise ValueError(f"{self!r} is closed")
        return self._res

    def _call(self, name: str, *arguments: Any) -> int:
        return check(getattr(self._lib, name)(self.pointer, *arguments))

    def close(self) -> int:
        """Releases everything. Returns how many blocks were still allocated.

        EBUSY: arrays of a framework use it until the process ends.
        """
        if self._kept:
            raise HetmemError(
                errno.EBUSY, f"{self!r} is never released: arrays can be in its memory"
            )
        left = 0
        if self._owned:
            res = self.pointer
            self._unset()
            self._handle.made.pop(res, None)
            left = self._call("hetmem_resource_destroy")
            LOGGER.debug("closed %s: %d blocks were live", self.spec, left)
        self._res = None
        return left

    def _keep(self) -> None:
        """Code without Python objects uses it until the process ends."""
        if self._owner is not None:
            self._owner._keep()
        self._kept = self._handle.kept = True
        # The interpreter's end comes first.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _unset(self) -> None:
        """No device keeps the resource as its current one."""
        hm, old = self._handle.get(), _abi.P()
        set_current = self._lib.hetmem_resource_set_current
        for device in self._current_of:
            check(set_current(hm, device, None, ctypes.byref(old)))
            if old.value not in (None, self._res):
                check(set_current(hm, device, old, None))

    def _stream(self, stream: StreamLike | None) -> int:
        if stream is None:
            return int(Stream.HOST if self._access.host else Stream.LEGACY)
        return stream_handle(stream)

    def allocate(
        self,
        size: int,
        stream: StreamLike | None = None,
        *,
        align: int = 0,
        reserve: int = 0,
        movable: bool = False,
        keep: bool = False,
        placement: str = "stream",
        priority: int = 0,
        tag: str | None = None,
        scratch: bool = False,
        sparse: bool = False,
        ring: bool = False,
    ) -> int:
        """The address of @size bytes, to be freed by deallocate().

        @stream: where it is used first; without it the CPU if it can use the
        memory, else the legacy stream.
        @reserve: bytes that the block can grow to.
        @movable, @keep, @priority: of blocks that move, see spill().
        @placement: who uses it: "stream", "host", "device", "both",
        "read_mostly" or "streaming".
        @tag: name for sleep() and wake(), which then concern the blocks of this tag.
        @scratch: sleep() does not keep the contents.
        @sparse: addresses without memory, see Block.commit().
        @ring: the block is mapped twice in a row: byte i is byte i + @size.
        """
        if placement not in _abi.PLACEMENTS:
            raise ValueError(
                f"no placement {placement!r}: there are {', '.join(_abi.PLACEMENTS)}"
            )
        ptr = _abi.P()
        params = _abi.AllocParams(
            size=ctypes.sizeof(_abi.AllocParams),
            bytes=word(size),
            align=word(align),
            stream=self._stream(stream),
            reserve=word(reserve),
            flags=movable * _abi.ALLOC_MOVABLE
            | keep * _abi.ALLOC_KEEP
            | scratch * _abi.ALLOC_SCRATCH
            | sparse * _abi.ALLOC_SPARSE
            | ring * _abi.ALLOC_RING,
            placement=_abi.PLACEMENTS.index(placement),
            priority=integer(priority),
            tag=None if tag is None else text(tag),
        )
        try:
            self._call("hetmem_alloc_with", ctypes.byref(params), ctypes.byref(ptr))
        except OutOfMemoryError as error:
            LOGGER.warning(
                "%s: no memory for %d bytes: %s", self.spec, size, error.strerror
            )
            raise
        return ptr.value or 0

    def deallocate(
        self, ptr: int, size: int = 0, stream: StreamLike | None = None
    ) -> None:
        """Frees @ptr. @size is the requested size, or 0. @stream: see Block.free()."""
        if stream is None:
            # A forked child has no streams, but it has the host's memory.
            stream = Stream.UNKNOWN if self._access.some_devices else Stream.HOST
        self._call("hetmem_free", word(ptr), word(size), stream_handle(stream))

    def alloc(
        self, size: int, stream: StreamLike | None = None, **options: Any
    ) -> Block:
        """A Block; the options are those of allocate()."""
        return Block(self, self.allocate(size, stream, **options), size)

    def stats(self, tag: str | None = None) -> Stats:
        """Returns the statistics of the resource: struct hetmem_resource_stats.

        With @tag those of the blocks and pools that sleep(@tag) finds.
        """
        raw = _abi.ResourceStats(size=ctypes.sizeof(_abi.ResourceStats))
        if tag is None:
            self._call("hetmem_resource_stats", ctypes.byref(raw))
        else:
            self._call("hetmem_tag_stats", text(tag), ctypes.byref(raw))
        return Stats(*(getattr(raw, f.name) for f in dataclasses.fields(Stats)))

    def access(self) -> Access:
        """Who can use the memory."""
        return self._access

    def _ask_access(self) -> Access:
        raw = _abi.Access(size=ctypes.sizeof(_abi.Access))
        self._call("hetmem_resource_access", ctypes.byref(raw))
        devices, some = (
            frozenset(i for i in range(64) if bits >> i & 1)
            for bits in (raw.devices, raw.some_devices)
        )
        return Access(bool(raw.host), bool(raw.some_host), devices, some, raw.unit)

    def set(self, name: str, value: str) -> None:
        """Gives the parameter @name of the spec another value: set("max", "60%")."""
        self._call("hetmem_resource_set", text(name), text(str(value)))

    def poll(self) -> None:
        """Reclaims freed memory whose work is complete."""
        self._call("hetmem_poll")

    def trim(self, keep: int = 0) -> int:
        """Gives free memory back until @keep bytes are held. Returns the bytes."""
        freed = _abi.SIZE()
        self._call("hetmem_trim", word(keep), ctypes.byref(freed))
        return int(freed.value)

    def retire(self, stream: StreamLike) -> None:
        """Call it before @stream is destroyed."""
        self._call("hetmem_stream_retire", stream_handle(stream))

    def sleep(self, tag: str | None = None, keep: bool = True) -> None:
        """Gives the memory of the pools and blocks of @tag back, of all without one.

        With @keep the contents wait in host memory. Addresses stay.
        """
        with timed("%s sleeps, tag %s", self.spec, tag):
            self._call(
                "hetmem_sleep",
                None if tag is None else text(tag),
                _abi.SLEEP_KEEP if keep else _abi.SLEEP_DISCARD,
            )

    def wake(self, tag: str | None = None, wait: float = 0) -> None:
        """Gives the addresses memory again. Waits up to @wait seconds for room.

        While it waits, the pools hold no device memory.
        """
        if not wait >= 0:
            raise ValueError(f"wait={wait!r}: give seconds, 0 or more")
        name = None if tag is None else text(tag)
        with timed("%s is awake, tag %s", self.spec, tag):
            self._wake(name, time.monotonic() + wait)

    def _wake(self, name: bytes | None, deadline: float) -> None:
        while True:
            left = max(deadline - time.monotonic(), 0)
            # Python handles signals between calls, such as Ctrl-C.
            part = min(left, 0.5)
            try:
                self._call("hetmem_wake_within", name, math.ceil(part * 1000))
                return
            except OutOfMemoryError:
                if part == left:
                    raise

    def parked_read(self, ptr: int, size: int) -> bytearray:
        """Block.parked() of an address."""
        number = word(size)
        made = bytearray(number)
        kind: Any = ctypes.c_ubyte * number
        to = ctypes.addressof(kind.from_buffer(made)) if number else None
        self._call("hetmem_parked_read", word(ptr), to, number)
        return made

    def spill(self, ptr: int, wait: bool = True) -> None:
        """Block.spill() of an address."""
        self._call("hetmem_spill" if wait else "hetmem_spill_async", word(ptr))

    def fetch(self, ptr: int, wait: bool = True) -> None:
        """Block.fetch() of an address."""
        self._call("hetmem_fetch" if wait else "hetmem_fetch_async", word(ptr))

    def priority(self, ptr: int, priority: int) -> None:
        """Block.priority() of an address."""
        self._call("hetmem_priority", word(ptr), integer(priority))

    def record(self, ptr: int, stream: StreamLike) -> None:
        """Block.record() of an address."""
        self._call("hetmem_record_stream", word(ptr), stream_handle(stream))

    def on_remap(self, function: Callable[[Remap], None]) -> None:
        """Calls @function before and after memory behind an address changes."""

        def call(raw: Any, _: object) -> None:
            told = raw.contents
            function(
                Remap(
                    ptr=told.ptr or 0,
                    bytes=told.bytes,
                    cause=_abi.REMAP_CAUSES[told.cause],
                    changes=tuple(
                        name
                        for i, name in enumerate(_abi.REMAP_CHANGES)
                        if told.changes >> i & 1
                    ),
                    after=bool(told.after),
                    error=told.error,
                )
            )

        if function in self._callbacks:
            raise ValueError("the function is called already")
        callback = _abi.REMAP_FN(call)
        self._call("hetmem_on_remap", callback, None)
        self._callbacks[function] = callback

    def off_remap(self, function: Callable[[Remap], None]) -> None:
        """Ends on_remap() of @function."""
        if function not in self._callbacks:
            raise ValueError("the function is not called")
        self._call("hetmem_off_remap", self._callbacks[function], None)
        del self._callbacks[function]

    def on_pressure(self, function: Callable[[Pressure], None] | None) -> None:
        """Calls @function before memory is made beyond at= of a watermark().

        @function may free blocks, also of this resource. None: nothing is called.
        """

        def call(_: object, raw: Any) -> None:
            told = raw.contents
            if function is not None:
                function(Pressure(int(told.bytes), int(told.held), int(told.at)))

        callback = self._pressure.get(function)
        if callback is None:
            callback = _abi.PRESSURE_FN(call) if function else _abi.PRESSURE_FN()
        self._call("hetmem_on_pressure", callback, None)
        self._pressure[function] = callback

    @contextlib.contextmanager
    def counters(self) -> Iterator[Counting]:
        """Counts what goes through the stats() of the spec meanwhile."""
        counting = Counting(self)
        self._call("hetmem_counters_push")
        try:
            yield counting
        finally:
            counting._end()

    def log_edge(self, edge: str, event: int, stream: StreamLike = 0) -> None:
        """Adds an order of streams to a log(): "record", "wait" or "sync"."""
        if edge not in _abi.EDGES:
            raise ValueError(f"no edge {edge!r}: there are {', '.join(_abi.EDGES)}")
        self._call(
            "hetmem_log_edge",
            _abi.EDGES.index(edge),
            word(event),
            stream_handle(stream),
        )

    @contextlib.contextmanager
    def as_current(self, device: int = 0) -> Iterator[Resource]:
        """Is the current resource of @device (-1: of the host) meanwhile."""
        old = _abi.P()
        set_current = self._lib.hetmem_resource_set_current
        hm = self._handle.get()
        ordinal = integer(device)
        check(set_current(hm, ordinal, self.pointer, ctypes.byref(old)))
        before = self._handle.made.get(old.value or 0)
        owner = self._owner or self
        owner._current_of.append(ordinal)
        try:
            yield self
        finally:
            owner._current_of.remove(ordinal)
            # The block can have closed the library, or the resource before.
            if before is not None and before.closed:
                old = _abi.P()
            if self._handle.hm is not None:
                check(set_current(hm, ordinal, old, None))


class Library(_Single):
    """The library, opened. It is closed after its last resource.

    @driver: "cuda", "soft", or None: HETMEM_DRIVER, else CUDA if there is a device.
    @module: device node of the kernel module; "": none
    """

    def __init__(self, driver: str | None = None, module: str | None = None) -> None:
        hm = _abi.P()
        params = _abi.Params(
            size=ctypes.sizeof(_abi.Params),
            driver=None if driver is None else text(driver),
            module_path=None if module is None else text(module),
        )
        lib = _library.library()
        check(lib.hetmem_open(ctypes.byref(hm), ctypes.byref(params)))
        self._handle = _Handle(hm.value or 0)
        self._lib = lib

    def __repr__(self) -> str:
        state = "closed" if self._handle.hm is None else self.driver
        return f"<hetmem.Library {state}>"

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.close()

    def close(self) -> None:
        """Closes the library. Its resources cannot be used any more.

        EBUSY: arrays of a framework use a resource of it until the process ends.
        """
        if self._handle.kept:
            raise HetmemError(
                errno.EBUSY,
                f"{self!r} is never closed: arrays can be in memory of a resource",
            )
        self._handle.close()

    @property
    def pointer(self) -> int:
        """struct hetmem *, for C."""
        return self._handle.get()

    @property
    def driver(self) -> str:
        """The driver in use: "cuda", "soft" or "none"."""
        name: bytes = self._lib.hetmem_driver_name(self.pointer)
        return name.decode()

    @property
    def device_count(self) -> int:
        """The number of devices of the driver in use."""
        return check(self._lib.hetmem_device_count(self.pointer))

    def device(self, ordinal: int) -> Device:
        """Returns the properties of the device @ordinal."""
        raw = _abi.DeviceProps(size=ctypes.sizeof(_abi.DeviceProps))
        check(
            self._lib.hetmem_device_props(
                self.pointer, integer(ordinal), ctypes.byref(raw)
            )
        )
        return Device(
            name=raw.name.decode(errors="replace"),
            platform=self._lib.hetmem_platform_name(raw.platform).decode(),
            managed=bool(raw.managed),
            vmm=bool(raw.vmm),
            host_node=raw.host_node,
            total=raw.total,
            granularity=raw.granularity,
            module_id=raw.module_id,
        )

    def memory_info(self, device: int = 0, reserve: int | None = None) -> MemoryInfo:
        """Reports how much memory @device has left; -1: the host.

        @reserve: bytes to keep unused, which usable does not contain. None:
        HETMEM_RESERVE of the environment, else 1/32 of the total.
        The first call on a device creates its primary context.
        """
        info = _abi.MemoryInfo(
            size=ctypes.sizeof(_abi.MemoryInfo),
            reserve=0 if reserve is None else word(reserve) or _abi.RESERVE_NONE,
        )
        check(
            self._lib.hetmem_memory_info(
                self.pointer, integer(device), ctypes.byref(info)
            )
        )

        def known(value: int) -> int | None:
            return None if value == _abi.MEMORY_UNKNOWN else int(value)

        names = [
            self._lib.hetmem_memory_figure_name(i).decode()
            for i in range(_abi.MEMORY_NR)
        ]
        return MemoryInfo(
            total=int(info.total),
            usable=known(info.usable),
            reserve=int(info.reserve),
            least=names[info.least] if info.least >= 0 else None,
            figures={
                name: MemoryFigure(
                    known(figure.bytes),
                    bool(figure.counts),
                    figure.source.decode(errors="replace"),
                )
                for name, figure in zip(names, info.figures)
            },
            pressures=int(info.pressures),
            imported=int(info.imported),
        )

    def reclaim(
        self, size: int = 0, device: int | None = None, timeout: float = 3.0
    ) -> Reclaimed:
        """Asks other processes of this user to give back free memory of their pools.

        @size: bytes that are wanted; 0: all
        @device: -1: memory of the host, None: of all devices and of the host
        @timeout: in seconds, at most 600
        """
        given: dict[int, int] = {}
        silent: list[int] = []

        def each(_: object, process: Any) -> None:
            one = process.contents
            given[one.pid] = int(one.bytes)
            if one.silent:
                silent.append(one.pid)

        params = _abi.Reclaim(
            size=ctypes.sizeof(_abi.Reclaim),
            device=_abi.RECLAIM_ALL if device is None else integer(device),
            timeout_ms=max(1, round(timeout * 1000)),
            bytes=word(size),
            each=_abi.RECLAIMED_FN(each),
        )
        made = _abi.Reclaimed(size=ctypes.sizeof(_abi.Reclaimed))
        check(
            self._lib.hetmem_reclaim(
                self.pointer, ctypes.byref(params), ctypes.byref(made)
            )
        )
        return Reclaimed(int(made.bytes), given, silent)

    def features(self) -> list[Feature]:
        """What this machine can do, each with its reason."""
        found: list[Feature] = []
        raw = _abi.Feature()
        while not self._lib.hetmem_feature(self.pointer, len(found), ctypes.byref(raw)):
            found.append(
                Feature(raw.name.decode(), bool(raw.available), raw.reason.decode())
            )
        return found

    def resource(self, spec: str | None = None) -> Resource:
        """Makes what @spec says; None: HETMEM_RESOURCE, else "device-pool"."""
        res = _abi.P()
        given = None if spec is None else text(spec)
        check(self._lib.hetmem_resource_create(self.pointer, given, ctypes.byref(res)))
        name = spec or os.environ.get("HETMEM_RESOURCE") or "device-pool"
        LOGGER.debug("made %s", name)
        return Resource(self._handle, res.value or 0, name, owned=True)

    def explain(self, spec: str | None = None) -> str:
        """What the names in @spec stand for on this machine; "": it has none."""
        made = ctypes.create_string_buffer(8192)
        check(
            self._lib.hetmem_resource_explain(
                self.pointer, None if spec is None else text(spec), made, len(made)
            )
        )
        return made.value.decode()

    def current(self, device: int = 0) -> Resource:
        """The current resource of @device (-1: of the host)."""
        res = _abi.P()
        check(
            self._lib.hetmem_resource_current(
                self.pointer, integer(device), ctypes.byref(res)
            )
        )
        return Resource(self._handle, res.value or 0, "current", owned=False)

    @contextlib.contextmanager
    def use(self, spec: str, device: int = 0) -> Iterator[Resource]:
        """Makes @spec the current resource of @device meanwhile."""
        with self.resource(spec) as resource, resource.as_current(device):
            yield resource


_default: Library | None = None
_default_lock = threading.Lock()


def default() -> Library:
    """Returns the library that module-level functions use. The first call opens it."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Library()
        return _default


def _forget() -> None:
    """A forked child opens its own: the parent's devices are not the child's."""
    global _default, _default_lock
    _default_lock = threading.Lock()
    if _default is not None:
        _inherited.append(_default)
        _default = None


# Never closed: memory of the parent stays where it is.
_inherited: list[Library] = []
os.register_at_fork(after_in_child=_forget)


def resource(spec: str | None = None) -> Resource:
    """Makes the resource that @spec describes; None: HETMEM_RESOURCE of the
    environment, else "device-pool". The default library makes it, see default()."""
    return default().resource(spec)


def current(device: int = 0) -> Resource:
    """Returns the current resource of @device (-1: of the host), see use()."""
    return default().current(device)


def memory_info(device: int = 0, reserve: int | None = None) -> MemoryInfo:
    """Reports how much memory @device has left; -1: the host. The least of several
    figures, less a reserve, is usable. See Library.memory_info()."""
    return default().memory_info(device, reserve)


def reclaim(
    size: int = 0, device: int | None = None, timeout: float = 3.0
) -> Reclaimed:
    """Asks other processes of this user to give back free memory of their pools.
    See Library.reclaim()."""
    return default().reclaim(size, device, timeout)


@contextlib.contextmanager
def use(spec: str, device: int = 0) -> Iterator[Resource]:
    """Makes @spec the current resource of @device (-1: of the host) in the block."""
    with default().use(spec, device) as made:
        yield made


@contextlib.contextmanager
def log(
    file: str | os.PathLike[str],
    spec: str = "device-pool",
    device: int = 0,
    full: bool = False,
) -> Iterator[Resource]:
    """Logs the allocations of the block to @file, which `hetmem replay` reads.

    @spec is the current resource of @device in the block, see use().
    @full: with orders of streams, see Resource.log_edge().
    """
    name = os.fspath(file)
    if '"' in name:
        raise ValueError("the name of a log has no quotes")
    with use(
        f'log({spec},file="{name}",full={"on" if full else "off"})', device
    ) as made:
        yield made
