"""evicp: prediction sets with a coverage guarantee from any classifier's logits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evicp.calibration import Calibration, Calibrator, calibrate
from evicp.errors import EvicpError, EvicpWarning
from evicp.evidence import Opinion, opinion
from evicp.explain import Explanation, explain
from evicp.groups import ByClass, ByGroup, ByUncertainty
from evicp.metrics import Evaluation, evaluate
from evicp.reliability import Certificate, Reliability, conformal_rank, pac_rank, plan
from evicp.scores import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, Custom, Margin, Score, TopK
from evicp.sets import PredictionSets
from evicp.shift import estimate_class_frequencies, label_shift_weights

if TYPE_CHECKING:
    from evicp.artifact import load
    from evicp.cross import CrossCalibration
    from evicp.density import DensityRatio, estimate_density_ratio
    from evicp.extraction import Extraction, extract
    from evicp.monitor import AdaptiveLevel, Monitor
    from evicp.selection import Comparison, compare
    from evicp.slices import WorstSlice, worst_slice
    from evicp.temperature import TemperatureFit, fit_temperature
    from evicp.tuning import Tuned, Tuning, tune
    from evicp.versions import show_versions

__version__ = "0.1.0"

__all__ = [
    "APS",
    "ECP",
    "LAC",
    "RAPS",
    "SAPS",
    "SCORES",
    "AdaptiveLevel",
    "Base",
    "ByClass",
    "ByGroup",
    "ByUncertainty",
    "Calibration",
    "Calibrator",
    "Certificate",
    "Comparison",
    "CrossCalibration",
    "Custom",
    "DensityRatio",
    "Evaluation",
    "EvicpError",
    "EvicpWarning",
    "Explanation",
    "Extraction",
    "Margin",
    "Monitor",
    "Opinion",
    "PredictionSets",
    "Reliability",
    "Score",
    "TemperatureFit",
    "TopK",
    "Tuned",
    "Tuning",
    "WorstSlice",
    "calibrate",
    "compare",
    "conformal_rank",
    "estimate_class_frequencies",
    "estimate_density_ratio",
    "evaluate",
    "explain",
    "extract",
    "fit_temperature",
    "label_shift_weights",
    "load",
    "opinion",
    "pac_rank",
    "plan",
    "show_versions",
    "tune",
    "worst_slice",
]

#: Rooms entered when first asked for, and what they hold: few programs need them, and all would pay for their import.
_LAZY = {
    "artifact": ("load",),
    "cross": ("CrossCalibration",),
    "density": ("DensityRatio", "estimate_density_ratio"),
    "extraction": ("Extraction", "extract"),
    "files": (),
    "monitor": ("AdaptiveLevel", "Monitor"),
    "selection": ("Comparison", "compare"),
    "slices": ("WorstSlice", "worst_slice"),
    "temperature": ("TemperatureFit", "fit_temperature"),
    "tuning": ("Tuned", "Tuning", "tune"),
    "versions": ("show_versions",),
}


def __getattr__(name: str) -> Any:
    for room, names in _LAZY.items():
        if name == room or name in names:
            module = import_module(f"evicp.{room}")
            return module if name == room else getattr(module, name)
    raise AttributeError(f"module 'evicp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
