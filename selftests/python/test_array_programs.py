# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""selftests/gpu/array_programs: NumPy's half, and that it finds what is wrong."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys

import hetmem.numpy
import numpy as np
import tap

SCRIPT = os.path.join(tap.TOP, "selftests", "gpu", "array_programs")


def load():
    loader = importlib.machinery.SourceFileLoader("array_programs", SCRIPT)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("array_programs", loader))
    loader.exec_module(module)
    return module


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)


class ArrayPrograms(tap.Case):
    def test_all_equal(self):
        result = run("--numpy", "--size", "5000", "--rounds", "1", "--json")
        self.assertEqual((result.stderr, result.returncode), ("", 0))
        found = json.loads(result.stdout)
        self.assertGreaterEqual(len(found["programs"]), 10)
        self.assertEqual({row["numpy"]["result"] for row in found["programs"]}, {"equal"})
        self.assertGreater(found["numpy_peak"], 5000)

    def test_table(self):
        result = run("--numpy", "--size", "5000", "--rounds", "1", "fft", "sort")
        self.assertEqual((result.stderr, result.returncode), ("", 0))
        lines = result.stdout.splitlines()
        self.assertEqual([line.split()[:3] for line in lines],
                         [[name, "numpy", "equal"] for name in ("fft", "sort")])

    def test_bad_arguments(self):
        for arguments, text in ((["--size", "3"], "--size is 64"), (["none"], "no program none"),
                                (["--rounds", "0"], "--rounds 1"), (["--x"], "usage:")):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(text, result.stderr)
            self.assertEqual(result.stdout, "")

    def test_verdicts(self):
        """What differs with memory of hetmem is found, and only it."""
        script = load()
        options = argparse.Namespace(size=5000, rounds=1)
        calls = [0]

        def verdict(program):
            row, _ = script.compare(program, np, options, lambda: hetmem.numpy.using(least=1),
                                    lambda: None)
            return row["result"]

        def unsteady(_, at):
            calls[0] += 1
            return at.real() * (1 + calls[0] * 1e-12)

        self.assertEqual(verdict(lambda _, at: at.real()), "equal")
        self.assertEqual(verdict(lambda _, at: at.real() + hetmem.numpy.enabled() * 1e-12),
                         "DIFFERS")
        self.assertEqual(verdict(lambda _, at: -at.real(1) * 0 if hetmem.numpy.enabled()
                                 else np.zeros(1)), "DIFFERS")
        self.assertEqual(verdict(lambda _, at: at.real()[hetmem.numpy.enabled():]), "DIFFERS")
        self.assertEqual(verdict(unsteady), "close")
        self.assertEqual(verdict(
            lambda _, at: unsteady(_, at) + hetmem.numpy.enabled()), "DIFFERS")

    def test_exit_status(self):
        script = load()
        script.PROGRAMS = (lambda xp, at: xp.zeros(5000) + hetmem.numpy.enabled(),)
        script.PROGRAMS[0].__name__ = "wrong"
        sys.argv, before = ["array_programs", "--numpy", "--rounds", "1"], sys.argv
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                self.assertEqual(script.main(), 1)
        finally:
            sys.argv = before
        self.assertIn("wrong", output.getvalue())
        self.assertIn("DIFFERS", output.getvalue())


if __name__ == "__main__":
    tap.main()
