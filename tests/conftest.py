"""Fixtures every test may use: the real data beside the repository, each CPU backend, the length of a run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from evicp import kernels

_REPOSITORY = Path(__file__).resolve().parents[1]
_LONG = os.environ.get("EVICP_RELIABILITY") == "long"

_common = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.function_scoped_fixture]}
hypothesis.settings.register_profile("fast", max_examples=80, derandomize=True, **_common)
hypothesis.settings.register_profile("long", max_examples=5_000, **_common)  # on each of two backends
hypothesis.settings.load_profile("long" if _LONG else "fast")


def pytest_configure(config: pytest.Config) -> None:
    """Markers, named here so that the tests bring what they need."""
    config.addinivalue_line(
        "markers", "reliability: a row of the reliability scoreboard; EVICP_RELIABILITY=long runs it at full length"
    )
    config.addinivalue_line("markers", "long: a case that only the long run tries")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases marked `long` out of the usual run."""
    left_out = [] if _LONG else [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """80 rows of 4 classes and their labels."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 80)
    return rng.normal(size=(80, 4)) + 2 * np.eye(4)[labels], labels


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Whether the reliability tests run at full length."""
    return _LONG


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Keep a measured figure beside a test's verdict; `--junitxml` writes them out."""
    return lambda name, value: request.node.user_properties.append((name, value))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread for torch: small work on a busy machine is done sooner by it than by two that wait for each other."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real logits and golden values beside the repository; skips where it is absent."""
    folder = _REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real logits is not beside the repository")
    return folder


@pytest.fixture(scope="session")
def native_available() -> bool:
    """Whether the compiled backend can be imported here."""
    try:
        importlib.import_module("evicp.kernels._native")
    except ImportError:
        return False
    return True


@pytest.fixture(params=["numpy", "native"])
def cpu_backend(request: pytest.FixtureRequest, native_available: bool) -> Iterator[str]:
    """Run the test once under each CPU backend."""
    if request.param == "native" and not native_available:
        pytest.skip("the compiled backend cannot be imported here")
    with kernels.backend(request.param):
        yield request.param


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """torchvision, also where its compiled operators were built for another torch: classifiers need none of them."""
    torch = pytest.importorskip("torch")
    try:
        import torchvision
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".", maxsplit=1)[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.kept_alive_for_tests = library
    return torchvision
