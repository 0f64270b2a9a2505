# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Unified tensors of hetmem.torch: PyTorch itself over the soft driver, without a GPU.

The environment is that of test_torch_full.py. Kernels do nothing there, so contents come from
copies. Check mode ends the process where memory is used or reused in a wrong order.
"""

import os
import tempfile

import tap
import test_torch_full as full

# What makes a difference: who allocates for PyTorch.
MODES = {
    "native": "",
    "plain": 'assert ht.enable("pool(vmm,max=64M)", mode="plain") == "plain"\n',
    "full": 'assert ht.enable("pool(vmm,max=64M)", mode="full") == "full"\n',
}
NAMES = """
def live(device=0):
    gc.collect()
    return ht.unified_resource(device).stats().live
def same(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
"""


class Unified(tap.Case):
    def run_code(self, code, modes=("native",), **environment):
        """@code, which has the usual names, succeeds in silence."""
        for mode in modes:
            with self.subTest(mode=mode):
                text = f"MODE = {mode!r}\n" + MODES[mode] + tap.textwrap.dedent(code)
                self.silent(full.START + NAMES + text,
                            **{**full.full_environment(), **environment})

    def test_one_memory(self):
        """Both devices see what either writes, and each view keeps the memory."""
        self.run_code("""
            made = [(ht.empty, 4000), (ht.empty, 1000, 4), (ht.zeros, (4000,)),
                    (lambda *s, **o: ht.full(s, 3.0, **o), 4000)]
            for device in ("cpu", "cuda"):
                for function, *size in made:
                    tensor = function(*size, device=device)
                    assert ht.is_unified(tensor) and tensor.device.type == device
                    assert tensor.numel() == 4000 and tensor.dtype == torch.float32
                    assert tensor.data_ptr() % 512 == 0
                    host, there = ht.cpu(tensor), ht.cuda(tensor)
                    assert same(host, there) and there.is_cuda and not host.is_cuda
                    if device == "cpu" and function is ht.zeros: assert (host == 0).all()
                    if function not in (ht.empty, ht.zeros) and device == "cpu":
                        assert (host == 3).all()
                    host.copy_(torch.arange(4000.).reshape(tensor.shape))
                    assert torch.equal(there.cpu(), host)
                    there.copy_(torch.full(tensor.shape, 5.0))
                    torch.cuda.synchronize()
                    assert (host == 5).all() and ht.cpu(there).sum() == 20000
            del tensor, there
            assert live() == 1 and (host == 5).all()
            again = ht.cuda(host)
            del host
            assert live() == 1 and (ht.cpu(again) == 5).all()
            del again
            assert live() == 0
            """, MODES)

    def test_views(self):
        """Slices, strides, offsets and dtypes are kept; the whole storage is."""
        self.run_code("""
            base = ht.empty(6, 8)
            base.copy_(torch.arange(48.).reshape(6, 8))
            for view in (base[2], base[1:4, ::3], base.t(), base[:, 5], base.expand(2, 6, 8),
                         base[3, 3], base.as_strided((3, 3), (8, 1), 10), base.view(torch.int32)):
                there = ht.cuda(view)
                assert (there.shape, there.stride(), there.storage_offset(), there.dtype) == (
                    view.shape, view.stride(), view.storage_offset(), view.dtype)
                assert there.data_ptr() == view.data_ptr()
                assert torch.equal(ht.cpu(there), view)
                assert torch.equal(ht.move(ht.move(view, "cuda"), "cpu"), view)
                assert there._base is None
            for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16,
                          torch.float64, torch.complex64, torch.float8_e4m3fn, torch.uint16):
                tensor = ht.zeros(5, dtype=dtype)
                assert ht.cuda(tensor).dtype == dtype == ht.to_unified(tensor.clone()).dtype
            part = base[2:4]
            del base, view, there, tensor
            assert ht.cpu(ht.cuda(part)).sum() == sum(range(16, 32)) and live() == 1
            channels = ht.empty(2, 3, 4, 5, memory_format=torch.channels_last)
            assert ht.cuda(channels).is_contiguous(memory_format=torch.channels_last)
            for nothing in (ht.empty(0), ht.empty(0, 3, device="cuda"), ht.zeros(4, 0)[1:]):
                assert ht.is_unified(nothing)
                assert ht.move(nothing, "cuda").shape == nothing.shape == ht.cpu(nothing).shape
            """)

    def test_to_unified(self):
        self.run_code("""
            source = torch.arange(1000.)
            for tensor in (source, source.cuda(), source[::2], source.reshape(10, 100).t(),
                           source.expand(3, 1000), torch.empty(0), torch.tensor(4)):
                made = ht.to_unified(tensor)
                assert ht.is_unified(made) and not ht.is_unified(tensor)
                assert made.device == tensor.device and made.shape == tensor.shape
                if made.is_cuda or made.is_contiguous(): assert torch.equal(made.cpu(), tensor.cpu())
                assert ht.to_unified(made) is made
            # Autograd records the copy; a parameter's data can be replaced.
            leaf = torch.ones(10, requires_grad=True)
            (ht.to_unified(leaf) * 3).sum().backward()
            assert (leaf.grad == 3).all()
            layer = torch.nn.Linear(4, 4)
            for p in layer.parameters(): p.data = ht.to_unified(p.data)
            layer(torch.ones(2, 4)).sum().backward()
            assert all(ht.is_unified(p) for p in layer.parameters())
            for p in layer.parameters(): p.data = ht.move(p.data, "cuda")
            assert layer.weight.is_cuda and layer.weight.requires_grad
            """, MODES)

    def test_move(self):
        """The prefetch is there, in order, and the host waits for it."""
        self.run_code("""
            tensor = ht.empty(MIB)
            tensor.fill_(1.0)
            stream = torch.cuda.current_stream()
            there = ht.move(tensor, "cuda")
            assert stream.query() and same(there, tensor) and there.is_cuda
            assert ht.move(there, "cuda") is there
            back = ht.move(there, torch.device("cpu"))
            assert same(back, tensor) and (back == 1).all() and ht.move(back, "cpu") is back
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                moved = ht.move(tensor, "cuda", non_blocking=True)
                ht.move(moved, "cpu")
                assert side.query()
            copy = ht.move(there, "cpu", copy=True)
            assert not same(copy, there) and not ht.is_unified(copy) and (copy == 1).all()
            assert not same(ht.move(there, "cuda", copy=True), there)
            """, MODES, HETMEM_SOFT_DELAY="cuMemPrefetchAsync:200ms")
        # Nobody waits for work of the stream that takes long.
        self.run_code("""
            tensor, side = ht.full((MIB,), 1.0), torch.cuda.Stream()
            with torch.cuda.stream(side):
                there = ht.move(tensor, "cuda:0", non_blocking=True)
                assert there.is_cuda and not side.query()
                assert torch.cuda.default_stream().query()
            """, HETMEM_SOFT_DELAY="cuMemPrefetchAsync:1:5s")
        self.run_code("""
            tensor = ht.empty(MIB, device="cuda")
            ht.cpu(tensor); ht.cuda(ht.cpu(tensor))
            for target in ("cpu", "cuda"):
                error = fails(hetmem.HetmemError, lambda: ht.move(tensor, target), "Prefetch")
                assert error.errno == errno.EIO, error
            assert ht.move(tensor[:0], "cuda").numel() == 0
            """, HETMEM_SOFT_FAIL="cuMemPrefetchAsync:*=CUDA_ERROR_UNKNOWN")

    def test_waits(self):
        """cpu() and move() wait for what the device still writes; non_blocking does not."""
        self.run_code("""
            source = torch.full((MIB,), 2.0).pin_memory()
            for see in (ht.cpu, lambda t: ht.move(t, "cpu")):
                there = ht.zeros(MIB, device="cuda")
                there.copy_(source, non_blocking=True)
                assert (see(there) == 2).all()
            """, HETMEM_SOFT_DELAY="cuMemcpyAsync:200ms")
        self.run_code("""
            source = torch.full((MIB,), 2.0).pin_memory()
            there = ht.zeros(MIB, device="cuda")
            there.copy_(source, non_blocking=True)
            for see in (ht.cpu, lambda t, **o: ht.move(t, "cpu", **o)):
                host = see(there, non_blocking=True)
                assert not torch.cuda.current_stream().query()
            torch.cuda.synchronize()
            assert (host == 2).all()
            """, HETMEM_SOFT_DELAY="cuMemcpyAsync:1:5s")

    def test_streams(self):
        """Freed memory waits for the streams of its views, and for recorded ones."""
        self.run_code("""
            side, third = torch.cuda.Stream(), torch.cuda.Stream()
            source = torch.arange(float(MIB)).pin_memory()
            for new in (lambda: ht.empty(MIB), lambda: ht.empty(MIB, device="cuda")):
                for see in (ht.cuda, lambda t: ht.move(t, "cuda", non_blocking=True)):
                    for _ in range(4):
                        with torch.cuda.stream(side):
                            there = see(new())
                            there.copy_(source, non_blocking=True)
                        del there
            for _ in range(4):
                for new in (lambda: ht.empty(MIB), lambda: ht.empty(MIB, device="cuda")):
                    with torch.cuda.stream(side):
                        there = ht.cuda(new())
                        there.copy_(source, non_blocking=True)
                    if MODE != "native": there[5:].record_stream(third)
                    ht.record_stream(there, third)
                    with torch.cuda.stream(third):
                        third.wait_stream(side)
                        there.copy_(source, non_blocking=True)
                    del there
            assert live() == 0
            tensor = ht.empty(10)
            fails(TypeError, lambda: ht.record_stream(tensor, "side"))
            fails(hetmem.HetmemError, lambda: ht.record_stream(source, side), "not unified")
            """, MODES, HETMEM_SOFT_DELAY="cuMemcpyAsync:5ms")

    def test_capture(self):
        """In a capture what needs the stream is refused, and the capture goes on."""
        self.run_code("""
            x, y = ht.full((1000,), 2.0), ht.zeros(1000, device="cuda")
            there = ht.cuda(x)
            there.copy_(torch.full((1000,), 3.0))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for call in (lambda: ht.move(y, "cpu"), lambda: ht.move(x, "cuda"),
                             lambda: ht.cpu(y), lambda: ht.cuda(x), lambda: ht.empty(3, device="cuda"),
                             lambda: ht.zeros(3, device="cuda")):
                    error = fails(hetmem.HetmemError, call, "before the capture")
                    assert error.errno == errno.EBUSY
                assert (ht.cpu(there, non_blocking=True) == 3).all() and ht.empty(3).numel() == 3
                y.copy_(there)
            for value in (3, 4):
                x.fill_(value)
                graph.replay()
                assert (ht.cpu(y) == value).all()
            """, ("native", "full"))

    def test_enable_unified(self):
        """With the spec all memory of devices is unified, results of operations too."""
        for mode in ("plain", "full"):
            self.run_code("""
                tensor = torch.arange(1000.).cuda()
                assert ht.is_unified(tensor) and live() == 0
                host = ht.cpu(tensor)
                assert torch.equal(host, torch.arange(1000.))
                clone = tensor.clone()
                assert ht.is_unified(clone) and ht.to_unified(clone) is clone
                address = tensor.data_ptr()
                del tensor, clone
                assert ht.resource().stats().live == 1
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    there = ht.move(host, "cuda")
                    assert there.data_ptr() == address
                    there.copy_(torch.full((1000,), 4.0))
                    ht.record_stream(there, side)
                side.synchronize()
                assert (host == 4).all()
                del host, there
                gc.collect()
                assert ht.resource().stats().live == 0
                """.replace("tensor =", f'ht.enable("unified", mode={mode!r})\n'
                            "                tensor =", 1))

    def test_refused(self):
        self.run_code("""
            ours = ht.empty(4)
            other = torch.empty(4)
            theirs = other.cuda()
            calls = (ht.cpu, ht.cuda, lambda t: ht.move(t, "cpu"), lambda t: ht.move(t, "cuda"))
            for tensor in (other, theirs, torch.empty(0), torch.empty(0, device="cuda"),
                           torch.from_numpy(__import__("numpy").zeros(4)), other.pin_memory()):
                assert not ht.is_unified(tensor)
                for call in calls:
                    error = fails(hetmem.HetmemError, lambda: call(tensor), "to_unified()")
                    assert error.errno == errno.EINVAL
            calls += (ht.to_unified, lambda t: ht.record_stream(t, 0))
            for call in calls:
                for wrong in (None, 1.5, [1.0], "cuda", __import__("numpy").zeros(2)):
                    fails(TypeError, lambda: call(wrong), "no tensor")
                fails(ValueError, lambda: call(torch.eye(3).to_sparse()), "to_dense()")
                fails(ValueError, lambda: call(torch.empty(3, device="meta")), "meta")
                fails(ValueError, lambda: call(torch.quantize_per_tensor(
                    torch.ones(3), 1.0, 0, torch.qint8)), "quantized")
            assert not ht.is_unified(torch.eye(3).to_sparse())
            fails(TypeError, lambda: ht.move(3, "cpu", copy=True), "no tensor")
            # Devices.
            for device in ("cuda:1", "cuda:63", 7):
                error = fails(hetmem.HetmemError, lambda: ht.move(ours, device), "PyTorch has 1")
                assert error.errno == errno.ENODEV
                fails(hetmem.HetmemError, lambda: ht.cuda(ours, device))
                fails(hetmem.HetmemError, lambda: ht.empty(3, device=device))
            for device in ("meta", "mps", "xpu:0"):
                fails(ValueError, lambda: ht.move(ours, device), "no device")
                fails(ValueError, lambda: ht.empty(3, device=device))
            for device in (None, True, 1.0): fails(TypeError, lambda: ht.move(ours, device))
            for device in ("gpu", "cuda:x", ""): fails(RuntimeError, lambda: ht.move(ours, device))
            fails((TypeError, RuntimeError), lambda: ht.move(ours, -1))
            fails(TypeError, lambda: ht.move(ours, torch.float16), "dtype")
            fails(ValueError, lambda: ht.cuda(ours, "cpu"), "call cpu()")
            # Autograd, and bits that a view has in its tensor.
            grad = ht.empty(3, requires_grad=True)
            for tensor in (grad, grad * 2 if ht.is_unified(grad * 2) else grad[1:]):
                for call in calls[:4]: fails(ValueError, lambda: call(tensor), "detach()")
            with torch.no_grad():
                assert same(ht.cuda(grad), grad) and not ht.cuda(grad).requires_grad
                assert not ht.cpu(grad).requires_grad
            assert same(ht.move(grad.detach(), "cuda"), grad)
            for bits in (ht.zeros(3, dtype=torch.complex64).conj(),
                         ht.zeros(3, dtype=torch.complex64).conj().imag):
                fails(ValueError, lambda: ht.cuda(bits), "resolve_conj()")
            # Options that unified memory does not have.
            for options in ({"pin_memory": True}, {"out": torch.empty(3)},
                            {"layout": torch.sparse_coo}, {"device": "meta"}):
                fails(ValueError, lambda: ht.empty(3, **options))
            fails((TypeError, RuntimeError), lambda: ht.empty(-1))
            fails(TypeError, lambda: ht.empty(3, none=1))
            assert not ht.is_unified(ht.empty(3, unified=False))
            assert not ht.is_unified(ht.full((3,), 1, unified=False, pin_memory=True))
            fails(RuntimeError, lambda: ours.resize_(1 << 20))
            before = live()
            assert ours.resize_(2).shape == (2,) and live() == before
            """)

    def test_no_memory(self):
        """It is hetmem's error and PyTorch's, and nothing is lost."""
        self.run_code("""
            kept = ht.full((1000,), 3.0)
            for call in (lambda: ht.empty(1 << 40), lambda: ht.zeros(1 << 40, device="cuda"),
                         lambda: ht.full((1 << 40,), 1.0)):
                for kind in (torch.OutOfMemoryError, hetmem.OutOfMemoryError, MemoryError):
                    error = fails(kind, call, "out of memory", "4398046511104")
                assert error.errno == errno.ENOMEM
            with ht.unified(): fails(torch.OutOfMemoryError, lambda: torch.empty(1 << 40))
            assert (ht.cuda(kept).cpu() == 3).all() and live() == 1
            fails((RuntimeError, OverflowError, TypeError), lambda: ht.empty(1 << 62, 1 << 62))
            # PyTorch does not take it: it is freed.
            import torch.utils.dlpack as dlpack
            take, dlpack.from_dlpack = dlpack.from_dlpack, lambda capsule: 1 / 0
            fails(ZeroDivisionError, lambda: ht.empty(3))
            dlpack.from_dlpack = take
            assert live() == 1
            """, MODES)

    def test_context(self):
        self.run_code("""
            depth = torch._C._len_torch_function_stack
            start = threading.Thread.start
            with ht.unified():
                made = [torch.empty(3), torch.zeros(2, device="cuda"), torch.ones(3, 4),
                        torch.full((2,), 7), torch.rand(3), torch.arange(5), torch.tensor([1., 2]),
                        torch.eye(3), torch.empty_strided((2, 2), (1, 2)), torch.randn(2, 2),
                        torch.nn.Linear(3, 4).weight, torch.empty(3, requires_grad=True),
                        torch.rand(3, requires_grad=True)]
                one = made[0]
                made += [torch.zeros_like(one), one.new_full((3,), 2.0), one.new_tensor([1]),
                         torch.rand_like(one), one.new_empty(4), torch.full_like(one, 2)]
                assert all(map(ht.is_unified, made)), list(map(ht.is_unified, made))
                assert (made[3] == 7).all() and made[3].dtype == torch.int64
                assert torch.equal(made[5], torch.arange(5)) and (made[-5] == 2).all()
                assert made[11].requires_grad and made[12].is_leaf and made[12].requires_grad
                # The same numbers as without it.
                torch.manual_seed(4); a = torch.rand(5)
                # What keeps PyTorch's memory.
                out = torch.empty(3, pin_memory=True)
                for other in (out, one + one, torch.empty(3, device="meta"),
                              torch.from_numpy(__import__("numpy").zeros(3)),
                              torch.eye(3).to_sparse(), one.clone(),
                              torch.zeros(3, out=out), torch.arange(3., out=out)):
                    assert not ht.is_unified(other)
                with ht.unified(False):
                    assert not ht.is_unified(torch.empty(3)) and depth() == 0
                    with ht.unified(): assert ht.is_unified(torch.empty(3))
                    assert not ht.is_unified(torch.empty(3))
                with ht.unified(): pass
                assert ht.is_unified(torch.empty(3)) and depth() == 1
            torch.manual_seed(4); assert torch.equal(a, torch.rand(5))
            # Off, nothing of it is left.
            assert depth() == 0 and threading.Thread.start is start
            assert not ht.is_unified(torch.empty(3))
            def wrong():
                with ht.unified(), ht.unified(False), ht.unified(): 1 / 0
            fails(ZeroDivisionError, wrong)
            assert depth() == 0 and not ht.is_unified(torch.empty(3))
            # As a switch.
            first = ht.unified()
            ht.unified()
            assert ht.is_unified(torch.empty(3)) and depth() == 1
            ht.unified(False)
            assert depth() == 0 and threading.Thread.start is start
            first.undo(); first.undo()
            ht.unified(); first.undo()
            assert ht.is_unified(torch.empty(3))
            ht.unified(False)
            """, MODES)

    def test_context_and_others(self):
        """Modes of PyTorch around it, within it, and across it."""
        self.run_code("""
            depth = torch._C._len_torch_function_stack
            def ours(device): t = torch.empty(3); return ht.is_unified(t) and t.device.type == device
            with torch.device("cuda"), ht.unified(): assert ours("cuda")
            with ht.unified(), torch.device("cuda"): assert ours("cuda")
            assert depth() == 0
            with torch.device("cuda"):
                switch = ht.unified()
                assert ours("cuda") and depth() == 2
            assert ours("cpu") and depth() == 1
            torch.set_default_device("cuda")
            assert ours("cuda")
            ht.unified(False); ht.unified()
            assert ours("cuda")
            torch.set_default_device("cpu"); torch.set_default_device(None)
            assert ours("cpu") and depth() == 1
            seen = []
            class Mode(torch.overrides.TorchFunctionMode):
                def __torch_function__(self, function, types, args=(), options=None):
                    seen.append(function)
                    return function(*args, **(options or {}))
            with Mode():
                assert ours("cpu")
                switch.undo()
                assert not ours("cpu") and depth() == 1 and torch.empty in seen
                ht.unified()
            assert depth() == 1 and ours("cpu")
            from torch._subclasses.fake_tensor import FakeTensorMode
            with FakeTensorMode():
                fake = torch.empty(3)
                assert not ht.is_unified(fake) and not ht.is_unified(torch.rand(3))
                fails(ValueError, lambda: ht.cuda(fake), "FakeTensor")
            with torch.inference_mode(): assert ours("cpu")
            torch.set_default_dtype(torch.float64)
            assert torch.empty(3).dtype == torch.float64
            """)

    def test_threads(self):
        self.run_code("""
            def run(work):
                thread = threading.Thread(target=lambda: found.append(work()))
                thread.start(); thread.join()
                return found.pop()
            found = []
            def ours(): return ht.is_unified(torch.empty(3))
            begin, end = threading.Event(), threading.Event()
            waiting = threading.Thread(target=lambda: (begin.wait(), found.append(ours()), end.set()))
            waiting.start()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                switch = ht.unified()
            assert "1 other threads" in str(caught[0].message) and len(caught) == 1
            begin.set(); end.wait(); waiting.join()
            assert found.pop() is False
            # Inherited, and by those that they start.
            assert run(ours) and run(lambda: run(ours))
            def inner():
                with ht.unified(False): return run(ours), ours()
            assert run(inner) == (False, False) and ours()
            assert run(lambda: isinstance(fails(RuntimeError, switch.undo), RuntimeError))
            # One that has begun keeps it.
            start, done = threading.Event(), threading.Event()
            kept = threading.Thread(target=lambda: (start.wait(), found.append(ours()), done.set()))
            kept.start()
            switch.undo()
            start.set(); done.wait(); kept.join()
            assert found.pop() is True and not ours() and not run(ours)
            import hetmem.numpy, numpy
            hetmem.numpy.enable("pool(host)"); ht.unified()
            assert run(lambda: (hetmem.numpy.enabled(), ours())) == (True, True)
            hetmem.numpy.disable()
            assert run(lambda: (hetmem.numpy.enabled(), ours())) == (False, True)
            ht.unified(False)
            # Many at once, on streams of their own.
            def work():
                with torch.cuda.stream(torch.cuda.Stream()):
                    for i in range(60):
                        host = ht.full((1000 * (i % 7 + 1),), float(i))
                        there = ht.move(host, "cuda", non_blocking=i % 2)
                        del host
                        good.append(bool((ht.cpu(there) == i).all()))
                        kept.append(there)
                        if len(kept) > 20: kept.pop(0)
            good, kept = [], []
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert len(good) == 240 and all(good)
            kept.clear()
            assert live() == 0
            """, MODES)

    def test_backward(self):
        """Gradients of unified tensors on the CPU; the thread of backward() has its own."""
        self.run_code("""
            with ht.unified():
                layer, x = torch.nn.Linear(50, 50), torch.randn(20, 50)
                layer(x).relu().sum().backward()
            assert ht.is_unified(layer.weight) and torch.isfinite(layer.weight.grad).all()
            import logging
            logging.disable(logging.WARNING)
            @torch.compile(backend="eager", fullgraph=True)
            def double(x): return x * 2 + torch.ones(3)
            with ht.unified(): assert (double(torch.ones(3)) == 3).all()
            """)

    def test_machines(self):
        """What the resource is made of makes no difference."""
        for machine in ("managed", "hmm", "ats node=0", "none", "integrated"):
            self.run_code("""
                x = ht.full((MIB,), 2.0)
                there = ht.move(x, "cuda")
                assert same(there, x) and (there.cpu() == 2).all()
                there.copy_(torch.full((MIB,), 4.0))
                assert (ht.move(there, "cpu") == 4).all()
                y = ht.zeros(1000, device="cuda")
                assert (ht.cpu(y) == 0).all()
                """, HETMEM_SOFT_MACHINE=machine + " memory=256M")

    def test_without_a_device(self):
        self.run_code("""
            x = ht.full((1000,), 3.0)
            assert ht.is_unified(x) and ht.cpu(x) is x and ht.move(x, "cpu") is x
            assert not torch.cuda.is_available() and (x == 3).all()
            for call in (ht.cuda, lambda t: ht.move(t, "cuda:0"), lambda t: ht.empty(3, device="cuda")):
                error = fails(hetmem.HetmemError, lambda: call(x), "no GPU")
                assert error.errno == errno.ENODEV
            with ht.unified(): assert ht.is_unified(torch.empty(3))
            # Memory of the host is a forked child's, too.
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                assert (x == 3).all()
                del x
                assert ht.is_unified(ht.empty(3))
                os._exit(0)
            """, HETMEM_SOFT_DEVICES="0")
        # PyTorch for the CPU alone, on a machine with a device.
        self.run_code("""
            torch.version.cuda = None
            x = ht.full((1000,), 3.0)
            assert ht.move(x, "cpu") is x and (x == 3).all()
            for call in (ht.cuda, lambda t: ht.move(t, "cuda"), lambda t: ht.empty(3, device="cuda")):
                error = fails(hetmem.HetmemError, lambda: call(x), "built without CUDA")
                assert error.errno == errno.EOPNOTSUPP
            assert not torch.cuda.is_initialized()
            """)

    def test_devices(self):
        self.run_code("""
            x = ht.full((1000,), 2.0)
            zero = ht.move(x, "cuda:0")
            one = ht.move(zero, "cuda:1")
            assert one.get_device() == 1 and same(one, x) and (one.cpu() == 2).all()
            assert ht.cuda(one, 0).get_device() == 0 and ht.move(one, 1) is one
            made = ht.zeros(1000, device="cuda:1")
            assert (live(0), live(1)) == (1, 1)
            with torch.cuda.device(1):
                host = ht.empty(3)
                assert ht.cuda(host).get_device() == 1
            assert live(1) == 2
            with ht.unified(): assert torch.empty_like(one).get_device() == 1
            """, MODES, HETMEM_SOFT_DEVICES="2")
        # Work of the device that it leaves comes first.
        self.run_code("""
            source = torch.full((1000,), 2.0).pin_memory()
            result = torch.zeros(1000).pin_memory()
            zero = ht.zeros(1000, device="cuda:0")
            zero.copy_(source, non_blocking=True)
            one = ht.move(zero, "cuda:1", non_blocking=True)
            with torch.cuda.device(1): result.copy_(one, non_blocking=True)
            torch.cuda.synchronize(1)
            assert (result == 2).all()
            """, HETMEM_SOFT_DEVICES="2", HETMEM_SOFT_DELAY="cuMemcpyAsync:1:300ms")

    def test_fork(self):
        """A child that touches no memory of a device goes on, and begins with unified(False)."""
        self.run_code("""
            x, y = ht.full((1000,), 3.0), ht.empty(1000, device="cuda")
            ht.unified()
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
                assert ht.is_unified(torch.empty(3)) and (x == 3).all()
            else:
                assert not ht.is_unified(torch.empty(3))
                assert torch._C._len_torch_function_stack() == 0
                error = fails(hetmem.HetmemError, lambda: ht.record_stream(x, 0))
                assert error.errno == errno.EOWNERDEAD, error
                del x, y
                gc.collect()
                sys.stdout.flush(); sys.stderr.flush()
                os._exit(0)
            """, MODES)
        # A fork while other threads allocate and free.
        self.run_code("""
            stop = threading.Event()
            def work():
                while not stop.is_set(): ht.empty(100)
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads: thread.start()
            for _ in range(20):
                if pid := os.fork(): assert os.waitpid(pid, 0)[1] == 0
                else:
                    ht.is_unified(torch.empty(3))
                    os._exit(0)
            stop.set()
            for thread in threads: thread.join()
            """)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            sys.keep = [ht.empty(MIB, device=d) for d in ("cpu", "cuda") for _ in range(5)]
            sys.views = [ht.cuda(t) for t in sys.keep] + [ht.cpu(t) for t in sys.keep]
            tensor = ht.empty(10); tensor.cycle = tensor
            ht.unified()
            sys.layer = torch.nn.Linear(10, 10)
            def last(): torch.empty(3)
            import atexit; atexit.register(last)
            """, MODES)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_code(f"""
                import copy
                path = os.path.join({folder!r}, "tensor")
                """ """
                x = ht.full((1000,), 3.0)
                there = ht.cuda(x)
                torch.save([x, there], path)
                a, b = torch.load(path)
                assert (a == 3).all() and (b.cpu() == 3).all() and not ht.is_unified(a)
                with ht.unified(): again, _ = torch.load(path)
                assert (copy.deepcopy(x) == 3).all()
                # It replaces the memory of the tensor, and not of its views.
                x.share_memory_()
                assert not ht.is_unified(x) and ht.is_unified(there) and live() == 1
                assert (x == 3).all() and (ht.cpu(there) == 3).all()
                # Arrays of NumPy are of the same memory, and so are tensors of them.
                y = torch.from_numpy(ht.cpu(there).numpy()[100:])
                there = ht.cuda(y)
                assert there.shape == (900,) and ht.is_unified(y)
                del y
                assert (there.cpu() == 3).all() and live() == 1
                del there
                assert live() == 0
                """)


class Documented(tap.Case):
    def test_importing_costs_nothing(self):
        """Nothing is loaded or in place before the first use."""
        self.silent("""
            import sys, threading
            start = threading.Thread.start
            import hetmem.torch
            assert "torch" not in sys.modules and threading.Thread.start is start
            from hetmem import _library
            assert _library._loaded is None
            """)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
