# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.compat: PyTorch itself over the soft driver, without a GPU.

The environment is that of test_torch_full.py, and SAVER_SITE, a folder with the wheel of
torch_memory_saver, whose own classes tell the names. Kernels do nothing on the soft driver, so
contents come from copies. The cases of vLLM's tests are written anew, for a model of copies.
"""

import os
import tempfile

import tap
import test_torch_full as full

NAMES = """
import hetmem.compat
from hetmem.compat import torch_memory_saver as saver, CuMemAllocator
SAVER_SITE = os.environ["SAVER_SITE"]
def filled(value, size=4 * MIB):
    return torch.full((size,), value, dtype=torch.uint8).cuda()
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
def is_all(tensor, value):
    return bool((tensor.cpu() == value).all())
"""
PRELOAD = 'ht.enable("pool(vmm,max=200M)", mode="full")\n'


class Case(tap.Case):
    def run_code(self, code, **environment):
        """@code, which has the usual names, succeeds in silence."""
        self.silent(full.START + NAMES + tap.textwrap.dedent(code),
                    **{**full.full_environment(), **environment})


class Saver(Case):
    def test_names_are_theirs(self):
        """Each public name of the wheel's class is here, with its parameters and defaults."""
        self.run_code("""
            import inspect
            sys.path.append(SAVER_SITE)
            import torch_memory_saver as theirs
            mine, other = hetmem.compat.TorchMemorySaver, theirs.TorchMemorySaver
            assert mine is not other and isinstance(theirs.torch_memory_saver, other)
            def public(kind):
                return {name for name in vars(kind) if not name.startswith("_")}
            assert public(mine) == public(other), public(mine) ^ public(other)
            for name in public(other):
                its = vars(other)[name]
                if isinstance(its, property):
                    assert isinstance(vars(mine)[name], property)
                    assert (its.fset is None) == (vars(mine)[name].fset is None), name
                    continue
                def parameters(kind):
                    signature = inspect.signature(getattr(kind, name))
                    return [(p.name, p.default, p.kind) for p in signature.parameters.values()]
                assert parameters(mine) == parameters(other), (name, parameters(mine))
            # What the package exports.
            for name in public(theirs) - {"entrypoint", "hooks", "binary_wrapper", "utils"}:
                assert hasattr(hetmem.compat, name), name
            assert fails(hetmem.HetmemError,
                         lambda: hetmem.compat.install("torch_memory_saver")).errno == errno.EBUSY
            """)

    def test_install(self):
        """Programs that import the other package get this one, and its helpers."""
        self.run_code("""
            sys.path.append(SAVER_SITE)
            hetmem.compat.install("torch_memory_saver")
            hetmem.compat.install("torch_memory_saver")
            from torch_memory_saver import torch_memory_saver, configure_subprocess
            from torch_memory_saver.testing_utils import get_device
            assert torch_memory_saver is saver and get_device() == "cuda"
            with configure_subprocess():
                assert os.environ["HETMEM_TORCH"] == "full"
            assert "HETMEM_TORCH" not in os.environ
            fails(ValueError, lambda: hetmem.compat.install("nobody"), "torch_memory_saver, vllm")
            fails(ImportError, lambda: hetmem.compat.install("vllm"))
            """)

    def test_pause_and_resume(self):
        """With a backup contents come back, addresses always stay, and the memory is given back."""
        for mode, enable in (("torch", ""), ("preload", PRELOAD)):
            with self.subTest(mode=mode):
                self.run_code(f"""
                    {enable}
                    assert saver.enabled
                    fails(AttributeError, lambda: saver.hook_mode)
                    saver.hook_mode = {mode!r}
                    with saver.region(enable_cpu_backup=True):
                        kept = filled(10)
                        number = torch.full((10, 20), 1.5).cuda()
                    with saver.region():
                        lost = filled(20, 8 * MIB)
                    with saver.region("weights", enable_cpu_backup=True):
                        weights = filled(30)
                    outside = filled(40)
                    where = kept.data_ptr(), lost.data_ptr()
                    assert saver.get_cpu_backup(kept) is None
                    before = free()
                    saver.pause("weights")
                    assert free() >= before + 4 * MIB
                    assert is_all(kept, 10) and is_all(outside, 40)
                    backup = saver.get_cpu_backup(weights, zero_copy=True)
                    assert backup.device.type == "cpu" and (backup == 30).all()
                    saver.pause()
                    saver.pause()
                    assert free() >= before + 16 * MIB
                    backup = saver.get_cpu_backup(number)
                    assert backup.shape == (10, 20) and (backup == 1.5).all()
                    assert saver.get_cpu_backup(lost) is None
                    assert is_all(outside, 40)
                    saver.resume("default")
                    assert is_all(kept, 10) and (kept.data_ptr(), lost.data_ptr()) == where
                    assert (number.cpu() == 1.5).all()
                    lost.copy_(kept.repeat(2))
                    saver.resume()
                    saver.resume()
                    assert is_all(weights, 30)
                    fails(AssertionError, lambda: setattr(saver, "hook_mode", "torch"))
                    with saver.region("weights", enable_cpu_backup=True):
                        more = filled(50)
                    saver.pause("weights"); saver.resume("weights")
                    assert is_all(more, 50) and is_all(weights, 30)
                    """)

    def test_disable_and_nested_regions(self):
        for mode, enable in (("torch", ""), ("preload", PRELOAD)):
            with self.subTest(mode=mode):
                self.run_code(f"""
                    {enable}
                    saver.hook_mode = {mode!r}
                    with saver.region("a", enable_cpu_backup=True):
                        first = filled(1)
                        with saver.region("b", enable_cpu_backup=True):
                            second = filled(2)
                        with saver.disable():
                            third = filled(3)
                        fourth = filled(4)
                    saver.pause("b")
                    assert is_all(first, 1) and is_all(third, 3) and is_all(fourth, 4)
                    saver.pause()
                    assert is_all(third, 3)
                    saver.resume()
                    for tensor, value in ((first, 1), (second, 2), (third, 3), (fourth, 4)):
                        assert is_all(tensor, value)
                    # A thread has no region of another thread.
                    def other():
                        global fifth
                        fifth = filled(5)
                    with saver.region("a", enable_cpu_backup=True):
                        thread = threading.Thread(target=other)
                        thread.start(); thread.join()
                    saver.pause()
                    assert is_all(fifth, 5)
                    saver.resume()
                    """)

    def test_cuda_graph(self):
        self.run_code(PRELOAD + """
saver.hook_mode = "preload"
with saver.region("input", enable_cpu_backup=True):
    given = filled(1)
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph"):
    made = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    made.copy_(given)
graph.replay()
assert is_all(made, 1)
before = free()
saver.pause("graph")
assert free() > before and is_all(given, 1)
saver.resume("graph")
given.copy_(torch.full((4 * MIB,), 7, dtype=torch.uint8))
graph.replay()
assert is_all(made, 7)
""")

    def test_disk_backup(self):
        self.run_code("""
            import tempfile
            fails(hetmem.HetmemError, lambda: saver.region(
                enable_disk_backup=True).__enter__(), "set_disk_backup_dir()")
            with tempfile.TemporaryDirectory(dir=os.environ["DISK"]) as folder:
                saver.set_disk_backup_dir(folder + "/made")
                with saver.region("file", enable_disk_backup=True):
                    tensor = filled(9)
                saver.pause("file")
                assert (saver.get_cpu_backup(tensor) == 9).all()
                saver.resume("file")
                assert is_all(tensor, 9)
            """, DISK=full.CACHE)

    def test_bad_input(self):
        self.run_code("""
            enter = lambda **options: saver.region(**options).__enter__()
            fails(ValueError, lambda: enter(cpu_backup_backend="pinned"), "enable_cpu_backup=True")
            fails(ValueError, lambda: enter(enable_cpu_backup=True, cpu_backup_backend="x"), '"mmap"')
            fails(AssertionError, lambda: enter(enable_cpu_backup=True, enable_disk_backup=True))
            for tag in ("", 'a"b'): fails(ValueError, lambda: enter(tag=tag), "tag=")
            fails(ValueError, lambda: setattr(saver, "hook_mode", "other"), '"preload"')
            fails(NotImplementedError, lambda: setattr(saver, "memory_margin_bytes", 1), "max=")
            fails(NotImplementedError, lambda: saver.memory_margin_bytes)
            saver.retain_cpu_backup = True
            assert saver.retain_cpu_backup is True
            with saver.region("a", enable_cpu_backup=True, cpu_backup_backend="mmap"):
                tensor = filled(1)
            assert saver._impl._pools[("a", True, None, 0)].resource.spec.endswith("park=keep)")
            fails(hetmem.HetmemError, lambda: setattr(saver, "retain_cpu_backup", False), "before")
            fails(AssertionError, lambda: saver.get_cpu_backup(tensor[::2]))
            fails(AssertionError, lambda: saver.get_cpu_backup(tensor.cpu()))
            fails(AssertionError, lambda: saver.cuda_graph(None).__enter__(), "preload")
            saver.pause("none"); saver.resume("none")
            saver.pause("a")
            error = fails(hetmem.HetmemError, lambda: enter(tag="a", enable_cpu_backup=True), "resume")
            assert error.errno == errno.EBUSY
            saver.resume("a")
            assert is_all(tensor, 1)
            """)
        # After the first use of CUDA the allocator cannot change.
        self.run_code("""
            saver.hook_mode = "preload"
            torch.empty(1, device="cuda")
            error = fails(hetmem.HetmemError, lambda: saver.region().__enter__(), "initialized CUDA")
            assert error.errno == errno.EBUSY
            """)

    def test_resume_without_memory(self):
        """It is RuntimeError, and all stays paused; with memory it works."""
        self.run_code("""
            with saver.region("a", enable_cpu_backup=True):
                first = filled(1, 20 * MIB)
            with saver.region("b", enable_cpu_backup=True):
                second = filled(2, 100 * MIB)
            saver.pause()
            taken = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
            error = fails(RuntimeError, saver.resume, "out of memory")
            assert isinstance(error, torch.OutOfMemoryError)
            assert (saver.get_cpu_backup(first) == 1).all()
            assert (saver.get_cpu_backup(second) == 2).all()
            del taken
            torch.cuda.empty_cache()
            saver.resume()
            assert is_all(first, 1) and is_all(second, 2)
            """)

    def test_fork_while_paused(self):
        self.run_code("""
            with saver.region("a", enable_cpu_backup=True):
                tensor = filled(1)
            saver.pause()
            pid = os.fork()
            if not pid:
                fails(hetmem.HetmemError, saver.resume)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            saver.resume()
            assert is_all(tensor, 1)
            """)


