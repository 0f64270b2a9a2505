# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Programs and pages that need PyTorch and kernels: over the soft driver, where each operation
of a device runs on the CPU (soft_torch/). The environment is that of test_torch_full.py."""

import json
import os
import re
import subprocess
import sys
import tempfile

import tap
import test_doc
import test_torch_full as full

GPU = os.path.join(tap.TOP, "selftests", "gpu")
SOFT = os.path.join(tap.TOP, "selftests", "python", "soft_torch")


def run(*command, folder=None, **environment):
    base = full.full_environment()
    path = os.pathsep.join([SOFT, base["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, **base, "PYTHONPATH": path, **environment})


class Programs(tap.Case):
    def program(self, name, *options, **environment):
        """What a program of selftests/gpu reports."""
        result = run(os.path.join(GPU, name), *options, **environment)
        self.assertEqual(result.stderr, "")
        found = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if found["good"] else 1)
        return found

    def test_sleep(self):
        made = self.program(
            "torch_sleep", "--size=4M", "--rounds=2", "--limit=4M", "--batch=32", "--width=64",
            "--layers=3", "--steps=5", "--attempts=2")
        self.assertTrue(made["good"], made)
        self.assertEqual(len(made["rows"]), 6)
        for mode in ("pool", "plain", "full"):
            row = made["rows"][f"sleep-{mode}"]
            self.assertEqual([turn["equal"] for turn in row["rows"]], [True, True])
            self.assertGreaterEqual(min(turn["freed"] for turn in row["rows"]), 4 << 20)
            self.assertGreater(row["wake_ms"], 0)
        for mode, kind in (("plain", "RuntimeError"), ("full", "OutOfMemoryError")):
            row = made["rows"][f"train-{mode}"]
            self.assertEqual([turn["type"] for turn in row["attempts"]], [kind, kind])
            self.assertTrue(row["losses_equal"])

    def test_sleep_finds_wrong_contents(self):
        """It fails where a sleep loses the contents, or gives no memory back."""
        for wrong in ("sleep(tag, keep=False)", "None"):
            with tempfile.TemporaryDirectory() as folder:
                self.broken(folder, wrong)
                made = self.program("torch_sleep", "--size=4M", "--rounds=1",
                                    "--only=sleep-pool", PYTHONPATH=os.pathsep.join(
                                        [folder, SOFT, full.full_environment()["PYTHONPATH"]]))
            self.assertFalse(made["good"])

    def broken(self, folder, wrong):
        """A sitecustomize.py whose hetmem.torch.sleep() does something else."""
        with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(f"""
import runpy
runpy.run_path({SOFT!r} + "/sitecustomize.py")
import os, sys
sys.path.insert(0, os.path.join({tap.TOP!r}, "tools", "python"))
import hetmem.torch as ht
sleep = ht.sleep
ht.sleep = lambda tag=None, keep=True: {wrong}
""")

    def test_sleep_options(self):
        for options, text in ((["--size=lots"], "no size"), (["--rounds=0"], "not above 0"),
                              (["--only=sleep-fast"], "there are sleep-pool")):
            result = run(os.path.join(GPU, "torch_sleep"), *options)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(text, result.stderr)
        result = run(os.path.join(GPU, "torch_sleep"), "--help")
        self.assertIn("--limit", result.stdout)

    def test_serve(self):
        tiny = ("--layers=2", "--width=32", "--heads=4", "--words=100", "--batch=2",
                "--prompt=6", "--new=6")
        made = self.program("torch_serve", *tiny)
        self.assertTrue(made["good"], made)
        self.assertEqual(sorted(made["rows"]), ["kept", "rebuilt", "reloaded"])
        for row in made["rows"].values():
            self.assertTrue(row["equal"] and row["good"])
            self.assertEqual(row["asleep"], 0)
        result = run(os.path.join(GPU, "torch_serve"), "--width=30", "--heads=4")
        self.assertEqual(result.returncode, 2)
        self.assertIn("does not divide", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            self.broken(folder, "sleep(tag, keep=False)")
            made = self.program("torch_serve", *tiny, PYTHONPATH=os.pathsep.join(
                [folder, SOFT, full.full_environment()["PYTHONPATH"]]))
        self.assertEqual((made["good"], made["rows"]["kept"]["equal"]), (False, False))

    def test_ddp(self):
        """Two devices of the soft driver, gradients by gloo."""
        tiny = ("--backend=gloo", "--steps=2", "--warm-up=1", "--layers=1", "--width=32",
                "--heads=2", "--words=50", "--longest=8", "--batch=2", "--sizes", "4096", "300000")
        made = self.program("torch_ddp", *tiny, HETMEM_SOFT_DEVICES="2")
        self.assertTrue(made["good"], made)
        self.assertEqual([row["mode"] for row in made["rows"]], ["native", "plain", "full"])
        for row in made["rows"]:
            self.assertEqual((row["steps"], row["losses_differ"]), (3, 0))
            self.assertTrue(row["parameters_equal"])
            for copies in ("copies_peers", "copies"):
                if copies in row:
                    self.assertEqual(row[copies]["wrong"], [])
        self.assertEqual(
            [(row[copies]["made"], row[copies]["refused"])
             for row in made["rows"] for copies in ("copies_peers", "copies") if copies in row],
            # soft_torch copies without a kernel, so full mode refuses nothing.
            [(20, 0), (20, 0), (2, 2), (20, 0), (20, 0)])

    def test_ddp_finds_what_differs(self):
        tiny = ("--backend=gloo", "--steps=1", "--warm-up=1", "--layers=1", "--width=32", "--heads=2",
                "--words=50", "--longest=8", "--batch=2", "--sizes", "4096", "--modes", "native", "plain")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
                file.write(f"""
