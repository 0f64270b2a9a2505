# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Which tests belong to a folder of sources."""

import os
import subprocess


def choose(folder, units):
    """Names of the units for a folder, or for the files that git says have changed."""
    if folder == "auto":
        found = set()
        for file in changed():
            found |= of_file(file, units)
        return found
    if os.path.isfile(folder):
        return of_file(os.path.relpath(folder), units)
    return of_folder(folder.rstrip("/"), units)


def changed():
    """Files that differ from the last commit, or that it changed if none does."""
    git = ["git", "-c", f"safe.directory={os.getcwd()}"]
    out = ""
    for command in (
        ["diff", "--name-only", "HEAD"],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        out += subprocess.run([*git, *command], capture_output=True, check=True, text=True).stdout
    if not out:
        command = ["diff", "--name-only", "HEAD~1", "HEAD"]
        out = subprocess.run([*git, *command], capture_output=True, check=False, text=True).stdout
    return out.split()


def programs(units, prefix):
    """Programs of the library below a folder, without sanitizer; none that takes minutes."""
    return {
        name
        for name, unit in units.items()
        if unit.sanitizer == "plain" and unit.stage.tier == "check" and name.startswith(prefix)
    }


def tests(units, *names):
    """Scripts of selftests/t whose name is one of these, or goes on with - after it.

    Those of make check; the others if there is none.
    """
    found = {
        name
        for name in units
        if "/" not in name and any(name == wanted or name.startswith(wanted + "-") for wanted in names)
    }
    return {name for name in found if units[name].stage.tier == "check"} or found


def of_folder(folder, units):
    folder = os.path.relpath(folder).removeprefix("selftests/")
    parts = folder.split("/")
    if parts[0] == "soft" or folder.startswith("lib/soft"):
        return programs(units, "soft/")
    if folder.startswith("lib/preload") or parts[0] == "run":
        return tests(units, "tools-run")
    if folder == "lib":
        return programs(units, "lib/")
    if parts[0] == "lib":
        found = programs(units, folder + "/") | programs(units, folder + ".")
        if found:
            return found | programs(units, "lib/conformance")
        return guest(folder, units) if os.path.isdir(f"selftests/{folder}") else set()
    if parts[0] == "kernel":
        return guest(folder, units)
    if parts[:2] == ["tools", "python"] or parts[0] == "python":
        return tests(units, "python")
    if parts[:2] == ["tools", "debian"]:
        return tests(units, "packages")
    if folder == "tools":
        return tests(units, "tools")
    if parts[0] == "tools":
        return tests(units, f"tools-{parts[1]}") or tests(units, "tools")
    if parts[0] == "Documentation":
        return tests(units, "man") if parts[1:2] == ["man"] else tests(units, "readme", "source")
    if parts[0] == "include":
        return tests(units, "build", "man", "source") | programs(units, "lib/conformance")
    if parts[0] == "t" and len(parts) > 1:
        return tests(units, parts[1].removesuffix(".t"))
    if parts[0] == "vm":
        return tests(units, "vm")
    return set()


def guest(folder, units):
    """One boot with the programs that need the modules, for a folder of selftests/ or of the module."""
    wanted = folder if os.path.isdir(f"selftests/{folder}") else "kernel"
    name = f"guest:{wanted}"
    kernel = units["kernel:stock-7"]
    unit = type(kernel)(name, kernel.stage, ["selftests/runner/guest", wanted], "tap")
    # It builds what it needs: all of vm-tests takes a minute.
    unit.after = {kernel.name}
    units[name] = unit
    return {name}


def of_file(file, units):
    """Tests of a file that changed: those of its folder, and programs that include it."""
    base = os.path.basename(file)
    if file in ("Makefile", "Kbuild"):
        return tests(units, "build", "install", "source")
    if file == "README.md":
        return tests(units, "readme")
    found = tests(units, "source") | including(file, units)
    if file.startswith(("selftests/lib/", "selftests/soft/")) and file.endswith(".c"):
        return found | {name for name in (file[len("selftests/") : -2],) if name in units}
    if file.startswith("selftests/lib/"):
        return found
    if file.startswith("selftests/t/"):
        return found | of_folder(file, units)
    if file.startswith("lib/") and os.path.dirname(file) == "lib":
        return found | programs(units, "lib/open") | tests(units, "build")
    if file.startswith("tools/") and os.path.dirname(file) != "tools":
        return found | of_folder(os.path.dirname(file), units)
    if file.startswith("tools/"):
        return found | of_folder(os.path.splitext(file)[0], units)
    return found | of_folder(os.path.dirname(file) or base, units)


def including(file, units):
    """Programs whose dependencies, which the compiler wrote, name a header."""
    found = set()
    if not file.endswith(".h") or file.startswith("include/"):
        return found
    for name, unit in units.items():
        if unit.sanitizer != "plain":
            continue
        try:
            with open(f"build/obj/selftests/{unit.source}.d", encoding="utf-8") as text:
                if file in text.read().split():
                    found.add(name)
        except OSError:
            # It is not built yet: then it counts.
            found |= {name} if file.startswith("selftests/") else set()
    return found
