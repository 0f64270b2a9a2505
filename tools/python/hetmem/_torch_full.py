# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The companion of full mode: finds it, or compiles it for the installed PyTorch.

A binary is for one minor version of PyTorch and for every Python. Compiled ones are in
the user's cache, under a name that changes with PyTorch, the source and the ABI.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _library
from ._library import HetmemError
from ._log import LOGGER, timed

_SOURCE = "torch_full.cc"
_COMPILE_S = 600
# Before it, the allocator's interface was another one.
_OLDEST = (2, 11)


def _refuse(text: str) -> HetmemError:
    return HetmemError(errno.EOPNOTSUPP, f"no full mode: {text}")


def _version(torch: Any) -> str:
    """2.11 of 2.11.0+cu130"""
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _sources() -> tuple[Path, Path, Path]:
    """The companion's source, the headers of the library, and what CUDA's lack."""
    here = Path(__file__).resolve().parent
    own = here / "torch_full"
    if own.exists():
        return own / _SOURCE, own / "include", own / "cuda"
    top = here.parents[2]
    python = top / "tools" / "python"
    if not (python / _SOURCE).exists():
        raise _refuse(f"the package has no {_SOURCE}: install the wheel")
    return python / _SOURCE, top / "include", python / "cuda"


def _cuda_headers(torch_folder: Path) -> list[Path]:
    """The folders with the headers of the CUDA Runtime."""
    site = torch_folder.parent
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/usr"]
    found = [
        *(Path(path) for path in sorted(glob.glob(f"{site}/nvidia/*/include"))),
        *(Path(place) / "include" for place in places if place),
    ]
    runtime = [path for path in found if (path / "cuda_runtime_api.h").exists()]
    if not runtime:
        raise _refuse(
            "there are no headers of the CUDA Runtime: "
            "install the package nvidia-cuda-runtime, or set CUDA_HOME"
        )
    compiler = [path for path in found if (path / "crt" / "host_defines.h").exists()]
    return [runtime[0], *compiler]


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    for candidate in (given, ["g++"], ["c++"]):
        if candidate and shutil.which(candidate[0]):
            return candidate
    raise _refuse("there is no C++ compiler: install g++")


def _flags(torch: Any, source: Path, headers: Path, lacking: Path) -> list[str]:
    folder = Path(torch.__file__).resolve().parent
    include = folder / "include"
    if not (include / "torch/csrc/cuda/CUDAPluggableAllocator.h").exists():
        raise _refuse(f"{folder} has no headers of PyTorch")
    libraries = [
        folder / "lib" / f"lib{name}.so" for name in ("torch_cuda", "c10_cuda", "c10")
    ]
    missing = [path for path in libraries if not path.exists()]
    if missing:
        raise _refuse(f"there is no {missing[0]}")
    system = [
        include,
        include / "torch/csrc/api/include",
        *_cuda_headers(folder),
        lacking,
    ]
    library = _library.path()
    return [
        "-std=c++20",
        "-O2",
        "-g0",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{headers}",
        f"-I{headers / 'uapi'}",
        *(part for path in system for part in ("-isystem", str(path))),
        str(source),
        # By their names they are what PyTorch has loaded: no path is kept.
        library if "/" in library else f"-l:{library}",
        *(str(path) for path in libraries),
    ]


