#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The pages name what there is: README.md, Documentation/ and the pages of the source folders.
Every C block compiles; every function, constant, option, target of make, file and anchor exists.

pages.t [PAGE...] looks at these pages only, and judges them by the same rules."""

import ast
import fnmatch
import functools
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(TOP)
sys.path.insert(0, "selftests/python")
sys.dont_write_bytecode = True
import tap  # noqa: E402

# Blocks that need a kernel's or RMM's headers: these tests compile them.
ELSEWHERE = {
    "linux/module.h": "selftests/t/vm/driver.sh",
    "rmm/": "selftests/t/cpp.t",
}
# The variables of blocks and calls that are no whole programs.
VARIABLES = """struct hetmem *hm, struct hetmem_resource *res, struct hetmem_alloc_params params,
    struct hetmem_access access, struct hetmem_memory_info info, struct hetmem_resource_stats stats,
    struct hetmem_history_event *events, struct hetmem_segment *seg, size_t nr, hetmem_stream stream,
    hetmem_stream other, void *ptr, size_t size, int device, uint64_t id, uint64_t first, uint64_t second,
    const char *spec, const char *tag, const char *name, uint32_t wait_ms, hetmem_torch_filter ask,
    void *copy, void *arena, void *table, void *result"""
# Functions of others, and files of the kernel, of CUDA, of PyTorch and of the reader.
FOREIGN_FUNCTIONS = set("""cupy.get_default_memory_pool cuda.external_stream linspace logspace normal randperm
    dlmopen migrate_vma_collect_pmd multiprocessing.set_start_method ucp_cleanup""".split())
FOREIGN_FILES = set("""cuda.h kselftest_harness.h lib/test_hmm.c mm/migrate_device.c swapops.h
    tools/testing/selftests/mm/hmm-tests.c test_cuda.py test_cuda_trace.py test_cuda_multigpu.py
    test/test_cuda.py selftests/t/skip/KERNEL""".split())
FOREIGN_OPTIONS = {"--membind", "--enable-sleep-mode", "--enable-memory-saver", "--ulimit"}
PUBLIC = re.compile(r"include/hetmem(\.h|/\w+\.h)")
SUFFIX = re.compile(r"\.(c|h|hpp|cpp|cc|t|py|sh|md)$")
TOPS = ("Documentation", "include", "kernel", "lib", "selftests", "tools")


def tracked():
    """The files of the tree: git's, or of a tarball all outside build/."""
    git = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, text=True, check=False)
    if not git.returncode:
        return {name for name in git.stdout.split("\n") if os.path.isfile(name)}
    found = (os.path.join(folder, name)[2:] for folder, _, names in os.walk(".") for name in names)
    return {name for name in found if not name.startswith(("build/", ".git/"))}


FILES = tracked()
FOLDERS = {"/".join(name.split("/")[:depth]) for name in FILES for depth in range(1, name.count("/") + 1)}


def read(name):
    with open(name, encoding="utf-8", errors="replace") as file:
        return file.read()


def default_pages():
    ours = re.compile(r"README\.md|Documentation/[^/]*\.md|(kernel|lib|tools)/README\.md")
    return sorted(filter(ours.fullmatch, FILES))


class Page:
    """A page: its fenced blocks, its commands (indented lines), its words in backticks, its prose."""

    def __init__(self, name):
        self.name = name
        self.folder = os.path.dirname(name)
        self.text = read(name)
        fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
        self.blocks = fence.findall(self.text)
        # Another program's output is no statement of ours.
        self.outside = fence.sub(lambda m: "" if m[1] == "text" else m[2] if not m[1] else "", self.text)
        self.commands = re.findall(r"^    (?! )(.*)$", self.outside, re.M)
        prose = re.sub(r"^    .*$", "", self.outside, flags=re.M)
        self.ticks = [re.sub(r"\s+", " ", word) for word in re.findall(r"`([^`]+)`", prose)]

    def code(self, *languages):
        return [code for language, code in self.blocks if language in languages]


GIVEN = sys.argv[1:]
PAGES = [Page(name) for name in GIVEN or default_pages()]
sys.argv[1:] = []
# A page with a fault for each test.
FAULTS = """
```c
hetmem_free(res, ptr);
```
```cpp
#include <hetmem/resource.hpp>
hetmem::nothing x;
```
`hetmem_prefetch(hm, ptr, size)`, `no_such_function()`, `hetmem_no_such_name`, `hetmem.torch.no_such_name`,
`hetmem replay --no-such-option`, `hetmem nothing`, `lib/pool/nothing.c`, [nothing](nothing.md)
"""


@functools.cache
def sources():
    """The text of everything that is no page and not this test."""
    skip = re.compile(r".*\.(md|gz|png|svg|json)$|selftests/t/pages\.t$|COPYING$")
    return "\n".join(read(name) for name in sorted(FILES) if not skip.match(name))


@functools.cache
def words():
    return set(re.findall(r"\w+", sources()))


