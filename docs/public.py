"""For the reference: leave out members that only other modules of evicp use, and the `**unknown` of better errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import griffe

#: By class, what is public to evicp only. All else of the classes that a module's `__all__` names is shown.
INNER: Mapping[str, tuple[str, ...]] = {
    "evicp.calibration.calibrator.Calibrator": ("called", "content", "empty", "kind", "learned", "restore"),
    "evicp.calibration.laws.by_class.ByClass": ("count", "fit", "fitted", "keys", "names", "numbers", "of_labels"),
    "evicp.calibration.laws.by_group.ByGroup": ("count", "fit", "fitted", "keys", "names", "numbers"),
    "evicp.calibration.laws.by_uncertainty.ByUncertainty": ("count", "fit", "fitted", "keys", "names", "numbers"),
    "evicp.calibration.laws.overlapping.OverlappingGroups": ("keys", "law_of", "members"),
    "evicp.method.ecp.ECP": ("epsilon", "evidence_of", "log_utility_of", "monotone", "rates"),
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

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Leave out the keyword arguments that a function takes only to refuse them."""
        if "unknown" in func.parameters:
            del func.parameters["unknown"]
