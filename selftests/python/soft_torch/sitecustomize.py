# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""With this folder in PYTHONPATH, programs of PyTorch compute on the soft driver.

A kernel does nothing there (selftests/python/cudart.c). Here each operation on tensors of a
device copies their storages to the CPU, runs there, and copies its results back. So contents of
device memory are used, and what a sleep loses is lost. Views and new memory are PyTorch's own.
"""

import os
import sys

# The stand-ins for NVIDIA's libraries lack what PyTorch never calls here.
sys.setdlopenflags(os.RTLD_LAZY)
import torch  # noqa: E402

sys.setdlopenflags(os.RTLD_NOW)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

OWN = ("empty", "detach", "set_", "record_stream", "is_pinned", "resize_", "alias")


def raw(storage, device):
    """The bytes of @storage, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def shaped(storage, like, device):
    made = torch.empty(0, dtype=like.dtype, device=device)
    return made.set_(storage, like.storage_offset(), like.size(), like.stride())


class Call:
    """The storages of one operation, on the CPU."""

    def __init__(self):
        self.copies = {}
        self.given = {}
        self.device = None

    def down(self, tensor):
        if not tensor.is_cuda:
            return tensor
        self.device = self.device or tensor.device
        storage = tensor.untyped_storage()
        if storage._cdata not in self.copies:
            self.copies[storage._cdata] = storage, raw(storage, tensor.device).cpu()
        copy = self.copies[storage._cdata][1].untyped_storage()
        made = shaped(copy, tensor, "cpu")
        self.given[id(made)] = made, tensor
        return made

    def write_back(self, tensor):
        if tensor.is_cuda:
            storage, copy = self.copies[tensor.untyped_storage()._cdata]
            raw(storage, tensor.device).copy_(copy)

    def up(self, tensor):
        if id(tensor) in self.given:
            return self.given[id(tensor)][1]
        if self.device is None or tensor.is_cuda:
            return tensor
        storage = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8,
                              device=self.device)
        storage.copy_(raw(tensor.untyped_storage(), "cpu"))
        return shaped(storage.untyped_storage(), tensor, self.device)


class Kernels(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), options=None):
        options = dict(options or {})
        name = function.overloadpacket.__name__
        if function.is_view or name.startswith(OWN):
            return function(*args, **options)
        call = Call()
        made_args, made_options = tree_map_only(torch.Tensor, call.down, (args, options))
        device = options.get("device")
        if device is not None:
            # Results are there, wherever the arguments are.
            call.device = None if torch.device(device).type == "cpu" else torch.device(device)
            made_options["device"] = "cpu"
        made_options.pop("pin_memory", None)
        if call.device is None and not call.given:
            return function(*args, **options)
        result = function(*made_args, **made_options)
        if function.namespace == "c10d":
            # A collective goes on after its call, and its schema names no results.
            for work in tree_leaves(result):
                if isinstance(work, torch.ScriptObject):
                    work.wait()
            for _, given in list(call.given.values()):
                call.write_back(given)
        for i, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[i] if i < len(args) else options.get(argument.name)
                tree_map_only(torch.Tensor, call.write_back, given)
        return tree_map_only(torch.Tensor, call.up, result)


Kernels().__enter__()
