"""evicp: prediction sets with a coverage guarantee from any classifier's logits."""

from evicp.calibration import Calibration, Calibrator, calibrate
from evicp.errors import EvicpError, EvicpWarning
from evicp.evidence import Opinion, opinion
from evicp.explain import Explanation, explain
from evicp.files import load
from evicp.metrics import Evaluation, evaluate
from evicp.reliability import Certificate, Reliability, conformal_rank, plan
from evicp.scores import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, Custom, Margin, Score, TopK
from evicp.selection import Comparison, Tuned, compare
from evicp.sets import PredictionSets
from evicp.temperature import TemperatureFit, fit_temperature

__version__ = "0.1.0"

__all__ = [
    "APS",
    "ECP",
    "LAC",
    "RAPS",
    "SAPS",
    "SCORES",
    "Base",
    "Calibration",
    "Calibrator",
    "Certificate",
    "Comparison",
    "Custom",
    "Evaluation",
    "EvicpError",
    "EvicpWarning",
    "Explanation",
    "Margin",
    "Opinion",
    "PredictionSets",
    "Reliability",
    "Score",
    "TemperatureFit",
    "TopK",
    "Tuned",
    "calibrate",
    "compare",
    "conformal_rank",
    "evaluate",
    "explain",
    "fit_temperature",
    "load",
    "opinion",
    "plan",
]
