"""For the reference: members without an underscore that other modules of evicp need, and users do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import griffe

#: By class, what is public to evicp only. All else of the classes that a module's `__all__` names is shown.
INNER: Mapping[str, tuple[str, ...]] = {
    "evicp.calibration.calibration.Calibration": (
        "classes",
        "comparable",
        "compared_with",
        "no_sets",
        "predict_levels",
    ),
    "evicp.calibration.calibrator.Calibrator": ("called", "content", "empty", "learned", "restore"),
    "evicp.calibration.laws.groups.ByClass": ("fit", "fitted", "keys", "names", "numbers", "of_labels"),
    "evicp.calibration.laws.groups.ByGroup": ("fit", "fitted", "keys", "names", "numbers"),
    "evicp.calibration.laws.groups.ByUncertainty": ("fit", "fitted", "keys", "names", "numbers"),
    "evicp.method.ecp.ECP": ("epsilon", "evidence_of", "log_utility_of", "monotone", "rates"),
    "evicp.sets.PredictionSets": ("about", "classes", "holds", "numbers", "replaced"),
    "evicp.torch.SetPredictor": ("get_extra_state", "set_extra_state"),
    "evicp.evaluation.tuning.Auto": ("choose",),
    "evicp.evaluation.tuning.Tuned": ("choose",),
}


class Public(griffe.Extension):
    """Take them out of what the reference sees, under whatever name it looks at them."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through evicp once it is loaded."""
        for path, names in INNER.items():
            owner = pkg[path.removeprefix(f"{pkg.path}.")]
            for name in names:
                owner.del_member(name)
