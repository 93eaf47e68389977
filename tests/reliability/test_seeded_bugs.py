"""Sensitivity of the tests: bugs with silently wrong results, put into a copy of the package one by one.

Each is a change of one text in one file, and the tests that must fail on it. The copies without a change must pass
the same tests: a test that fails anyway catches nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
import trees

pytestmark = pytest.mark.reliability


@dataclass(frozen=True)
class Bug:
    """One wrong text in one file, and tests that must fail on it."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]

    def apply(self, source: Path) -> None:
        path, text = source / "evicp" / self.file, self.text_in(source)
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")

    def text_in(self, source: Path) -> str:
        """The file's text, in which the right text must stand once."""
        text = (source / "evicp" / self.file).read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.name}: the text occurs {text.count(self.right)} times"
        return text


def _tests(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}.py" for name in names)


CALIBRATION = _tests("calibration/test_calibration")
CROSS = _tests("calibration/laws/test_cross")
OVERLAPPING = _tests("calibration/laws/test_overlapping")
EXCHANGEABLE = _tests("evaluation/test_exchangeability")
RISK = _tests("risk/test_control")
ANSWERS = _tests("risk/test_selective")
LABELS = _tests("risk/test_multilabel")
SCORES = _tests("method/test_scores")
EVIDENCE = _tests("method/test_evidence")
RANK = _tests("reliability/test_exact_rank")
RELATIONS = _tests("reliability/test_metamorphic")

