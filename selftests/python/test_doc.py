# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Every block of the package's pages runs, and prints what the page says. Those that need
more than the fakes run where that is: full mode in test_torch_full.py, unified tensors in
test_torch_programs.py, KVCache in test_torch_cache.py, asarray() and CuPy's sparse() in
test_asarray.py, Numba in test_numba.py, RMM in test_rmm.py, Dask, Ray and the commands of
questions.md in test_questions.py."""

import os
import pickle
import re
import sys
import tempfile

import framework
import tap
import test_trace


PAGES = ("python", "numpy", "cupy", "numba", "questions")
FULL, NUMBA, RMM = 'mode="full"', "hetmem.numba", "import rmm"
DASK, RAY = "from dask", "import ray"
CACHE = "hetmem.torch.KVCache("
UNIFIED = re.compile(r"hetmem\.torch\.(unified|to_unified|move)\(")
ASARRAY = "hetmem.cupy.asarray("
SPARSE = "hetmem.cupy.sparse("


def blocks(page="python"):
    """The language, the text, and the text block that follows."""
    with open(f"{tap.TOP}/Documentation/{page}.md", encoding="utf-8") as file:
        text = file.read()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for i, (language, code) in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else ("", "")
        yield language, code, after[1] if after[0] == "text" else ""


def python(page, marker=None):
    """The Python blocks with @marker, None: with none, and what they print."""
    for language, code, expected in blocks(page):
        markers = [text for text in (FULL, NUMBA, RMM, ASARRAY, SPARSE, DASK, RAY, CACHE) if text in code]
        if marker is None and UNIFIED.search(code):
            continue
        if language == "python" and (markers[:1] or [None])[0] == marker:
            yield code, expected


class Blocks(tap.Case):
    def test_languages(self):
        for page in PAGES:
            self.assertLessEqual({language for language, *_ in blocks(page)},
                                 {"sh", "python", "text"})

    def test_python(self):
        count = 0
        for code, expected in [block for page in PAGES for block in python(page)]:
            with self.subTest(code=code), tempfile.TemporaryDirectory() as folder:
                result = framework.run([sys.executable, "-c", code], folder)
                self.assertEqual((result.stderr, result.returncode), ("", 0))
                self.assertEqual(result.stdout, expected)
            count += 1
        self.assertGreater(count, 7)

    def test_shell(self):
        with open(f"{tap.TOP}/selftests/t/python.t", encoding="utf-8") as file:
            python_t = file.read()
        lines, after = [code.splitlines() for language, code, _ in blocks() if language == "sh"]
        self.assertEqual((len(lines), len(after)), (3, 2))
        # python.t installs it.
        self.assertIn(lines[0], python_t)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "script.py"), "w", encoding="utf-8") as file:
                file.write("import torch; torch.empty(10); print('ran')\n")
            for line in lines[1:]:
                words = line.split()
                self.assertEqual(words[0], "python")
                result = framework.run([sys.executable, *words[1:]], folder)
                self.assertIn(result.returncode, (0, 1) if "doctor --require" in line else (0,))
                self.assertEqual(result.stderr, "")
        self.assertEqual(result.stdout, "ran\n")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "snapshot.pickle"), "wb") as file:
                pickle.dump(test_trace.snapshot(), file)
            for line in after:
                # The package has the command hetmem.
                words = line.replace("hetmem replay", "python -m hetmem replay").split()
                result = framework.run([sys.executable, *words[1:]], folder)
                self.assertEqual((result.stderr, result.returncode), ("", 0))
        self.assertIn("trace device-pool", result.stdout)


if __name__ == "__main__":
    tap.main()
