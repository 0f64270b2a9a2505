# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Text in blocks: reads the comments of headers, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ERRNO = re.compile(r"-E[A-Z0-9]+(, -E[A-Z0-9]+)*")
MEMBER = re.compile(r"@\w+(, @\w+)*: ")
ERRORS = re.compile(r"those of |0: |the errno ")
BULLET = re.compile(r" *(-|\d+\.) ")


@dataclass
class Paragraph:
    text: str


@dataclass
class Code:
    lines: list[str]


@dataclass
class Item:
    """@tag: "" in a list of bullets, "1." in a list of numbers."""

    tag: str
    text: str


@dataclass
class Listing:
    """@kind: "bullet", "enum", "tag", or "errors"."""

    kind: str
    items: list[Item] = field(default_factory=list)


@dataclass
class Heading:
    level: int
    text: str


class Reader:
    """Makes blocks of lines, one after the other."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.text = ""
        self.result: list[object] = []

    def flush(self) -> None:
        """Ends a paragraph."""
        if self.text:
            self.result.append(Paragraph(self.text))
        self.text = ""

    def add(self, kind: str, item: Item) -> None:
        """Adds @item to the list that is last, or begins one."""
        last = self.result[-1] if self.result else None
        if not isinstance(last, Listing) or last.kind != kind:
            last = Listing(kind)
            self.result.append(last)
        last.items.append(item)

    def take(self, belongs: Callable[[str], object]) -> list[str]:
        """The lines from here on that belong to a block."""
        begin = self.at
        while self.at < len(self.lines) and belongs(self.lines[self.at]):
            self.at += 1
        return self.lines[begin : self.at]

    def item(self, first: str, belongs: Callable[[str], object]) -> str:
        """The text of an item that begins with @first."""
        self.at += 1
        return " ".join([first, *(line.strip() for line in self.take(belongs))])

    def line(self, line: str) -> bool:
        """Reads a block that begins with @line, if it is one."""
        raise NotImplementedError

    def read(self) -> list[object]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if not line.strip():
                self.flush()
                self.at += 1
            elif not self.line(line):
                self.text += (" " if self.text else "") + line.strip()
                self.at += 1
        self.flush()
        return self.result


class Comment(Reader):
    def line(self, line: str) -> bool:
        waits = self.text.endswith(":") or re.search(r"\bErrors\b[^.]*$", self.text)
        if found := MEMBER.match(line):
            self.flush()
            text = self.item(line[found.end() :], lambda one: one.startswith("\t"))
            self.add("tag", Item(found[0][:-2], text))
        elif found := BULLET.match(line):
            self.flush()
            text = self.item(
                line[found.end() :],
                lambda one: re.match(r"\t|  ", one) and not BULLET.match(one),
            )
            self.add("bullet" if found[1] == "-" else "enum", Item("", text))
        elif waits and re.match(r"\t(-E|others)", line):
            self.flush()
            self.result.append(Listing("errors", self.columns()))
        elif line.startswith("\t"):
            self.flush()
            self.example()
        elif waits and (ERRNO.match(line) or ERRORS.match(line)):
            self.flush()
            items, self.at = error_items(self.lines, self.at)
            self.result += errors_listing(items)
        else:
            return False
        return True

    def columns(self) -> list[Item]:
        """Errors in two columns, apart by tabs."""
        items: list[Item] = []
        for line in self.take(lambda one: one.startswith("\t")):
            if line.startswith("\t\t"):
                items[-1].text += " " + line.strip()
            else:
                name, _, text = line.strip().partition("\t")
                items.append(Item(name, text.strip()))
        return items

    def example(self) -> None:
        """Lines with a tab, and empty ones between them."""
        lines = self.take(lambda one: one.startswith("\t") or not one.strip())
        while not lines[-1].strip():
            lines.pop()
        self.result.append(Code([line[1:] for line in lines]))


class Markdown(Reader):
    """As much of it as spec.md has."""

    def line(self, line: str) -> bool:
        if line.startswith("<!--"):
            self.at += 1
        elif line.startswith("#"):
            self.flush()
            marks, _, title = line.partition(" ")
            if len(marks) > 1:
                self.result.append(Heading(len(marks) - 1, title))
            self.at += 1
        elif line.startswith("```"):
            self.flush()
            self.at += 1
            self.result.append(Code(self.take(lambda one: not one.startswith("```"))))
            self.at += 1
        elif re.match(r" {4,}\S", line) and not self.text:
            lines = self.take(re.compile(r" {4,}\S").match)
            self.result.append(Code([one[4:] for one in lines]))
        elif line.startswith("|"):
            self.flush()
            self.result.append(table(self.take(lambda one: one.startswith("|"))))
        elif line.startswith("- "):
            self.flush()
            text = self.item(line[2:], re.compile(r"  \S").match)
            found = re.match(r"(`[^`]+`): (.*)", text)
            if found:
                self.add("tag", Item(found[1], found[2]))
            else:
                self.add("bullet", Item("", text))
        else:
            return False
        return True


def error_items(lines: list[str], at: int) -> tuple[list[Item], int]:
    """Errors, one a line, that end with ";", the last with ".". From line @at."""
    items: list[Item] = []
    while at < len(lines) and lines[at].strip():
        text = lines[at]
        at += 1
        while at < len(lines) and lines[at].startswith("\t"):
            text += " " + lines[at].strip()
            at += 1
        text = text.strip()
        found = ERRNO.match(text) or re.match(r"0(?=:)|another value(?=:)", text)
        rest = text[found.end() :] if found else text
        if found and (rest[:1] in (":", ".", ";") or not rest):
            items.append(Item(found[0], rest.lstrip(":").strip(" .;")))
        else:
            items.append(Item("", re.sub(r"[,;.]*( and)?$", "", text)))
        if text.endswith("."):
            break
    return items, at


def errors_listing(items: list[Item]) -> list[object]:
    """Items that name no errno become sentences."""
    blocks: list[object] = []
    for item in items:
        if not item.tag:
            blocks.append(Paragraph(f"{item.text[:1].upper()}{item.text[1:]}."))
        elif blocks and isinstance(blocks[-1], Listing):
            blocks[-1].items.append(item)
        else:
            blocks.append(Listing("errors", [item]))
    return blocks


def inline_errors(blocks: list[object]) -> list[object]:
    """Takes apart "... Errors: -ENODEV: no such device."."""
    result: list[object] = []
    for block in blocks:
        found = (
            re.fullmatch(
                r"(?:(.*[.)]) )?(Errors\b[^.:]*:?)"
                r"(?: ((?:-E|those of).*))?",
                block.text,
                re.S,
            )
            if isinstance(block, Paragraph)
            else None
        )
        if not found:
            result.append(block)
            continue
        if found[1]:
            result.append(Paragraph(found[1]))
        result.append(Paragraph(found[2]))
        if found[3]:
            items, _ = error_items([found[3]], 0)
            result += errors_listing(items)
    return result


def blocks_of(comment: list[str]) -> list[object]:
    """The text of a comment, without what it is set in."""
    return inline_errors(Comment(comment).read())


def table(lines: list[str]) -> Listing:
    """Its first column are the tags. Further columns get their titles."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    titles, rows = rows[0], rows[2:]
    result = Listing("tag")
    for row in rows:
        cells = row[1:]
        if len(cells) > 1:
            cells = [
                f"{title}: {cell}." for title, cell in zip(titles[1:], cells) if cell
            ]
        result.items.append(Item(row[0], " ".join(cells)))
    return result


def markdown(path: Path) -> list[object]:
    return Markdown(path.read_text(encoding="utf-8").split("\n")).read()
