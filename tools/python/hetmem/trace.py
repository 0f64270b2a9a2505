# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""python -m hetmem.trace: what hetmem replay reads, of a memory snapshot of PyTorch.

    python -m hetmem.trace snapshot.pickle -o trace.csv
    hetmem replay trace.csv

torch.cuda.memory._dump_snapshot() writes such a snapshot, with PyTorch's own allocator
and in full mode of hetmem.torch. It has the events that _record_memory_history()
recorded. Memory that was allocated before them is allocated at the beginning.

A snapshot can come from anyone. So the file is read without running what is in it:
only builtin types are accepted, and each value is checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pickle
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

HEADER = "Thread,Time,Action,Pointer,Size,Stream"

_ADDRESSES = 1 << 64
_BYTES = 1 << 63
# The two after it are the CPU and an unknown stream.
_STREAMS = (1 << 64) - 2
_LEGACY_HANDLE = 1
_ACTIONS = ("alloc", "free_requested", "free_completed", "oom")
# What reading takes: a fixed part, and this for each byte of the file.
_FIXED, _EACH = 1 << 30, 64


class BadSnapshot(ValueError):
    """The file is no snapshot. The text is one line."""


class _Builtins(pickle.Unpickler):
    """Makes numbers, texts, lists, tuples and dicts. Nothing else has a name here."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadSnapshot(f"it refers to {module}.{name}: a snapshot has data only")


def load(file: BinaryIO) -> Any:
    """Returns the contents of a snapshot. Runs nothing that is in the file."""
    try:
        return _Builtins(file).load()
    except BadSnapshot:
        raise
    # A pickle that is damaged can raise any of them.
    except Exception as error:
        kind = type(error).__name__
        raise BadSnapshot(f"it is no pickle ({kind}: {error})") from None


@dataclasses.dataclass(frozen=True)
class Event:
    """A line of the CSV."""

    time: int
    action: str
    ptr: int
    size: int
    stream: int

    def line(self) -> str:
        """Returns the text of the line."""
        return f"0,{self.time},{self.action},{self.ptr:#x},{self.size},{self.stream}"


def _number(entry: dict[Any, Any], name: str, end: int, where: str) -> int:
    value = entry.get(name)
    if type(value) is not int or not 0 <= value < end:
        raise BadSnapshot(f"{where} has no {name} that is a number below {end:#x}")
    return value


def _stream(entry: dict[Any, Any], where: str) -> int:
    """The stream's handle. It serves as its id."""
    handle = _number(entry, "stream", _STREAMS, where)
    return 0 if handle == _LEGACY_HANDLE else handle


def _list(thing: Any, name: str, where: str) -> list[Any]:
    value = thing.get(name) if isinstance(thing, dict) else None
    if not isinstance(value, list):
        raise BadSnapshot(f"{where} has no list {name}")
    return value


def _entries(trace: Iterable[Any], device: int) -> Iterator[Event]:
    """The events of a trace, with PyTorch's names of actions."""
    first: int | None = None
    for i, entry in enumerate(trace):
        where = f"device_traces[{device}][{i}]"
        action = entry.get("action") if isinstance(entry, dict) else None
        if not isinstance(action, str):
            raise BadSnapshot(f"{where} has no action")
        if action not in _ACTIONS:
            continue
        # Old versions of PyTorch have no times: the order serves as time.
        now = _number(entry, "time_us", _BYTES, where) if "time_us" in entry else i
        first = now if first is None else first
        ptr = 0 if action == "oom" else _number(entry, "addr", _ADDRESSES, where)
        size = _number(entry, "size", _BYTES, where)
        time = max(now - first, 0)
        yield Event(time, action, ptr, size, _stream(entry, where))


