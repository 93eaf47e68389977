"""evicp: prediction sets with a coverage guarantee from any classifier's logits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evicp.calibration import Calibration, Calibrator, calibrate
from evicp.errors import EvicpError, EvicpWarning
from evicp.evidence import Opinion, opinion
from evicp.explain import Explanation, explain
from evicp.files import load
from evicp.groups import ByClass, ByGroup, ByUncertainty
from evicp.metrics import Evaluation, evaluate
from evicp.monitor import AdaptiveLevel, Monitor
from evicp.reliability import Certificate, Reliability, conformal_rank, pac_rank, plan
from evicp.scores import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, Custom, Margin, Score, TopK
from evicp.selection import Comparison, compare
from evicp.sets import PredictionSets
from evicp.shift import estimate_class_frequencies, label_shift_weights
from evicp.temperature import TemperatureFit, fit_temperature
from evicp.tuning import Tuned, Tuning, tune

if TYPE_CHECKING:
    from evicp.extraction import Extraction, extract

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
    "Custom",
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
    "calibrate",
    "compare",
    "conformal_rank",
    "estimate_class_frequencies",
    "evaluate",
    "explain",
    "extract",
    "fit_temperature",
    "label_shift_weights",
    "load",
    "opinion",
    "pac_rank",
    "plan",
    "tune",
]

#: Imported when first asked for: few programs need them, and all would pay for their import.
_LAZY = {"Extraction": "evicp.extraction", "extract": "evicp.extraction"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'evicp' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
