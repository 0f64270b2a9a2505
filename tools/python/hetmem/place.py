# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Where the memory of an array is, page by page.

    print(hetmem.residency(array))

residency() takes arrays of NumPy and CuPy, tensors, blocks, whatever has the
buffer protocol, and an address with a size. In a notebook the result is a picture.
"""

from __future__ import annotations

import ctypes
import dataclasses
import html
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from . import _abi, _library
from .core import Library, default

KINDS = {
    _abi.UNKNOWN: "unknown",
    _abi.UNMAPPED: "unmapped",
    _abi.HOST: "host",
    _abi.DEVICE: "device",
    _abi.FOREIGN: "foreign",
    _abi.COHERENT: "coherent",
    _abi.ZERO: "zero",
}

# Of each kind; the index of a location chooses one.
_COLOURS = {
    "host": ("#4c78a8", "#9ecae9", "#2f4b6e", "#79a5d1"),
    "device": ("#f58518", "#ffbf79", "#b85f0b", "#d9a066"),
    "foreign": ("#e45756", "#ff9d98"),
    "coherent": ("#54a24b", "#88d27a"),
    "zero": ("#eeca3b",),
    "unknown": ("#bab0ac",),
    "unmapped": ("#ffffff",),
}

_COLUMNS = 300
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive pages that have everything in common."""

    start: int
    end: int
    kind: str
    index: int
    location: str
    order: int
    why: str
    source: str


class _Buffer(ctypes.Structure):
    """Py_buffer"""

    _fields_ = [
        ("buf", _abi.P),
        ("obj", _abi.P),
        ("len", _abi.SSIZE),
        ("itemsize", _abi.SSIZE),
        ("readonly", _abi.INT),
        ("ndim", _abi.INT),
        ("format", _abi.P),
        ("shape", _abi.P),
        ("strides", _abi.P),
        ("suboffsets", _abi.P),
        ("internal", _abi.P),
    ]


def _bounds(
    ptr: int, shape: Sequence[int], strides: Iterable[int], itemsize: int
) -> tuple[int, int]:
    """The first byte of an array and the bytes to its last one."""
    low = high = ptr
    if 0 in shape:
        return ptr, 0
    for length, stride in zip(shape, strides):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + itemsize - low


def _dense(shape: Sequence[int], itemsize: int) -> list[int]:
    """The strides of an array without gaps."""
    strides: list[int] = []
    for length in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= length
    return strides


def _of_buffer(thing: Any) -> tuple[int, int]:
    view = memoryview(thing)
    raw = _Buffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), _abi.INT]
    # PyBUF_STRIDES
    get(view, ctypes.byref(raw), 0x10 | 0x08)
    try:
        start = raw.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    return _bounds(start, view.shape or (), view.strides or (), view.itemsize)


def _itemsize(typestr: str) -> int:
    """The bytes of an element. The text has the characters of "U", not their bytes."""
    found = re.fullmatch(r"[<>|=]?(.)(\d*)(\[.*\])?", typestr)
    if found is None:
        raise ValueError(f"{typestr!r} is no type of elements")
    kind, size, _ = found.groups()
    # Before NumPy 2.3 objects have no size.
    return int(size or ctypes.sizeof(_abi.P)) * (4 if kind == "U" else 1)


def extent(thing: Any) -> tuple[int, int]:
    """Returns the address of @thing, and the bytes to its end."""
    if hasattr(thing, "data_ptr") and hasattr(thing, "element_size"):
        itemsize = thing.element_size()
        strides = [stride * itemsize for stride in thing.stride()]
        return _bounds(thing.data_ptr(), tuple(thing.shape), strides, itemsize)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        interface = getattr(thing, name, None)
        if interface is not None:
            shape = interface["shape"]
            itemsize = _itemsize(interface["typestr"])
            strides = interface.get("strides") or _dense(shape, itemsize)
            return _bounds(interface["data"][0] or 0, shape, strides, itemsize)
    try:
        return _of_buffer(thing)
    except TypeError:
        raise TypeError(
            f"{type(thing).__name__} has no memory to look at: give an array, a "
            "tensor, a block, a buffer, or an address and a size"
        ) from None


def _runs(library: Library, start: int, size: int) -> Iterator[Run]:
    lib, hm = _library.library(), library.pointer
    room = 512
    runs = (_abi.Run * room)()
    sources = (ctypes.c_uint8 * room)()
    at, next_at = start, _abi.U64()
    text = ctypes.create_string_buffer(256)
    while at < start + size:
        nr = _library.check(
            lib.hetmem_residency(
                hm,
                at,
                start + size - at,
                ctypes.byref(runs),
                ctypes.byref(sources),
                room,
                ctypes.byref(next_at),
            )
        )
        for run, source in zip(runs[:nr], sources[:nr]):
            kind, index = run.location >> 16, run.location & 0xFFFF
            name: bytes = lib.hetmem_location_name(hm, run.location, text, len(text))
            location = name.decode()
            name = lib.hetmem_why_names(run.why, text, len(text))
            yield Run(
                start=run.start,
                end=run.end,
                kind=KINDS.get(kind, "unknown"),
                index=index,
                location=location,
                order=run.order,
                why=name.decode(),
                source=_abi.SOURCES[source],
            )
        if next_at.value <= at:
            return
        at = next_at.value


