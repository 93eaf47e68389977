"""evicp: prediction sets with a coverage guarantee from any classifier's logits."""

TYPE_CHECKING = False  # as type checkers know it; the module typing takes longer to load than all that is here
if TYPE_CHECKING:
    from typing import Any

    from evicp.artifact import load
    from evicp.calibration import Calibration, Calibrator, calibrate
    from evicp.cross import CrossCalibration
    from evicp.density import DensityRatio, estimate_density_ratio
    from evicp.errors import EvicpError, EvicpWarning
    from evicp.evidence import Opinion, opinion
    from evicp.explanation import Explanation, explain
    from evicp.extraction import Extraction, extract
    from evicp.groups import ByClass, ByGroup, ByUncertainty
    from evicp.metrics import Evaluation, evaluate
    from evicp.monitor import AdaptiveLevel, Monitor
    from evicp.reliability import Certificate, Reliability, conformal_rank, pac_rank, plan
    from evicp.scores import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, Custom, Margin, Score, TopK
    from evicp.selection import Comparison, compare
    from evicp.sets import PredictionSets
    from evicp.shift import estimate_class_frequencies, label_shift_weights
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

#: Modules, imported when first asked for, and the public names they hold. Ctrl-C while `evicp` starts is then a matter
#: of the command line, which imports what it needs where it handles that.
_LAZY = {
    "arrays": (),
    "artifact": ("load",),
    "calibration": ("Calibration", "Calibrator", "calibrate"),
    "certificates": (),
    "checks": (),
    "clusters": (),
    "cross": ("CrossCalibration",),
    "density": ("DensityRatio", "estimate_density_ratio"),
    "errors": ("EvicpError", "EvicpWarning"),
    "evidence": ("Opinion", "opinion"),
    "explanation": ("Explanation", "explain"),
    "extraction": ("Extraction", "extract"),
    "files": (),
    "groups": ("ByClass", "ByGroup", "ByUncertainty"),
    "kernels": (),
    "limits": (),
    "metrics": ("Evaluation", "evaluate"),
    "monitor": ("AdaptiveLevel", "Monitor"),
    "reliability": ("Certificate", "Reliability", "conformal_rank", "pac_rank", "plan"),
    "scores": ("APS", "ECP", "LAC", "RAPS", "SAPS", "SCORES", "Base", "Custom", "Margin", "Score", "TopK"),
    "selection": ("Comparison", "compare"),
    "sets": ("PredictionSets",),
    "shift": ("estimate_class_frequencies", "label_shift_weights"),
    "slices": ("WorstSlice", "worst_slice"),
    "strata": (),
    "tables": (),
    "temperature": ("TemperatureFit", "fit_temperature"),
    "tuning": ("Tuned", "Tuning", "tune"),
    "versions": ("show_versions",),
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    for module_name, names in _LAZY.items():
        if name == module_name or name in names:
            module = import_module(f"evicp.{module_name}")
            value = getattr(module, name) if name in names else module
            globals()[name] = value
            return value
    raise AttributeError(f"module 'evicp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY})