class CuMem(Case):
    def test_interface(self):
        self.run_code("""
            allocator = CuMemAllocator.get_instance()
            assert allocator is CuMemAllocator.get_instance() is CuMemAllocator.instance
            assert allocator.default_tag == "default" and allocator.get_current_usage() == 0
            x = filled(1)
            with allocator.use_memory_pool():
                y, z = filled(2), filled(3)
            with allocator.use_memory_pool(tag="kv"):
                cache = filled(4, 40 * MIB)
            used = allocator.get_current_usage()
            assert 48 * MIB <= used <= 120 * MIB
            before = free()
            allocator.sleep()
            assert free() >= before + 48 * MIB and allocator.get_current_usage() == used
            assert is_all(x, 1)
            allocator.wake_up(["default"])
            assert is_all(y, 2) and is_all(z, 3)
            assert free() >= before + 40 * MIB
            allocator.wake_up(tags=["kv"])
            assert cache.cpu().numel() == 40 * MIB
            for tags in (("default", "kv"), ("kv",), "kv"):
                cache.copy_(torch.full((40 * MIB,), 5, dtype=torch.uint8))
                allocator.sleep(offload_tags=tags)
                allocator.wake_up()
                assert is_all(cache, 5)
            allocator.sleep(())
            allocator.wake_up()
            fails(AssertionError, lambda: allocator.sleep(["kv"]))
            fails(AssertionError, lambda: allocator.use_memory_pool(3).__enter__())
            """)

    def test_without_memory(self):
        """What vLLM's test_python_error expects."""
        self.run_code("""
            allocator = CuMemAllocator.get_instance()
            total = torch.cuda.mem_get_info()[1]
            with allocator.use_memory_pool():
                x = torch.empty(int(total * 0.7), dtype=torch.uint8, device="cuda")
            allocator.sleep()
            y = torch.empty(int(total * 0.7), dtype=torch.uint8, device="cuda")
            fails(RuntimeError, allocator.wake_up)
            del y
            torch.cuda.empty_cache()
            allocator.wake_up()
            """)

    def test_graph(self):
        """What vLLM's test_cumem_with_cudagraph does, by copies."""
        self.run_code("""
            allocator = CuMemAllocator.get_instance()
            with allocator.use_memory_pool():
                weight = filled(6)
            with allocator.use_memory_pool(tag="discard"):
                cache = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
            y = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                cache.copy_(weight)
                y.copy_(cache)
            before = free()
            allocator.sleep()
            assert free() > before
            allocator.wake_up()
            graph.replay()
            torch.cuda.synchronize()
            assert is_all(cache, 6) and is_all(y, 6)
            """)

    def test_with_enable(self):
        self.run_code(PRELOAD + """
error = fails(hetmem.HetmemError, lambda: CuMemAllocator.get_instance().use_memory_pool().__enter__(),
              "without enable()")
assert error.errno == errno.EOPNOTSUPP
""")

    def test_install(self):
        """vLLM's module gets the class."""
        self.run_code("""
            import types
            for name in ("vllm", "vllm.device_allocator", "vllm.device_allocator.cumem"):
                sys.modules[name] = types.ModuleType(name)
            hetmem.compat.install("vllm")
            from vllm.device_allocator.cumem import CuMemAllocator as taken, cumem_available
            assert taken is CuMemAllocator and cumem_available
            """)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
