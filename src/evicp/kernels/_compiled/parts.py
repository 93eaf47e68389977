"""Kernels and the parts they are made of, compiled in as little time as Numba can be made to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from evicp.kernels._compiled.lanes import LANES
from evicp.kernels._compiled.toolchain import codegen, compiler, llvm, njit, types
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

    def _optimize_functions(self, module: Any) -> None:
        """Only what makes a part shorter: all else that Numba does to it is done again where it has been merged."""
        if not _CAN_SHORTEN:
            super()._optimize_functions(module)
            return
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes = llvm.create_new_function_pass_manager()
                for name in _SHORTER:
                    getattr(passes, name)()
                passes.run(function, llvm.create_pass_builder(self._codegen._tm, llvm.create_pipeline_tuning_options()))

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


#: LLVM's passes that make a part shorter, and whether this version of llvmlite has them; others leave that to Numba.
_SHORTER = ("add_sroa_pass", "add_instruction_combine_pass", "add_simplify_cfg_pass")
_CAN_SHORTEN = all(hasattr(getattr(llvm, "FunctionPassManager", None), name) for name in _SHORTER)


class _Typing:
    """Numba's rules for types, asked the same question once for each kernel.

    Numba would go through all rules of an operator wherever one stands.
    """

    answers: ClassVar[dict[Any, Any]] = {}

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def resolve_function_type(self, function: Any, arguments: Any, keywords: Any) -> Any:
        """The signature of a call."""
        if keywords or isinstance(function, types.Dispatcher):  # that of a part, which is compiled meanwhile
            return self._own.resolve_function_type(function, arguments, keywords)
        question = function, arguments
        if question not in self.answers:
            self.answers[question] = self._own.resolve_function_type(function, arguments, keywords)
        return self.answers[question]


#: Passes for what is not there: closures, array expressions, exceptions, functions merged before compilation; and one
#: that works out again what is known and soon changes.
_NEEDLESS = {"InlineClosureLikes", "InlineInlinables", "InlineOverloads", "NopythonRewrites", "RewriteDynamicRaises"}
_NEEDLESS |= {"MakeFunctionToJitFunction", "WithLifting", "LiteralUnroll", "LiteralPropagationSubPipelinePass"}
_NEEDLESS |= {"IRProcessing"}


class _Compiler(compiler.Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [step for step in pipeline.passes if step[0].__name__ not in _NEEDLESS]
        return pipelines

    def compile_extra(self, function: Any) -> Any:
        self.state.typingctx = _Typing(self.state.typingctx)
        return super().compile_extra(function)


class _KernelCompiler(_Compiler):
    def compile_extra(self, function: Any) -> Any:
        with uncollected():
            try:
                return super().compile_extra(function)
            finally:
                _Typing.answers.clear()


class _PartCompiler(_Compiler):
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
