# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""torch.compile(mode="reduce-overhead"): a tree of graphs for each of four batches.

@check is 1 if the compiled results are those of the eager model to 1e-2.
"""
import random
import time


def run(torch, device, tiny):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    width = 64 if tiny else 1024
    parts = []
    with torch.device("cuda"):
        for _ in range(6):
            parts += [
                torch.nn.Linear(width, width),
                torch.nn.LayerNorm(width),
                torch.nn.GELU(),
            ]
    model = torch.nn.Sequential(*parts)
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    sizes = (4,) if tiny else (8, 96, 500, 1024)
    inputs = [torch.randn(size, width, device="cuda") for size in sizes]

    def step(x):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).sum().backward()
        model.zero_grad(set_to_none=True)

    for x in inputs:
        for _ in range(4):
            step(x)
    torch.cuda.synchronize()
    device.look()
    rng = random.Random(2)
    count = 3 if tiny else 300
    begun = time.monotonic()
    for nr in range(count):
        step(rng.choice(inputs))
        if nr % 50 == 0:
            device.look()
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    each = (time.monotonic() - begun) / count
    worst = 0.0
    with torch.no_grad():
        for x in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            worst = max(worst, float((compiled(x) - model(x)).abs().max()))
    return {"check": int(worst < 1e-2), "ms": round(1e3 * each, 3)}