def _active(snapshot: Any, device: int) -> Iterator[Event]:
    """What the segments of @device have allocated at the snapshot."""
    for i, segment in enumerate(_list(snapshot, "segments", "the snapshot")):
        where = f"segments[{i}]"
        blocks = _list(segment, "blocks", where)
        if segment.get("device") != device:
            continue
        at = _number(segment, "address", _ADDRESSES, where)
        stream = _stream(segment, where)
        for j, block in enumerate(blocks):
            block_where = f"{where}.blocks[{j}]"
            if not isinstance(block, dict):
                raise BadSnapshot(f"{block_where} is no block")
            size = _number(block, "size", _BYTES, block_where)
            if block.get("state") == "active_allocated":
                # Old versions of PyTorch have neither.
                full = {"address": at, "requested_size": size, **block}
                at = _number(full, "address", _ADDRESSES, block_where)
                asked = _number(full, "requested_size", _BYTES, block_where)
                yield Event(0, "allocate", at, asked, stream)
            at += size


def _choose(traces: list[Any], device: int | None) -> int:
    """The index of the trace to convert."""
    found: list[int] = []
    for i, trace in enumerate(traces):
        if not isinstance(trace, list):
            raise BadSnapshot(f"device_traces[{i}] is no list")
        # Each device has an entry of the snapshot itself.
        if next(_entries(trace, i), None):
            found.append(i)
    if device is not None and found and device not in found:
        raise BadSnapshot(f"it has no events of device {device}")
    if not found:
        raise BadSnapshot(
            "it has no events: call torch.cuda.memory._record_memory_history() "
            "before the allocations"
        )
    if device is None and len(found) > 1:
        names = ", ".join(map(str, found))
        raise BadSnapshot(f"it has events of devices {names}: choose one by --device")
    return found[0] if device is None else device


def convert(snapshot: Any, device: int | None = None) -> list[Event]:
    """Returns the events of a snapshot as lines of the CSV.

    A free is one when the program requests it. @device: an ordinal; None: the only
    device that has events.
    """
    traces = _list(snapshot, "device_traces", "the snapshot")
    device = _choose(traces, device)
    live: set[int] = set()
    seen: set[int] = set()
    before: list[Event] = []
    events: list[Event] = []
    for event in _entries(traces[device], device):
        if event.action == "oom":
            events.append(dataclasses.replace(event, action="allocate failure"))
            continue
        if event.action == "alloc":
            events.append(dataclasses.replace(event, action="allocate"))
            live.add(event.ptr)
        elif event.ptr in live or event.ptr not in seen:
            if event.ptr not in seen:
                before.append(dataclasses.replace(event, time=0, action="allocate"))
            events.append(dataclasses.replace(event, action="free"))
            live.discard(event.ptr)
        # Else it completes a free that was requested.
        seen.add(event.ptr)
    before += [event for event in _active(snapshot, device) if event.ptr not in seen]
    return sorted(before, key=lambda event: event.ptr) + events


def _bound_memory(size: int) -> None:
    """A file of @size bytes cannot make this process take all memory of the host."""
    bound = _FIXED + _EACH * size
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > bound:
        resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def main(arguments: list[str] | None = None) -> None:
    """Writes the recording of a snapshot, see convert().

    python -m hetmem.trace [-o CSV] [--device N] SNAPSHOT
    """
    parser = argparse.ArgumentParser(
        prog="python -m hetmem.trace",
        description="Converts a memory snapshot of PyTorch for hetmem replay.",
    )
    parser.add_argument("-o", dest="out", metavar="CSV", help="not standard output")
    parser.add_argument("--device", type=int, help="if several have events")
    parser.add_argument("snapshot", help="of torch.cuda.memory._dump_snapshot()")
    given = parser.parse_args(arguments)
    try:
        with open(given.snapshot, "rb") as file:
            _bound_memory(os.fstat(file.fileno()).st_size)
            events = convert(load(file), given.device)
        text = "\n".join([HEADER, *(event.line() for event in events), ""])
        if given.out is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            Path(given.out).write_text(text, encoding="ascii")
    except BadSnapshot as error:
        # The text can have names out of the file.
        plain = ascii(f"{given.snapshot}: {error}")[1:-1]
        print(f"python -m hetmem.trace: {plain}", file=sys.stderr)
        sys.exit(2)
    except (OSError, MemoryError) as error:
        text = str(error) or "not enough memory"
        print(f"python -m hetmem.trace: {text}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
