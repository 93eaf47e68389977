"""The page on hubs, MLflow, Spark and Dask: its code runs where their packages are, and prints what the page says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pages import runs_and_prints_what_it_says
from places import DOCS

for package in ("huggingface_hub", "mlflow", "pyspark", "dask"):
    pytest.importorskip(package, reason="not all packages of the page are installed: make test-adapters")


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_every_block_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    runs_and_prints_what_it_says(DOCS / "platforms.md", tmp_path)
