# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""NumPy and CuPy on one spec: what unify() enables, and takes back."""

from __future__ import annotations

import contextlib
import errno
import importlib
from typing import Any

from ._library import HetmemError
from .core import Resource, default


class Unified(dict[str, bool]):
    """What unify() enabled, by name. At the end of a with block it is undone."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()

    def undo(self) -> None:
        """New arrays get the memory again that they got before unify()."""
        self._stack.close()

    def __enter__(self) -> Unified:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # One that lacks a module of its own is installed, and broken.
        if error.name != name:
            raise
        return False
    return True


def _part(name: str) -> Any:
    """The part of the package, which import hetmem alone does not load."""
    return importlib.import_module(f".{name}", __package__)


def _unify_numpy(
    undo: contextlib.ExitStack, spec: str, least: int, threads: bool
) -> Resource:
    numpy = _part("numpy")
    handler = numpy._numpy().get()

    def disable() -> None:
        mine = numpy.enabled()
        numpy.disable()
        # disable() alone sets NumPy's own, not the one before.
        if mine:
            numpy._set(handler)

    resource: Resource = numpy.enable(spec, least=least, threads=threads)
    undo.callback(disable)
    return resource


def _unify_cupy(undo: contextlib.ExitStack, spec: str) -> None:
    cupy = _part("cupy")
    cupy.enable(spec)
    undo.callback(cupy.disable)


def unify(
    spec: str = "unified", *, least: int = 1 << 20, threads: bool = True
) -> Unified:
    """Enables hetmem.numpy and hetmem.cupy with one spec.

    Returns what was enabled: {"numpy": True, "cupy": False} if CuPy is not installed.
    It is a context manager, too: with hetmem.unify(): ... . Arrays outlive it.

    @spec: memory that the CPU and the devices can use.
    @least, @threads: of hetmem.numpy.enable().

    If one of them fails, the other one is undone before the error is raised. The spec
    is that of hetmem.torch, too, and stays the one of the process after undo().
    """
    made = Unified()
    with contextlib.ExitStack() as undo:
        made["numpy"] = _installed("numpy")
        made["cupy"] = _installed("cupy")
        if made["numpy"]:
            resource = _unify_numpy(undo, spec, least, threads)
            none = not resource.access().devices and default().device_count > 0
            if made["cupy"] and none:
                raise HetmemError(
                    errno.EINVAL,
                    f"no device can use the memory of {spec}: call hetmem.unify() "
                    'with "unified", or hetmem.numpy.enable() alone',
                )
        if made["cupy"]:
            _unify_cupy(undo, spec)
        made._stack = undo.pop_all()
    return made
