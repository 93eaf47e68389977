"""What `against_version.py` runs with each version's Python: a line of JSON names a call, its seconds are printed."""

from __future__ import annotations

import json
import sys
import time
from functools import cache, partial

from evicp import Calibrator, calibrate, kernels
from evicp.bench import imagenet_like

cached_logits = cache(imagenet_like)


def seconds(n: int, k: int, score: str, what: str) -> tuple[float, float]:
    """Wall and CPU seconds of label scores, a calibration, or the sets of n rows of k logits."""
    logits, labels = cached_logits(n, k)
    if what == "label scores":
        call = partial(kernels.label_scores, Calibrator(score).score, logits, labels)
    elif what == "calibrate":
        call = partial(calibrate, logits, labels, score)
    else:
        call = partial(calibrate(logits[:5000], labels[:5000], score).predict, logits, 0.9)
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(seconds(**json.loads(line))), flush=True)