def _private_folder() -> Path:
    """Where compiled ones are kept. Another user must not be able to write there."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(cache) / "hetmem" / "torch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise _refuse(f"{folder}: {error.strerror}: set XDG_CACHE_HOME") from None
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refuse(
            f"others can write {folder}: change its owner and mode, "
            "or set XDG_CACHE_HOME"
        )
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Of several processes one compiles."""
    with open(folder / "lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(torch: Any, command: list[str], source: Path, headers: Path) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(headers.rglob("*.h"))):
        digest.update(path.read_bytes())
    abi = [flag for flag in command if flag.startswith(("-D", "-std"))]
    digest.update(repr((torch.__version__, torch.version.git_version, abi)).encode())
    return f"{_version(torch)}-{digest.hexdigest()[:16]}"


def _compile(command: list[str], target: Path) -> None:
    """Makes @target, or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = os.path.join(folder, target.name)
        try:
            result = subprocess.run(
                [*command, "-o", made],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_COMPILE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refuse(f"{command[0]} failed: {error}") from None
        if result.returncode:
            lines = [line for line in result.stdout.splitlines() if "error" in line]
            first = (lines or result.stdout.splitlines() or ["no message"])[0]
            raise _refuse(f"{command[0]} cannot compile {_SOURCE}: {first}")
        os.replace(made, target)


def _compiled(torch: Any, again: bool) -> str:
    source, headers, lacking = _sources()
    flags = _flags(torch, source, headers, lacking)
    folder = _private_folder()
    key = _key(torch, flags, source, headers)
    target, failed = folder / f"{key}.so", folder / f"{key}.failed"
    if target.exists():
        return str(target)
    with _locked(folder):
        if target.exists():
            return str(target)
        # A compiler that failed once fails at each start, and takes its time.
        if failed.exists() and not again:
            raise _refuse(failed.read_text(encoding="utf-8"))
        try:
            LOGGER.info("compiling full mode for PyTorch %s", torch.__version__)
            with timed("compiled %s", target):
                _compile([*_compiler(), *flags], target)
        except HetmemError as error:
            text = str(error.strerror).split(": ", 1)[1]
            failed.write_text(text, encoding="utf-8")
            raise
        failed.unlink(missing_ok=True)
    return str(target)


def _prebuilt(torch: Any) -> str | None:
    """One that came with the package. They are compiled for releases of PyTorch."""
    name = f"libhetmem-torch-{_version(torch)}.so"
    found = [os.path.join(folder, name) for folder in _library.folders()]
    path = next((path for path in found if os.path.exists(path)), None)
    release = re.fullmatch(r"\d+\.\d+\.\d+(\+.*)?", torch.__version__)
    return path if path and release and torch.compiled_with_cxx11_abi() else None


def _load(torch: Any, path: str) -> Any:
    try:
        companion = ctypes.CDLL(path)
        companion.hetmem_full_version.restype = ctypes.c_char_p
        version = companion.hetmem_full_version().decode()
    except (OSError, AttributeError) as error:
        raise _refuse(f"{path} cannot be loaded: {error}") from None
    if version.split(".")[:2] != _version(torch).split("."):
        raise _refuse(f"{path} is for PyTorch {version}, not {torch.__version__}")
    if not hasattr(companion, "hetmem_full_record_unified"):
        raise _refuse(f"{path} is of an older version of the package")
    return companion


def find(torch: Any, again: bool) -> Any:
    """The companion, loaded. @again: compile, even if that failed before.

    A PyTorch that was compiled in another way can lack what the package's own
    companion needs: then one is compiled.
    """
    if tuple(int(part) for part in _version(torch).split(".")) < _OLDEST:
        raise _refuse(
            f"PyTorch {torch.__version__} is too old: "
            f"install {_OLDEST[0]}.{_OLDEST[1]} or later"
        )
    path = _prebuilt(torch)
    if path is None:
        return _load(torch, _compiled(torch, again))
    try:
        return _load(torch, path)
    except HetmemError as error:
        first = str(error.strerror).split(": ", 1)[1]
    try:
        return _load(torch, _compiled(torch, again))
    except HetmemError as error:
        second = str(error.strerror).split(": ", 1)[1]
    raise _refuse(f"{first}; {second}")


def enable(torch: Any, again: bool) -> None:
    """Makes the companion PyTorch's allocator. After an error nothing has changed."""
    # The companion takes the library that is loaded already: the package's.
    _, shim = _library.shim()
    companion = find(torch, again)
    text = ctypes.create_string_buffer(1000)
    companion.hetmem_full_enable.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if companion.hetmem_full_enable(text, len(text)):
        raise HetmemError(errno.EBUSY, text.value.decode(errors="replace"))
    record_unified = companion.hetmem_full_record_unified
    record_unified.argtypes = [ctypes.c_void_p]
    record_unified.restype = None
    record_unified(_library.address(shim, "hetmem_unified_record"))
