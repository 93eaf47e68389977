"""Files of rules: which rule one holds."""

from __future__ import annotations

import json
from contextlib import suppress

from evicp.io.arrays import safetensors_metadata
from evicp.io.paths import as_path
from evicp.risk.control import RiskControl
from evicp.risk.files import Rebuild, load_rule
from evicp.risk.multilabel import MultiLabel
from evicp.risk.rule import Rule
from evicp.risk.selective import Selective

#: What makes the rule of a file, by its name there.
RULES: dict[str, Rebuild] = {
    "risk": RiskControl.rebuilt,
    "selective": Selective.rebuilt,
    "multilabel": MultiLabel.rebuilt,
}


def read_rule(path: str) -> Rule:
    """The rule in a file of evicp control, selective or multilabel."""
    found: Rule = load_rule(path, RULES)
    return found


def is_rule(path: str) -> bool:
    """Whether a file says that it holds a rule; what is wrong with it is said by who reads it."""
    with suppress(Exception):
        return "rule" in json.loads(safetensors_metadata(as_path(path))["evicp"])
    return False