BUGS = [
    Bug("a rank too high in folds", "calibration/laws/cross.py", "below < self._ranks", "below <= self._ranks", CROSS),
    Bug(
        "each fold's own rank",
        "calibration/laws/cross.py",
        "return ranks_of(n, coverage)",
        "return sum(ranks_of(np.full_like(n, one.n), coverage) for one in self.folds)",
        CROSS,
    ),
    Bug(
        "labels kept that every fold lacks",
        "calibration/laws/cross.py",
        "lacking * STEPS < steps[:, None] * len(counts)",
        "lacking * STEPS <= steps[:, None] * len(counts)",
        CROSS,
    ),
    Bug(
        "overlapping groups fitted without the new row",
        "calibration/laws/quantile_fit.py",
        "self._fit(self._held * scaled, self._base, active)",
        "self._fit(0 * scaled, self._base, active)",
        OVERLAPPING,
    ),
    Bug(
        "rows far from a fit held on its other side",
        "calibration/laws/quantile_fit.py",
        "np.where(above, self._coverage, self._coverage - 1)",
        "np.where(above, self._coverage - 1, self._coverage)",
        OVERLAPPING,
    ),
    Bug(
        "several statistics at the price of one",
        "evaluation/exchangeability.py",
        "p_value=min(1.0, parts * one.p_value)",
        "p_value=min(1.0, one.p_value)",
        EXCHANGEABLE,
    ),
    Bug(
        "a distance that must be exceeded",
        "evaluation/two_samples.py",
        "low = 0 if one_sided else (n * (t + 1) - steps) // total + 1",
        "low = 0 if one_sided else (n * (t + 1) - steps) // total",
        EXCHANGEABLE,
    ),
    Bug(
        "an offset that keeps rare classes out",
        "method/class_lac.py",
        'masked(-log_p + made_of["offset"]',
        'masked(-log_p - made_of["offset"]',
        _tests("evaluation/test_long_tail"),
    ),
    Bug(
        "a risk without the new row",
        "risk/steps.py",
        "most = risk * (n + 1) * scale - largest",
        "most = risk * n * scale",
        RISK,
    ),
    Bug(
        "a risk with a confidence, one miss too many",
        "risk/steps.py",
        "n - total // largest >= rank",
        "n - total // largest + 1 >= rank",
        RISK,
    ),
    Bug("a risk by the tail of Bentkus without its factor", "risk/steps.py", "1 + log(tail)", "log(tail)", RISK),
    Bug(
        "a risk whose rows begin with the loss of another",
        "risk/steps.py",
        "first = np.diff(rows, prepend=-1) > 0",
        "first = np.diff(rows, prepend=0) > 0",
        RISK,
    ),
    Bug("a risk of a loss that may rise", "risk/loss.py", "if after > before:", "if after > before + 1:", RISK),
    Bug(
        "answers certified with one mistake more",
        "risk/sequence.py",
        "n - w >= rank_of(n, 1 - error, confidence)",
        "n - w + 1 >= rank_of(n, 1 - error, confidence)",
        ANSWERS,
    ),
    Bug("answers tested on after the first failure", "risk/sequence.py", "if not passed:", "if not n:", ANSWERS),
    Bug(
        "answers tested by the rows that chose them",
        "risk/rows.py",
        "own = (self.codes == code) & (self.aside == aside)",
        "own = self.codes == code",
        ANSWERS,
    ),
    Bug(
        "answers judged together, whatever the group",
        "risk/answers.py",
        "(interval, *(group.interval for group in groups))",
        "(interval,)",
        _tests("risk/test_page"),
    ),
    Bug(
        "tied rows of another precision for rules",
        "risk/known.py",
        "if ROUNDOFF[precision] < ROUNDOFF[self.precision]:",
        "if not precision:",
        LABELS,
    ),
    Bug(
        "precision and recall for rules at the price of one",
        "risk/multilabel.py",
        "surest_threshold(array, true, 1 - wanted, (1 + sure) / 2)",
        "surest_threshold(array, true, 1 - wanted, sure)",
        LABELS,
    ),
    Bug(
        "labels by the ranks of all for rules",
        "risk/multilabel.py",
        'np.argsort(self.codes, kind="stable")',
        'np.argsort(-self.codes, kind="stable")',
        LABELS,
    ),
    Bug(
        "a strict inequality",
        "kernels/_numpy.py",
        "np.nonzero(dense <= (limit",
        "np.nonzero(dense < (limit",
        CALIBRATION,
    ),
    Bug(
        "a threshold remembered for another confidence",
        "calibration/levels.py",
        "calibration._levels.made((coverage, confidence), lambda",
        "calibration._levels.made((coverage,), lambda",
        CALIBRATION,
    ),
    Bug(
        "a threshold remembered for another coverage",
        "calibration/levels.py",
        "calibration._levels.made((coverage, confidence), lambda",
        "calibration._levels.made((confidence,), lambda",
        CALIBRATION,
    ),
    Bug(
        "an answer remembered for another coverage",
        "calibration/levels.py",
        "key = float, coverage, confidence",
        "key = float, confidence",
        CALIBRATION,
    ),
    Bug(
        "an answer remembered for another confidence",
        "calibration/levels.py",
        "key = float, coverage, confidence",
        "key = float, coverage",
        CALIBRATION,
    ),
    Bug(
        "empty sets where none may be",
        "calibration/new_rows.py",
        "    if not allow_empty:\n",
        "    if allow_empty is None:\n",
        CALIBRATION,
    ),
    Bug(
        "a rank one too high",
        "calibration/ranks.py",
        "return -(-(n + 1) * p // whole)",
        "return min(1 - (-(n + 1) * p // whole), n + 1)",
        CALIBRATION,
    ),
    Bug(
        "a rank without n + 1",
        "calibration/ranks.py",
        "return -(-(n + 1) * p // whole)",
        "return -(-n * p // whole)",
        RANK,
    ),
    Bug(
        "a rank in doubles",
        "calibration/ranks.py",
        "return -(-(n + 1) * p // whole)",
        "return -int(-(n + 1) * (p / whole) // 1)",
        RANK,
    ),
    Bug(
        "a double taken at its word",
        "input/validate.py",
        "return exact.limit_denominator(10**9)",
        "return exact",
        RANK,
    ),
    Bug(
        "a threshold on the wrong side",
        "calibration/laws/marginal.py",
        "float(scores[k - 1]) if k <= n",
        "float(scores[n - k]) if k <= n",
        CALIBRATION,
    ),
    Bug(
        "too few rows clamped to the largest score",
        "calibration/laws/marginal.py",
        "if k <= n else np.inf",
        "if k <= n else float(scores[-1])",
        CALIBRATION,
    ),
    Bug(
        "ties put in another order",
        "kernels/_numpy.py",
        "np.lexsort((column, -block[row, column], members, row))",
        "np.lexsort((-column, -block[row, column], members, row))",
        _tests("method/test_scores", "calibration/test_calibration", "reliability/test_metamorphic"),
    ),
    Bug(
        "ranks by position",
        "method/evidence.py",
        "opens_group[..., 1:] |= descending[..., 1:] != descending[..., :-1]",
        "opens_group[..., 1:] = True",
        RELATIONS,
    ),
    Bug(
        "a sum over the wrong axis",
        "method/evidence.py",
        "return alpha / alpha.sum(-1, keepdims=True)",
        "return alpha / alpha.sum(0, keepdims=True)",
        EVIDENCE,
    ),
    Bug(
        "random numbers that restart with every call",
        "kernels/_numpy.py",
        "    return (salted >> np.uint32(8)).astype(np.float64) / 2.0**24",
        "    return np.random.default_rng(seed).random((len(salted), 1))",
        RELATIONS,
    ),
    Bug(
        "the seed forgotten",
        "kernels/_numpy.py",
        "salted = mix32(total ^ mix32(np.array([seed & 0xFFFFFFFF], np.uint32)))",
        "salted = mix32(total)",
        SCORES,
    ),
    Bug(
        "data not on the disk before its name is",
        "io/atomic.py",
        "        yield temporary\n        os.fsync(descriptor)\n",
        "        yield temporary\n",
        _tests("reliability/test_atomic_save"),
    ),
    Bug(
        "a file written in place",
        "io/atomic.py",
        "        yield temporary\n        os.fsync",
        "        yield target\n        os.fsync",
        _tests("reliability/test_atomic_save"),
    ),
    Bug(
        "exponential evidence without its clamp",
        "method/evidence.py",
        "np.exp(np.clip(z, -10.0, 10.0))",
        "np.exp(z)",
        EVIDENCE,
    ),
    Bug(
        "the temperature applied twice",
        "method/evidence.py",
        "shifted = (z - z.max(-1, keepdims=True)) / temperature\n",
        "shifted = (z - z.max(-1, keepdims=True)) / temperature / temperature\n",
        SCORES,
    ),
    Bug(
        "the stabilizer dropped",
        "method/evidence.py",
        "- np.logaddexp(log_denominator, log_epsilon)",
        "- log_denominator",
        EVIDENCE,
    ),
    Bug(
        "the stabilizer of another K",
        "method/ecp.py",
        "return 0.01 / n_classes**2 if",
        "return 0.01 / n_classes if",
        EVIDENCE,
    ),
    Bug(
        "p_k where the equation has its square",
        "method/evidence.py",
        "log_phi - 2.0 * surprisal",
        "log_phi - surprisal",
        EVIDENCE,
    ),
    Bug(
        "base rates left out of the cost",
        "method/evidence.py",
        "log_pi = -np.log(n_classes) if base_rates is None else np.log(base_rates)",
        "log_pi = -np.log(n_classes)",
        EVIDENCE,
    ),
    Bug(
        "a penalty that begins one rank late",
        "method/scores.py",
        "kernel.ordinal(z) - float(self.k_reg)",
        "kernel.ordinal(z) - 1 - float(self.k_reg)",
        SCORES,
    ),
    Bug(
        "impossible labels scored like others",
        "method/score.py",
        "return np.where(z == -np.inf, np.inf, scores)",
        "return scores",
        SCORES,
    ),
    Bug(
        "labels off by one",
        "kernels/_numpy.py",
        "np.take_along_axis(_scores(score, block), labels[rows, None], 1)",
        "np.take_along_axis(_scores(score, block), labels[rows, None] - 1, 1)",
        CALIBRATION,
    ),
    Bug(
        "one-based labels let in",
        "input/validate.py",
        "(array < 0) | (array >= n_classes)",
        "(array < 0) | (array > n_classes)",
        _tests("reliability/test_bad_input"),
    ),
    Bug(
        "NaN let in",
        "input/validate.py",
        "usable = (largest > -np.inf) & (largest <= LARGEST_LOGIT)",
        "usable = (largest != -np.inf) & ~(largest > LARGEST_LOGIT)",
        _tests("reliability/test_bad_input"),
    ),
    Bug(
        "a merge that forgets a shard",
        "calibration/calibrator.py",
        "            whole._batches.extend(other._batches)",
        "            whole._batches.extend(other._batches[:1])",
        CALIBRATION,
    ),
    Bug(
        "weights sorted apart from scores",
        "calibration/laws/weighted.py",
        "return scores[order], Weights(weights[order], classes)",
        "return scores[order], Weights(np.sort(weights), classes)",
        _tests("calibration/laws/test_shift"),
    ),
    Bug(
        "the new point's own weight forgotten",
        "calibration/laws/weighted.py",
        "_needed(running[-1] + new, known, coverage)",
        "_needed(running[-1] + 0 * new, known, coverage)",
        _tests("calibration/laws/test_shift"),
    ),
    Bug(
        "the threshold of another class",
        "calibration/laws/by_class.py",
        "return self.of_labels(logits.shape[1])[None, :]",
        "return np.roll(self.of_labels(logits.shape[1]), 1)[None, :]",
        _tests("calibration/laws/test_groups"),
    ),
    Bug(
        "a group's rank from all rows",
        "calibration/ranks.py",
        "for n in sizes.tolist()], np.int64)[which]\n",
        "for n in sizes.tolist()], np.int64)[0 * which - 1]\n",
        _tests("calibration/laws/test_groups"),
    ),
    Bug(
        "groups chosen with the rows they are calibrated on",
        "calibration/laws/by_class.py",
        "            aside = aside[rare[keys[aside]]]\n            rows = np.delete(rows, aside)\n",
        "            aside = aside[rare[keys[aside]]]\n",
        _tests("calibration/laws/test_groups"),
    ),
    Bug(
        "classes called rare by the rows they are calibrated on",
        "calibration/laws/by_class.py",
        "np.bincount(keys[aside], minlength=n_classes) < self.share * self.rare_below",
        "np.bincount(keys, minlength=n_classes) < self.rare_below",
        _tests("reliability/test_conditional_law"),
    ),
    Bug(
        "new rows in a precision of their own",
        "kernels/__init__.py",
        "        logits, precision = in_precision(logits, made_by.logits), made_by.logits\n",
        "        precision = made_by.logits\n",
        _tests("kernels/test_arithmetic"),
    ),
    Bug(
        "coarser rows compared with thresholds without room",
        "calibration/origin.py",
        "        if coarser == ROUNDOFF[new.finest] == ROUNDOFF[made_by.finest]:\n",
        "        if coarser:\n",
        _tests("kernels/test_arithmetic"),
    ),
    Bug(
        "log-probabilities normalised again",
        "method/evidence.py",
        "return np.where(_is_normalized(z, log_total), z, shifted - log_total)",
        "return shifted - log_total",
        _tests("reliability/found_outside/test_tied_scores"),
    ),
    Bug(
        "masses added with rounding",
        "kernels/_numpy.py",
        "return (above + whole) / total, whole / total",
        "return above / total + whole / total, whole / total",
        _tests("reliability/found_outside/test_tied_scores"),
    ),
    Bug(
        "the only possible label scored as the costliest",
        "method/evidence.py",
        "is_certain = possible.sum(-1, keepdims=True) == 1",
        "is_certain = possible.sum(-1, keepdims=True) == 0",
        _tests("reliability/found_outside/test_possible_labels"),
    ),
    Bug(
        "one number for all orders of a row's logits",
        "calibration/smoothing.py",
        "mix64(bits_of(z) + places)",
        "mix64(bits_of(z) + places[0])",
        _tests("reliability/found_outside/test_smoothing"),
    ),
    Bug(
        "one number for a row in every calibration",
        "calibration/smoothing.py",
        "mix64(np.array([digest], np.uint64) ^ mix64(",
        "mix64(np.array([0], np.uint64) ^ mix64(",
        _tests("reliability/found_outside/test_smoothing"),
    ),
    Bug(
        "thresholds of another backend taken as they are",
        "calibration/origin.py",
        "            return ascending + slack\n",
        "            return ascending + 0.0\n",
        _tests("kernels/test_arithmetic"),
    ),
    Bug(
        "a p-value without its + 1",
        "calibration/laws/law.py",
        "p: F64 = (1.0 + at_least) / (1.0 + n)",
        "p: F64 = at_least / n",
        CALIBRATION,
    ),
    Bug(
        "a p-value that does not count ties",
        "calibration/laws/marginal.py",
        "return np.searchsorted(scores, new, side=side)",
        'return np.searchsorted(scores, new, side="right")',
        CALIBRATION,
    ),
    Bug(
        "a checksum without the description",
        "io/artifact.py",
        "digest = hashlib.sha256(description.encode())",
        "digest = hashlib.sha256()",
        _tests("io/test_artifact", "reliability/test_hostile_artifact"),
    ),
    Bug(
        "a checksum without the scores",
        "io/artifact.py",
        '        digest.update(np.ascontiguousarray(tensor, dtype="<f8").data)\n',
        "",
        _tests("io/test_artifact", "reliability/test_hostile_artifact"),
    ),
    Bug(
        "a damaged file believed",
        "io/artifact.py",
        'if _digest(metadata["evicp"], tensors) != metadata["sha256"]:',
        "if False:",
        _tests("reliability/test_hostile_artifact"),
    ),
    Bug(
        "the fraction next to 0.9 taken for 9/10, which is remembered",
        "input/validate.py",
        "_remembered_coverage(coverage, what) if type(coverage) is float else _exact_coverage(coverage, what)",
        "_remembered_coverage(coverage, what)",
        RANK,
    ),
    Bug(
        "a p-value of 0 for the first label",
        "calibration/monitor.py",
        "within = (mix32(numbers ^ salt) + 0.5) / 2.0**32",
        "within = mix32(numbers ^ mix32(np.array([seed], np.uint32))) / 2.0**32",
        _tests("calibration/test_monitor"),
    ),
    Bug(
        "an edge on a value that many rows share",
        "calibration/laws/by_uncertainty.py",
        "middles: F64 = (ascending[taken - 1] + ascending[taken]) / 2",
        "middles: F64 = ascending[taken - 1]",
        _tests("calibration/laws/test_groups"),
    ),
    Bug(
        "rows that count twice",
        "calibration/calibrator.py",
        "if self in others or len(set(batches)) < len(batches):",
        "if self in others:",
        CALIBRATION,
    ),
    Bug(
        "verdicts by the effective sample size",
        "calibration/laws/weighted.py",
        "distances = relative * ((scores <= threshold) - coverage)",
        "distances = relative * (coverage * (1 - coverage)) ** 0.5",
        _tests("calibration/laws/test_shift"),
    ),
    Bug(
        "a level that filled sets wind up",
        "calibration/monitor.py",
        "self.level += rise if self.level > 0 else max(rise, 0.0)",
        "self.level += rise",
        _tests("calibration/test_monitor"),
    ),
    Bug(
        "the law of another rank",
        "calibration/reliability.py",
        "float(betaincinv(self.k, self.l, probability))",
        "float(betaincinv(self.k + 1, self.l, probability))",
        _tests("calibration/test_reliability"),
    ),
    Bug(
        "a confidence on the wrong side",
        "calibration/ranks.py",
        'risk = 1 - validate.as_coverage(confidence, "confidence")',
        'risk = validate.as_coverage(confidence, "confidence")',
        _tests("calibration/test_pac"),
    ),
    Bug(
        "other bits for a row alone than in a batch",
        "kernels/_torch.py",
        "shifted = (z - z.amax(1, keepdim=True)) / constant(z, temperature)",
        "shifted = (z - z.amax()) / constant(z, temperature)",
        _tests("kernels/test_kernels_torch"),
    ),
    Bug(
        "coverage counted on other rows",
        "sets.py",
        "hits = sets.labels == np.repeat(wanted, sets.sizes)",
        "hits = sets.labels == np.repeat(np.roll(wanted, 1), sets.sizes)",
        _tests("test_sets"),
    ),
    Bug(
        "a new estimator beside an old calibration",
        "sklearn/classifier.py",
        "        classes = self._classes(trained, y)\n",
        "        classes = self._classes(trained, y)\n        self.estimator_ = trained.estimator\n",
        _tests("adapters/test_sklearn"),
    ),
    Bug(
        "calibration rows taken from an order of their classes",
        "sklearn/splits.py",
        "check_random_state(self.random_state).permutation(len(y))",
        "(lambda rows: rows[np.argsort(y[rows])])(check_random_state(self.random_state).permutation(len(y)))",
        _tests("adapters/test_sklearn"),
    ),
    Bug(
        "few weighted rows judged as if all sets were full",
        "calibration/laws/weighted.py",
        "law = Reliability(max(rows, rows_needed(coverage)), coverage)",
        "law = Reliability(max(rows, rows_needed(coverage) - 1), coverage)",
        _tests("calibration/laws/test_shift"),
    ),
    Bug(
        "smoothed sets judged as plain ones",
        "calibration/promises.py",
        '"smoothed": evaluation.smoothed}',
        '"smoothed": False}',
        _tests("calibration/test_smoothed"),
    ),
    Bug(
        "sets whose level moves pass for a calibration's own",
        "calibration/monitor.py",
        "level.about, n_calibration=None)",
        "level.about, n_calibration=calibration.n)",
        _tests("calibration/test_monitor"),
    ),
]


