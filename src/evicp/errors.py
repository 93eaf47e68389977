"""All exceptions and warnings of evicp.

EvicpError
|-- InputError (ValueError)          a value that cannot be used
|   |-- LogitsError                  shape, NaN, +inf, a row without a finite logit, overflow
|   |-- LabelsError                  out of range, wrong length
|   |-- CoverageError                not strictly between 0 and 1
|   |-- RowError (IndexError)        a row number that does not exist
|   |-- ScoreError                   an unknown score, a bad parameter, a score that returned invalid values
|   `-- FileError                    missing, unreadable or malformed files
|       `-- ArtifactError            a calibration file that cannot be trusted
|-- InputTypeError (TypeError)       a value of the wrong kind: dtype, str, bool, sparse, device
`-- MissingExtraError (ImportError)  an optional dependency that is not installed, or does not load

EvicpWarning (UserWarning)
|-- SmallCalibrationWarning          too few calibration rows for this coverage: full sets
`-- SuspiciousInputWarning           probabilities passed as logits, evidence that is always zero
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = [
    "ArtifactError",
    "CoverageError",
    "EvicpError",
    "EvicpWarning",
    "FileError",
    "InputError",
    "InputTypeError",
    "LabelsError",
    "LogitsError",
    "MissingExtraError",
    "RowError",
    "ScoreError",
    "SmallCalibrationWarning",
    "SuspiciousInputWarning",
]


class EvicpError(Exception):
    """Base class of all errors raised by evicp.

    >>> from evicp import conformal_rank
    >>> try:
    ...     conformal_rank(n=10, coverage=90)
    ... except EvicpError as error:
    ...     print(error)
    coverage must be strictly between 0 and 1; got 90. Did you mean 0.9?
    """


class InputError(EvicpError, ValueError):
    """A value that cannot be used."""


class LogitsError(InputError):
    """Logits of a wrong shape, or with values that no score can be computed from."""


class LabelsError(InputError):
    """Labels out of range or of the wrong length."""


class CoverageError(InputError):
    """A coverage that is not strictly between 0 and 1."""


class RowError(InputError, IndexError):
    """A row number or mask that is invalid for the sets."""


class ScoreError(InputError):
    """An unknown score, a bad parameter, or a score that returned something unusable."""


class FileError(InputError):
    """A file that is missing, unreadable or of another format than its name says."""


class ArtifactError(FileError):
    """A calibration file that cannot be trusted."""


class InputTypeError(EvicpError, TypeError):
    """A value of the wrong kind."""


class MissingExtraError(EvicpError, ImportError):
    """An optional dependency that is not installed, or does not load."""


class EvicpWarning(UserWarning):
    """Base class of all warnings raised by evicp."""


class SmallCalibrationWarning(EvicpWarning):
    """Too few calibration rows for the target coverage: every set is full."""


class SuspiciousInputWarning(EvicpWarning):
    """Valid input that is probably a mistake."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The message for a missing optional dependency."""
    return MissingExtraError(f"{purpose} needs {package}: pip install 'evicp[{extra}]'")


def need(module: str, package: str, extra: str, purpose: str) -> Any:
    """Import an optional package where it is used, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise unusable(module, package, extra, purpose, error) from error


def unusable(module: str, package: str, extra: str, purpose: str, error: ImportError) -> MissingExtraError:
    """Why an optional package cannot be imported: it is not installed, or it is and does not load."""
    if not installed(module):
        return missing_extra(package, extra, purpose)
    return MissingExtraError(
        f"{purpose} needs {package}, which is installed but does not load ({error}). Reinstall it."
    )


def installed(module: str) -> bool:
    """Whether the package of a module is there, loadable or not."""
    try:
        return find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
