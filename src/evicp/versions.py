"""Version information for bug reports."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import evicp
from evicp import kernels

#: What evicp needs, and what it works with where it is installed.
_PACKAGES = (
    *("numpy", "scipy", "safetensors", "typer", "rich", "scikit-learn", "pyarrow", "pandas"),
    *("torch", "triton", "onnx", "onnxruntime", "ray"),
)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def show_versions() -> None:
    """Print the versions of evicp, Python and packages, the system, and the instruction set of the compiled kernels."""
    lines = [
        ("evicp", evicp.__version__),
        ("kernels", kernels.level()),
        ("python", sys.version.replace("\n", " ")),
        ("system", platform.platform()),
        *((package, _version(package)) for package in _PACKAGES),
    ]
    sys.stdout.writelines(f"{name:13} {what}\n" for name, what in lines)
