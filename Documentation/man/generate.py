#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Writes the manual pages that have another source than this folder.

usage: generate.py FOLDER VERSION

- Section 3: the comments of the public headers. The file "groups" beside this
  program puts the functions into pages.
- Section 4: the comments of the headers of the ioctls.
- hetmem-spec(7): Documentation/spec.md.

Comments and Markdown become the same blocks, and blocks become mdoc(7). mandoc
and groff read it; mandoc makes HTML of it. An exported function without a page,
a page without a function, and a comment that cannot be read are errors.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from blocks import Heading, Listing, Paragraph, blocks_of, markdown
from mdoc import Words, clean, code, quoted, render

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
LICENCE = '.\\" SPDX-License-Identifier: LGPL-2.1-or-later OR MIT\n'
DATE = "November 20, 2026"

# A comment above functions may declare the type of a callback for them.
TYPEDEF = re.compile(r"\s*typedef\b")
NAMES = re.compile(r"\b(hetmem_[a-z0-9_]+)\(")


def die(text: str) -> SystemExit:
    return SystemExit(f"generate.py: {text}")


# Headers


@dataclass
class Declaration:
    """What stands between two blank lines of a header."""

    comment: list[str]
    code: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.code)

    @property
    def functions(self) -> list[str]:
        code = split_typedef(self)[1]
        if not code or code[0].startswith("#") or TYPEDEF.match(code[0]):
            return []
        text = re.sub(r"/\*.*?\*/", "", "\n".join(code), flags=re.S)
        return [] if "{" in text else NAMES.findall(text)

    @property
    def all_names(self) -> list[str]:
        return [*self.functions, *sorted(self.names)]

    @property
    def names(self) -> set[str]:
        """What else it declares."""
        return set(
            re.findall(r"^(?:struct|enum) (\w+)", self.text, re.M)
            + re.findall(r"^#define (\w+)", self.text, re.M)
            + re.findall(
                r"^typedef .*?[ *(](hetmem_\w+)\)?[;(]", self.text, re.M | re.S
            )
        )


def stripped(comment: str) -> list[str]:
    body = re.sub(r"^/\*+ ?|\s*\*/$", "", comment)
    lines = [re.sub(r"^ ?\* ?(?=\S| |\t|$)", "", line) for line in body.split("\n")]
    lines = [re.sub(r"^\s\*\t", "\t", line) for line in lines]
    while lines and not lines[0].strip():
        del lines[0]
    while lines and not lines[-1].strip():
        del lines[-1]
    return lines


NOISE = re.compile(
    r"#(ifndef|endif|include|ifdef|define _?\w+_H$)|extern \"C\"|/\* SPDX|}$"
)


def chunks_of(text: str) -> list[str]:
    """The parts of a header between blank lines outside of comments and braces."""
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.S)
    chunks: list[list[str]] = [[]]
    depth, in_comment = 0, False
    for line in text.split("\n"):
        if not in_comment and not depth and (not line.strip() or NOISE.match(line)):
            chunks.append([])
            continue
        chunks[-1].append(line)
        bare = re.sub(r"/\*.*?\*/", "", line)
        if in_comment or "/*" in bare:
            in_comment = "*/" not in bare
        else:
            depth += bare.count("{") - bare.count("}")
    return ["\n".join(chunk) for chunk in chunks if chunk]


def read_header(path: Path) -> tuple[list[str], list[Declaration]]:
    """The comment at its top, and its declarations."""
    result: list[Declaration] = []
    for chunk in chunks_of(path.read_text(encoding="utf-8")):
        comment = re.match(r"/\*.*?\*/", chunk, re.S)
        rest = chunk[comment.end() :].strip("\n") if comment else chunk
        # A comment on one of several constants is a part of the code.
        several = "\n/*" in rest and not rest.startswith(("struct", "enum"))
        if comment and not several:
            one = Declaration(stripped(comment[0]), rest.split("\n") if rest else [])
        else:
            one = Declaration([], chunk.split("\n"))
        last = result[-1] if result else None
        bare = one.functions and not one.comment
        if bare and last and last.comment and TYPEDEF.match(last.text):
            last.code = [*last.code, "", *one.code]
        else:
            result.append(one)
    if not result or result[0].code:
        raise die(f"{path.name}: no comment at the top")
    return result[0].comment, result[1:]


