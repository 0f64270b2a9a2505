# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Training and generation in turns on one device, as in reinforcement learning.

The trainer's state (weights, gradients, momentum) keeps its contents while it
is away. The generator's weights do too; its KV cache is made anew. Ways:

hand          parameters are copied to page-locked memory, and back
memory-saver  torch_memory_saver, if it is installed
hetmem        hetmem.torch.pool(), sleep() and wake()

@ms is of all turns, @check the sum of what training and generation gave.
"""
import contextlib
import time

WAYS = ("hand", "memory-saver", "hetmem")
TURNS = 4


class Hand:
    def __init__(self, torch):
        self.torch, self.away = torch, {}

    def region(self, tag, keep):
        return contextlib.nullcontext()

    def sleep(self, tag, tensors, keep):
        torch = self.torch
        held = self.away[tag] = []
        for tensor in tensors:
            host = None
            if keep:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host.copy_(tensor.data, non_blocking=True)
            held.append((tensor, host, tensor.shape))
        torch.cuda.synchronize()
        for tensor, _, _ in held:
            tensor.data = torch.empty(0, device="cuda", dtype=tensor.dtype)
        torch.cuda.empty_cache()

    def wake(self, tag):
        for tensor, host, shape in self.away.pop(tag):
            tensor.data = self.torch.empty(shape, dtype=tensor.dtype, device="cuda")
            if host is not None:
                tensor.data.copy_(host, non_blocking=True)
        self.torch.cuda.synchronize()


class Saver:
    def __init__(self, torch):
        from torch_memory_saver import torch_memory_saver

        self.saver = torch_memory_saver
        self.saver.hook_mode = "torch"

    def region(self, tag, keep):
        return self.saver.region(tag=tag, enable_cpu_backup=keep)

    def sleep(self, tag, tensors, keep):
        self.saver.pause(tag)

    def wake(self, tag):
        self.saver.resume(tag)


class Pools:
    def __init__(self, torch):
        import hetmem.torch

        self.torch, self.pools = hetmem.torch, {}

    def region(self, tag, keep):
        park = ",park=keep" if keep else ""
        self.pools[tag] = self.torch.pool(f"pool(vmm{park},tag={tag})", tag=tag)
        return self.pools[tag].use()

    def sleep(self, tag, tensors, keep):
        self.torch.sleep(tag, keep=keep)

    def wake(self, tag):
        self.torch.wake(tag)


def run(torch, device, tiny, way):
    how = {"hand": Hand, "memory-saver": Saver, "hetmem": Pools}[way](torch)
    torch.manual_seed(1)
    width, layers = (64, 2) if tiny else (4096, 24)

    def model():
        parts = []
        for _ in range(layers):
            parts += [torch.nn.Linear(width, width, bias=False), torch.nn.GELU()]
        return torch.nn.Sequential(*parts)

    with how.region("trainer", True), torch.device("cuda"):
        trainer = model()
        for p in trainer.parameters():
            p.grad = torch.zeros_like(p)
        momentum = [torch.zeros_like(p) for p in trainer.parameters()]
    with how.region("weights", True), torch.device("cuda"):
        generator = model().to(torch.bfloat16)
    with how.region("kv", False), torch.device("cuda"):
        cache = torch.zeros(1 << 20 if tiny else 6 << 30, dtype=torch.uint8)
    grads = [p.grad for p in trainer.parameters()]
    state = [*trainer.parameters(), *momentum, *grads]
    weights = list(generator.parameters())

    def generate():
        out = torch.ones(64, width, device="cuda", dtype=torch.bfloat16)
        for nr in range(5):
            out = generator(out)
            cache[nr * 1000 : nr * 1000 + 1000] = 1
        return float(out.float().abs().mean())

    def train():
        for _ in range(3):
            x = torch.randn(64, width, device="cuda")
            loss = trainer(x).pow(2).mean()
            torch.autograd.backward(loss, inputs=list(trainer.parameters()))
            with torch.no_grad():
                for p, m in zip(trainer.parameters(), momentum):
                    m.mul_(0.9).add_(p.grad)
                    p.sub_(m, alpha=0.01)
                    p.grad.zero_()
        return float(loss)

    how.sleep("weights", weights, True)
    how.sleep("kv", [cache], False)
    check, slept = 0.0, []
    torch.cuda.synchronize()
    begun = time.monotonic()
    for _ in range(TURNS):
        check += train()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        at = time.monotonic()
        how.sleep("trainer", state, True)
        torch.cuda.synchronize()
        slept.append(round(time.monotonic() - at, 3))
        how.wake("weights")
        how.wake("kv")
        with torch.no_grad():
            check += generate()
        device.look()
        how.sleep("weights", weights, True)
        how.sleep("kv", [cache], False)
        how.wake("trainer")
        torch.cuda.synchronize()
        device.look()
    return {
        "check": check,
        "ms": round(1e3 * (time.monotonic() - begun)),
        "first_sleep_s": slept[0],
        "last_sleep_s": slept[-1],
    }
