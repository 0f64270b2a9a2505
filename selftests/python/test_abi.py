# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem._abi is what the headers say: sizes, offsets, constants, prototypes."""

import ctypes
import glob
import os
import re
import subprocess
import tempfile

import tap
from hetmem import _abi, _library


def c_name(name):
    """AllocParams: alloc_params"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def headers():
    """The declarations, without comments."""
    text = ""
    for path in [f"{tap.HEADERS}/hetmem.h", *glob.glob(f"{tap.HEADERS}/hetmem/*.h")]:
        with open(path, encoding="utf-8") as file:
            text += file.read()
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def run_c(lines):
    """What a C program prints that has these lines in main()."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w", encoding="utf-8") as file:
            file.write(
                "#include <hetmem.h>\n#include <stdio.h>\n"
                "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
            )
        subprocess.run(
            ["gcc", "-Wall", "-Werror", f"-I{tap.HEADERS}", f"-I{tap.HEADERS}/uapi",
             "-o", program, source],
            check=True,
        )
        return subprocess.run(
            [program], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()


# size_t and uint64_t are one type of ctypes.
KINDS = {
    "size_t": _abi.U64, "ssize_t": _abi.SSIZE, "int": _abi.INT, "unsigned int": _abi.UINT,
    "uint64_t": _abi.U64, "uint32_t": _abi.U32, "void": None,
}


def kind_of_c(text):
    """The integer of a parameter or a result, or "pointer"."""
    text = " ".join(text.split())
    if "*" in text or "hetmem_stream" in text or "_fn" in text:
        return "pointer"
    if text.startswith("enum "):
        return _abi.INT
    for name, kind in KINDS.items():
        if re.match(rf"{name}\b", text):
            return kind
    return text


def kind_of_ctypes(kind):
    return kind if kind in KINDS.values() else "pointer"


class Abi(tap.Case):
    def test_structs(self):
        lines, expected = [], []
        for struct in _abi.STRUCTS:
            name = f"struct hetmem_{c_name(struct.__name__)}"
            lines.append(f'printf("%zu\\n", sizeof({name}));')
            expected.append((name, ctypes.sizeof(struct)))
            for member, *_ in struct._fields_:
                lines.append(
                    f'printf("%zu\\n", __builtin_offsetof({name}, {member}));')
                lines.append(f'printf("%zu\\n", sizeof((({name} *)0)->{member}));')
                field = getattr(struct, member)
                expected.append((f"{name}.{member}", field.offset))
                expected.append((f"size of {name}.{member}", field.size))
        found = [int(value) for value in run_c(lines)]
        self.assertEqual([(name, at) for (name, _), at in zip(expected, found)], expected)
        self.assertEqual(len(found), len(expected))

    def test_no_member_is_missing(self):
        text = headers()
        with open(f"{tap.HEADERS}/uapi/linux/hetmem.h", encoding="utf-8") as file:
            text += re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.DOTALL)
        for struct in _abi.STRUCTS:
            name = f"hetmem_{c_name(struct.__name__)}"
            body = re.search(rf"struct {name} \{{(.*?)\n\}};", text, re.DOTALL)
            self.assertTrue(body, name)
            members = re.findall(r"(\w+)(?:\[\w+\]|\)\([^;]*\))?;", body[1])
            self.assertEqual(members, [field[0] for field in struct._fields_], name)

    def test_constants(self):
        names = [name for name, value in vars(_abi).items()
                 if isinstance(value, int) and name.isupper()]
        self.assertIn("STREAM_HOST", names)
        found = run_c([f'printf("%llu\\n", (unsigned long long)HETMEM_{name});'
                       for name in names])
        self.assertEqual(dict(zip(names, map(int, found))),
                         {name: getattr(_abi, name) for name in names})

    def test_enums(self):
        for values, prefix in ((_abi.REMAP_CAUSES, "REMAP"), (_abi.SOURCES, "SOURCE"),
                               (_abi.PLACEMENTS, "PLACEMENT"), (_abi.EDGES, "EDGE")):
            found = run_c([f'printf("%d\\n", HETMEM_{prefix}_{value.upper()});'
                           for value in values])
            self.assertEqual(found, [str(i) for i in range(len(values))], prefix)
        found = run_c([f'printf("%u\\n", HETMEM_REMAP_{value});'
                       for value in _abi.REMAP_CHANGES])
        self.assertEqual(found, [str(1 << i) for i in range(len(_abi.REMAP_CHANGES))])

    def test_prototypes(self):
        text = headers()
        for name, (result, *arguments) in _abi.PROTOTYPES.items():
            found = re.search(rf"\n([\w \*]*?)\b{name}\((.*?)\);", text, re.DOTALL)
            self.assertTrue(found, name)
            parameters = [part for part in found[2].split(",") if part.strip() != "void"]
            self.assertEqual(
                [kind_of_c(part) for part in [found[1], *parameters]],
                [kind_of_ctypes(kind) for kind in [result, *arguments]], name)

    def test_the_library_has_them(self):
        library = _library.load(_library.path())
        self.assertEqual(library.hetmem_alloc.restype, _abi.INT)


if __name__ == "__main__":
    tap.main()
