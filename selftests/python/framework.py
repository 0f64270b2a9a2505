# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Programs that use a framework, whose modules are played by those of fakes/."""

import os
import subprocess
import textwrap

import tap

FAKES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakes")

PROLOGUE = f"""
import errno, gc, os, sys, threading, warnings
sys.path.insert(0, {FAKES!r})
import hetmem
MIB = 1 << 20
{tap.FAILS}"""


def run(command, folder=None, environment=None, fakes=True):
    """The result of @command in @folder, which has stdout and stderr as text."""
    path = [FAKES] * fakes + [os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, check=False,
        env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(path)})


class Case(tap.Case):
    imports = ""

    def run_code(self, code, **environment):
        """@code, which has the usual names and the imports, succeeds in silence."""
        code = PROLOGUE + self.imports + "\n" + textwrap.dedent(code)
        self.silent(code, **environment)
