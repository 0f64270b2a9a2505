# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What hetmem.cupy uses of CuPy, without CuPy."""

import contextlib
import threading

_local = threading.local()


class _Stream:
    def __init__(self, ptr):
        self.ptr = ptr


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes "
                         f"(allocated so far: {total:,} bytes).")


class _Memory:
    def __init__(self, size, malloc, free, device):
        self.free, self.device_id, self.size, self.ptr = free, device, size, 0
        if size > 0:
            self.ptr = malloc(size, device)

    def __del__(self):
        if self.ptr:
            self.free(self.ptr, self.device_id)


class _Pointer:
    def __init__(self, mem):
        self.mem, self.ptr = mem, mem.ptr


class PythonFunctionAllocator:
    def __init__(self, malloc, free):
        self._functions = malloc, free

    def malloc(self, size):
        return _Pointer(_Memory(size, *self._functions, cuda.device))


class cuda:
    device = 0
    allocator = staticmethod(lambda size: None)

    class memory:
        OutOfMemoryError = OutOfMemoryError
        PythonFunctionAllocator = PythonFunctionAllocator

    @staticmethod
    def get_current_stream():
        return _Stream(getattr(_local, "stream", 0))

    @staticmethod
    def get_allocator():
        return getattr(_local, "allocator", None) or cuda.allocator

    @staticmethod
    def set_allocator(allocator=None):
        if getattr(_local, "allocator", None):
            raise ValueError("Can't change the global allocator inside "
                             "`using_allocator` context manager")
        cuda.allocator = allocator

    @staticmethod
    @contextlib.contextmanager
    def using_allocator(allocator=None):
        before = getattr(_local, "allocator", None)
        _local.allocator = allocator
        try:
            yield
        finally:
            _local.allocator = before


class ndarray:
    def __init__(self, size):
        self.data = cuda.get_allocator()(size)


def empty(size):
    return ndarray(size)
