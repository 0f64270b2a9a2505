# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Builds the wheel: the hooks of PEP 517 and PEP 660 that pip calls.

usage: backend.py FOLDER
       backend.py --system FOLDER LIBRARY...

The first makes the wheel. The second writes the package as a distribution has
it, where the library and the command come from other packages. The LIBRARIES
are those that only the package uses.

`make python-parts` makes the libraries, the soft driver and the command. They
need libraries that a machine may lack, such as libnuma. The wheel has copies of
these under names of its own, so that the loader never takes them for the
system's. RPATH $ORIGIN finds them.

Companions of full mode are in it if `make torch-companions` fetched what they
are compiled with. The package compiles one if it has none that fits.

There is no Python ABI in it: one wheel is for every version of Python.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
PARTS = TOP / "build" / "python"

# Libraries that every Linux with Python has, by the rules of manylinux.
SYSTEM = re.compile(
    r"(lib(c|m|dl|rt|util|pthread|resolv|stdc\+\+|gcc_s)|ld-linux.*)\.so\.\d+"
)

METADATA = """\
Metadata-Version: 2.1
Name: hetmem
Version: {version}
Summary: Memory that CPU and GPU share: one allocator for NumPy, PyTorch and CuPy
License: LGPL-2.1-or-later OR MIT
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
"""

COMMANDS = "[console_scripts]\nhetmem = hetmem.__main__:main\n"
# PyTorch reads this group at its import.
AUTOLOAD = "[torch.backends]\nhetmem = hetmem_autoload:enable\n"


