"""Sixteen threads that all find nothing compiled and share one calibration get what one thread gets."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import evicp

pytestmark = pytest.mark.reliability

CODE = """
    import sys, threading
    import numpy as np
    import evicp
    calls = int(sys.argv[1])
    calibration = evicp.load("cal.safetensors")
    logits = np.load("logits.npy")
    start, failures, results = threading.Barrier(16), [], {}

    def ask(number):
        row = number % len(logits)
        sets = calibration.predict(logits[row], [0.8, 0.95], allow_empty=number % 3 == 0)
        return (
            *(part.tobytes() for s in sets for part in (s.offsets, s.labels)),
            calibration.p_values(logits[row]).tobytes(),
            calibration.threshold(0.5 + row / 1000),
        )

    def many(thread):
        try:
            start.wait()
            for number in range(calls):
                results[thread, number] = ask(thread + 16 * number)
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    different = sum(answer != ask(thread + 16 * number) for (thread, number), answer in results.items())
    print(len(failures), len(results), different)
"""


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_sixteen_cold_threads_on_one_object(backend: str, tmp_path: Path, long_run: bool, figure) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 30)).astype(np.float32)
    evicp.calibrate(logits[:150], rng.integers(0, 30, 150), "aps").save(tmp_path / "cal.safetensors")
    np.save(tmp_path / "logits.npy", logits[150:])
    calls = 1000 if long_run else 20
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), str(calls)],
        cwd=tmp_path,
        env=os.environ | {"EVICP_BACKEND": backend, "EVICP_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    failures, answered, different = map(int, done.stdout.split())
    figure("calls", answered)
    figure("answers unlike the serial one", different)
    assert (failures, answered, different) == (0, 16 * calls, 0)
