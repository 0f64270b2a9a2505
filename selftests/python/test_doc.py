# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Every block of Documentation/python.md runs, and prints what the page says. Those that need
full mode of PyTorch run in test_torch_full.py."""

import os
import pickle
import re
import sys
import tempfile

import framework
import tap
import test_trace


FULL = 'mode="full"'


def blocks():
    """The language, the text, and the text block that follows."""
    with open(f"{tap.TOP}/Documentation/python.md", encoding="utf-8") as file:
        text = file.read()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for i, (language, code) in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else ("", "")
        yield language, code, after[1] if after[0] == "text" else ""


class Blocks(tap.Case):
    def test_languages(self):
        self.assertEqual({language for language, *_ in blocks()}, {"sh", "python", "text"})

    def test_python(self):
        count = 0
        for language, code, expected in blocks():
            if language != "python" or FULL in code:
                continue
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
                self.assertIn(result.returncode, (0, 1) if "doctor" in line else (0,))
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
