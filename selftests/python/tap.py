# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Runs the unittest classes of a program and writes TAP.

With arguments only the tests whose name contains one of them; -NAME leaves out those that contain
NAME. child() runs code
in another interpreter, which has the package as this one has it, for 15 minutes at most.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADERS = os.path.join(TOP, "include")

# For code of a child: calls what has to fail, and returns the error.
FAILS = """
def fails(kind, call, *text):
    try: call()
    except kind as error:
        for part in text: assert part in str(error), str(error)
        return error
    raise AssertionError("no error")
"""


class Tap(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.failed = False

    def line(self, good: bool, test: unittest.TestCase, more: str = "") -> None:
        self.count += 1
        self.failed |= not good
        name = test.id().split(".", 1)[-1].replace("#", "")
        print(f"{'' if good else 'not '}ok {self.count} - {name}")
        for line in more.splitlines():
            print(f"# {line}")
        sys.stdout.flush()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.line(True, test)

    def addFailure(self, test, error):
        self.line(False, test, self._exc_info_to_string(error, test))

    def addError(self, test, error):
        self.line(False, test, self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.line(False, subtest, self._exc_info_to_string(error, test))

    def addSkip(self, test, reason):
        self.line(False, test, f"a test is never skipped: {reason}")


def main() -> None:
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")]
    unwanted = [name[1:] for name in sys.argv[1:] if name.startswith("-")]
    suite = unittest.TestSuite()
    loaded = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    for case in loaded:
        for test in case:
            chosen = not wanted or any(name in test.id() for name in wanted)
            if chosen and not any(name in test.id() for name in unwanted):
                suite.addTest(test)
    result = Tap()
    suite.run(result)
    print(f"1..{result.count}")
    sys.stdout.flush()
    sys.exit(result.failed)


def child(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """The result of @code, which has stdout and stderr as text."""
    return subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=900,  # time: only a child that hangs takes it
    )


class Case(unittest.TestCase):
    maxDiff = None

    def silent(self, code: str, expected: str = "", **environment: str) -> None:
        """@code succeeds, writes what is expected, and nothing on stderr."""
        result = child(code, "-Xfaulthandler", "-Wdefault", **environment)
        self.assertEqual((result.stderr, result.returncode), ("", 0))
        self.assertEqual(result.stdout, expected)

    def fork(self, work) -> None:
        """@work succeeds in a forked child."""
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                work()
                status = 0
            except BaseException as error:
                print("#", repr(error), flush=True)
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
