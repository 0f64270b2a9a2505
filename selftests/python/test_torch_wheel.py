# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Full mode with a companion that came in the wheel, and what happens if it does not fit.

WHEEL is a folder with the unpacked wheel. TORCH_SITE and STAND_INS are those of
test_torch_full. Each test has an interpreter of its own.
"""

import os
import shutil
import sys
import tempfile

import tap

WHEEL, SITE, STAND_INS = (os.environ[name] for name in ("WHEEL", "TORCH_SITE", "STAND_INS"))
COMPANION = "libhetmem-torch-2.11.so"
START = """
import os, sys
# The stand-ins lack what PyTorch never calls here.
sys.setdlopenflags(os.RTLD_LAZY)
import torch, hetmem, hetmem.torch as ht
sys.setdlopenflags(os.RTLD_NOW)
assert hetmem.__file__.startswith(os.environ["WHEEL"]), hetmem.__file__
def companions():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps
                if "hetmem-torch-2" in line or "/torch/2" in line}
def compiled():
    folder = os.environ["XDG_CACHE_HOME"] + "/hetmem/torch"
    names = os.listdir(folder) if os.path.exists(folder) else []
    return [name for name in names if name.endswith(".so")]
""" + tap.FAILS
NO_COMPILER = "/nonexistent"


class Wheel(tap.Case):
    def run_code(self, code, wheel=WHEEL, path=os.environ["PATH"]):
        with tempfile.TemporaryDirectory() as folder:
            # Without a site of its own: no other hetmem is found.
            self.silent(
                START + tap.textwrap.dedent(code),
                WHEEL=wheel, PATH=path, XDG_CACHE_HOME=folder, HETMEM_SOFT_CHECK="1",
                PYTHONPATH=os.pathsep.join([wheel, SITE]),
                LD_LIBRARY_PATH=f"{STAND_INS}:{wheel}/hetmem/lib",
                LD_PRELOAD=f"{STAND_INS}/libcudart.so.13")

    def changed(self, content):
        """A copy of the wheel with another companion."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        wheel = folder.name + "/wheel"
        shutil.copytree(WHEEL, wheel)
        with open(f"{wheel}/hetmem/lib/{COMPANION}", "wb") as file:
            file.write(content)
        return wheel

    def test_used_without_a_compiler(self):
        self.run_code("""
            assert ht.enable("pool(vmm,max=200M)") == "full", ht.reason()
            x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            assert torch.cuda.memory_allocated() == 1 << 20
            fails(torch.cuda.OutOfMemoryError, lambda: torch.empty(1 << 30, device="cuda"))
            assert companions() == {os.environ["WHEEL"] + "/hetmem/lib/libhetmem-torch-2.11.so"}
            assert not compiled()
            """, path=NO_COMPILER)

    def test_not_for_another_build(self):
        """A nightly build has the number of a release, and may have another ABI."""
        for version in ("2.11.0a0+git1234567", "2.11.0.dev20260101+cu130", "2.11.0rc1"):
            self.run_code(f"""
                torch.__version__ = {version!r}
                assert ht.enable() == "plain" and "install g++" in ht.reason(), ht.reason()
                assert not companions()
                """, path=NO_COMPILER)
        self.run_code("""
            torch.compiled_with_cxx11_abi = lambda: False
            assert ht.enable() == "plain" and not companions()
            """, path=NO_COMPILER)

    def test_another_minor(self):
        self.run_code("""
            torch.__version__ = "2.12.0+cu130"
            assert ht.enable() == "plain" and "install g++" in ht.reason(), ht.reason()
            assert not companions()
            """, path=NO_COMPILER)

    def test_one_that_cannot_be_loaded(self):
        """One is compiled; without a compiler both reasons are there."""
        for content in (b"", b"\x7fELF", b"no library"):
            wheel = self.changed(content)
            self.run_code("""
                error = fails(hetmem.HetmemError, lambda: ht.enable(mode="full"),
                              "libhetmem-torch-2.11.so cannot be loaded", "install g++")
                assert str(error).count("no full mode") == 1, error
                assert ht.enabled() is None
                """, wheel=wheel, path=NO_COMPILER)
        self.run_code("""
            assert ht.enable(mode="full") == "full" and len(compiled()) == 1
            """, wheel=wheel)

    def test_a_name_that_lies(self):
        """A library that is none, and companions for another PyTorch and of an old package."""
        source = 'const char *hetmem_full_version(void) { return "2.99.0"; }'
        for text, reason in ((source, "is for PyTorch 2.99.0, not 2.11.0"),
                             (source.replace("2.99", "2.11"), "is of an older version"),
                             ("int nothing;", "undefined symbol: hetmem_full_version")):
            with tempfile.TemporaryDirectory() as folder:
                with open(folder + "/x.c", "w", encoding="utf-8") as file:
                    file.write(text)
                assert not os.system(f"gcc -shared -fPIC -o {folder}/x.so {folder}/x.c")
                with open(folder + "/x.so", "rb") as file:
                    wheel = self.changed(file.read())
            self.run_code(f"""
                fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), {reason!r}, "install g++")
                """, wheel=wheel, path=NO_COMPILER)


if __name__ == "__main__":
    sys.exit(tap.main())
