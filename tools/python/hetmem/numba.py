# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Numba's CUDA target on hetmem: a plugin for its External Memory Management.

    NUMBA_CUDA_MEMORY_MANAGER=hetmem.numba python script.py

or, before the first use of CUDA:

    import hetmem.numba
    hetmem.numba.enable()

Numba says on no stream what it allocates, and frees when Python drops an array. So
memory is allocated for the host, which gets only memory that nobody uses any more. It
is freed on the legacy stream, which waits for all streams of Numba. Streams with
CU_STREAM_NON_BLOCKING are not among them: synchronize them before an array is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import itertools
import os
from typing import Any, Callable

from . import _library, _process
from ._library import HetmemError, OutOfMemoryError
from ._log import LOGGER
from .core import Resource, Stream

_cuda: Any = importlib.import_module("numba.cuda")
_driver: Any = importlib.import_module("numba.cuda.cudadrv.driver")


def _pointer(address: int) -> Any:
    """An address, as this version of Numba has it."""
    binding = getattr(_driver, "binding", None)
    if binding is not None and hasattr(binding, "CUdeviceptr"):
        return binding.CUdeviceptr(address)
    return ctypes.c_uint64(address)


class MemoryManager(_cuda.GetIpcHandleMixin, _cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory of hetmem; page-locked host memory is Numba's own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Addresses that no finalizer and no reset has freed. The keys are unique: an
        # address can be another array's later.
        self._live: dict[int, int] = {}
        self._pid = os.getpid()

    def initialize(self) -> None:
        """Called by Numba before each use. The resource is made by the first one."""

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface for memory managers."""
        return 1

    def _resource(self) -> Resource:
        return _process.resource(int(self.context.device.id))

    def memalloc(self, size: int) -> Any:
        """Allocates device memory. Numba calls it."""
        resource = self._resource()
        try:
            address = resource.allocate(max(size, 1), Stream.HOST)
        except OutOfMemoryError:
            # Numba frees host memory late: it may be what is missing.
            self.deallocations.clear()
            address = resource.allocate(max(size, 1), Stream.HOST)
        key = next(_keys)
        self._live[key] = address
        finalizer = _finalizer(self._live, key, resource, self._pid)
        return _cuda.MemoryPointer(
            self.context, _pointer(address), size, finalizer=finalizer
        )

    def get_memory_info(self) -> Any:
        """Free memory of the device, and memory that the pool holds and nobody has."""
        info = _driver.NumbaCUDAMemoryManager.get_memory_info(self)
        stats = self._resource().stats()
        free = info.free + max(0, stats.reserved - stats.requested)
        return _cuda.MemoryInfo(free=min(free, info.total), total=info.total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Returns a handle for other processes. Numba calls it."""
        try:
            return super().get_ipc_handle(memory)
        except _driver.CudaAPIError as error:
            raise HetmemError(
                errno.EOPNOTSUPP,
                f"the memory of {self._resource().spec} has no IPC handle: call "
                'hetmem.numba.enable("pool(device)")',
            ) from error

    def reset(self) -> None:
        """Frees everything of this context. Numba's arrays of it cannot be used."""
        super().reset()
        if not self._live:
            return
        resource = self._resource()
        while self._live:
            _, address = self._live.popitem()
            resource.deallocate(address, stream=Stream.LEGACY)
        resource.trim()


_keys = itertools.count()


def _finalizer(
    live: dict[int, int], key: int, resource: Resource, pid: int
) -> Callable[[], None]:
    def free() -> None:
        # reset() has freed it, or a forked child has none of it.
        address = live.pop(key, None)
        if address is None or os.getpid() != pid:
            return
        with contextlib.suppress(HetmemError):
            resource.deallocate(address, stream=Stream.LEGACY)

    return free


# What NUMBA_CUDA_MEMORY_MANAGER=hetmem.numba takes.
_numba_memory_manager = MemoryManager


def enable(spec: str | None = None) -> None:
    """Makes hetmem the memory manager of Numba in this process.

    @spec: what device memory is made of; None: HETMEM_RESOURCE of the environment,
    else "device-pool". It is that of hetmem.cupy and hetmem.torch, too.

    Numba takes a memory manager once: call it before the first use of CUDA. Raises
    HetmemError: EALREADY: enabled already; EBUSY: Numba uses CUDA already, or another
    framework has another spec.
    """
    current = getattr(_driver, "_memory_manager", None)
    if current is not None and issubclass(current, MemoryManager):
        raise HetmemError(errno.EALREADY, "hetmem.numba is enabled already")
    if current is not None:
        raise HetmemError(
            errno.EBUSY,
            f"Numba uses {current.__name__} already: call hetmem.numba.enable() "
            "before the first use of CUDA",
        )
    with _process.choosing(spec):
        _cuda.set_memory_manager(MemoryManager)
    LOGGER.info("Numba allocates from hetmem")


def enabled() -> bool:
    """Returns whether enable() made hetmem the memory manager of Numba."""
    current = getattr(_driver, "_memory_manager", None)
    return current is not None and issubclass(current, MemoryManager)


def resource(device: int = 0) -> Resource:
    """Returns the resource behind Numba on @device."""
    _library.library()
    if not enabled():
        raise HetmemError(errno.EINVAL, "call hetmem.numba.enable() before")
    return _process.resource(device)