def split_typedef(one: Declaration) -> tuple[list[str], list[str]]:
    """The typedef above functions, and the functions."""
    if "" in one.code and TYPEDEF.match(one.code[0]):
        at = one.code.index("")
        return one.code[:at], one.code[at + 1 :]
    return [], one.code


def prototypes(lines: list[str]) -> list[tuple[str, str, list[str]]]:
    """Type, name and arguments of each function."""
    result = []
    for part in " ".join(line.strip() for line in lines).split(";"):
        if not part.strip():
            continue
        found = re.fullmatch(r"\s*(.*?[ *])(hetmem_\w+)\((.*)\)\s*", part)
        if not found:
            raise die(f"no prototype: {part.strip()}")
        arguments = re.split(r", (?![^()]*\))", found[3])
        result.append((found[1].strip(), found[2], arguments))
    return result


# Pages


@dataclass
class Page:
    name: str
    about: str
    members: list[str]
    header: str = ""
    items: list[Declaration] = field(default_factory=list)


def read_groups() -> list[Page]:
    pages: list[Page] = []
    for line in (HERE / "groups").read_text(encoding="utf-8").split("\n"):
        if line.startswith("\t"):
            pages[-1].members += line.split()
        elif line and not line.startswith("#"):
            name, _, about = line.partition(": ")
            pages.append(Page(name, about, []))
    return pages


def exported() -> list[str]:
    text = (TOP / "lib" / "libhetmem.map").read_text(encoding="utf-8")
    return re.findall(r"^\t+(hetmem_\w+);", text, re.M)


def head(name: str, section: int, version: str) -> list[str]:
    return [
        LICENCE.rstrip(),
        f".Dd {DATE}",
        f".Dt {name.upper()} {section}",
        f".Os hetmem {version}",
    ]


def doc_struct(one: Declaration, words: Words, heading: bool = True) -> list[str]:
    """struct NAME - SUMMARY, its members, its text."""
    lines = list(one.comment)
    summary = lines.pop(0)
    while lines and lines[0].startswith("\t"):
        summary += " " + lines.pop(0).strip()
    name, _, about = summary.partition(" - ")
    result: list[str] = []
    if heading:
        command = re.match(r"(HETMEM_(?:EMU_)?IOC_\w+)(?:: (.*))?", about)
        title = command[1] if command else name
        about = (command[2] or "") if command else about
        result.append(f'.Ss "{title}"' if " " in title else f".Ss {title}")
    if about:
        result += words.lines(about[:1].upper() + about[1:] + ".")
    result += code(one.code)
    return result + render(blocks_of(lines), words, first=not about)


def doc_types(one: Declaration, words: Words) -> list[str]:
    """Constants, enumerations, types, or a comment alone."""
    found = re.match(r"(struct|enum) (\w+)", one.text)
    result: list[str] = []
    if one.code and one.comment and re.match(r"struct \w+ - ", one.comment[0]):
        return doc_struct(one, words)
    if found and "{" in one.text:
        result.append(f'.Ss "{found[1]} {found[2]}"')
    else:
        result.append(".Pp")
    if one.comment:
        result += render(blocks_of(one.comment), words)
    if one.code:
        result += code(one.code)
    return result


def is_errors(block: object) -> bool:
    if isinstance(block, Paragraph):
        return block.text.startswith(("Errors", "Those of "))
    return isinstance(block, Listing) and block.kind == "errors"


