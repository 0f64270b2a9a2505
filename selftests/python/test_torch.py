# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch with what it uses of PyTorch played by fakes/torch.py, and the shim
that PyTorch loads, called from C++. Each test has an interpreter of its own: what
enable() does lasts as long as a process."""

import os
import subprocess
import sys
import tempfile
import textwrap

import framework
import tap
from hetmem import _library


class Torch(framework.Case):
    imports = "import torch, hetmem.torch as ht"

    def test_plain(self):
        self.run_code("""
            assert ht.enabled() is None
            assert ht.enable() == "plain" == ht.enabled()
            assert not torch.cuda.initialized
            tensor = torch.empty(MIB)
            stats = ht.resource().stats()
            assert (stats.live, stats.requested) == (1, MIB), stats
            assert tensor.ptr % 512 == 0
            del tensor
            assert ht.resource().stats().live == 0
            assert ht.resource().stats().reserved > 0
            torch.cuda.empty_cache()
            assert ht.resource().stats().reserved == 0
            assert sorted(torch.cuda.allocator.hooks) == [
                "base_alloc_fn", "begin_allocate_to_pool", "init_fn",
                "record_stream_fn", "reset_fn"]
            """)

    def test_modes(self):
        """The fake has no headers: there is plain mode, with a reason."""
        self.run_code("""
            assert ht.reason() is None
            error = fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), "no full mode")
            assert error.errno == errno.EOPNOTSUPP
            assert ht.enabled() is None and torch.cuda.allocator is None
            assert "HETMEM_RESOURCE" not in os.environ
            assert ht.enable() == "plain"
            assert ht.reason().startswith("no full mode: "), ht.reason()
            """)
        self.run_code("""
            assert ht.enable(mode="plain") == "plain" and "asked" in ht.reason()
            """)
        self.run_code("""
            torch.__version__ = "2.9.1+cu128"
            assert ht.enable() == "plain" and "2.11 or later" in ht.reason(), ht.reason()
            """)

    def test_stats_and_log(self):
        self.run_code("""
            import io, logging
            out = io.StringIO()
            logging.basicConfig(stream=out, format="%(levelname)s %(message)s")
            fails(hetmem.HetmemError, ht.stats, "enable()")
            assert ht.enable() == "plain"
            tensor = torch.empty(MIB)
            stats = ht.stats()
            assert stats == ht.resource().stats() and stats.requested == MIB, stats
            line = f"WARNING PyTorch allocates from hetmem, in plain mode: {ht.reason()}\\n"
            assert out.getvalue() == line, out.getvalue()
            """)
        self.run_code("""
            import io, logging
            out = io.StringIO()
            logging.basicConfig(stream=out, format="%(levelname)s %(message)s", level=logging.INFO)
            ht.enable(mode="plain")
            line = "INFO PyTorch allocates from hetmem, in plain mode\\n"
            assert out.getvalue() == line, out.getvalue()
            """)

    def test_spec(self):
        self.run_code("""
            ht.enable("stats(pool(vmm,max=64M))")
            assert os.environ["HETMEM_RESOURCE"] == "stats(pool(vmm,max=64M))"
            with ht.resource().counters() as counters:
                torch.empty(MIB)
            assert counters.bytes.total == MIB
            """)
        self.run_code("""
            ht.enable()
            tensors = []
            for torch.cuda.device in (0, 1): tensors.append(torch.empty(MIB))
            assert ht.resource(0).spec == "stats(device-pool)"
            assert ht.resource(0).access().devices == {0}
            assert ht.resource(1).access().devices == {1}
            assert ht.resource(1).stats().live == 1
            fails(hetmem.HetmemError, lambda: ht.resource(2), "no device 2")
            """, HETMEM_RESOURCE="stats(device-pool)", HETMEM_SOFT_DEVICES="2")

    def test_wrong_spec_changes_nothing(self):
        self.run_code("""
            for spec in ("pool(vm)", "stats(", "pool(vmm,max=lots)"):
                error = fails(hetmem.HetmemError, lambda: ht.enable(spec), "spec")
                assert error.errno == errno.EINVAL
            assert ht.enabled() is None and torch.cuda.allocator is None
            assert "HETMEM_RESOURCE" not in os.environ
            fails(ValueError, lambda: ht.enable(mode="fast"))
            ht.enable()
            """)
        self.run_code("""
            error = fails(RuntimeError, lambda: ht.enable("pool(vmm)"), "swap")
            assert ht.enabled() is None
            assert os.environ["HETMEM_RESOURCE"] == "device-pool"
            """, FAKE_TORCH_REFUSES="1", HETMEM_RESOURCE="device-pool")

    def test_no_device_is_opened(self):
        """A child of fork() can use CUDA after enable() in its parent."""
        self.run_code("""
            ht.enable("pool(vmm,max=90%)")
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                tensor = torch.empty(MIB)
                assert ht.resource().stats().live == 1
            """)

    def test_twice(self):
        self.run_code("""
            spec = "pool(vmm,max=64M)"
            assert ht.enable(spec) == "plain"
            torch.cuda.initialized = True
            # The same once more, also as the environment has it.
            for again in ((spec,), (), (None, "auto"), (spec, "plain")):
                assert ht.enable(*again) == "plain" == ht.enabled()
            for other in (("pool(vmm)",), (spec, "full"), ("device-pool", "plain")):
                error = fails(hetmem.HetmemError, lambda: ht.enable(*other),
                              "enabled already", "plain", spec)
                assert error.errno == errno.EALREADY
            os.environ["HETMEM_RESOURCE"] = "device-pool"
            fails(hetmem.HetmemError, ht.enable, "enabled already")
            """)

    def test_autoload(self):
        """What PyTorch calls at the end of its import."""
        call = """
            import hetmem_autoload
            hetmem_autoload.enable()
            """
        self.silent("import os, sys; before = set(sys.modules)" + call.replace(" " * 12, "") +
                    'assert set(sys.modules) - before == {"hetmem_autoload"}')
        self.run_code(call + """
            assert ht.enabled() is None and torch.cuda.allocator is None
            """, HETMEM_TORCH="")
        for mode in ("plain", "auto"):
            self.run_code(call + f"""
            assert ht.enabled() == "plain" == ht.enable(), ht.enabled()
            assert ht.reason().startswith({mode!r} == "plain" and "enable(" or "no full mode")
            assert ht.resource().spec == "pool(vmm,max=64M)"
            error = fails(hetmem.HetmemError, lambda: ht.enable("pool(vmm)"), "HETMEM_RESOURCE")
            assert error.errno == errno.EALREADY
            """, HETMEM_TORCH=mode, HETMEM_RESOURCE="pool(vmm,max=64M)")

    def test_autoload_fails(self):
        """A warning, and PyTorch has its own allocator."""
        for mode, spec, text in (("fast", "pool(vmm)", "full, plain, auto"),
                                 ("Full", "pool(vmm)", "is no mode"),
                                 ("full", "pool(vmm)", "no full mode"),
                                 ("plain", "pool(vm)", "no resource 'vm'")):
            code = f"""
            import contextlib, hetmem_autoload, io
            for action in ("always", "error"):
                with warnings.catch_warnings(record=True) as caught, \\
                        contextlib.redirect_stderr(io.StringIO()) as written:
                    warnings.simplefilter(action)
                    hetmem_autoload.enable()
                said = str(caught[0].message) if caught else written.getvalue()
                assert bool(caught) == (action == "always"), said
                for part in ("HETMEM_TORCH={mode}", {text!r}, "its own allocator"):
                    assert part in said, said
                assert said.count("\\n") == (action == "error"), said
            assert ht.enabled() is None and torch.cuda.allocator is None
            assert os.environ["HETMEM_RESOURCE"] == {spec!r}
            """
            self.run_code(code, HETMEM_TORCH=mode, HETMEM_RESOURCE=spec)

    def test_late(self):
        self.run_code("""
            torch.cuda.initialized = True
            error = fails(hetmem.HetmemError, ht.enable, "python -m hetmem.torch")
            assert error.errno == errno.EBUSY and ht.enabled() is None
            fails(hetmem.HetmemError, ht.resource, "call hetmem.torch.enable()")
            """)

    def test_without_cuda(self):
        self.run_code("""
            error = fails(hetmem.HetmemError, ht.enable, "built without CUDA")
            assert error.errno == errno.EOPNOTSUPP
            """, FAKE_TORCH_CUDA="")
        self.silent("""
            import hetmem.torch
            try: hetmem.torch.enable()
            except ImportError as error: print("no torch")
            """, "no torch\n")

    def test_benchmark_warns(self):
        self.run_code("""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ht.enable()
            assert "benchmark" in str(caught[0].message)
            assert "RuntimeWarning" == caught[0].category.__name__
            """, FAKE_TORCH_BENCHMARK="1")

    def test_sleep(self):
        self.run_code("""
            ht.enable("pool(vmm,tag=weights)")
            tensor = torch.empty(4 * MIB)
            ht.sleep("other")
            assert ht.resource().stats().reserved == 4 * MIB
            ht.sleep("weights")
            assert (ht.resource().stats().reserved, ht.resource().stats().parked) \\
                == (0, 4 * MIB)
            assert torch.cuda.synchronized == [0, 0]
            ht.wake()
            assert ht.resource().stats().reserved == 4 * MIB
            """)

    def test_spill(self):
        self.run_code("""
            assert ht.spill("100M", host=1 << 30, movable=2 * MIB) == "plain"
            assert not torch.cuda.initialized
            assert ht.resource().spec == \\
                "pool(vmm,max=100M,spill=1073741824,movable=2097152,launcher=single)"
            tensors = [torch.empty(20 * MIB) for _ in range(8)]
            stats = ht.resource().stats()
            assert stats.live == 8 and stats.spilled >= 60 * MIB, stats
            """)
        # Half of what the library says that the host has left.
        self.run_code("""
            from hetmem import _process
            left = _process.host_memory()
            assert 0 < left < 1 << 50
            _process.host_memory = lambda: (300 << 20) + 1
            ht.spill("60%", movable="16M", mode="plain")
            assert ht.resource().spec == \\
                "pool(vmm,max=60%,spill=157286400,movable=16M,launcher=single)"
            """)
        self.run_code("""
            ht.spill(host="64M")
            assert ht.resource().spec == \\
                "pool(vmm,spill=64M,movable=8388608,launcher=single)"
            """)

    def test_spill_block(self):
        self.run_code("""
            def spilled(device=0): return ht.resource(device).stats().spilled
            def reserved(device=0): return ht.resource(device).stats().reserved
            def limit(): return os.environ["HETMEM_RESOURCE"]
            with ht.spill("60M", "1G", "2M") as mode:
                assert mode == "plain" == ht.enabled() and ",max=60M," in limit()
                kept = [torch.empty(20 * MIB) for _ in range(4)]
                assert reserved() <= 60 * MIB and spilled() >= 20 * MIB
                with ht.spill("40M"):
                    more = torch.empty(20 * MIB)
                    assert reserved() <= 40 * MIB and spilled() >= 60 * MIB
                assert ",max=60M," in limit()
            assert ht.enabled() == "plain" and ",max=" not in limit(), limit()
            # Beyond the limit that was.
            more = [torch.empty(20 * MIB) for _ in range(3)]
            assert ht.resource().stats().live == 7 and reserved() > 60 * MIB
            for tensor in kept + more: ht.move_in(tensor)
            assert spilled() == 0 and reserved() >= 140 * MIB, ht.resource().stats()
            # The limit ends after an error, too, and on a device that comes later.
            try:
                with ht.spill("60M", movable="2M"): raise KeyError(1)
            except KeyError: pass
            cuda = torch.cuda
            cuda.device = 1
            other = [torch.empty(20 * MIB) for _ in range(5)]
            assert spilled(1) == 0
            with ht.spill("40M"): last = torch.empty(20 * MIB)
            assert reserved(1) <= 40 * MIB and spilled(1) >= 80 * MIB
            for bad in ({"host": "2G"}, {"movable": "4M"}, {"mode": "full"}):
                error = fails(hetmem.HetmemError, lambda: ht.spill("1G", **bad), *bad, "only limit=")
                assert error.errno == errno.EALREADY
            fails(ValueError, lambda: ht.spill("0"), "limit")
            assert ",max=" not in limit()
            """, HETMEM_SOFT_DEVICES="2")

    def test_spill_bad(self):
        """Refused before PyTorch is imported."""
        self.run_code("""
            sys.modules["torch"] = None
            for name in ("limit", "host", "movable"):
                for wrong in (0, -1, 1.5, True, "", "0%", "101%", "lots", "1G,tag=x", "8 X",
                              "1G)", "\u0661", 1 << 64, b"1"):
                    fails(ValueError, lambda: ht.spill(**{name: wrong}), name, "bytes")
            for name in ("host", "movable"):
                fails(ValueError, lambda: ht.spill(**{name: "60%"}), name)
            from hetmem import _process
            _process.host_memory = lambda: 0
            error = fails(hetmem.HetmemError, ht.spill, "with host=")
            assert error.errno == errno.ENOMEM
            assert ht.enabled() is None and "HETMEM_RESOURCE" not in os.environ
            """)
        self.run_code("""
            ht.enable()
            fails(hetmem.HetmemError, lambda: ht.spill(host="1G"), "enabled already")
            """)

    def test_move(self):
        self.run_code("""
            ht.spill("100M", "1G", 2 * MIB)
            def spilled(): return ht.resource().stats().spilled
            tensor, small = torch.empty(20 * MIB), torch.empty(MIB)
            ht.move_out(tensor)
            ht.move_out(tensor)
            assert spilled() == 20 * MIB
            ht.move_in(tensor)
            assert spilled() == 0
            ht.move_out(tensor, wait=False); ht.move_out(tensor)
            assert spilled() == 20 * MIB
            ht.move_in(tensor, wait=False); ht.move_in(tensor)
            assert spilled() == 0
            for call in (ht.move_out, ht.move_in, lambda small: ht.priority(small, 1)):
                error = fails(hetmem.HetmemError, lambda: call(small), "movable", "lower movable=")
                assert error.errno == errno.EBUSY
            # The lowest priority leaves first, whatever its age.
            first, second = torch.empty(20 * MIB), torch.empty(20 * MIB)
            ht.priority(tensor, 2); ht.priority(first, 1); ht.priority(second, -5)
            more = [torch.empty(20 * MIB) for _ in range(2)]
            before = spilled()
            assert before >= 20 * MIB
            ht.move_out(second)
            assert spilled() == before
            ht.move_out(tensor)
            assert spilled() == before + 20 * MIB
            for wrong in (1 << 31, -(1 << 31) - 1):
                fails(ValueError, lambda: ht.priority(tensor, wrong), "32 bits")
            """)

    def test_move_what_cannot(self):
        self.run_code("""
            fails(TypeError, lambda: ht.move_out([1]), "list is no tensor")
            class Other:
                device, get_device = "cpu", lambda self: 0
                def __init__(self, ptr, is_cuda=True): self.ptr, self.is_cuda = ptr, is_cuda
                def untyped_storage(self): return self
                def data_ptr(self): return self.ptr
            fails(ValueError, lambda: ht.move_out(Other(512, False)), "on cpu")
            fails(ValueError, lambda: ht.move_out(Other(0)), "no memory")
            fails(hetmem.HetmemError, lambda: ht.move_out(Other(512)), "enable()")
            ht.enable()
            error = fails(hetmem.HetmemError, lambda: ht.move_out(Other(512)), "not of hetmem")
            assert error.errno == errno.EINVAL
            """)
        self.run_code("""
            ht.enable("device")
            tensor = torch.empty(20 * MIB)
            error = fails(hetmem.HetmemError, lambda: ht.move_out(tensor), "spill() instead")
            assert error.errno == errno.EOPNOTSUPP
            """)

    def test_pool(self):
        self.run_code("""
            with torch.no_grad():
                weights = ht.pool(tag="weights")
                cache = ht.pool("stats(pool(vmm,tag=kv,max=64M))", "kv")
            with weights.use():
                kept = torch.empty(4 * MIB)
                with cache.use(): other = torch.empty(2 * MIB)
            assert torch.cuda.pools == []
            assert weights.resource.stats().requested == 4 * MIB
            assert cache.resource.stats().requested == 2 * MIB
            ht.sleep("kv", keep=False)
            assert weights.resource.stats().reserved >= 4 * MIB
            assert cache.resource.stats().reserved == 0
            ht.sleep("weights")
            assert (weights.resource.stats().parked, cache.resource.stats().parked) \\
                == (4 * MIB, 0)
            ht.wake("weights")
            assert weights.resource.stats().reserved >= 4 * MIB
            assert cache.resource.stats().reserved == 0
            ht.wake()
            # No memory is torch's own error.
            with cache.use():
                fails(torch.OutOfMemoryError, lambda: torch.empty(80 * MIB))
            fails(hetmem.HetmemError, lambda: ht.sleep("none"), "no pool has the tag")
            """)

    def test_pool_bad(self):
        self.run_code("""
            with torch.no_grad():
                error = fails(hetmem.HetmemError, lambda: ht.pool("pool(vm)"))
                fails(hetmem.HetmemError, lambda: ht.pool("pool(vmm)", "kv"), "no tag=")
                fails(hetmem.HetmemError, lambda: ht.pool("pool(host)"), "cannot use")
                fails(hetmem.HetmemError, lambda: ht.pool(device=3))
                for i in range(256): ht.pool("pool(vmm,max=16M)")
                error = fails(hetmem.HetmemError, lambda: ht.pool("pool(vmm)"), "256")
            assert error.errno == errno.ENOSPC
            """)
        self.run_code("""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ht.pool()
            assert "backward" in str(caught[0].message)
            """)
        self.run_code("""
            ht.enable()
            error = fails(hetmem.HetmemError, ht.pool, "without enable()")
            assert error.errno == errno.EOPNOTSUPP
            """)

    def test_no_snapshot(self):
        self.run_code("""
            for call in (ht.snapshot, ht.snapshot_at_oom):
                error = fails(hetmem.HetmemError, lambda: call("none.pickle"), "enable() before")
                assert error.errno == errno.EINVAL
            ht.enable()
            for call in (ht.snapshot, ht.snapshot_at_oom):
                error = fails(hetmem.HetmemError, lambda: call("none.pickle"), "plain mode",
                              ht.reason(), 'enable(mode="full")', "hetmem replay", "log(")
                assert error.errno == errno.EOPNOTSUPP
            """)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            ht.enable()
            sys.keep = [torch.empty(MIB) for _ in range(10)]
            tensor = torch.empty(10); tensor.cycle = tensor
            """)
        self.run_code("""
            with torch.no_grad(): pool = ht.pool()
            with pool.use(): sys.keep = [torch.empty(MIB) for _ in range(10)]
            """)

    def test_no_part(self):
        self.run_code("""
            from hetmem import _library; _library.SHIM = "libnone.so"
            fails(hetmem.HetmemError, ht.enable, "no libnone.so")
            assert "HETMEM_RESOURCE" not in os.environ
            """)