import runpy
runpy.run_path({SOFT!r} + "/sitecustomize.py")
import sys, torch
if "plain" in sys.argv and "train" in sys.argv:
    right = torch.nn.functional.cross_entropy
    torch.nn.functional.cross_entropy = lambda *given: 2 * right(*given)
if "plain" in sys.argv and "copies" in sys.argv:
    clone = torch.Tensor.clone
    torch.Tensor.clone = lambda tensor: clone(tensor) + 1
""")
            made = self.program(
                "torch_ddp", *tiny, HETMEM_SOFT_DEVICES="2", PYTHONPATH=os.pathsep.join(
                    [folder, SOFT, full.full_environment()["PYTHONPATH"]]))
        self.assertFalse(made["good"])
        native, plain = made["rows"]
        self.assertTrue(native["good"], made)
        self.assertEqual(plain["losses_differ"], 4)
        self.assertEqual(len(plain["copies_peers"]["wrong"]), 2)

    def test_ddp_options(self):
        result = run(os.path.join(GPU, "torch_ddp"), HETMEM_SOFT_DEVICES="1")
        self.assertEqual((result.returncode, result.stdout), (77, ""))
        self.assertIn("needs 2 devices; there are 1", result.stderr)
        for options, text in ((["--ranks=1"], "two at least"), (["--width=30", "--heads=4"], "divide"),
                              (["--modes", "full"], "native is what"), (["--steps=0"], "not above 0")):
            result = run(os.path.join(GPU, "torch_ddp"), *options)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(text, result.stderr)

    def test_own(self):
        """It finds what differs, and goes on after a test that ends its process."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "test_some.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write("""
import os, signal, unittest, torch
NATIVE = torch.cuda.memory.get_allocator_backend() == "native"
class Some(unittest.TestCase):
    def test_bad(self): self.fail()
    def test_dies(self): NATIVE or os._exit(3)
    def test_differs(self): self.assertTrue(NATIVE, "no segments")
    def test_good(self): print("text"); torch.empty(100, device="cuda")
    def test_hangs(self): NATIVE or signal.pause()
    @unittest.skip("not here")
    def test_skipped(self): pass
""")
            made = self.program("torch_own", "--limit=60", f"--log={folder}/log", path)
            row = made["files"]["test_some.py"]
            self.assertEqual((made["good"], row["good"]), (False, False))
            self.assertEqual((row["tests"], row["native"], row["full"]), (6, 4, 1))
            self.assertEqual(row["natively"], {"failed": 1, "passed": 4, "skipped": 1})
            self.assertEqual({name: why[0] for name, why in row["failed"].items()}, {
                "Some.test_dies": "died", "Some.test_differs": "failed",
                "Some.test_hangs": "died"})
            self.assertIn("exit status 3", row["failed"]["Some.test_dies"][1])
            self.assertIn("no segments", row["failed"]["Some.test_differs"][1])
            # What differs runs once more.
            with open(f"{folder}/log", encoding="utf-8") as file:
                self.assertEqual(len(file.readlines()), 2 * (6 + 3))
            made = self.program("torch_own", "--match=good|skipped", path)
            self.assertTrue(made["good"], made)
            result = run(os.path.join(GPU, "torch_own"), f"{folder}/none")
            self.assertEqual(result.returncode, 2)
            self.assertIn("no such file", result.stderr)
            with open(path, "w", encoding="utf-8") as file:
                file.write("import not_there\n")
            result = run(os.path.join(GPU, "torch_own"), path)
            self.assertEqual(result.returncode, 1)
            self.assertIn("not_there", result.stderr)


class Documented(tap.Case):
    def check_blocks(self, found, count):
        self.assertEqual(len(found), count)
        for code, expected in found:
            with self.subTest(code=code), tempfile.TemporaryDirectory() as folder:
                result = run("-c", code, folder=folder)
                self.assertEqual((result.stderr, result.returncode), ("", 0))
                self.assertEqual(result.stdout, expected)

    def test_python(self):
        """Blocks of python.md that test_doc.py has no PyTorch for."""
        self.check_blocks([(code, expected) for language, code, expected in test_doc.blocks()
                           if language == "python" and test_doc.UNIFIED.search(code)], 3)

    def test_models(self):
        with open(f"{tap.TOP}/Documentation/models.md", encoding="utf-8") as file:
            text = file.read()
        self.check_blocks(re.findall(
            r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
