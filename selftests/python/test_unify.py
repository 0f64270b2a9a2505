# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.unify() with NumPy, and CuPy played by fakes/cupy.py."""

import framework
import tap


class Unify(framework.Case):
    imports = """
import numpy as np, cupy, hetmem.numpy as hn, hetmem.cupy as hc
def nothing_enabled():
    return not hn.enabled() and not hc.enabled() \\
        and cupy.cuda.get_allocator() is before and threading.Thread.start is start
before, start = cupy.cuda.get_allocator(), threading.Thread.start
"""

    def test_both(self):
        self.run_code("""
            made = hetmem.unify()
            assert made == {"numpy": True, "cupy": True}
            assert hn.enabled() and hc.enabled()
            assert hc.resource().spec == "unified" == os.environ["HETMEM_RESOURCE"]
            array, small, other = np.ones(MIB), np.ones(10), cupy.empty(MIB)
            assert hn._resources["unified"].stats().live == 1
            assert hc.resource().stats().live == 1 and hc.resource().access().host
            made.undo()
            assert nothing_enabled()
            made.undo()
            # Arrays outlive it.
            assert array.sum() == MIB and hc.resource().stats().live == 1
            del array, other
            assert hn._resources["unified"].stats().live == 0 == hc.resource().stats().live
            assert hetmem.unify("unified") == made
            """)

    def test_context(self):
        self.run_code("""
            with hetmem.unify("unified(over=managed)", least=100) as made:
                assert made == {"numpy": True, "cupy": True} and hn.enabled() and hc.enabled()
                array = np.ones(100)
                assert hn._resources["unified(over=managed)"].stats().live == 1
                run = []
                thread = threading.Thread(target=lambda: run.append(hn.enabled()))
                thread.start(); thread.join()
                assert run == [True]
            assert nothing_enabled()
            def body():
                with hetmem.unify("unified(over=managed)", threads=False):
                    assert threading.Thread.start is start
                    raise KeyError("body")
            fails(KeyError, body, "body")
            assert nothing_enabled()
            # What the block itself disabled stays so.
            with hetmem.unify("unified(over=managed)"): hn.disable(); hc.disable()
            assert nothing_enabled()
            """)

    def test_not_installed(self):
        self.run_code("""
            sys.modules["cupy"] = None
            with hetmem.unify() as made:
                assert made == {"numpy": True, "cupy": False} and hn.enabled()
            assert nothing_enabled()
            # Nor does one that is missing need memory for devices.
            with hetmem.unify("pool(host)"): pass
            sys.modules["numpy"] = None
            assert hetmem.unify() == {"numpy": False, "cupy": False}
            assert nothing_enabled()
            """)
        self.run_code("""
            sys.modules["numpy"] = None
            with hetmem.unify() as made:
                assert made == {"numpy": False, "cupy": True} and hc.enabled()
            assert not hc.enabled()
            """)

    def test_broken(self):
        """One that is there and lacks something is an error, and nothing is enabled."""
        self.run_code("""
            import importlib.abc
            class Finder(importlib.abc.MetaPathFinder):
                def find_spec(self, name, *rest):
                    if name == "cupy": import no_such_module
            sys.meta_path.insert(0, Finder())
            del sys.modules["cupy"]
            fails(ModuleNotFoundError, hetmem.unify, "no_such_module")
            sys.modules["cupy"] = cupy
            assert nothing_enabled()
            """)

    def test_failures_are_undone(self):
        self.run_code("""
            fails(hetmem.HetmemError, lambda: hetmem.unify("pool(vm)"), "vm")
            assert nothing_enabled() and "HETMEM_RESOURCE" not in os.environ
            error = fails(hetmem.HetmemError, lambda: hetmem.unify("pool(host)"), "no device")
            assert error.errno == errno.EINVAL
            assert nothing_enabled() and "HETMEM_RESOURCE" not in os.environ
            # The CPU cannot use it.
            fails(hetmem.HetmemError, lambda: hetmem.unify("device-pool"))
            assert nothing_enabled() and "HETMEM_RESOURCE" not in os.environ
            # CuPy's part fails, after NumPy's.
            enable, seen = hc.enable, []
            def failing(spec): seen.append(hn.enabled()); raise OSError("cupy")
            hc.enable = failing
            fails(OSError, hetmem.unify, "cupy")
            hc.enable = enable
            assert seen == [True] and nothing_enabled()
            # The handler before comes back, not NumPy's own.
            with hn.using("pool(host)", least=1) as pool:
                fails(hetmem.HetmemError, hetmem.unify, "enabled")
                assert hn.enabled() and not hc.enabled()
                array = np.ones(10)
                assert pool.stats().live == 1
            # Another spec is that of the process.
            hc.enable("device-pool")
            hc.disable()
            error = fails(hetmem.HetmemError, hetmem.unify, "uses device-pool")
            assert error.errno == errno.EBUSY and nothing_enabled()
            """)

    def test_parts_are_not_loaded_before(self):
        self.silent("""
            import hetmem, sys
            assert not {"hetmem.numpy", "hetmem.cupy", "numpy", "cupy"} & set(sys.modules)
            """)

    def test_one_enabled_before(self):
        self.run_code("""
            hc.enable("unified")
            error = fails(hetmem.HetmemError, hetmem.unify, "hetmem.cupy is enabled")
            assert error.errno == errno.EALREADY and hc.enabled() and not hn.enabled()
            """)

    def test_another_handler(self):
        """One that is not of the package is put back."""
        self.run_code("""
            with hn.using("pool(host)", least=1): handler = hn._numpy().get()
            address = hn._numpy().handler(handler)
            hn._set(handler)
            hn._handlers.discard(address)
            with hetmem.unify(): assert hn._numpy().handler(hn._numpy().get()) != address
            assert hn._numpy().handler(hn._numpy().get()) == address
            """)


if __name__ == "__main__":
    tap.main()