def function_page(page: Page, words: Words, version: str, pages: list[Page]) -> str:
    own = [name for name in page.members if name in words.here]
    lines = head(page.name, 3, version)
    lines += [".Sh NAME"]
    lines += [f".Nm {name} ," for name in own[:-1]] + [f".Nm {own[-1]}"]
    lines += [f".Nd {page.about}", ".Sh LIBRARY", "libhetmem (\\-lhetmem)"]
    lines += [".Sh SYNOPSIS", ".In hetmem.h"]
    errors: list[str] = []
    fails = False
    body: list[str] = []
    for one in page.items:
        if not one.functions:
            body += doc_types(one, words)
            continue
        typedef, functions = split_typedef(one)
        names = []
        for kind, name, arguments in prototypes(functions):
            names.append(name)
            fails = fails or kind in ("int", "ssize_t")
            lines += [f".Ft {quoted(kind)}", f".Fo {name}"]
            lines += [f".Fa {quoted(argument)}" for argument in arguments]
            lines += [".Fc"]
        body.append(f'.Ss "{", ".join(name + "()" for name in names)}"')
        if typedef:
            body += code(typedef)
        blocks = blocks_of(one.comment)
        body += render([block for block in blocks if not is_errors(block)], words)
        wrong = [block for block in blocks if is_errors(block)]
        if wrong:
            errors.append(f'.Ss "{", ".join(name + "()" for name in names)}"')
            if (
                len(wrong) > 1
                and isinstance(wrong[0], Paragraph)
                and re.fullmatch(r"Errors( of \w+)?:", wrong[0].text)
            ):
                del wrong[0]
            errors += render(wrong, words)
    lines += [".Sh DESCRIPTION", *body]
    if fails:
        lines += [
            ".Sh RETURN VALUES",
            "Unless the description has another value, a function that can fail",
            "returns 0, or a negative errno.",
            *words.lines("hetmem_last_error() returns the text of the error."),
            ".Sh ERRORS",
            "Each of these functions returns",
            ".No \\- Ns Er EINVAL",
            "for a",
            ".Dv NULL",
            "or senseless argument.",
            *errors,
        ]
    near = {other.name for other in pages if other.header == page.header}
    said = {name for name in re.findall(r"^\.Xr (hetmem_\w+) 3", "\n".join(body), re.M)}
    homes = {other.name for other in pages if said & set(other.members)}
    also = [(name, 3) for name in sorted((near | homes) - {page.name})]
    lines += [".Sh SEE ALSO", ".Xr hetmem 3 ,"]
    lines += [f".Xr {name} {section} ," for name, section in also]
    lines += [".Xr hetmem 7"]
    return clean(lines)


# What the comment at the top of hetmem.h says of itself.
OVERVIEW = (
    ("calls. They are the first below, in this order:", "calls:"),
    ("Features and devices follow them. This header includes", "<hetmem.h> includes"),
    ("Comments list the errors of each function.", "The pages list them."),
)


def overview(pages: list[Page], comment: list[str], words: Words, version: str) -> str:
    lines = head("hetmem", 3, version)
    text = "\n".join(comment[1:])
    for before, after in OVERVIEW:
        if before not in text:
            raise die(f"hetmem.h does not begin as it did: {before}")
        text = text.replace(before, after)
    lines += [
        ".Sh NAME",
        ".Nm libhetmem",
        ".Nd one allocator for memory that CPUs and GPUs share",
        ".Sh LIBRARY",
        "libhetmem (\\-lhetmem)",
        ".Sh SYNOPSIS",
        ".In hetmem.h",
        ".Sh DESCRIPTION",
        *render(blocks_of(text.split("\n")), words),
        ".Ss Pages",
        ".Bl -tag -width indent",
    ]
    for page in pages:
        lines += [f".It Xr {page.name} 3", page.about]
    lines += [".El", *(HERE / "example").read_text(encoding="utf-8").split("\n")[1:-1]]
    lines += [".Sh SEE ALSO", ".Xr hetmem 1 ,", ".Xr hetmem 4 ,", ".Xr hetmem 7 ,"]
    return clean([*lines, ".Xr hetmem-spec 7"])


def device_page(
    name: str, about: str, path: Path, version: str, ends: list[str]
) -> str:
    comment, declarations = read_header(path)
    words = Words(set(), *identifiers(declarations))
    lines = [*head(name, 4, version), ".Sh NAME", f".Nm {name}", f".Nd {about}"]
    lines += [".Sh SYNOPSIS", f".In linux/{path.name}", ".Sh DESCRIPTION"]
    lines += render(blocks_of(comment[2:]), words)
    for one in declarations:
        lines += doc_types(one, words)
    return clean([*lines, *ends])


