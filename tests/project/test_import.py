"""`import evicp` is pure, light and complete; what is optional is optional."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import evicp
from places import ROOT

HEAVY = (
    *("torch", "torchvision", "timm", "numba", "llvmlite", "sklearn", "pandas", "polars", "scipy", "pyarrow"),
    *("safetensors", "typer", "rich", "matplotlib", "onnx", "onnxruntime", "ray", "transformers", "PIL"),
)


#: Every child process can pretend that packages are not installed.
BLOCK = """
def block(*names):
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name in names or name.partition(".")[0] in names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if names:
        sys.meta_path.insert(0, Blocker())

def say(act):
    try:
        act()
        print("fine")
    except ImportError as error:
        print(type(error).__name__, error)
"""


def python(code: str, folder: Path | None = None, backend: str = "numpy") -> str:
    """What a fresh process prints; on the reference backend, which compiles nothing, unless told otherwise."""
    result = subprocess.run(
        [sys.executable, "-c", BLOCK + textwrap.dedent(code)],
        cwd=folder,
        env=os.environ | {"EVICP_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_import_loads_nothing_heavy() -> None:
    code = f"""
        import sys, evicp
        print(*sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r})))
    """
    assert python(code).split() == []


def test_the_first_calibration_and_sets_load_nothing_optional() -> None:
    """The base needs NumPy, SciPy's special functions and the compiled kernels (if present); no more."""
    code = """
        import sys, evicp
        calibration = evicp.calibrate([[2.0, 0.0], [0.0, 3.0], [1.0, 0.5]], [0, 1, 0])
        sets = calibration.predict([[1.0, 0.9]], coverage=0.5)
        evicp.evaluate(sets, [0]).to_dict()
        optional = {"torch", "sklearn", "pandas", "polars", "pyarrow", "matplotlib", "onnx", "typer", "rich"}
        print(*sorted({name.partition(".")[0] for name in sys.modules} & optional))
    """
    assert python(code).split() == []


def test_import_is_fast() -> None:
    """At most 150 ms over NumPy's own import, or twice that where a busy machine slows both (processor time)."""
    code = """
        import time
        start = time.process_time()
        import numpy
        middle = time.process_time()
        import evicp
        print(middle - start, time.process_time() - middle)
    """
    numpys, ours = (min(times) for times in zip(*(map(float, python(code).split()) for _ in range(5)), strict=True))
    assert ours <= max(0.150, 2 * numpys)


def test_public_names_are_imported_when_first_used() -> None:
    """What few programs need is not imported, and yet found by attribute, by name and by completion."""
    code = """
        import sys, evicp
        print(*(module for module in evicp._LAZY if f"evicp.{module}" in sys.modules))
        assert {*evicp.__all__, *evicp._MODULES} <= set(dir(evicp))
        assert sorted(name for names in evicp._LAZY.values() for name in names) == sorted(evicp.__all__)
        for module, names in evicp._LAZY.items():
            for name in names:
                assert getattr(evicp, name) is getattr(sys.modules[f"evicp.{module}"], name)
        # those without the others need a package that may be missing
        for module in {*evicp._MODULES, *evicp._INNER_MODULES} - {"losses", "onnx", "ray", "sklearn", "torch"}:
            assert getattr(evicp, module) is sys.modules[f"evicp.{module}"]
        try:
            evicp.nothing
        except AttributeError as error:
            print(error)
    """
    assert python(code).splitlines() == ["", "module 'evicp' has no attribute 'nothing'"]


def test_no_module_takes_the_place_of_an_exported_name() -> None:
    """Importing a module puts it into its package; a package that prevents this cannot be pickled with functions."""
    code = """
        import pkgutil, types
        import evicp
        assert type(evicp) is types.ModuleType
        print(*{module.name for module in pkgutil.iter_modules(evicp.__path__)} & set(evicp.__all__))
    """
    assert python(code) == "\n"


def test_import_changes_nothing() -> None:
    code = """
        import os, random, sys, threading, warnings, logging
        import numpy as np
        def state():
            return (
                os.getcwd(), dict(os.environ), random.getstate(), np.random.get_state()[1].tolist(), np.geterr(),
                np.get_printoptions(), list(warnings.filters), logging.getLogger().handlers, threading.active_count(),
                sys.getrecursionlimit(), sys.excepthook, list(sys.meta_path), list(sys.path),
            )
        before = state()
        import evicp
        assert state() == before
    """
    assert python(code) == ""


