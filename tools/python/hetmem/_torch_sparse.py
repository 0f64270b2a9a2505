# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Tensors of addresses first: hetmem.torch.sparse().

A storage of PyTorch owns the sparse block, by a view of libhetmem-torch.so. So the
block lives as long as a tensor of it, and longer than this object.
"""

from __future__ import annotations

import ctypes
import errno
import math
from typing import Any

from . import _abi
from ._library import HetmemError, OutOfMemoryError
from ._sparse import Committed, Rows, strides_of
from ._torch_unified import _CUDA, _error, _shim, _taken
from .core import Resource, Stream


class Sparse(Committed):
    """A tensor whose memory is made as far as commit() says; see sparse().

    @tensor: the tensor of max_shape. Its address never changes.
    @resource: whose memory it is.
    """

    def __init__(
        self,
        torch: Any,
        resource: Resource,
        *,
        shape: tuple[int, ...],
        dim: int,
        dtype: Any,
        device: Any,
        size: int,
    ) -> None:
        self.resource = resource
        self.dim = dim
        self._torch = torch
        self._device = device
        row = math.prod(shape) // shape[dim] * dtype.itemsize
        size = max(size, row * shape[dim])
        stream = self._stream()
        try:
            ptr = resource.allocate(size, stream, sparse=True)
        except OutOfMemoryError as error:
            raise _error(torch, -int(error.errno or 0)) from error
        made = _abi.P()
        code = _shim().hetmem_unified_own(
            resource.pointer,
            ptr,
            size,
            int(Stream.UNKNOWN),
            *_dlpack_device(device),
            ctypes.byref(made),
        )
        if code:
            resource.deallocate(ptr, stream=stream)
            raise MemoryError("no host memory for a sparse tensor")
        storage = _taken(torch, made)
        self._rows = Rows(resource, ptr, size=size, row=row, limit=shape[dim])
        whole = torch.empty(0, dtype=dtype, device=storage.device)
        self.tensor = whole.set_(storage, 0, shape, strides_of(shape, dim))

    def __repr__(self) -> str:
        return (
            f"<hetmem.torch.Sparse {tuple(self.tensor.shape)}, "
            f"{self.rows} of {self._rows.limit} committed>"
        )

    def _stream(self) -> int:
        """The current stream of the device, which is not captured."""
        torch = self._torch
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                raise HetmemError(
                    errno.EBUSY,
                    "the stream is captured: commit before the capture",
                )
            return int(torch.cuda.current_stream(self._device).cuda_stream)

    def commit(self, rows: int) -> Any:
        """The first @rows indices of the dimension have memory, and no others.

        Returns the tensor of these. Contents of rows that had memory before stay; those
        of new rows are undefined. Memory is taken and given back in the order of the
        current stream, without a wait: order other streams' uses before a smaller
        number. Within a unit of the pool it is only arithmetic.

        Errors, after which nothing has changed:
        - hetmem.OutOfMemoryError, a torch.OutOfMemoryError, too: no memory
        - HetmemError, EBUSY: the memory is asleep, or the stream is captured
        - ValueError: @rows is not from 0 to the dimension's size
        """
        self._resize(rows)
        return self.tensor.narrow(self.dim, 0, rows)

    def _resize(self, rows: int) -> None:
        if self._rows.fits(rows):
            return
        stream = self._stream()
        try:
            self._rows.commit(rows, stream)
            return
        except OutOfMemoryError:
            # PyTorch's own allocator may have what is missing. It does the same.
            self._torch.cuda.empty_cache()
        try:
            self._rows.commit(rows, stream)
        except OutOfMemoryError as error:
            raise _error(self._torch, -int(error.errno or 0)) from error


def _dlpack_device(device: Any) -> tuple[int, int]:
    return _CUDA, int(device.index)