def test_there_are_enough() -> None:
    assert len(BUGS) >= 15
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_every_bug_still_applies() -> None:
    """A bug whose text is gone tests nothing."""
    for bug in BUGS:
        text = (trees.SOURCE / "evicp" / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, f"{bug.name}: the text occurs {text.count(bug.right)} times"
        assert all((trees.REPOSITORY / test).exists() for test in bug.tests), bug.name


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_is_caught(bug: Bug, tmp_path: Path, figure) -> None:
    """One that does not compile would be caught by anything."""
    source = trees.copied(tmp_path)
    path = source / "evicp" / bug.file
    before = ast.dump(ast.parse(path.read_text(encoding="utf-8")))
    bug.apply(source)
    assert ast.dump(ast.parse(path.read_text(encoding="utf-8"))) != before
    code, output = trees.run_tests(source, list(bug.tests), tmp_path, timeout=240)
    assert code in (1, 124), f"{bug.name} goes unnoticed:\n{output}"
    assert "error during collection" not in output
    figure("seeded bugs caught", 1)


@pytest.mark.long
def test_control_without_a_bug_the_same_tests_pass(tmp_path: Path) -> None:
    tests = sorted({test for bug in BUGS for test in bug.tests})
    code, output = trees.run_tests(trees.copied(tmp_path), tests, tmp_path, timeout=900)
    assert code == 0, output