class Command(tap.Case):
    def run_script(self, script, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "script.py")
            for name, text in (("script.py", script), ("beside.py", "value = 7\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(textwrap.dedent(text))
            return framework.run(
                [sys.executable, "-m", "hetmem.torch",
                 *(path if part == "SCRIPT" else part for part in arguments)])

    def test_script(self):
        result = self.run_script(
            """
            import sys, beside, torch, hetmem.torch
            assert __name__ == "__main__"
            assert hetmem.torch.enabled() == "plain"
            tensor = torch.empty(1000)
            print(beside.value, sys.argv[1:], hetmem.torch.resource().stats().live,
                  hetmem.torch.resource().spec)
            sys.exit(3)
            """, "--spec", "pool(vmm,max=64M)", "SCRIPT", "--spec", "x", "-v")
        self.assertEqual((result.stdout, result.stderr, result.returncode),
                         ("7 ['--spec', 'x', '-v'] 1 pool(vmm,max=64M)\n", "", 3))

    def test_children(self):
        """They have the mode and the spec of the options, whatever the environment had."""
        os.environ["HETMEM_TORCH"] = "full"
        self.addCleanup(os.environ.pop, "HETMEM_TORCH")
        result = self.run_script(
            """
            import os, subprocess, sys
            code = "import os, torch, hetmem_autoload; hetmem_autoload.enable(); " \\
                "import hetmem.torch as ht; print(ht.enabled(), ht.resource().spec)"
            subprocess.run([sys.executable, "-c", code], check=True)
            """, "--spec", "pool(vmm,max=64M)", "SCRIPT")
        self.assertEqual((result.stdout, result.stderr), ("plain pool(vmm,max=64M)\n", ""))

    def test_wrong_spec(self):
        result = self.run_script("print('ran')", "--spec", "pool(vm)", "SCRIPT")
        self.assertEqual((result.stdout, result.returncode), ("", 1))
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("no resource 'vm'", result.stderr)

    def test_missing_script(self):
        result = self.run_script("", "missing.py", "-x")
        self.assertEqual((result.stdout, result.returncode), ("", 1))
        self.assertEqual(
            result.stderr, "python -m hetmem.torch: missing.py: No such file or directory\n")

    def test_help(self):
        result = self.run_script("", "--help")
        self.assertIn("usage: python -m hetmem.torch", result.stdout)


class Shim(tap.Case):
    def run_plain(self, count, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "plain")
            source = f"{tap.TOP}/selftests/python/plain.cc"
            subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-o", program, source],
                           check=True)
            result = subprocess.run(
                [program, _library.part("libhetmem-torch.so"), *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                env={**os.environ, **environment})
        # An exception is enough: nothing is written.
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn(f"1..{count}", result.stdout)
        self.assertNotIn("not ok", result.stdout)

    def test_exceptions(self):
        self.run_plain(7)

    def test_second_device(self):
        """A kernel of PyTorch would read memory that its device cannot use."""
        with tempfile.TemporaryDirectory() as folder:
            driver = os.path.join(folder, "libcuda.so.1")

            def driver_where(can):
                subprocess.run(
                    ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, "-x", "c", "-"],
                    text=True, check=True, input="int cuDeviceCanAccessPeer(int *can, int of, "
                    f"int peer) {{ *can = {can}; return 0; }}")

            def second(what, spec):
                self.run_plain(5, what, driver, HETMEM_SOFT_DEVICES="2", HETMEM_RESOURCE=spec)

            driver_where(1)
            for spec in ("device-pool", "pool(vmm)", "pool(vmm(peers=1/1))"):
                second("refused", spec)
            for spec in ("pool(vmm(peers=0/1))", "pool(managed)"):
                second("used", spec)
            # Without such access PyTorch asks the driver to copy.
            driver_where(0)
            second("used", "pool(vmm)")


if __name__ == "__main__":
    tap.main()
