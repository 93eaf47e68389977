"""Ray: calibrate and predict on a cluster, or on all processors of one machine; also straight from a model.

Rows are scored where they are and only scores (or sets) travel. A row's score is a function of that row, and a worker
that dies has its rows done again by another: results are those of one machine, to the bit, every row once.
"""

from evicp.errors import need

need("ray.data", "ray[data]", "ray", "the Ray adapter")

from evicp.ray.cluster import connected  # noqa: E402 - they import Ray
from evicp.ray.datasets import calibrate, predict  # noqa: E402
from evicp.ray.files import calibrate_files, predict_files  # noqa: E402

__all__ = ["calibrate", "calibrate_files", "connected", "predict", "predict_files"]
