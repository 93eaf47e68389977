"""What is needed of Numba and LLVM, imported by name: the stubs of these packages come and go with their versions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

if import_module("numba").config.DISABLE_JIT:
    raise ImportError("Numba's compiler is switched off (NUMBA_DISABLE_JIT)")
njit: Any = import_module("numba").njit
types: Any = import_module("numba.core.types")
cgutils: Any = import_module("numba.core.cgutils")
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")
extending: Any = import_module("numba.extending")
numpy_support: Any = import_module("numba.np.numpy_support")
templates: Any = import_module("numba.core.typing.templates")
ir: Any = import_module("llvmlite.ir")
llvm: Any = import_module("llvmlite.binding")
