"""Reports: an evaluation as one HTML file that needs no network, no server and no Python.

>>> from evicp import report
>>> from evicp.datasets import load_imagenet_sample
>>> sample = load_imagenet_sample()
>>> page = report.split(sample.logits[:200, :20], sample.labels[:200] % 20, ["ecp", "lac"])
>>> page
Report('Prediction sets', ecp and lac, 100 test rows)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import calibrate
from evicp.errors import InputError, InputTypeError
from evicp.evaluation.compare import as_row_count
from evicp.evaluation.result import Evaluation
from evicp.evaluation.tuning import with_temperature
from evicp.input import validate
from evicp.input.classes import ClassAxis, ClassNames, as_class_names, labelled
from evicp.input.frames import ids_of, same_rows
from evicp.method.scores import USUAL, Base, Score, ScoreLike, as_score
from evicp.method.temperature import fit_temperature
from evicp.report import payload
from evicp.report.curves import Method, curves_of, position
from evicp.report.explorer import LISTED, drawn, explore
from evicp.report.page import Page, assemble
from evicp.report.provenance import Provenance
from evicp.types import I64, Coverage

__all__ = ["Provenance", "Report", "build", "of_evaluation", "split"]

#: How many bytes the single rows may take before compression.
_EXPLORER_BYTES = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Report(Page):
    """The content of a report. Displays itself in a notebook."""

    data: dict[str, Any]

    def to_html(self) -> str:
        """The whole page as text."""
        return assemble(self.title, self.lead, self.data)

    def __repr__(self) -> str:
        names = " and ".join(method["name"] for method in self.data["methods"])
        return f"Report({self.title!r}, {names}, {self.data['m']:,} test rows)"


def build(
    logits: ArrayLike,
    labels: ArrayLike,
    calibrations: Method | Sequence[Method] | Mapping[str, Method],
    *,
    coverage: Coverage = 0.9,
    class_names: ClassNames | None = None,
    title: str = "Prediction sets",
    confidence: float = 0.95,
    groups: ArrayLike | None = None,
    explored: int = 300,
    ids: Any = None,
    **about: Any,
) -> Report:
    """A report of one or more calibrations on test rows, which must not be calibration rows.

    Parameters
    ----------
    logits, labels : (m, K), (m,) the test rows and their true labels
    calibrations : one or several, or a mapping from names; the first is shown first. `Base` may be among them.
    coverage : the start of the slider, from 0.5 to 0.999
    class_names : K names; those of the first calibration if None
    title : the heading
    confidence : of all intervals
    groups : (m,) groups of the test rows, for calibrations by="group"
    explored : the number of random single rows in the report; 0 for none
    ids : (m,) names of the rows, text or whole numbers; the index of a frame if None
    about : model, data_set, author, note, files, date: see `Provenance`
    """
    origin = Provenance(**about)
    same_rows(logits=logits, labels=labels, groups=groups)
    validate.same_device(logits, labels)
    array = validate.as_logits(logits)
    named = _named(calibrations, array.shape[1])
    classes = _classes_of(class_names, named, logits, array.shape[1])
    truth = classes.row_labels(labels, logits, array)
    level, start = validate.as_probability(confidence, "confidence"), position(coverage)
    called = ids_of(logits) if ids is None else validate.as_ids(ids, len(array))
    data = _measured(array, truth, named, groups, explored, classes.names, float(level), called)
    return _report(title, _lead(named, data), data, start, origin)


def _measured(
    logits: NDArray[Any],
    labels: I64,
    named: Mapping[str, Method],
    groups: Any,
    explored: Any,
    class_names: Sequence[str] | None,
    confidence: float,
    ids: NDArray[Any] | None,
) -> dict[str, Any]:
    """The data of the page."""
    if not len(labels):
        raise InputError("a report needs at least one test row; got none.")
    difficulty = kernels.label_ranks(logits, labels)
    curves = [curves_of(name, method, logits, labels, difficulty, groups) for name, method in named.items()]
    bytes_of_row = min(LISTED, logits.shape[1]) * (4 + 4 * 5 + 6 * len(curves))
    wanted = min(validate.as_count(explored, "explored", at_least=0), _EXPLORER_BYTES // bytes_of_row, len(labels))
    some = drawn(len(labels), wanted)
    rows = explore(logits, labels, curves, some) if wanted else None
    data = payload.of_curves(curves, labels, difficulty, rows, class_names=class_names, confidence=confidence)
    return data | {"ids": None if ids is None else ids[some].astype(str).tolist()}


def _lead(named: Mapping[str, Method], data: Mapping[str, Any]) -> str:
    """The line below the heading."""
    sizes = sorted({method.n for method in named.values() if isinstance(method, Calibration)})
    calibrated = f"Calibrated on {' or '.join(f'{n:,}' for n in sizes)} rows, tested" if sizes else "Tested"
    return (
        f"{calibrated} on {data['m']:,} others; {data['n_classes']:,} classes, top-1 accuracy {data['accuracy']:.1%}."
    )


def split(
    logits: ArrayLike,
    labels: ArrayLike,
    scores: Sequence[ScoreLike] = USUAL,
    *,
    calibration: float | int = 0.5,
    temperature: float | Literal["split"] = 1.0,
    seed: int = 0,
    class_names: ClassNames | None = None,
    **options: Any,
) -> Report:
    """A report from labelled rows: a random part is used for calibration, the rest for tests.

    Parameters
    ----------
    logits, labels : the rows to split
    scores : names, scores or callables
    calibration : calibration rows, a share or a count
    temperature : of every score without its own; "split" fits it on a tenth of the rows, set aside for this
    seed : of the random split
    options : as of `build`
    """
    array, truth = labelled(logits, labels, class_names=class_names)
    known = ClassAxis.of(class_names, array.shape[1]).labels(truth)
    temperature = validate.as_temperature(temperature, "split")
    given = [as_score(score, conformal=False) for score in scores]
    names = [score.describe() for score in given]
    if len(set(names)) < len(names):
        raise InputError(f"scores must differ; got {', '.join(names)}.")
    tuning, own, test = _rows_of_split(len(truth), calibration, seed, tunes=temperature == "split")
    fitted, notes = _fitted(temperature, array[tuning], truth[tuning])
    methods = [
        score if isinstance(score, Base) else calibrate(array[own], known[own], score, class_names=class_names)
        for score in (with_temperature(score, fitted) for score in given)
    ]
    named = dict(zip(names, methods, strict=True))
    ids = ids_of(logits) if options.get("ids") is None else validate.as_ids(options["ids"], len(array))
    options["ids"] = None if ids is None else ids[test]
    page = build(array[test], known[test], named, class_names=class_names, **options)
    return replace(page, lead=f"{page.lead} Split at random, seed {seed}. {notes}".strip())


def _rows_of_split(n: int, calibration: Any, seed: Any, *, tunes: bool) -> tuple[I64, I64, I64]:
    """The numbers of the rows that fit a temperature, are calibrated on, and are tested."""
    order = np.random.default_rng(validate.as_count(seed, "seed", at_least=0)).permutation(n)
    tuning, rest = np.split(order, [n // 10 if tunes else 0])
    if len(rest) < 2:
        raise InputError(f"{n:,} rows are too few to split into calibration and test rows.")
    used = as_row_count(calibration, len(rest), "calibration")
    return tuning, rest[:used], np.sort(rest[used:])


def _fitted(temperature: float | str, logits: NDArray[Any], labels: I64) -> tuple[float | None, str]:
    """The temperature of scores without one of their own, and what is said of it; None where it is 1."""
    if not isinstance(temperature, str):
        return (None, "") if temperature == 1.0 else (temperature, f"Temperature {temperature:.3f}.")
    fitted = fit_temperature(logits, labels).temperature
    return fitted, f"Temperature {fitted:.3f}, fitted on separate rows."


def of_evaluation(
    evaluation: Evaluation,
    *,
    class_names: ClassNames | None = None,
    title: str = "Prediction sets",
    **about: Any,
) -> Report:
    """A report of one evaluation, at its coverage and without the parts that need logits.

    Parameters
    ----------
    evaluation : a result of `evicp.evaluate`
    class_names : K names; those of the sets if None
    title : the heading
    about : model, data_set, author, note, files, date: see `Provenance`
    """
    if not isinstance(evaluation, Evaluation):
        raise InputTypeError(f"a report needs an Evaluation; got a {type(evaluation).__name__}.")
    names = evaluation.class_coverage.names if class_names is None else class_names
    data = payload.of_evaluation(evaluation, as_class_names(names, evaluation.n_classes))
    lead = f"{evaluation.n:,} test rows, {evaluation.n_classes:,} classes, coverage {float(evaluation.target):g}."
    return _report(title, lead, data, 0, Provenance(**about))


def _report(title: str, lead: str, data: dict[str, Any], start: int, origin: Provenance) -> Report:
    data["start"] = start
    data["provenance"] = origin.to_dict()
    data["date"] = data["provenance"]["date"]
    json.dumps(data, allow_nan=False)
    return Report(str(title), lead, data)


def _named(calibrations: Any, n_classes: int) -> dict[str, Method]:
    """Calibrations by name, each of these classes."""
    if isinstance(calibrations, Calibration | Base):
        calibrations = [calibrations]
    if not isinstance(calibrations, Mapping):
        calibrations = _numbered(list(calibrations))
    if not calibrations:
        raise InputError("a report needs at least one calibration; got none.")
    for name, method in calibrations.items():
        if not isinstance(method, Calibration | Base):
            raise InputTypeError(f"a report needs calibrations; got a {type(method).__name__} for {name}.")
        if isinstance(method, Calibration) and method.n_classes != n_classes:
            raise InputError(f"{name} was calibrated on {method.n_classes} classes; the logits have {n_classes}.")
    return dict(calibrations)


def _classes_of(class_names: Any, named: Mapping[str, Method], logits: Any, n_classes: int) -> ClassAxis:
    """The classes under the page's names, if no calibration, and no column of the logits, has one elsewhere."""
    calibrations = {name: method for name, method in named.items() if isinstance(method, Calibration)}
    first = next((ClassAxis.known_to(method) for method in calibrations.values()), ClassAxis(n_classes))
    classes = first if class_names is None else ClassAxis.of(class_names, n_classes)
    for method, calibration in calibrations.items():
        own, names = calibration.class_names, classes.names
        if own is not None and names is not None and classes.misplaced(own, renamed=True) is not None:
            k = next(k for k in range(n_classes) if own[k] != names[k])
            raise InputError(
                f"{method} was calibrated with these class names in another order: class {k} is {own[k]!r} there, "
                f"{names[k]!r} here. Order the logits' classes as calibrated."
            )
    classes = classes.learned(logits)
    for calibration in calibrations.values():
        ClassAxis.known_to(calibration).check(logits)
    return classes


def _numbered(methods: list[Any]) -> dict[str, Any]:
    """Calibrations by what they say of themselves; a second one of a kind gets a number."""
    named: dict[str, Any] = {}
    for method in methods:
        score = getattr(method, "score", method)
        name = score.describe() if isinstance(score, Score) else type(method).__name__
        if isinstance(method, Calibration) and method.groups is not None:
            name = f"{name} by {method.groups.by.kind}"
        again = sum(other == name or other.startswith(f"{name} #") for other in named)
        named[f"{name} #{again + 1}" if again else name] = method
    return named