def version() -> str:
    """The version in the Makefile."""
    text = (TOP / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^VERSION\s*=\s*(\S+)", text, re.MULTILINE)
    if not found:
        raise SystemExit(f"backend.py: no VERSION in {TOP}/Makefile")
    return found[1]


def make_parts() -> None:
    """Calls make, as a make of its own."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    }
    if not (TOP / "Makefile").exists():
        raise SystemExit(
            "backend.py: the package is built in its repository: "
            "pip install REPOSITORY/tools/python"
        )
    subprocess.run(
        [
            "make",
            "-s",
            "-C",
            str(TOP),
            f"-j{os.cpu_count()}",
            "python-parts",
            "python-companions",
        ],
        env=environment,
        stdout=sys.stderr,
        check=True,
    )


def needed(parts: list[Path]) -> dict[str, Path]:
    """What the parts need and SYSTEM lacks: names and files."""
    found: dict[str, Path] = {}
    for part in parts:
        listing = subprocess.run(
            ["ldd", str(part)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for name, path in re.findall(r"^\s*(\S+) => (\S+)", listing, re.MULTILINE):
            if SYSTEM.fullmatch(name) or name.startswith("libhetmem"):
                continue
            if path == "not":
                raise SystemExit(f"backend.py: {part} needs {name}: install it")
            found[name] = Path(path)
    return found


def own_name(name: str) -> str:
    """As long as before, since it is replaced in the file."""
    return "hm_" + name[3:]


def libraries() -> dict[str, bytes]:
    """Name and contents of each file of hetmem/lib."""
    files = {
        "libhetmem.so.0": PARTS / "libhetmem.so",
        "libhetmem-soft.so": PARTS / "libhetmem-soft.so",
        "libhetmem-preload.so": PARTS / "libhetmem-preload.so",
        "libhetmem-torch.so": PARTS / "libhetmem-torch.so",
        "libhetmem-cupy.so": PARTS / "libhetmem-cupy.so",
        "hetmem": PARTS / "hetmem",
    }
    # It is for one kind of processor.
    if (PARTS / "libhetmem-cuda.so").exists():
        files["libhetmem-cuda.so"] = PARTS / "libhetmem-cuda.so"
    found = needed(list(files.values()))
    # They need PyTorch, which is loaded before they are.
    companions = (PARTS / "companions").read_text(encoding="utf-8").split()
    files.update((name, PARTS / name) for name in companions)
    contents = {name: path.read_bytes() for name, path in files.items()}
    for name, path in found.items():
        contents[own_name(name)] = path.read_bytes()
    for name in found:
        if not name.startswith("lib"):
            raise SystemExit(f"backend.py: cannot rename {name}")
        before, after = name.encode() + b"\0", own_name(name).encode() + b"\0"
        for file, content in contents.items():
            contents[file] = content.replace(b"\0" + before, b"\0" + after)
    return contents


def sources() -> dict[str, bytes]:
    """What hetmem._torch_full compiles for a PyTorch: name and contents."""
    files = {"torch_full.cc": HERE / "torch_full.cc"}
    for folder, top in ((HERE / "cuda", HERE), (TOP / "include", TOP)):
        for path in folder.rglob("*.h"):
            files[path.relative_to(top).as_posix()] = path
    return {name: path.read_bytes() for name, path in files.items()}


def licences(found: dict[str, Path]) -> dict[str, bytes]:
    """What the copies' packages say about their licences, if dpkg knows them."""
    texts = {"COPYING": (TOP / "COPYING").read_bytes()}
    for path in found.values():
        owner = ""
        for candidate in (path, path.resolve()):
            answer = subprocess.run(
                ["sh", "-c", 'dpkg -S "$1"', "sh", str(candidate)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            owner = owner or answer.stdout.split(":")[0]
        text = Path("/usr/share/doc") / owner / "copyright"
        if owner and text.exists():
            texts[owner] = text.read_bytes()
    return texts


def platform_tag(contents: dict[str, bytes]) -> str:
    """manylinux of the newest symbol version of libc that a file asks for."""
    minor = 17
    for content in contents.values():
        for number in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?\0", content):
            minor = max(minor, int(number))
    machine = sysconfig.get_platform().split("-")[-1].replace("-", "_")
    return f"manylinux_2_{minor}_{machine}"


class Wheel:
    """A wheel that is written."""

    def __init__(self, folder: str, tag: str) -> None:
        self.info = f"hetmem-{version()}.dist-info"
        self.name = f"hetmem-{version()}-py3-none-{tag}.whl"
        self.record: list[str] = []
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.zip = zipfile.ZipFile(Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)
        self.tag = tag

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        # The same bytes give the same wheel.
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
        self.record.append(
            f"{name},sha256={digest.decode().rstrip('=')},{len(content)}\n"
        )

    def close(self) -> str:
        self.add(f"{self.info}/METADATA", METADATA.format(version=version()).encode())
        self.add(
            f"{self.info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: hetmem\nRoot-Is-Purelib: false\n"
            f"Tag: py3-none-{self.tag}\n".encode(),
        )
        self.add(f"{self.info}/entry_points.txt", (COMMANDS + AUTOLOAD).encode())
        self.record.append(f"{self.info}/RECORD,,\n")
        self.zip.writestr(
            zipfile.ZipInfo(f"{self.info}/RECORD", (1980, 1, 1, 0, 0, 0)),
            "".join(self.record),
        )
        self.zip.close()
        return self.name


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    make_parts()
    contents = libraries()
    wheel = Wheel(wheel_directory, platform_tag(contents))
    for name, content in modules().items():
        wheel.add(name, content)
    for name, content in sorted(contents.items()):
        wheel.add(f"hetmem/lib/{name}", content, 0o755)
    found = needed([PARTS / "libhetmem.so", PARTS / "hetmem"])
    for name, text in sorted(licences(found).items()):
        wheel.add(f"{wheel.info}/licenses/{name}", text)
    return wheel.close()


def modules() -> dict[str, bytes]:
    """Name and contents of each file of Python's, and of what it compiles."""
    files = {
        path.relative_to(HERE).as_posix(): path.read_bytes()
        for path in sorted((HERE / "hetmem").rglob("*"))
        if path.suffix in (".py", ".typed")
    }
    files["hetmem_autoload.py"] = (HERE / "hetmem_autoload.py").read_bytes()
    for name, content in sorted(sources().items()):
        files[f"hetmem/torch_full/{name}"] = content
    return files


def install_system(folder: str, parts: list[str]) -> None:
    files = modules()
    files.update(
        (f"hetmem/lib/{Path(part).name}", Path(part).read_bytes()) for part in parts
    )
    info = f"hetmem-{version()}.dist-info"
    files[f"{info}/METADATA"] = METADATA.format(version=version()).encode()
    files[f"{info}/entry_points.txt"] = AUTOLOAD.encode()
    for name, content in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """The package where it is; it finds the library in build/."""
    make_parts()
    wheel = Wheel(wheel_directory, "any")
    wheel.add("hetmem.pth", f"{HERE}\n".encode())
    return wheel.close()


def build_sdist(
    sdist_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    raise SystemExit("backend.py: there is no source package: build a wheel")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(build_wheel(sys.argv[1]))
    elif len(sys.argv) > 3 and sys.argv[1] == "--system":
        install_system(sys.argv[2], sys.argv[3:])
    else:
        raise SystemExit(__doc__.split("\n\n")[1])
