"""Whether a calibration can have been made of what a graph's output holds."""

from __future__ import annotations

import numpy as np

from evicp.calibration.calibration import Calibration
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.validate import SMALLEST_PROBABILITY
from evicp.input.warn import warn
from evicp.method.scores import ECP, LAC
from evicp.onnx.outputs import FRACTIONS, LOG_PROBABILITIES, LOGITS, PROBABILITIES, SHARES, UNCLEAR, Meaning
from evicp.types import F64

_TAKE_LOGARITHMS = (
    'pass output_is="probabilities" (--output-is probabilities) to use their logarithms: this suits a calibration of '
    "np.log(probabilities), or of logits with a score other than ECP"
)


def check_meaning(calibration: Calibration, name: str, found: Meaning | None, output_is: str | None) -> None:
    """Refuse an output of another kind than the calibration's logits.

    Parameters
    ----------
    name : of the output
    found : what it holds, as far as that can be told
    output_is : what it holds, as the user says
    """
    if found is None and output_is is None:
        warn(
            f"cannot find out whether output {name!r} contains logits: onnxruntime is not installed, or cannot run the "
            "model. "
            'Pass output_is="logits" if it does, or examples, inputs that the model takes.',
            SuspiciousInputWarning,
        )
    holds = None if found is None else found.holds
    seen = "" if found is None else f"output {name!r} contains {holds} ({found.shown_by})"
    of_probabilities = output_is == PROBABILITIES
    if of_probabilities and holds in (LOGITS, LOG_PROBABILITIES, SHARES, FRACTIONS):
        raise InputError(f"{seen}, not probabilities. Leave out output_is (--output-is).")
    if holds == PROBABILITIES and not of_probabilities:
        raise InputError(f"{seen}, not logits. Export the model without that step, or {_TAKE_LOGARITHMS}.")
    if holds in (UNCLEAR, SHARES, FRACTIONS) and output_is is None:
        raise InputError(
            f'{seen}. If the calibration used the same numbers, pass output_is="logits" (--output-is '
            "logits). If it used their logarithms, let the model divide them by their sum, and "
            f"{_TAKE_LOGARITHMS}."
        )
    if isinstance(calibration.score, ECP) and (of_probabilities or holds == LOG_PROBABILITIES):
        if output_is is None:
            raise InputError(
                f"{seen}, whose evidence is not that of logits. Export the model without that step; or, if the "
                'calibration used these log-probabilities, pass output_is="logits" (--output-is logits).'
            )
        _check_evidence(calibration.score, calibration.scores, calibration.n_classes)


def _check_evidence(score: ECP, scores: F64, n_classes: int) -> None:
    """Refuse a calibration that was not made of log-probabilities, where its scores show it.

    No log-probability is positive. So evidence is at most that of 0, the Dirichlet's p at most `highest` and at least
    `lowest`, and the score, which is ln(cost / largest cost), has a lower bound.
    """
    if score.evidence == "relu":
        warn(
            "relu evidence of log-probabilities is zero for every label. Calibrate with a score other than ECP, or "
            "with ECP(evidence='softplus').",
            SuspiciousInputWarning,
        )
    epsilon = score.epsilon(n_classes)
    if not score.monotone or not epsilon:
        return
    most = float(score.evidence_of(np.zeros((1, 2)))[0, 0])
    highest, lowest = (1 + most) / (n_classes + most), 1 / (1 + (n_classes - 1) * (1 + most))
    least_cost = np.log(-np.log(highest)) - np.log(highest**2 + epsilon)
    most_cost = np.log(-np.log(lowest)) - np.log(epsilon)
    possible = scores[scores > np.finfo(np.float64).min]
    if possible.min(initial=0.0) < least_cost - most_cost - 1e-3:
        raise InputError(
            "this calibration has scores that are impossible for log-probabilities: it used logits, whose evidence is "
            "lost in probabilities. Export the model with its logits, or calibrate with a score other than ECP."
        )


#: Smaller probabilities lose digits, and then vanish.
_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def check_reach(calibration: Calibration, thresholds: F64, precision: str) -> None:
    """Refuse a threshold on LAC's -ln p that only probabilities too small for their type reach."""
    score = calibration.score
    if not isinstance(score, LAC) or precision not in _SMALLEST:
        return
    most_of_sum = min(0.0, (1 - 1 / score.temperature) * np.log(calibration.n_classes))
    reach = -np.log(_SMALLEST[precision]) / score.temperature + most_of_sum
    zero = -np.log(SMALLEST_PROBABILITY) / score.temperature + most_of_sum  # beyond, labels of probability 0 are in
    beyond = thresholds[(thresholds > reach) & (thresholds < zero)]
    if beyond.size:
        raise InputError(
            f"the threshold {beyond[0]:g} needs smaller probabilities than {precision} can represent. Export the model "
            "with its logits, or with probabilities of a finer type."
        )
