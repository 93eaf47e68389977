"""Levels: what follows from a calibration at one coverage, computed once for all new rows."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from evicp.calibration.suspicious import cautions_of_request, warn_of
from evicp.calibration.ties import Ties, caution_of_ties
from evicp.errors import EvicpWarning, InputError
from evicp.input import validate
from evicp.sets import AboutSets
from evicp.types import F64

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration


class Level(NamedTuple):
    """What follows from a calibration at one coverage."""

    coverage: Fraction
    #: Of training-conditional sets; None of others.
    confidence: float | None
    #: The thresholds, as the law has them.
    values: F64
    #: What sets at this level remember.
    about: AboutSets
    #: Calibration scores that tie at the threshold.
    ties: Ties
    #: What there is to warn of where the thresholds are used.
    cautions: tuple[EvicpWarning, ...]
    #: Whether there is more to warn of, for the request (see `warn_of_request`).
    is_suspicious: bool


def levels_of(calibration: Calibration, coverage: Any, confidence: Any) -> list[Level]:
    """The levels of one coverage or several, as they were given."""
    # A server asks for the same all day. A float is not the fraction it is equal to: 0.9 means 9/10.
    plain = type(coverage) is float and (confidence is None or type(confidence) is float)
    key = float, coverage, confidence
    known = calibration._levels.get(key) if plain else None
    if known is not None:
        return known
    wanted, confidence = validate.as_coverages(coverage), as_confidence(calibration, confidence)
    levels = [level_of(calibration, exact, confidence) for exact in wanted]
    return calibration._levels.made(key, lambda: levels) if plain else levels


def as_confidence(calibration: Calibration, confidence: Any) -> float | None:
    """The confidence of training-conditional sets, refused where a calibration has none."""
    if confidence is None:
        return None
    require_law(calibration, "confidence")
    confidence = validate.as_probability(confidence, "confidence")
    calibration.law.require("confidence")
    return confidence


def require_law(calibration: Calibration, what: str) -> None:
    """Refuse what rests on the law of coverage given the calibration rows, where these do not have it."""
    if calibration.folds is not None:
        raise InputError(
            f"{what} needs the distribution of coverage, which is not known here: the calibration rows were scored "
            f"in {calibration.folds:,} folds, by models other than the one that predicts. Calibrate on a share of the "
            "rows instead."
        )


def level_of(calibration: Calibration, coverage: Fraction, confidence: float | None) -> Level:
    """What follows from a calibration at one coverage, of what has been checked."""
    return calibration._levels.made((coverage, confidence), lambda: _prepare(calibration, coverage, confidence))


def _prepare(calibration: Calibration, coverage: Fraction, confidence: float | None) -> Level:
    own = calibration
    values, ties, tied, cautions = own.law.at(own.scores, coverage, confidence)
    n = len(own.scores)
    if own.n_classes == 2 and own.score.name == "ecp":  # calibrating has said what these do
        ties = Ties(0, n, float(coverage), float(coverage))
    about = AboutSets(
        n_classes=own.n_classes,
        coverage=coverage,
        score=own.score.name,
        n_calibration=n if own.folds is None else None,
        class_names=own.class_names,
        confidence=confidence,
        guarantee=own.law.guarantee,
        tied=tied,
        columns=own.columns,
        numbered=own.numbered,
    )
    is_suspicious = bool(cautions_of_request(coverage, confidence)) or ties.matter
    return Level(coverage, confidence, values, about, ties, cautions, is_suspicious)


def warn_of_request(levels: list[Level], *, ties: bool = True, can_smooth: bool = True) -> None:
    """Warn of coverages and a confidence that are hardly meant, and of ties at the thresholds.

    Parameters
    ----------
    levels : the requested levels
    ties : whether they matter, as to plain sets
    can_smooth : whether sets could be smoothed instead
    """
    if not any(level.is_suspicious for level in levels):
        return
    confidence = levels[0].confidence
    can_smooth = can_smooth and confidence is None  # smoothed sets do not follow the Beta law
    warn_of(
        *cautions_of_request(max(level.coverage for level in levels), confidence),
        *(caution_of_ties(level.ties, level.coverage, can_smooth=can_smooth) for level in levels if ties),
    )
