# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Memory that outlives its workers: blocks that "hetmem keep" holds by name.

with hetmem.keep.Keeper() as keeper:
    keeper.keep(block, "weights")           # in the worker that made it
    kept = keeper.map("weights")            # in the next one
    weights = torch.as_tensor(kept, device="cuda").view(torch.float16)
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import sys
from collections.abc import Iterator
from typing import Any, Callable

from . import _abi, _library
from ._library import HetmemError, check, integer, text, word
from .core import Block, Library, _Single, default


@dataclasses.dataclass(frozen=True)
class Entry:
    """struct hetmem_kept: a block of a keeper."""

    name: str
    bytes: int
    generation: int
    uid: int
    mode: int
    segments: int
    users: int
    pid: int


class Kept(_Single):
    """A kept block, mapped. It is unmapped by close(), or when nothing uses it.

    All uses on the device must be complete then. It is an array of bytes for
    libraries that know __cuda_array_interface__.
    """

    __slots__ = ("__weakref__", "_library", "_live", "device", "name", "ptr", "size")

    def __init__(
        self, library: Library, device: int, name: str, ptr: int, size: int
    ) -> None:
        self._library = library
        self.device = device
        self.name = name
        self.ptr = ptr
        self.size = size
        self._live = [ptr]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._live:
            raise ValueError("the block is unmapped")
        return {
            "version": 3,
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.ptr, False),
        }

    def close(self) -> None:
        """Unmaps the block. The keeper has it still."""
        try:
            ptr = self._live.pop()
        except IndexError:
            return
        library = self._library
        check(library._lib.hetmem_import_close(library.pointer, ptr))

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing() or not getattr(self, "_live", None):
            return
        try:
            self.close()
        except HetmemError as error:
            # A forked child has none of a device's memory.
            if error.errno != errno.EOWNERDEAD:
                raise

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Keeper(_Single):
    """A connection to a keeper. The keeper counts it as a user of its blocks.

    @path: of the socket; None: HETMEM_KEEPER, else the default of this user
    """

    def __init__(self, path: str | None = None) -> None:
        self._lib = _library.library()
        self._pointer: int | None = None
        made = _abi.P()
        given = None if path is None else text(path)
        check(self._lib.hetmem_keeper_open(given, ctypes.byref(made)))
        self._pointer = made.value

    def _call(self, name: str, *arguments: Any) -> int:
        if self._pointer is None:
            raise ValueError("the connection is closed")
        return check(getattr(self._lib, name)(self._pointer, *arguments))

    def keep(self, block: Block, name: str, mode: int = 0o600) -> None:
        """Hands over @block, of a pool over vmm(export=fd). It stays the caller's."""
        self._call(
            "hetmem_keep",
            block.resource.pointer,
            block._address(),
            text(name),
            integer(mode),
        )

    def map(self, name: str, device: int = 0, library: Library | None = None) -> Kept:
        """Maps the block @name for @device, without a copy."""
        library = library or default()
        ptr, size = _abi.P(), _abi.SIZE()
        self._call(
            "hetmem_kept_import",
            library.pointer,
            integer(device),
            text(name),
            ctypes.byref(ptr),
            ctypes.byref(size),
        )
        return Kept(library, device, name, ptr.value or 0, size.value)

    def drop(self, name: str) -> None:
        """The keeper gives up @name. Who has it mapped keeps the memory."""
        self._call("hetmem_kept_drop", text(name))

    def __iter__(self) -> Iterator[Entry]:
        """The keeper's blocks, the oldest first."""
        raw = _abi.Kept(size=ctypes.sizeof(_abi.Kept))
        while True:
            try:
                self._call("hetmem_kept_next", word(raw.generation), ctypes.byref(raw))
            except HetmemError as error:
                if error.errno != errno.ENOENT:
                    raise
                return
            yield Entry(
                raw.name.decode(),
                *(getattr(raw, f.name) for f in dataclasses.fields(Entry)[1:]),
            )

    def close(self) -> None:
        """Disconnects. Mapped blocks stay mapped."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._lib.hetmem_keeper_close(pointer)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and getattr(self, "_pointer", None) is not None:
            self.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
