"""Answer or abstain: the error of answers is bounded with a confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.ranks import rows_needed
from evicp.errors import InputError
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassNames
from evicp.input.messages import refuse_unknown, some_of
from evicp.report.rule import Section
from evicp.risk.answers import SelectiveEvaluation
from evicp.risk.certificate import RuleCertificate
from evicp.risk.curve import RiskCoverage, curve_of
from evicp.risk.doubt import as_doubt, best_labels, doubts_of
from evicp.risk.files import Stored, checksum, load_rule, stored_fraction, stored_texts
from evicp.risk.known import KnownLogits
from evicp.risk.rows import Rows, groups_of, names_of
from evicp.risk.rule import Rule
from evicp.risk.sequence import Tested, as_candidates, in_sequence, rows_that_would_do, sequence_of
from evicp.sets import PredictionSets, sets_of
from evicp.types import F64, I32, I64, Bools, TargetCoverage

__all__ = ["Selective", "selective"]

_CAVEAT = (
    "Holds if calibration and new rows are exchangeable and the calibration rows were used to select neither the model "
    "nor the error. With this confidence over calibration sets, the probability that an answer is wrong is at most the "
    "error. It says nothing about shifted data."
)


def selective(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    error: float | Fraction = 0.01,
    confidence: float = 0.95,
    most: int = 1,
    doubt: Any = "softmax",
    by: Any = None,
    candidates: Sequence[float] | None = None,
    share: float = 0.2,
    seed: int = 0,
    class_names: ClassNames | None = None,
    **unknown: Any,
) -> Selective:
    """A rule that answers rows with little doubt: at most the share `error` of answers is wrong, with a confidence.

    Parameters
    ----------
    logits, labels, class_names : of the calibration rows, as for `calibrate`
    error, confidence : the bound of the error among answered rows, and its confidence over calibration sets
    most : an answer consists of the `most` most likely labels; it is wrong if the true label is not among them
    doubt : the measure that decides whether a row is answered: "softmax", 1 - the largest probability; "margin";
        "uncertainty", the evidential u; or a function of (n, K) logits to (n,) numbers
    by : None; "class", by the first label of the answer; or (n,) groups: each then has its own threshold and bound
    candidates : thresholds of doubt to test in this order, chosen in advance
    share, seed : the random share of rows set aside to select candidates, if these are not given

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 2000)
    >>> logits = rng.normal(size=(2000, 4)) + 3 * np.eye(4)[labels]
    >>> selective(logits, labels, error=0.02)
    Selective(error 0.02 with confidence 0.95: answers 0.936 of the rows; 2,000 rows, 4 classes)
    """
    refuse_unknown("selective", unknown, "Pass the error of answers: error=0.01.")
    how = {"most": most, "doubt": as_doubt(doubt), "by": by, "candidates": as_candidates(candidates)}
    aside = {"share": 0.0 if candidates is not None else validate.as_probability(share, "share"), "seed": seed}
    return _fitted(logits, labels, class_names, **how, **aside).at(error, confidence)


def _fitted(
    logits: Any,
    labels: Any,
    class_names: Any,
    *,
    most: Any,
    doubt: Any,
    by: Any,
    candidates: Any,
    share: Any,
    seed: Any,
) -> Selective:
    """A rule before it is told its error."""
    logits, labels = convert.on_cpu(logits), convert.on_cpu(labels)
    frames.same_rows(logits=logits, labels=labels, by=None if isinstance(by, str) else by)
    known, array = KnownLogits.of(logits, class_names)
    classes = known.classes
    truth = classes.row_labels(labels, logits, array)
    most = _as_most(most, array.shape[1])
    answers = best_labels(array, most)
    kind, names, codes = groups_of(by, answers, classes)
    aside = np.zeros(len(truth), bool)
    aside[np.random.default_rng(validate.as_seed(seed)).permutation(len(truth))[: round(share * len(truth))]] = True
    wrong = ~(answers == truth[:, None]).any(1)
    rows = Rows(doubts_of(doubt, array), wrong, codes, aside)
    return Selective(known, rows, Fraction(1, 2), 0.5, most, doubt, kind, names, candidates)


@dataclass(frozen=True, eq=False, repr=False)
class Selective(Rule):
    """Answers rows that it is sure of, and hands the others to a person; made by `selective`.

    Parameters
    ----------
    known : what is known of the logits, and of the classes
    rows : the calibration rows
    error, confidence, most, doubt, by : as for `selective`
    names : of the groups
    candidates : the thresholds to test, where they were given
    """

    known: KnownLogits
    rows: Rows
    error: Fraction
    confidence: float
    most: int
    doubt: Any
    by: str | None
    names: tuple[str, ...]
    candidates: tuple[float, ...] | None = None

    @property
    def n(self) -> int:
        """Calibration rows, with those set aside."""
        return len(self.rows.doubts)

    @property
    def n_classes(self) -> int:
        """K."""
        return self.known.classes.n_classes

    @cached_property
    def tests(self) -> tuple[list[Tested], ...]:
        """For each group the thresholds in the order of their tests, up to the first that is not certified."""
        found = []
        for code in range(len(self.names)):
            doubts, wrong = self.rows.of(code, aside=False)
            given = self.candidates
            asked = self.error, self.confidence
            sequence = np.array(given) if given else sequence_of(*self.rows.of(code, aside=True), len(doubts), *asked)
            found.append(in_sequence(doubts, wrong, sequence, *asked))
        return tuple(found)

    @cached_property
    def thresholds(self) -> F64:
        """The largest doubt of an answered row in each group, (G,); -inf if none is answered."""
        passed = ([test.threshold for test in tests if test.certified] for tests in self.tests)
        return convert.frozen(np.array([max(own, default=-np.inf) for own in passed]))

    @property
    def share(self) -> float:
        """The share of answered rows among those that tested the thresholds."""
        answered, _ = self._answered()
        return float(answered.mean())

    @property
    def share_interval(self) -> tuple[float, float]:
        """The interval of the share answered among new rows, at the same confidence (DKW inequality)."""
        answered, _ = self._answered()
        delta = len(self.names) * 2 / (1 - self.confidence)
        room = float((np.log(delta) / (2 * len(answered))) ** 0.5)
        return max(0.0, self.share - room), min(1.0, self.share + room)

    def _answered(self) -> tuple[Bools, Bools]:
        """Which of the rows that tested are answered, and wrong."""
        tests = ~self.rows.aside
        answered = self.rows.doubts[tests] <= self.thresholds[self.rows.codes[tests]]
        return answered, self.rows.wrong[tests]

    def at(self, error: float | Fraction, confidence: float = 0.95) -> Selective:
        """The rule for another error; raises an error if no threshold is certified.

        Parameters
        ----------
        error, confidence : as for `selective`
        """
        asked = validate.as_coverage(error, "error")
        made = replace(self, error=asked, confidence=validate.as_probability(confidence, "confidence"))
        if not np.any(made.thresholds > -np.inf):
            raise InputError(made._why_none())
        return made

    def _why_none(self) -> str:
        """Why no threshold is certified, and what would help."""
        least = min(self.tests, key=lambda tests: (tests[0].wrong + 1) / (tests[0].answered + 1))[0]
        where = "" if self.by is None else f" in any of {len(self.names):,} groups"
        largest = np.argsort(-np.bincount(self.rows.codes, minlength=len(self.names)))[:20].tolist()
        some = [own for code in largest if len((own := self.rows.of(code, aside=False))[0])]
        needed = [rows_that_would_do(*own, self.error, self.confidence) for own in some]
        rows = min((n for n in needed if n is not None), default=None)
        told = 1.0 if self.candidates else (~self.rows.aside).mean()
        fewest = rows_needed(1 - self.error, self.confidence)
        advice = (
            "Even the surest answers are wrong too often: use a larger error. No rule can be certified with fewer than "
            f"{fewest:,} answered rows."
        )
        if rows is not None:
            about = max(round(rows / told, 2 - len(str(rows))), round(1.5 * self.n / len(some), -1))
            kind = "" if self.by is None else " of one group"
            advice = f"About {about:,.0f} rows{kind} would be enough at the same rate of errors."
        return (
            f"an error of {float(self.error):g} cannot be certified with confidence {self.confidence:g}{where}: "
            f"{least.wrong:,} of the {least.answered:,} surest answers are wrong. {advice}"
        )

    # -----------------------------------------------------------------------------------------------------------
    # New rows

    def predict(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> PredictionSets:
        """The answer of each row; an empty set is a row for a person.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        groups : (n,) groups of the rows, where the rule is by group
        """
        frames.same_rows(logits=logits, groups=groups)
        array, _ = self.known.new(logits)
        answers = best_labels(array, self.most)
        codes = self._codes(groups, answers)
        kept = (doubts_of(self.doubt, array) <= self.thresholds[codes])[:, None] & (answers >= 0)
        offsets = np.concatenate([[0], np.cumsum(kept.sum(1))])
        about = self.known.about(TargetCoverage(1 - self.error), self._doubt, "selective", self.confidence)
        return sets_of(about, offsets, answers[kept])

    @property
    def _doubt(self) -> str:
        """The name of the doubt."""
        return self.doubt if isinstance(self.doubt, str) else "custom"

    def _codes(self, groups: Any, answers: I32) -> I64:
        """The group of each new row."""
        if self.by != "group":
            if groups is not None:
                raise InputError("groups need a rule by group.")
            return answers[:, 0].astype(np.int64) if self.by == "class" else np.zeros(len(answers), np.int64)
        if groups is None:
            raise InputError("this rule is by group: pass groups=, one for each row.")
        given = validate.as_groups(groups, len(answers)).astype(str)
        place = {name: code for code, name in enumerate(self.names)}
        unknown = sorted(set(given.tolist()) - set(place))
        if unknown:
            raise InputError(f"groups must be among those of the calibration rows; got {some_of(unknown)}.")
        return np.array([place[name] for name in given.tolist()], np.int64)

    def evaluate(
        self, logits: ArrayLike, truth: ArrayLike, *, groups: ArrayLike | None = None, confidence: float = 0.95
    ) -> SelectiveEvaluation:
        """What the answers to labelled rows are worth.

        Parameters
        ----------
        logits, truth, groups : new rows
        confidence : of the intervals, and of the verdict
        """
        sets = self.predict(logits, groups=groups)
        return self.evaluation_of(self.observed(sets, truth, groups), confidence=confidence)

    def losses(self, sets: PredictionSets, truth: ArrayLike) -> F64:
        """1 where an answer of this rule is wrong, 0 where it is right, NaN where there is none, (n,)."""
        return np.where(sets.sizes > 0, 1.0 - sets.contains(truth), np.nan)

    def observed(self, sets: PredictionSets, truth: ArrayLike, groups: ArrayLike | None = None) -> F64:
        """The losses, and the group of each row that is answered, (n, 2)."""
        first = np.zeros((len(sets), 1), np.int32)
        answered = sets.sizes > 0
        first[answered, 0] = sets.labels[sets.offsets[:-1][answered]]
        return np.column_stack([self.losses(sets, truth), self._codes(groups, first)])

    def evaluation_of(self, observed: F64, _: int = 0, confidence: float = 0.95) -> SelectiveEvaluation:
        """What that is worth; how many labels the answers hold together makes no difference."""
        answered = ~np.isnan(observed[:, 0])
        wrong, codes = observed[answered, 0] == 1, observed[answered, 1].astype(np.int64)
        each = [np.bincount(part, minlength=len(self.names)).tolist() for part in (codes, codes[wrong])]
        by_name = None if self.by is None else dict(zip(self.names, zip(*each, strict=True), strict=True))
        return SelectiveEvaluation.of(
            len(observed), int(answered.sum()), int(wrong.sum()), self.error, confidence, by_name
        )

    # -----------------------------------------------------------------------------------------------------------
    # What is guaranteed

    def curve(self) -> RiskCoverage:
        """The error of answers against the share answered, of the rows that tested the thresholds."""
        tests = ~self.rows.aside
        doubts, wrong = self.rows.doubts[tests], self.rows.wrong[tests]
        answered, mistakes = self._answered()
        at = (float(answered.mean()), float(mistakes[answered].mean()) if answered.any() else 0.0)
        return curve_of(doubts, wrong, self.error, self.confidence, at)

    def _sections(self, logits: Any, truth: Any) -> tuple[Section, ...]:
        array, _ = self.known.new(logits)
        answers, doubts = best_labels(array, self.most), doubts_of(self.doubt, array)
        wrong = ~(answers == self.known.classes.row_labels(truth, logits, array)[:, None]).any(1)
        before = self.curve()
        now = curve_of(doubts, wrong, self.error, self.confidence, before.chosen)
        text = (
            "From the surest row on; the thin line is the upper end of an interval. The dot is the rule's answers to "
        )
        text += "the calibration rows."
        return (
            Section("Calibration rows", text, before.to_svg()),
            Section("Rows tested", text, now.to_svg()),
        )

    def certificate(self, evaluation: SelectiveEvaluation | None = None) -> RuleCertificate:
        """The guarantee, and the figures it was computed from.

        Parameters
        ----------
        evaluation : an evaluation on other rows
        """
        figures = self._figures()
        low, high = figures["share_interval"]
        silent = [group["name"] for group in figures["groups"] if group["threshold"] == -np.inf]
        answers = "the top label" if self.most == 1 else f"the {self.most} likeliest labels"
        where = {None: "", "class": ", for each class of answers", "group": ", in each group"}[self.by]
        facts = [
            ("error of answers", f"at most {float(self.error):g} with confidence {self.confidence:g}{where}"),
            ("an answer", answers),
            ("calibration rows n", f"{self.n:,}, {figures['set_aside']:,} of them set aside to choose thresholds"),
            ("answered", f"{self.share:.4f} of the rows [{low:.4f}, {high:.4f}]"),
            ("wrong", f"{figures['wrong']:,} of {figures['answered']:,} answers to calibration rows"),
        ]
        if self.by is None:
            facts.append(("threshold of doubt", f"{self.thresholds[0]:.6g} ({self._doubt})"))
        elif silent:
            facts.append(("never answered", f"{len(silent):,} of {len(self.names):,}: {some_of(silent)}"))
        if evaluation is not None:
            facts.append(("observed", str(evaluation)))
        own = {"checksum": checksum(self.stored()), "observed": None if evaluation is None else evaluation.to_dict()}
        return RuleCertificate("Certificate of answers", tuple(facts), _CAVEAT, figures | own)

    def _figures(self) -> dict[str, Any]:
        """What a certificate says, as plain values."""
        answered, wrong = self._answered()
        limits = zip(self.names, self.thresholds.tolist(), strict=True)
        return {
            "error": float(self.error),
            "confidence": self.confidence,
            "most": self.most,
            "doubt": self._doubt,
            "by": self.by,
            "n": self.n,
            "set_aside": int(self.rows.aside.sum()),
            "share": self.share,
            "share_interval": list(self.share_interval),
            "answered": int(answered.sum()),
            "wrong": int((answered & wrong).sum()),
            "groups": [{"name": name, "threshold": limit} for name, limit in limits],
        }

    def __repr__(self) -> str:
        where = "" if self.by is None else f", by {self.by}"
        return (
            f"Selective(error {float(self.error):g} with confidence {self.confidence:g}{where}: answers "
            f"{self.share:.3f} of the rows; {self.n:,} rows, {self.n_classes:,} classes)"
        )

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.curve().to_svg()

    # -----------------------------------------------------------------------------------------------------------
    # Files

    def stored(self) -> Stored:
        """What its file holds."""
        content = {
            "error": str(Fraction(self.error)),
            "confidence": self.confidence,
            "most": self.most,
            "by": self.by,
            "doubt": self._doubt,
            "names": list(self.names) if self.by == "group" else None,
            "candidates": self.candidates is not None,
        }
        rows = self.rows
        arrays = {"doubts": rows.doubts, "wrong": rows.wrong, "codes": rows.codes, "aside": rows.aside}
        if self.candidates is not None:
            arrays["candidates"] = np.array(self.candidates)
        return Stored("selective", content, self.known, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str], *, doubt: Any = None) -> Selective:
        """Read a saved rule; no code in the file is executed.

        Parameters
        ----------
        path : of the file
        doubt : your function, if doubt was one: the file does not contain it
        """
        found: Selective = load_rule(path, {"selective": cls.rebuilt})
        if (found.doubt == "custom") != (doubt is not None):
            raise InputError("doubt= is only for a rule that was made with a function.")
        return found if doubt is None else replace(found, doubt=as_doubt(doubt))

    @classmethod
    def rebuilt(cls, content: dict[str, Any], known: KnownLogits, tensors: dict[str, F64]) -> Selective:
        """From the parts of a file, each of which is checked."""
        doubts, codes = tensors.pop("doubts"), tensors.pop("codes")
        wrong, aside = (tensors.pop(name) for name in ("wrong", "aside"))
        given = tensors.pop("candidates") if content["candidates"] is True else None
        by, doubt = content["by"], content["doubt"]
        if (
            by not in (None, "class", "group")
            or tensors
            or not len(doubts) == len(codes) == len(wrong) == len(aside) > 0
        ):
            raise InputError("its rows do not fit together.")
        names = stored_texts(content["names"]) if by == "group" else names_of(by, known.classes)
        inside = np.all((codes >= 0) & (codes < len(names)) & (codes == np.floor(codes)))
        if np.isnan(doubts).any() or not inside or not all(np.isin(part, (0, 1)).all() for part in (wrong, aside)):
            raise InputError("its rows do not fit together.")
        rows = Rows(doubts, wrong == 1, codes.astype(np.int64), aside == 1)
        most = _as_most(content["most"], known.classes.n_classes)
        named = doubt if doubt == "custom" else as_doubt(doubt)
        made = cls(known, rows, Fraction(1, 2), 0.5, most, named, by, names, as_candidates(given))
        return made.at(stored_fraction(content["error"]), content["confidence"])


def _as_most(most: Any, n_classes: int) -> int:
    if validate.as_count(most, "most") >= n_classes:
        raise InputError(f"most must be below the number of classes, {n_classes}; got {most}.")
    return int(most)
