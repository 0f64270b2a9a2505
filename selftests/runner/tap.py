# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Reads what a test wrote: TAP, and other lines that explain it."""

import re

RESULT = re.compile(r"^(not )?ok\b *(\d+)? *-? *(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)\s*(#.*)?$")
SKIP = re.compile(r"#\s*skip\S*\s*(.*)$", re.IGNORECASE)

# Lines that are shown of a test that failed, or of a program that ended early.
EXPLAIN = 60
LAST = 40


class Outcome:
    """Counts, and the text to show for every fault."""

    def __init__(self):
        self.passed = 0
        self.faults = []
        self.skipped = []

    @property
    def failed(self):
        return len(self.faults)


def judge(lines, status, skips_fail):
    """The outcome of a test whose output is @lines and whose exit status is @status."""
    outcome = Outcome()
    plan = None
    seen = 0
    other = []
    explained = None
    bailed = None
    for line in lines:
        line = line.rstrip("\r\n")
        if match := PLAN.match(line):
            plan = int(match[1])
            explained = None
        elif line.startswith("Bail out!"):
            bailed = line
        elif match := RESULT.match(line):
            seen += 1
            explained = None
            skip = SKIP.search(match[3])
            if match[1]:
                explained = [line]
                outcome.faults.append(explained)
            elif skip and skips_fail:
                explained = [line, "# must not be skipped"]
                outcome.faults.append(explained)
            elif skip:
                outcome.skipped.append(match[3])
            else:
                outcome.passed += 1
        else:
            if explained is not None and len(explained) < EXPLAIN:
                explained.append(line)
            if line and not line.startswith("TAP version"):
                other.append(line)
    why = None
    if bailed:
        why = bailed
    elif plan is None:
        why = f"ended without a plan, after {seen} tests"
    elif seen != plan or not seen:
        why = f"ran {seen} of {plan} tests"
    if why and status:
        why += f"; exit status {describe(status)}"
    elif not why and status and not outcome.faults:
        why = f"exit status {describe(status)}"
    if why:
        outcome.faults.append([why, *other[-LAST:]])
    return outcome


def judge_command(lines, status):
    """The outcome of a command that writes no TAP: its exit status."""
    outcome = Outcome()
    if status:
        outcome.faults.append([f"exit status {describe(status)}", *(line.rstrip() for line in lines[-LAST:])])
    else:
        outcome.passed = 1
    return outcome


def describe(status):
    return f"{status}" if status >= 0 else f"by signal {-status}"
