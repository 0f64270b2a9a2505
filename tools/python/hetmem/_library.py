# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Finds and loads libhetmem, and turns its errors into exceptions."""

from __future__ import annotations

import ctypes
import errno
import operator
import os
import threading
from pathlib import Path
from typing import Any

from . import _abi
from ._log import LOGGER

NAME = "libhetmem.so.0"
# What PyTorch loads.
SHIM = "libhetmem-torch.so"


class HetmemError(OSError):
    """A call of the library failed: errno, and the library's text in strerror."""


class OutOfMemoryError(HetmemError, MemoryError):
    """No memory. The text tells what was tried."""


def folders() -> list[str]:
    """Where the package's own parts can be: in the wheel, else in the repository."""
    here = Path(__file__).resolve().parent
    found = [str(here / "lib")]
    top = here.parents[2]
    if (top / "lib" / "libhetmem.map").exists():
        found += [str(top / "build"), str(top / "build" / "python")]
    return found


def part(name: str) -> str:
    """The path of another part of the package."""
    for folder in folders():
        candidate = os.path.join(folder, name)
        if os.path.exists(candidate):
            return candidate
    raise HetmemError(
        errno.ENOENT,
        f"the package has no {name}: install the wheel, or type: make wheel",
    )


def path() -> str:
    """The library: HETMEM_LIBRARY, the package's own, or the system's."""
    given = os.environ.get("HETMEM_LIBRARY")
    if given:
        return given
    for folder in folders():
        candidate = os.path.join(folder, NAME)
        if os.path.exists(candidate):
            return candidate
    return NAME


def load(name: str) -> Any:
    """The library @name with the types of its functions."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise HetmemError(
            errno.ENOENT,
            f"{name} cannot be loaded: {error}; install the wheel, "
            "or set HETMEM_LIBRARY to the library's path",
        ) from None
    for symbol, (result, *arguments) in _abi.PROTOTYPES.items():
        try:
            function = getattr(library, symbol)
        except AttributeError:
            raise HetmemError(
                errno.ENOSYS,
                f"{name} has no {symbol}: it is older than the Python package; "
                "install a library of the package's version",
            ) from None
        function.restype = result
        function.argtypes = arguments
    return library


_lock = threading.Lock()
_loaded: Any = None


def library() -> Any:
    """The process's library, loaded by the first call."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = load(path())
    return _loaded


def shim() -> tuple[str, Any]:
    """The path of SHIM, and the library."""
    # The shim takes the library that is loaded already: the package's.
    library()
    name = part(SHIM)
    try:
        return name, ctypes.CDLL(name)
    except OSError as failure:
        raise HetmemError(
            errno.ENOENT, f"{name} cannot be loaded: {failure}: install the wheel"
        ) from None


def word(value: int) -> int:
    """@value, which C has as 64 bits without a sign. ctypes would cut off the rest."""
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    if number >= 1 << 64:
        raise OverflowError(f"{number} needs more than 64 bits")
    return number


def integer(value: int) -> int:
    """@value, which is an int in C. ctypes would cut off the rest."""
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise OverflowError(f"{number} needs more than 32 bits")
    return number


def text(value: str) -> bytes:
    """@value for C, where a string ends at its first NUL."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is {type(value).__name__}, not str")
    made = value.encode()
    if b"\0" in made:
        raise ValueError(f"{value!r} has a NUL character")
    return made


def address(owner: Any, name: str) -> int:
    """The address of a function of a library."""
    return ctypes.cast(getattr(owner, name), ctypes.c_void_p).value or 0


def error(code: int) -> HetmemError:
    """The exception for @code, a negative errno that a call just returned."""
    said = library().hetmem_last_error().decode(errors="replace")
    number = -code
    LOGGER.debug("%s: %s", errno.errorcode.get(number, number), said)
    if number == errno.ENOMEM:
        return OutOfMemoryError(number, said)
    return HetmemError(number, said)


def check(code: int) -> int:
    """@code, or the exception for it."""
    if code < 0:
        raise error(code)
    return code