# ---------------------------------------------------------------------------------------------------------------
# The public names


def exists(module: str) -> bool:
    """Whether there is a module of this name, loadable or not."""
    path = (ROOT / "src").joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def rank(name: str) -> tuple[int, str]:
    """Constants and acronyms, then classes, then functions, each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_exports_are_sorted_and_there() -> None:
    assert evicp.__all__ == sorted(set(evicp.__all__), key=rank)
    for name in evicp.__all__:
        assert hasattr(evicp, name)
    imported: dict[str, Any] = {}
    exec("from evicp import *", imported)  # what a user may type
    assert set(evicp.__all__) <= set(imported)
    with pytest.raises(AttributeError, match=r"^module 'evicp' has no attribute 'alpha'$"):
        _ = evicp.alpha


@pytest.mark.parametrize("name", sorted(set(evicp.__all__) - {"SCORES"}))
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(evicp, name)
    assert_documented(thing, name)
    if inspect.isclass(thing):
        for attribute, member in vars(thing).items():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                if attribute in ("formula", "parameters", "describe") and issubclass(thing, evicp.Score):
                    continue  # documented by the class they belong to
                assert_documented(member, f"{name}.{attribute}")


def assert_documented(thing: Any, name: str) -> None:
    text = inspect.getdoc(thing)
    assert text, name
    assert not text.startswith(f"{name}("), f"{name} has only the docstring that dataclass wrote"
    assert text.split("\n\n", maxsplit=1)[0].rstrip().endswith((".", ":", "?", ".)")), name


def test_every_parameter_and_result_is_annotated() -> None:
    for name in evicp.__all__:
        thing = getattr(evicp, name)
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not inspect.Signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)


def test_no_public_function_speaks_of_alpha() -> None:
    """In this paper alpha is the Dirichlet's (and an Opinion holds it); users say coverage."""
    for name in set(evicp.__all__) - {"Opinion"}:
        thing = getattr(evicp, name)
        functions = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
        for function in functions:
            if inspect.isfunction(function):
                assert "alpha" not in inspect.signature(function).parameters, name


