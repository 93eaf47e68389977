"""Parts of the description of a calibration in a file, as text that is always the same, and checked."""

from __future__ import annotations

import json
from typing import Any

from evicp.errors import ArtifactError


def canonical(content: Any) -> str:
    """JSON text that is the same whenever the content is."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def named_parameters(stored: Any, key: str, what: str) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of a score or of groups; a parameter is one value, or a list of values of one kind.

    NumPy makes strings of numbers beside a string, each as long as the longest: a short list would fill the memory.
    """
    if isinstance(stored, dict) and set(stored) == {key, "parameters"}:
        name, parameters = stored[key], stored["parameters"]
        if isinstance(name, str) and isinstance(parameters, dict) and all(map(_is_plain, parameters.values())):
            return name, parameters
    raise ArtifactError(f"its {what} malformed.")


def _is_plain(value: Any) -> bool:
    kinds = {type(entry) for entry in value} if isinstance(value, list) else {str}
    return not isinstance(value, dict) and (kinds <= {int, float} or kinds == {str})
