"""Try an installed wheel: the compiled kernels are in it, agree with the reference, and the command line runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import evicp
from evicp.datasets import load_imagenet_sample
from evicp.kernels import backend, level


def main() -> None:
    """Exit with an error where anything is wrong."""
    if level() == "none":
        raise SystemExit("the wheel has no compiled kernels.")
    sample = load_imagenet_sample()
    for score in ("ecp", "lac", "aps"):
        sets = {}
        for name in ("native", "numpy"):
            with backend(name):
                calibration = evicp.calibrate(sample.logits[:1250], sample.labels[:1250], score)
                sets[name] = calibration.predict(sample.logits[1250:], coverage=0.9)
        if not np.array_equal(sets["native"].mask(), sets["numpy"].mask()):
            raise SystemExit(f"the compiled kernels give other sets than the reference ({score}).")
        observed = sets["native"].contains(sample.labels[1250:]).mean()
        if not 0.87 < observed < 0.93:
            raise SystemExit(f"{score} covers {observed:.3f} for 0.9.")
    subprocess.run([sys.executable, "-m", "evicp", "plan", "--coverage", "0.9"], check=True, stdout=subprocess.DEVNULL)
    print(
        f"evicp {evicp.__version__} on Python {sys.version.split()[0]}: kernels at {level()}, sets as the reference's"
    )


if __name__ == "__main__":
    main()
