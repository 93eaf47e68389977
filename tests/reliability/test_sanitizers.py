"""The tests of the compiled kernels under sanitizers, which must also find two defects put there on purpose."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("evicp.kernels._core")

import sanitize

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(os.environ.get("EVICP_RELIABILITY") != "long", reason="runs with EVICP_RELIABILITY=long"),
    pytest.mark.skipif(shutil.which(sanitize.COMPILER) is None, reason="needs a C++ compiler"),
]


@pytest.mark.parametrize("seed", sanitize.SEEDS, ids=lambda seed: seed.name)
def test_control_a_seeded_defect_is_reported(seed: sanitize.Seed, tmp_path: Path, figure) -> None:
    source = sanitize.build(tmp_path, seed.sanitizer, seed)
    passed, said = sanitize.run(source, seed.sanitizer, sanitize.levels()[0])
    assert not passed, said
    assert "Sanitizer" in said
    figure("seeded defects reported", 1)


@pytest.mark.parametrize("sanitizer", sanitize.SANITIZERS, ids=lambda sanitizer: sanitizer.checks)
def test_nothing_is_reported_at_any_level(sanitizer: sanitize.Sanitizer, tmp_path: Path, figure) -> None:
    source = sanitize.build(tmp_path, sanitizer)
    for level in sanitize.levels():
        passed, said = sanitize.run(source, sanitizer, level)
        assert passed, f"{level}: {said}"
        figure("runs without a report", 1)
