"""Ray: calibrate and predict on a cluster, or on all processors of one machine; also directly from a model.

Workers score their rows, and only scores or sets are transferred. If a worker dies, another repeats its rows. Results
are identical to those of one machine, with every row once.
"""

from evicp.errors import need

need("ray.data", "ray[data]", "ray", "the Ray adapter")

from evicp.ray.cluster import connected  # noqa: E402 - they import Ray
from evicp.ray.datasets import calibrate, predict  # noqa: E402
from evicp.ray.files import calibrate_files, predict_files  # noqa: E402

__all__ = ["calibrate", "calibrate_files", "connected", "predict", "predict_files"]
