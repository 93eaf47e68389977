"""Where things are, for tests in any folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GPU = ROOT / "tests" / "gpu"
SCHEMAS = ROOT / "tests" / "schemas"
