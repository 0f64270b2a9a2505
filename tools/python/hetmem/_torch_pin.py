# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Page-locked tensors of their exact size: hetmem.torch.pin().

PyTorch's own pin_memory() rounds up to a power of two. A pool over pinned() pins whole
pages of 4 KiB, and at least 2 MiB, which small tensors share. The storage owns its
block as those of unified tensors do, so cuda() and record_stream() take it, too.
"""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any

from . import _abi, _torch_unified
from ._torch_unified import _CPU, _error, _shaped, _shim, _strided, _taken
from .core import Resource, Stream, default

_lock = _torch_unified._lock
# By device.
_resources: dict[int, Resource] = {}
os.register_at_fork(after_in_child=_resources.clear)


def pinned_resource(device: int = 0) -> Resource:
    """Returns the resource of pin() for @device. It keeps memory of tensors that are
    gone for later ones: call trim() to give it back."""
    with _lock:
        if device not in _resources:
            made = default().resource(f"pool(pinned(device={device}))")
            # Storages are freed later than the interpreter's objects.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            _resources[device] = _torch_unified._by_pointer[made.pointer] = made
        return _resources[device]


def pin(what: Any) -> Any:
    """A CPU tensor in page-locked memory, for fast copies to and from devices.

    @what: a tensor, whose copy it is; or a number of bytes, then it is of torch.uint8
    and its contents are undefined.

    Keep the tensor until copies with non_blocking=True are complete, or report their
    stream by record_stream(): PyTorch does it only for its own memory. Without memory
    it raises hetmem.OutOfMemoryError, which is torch.OutOfMemoryError, too.
    """
    torch = _torch_unified._torch()
    if isinstance(what, torch.Tensor):
        _strided(torch, what)
        like = torch.empty_like(what, device="meta")
    else:
        size = operator.index(what)
        if size < 0 or isinstance(what, bool):
            raise ValueError(f"{what!r}: give a tensor or a number of bytes")
        like = torch.empty(size, dtype=torch.uint8, device="meta")
    started = torch.cuda.is_initialized()
    resource = pinned_resource(torch.cuda.current_device() if started else 0)
    made = _abi.P()
    code = _shim().hetmem_unified_make(
        resource.pointer,
        max(like.untyped_storage().nbytes(), 1),
        int(Stream.HOST),
        int(Stream.UNKNOWN),
        _CPU,
        0,
        ctypes.byref(made),
    )
    if code:
        raise _error(torch, code)
    with torch._C.DisableTorchFunction():
        result = _shaped(torch, _taken(torch, made), like, torch.device("cpu"))
        if isinstance(what, torch.Tensor):
            result.copy_(what.detach())
    return result
