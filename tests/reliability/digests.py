"""One hash over everything a calibration gives, computed in one of many ways: `digests.py BACKEND BLOCK WAY`."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import evicp
from evicp import kernels
from evicp.input import validate

SCORES = (
    evicp.ECP(),
    evicp.ECP(stabilizer=0, evidence="softplus"),
    evicp.LAC(),
    evicp.APS(),
    evicp.RAPS(),
    evicp.SAPS(),
)


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(12)
    labels = rng.integers(0, 100, 3000)
    return (2 * rng.normal(size=(3000, 100)) + 4 * np.eye(100)[labels]).astype(np.float32), labels


def arrays(score: evicp.Score) -> list[Any]:
    """Scores, sets, p-values, metrics and the bytes of the file, on the CPU backend in force."""
    logits, labels = problem()
    calibration = evicp.calibrate(logits[:1500], labels[:1500], score)
    sets = calibration.predict(logits[1500:], [0.8, 0.9, 0.99])
    with tempfile.TemporaryDirectory() as folder:
        calibration.save(Path(folder) / "c.safetensors")
        content = (Path(folder) / "c.safetensors").read_bytes()
    found = repr([evicp.evaluate(s, labels[1500:]).to_dict() for s in sets]).encode()
    parts = [part for s in sets for part in (s.offsets, s.labels)]
    return [calibration.scores, *parts, calibration.p_values(logits[1500:1600]), content, found]


def tensors(score: evicp.Score) -> list[Any]:
    """Scores and sets of the torch kernels."""
    import torch

    from evicp.kernels import _torch

    torch.set_num_threads(int(os.environ["EVICP_THREADS"]))
    logits, labels = (torch.from_numpy(part) for part in problem())
    own = _torch.label_scores(score, logits[:1500], labels[:1500])
    threshold = float(np.sort(own.numpy())[1350])
    return [own.numpy(), *(part.numpy() for part in _torch.ragged_sets(score, logits[1500:], threshold))]


def digest(backend: str, block: int) -> str:
    """The hash of all scores' results."""
    if block:
        validate.BLOCK_LOGITS = block
        if backend == "torch":
            from evicp.kernels import _torch

            _torch.BLOCK_LOGITS = block
    found = hashlib.sha256()
    with kernels.backend("numpy" if backend == "torch" else backend):
        for score in SCORES:
            for part in tensors(score) if backend == "torch" else arrays(score):
                found.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def main(backend: str, block: int, way: str) -> str:
    """The hash computed here, or in a child started one way or the other (after this process has computed it too)."""
    here = digest(backend, block)
    if way == "here":
        return here
    with multiprocessing.get_context(way).Pool(1) as pool:
        there = pool.apply(digest, (backend, block))
    assert there == here
    return there


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))  # noqa: T201