class Residency:
    """Where memory was when it was looked at: a sequence of Run.

    numpy.asarray() of it is a structured array.
    """

    def __init__(self, start: int, size: int, runs: list[Run]) -> None:
        self.start = start
        self.size = size
        self.runs = runs

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    def bytes(self) -> dict[str, int]:
        """Bytes by location, the most first. Pages at the ends count in part."""
        found: dict[str, int] = {}
        for run in self.runs:
            size = self._part(run.start, run.end)
            if size:
                found[run.location] = found.get(run.location, 0) + size
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _part(self, start: int, end: int) -> int:
        return max(0, min(end, self.start + self.size) - max(start, self.start))

    def __repr__(self) -> str:
        where = ", ".join(f"{_size(n)} {name}" for name, n in self.bytes().items())
        return f"<hetmem.Residency {self.start:#x}, {_size(self.size)}: {where or '-'}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        numpy = cast(Any, importlib.import_module("numpy"))
        if copy is False:
            raise ValueError("an array of runs is always a copy")
        fields = [
            ("start", "u8"),
            ("end", "u8"),
            ("kind", "U8"),
            ("index", "u2"),
            ("location", "U32"),
            ("order", "u2"),
            ("why", "U64"),
            ("source", "U10"),
        ]
        rows = [dataclasses.astuple(run) for run in self.runs]
        array = numpy.array(rows, dtype=fields)
        return array if dtype is None else array.astype(dtype)

    def _columns(self) -> Iterator[list[tuple[Run, int]]]:
        """For each column of the picture its runs, with their bytes."""
        width = max(1, -(-self.size // _COLUMNS))
        first = 0
        for low in range(self.start, self.start + self.size, width):
            high = min(low + width, self.start + self.size)
            while first < len(self.runs) and self.runs[first].end <= low:
                first += 1
            parts: dict[str, tuple[Run, int]] = {}
            for run in self.runs[first:]:
                if run.start >= high:
                    break
                size = min(run.end, high) - max(run.start, low)
                _, before = parts.get(run.location, (run, 0))
                parts[run.location] = (run, before + size)
            yield sorted(parts.values(), key=lambda part: part[0].location)

    def svg(self, width: int = 600, height: int = 40) -> str:
        """A bar from the first byte to the last, coloured by location."""
        columns = list(self._columns())
        step = width / max(1, len(columns))
        shapes: list[str] = []
        last: tuple[str, float] | None = None
        begin = 0.0
        for i, parts in enumerate([*columns, []]):
            total = sum(size for _, size in parts)
            single = (colour(parts[0][0]), 0.0) if len(parts) == 1 else None
            if last is not None and single != last:
                shapes.append(_rect(begin, 0, i * step - begin, height, last[0]))
                last = None
            if single is not None and last is None:
                begin, last = i * step, single
            y = 0.0
            for run, size in parts if single is None else ():
                part = height * size / total
                shapes.append(_rect(i * step, y, step, part, colour(run)))
                y += part
        title = html.escape(repr(self)[1:-1])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img"><title>{title}</title>'
            f'{"".join(shapes)}<rect width="{width}" height="{height}" fill="none" '
            'stroke="#888888"/></svg>'
        )

    def plot(self, axes: Any = None) -> Any:
        """Draws the bar of svg() with matplotlib, into new axes if @axes is None.

        Returns the axes. Raises ImportError if matplotlib is not installed.
        """
        if axes is None:
            axes = _new_axes()
        width = max(1, -(-self.size // _COLUMNS))
        bars: dict[str, tuple[Run, list[tuple[int, float, float]]]] = {}
        for i, parts in enumerate(self._columns()):
            total, below = sum(size for _, size in parts), 0.0
            for run, size in parts:
                bars.setdefault(run.location, (run, []))[1].append(
                    (i * width, size / total, below)
                )
                below += size / total
        for name, (run, shares) in sorted(bars.items()):
            lefts, heights, bottoms = zip(*shares)
            axes.bar(
                [left / _MIB for left in lefts],
                heights,
                [min(width, self.size - left) / _MIB for left in lefts],
                bottoms,
                align="edge",
                color=colour(run),
                label=name,
            )
        axes.set(
            xlim=(0, max(self.size, 1) / _MIB),
            ylim=(0, 1),
            yticks=[],
            xlabel=f"MiB from {self.start:#x}",
        )
        if bars:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return axes

    def _repr_html_(self) -> str:
        colours = {run.location: colour(run) for run in self.runs}
        rows = "".join(
            f'<tr><td><span style="background:{colours[name]};border:1px solid #888;'
            f'padding:0 0.6em"></span></td><td>{html.escape(name)}</td>'
            f"<td>{_size(size)}</td><td>{100 * size / self.size:.0f}%</td></tr>"
            for name, size in self.bytes().items()
        )
        return (
            f"<div>{self.start:#x}, {_size(self.size)}</div>{self.svg()}"
            f"<table>{rows}</table>"
        )


def _new_axes() -> Any:
    try:
        pyplot = cast(Any, importlib.import_module("matplotlib.pyplot"))
    except ImportError as error:
        raise ImportError(
            "plot() needs matplotlib: install it, or use svg(), which needs nothing"
        ) from error
    return pyplot.subplots(figsize=(8, 1.5), layout="constrained")[1]


def colour(run: Run) -> str:
    """Returns the colour of a run in pictures."""
    choice = _COLOURS[run.kind]
    return choice[run.index % len(choice)]


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="{fill}"/>'
    )


def _size(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return (
        f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
    )


def residency(
    thing: Any, size: int | None = None, library: Library | None = None
) -> Residency:
    """Finds where the memory of @thing is, or the @size bytes at the address @thing.

    @library: the one whose devices are meant; None: the default one.
    """
    if size is None:
        start, size = extent(thing)
    else:
        start = _library.word(int(thing))
    if size < 0:
        raise ValueError("the size is negative")
    if size == 0:
        return Residency(start, 0, [])
    return Residency(start, size, list(_runs(library or default(), start, size)))
