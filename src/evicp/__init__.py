"""evicp: prediction sets with a coverage guarantee from any classifier's logits."""

TYPE_CHECKING = False  # as type checkers know it; the module typing takes longer to load than all that is here
if TYPE_CHECKING:
    from typing import Any

    from evicp.calibration.calibration import Calibration
    from evicp.calibration.calibrator import Calibrator, calibrate
    from evicp.calibration.certificate import Certificate
    from evicp.calibration.laws.by_class import ByClass
    from evicp.calibration.laws.by_group import ByGroup
    from evicp.calibration.laws.by_uncertainty import ByUncertainty
    from evicp.calibration.laws.cross import CrossCalibration
    from evicp.calibration.laws.density import DensityRatio, estimate_density_ratio
    from evicp.calibration.laws.label_shift import estimate_class_frequencies, label_shift_weights
    from evicp.calibration.laws.overlapping import OverlappingGroups
    from evicp.calibration.monitor import AdaptiveLevel, Monitor
    from evicp.calibration.planning import Plan, plan
    from evicp.calibration.ranks import conformal_rank, pac_rank
    from evicp.calibration.reliability import Reliability
    from evicp.calibration.unseen import UnseenColumn, fit_unseen
    from evicp.errors import EvicpError, EvicpWarning
    from evicp.evaluation.compare import Comparison, compare
    from evicp.evaluation.exchangeability import ExchangeabilityCheck, check_exchangeable
    from evicp.evaluation.explain import Explanation, explain
    from evicp.evaluation.long_tail import fit_class_offsets, fit_rank_limits
    from evicp.evaluation.metrics import evaluate
    from evicp.evaluation.result import Evaluation
    from evicp.evaluation.slices import WorstSlice, worst_slice
    from evicp.evaluation.tuning import Tuned, Tuning, tune
    from evicp.extraction import Extraction, extract
    from evicp.io.artifact import load
    from evicp.method.class_lac import ClassLAC
    from evicp.method.evidence import Opinion, opinion
    from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, Custom, Margin, Score, TopK
    from evicp.method.temperature import TemperatureFit, fit_temperature
    from evicp.risk.control import RiskControl, control_risk
    from evicp.risk.loss import hierarchy_costs
    from evicp.risk.multilabel import MultiLabel, multilabel
    from evicp.risk.selective import Selective, selective
    from evicp.sets import PredictionSets
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
    "ClassLAC",
    "Comparison",
    "CrossCalibration",
    "Custom",
    "DensityRatio",
    "Evaluation",
    "EvicpError",
    "EvicpWarning",
    "ExchangeabilityCheck",
    "Explanation",
    "Extraction",
    "Margin",
    "Monitor",
    "MultiLabel",
    "Opinion",
    "OverlappingGroups",
    "Plan",
    "PredictionSets",
    "Reliability",
    "RiskControl",
    "Score",
    "Selective",
    "TemperatureFit",
    "TopK",
    "Tuned",
    "Tuning",
    "UnseenColumn",
    "WorstSlice",
    "calibrate",
    "check_exchangeable",
    "compare",
    "conformal_rank",
    "control_risk",
    "estimate_class_frequencies",
    "estimate_density_ratio",
    "evaluate",
    "explain",
    "extract",
    "fit_class_offsets",
    "fit_rank_limits",
    "fit_temperature",
    "fit_unseen",
    "hierarchy_costs",
    "label_shift_weights",
    "load",
    "multilabel",
    "opinion",
    "pac_rank",
    "plan",
    "selective",
    "show_versions",
    "tune",
    "worst_slice",
]

#: Where each public name is defined; its module is imported when the name is first used. Ctrl-C while `evicp` starts is
#: then a matter of the command line, which imports what it needs where it handles that.
_LAZY = {
    "calibration.calibration": ("Calibration",),
    "calibration.calibrator": ("Calibrator", "calibrate"),
    "calibration.certificate": ("Certificate",),
    "calibration.laws.cross": ("CrossCalibration",),
    "calibration.laws.density": ("DensityRatio", "estimate_density_ratio"),
    "calibration.laws.by_class": ("ByClass",),
    "calibration.laws.by_group": ("ByGroup",),
    "calibration.laws.by_uncertainty": ("ByUncertainty",),
    "calibration.laws.label_shift": ("estimate_class_frequencies", "label_shift_weights"),
    "calibration.laws.overlapping": ("OverlappingGroups",),
    "calibration.monitor": ("AdaptiveLevel", "Monitor"),
    "calibration.planning": ("Plan", "plan"),
    "calibration.ranks": ("conformal_rank", "pac_rank"),
    "calibration.reliability": ("Reliability",),
    "calibration.unseen": ("UnseenColumn", "fit_unseen"),
    "errors": ("EvicpError", "EvicpWarning"),
    "evaluation.compare": ("Comparison", "compare"),
    "evaluation.exchangeability": ("ExchangeabilityCheck", "check_exchangeable"),
    "evaluation.explain": ("Explanation", "explain"),
    "evaluation.long_tail": ("fit_class_offsets", "fit_rank_limits"),
    "evaluation.metrics": ("evaluate",),
    "evaluation.result": ("Evaluation",),
    "evaluation.slices": ("WorstSlice", "worst_slice"),
    "evaluation.tuning": ("Tuned", "Tuning", "tune"),
    "extraction": ("Extraction", "extract"),
    "io.artifact": ("load",),
    "method.class_lac": ("ClassLAC",),
    "method.evidence": ("Opinion", "opinion"),
    "method.scores": ("APS", "ECP", "LAC", "RAPS", "SAPS", "SCORES", "Base", "Custom", "Margin", "Score", "TopK"),
    "method.temperature": ("TemperatureFit", "fit_temperature"),
    "risk.control": ("RiskControl", "control_risk"),
    "risk.loss": ("hierarchy_costs",),
    "risk.multilabel": ("MultiLabel", "multilabel"),
    "risk.selective": ("Selective", "selective"),
    "sets": ("PredictionSets",),
    "versions": ("show_versions",),
}

#: Modules that `import evicp` alone makes available; those that few users need are found, and not listed.
_MODULES = (
    "blocks",
    "datasets",
    "errors",
    "hub",
    "losses",
    "mlflow",
    "onnx",
    "ray",
    "report",
    "sklearn",
    "spark",
    "torch",
)
_INNER_MODULES = ("kernels", "sets", "tables")


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    for module_name, names in _LAZY.items():
        if name in names:
            value = getattr(import_module(f"evicp.{module_name}"), name)
            globals()[name] = value
            return value
    if name in _MODULES or name in _INNER_MODULES:
        return import_module(f"evicp.{name}")
    raise AttributeError(f"module 'evicp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
