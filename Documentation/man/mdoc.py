# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Writes blocks of text as mdoc(7), with the names in them marked up."""

from __future__ import annotations

import re

from blocks import Code, Heading, Listing, Paragraph

WIDTH = 78


class Words:
    """Text with names in it, as lines of mdoc."""

    def __init__(self, here: set[str], types: set[str], constants: set[str]) -> None:
        self.here = here
        self.types = types
        self.constants = constants

    TOKEN = re.compile(
        r"`(?P<code>[^`]+)`"
        r"|\*\*(?P<strong>[^*]+)\*\*"
        r"|\[(?P<link>[^\]]+)\]\([^)]*\)"
        r"|<(?P<header>(?:hetmem|linux)[a-z_/]*\.h(?:pp)?)>"
        r"|@(?P<argument>\w+)"
        r"|\b(?P<page>[a-z_]+)\((?P<section>[1-8])\)"
        r"|\b(?P<function>[a-zA-Z_][a-zA-Z0-9_.]+)\(\)"
        r"|(?<![\w])-(?P<errno>E[A-Z][A-Z0-9]+)\b"
        r"|\b(?P<constant>NULL|(?:HETMEM|CU|CAP|MAP|MADV|RLIMIT)_[A-Z0-9_]+)\b(?!\*)"
        r"|\b(?P<type>hetmem_[a-z0-9_]+)\b"
    )

    def macro(self, found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind == "section":
            kind = "page"
        text = found[kind or 0]
        if kind == "code":
            return f"Ql {quoted(text)}"
        if kind == "strong":
            return f"Sy {quoted(text)}"
        if kind == "link":
            return f"No {quoted(text.replace('`', ''))}"
        if kind == "header":
            return f"In {text}"
        if kind == "argument":
            return f"Fa {text}"
        if kind == "page":
            return f"Xr {text} {found['section']}"
        if kind == "function":
            other = text.startswith("hetmem_") and text not in self.here
            return f"Xr {text} 3" if other else f"Fn {text}"
        if kind == "errno":
            return f"No \\- Ns Er {text}"
        if kind == "constant":
            own = text.startswith("HETMEM_") and text not in self.constants
            return f"{'Ev' if own else 'Dv'} {text}"
        return f"Vt {text}" if text in self.types else f"Fa {text}"

    def word(self, word: str) -> str | None:
        """The line of a word that has names, or None."""
        parts: list[str] = []
        end = 0
        for found in self.TOKEN.finditer(word):
            if found.start() > end:
                parts.append(plain(word[end : found.start()]))
            parts.append(self.macro(found))
            end = found.end()
        if not parts:
            return None
        line = "." + " Ns ".join(parts)
        # Delimiters at the end are arguments of their own.
        rest = word[end:].rstrip(".,:;?!)]")
        if rest:
            line += f" Ns {plain(rest)}"
        return " ".join([line, *word[end + len(rest) :]])

    def lines(self, text: str) -> list[str]:
        result: list[str] = []
        line = ""
        # The blanks of `code` and of links are part of a word.
        words = re.findall(
            r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\)|\*\*[^*]*\*\*|\S)+", text.strip()
        )
        for word in words:
            macro = self.word(word)
            if macro or len(line) + len(word) >= WIDTH:
                if line:
                    result.append(line)
                line = ""
            if macro:
                result.append(macro)
                continue
            line += (" " if line else "") + escaped(word)
            if line[0] in ".'":
                line = "\\&" + line
            if re.search(r"[.?!][)\"]?$", word):
                result.append(line)
                line = ""
        if line:
            result.append(line)
        return result


def escaped(text: str) -> str:
    return text.replace("\\", "\\e")


def quoted(text: str) -> str:
    """An argument of a macro that may have blanks."""
    return '"' + escaped(text).replace('"', "\\(dq") + '"'


def plain(text: str) -> str:
    """Text in a line of macros: no delimiter, no macro."""
    return "No \\&" + escaped(text).replace('"', "\\(dq")


def code(lines: list[str]) -> list[str]:
    body = [
        ("\\&" if line[:1] in (".", "'") else "") + escaped(line.rstrip())
        for line in lines
    ]
    return [".Bd -literal -offset indent", *body, ".Ed"]


def render(blocks: list[object], words: Words, first: bool = True) -> list[str]:
    """@first: right below a heading, where no .Pp may be."""
    result: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            macro = "Sh" if block.level == 1 else "Ss"
            text = block.text.upper() if block.level == 1 else block.text
            result.append(f".{macro} {quoted(text) if ' ' in text else text}")
            first = True
            continue
        if isinstance(block, Paragraph):
            result += [] if first else [".Pp"]
            result += words.lines(block.text)
        elif isinstance(block, Code):
            result += code(block.lines)
        elif isinstance(block, Listing):
            width = {"bullet": "", "enum": ""}.get(block.kind, " -width indent")
            kind = block.kind if block.kind in ("bullet", "enum") else "tag"
            result.append(f".Bl -{kind}{width}")
            for item in block.items:
                if kind != "tag":
                    result.append(".It")
                elif block.kind == "errors":
                    names = re.findall(r"E[A-Z0-9]+", item.tag)
                    errno = "Bq Er " + " , Er ".join(names)
                    result.append(f".It {errno if names else item.tag}")
                else:
                    result.append(f".It {tag(item.tag)}")
                result += words.lines(item.text)
            result.append(".El")
        first = False
    return result


def tag(text: str) -> str:
    """@a, @b: members. `a`, `b`: words. Other text as it is."""
    if text.startswith("@"):
        return "Fa " + " , ".join(re.findall(r"\w+", text))
    if text.startswith("`"):
        return " , ".join(
            f"Cm {quoted(part)}" for part in re.findall(r"`([^`]+)`", text)
        )
    return f"No {quoted(text)}"


def clean(lines: list[str]) -> str:
    """No .Pp where mdoc has one already."""
    result: list[str] = []
    for line in lines:
        if line == ".Pp" and (not result or re.match(r"\.(Sh|Ss|Pp)\b", result[-1])):
            continue
        if re.match(r"\.(Sh|Ss|Bd|Bl)\b", line) and result and result[-1] == ".Pp":
            result.pop()
        result.append(line)
    return "\n".join(result) + "\n"
