"""Functions of higher layers that methods of results call, imported on first use.

For example, `calibration.save` and `evaluation.to_html` use code that depends on calibrations and evaluations. This
table is the only place where a lower layer names a higher one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_OUTER = {
    "save": "evicp.io.artifact:save",
    "push_to_hub": "evicp.hub:push",
    "from_hub": "evicp.hub:fetched",
    "checksum": "evicp.io.artifact:checksum",
    "Evaluation": "evicp.evaluation.result:Evaluation",
    "ExchangeabilityCheck": "evicp.evaluation.exchangeability:ExchangeabilityCheck",
    "certificate_of_folds": "evicp.risk.certificate:of_folds",
    "evaluate": "evicp.evaluation.metrics:evaluate_calibration",
    "explain": "evicp.evaluation.explain:explain_set",
    "choose_score": "evicp.evaluation.tuning:choose_score",
    "report": "evicp.report:of_evaluation",
    "plot_calibration": "evicp.plots:plot_calibration",
    "plot_comparison": "evicp.plots:plot_comparison",
    "plot_evaluation": "evicp.plots:plot_evaluation",
    "plot_plan": "evicp.plots:plot_plan",
    "save_sets": "evicp.io.set_texts:save_sets",
    "sets_as_arrow": "evicp.io.set_tables:as_arrow",
    "sets_as_pandas": "evicp.io.set_tables:as_pandas",
    "sets_as_csv": "evicp.io.set_texts:as_csv",
}


def outer(name: str) -> Any:
    """A function or class of an outer folder.

    >>> outer("save").__module__
    'evicp.io.artifact'
    """
    module, _, attribute = _OUTER[name].partition(":")
    return getattr(import_module(module), attribute)