def identifiers(declarations: list[Declaration]) -> tuple[set[str], set[str]]:
    names: set[str] = set()
    for one in declarations:
        names |= one.names
        names |= set(re.findall(r"^\t(HETMEM_\w+)", one.text, re.M))
    lower = {name for name in names if name.islower()}
    return lower, names - lower


def spec_page(words: Words, version: str) -> str:
    blocks = markdown(TOP / "Documentation" / "spec.md")
    # For those who change the library.
    last = [
        at
        for at, block in enumerate(blocks)
        if isinstance(block, Heading) and block.text == "A new kind"
    ]
    if not last:
        raise die("spec.md has no chapter 'A new kind'")
    lines = [*head("hetmem-spec", 7, version), ".Sh NAME", ".Nm hetmem-spec"]
    lines += [".Nd text that names memory resources", ".Sh DESCRIPTION"]
    lines += render(blocks[: last[0]], words)
    lines += [".Sh SEE ALSO", ".Xr hetmem-spec 1 ,", ".Xr hetmem_resource_create 3 ,"]
    return clean([*lines, ".Xr hetmem 7"])


def homes_of(pages: list[Page]) -> dict[str, Page]:
    """The page of each name in groups."""
    homes: dict[str, Page] = {}
    for page in pages:
        for name in page.members:
            if name in homes:
                raise die(f"groups: {name} is in two pages")
            homes[name] = page
        if page.name not in page.members:
            raise die(f"groups: {page.name} lacks the function of its name")
    missing = set(exported()) - set(homes)
    if missing:
        raise die(f"groups: {min(missing)} is in no page")
    return homes


def assign(pages: list[Page]) -> tuple[list[str], list[Declaration]]:
    """Gives each declaration to a page. Returns the first comment, and all of them."""
    homes = homes_of(pages)
    every: list[Declaration] = []
    first: list[str] = []
    headers = sorted((TOP / "include" / "hetmem").glob("*.h"))
    for path in (TOP / "include" / "hetmem.h", *headers):
        comment, declarations = read_header(path)
        first = first or comment
        every += declarations
        # What the next function is for.
        pending: list[Declaration] = []
        last = pages[0]
        for one in declarations:
            found = [homes[name] for name in one.all_names if name in homes]
            if not found:
                pending.append(one)
                continue
            last = found[0]
            last.header = path.name
            if one.functions:
                last.items += pending
                pending = []
            last.items.append(one)
        last.items += pending
    unknown = set(homes) - {name for one in every for name in one.all_names}
    if unknown:
        raise die(f"groups: {min(unknown)} is in no header")
    return first, every


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("usage: generate.py FOLDER VERSION")
    out, version = Path(sys.argv[1]), sys.argv[2]
    out.mkdir(parents=True, exist_ok=True)
    pages = read_groups()
    comment, every = assign(pages)
    uapi = TOP / "include" / "uapi" / "linux"
    types, constants = identifiers(every + read_header(uapi / "hetmem.h")[1])
    functions = set(exported())

    def write(name: str, text: str) -> None:
        (out / name).write_text(text, encoding="utf-8")

    for page in pages:
        words = Words(functions & set(page.members), types, constants)
        write(f"{page.name}.3", function_page(page, words, version, pages))
        for name in page.members:
            link = out / f"{name}.3"
            if name in functions and name != page.name:
                link.unlink(missing_ok=True)
                link.symlink_to(f"{page.name}.3")
    words = Words(set(), types, constants)
    write("hetmem.3", overview(pages, comment, words, version))
    write("hetmem-spec.7", spec_page(words, version))
    for name, about in (
        ("hetmem", "memory that CPUs and devices share: /dev/hetmem and its ioctls"),
        (
            "hetmem_emu",
            "an emulated device for hetmem: /dev/hetmem_emuN and its ioctls",
        ),
    ):
        ends = (HERE / f"{name}.4.end").read_text(encoding="utf-8").split("\n")[1:-1]
        write(f"{name}.4", device_page(name, about, uapi / f"{name}.h", version, ends))


if __name__ == "__main__":
    main()
