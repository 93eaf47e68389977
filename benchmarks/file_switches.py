"""How many functions a call runs, and how often the next one stands in another file: what a reader has to follow."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np

import evicp
from evicp.cli import app

SOURCE = str(Path(evicp.__file__).parent)


def followed(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """What a call gives, how many functions of evicp it runs, and how many of these are called from another file."""
    calls = switches = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, switches
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(SOURCE) or frame.f_code.co_name.startswith("<"):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        calls += 1
        switches += caller is not None and caller.f_code.co_filename != file

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, calls, switches


def main() -> None:
    """Print both numbers for `calibrate`, for the first and the second `predict`, and for `evicp predict`."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 500)
    logits = (rng.normal(size=(500, 10)) + 3 * np.eye(10)[labels]).astype(np.float32)
    evicp.calibrate(logits, labels).predict(logits, 0.9)  # what is imported and chosen but once
    calibration, calls, switches = followed(lambda: evicp.calibrate(logits, labels))
    print(f"calibrate: {calls} calls, {switches} file switches")
    for time in ("first", "second"):
        _, calls, switches = followed(lambda: calibration.predict(logits, 0.93))
        print(f"{time} predict: {calls} calls, {switches} file switches")
    with TemporaryDirectory() as name, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        folder = Path(name)
        np.savez(folder / "new.npz", logits=logits)
        calibration.save(folder / "cal.safetensors")
        files = [str(folder / file) for file in ("cal.safetensors", "new.npz", "sets.parquet")]
        command = ["predict", *files[:2], "--force", "-o", files[2]]
        app(command, standalone_mode=False)
        _, calls, switches = followed(lambda: app(command, standalone_mode=False))
    print(f"evicp predict: {calls} calls, {switches} file switches")


if __name__ == "__main__":
    main()