@functools.cache
def called():
    return set(re.findall(r"\b(\w+)(?=\()", sources()))


@functools.cache
def headers():
    text = "".join(read(name) for name in sorted(FILES) if PUBLIC.fullmatch(name))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def compiles(text, language="c"):
    """What the compiler says of @text: nothing if it is right."""
    standard = "gnu11" if language == "c" else "c++17"
    command = ["gcc" if language == "c" else "g++", "-x", language.replace("cpp", "c++"), f"-std={standard}",
               "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fsyntax-only", "-Iinclude", "-Iinclude/uapi", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stderr


def fragment(code):
    """A program around @code. A prototype may stand in a function, without static."""
    includes = "\n".join(f"#include <{name[8:]}>" for name in sorted(FILES) if PUBLIC.fullmatch(name))
    body = re.sub("^static ", "", code, flags=re.M)
    return (f"{includes}\nvoid fragment({VARIABLES});\nvoid fragment({VARIABLES})\n"
            f"{{\nchar text[64];\n(void)text;\n{{\n{body}\n}}\n}}\n")


def elsewhere(code):
    return next((test for mark, test in ELSEWHERE.items() if f"<{mark}" in code), None)


@functools.cache
def python_names():
    """The names of each module of the package."""
    found = {}
    for name in FILES:
        match = re.fullmatch(r"tools/python/hetmem/(\w+)\.py", name)
        if not match:
            continue
        names = found.setdefault("" if match[1] == "__init__" else match[1], set())
        for node in ast.walk(ast.parse(read(name))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return found


@functools.cache
def help_of(*command):
    result = subprocess.run(["build/hetmem", *command, "--help"], capture_output=True, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    return result.stdout if not result.returncode else ""


@functools.cache
def targets():
    found = set()
    for line in re.findall(r"^([\w$()/.% -]+):(?!=)", read("Makefile"), re.M):
        found.update(line.split())
    return found


def is_file(page, name):
    """Whether @name, a path or the end of one, perhaps with wildcards, is a file or a folder."""
    bare = name.rstrip("/")
    bases = ("", page.folder, "include", "include/uapi", "selftests", "kernel", "lib", "tools")
    paths = {os.path.normpath(os.path.join(base, bare)) for base in bases}
    if paths & (FILES | FOLDERS):
        return True
    known = FOLDERS if name.endswith("/") else FILES | FOLDERS
    return any(fnmatch.fnmatchcase(path, f"*/{bare}") or fnmatch.fnmatchcase(path, bare) for path in known)


def anchors(name):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", read(name), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


class Pages(tap.Case):
    def none(self, wrong, count=None, least=0):
        self.assertEqual("\n".join(wrong), "")
        if not GIVEN and count is not None:
            self.assertGreaterEqual(count, least)

    def test_c_blocks(self):
        count, wrong = 0, []
        for page in PAGES:
            # A page's blocks may be parts of one program.
            other = elsewhere("".join(page.code("c")))
            if other:
                self.assertIn(os.path.basename(page.name), read(other))
                continue
            for code in page.code("c"):
                count += 1
                whole = re.search(r"\bmain\(", code)
                wrong += [f"{page.name}: {line}" for line in compiles(code if whole else fragment(code)).splitlines()]
        self.none(wrong, count, 10)

    def test_cpp_blocks(self):
        count, wrong = 0, []
        for page in PAGES:
            for code in page.code("cpp"):
                other = elsewhere(code)
                if other:
                    self.assertIn(os.path.basename(page.name), read(other))
                    continue
                count += 1
                wrong += [f"{page.name}: {line}" for line in compiles(code, "cpp").splitlines()]
        self.none(wrong, count, 1)

    def test_calls(self):
        """A call in prose, in a picture or in an indented line has arguments that the function takes."""
        count, wrong = 0, []
        for page in PAGES:
            for name, arguments in re.findall(r"\b(hetmem_\w+)\(((?:[^()`]|\([^()]*\))+)\)", page.outside):
                declared = re.search(rf"\b{name}\(([^;]*?)\);", headers())
                if not declared:
                    continue
                count += 1
                wanted = declared[1].count(",") + 1
                given = re.sub(r"\([^()]*\)", "", arguments).count(",") + 1
                if "..." in arguments:
                    errors = "" if given <= wanted else f"it takes {wanted} arguments"
                else:
                    # A struct's members stand for the arguments that are named so.
                    errors = compiles(fragment(f"{name}({re.sub('[a-z]+[.]', '', arguments)});"))
                wrong += [f"{page.name}: {name}({arguments}): {line}" for line in errors.splitlines()]
        self.none(wrong, count, 20)

    def test_functions(self):
        """A function in backticks is in the sources."""
        wrong = []
        for page in PAGES:
            for tick in page.ticks:
                for name in re.findall(r"(?<![\w.*])([\w.]+)\(", tick):
                    last = name.split(".")[-1]
                    if last not in called() and name not in FOREIGN_FUNCTIONS:
                        wrong.append(f"{page.name}: {name}()")
        self.none(wrong)

    def test_names(self):
        """hetmem_x and HETMEM_X are words of the sources, with a wildcard the beginning of some."""
        wrong = []
        for page in PAGES:
            text = re.sub(r"^```text\n.*?^```$", "", page.text, flags=re.M | re.S)
            for name, wild in re.findall(r"\b((?:hetmem|HETMEM|hm)_\w+)(\*?)", text):
                known = any(word.startswith(name) for word in words()) if wild else name in words()
                if not known and not is_file(page, name + "*"):
                    wrong.append(f"{page.name}: {name}{wild}")
        self.none(wrong)

    def test_python(self):
        """hetmem.module.name is a name of the package."""
        wrong, names = [], python_names()
        count = 0
        for page in PAGES:
            for text in page.ticks + page.code("python"):
                for path in re.findall(r"(?<![\w./-])hetmem((?:\.[A-Za-z_]\w*)+)", text):
                    first, *rest = path[1:].split(".")
                    if first in ("h", "ko", "conf", "pc", "so", "map", "mk"):
                        continue
                    count += 1
                    good = first in names and (not rest or rest[0] in names[first]) or first in names[""]
                    if not good:
                        wrong.append(f"{page.name}: hetmem{path}")
        self.none(wrong, count, 20)

    def test_options(self):
        """An option of hetmem is one of that command; any other is one of something of ours."""
        wrong, count = [], 0
        known = set(re.findall(r"--[a-z][\w-]*", sources()))
        for page in PAGES:
            for text in page.commands + page.ticks:
                text = re.sub(r"(^| )#.*| -- .*", "", text)
                if not re.search(r"(^|[ (|])--[a-z]", text):
                    continue
                match = re.search(r"\bhetmem ((?:[a-z]+ ?)+)", text)
                options = re.findall(r"(?:^|[ (|])(--[a-z][\w-]*)", text[match.start():] if match else text)
                shown = ""
                if match:
                    for length in range(1, len(match[1].split()) + 1):
                        shown += help_of(*match[1].split()[:length])
                for option in options:
                    count += 1
                    if option in ("--help", "--version") or option in FOREIGN_OPTIONS:
                        continue
                    if option not in known or shown and not re.search(rf"{option}\b", shown):
                        wrong.append(f"{page.name}: {text}: {option}")
        self.none(wrong, count, 60)

    def test_commands(self):
        """`hetmem WORD` is a subcommand, `make WORD` a target. /dev/hetmem is a device, no command."""
        wrong = []
        for page in PAGES:
            for text in page.commands + page.ticks:
                text = re.sub(r"(^| )#.*", "", text)
                for word in re.findall(r"(?<!/dev)(?:^|[ /;|])hetmem ([a-z]+)\b", text):
                    if not help_of(word):
                        wrong.append(f"{page.name}: hetmem {word}")
                for arguments in re.findall(r"(?:^|[;&] *)make ((?:-\w+ |[A-Z]\w*=\S+ )*[^;&|>:,]*)(?![^:]*:)", text):
                    for word in arguments.split():
                        if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets():
                            wrong.append(f"{page.name}: make {word}")
        self.none(wrong)

    def test_files(self):
        """A file or a folder of ours in backticks exists."""
        wrong, count = [], 0
        for page in PAGES:
            for tick in page.ticks:
                name = tick.strip("<>").split(" ")[0]
                if not re.fullmatch(r"[\w.*/+-]+", name) or name.startswith(("/", "-", ".")) or name in FOREIGN_FILES:
                    continue
                first = name.split("/")[0]
                if not (SUFFIX.search(name) or first in TOPS and "/" in name or name.endswith("/")):
                    continue
                if first == "lib" and f"selftests/{name}.c" in FILES:
                    # A program of the tests goes by this name.
                    continue
                if first == "build":
                    # Programs of the tests are built of sources.
                    name = re.sub(r"^build/(?=selftests/.)", "", name)
                    if name.startswith("build"):
                        continue
                    name += ".c"
                count += 1
                if not is_file(page, name):
                    wrong.append(f"{page.name}: {name}")
        self.none(wrong, count, 100)

    def test_links(self):
        """What a page links exists, with the anchor."""
        wrong, count = [], 0
        for page in PAGES:
            for path, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", page.outside):
                count += 1
                name = os.path.normpath(os.path.join(page.folder, path)) if path else page.name
                if name not in FILES | FOLDERS:
                    wrong.append(f"{page.name}: {path}")
                elif anchor and anchor not in anchors(name):
                    wrong.append(f"{page.name}: {path}#{anchor}")
        self.none(wrong, count, 100)

    def test_each_finds_faults(self):
        if GIVEN:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "faults.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(FAULTS)
            result = subprocess.run([sys.executable, __file__, path], capture_output=True, text=True, check=False)
        good = re.findall(r"^ok \d+ - (.*)", result.stdout, re.M)
        self.assertEqual((good, result.stderr), (["Pages.test_each_finds_faults"], ""))


if __name__ == "__main__":
    tap.main()
