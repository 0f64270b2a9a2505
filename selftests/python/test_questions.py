# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The blocks of questions.md that start other programs: PyTorch from a shell, Dask with CuPy,
Ray with PyTorch. All are the real ones, over the soft driver.

The environment is that of test_torch_full.py, and CUPY_SITE, DASK_SITE, RAY_SITE: folders with
these packages.
"""

import os
import subprocess
import sys
import tempfile

import tap
import test_doc
import test_torch_full as full
import test_torch_programs
from hetmem import _library

TRAIN = """
import torch

model = torch.nn.Linear(256, 256).cuda()
for rows in (4000, 1000, 6000, 2000):
    model(torch.ones(rows, 256, device="cuda")).square().mean().backward()
print("trained")
"""
PROGRAMS = {
    "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    "hetmem": f'#!/bin/sh\nunset LD_PRELOAD LD_LIBRARY_PATH\nexec {_library.part("hetmem")} "$@"\n',
}
# In each process that Dask starts.
CUPY = f"""
import sys
sys.path.insert(0, {os.path.join(tap.TOP, "selftests", "python")!r})
sys.path.append({os.environ["CUPY_SITE"]!r})
import soft_cupy
"""


def path(*folders):
    return os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])


def torch(*folders):
    base = full.full_environment()
    return {**base, "PYTHONPATH": os.pathsep.join([test_torch_programs.SOFT, base["PYTHONPATH"], *folders])}


class Questions(tap.Case):
    def only(self, marker):
        found = list(test_doc.python("questions", marker))
        self.assertEqual(len(found), 1)
        return found[0]

    def run_in(self, folder, command, environment):
        result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                check=False, env={**os.environ, "HOME": folder, **environment})
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def program(self, folder, code, environment):
        """A file: children of spawn read it again."""
        name = os.path.join(folder, "program.py")
        with open(name, "w", encoding="utf-8") as file:
            file.write(code)
        return self.run_in(folder, [sys.executable, name], environment).stdout

    def test_out_of_memory(self):
        found = [code for language, code, _ in test_doc.blocks("questions") if language == "sh"]
        self.assertEqual(len(found), 2)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**PROGRAMS, "train.py": TRAIN}.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(os.path.join(folder, name), 0o755)
            environment = {**torch(), "PATH": f"{folder}:{os.environ['PATH']}"}
            for code in found:
                result = self.run_in(folder, ["sh", "-e", "-c", code], environment)
                self.assertIn("trained\n", result.stdout)
                self.assertEqual(result.stderr, "")
            self.assertTrue({"train.csv", "train.html"} <= set(os.listdir(folder)))
            with open(os.path.join(folder, "train.csv"), encoding="utf-8") as file:
                self.assertGreater(sum(",allocate," in line for line in file), 10)
            moves = self.run_in(folder, ["hetmem", "replay", "--spill", "16G", "--max", "75%", "--movable", "1M",
                                         "--moves", "train.csv"], environment)
            self.assertRegex(moves.stdout, r"(?m)^ +\d+  host ")

    def test_dask(self):
        code, expected = self.only(test_doc.DASK)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
                file.write(CUPY)
            environment = {"PYTHONPATH": path(folder, os.environ["DASK_SITE"])}
            self.assertEqual(self.program(folder, code, environment), expected)

    def test_dask_by_environment(self):
        """HETMEM_TORCH reaches the workers, which spawn."""
        code, expected = self.only(test_doc.DASK)
        code = code.replace("import cupy\n    import hetmem.cupy", "import torch, hetmem.torch")
        code = code.replace("cupy.empty(1000)", 'torch.empty(1000, device="cuda")')
        code = code.replace("hetmem.cupy.resource(0).stats()", "hetmem.torch.stats(0)")
        code = code.replace("        client.register_worker_callbacks(begin)\n", "")
        self.assertNotIn("cupy.res", code)
        with tempfile.TemporaryDirectory() as folder:
            environment = {**torch(os.environ["DASK_SITE"]), "HETMEM_TORCH": "full"}
            self.assertEqual(self.program(folder, code, environment), expected)

    def test_ray(self):
        code, expected = self.only(test_doc.RAY)
        with tempfile.TemporaryDirectory() as folder:
            environment = {**torch(os.environ["RAY_SITE"]), "RAY_USAGE_STATS_ENABLED": "0"}
            self.assertEqual(self.program(folder, code, environment), expected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
