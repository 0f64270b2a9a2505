# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What hetmem.torch uses of PyTorch, without PyTorch.

The allocator calls the functions that it is given, as PyTorch's does, and refuses
what PyTorch refuses. A function that throws would end the process: selftests/python/
plain.cc calls those.
"""

import contextlib
import ctypes
import os

__version__ = "2.11.0+fake"
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class version:
    cuda = os.environ.get("FAKE_TORCH_CUDA", "13.0") or None


class backends:
    class cudnn:
        benchmark = bool(os.environ.get("FAKE_TORCH_BENCHMARK"))


class _Allocator:
    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(P, S, I, P)(alloc)
        self.free = ctypes.CFUNCTYPE(None, P, S, I, P)(free)
        self.hooks = {}

    def __getattr__(self, name):
        if name not in ("set_init_fn", "set_reset_fn", "set_record_stream_fn",
                        "set_base_alloc_fn", "set_begin_allocate_to_pool"):
            raise AttributeError(name)
        return lambda address: self.hooks.__setitem__(name[4:], address)


class Tensor:
    """Bytes of the current allocator, or of a pool."""

    def __init__(self, size, allocator, stream=0):
        self.allocator, self.size, self.stream = allocator, size, stream
        self.device = cuda.device
        cuda.used.add(self.device)
        self.ptr = allocator.alloc(size, self.device, stream)
        if not self.ptr:
            raise OutOfMemoryError("CUDA out of memory")

    is_cuda = True

    def get_device(self):
        return self.device

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self.ptr

    def __del__(self):
        if getattr(self, "ptr", None):
            self.allocator.free(self.ptr, self.size, self.device, self.stream)


class OutOfMemoryError(RuntimeError):
    pass


class _C:
    @staticmethod
    def _cuda_hasPrimaryContext(device):
        return device in cuda.used


class cuda:
    used = set()
    device = 0
    initialized = False
    allocator = None
    pools = []
    synchronized = []

    class memory:
        class CUDAPluggableAllocator:
            def __init__(self, path, alloc, free):
                library = ctypes.CDLL(path)
                self._allocator = _Allocator(*(
                    ctypes.cast(getattr(library, name), P).value
                    for name in (alloc, free)))

            def allocator(self):
                return self._allocator

        @staticmethod
        def change_current_allocator(allocator):
            if os.environ.get("FAKE_TORCH_REFUSES"):
                raise RuntimeError("Can't swap an already initialized allocator")
            cuda.allocator = allocator.allocator()

    class MemPool:
        def __init__(self, allocator=None):
            self.allocator = allocator

    @staticmethod
    def is_initialized():
        return cuda.initialized

    @staticmethod
    def init():
        if not cuda.initialized and cuda.allocator:
            ctypes.CFUNCTYPE(None, I)(cuda.allocator.hooks["init_fn"])(1)
        cuda.initialized = True

    @staticmethod
    def current_device():
        cuda.init()
        return cuda.device

    @staticmethod
    def device_count():
        return int(os.environ.get("HETMEM_SOFT_DEVICES", "1"))

    @staticmethod
    def synchronize(device=None):
        cuda.synchronized.append(device)

    @staticmethod
    def empty_cache():
        ctypes.CFUNCTYPE(None)(cuda.allocator.hooks["reset_fn"])()

    @staticmethod
    @contextlib.contextmanager
    def use_mem_pool(pool, device=None):
        cuda.pools.append((pool, device))
        try:
            yield
        finally:
            cuda.pools.pop()


_grad = [True]


def is_grad_enabled():
    return _grad[-1]


@contextlib.contextmanager
def no_grad():
    _grad.append(False)
    try:
        yield
    finally:
        _grad.pop()


def empty(size):
    cuda.init()
    allocator = cuda.pools[-1][0].allocator if cuda.pools else cuda.allocator
    return Tensor(size, allocator)
