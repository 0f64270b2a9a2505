# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Rows of a sparse block: what sparse() of hetmem.torch and of hetmem.cupy share.

A row is what one index of the outermost dimension has. The first rows have memory, in
whole units; commit() changes their number. A change within a unit makes no call.
"""

from __future__ import annotations

import ctypes
import math
import operator
import threading
from collections.abc import Iterable

from . import _abi
from .core import Resource, StreamLike, stream_handle


def shape_of(given: int | Iterable[int], dim: int) -> tuple[tuple[int, ...], int]:
    """A shape of numbers above 0, and @dim as an index of it."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    shape = tuple(operator.index(number) for number in numbers)
    if not shape or min(shape) < 1:
        raise ValueError(f"max_shape={given!r}: give numbers above 0")
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"dim={dim}: max_shape has {len(shape)} dimensions")
    return shape, dim % len(shape)


def strides_of(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Strides in elements where @dim is outermost, and the others are contiguous."""
    order = [dim, *(i for i in range(len(shape)) if i != dim)]
    strides = [0] * len(shape)
    step = 1
    for i in reversed(order):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


class Committed:
    """What objects with a commit() of rows share."""

    _rows: Rows

    @property
    def rows(self) -> int:
        """The number of the last commit()."""
        return self._rows.number

    @property
    def nbytes(self) -> int:
        """Bytes of memory that there are now: whole units."""
        return self._rows.bytes


class Rows:
    """@limit rows of @row bytes at @ptr, a sparse block of @size bytes of @resource."""

    def __init__(
        self,
        resource: Resource,
        ptr: int,
        *,
        size: int,
        row: int,
        limit: int,
    ) -> None:
        self.resource = resource
        self.ptr = ptr
        self.row = row
        self.limit = limit
        self.number = 0
        self._size = size
        self._unit = resource.access().unit
        self._have = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes that have memory: whole units."""
        found = _abi.Extent()
        self.resource._call("hetmem_committed", self.ptr, ctypes.byref(found), 1)
        return int(found.length)

    def _need(self, number: int) -> int:
        units = math.ceil(number * self.row / self._unit)
        return min(units * self._unit, self._size)

    def fits(self, number: int) -> bool:
        """Takes @number as the number of rows, if that needs no call. It is checked."""
        number = operator.index(number)
        if not 0 <= number <= self.limit:
            raise ValueError(f"{number} rows: max_shape has {self.limit}")
        with self._lock:
            if self._need(number) != self._have:
                return False
            self.number = number
            return True

    def commit(self, number: int, stream: StreamLike) -> None:
        """The first @number rows have memory, for use on @stream, and no others.

        After an error nothing has changed.
        """
        with self._lock:
            need, have = self._need(number), self._have
            if need != have:
                more = need > have
                self.resource._call(
                    "hetmem_commit_with" if more else "hetmem_decommit",
                    self.ptr,
                    min(need, have),
                    abs(need - have),
                    *([0] if more else []),
                    stream_handle(stream),
                )
            self._have, self.number = need, number
