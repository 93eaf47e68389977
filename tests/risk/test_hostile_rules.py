"""Files of rules with a right checksum and wrong content: one typed error, or a rule that works, and nothing else."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.calibration.laws.law import canonical
from evicp.cli.rules import RULES
from evicp.errors import ArtifactError, EvicpError
from evicp.io import artifact
from evicp.risk.files import _names_of, load_rule

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")]

K = 4
VALUES = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "1/2",
    "3/1",
    "1/0",
    "-1/2",
    [],
    [1],
    ["a", "a"],
    {"a": 1},
    10**30,
    "NaN",
    "custom",
]


def tensors(given: np.ndarray) -> Iterator[np.ndarray]:
    yield from (given[:0], given[:-1], np.concatenate([given, given]), given[::-1].copy())
    yield from (np.full_like(given, np.nan), np.full_like(given, np.inf), -given - 1, given + 0.5, np.zeros_like(given))


def rules() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 400)
    logits = rng.normal(size=(400, K)) * 1.5 + 3 * np.eye(K)[labels]
    truth = np.eye(K, dtype=bool)[labels]
    return {
        "costs": evicp.control_risk(logits, labels, risk=0.1, class_costs=[1, 2, 3, 4]),
        "matrix": evicp.control_risk(logits, labels, risk=0.1, loss=1 - np.eye(K), confidence=0.9),
        "answers": evicp.selective(logits, labels, error=0.3, most=2, doubt="margin", candidates=[-0.5, 0.0]),
        "groups": evicp.selective(logits, labels, error=0.3, by=labels % 2),
        "labels": evicp.multilabel(logits, truth, missed=0.3, confidence=0.9, precision=0.7),
        "by label": evicp.multilabel(logits, truth, by_label=True),
    }


def places(content: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items() if isinstance(content, dict) else ():
        yield (*above, key)
        yield from places(value, (*above, key))


def altered(content: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A description with another value in a place; with nothing there for `...`."""
    result = copy.deepcopy(content)
    around = result
    for key in place[:-1]:
        around = around[key]
    if value is ...:
        del around[place[-1]]
    else:
        around[place[-1]] = value
    return result


def attacks(content: dict[str, Any], arrays: dict[str, np.ndarray], every: int) -> Iterator[Any]:
    texts = [altered(content, place, value) for place in places(content) for value in (*VALUES, ...)]
    yield from ((text, arrays) for text in texts[::every])
    for name, given in arrays.items():
        yield from ((content, {**arrays, name: other}) for other in tensors(given))
        yield content, {other: array for other, array in arrays.items() if other != name}
    yield content, {**arrays, "rule.more": np.zeros(3)}


@pytest.mark.parametrize("name", rules())
def test_one_typed_error_or_a_rule_that_works(name: str, tmp_path: Path, long_run: bool, figure: Any) -> None:
    path, logits = tmp_path / "rule.safetensors", np.random.default_rng(1).normal(size=(20, K))
    rules()[name].save(path)
    with path.open("rb") as file:
        metadata, arrays = artifact._read_artifact(file, _names_of)
    tried = slowest = 0
    for content, own in attacks(json.loads(metadata["evicp"]), arrays, 1 if long_run else 5):
        artifact.write_sealed(path, canonical(content), own, overwrite=True)
        start, tried = time.perf_counter(), tried + 1
        try:
            rule = load_rule(path, RULES)
        except ArtifactError:
            continue
        finally:
            slowest = max(slowest, time.perf_counter() - start)
        assert rule.certificate().to_json()
        try:
            rule.predict(logits, **({"groups": np.zeros(20, int)} if name == "groups" else {}))
        except EvicpError:
            continue
    figure("attacks on rules", tried)
    assert slowest < 1
