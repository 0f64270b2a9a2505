# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Enables hetmem.torch in processes whose program does not call it.

`import torch` calls enable(), by the package's entry point in the group torch.backends.
HETMEM_TORCH and HETMEM_RESOURCE of the environment are the mode and the spec, which
spawned children inherit. Without HETMEM_TORCH nothing else is imported. A failure is a
warning: `import torch` never fails by it.
"""

import os

MODES = ("full", "plain", "auto")


def _warn(text: str) -> None:
    import sys  # noqa: PLC0415
    import warnings  # noqa: PLC0415

    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        # Warnings are errors in this process.
        print(f"hetmem: {text}", file=sys.stderr)


def _enable(mode: str) -> None:
    if mode not in MODES:
        _warn(
            f"HETMEM_TORCH={mode} is no mode: set it to {', '.join(MODES)}, or unset "
            "it. PyTorch has its own allocator"
        )
        return
    try:
        import hetmem.torch  # noqa: PLC0415

        hetmem.torch.enable(mode=mode)
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        _warn(f"HETMEM_TORCH={mode}: {reason}. PyTorch has its own allocator")


def enable() -> None:
    mode = os.environ.get("HETMEM_TORCH")
    if mode:
        _enable(mode)
