# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""How a real program gets its memory, and how much of the device it took.

native      PyTorch's own allocator
expandable  the same with expandable segments
plain, full the modes of hetmem.torch
"""
import os
import sys

WAYS = ("native", "expandable", "plain", "full")
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))


def begin(way):
    """Makes the allocator of the process that of @way, and returns torch."""
    if way == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    # Results must not depend on the order of sums.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False

    if way in ("plain", "full"):
        sys.path.insert(0, os.path.join(TOP, "tools", "python"))
        import hetmem.torch

        taken = hetmem.torch.enable(mode=way)
        if taken != way:
            raise SystemExit(f"{way}: {hetmem.torch.reason()}")
    return torch


class Device:
    """The device's own figure of its free memory: one measure for all ways.

    look() belongs behind each step: a peak between two looks is seen only as
    far as the allocator keeps it.
    """

    def __init__(self, torch):
        self.torch = torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.at_first = self.least = self.free()

    def free(self):
        return self.torch.cuda.mem_get_info()[0]

    def look(self):
        self.least = min(self.least, self.free())

    def peak_mib(self):
        self.look()
        return round((self.at_first - self.least) / 2**20)
