"""Kernels and the parts they are made of, compiled in as little time as Numba can be made to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from evicp.kernels._compiled.lanes import LANES
from evicp.kernels._compiled.toolchain import codegen, compiler, njit
from evicp.kernels._loading import Cache, uncollected

Function = TypeVar("Function", bound=Callable[..., Any])


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a part as it was written.

    Only kernels optimise what they merge and turn it into machine code. Numba would also do so for each part by itself:
    a fifth of the time of a first call.
    """

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, _name: str, _environment: Any) -> None:
        """There is nothing to tell a part about its environment: it raises no exceptions."""

    def get_pointer_to_function(self, _name: str) -> int:
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


#: Passes for what is not there: closures, array expressions, exceptions, functions merged before compilation.
_NEEDLESS = {"InlineClosureLikes", "InlineInlinables", "InlineOverloads", "NopythonRewrites", "RewriteDynamicRaises"}
_NEEDLESS |= {"MakeFunctionToJitFunction", "WithLifting", "LiteralUnroll", "LiteralPropagationSubPipelinePass"}


class _KernelCompiler(compiler.Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [step for step in pipeline.passes if step[0].__name__ not in _NEEDLESS]
        return pipelines

    def compile_extra(self, function: Any) -> Any:
        with uncollected():
            return super().compile_extra(function)


class _PartCompiler(_KernelCompiler):
    def compile_extra(self, function: Any) -> Any:
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


#: Nothing is allocated, so references are not counted: that takes atomic operations, and rows would wait for them.
_OPTIONS = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False, "pipeline_class": _KernelCompiler}
_PART: dict[str, Any] = {"no_cpython_wrapper": True, **_OPTIONS}
#: What is taken over from Numba's own library; a version without these compiles parts its own way.
_STEPS = ("_ensure_finalized", "_finalize_dynamic_globals", "_optimize_final_module", "_finalize_final_module")
if all(hasattr(codegen.JITCodeLibrary, step) for step in _STEPS):
    _PART["pipeline_class"] = _PartCompiler


def _called(function: Function) -> Function:
    """A part that the compiler may leave as a function of its own."""
    return cast("Function", njit(**_PART)(function))


def _inlined(function: Function) -> Function:
    """A part that is merged into its callers: a call with a row's statistics as arguments costs more than its work."""
    return cast("Function", njit(forceinline=True, **_PART)(function))


@_inlined
def _join(low: Any, high: Any) -> Any:
    """The bits of two lane vectors as those of one twice as wide."""
    return np.uint32(low | (high << np.uint32(LANES)))


def _kernel(function: Function) -> Function:
    """A compiled entry point, kept on disk; where no folder can be written to, compiled once a process."""
    kernel = njit(nogil=True, **_OPTIONS)(function)
    kernel._cache = Cache(function)
    return cast("Function", kernel)