PAGES = [path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")]
#: The modules that users import, which the reference shows; all others belong to evicp alone.
SHOWN = {name for text in PAGES for name in re.findall(r"^::: (evicp(?:\.[a-z_]+)+)$", text, re.M) if exists(name)}


@pytest.mark.parametrize("module", sorted(SHOWN))
def test_the_modules_export_what_they_have(module: str) -> None:
    try:
        loaded = importlib.import_module(module)
    except evicp.errors.MissingExtraError:
        pytest.skip("its package is not installed")
    assert loaded.__doc__
    assert loaded.__all__
    for name in loaded.__all__:
        constant = name.isupper() and not inspect.isclass(getattr(loaded, name))
        assert constant or inspect.getdoc(getattr(loaded, name)), name


def test_every_module_has_a_first_sentence() -> None:
    for info in pkgutil.iter_modules([str(Path(evicp.__file__).parent)]):
        source = Path(evicp.__file__).parent / (f"{info.name}/__init__.py" if info.ispkg else f"{info.name}.py")
        assert source.read_text("utf-8").startswith('"""'), info.name


def test_the_package_says_it_is_typed() -> None:
    assert (resources("evicp") / "py.typed").is_file()
    assert evicp.__version__.count(".") == 2


# ---------------------------------------------------------------------------------------------------------------
# Extras


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    code = """
        block("pyarrow", "pandas", "polars", "torch", "ml_dtypes")
        from pathlib import Path
        import evicp
        from evicp.io import files
        calibration = evicp.calibrate([[2.0, 0.0], [0.0, 3.0], [1.0, 0.5]], [0, 1, 0])
        sets = calibration.predict([[1.0, 0.9]], coverage=0.5)
        Path("rows.parquet").write_bytes(b"PAR1")
        say(sets.to_arrow)
        say(sets.to_pandas)
        say(lambda: files.write_sets(sets, "sets.parquet"))
        say(lambda: files.read_logits("rows.parquet"))
        say(lambda: files.read_sets("rows.parquet"))
        say(lambda: files.write_sets(sets, "sets.npz"))
        say(lambda: files.read_sets("sets.npz"))
        say(lambda: __import__("evicp.calibration.device"))
        print(*sorted(path.name for path in Path().iterdir()))
    """
    assert python(code, tmp_path).splitlines() == [
        "MissingExtraError an Arrow table needs pyarrow: pip install 'evicp[parquet]'",
        "MissingExtraError a data frame needs pandas: pip install 'evicp[pandas]'",
        "MissingExtraError an Arrow table needs pyarrow: pip install 'evicp[parquet]'",
        "MissingExtraError a parquet file needs pyarrow: pip install 'evicp[parquet]'",
        "MissingExtraError a parquet file needs pyarrow: pip install 'evicp[parquet]'",
        "fine",
        "fine",
        "MissingExtraError scoring on an accelerator needs torch: pip install 'evicp[torch]'",
        "rows.parquet sets.npz",
    ]


def test_a_missing_ray_is_one_sentence(tmp_path: Path) -> None:
    code = """
        block("ray")
        import sys
        say(lambda: __import__("evicp.ray"))
        import numpy as np
        np.savez("rows.npz", logits=np.eye(3), labels=np.arange(3))
        from evicp.cli import main
        sys.argv = ["evicp", "calibrate", "rows.npz", "-o", "cal.safetensors", "--engine", "ray"]
        sys.stderr = sys.stdout
        try:
            main()
        except SystemExit as error:
            print(error.code)
    """
    sentence = "the Ray adapter needs ray[data]: pip install 'evicp[ray]'"
    assert python(code, tmp_path).splitlines() == [f"MissingExtraError {sentence}", f"error: {sentence}", "1"]


def test_the_commands_and_benchmarks_load_where_there_is_no_resource_module() -> None:
    """As on Windows."""
    code = """
        block("resource")
        say(lambda: __import__("evicp.bench"))
        say(lambda: __import__("evicp.cli.commands"))
    """
    assert python(code).split() == ["fine", "fine"]


def test_every_benchmark_loads() -> None:
    """Those that need torch, where there is torch."""
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    if find_spec("torch") is None:
        names -= {"gpu", "paper_procedure", "peers"}
    code = f"""
        import importlib
        for name in {sorted(names)}:
            say(lambda: importlib.import_module(name))
    """
    assert set(python(code, ROOT / "benchmarks").split()) == {"fine"}


def test_the_compiled_kernels_may_be_missing() -> None:
    """The NumPy reference gives the same sets."""
    code = """
        block(*%r)
        import warnings
        warnings.simplefilter("ignore")  # that NumPy takes longer
        import numpy as np, evicp
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 6, 300)
        logits = rng.normal(size=(300, 6)) + 2 * np.eye(6)[labels]
        for score in ("ecp", "lac", "aps", "raps"):
            print(evicp.calibrate(logits, labels, score).predict(logits[:20], 0.9).to_lists())
    """
    without = python(code % (("evicp.kernels._core",),), backend="auto")
    assert without == python(code % ((),), backend="auto")
    assert without.count("[[") == 4


def test_every_extra_named_in_a_message_exists() -> None:
    """`pip install 'evicp[...]'` must not be advice that fails."""
    import tomllib

    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        named |= set(re.findall(r"missing_extra\(\s*\"[^\"]+\",\s*\"([^\"]+)\"", text))
        named |= set(re.findall(r"\bneed\(\s*f?\"[^\"]+\",\s*f?\"[^\"]+\",\s*\"([^\"]+)\"", text))
        named |= {extra for group in re.findall(r"evicp\[([a-z,-]+)\]", text) for extra in group.split(",")}
    assert {"parquet", "pandas", "ray", "huggingface"} <= named <= extras


def test_versions_name_the_kernels_instruction_set(capsys) -> None:
    evicp.show_versions()
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["evicp"] == evicp.__version__
    assert said["kernels"] in {"none", "portable", "v2", "v3", "v4"}
    assert said["numpy"] == version("numpy")
