"""Sets with a bounded expected loss: thresholds by hand, losses, files, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import evicp
from evicp import RiskControl, control_risk, hierarchy_costs
from evicp.datasets import load_imagenet_sample
from evicp.errors import ArtifactError, InputError, InputTypeError, LabelsError, SmallCalibrationWarning
from evicp.kernels import dense_scores

K = 4
MATRIX = np.array([[0, 1, 4, 4], [1, 0, 4, 4], [2, 2, 0, 1], [2, 2, 1, 0]])


@pytest.fixture(scope="module")
def sample():
    found = load_imagenet_sample()
    return found.logits[:250], found.labels[:250], found.logits[250:350], found.labels[250:350]


def closest(labels, true) -> float:
    """The loss of MATRIX as a function."""
    return float(MATRIX[true, labels].min() if len(labels) else MATRIX[true].max())


# ---------------------------------------------------------------------------------------------------------------
# Thresholds


@pytest.mark.parametrize("score", ["ecp", "lac", "aps", "topk", "margin"])
def test_of_misses_the_threshold_is_the_conformal_one_to_the_bit(sample, cpu_backend, score):
    logits, labels, new, _ = sample
    plain = evicp.calibrate(logits, labels, score)
    for risk in (0.05, 0.1, 0.2, Fraction(1, 3)):
        control = control_risk(logits, labels, risk=risk, score=score)
        coverage = 1 - Fraction(risk).limit_denominator(10**9)
        assert control.threshold == plain.threshold(coverage)
        assert control.at(risk, 0.95).threshold == plain.threshold(coverage, 0.95)
        mine, theirs = control.predict(new), plain.predict(new, coverage)
        assert np.array_equal(mine.labels, theirs.labels)
        assert np.array_equal(mine.offsets, theirs.offsets)


@pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")
@pytest.mark.parametrize("n", [*range(1, 12), 19, 20, 39, 99, 100])
def test_of_misses_the_rank_is_exact_at_every_size(n):
    """On the edge, where (n + 1) risk is a whole number, one miss more or less decides."""
    rng = np.random.default_rng(n)
    labels = rng.integers(0, K, n)
    logits = rng.normal(size=(n, K)) + np.eye(K)[labels]
    plain = evicp.calibrate(logits, labels, "lac")
    for risk in (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9):
        control = control_risk(logits, labels, risk=risk, score="lac")
        assert control.threshold == plain.threshold(1 - Fraction(risk).limit_denominator(1000))


def brute_force(logits, labels, costs, risk, n_classes=K) -> float:
    """The smallest candidate whose (n R + B) / (n + 1) is within the risk, by trying all, in fractions."""
    scores = dense_scores(evicp.LAC(), logits)
    most = Fraction(max(map(Fraction, costs)))
    for t in [-np.inf, *np.unique(scores)]:
        total = sum((Fraction(costs[y]) for row, y in zip(scores, labels, strict=True) if row[y] > t), Fraction(0))
        if (total + most) / (len(labels) + 1) <= risk:
            return float(t)
    return float("inf")


@pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")
def test_class_costs_against_every_threshold_tried_in_fractions():
    rng = np.random.default_rng(3)
    for trial in range(60):
        n = int(rng.integers(2, 60))
        labels = rng.integers(0, K, n)
        logits = np.round(rng.normal(size=(n, K)) + 1.5 * np.eye(K)[labels], 1)  # with ties
        texts = rng.choice(["0.1", "0.3", "1", "0.7", "0", "2.5"], K)
        texts[0] = "1"
        risk = Fraction(int(rng.integers(1, 19)), 20)
        control = control_risk(logits, labels, risk=risk, class_costs=texts.astype(float), score="lac")
        assert control.threshold == brute_force(logits, labels, [Fraction(x) for x in texts], risk), trial


def test_costs_are_the_numbers_they_are_written_as():
    """Ten misses that cost 0.1 are 1, not a little more as of the doubles next to them: (1 + 1) / 20 is 0.1."""
    logits = np.column_stack([np.arange(19.0), np.zeros(19)])
    control = control_risk(logits, np.zeros(19, int), risk=0.1, class_costs=[0.1, 1], score="margin")
    assert control.mean_loss == Fraction(1, 19)
    assert control.threshold == evicp.calibrate(logits, np.zeros(19, int), "margin").scores[8]


def test_a_cost_matrix_and_the_same_function_agree(rows):
    logits, labels = rows
    matrix = control_risk(logits, labels, risk=0.4, loss=MATRIX, score="lac")
    function = control_risk(logits, labels, risk=0.4, loss=closest, largest=4, score="lac")
    assert matrix.threshold == function.threshold
    assert matrix.mean_loss == function.mean_loss
    assert matrix.at(0.6, 0.9).threshold == function.at(0.6, 0.9).threshold
    for limit in (-np.inf, *matrix.steps.scores, np.inf):
        assert matrix.steps.loss_at(limit) == function.steps.loss_at(limit)
    sets = matrix.predict(logits)
    losses = matrix.losses(sets, labels)
    assert np.array_equal(losses, function.losses(sets, labels))
    assert losses.mean() == pytest.approx(float(matrix.mean_loss))
    assert (matrix.n * matrix.mean_loss + 4) / (matrix.n + 1) <= Fraction(2, 5)


def test_the_mean_loss_at_any_threshold_is_that_of_its_sets(rows):
    """Losses of steps are those of sets: of empty ones, full ones and all between."""
    logits, labels = rows
    for how in ({"class_costs": [3, 1, 1, 0]}, {"loss": MATRIX}):
        control = control_risk(logits, labels, risk=0.1, score="lac", **how)
        scores = dense_scores(evicp.LAC(), logits)
        for limit in (-np.inf, *control.steps.scores[::5], np.inf):
            sets = evicp.PredictionSets.from_mask(scores <= limit, coverage=0.5)
            assert control.losses(sets, labels).mean() == pytest.approx(float(control.steps.loss_at(limit)))


def test_the_confident_threshold_is_the_smallest_that_hoeffding_and_bentkus_allow():
    """By hand for 100 rows: with losses of 0, 1/2 and 1, 3 in all, the p-value of 0.1 is that of the tighter one."""
    from scipy.stats import binom

    from evicp.risk.steps import log_p_value

    hoeffding = 100 * (0.03 * np.log(0.03 / 0.1) + 0.97 * np.log(0.97 / 0.9))
    bentkus = np.e * binom.cdf(3, 100, 0.1)
    p = np.exp(log_p_value(Fraction(3, 100), Fraction(1, 10), 100))
    assert p == pytest.approx(min(np.exp(-hoeffding), bentkus))
    rng = np.random.default_rng(1)
    labels = rng.integers(0, K, 800)
    logits = rng.normal(size=(800, K)) + 3 * np.eye(K)[labels]
    control = control_risk(logits, labels, risk=0.2, confidence=0.9, loss=MATRIX, score="lac")
    scores, at = control.steps.scores, np.searchsorted(control.steps.scores, control.threshold)
    share = Fraction(1, 5) / 4
    for limit, enough in ((control.threshold, True), (scores[at - 1], False)):
        mean = control.steps.loss_at(float(limit)) / 4
        assert (log_p_value(mean, share, 800) <= np.log(0.1)) == enough
    assert control.threshold > control.at(0.2).threshold


def test_another_precision_does_not_lose_what_was_promised(sample):
    """Rows in another precision are compared as in a calibration: sets of float32 and float64 rows agree."""
    logits, labels, new, _ = sample
    control = control_risk(logits.astype(np.float64), labels, risk=0.1, loss=np.ones((1000, 1000)) - np.eye(1000))
    plain = evicp.calibrate(logits.astype(np.float64), labels)
    assert control.threshold == plain.threshold(0.9)
    for dtype in (np.float16, np.float32, np.float64):
        assert np.array_equal(control.predict(new.astype(dtype)).labels, plain.predict(new.astype(dtype)).labels)


@pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")
def test_too_few_rows_give_full_sets_and_say_how_many_would_do(rows):
    logits, labels = rows
    control = control_risk(logits, labels, risk=0.01, class_costs=[10, 1, 1, 1])
    with pytest.warns(SmallCalibrationWarning, match="80 calibration row.* a risk of 0.01: .* at least 999 rows"):
        assert control.predict(logits[:2]).sizes.tolist() == [K, K]
    assert "every set is full" in str(control.certificate())


def test_a_risk_that_nothing_exceeds_gives_empty_sets_and_says_so(rows):
    logits, labels = rows
    control = control_risk(logits, labels, risk=0.9, class_costs=[1, 0, 0, 0])
    with pytest.warns(evicp.EvicpWarning, match="allows empty sets"):
        assert not control.predict(logits).sizes.any()


# ---------------------------------------------------------------------------------------------------------------
# Results


def test_a_result_prints_itself_and_its_sets_say_what_they_are(rows):
    logits, labels = rows
    control = control_risk(logits, labels, risk=0.5, class_costs=[10, 1, 1, 1], score="lac")
    assert repr(control).startswith("RiskControl(risk 0.5: cost by the class of a missed label, at most 10; lac")
    sets = control.predict(logits)
    assert sets.guarantee == "risk"
    assert "expected loss at most 0.05 of the largest" in repr(sets)
    observed = control.evaluate(logits, labels)
    assert observed.mean_loss == pytest.approx(float(control.mean_loss))
    text = str(control.certificate(observed))
    assert "(n R + largest) / (n + 1)" in text
    assert "agrees with the risk 0.5" in text
    figures = control.certificate(observed).to_dict()
    assert figures["bound"] <= 0.5
    assert figures["observed"]["kept"]
    assert "<table>" in control._repr_html_()


def test_an_evaluation_tells_a_broken_promise(rows):
    logits, labels = rows
    control = control_risk(logits, labels, risk=0.3, score="lac")
    assert not control.evaluate(np.tile(-logits, (5, 1)), np.tile(labels, 5)).kept


@pytest.mark.parametrize(
    "how", [{}, {"class_costs": [3, 1, 1, 0]}, {"loss": MATRIX, "confidence": 0.9}, {"loss": closest, "largest": 4.0}]
)
def test_files_give_back_what_was_saved(rows, tmp_path, how):
    logits, labels = rows
    control = control_risk(logits, labels, risk=0.45, class_names=list("abcd"), **how)
    control.save(tmp_path / "risk.safetensors")
    found = RiskControl.load(tmp_path / "risk.safetensors")
    assert found.threshold == control.threshold
    assert found.predict(logits) == control.predict(logits)
    assert found.certificate().to_json() == control.certificate().to_json()
    sets = found.predict(logits)
    if "largest" in how:
        with pytest.raises(InputError, match="Supply it: load"):
            found.losses(sets, labels)
        found = RiskControl.load(tmp_path / "risk.safetensors", loss=closest)
    else:
        with pytest.raises(InputError, match="not a function: leave loss= out"):
            RiskControl.load(tmp_path / "risk.safetensors", loss=closest)
    assert np.array_equal(found.losses(sets, labels), control.losses(sets, labels))


def test_files_of_rules_and_calibrations_are_not_taken_for_each_other(rows, tmp_path):
    control = control_risk(*rows, risk=0.2)
    control.save(tmp_path / "risk.safetensors")
    with pytest.raises(ArtifactError, match="it is a rule, not a calibration"):
        evicp.load(tmp_path / "risk.safetensors")
    control.calibration.save(tmp_path / "cal.safetensors")
    with pytest.raises(ArtifactError, match="cannot load"):
        RiskControl.load(tmp_path / "cal.safetensors")


def test_a_damaged_file_is_refused(rows, tmp_path):
    control = control_risk(*rows, risk=0.2, class_costs=[1, 2, 3, 4])
    path = tmp_path / "risk.safetensors"
    control.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 150):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ArtifactError):
            RiskControl.load(path)
    path.write_bytes(whole[:-8])
    with pytest.raises(ArtifactError):
        RiskControl.load(path)


def test_a_hierarchy_costs_as_far_as_the_first_common_ancestor():
    costs = hierarchy_costs([["animal", "dog"], ["animal", "dog"], ["animal", "cat"], ["car"], []])
    assert costs.round(3).tolist() == [
        [0, 0.333, 0.667, 1, 1],
        [0.333, 0, 0.667, 1, 1],
        [0.667, 0.667, 0, 1, 1],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 1, 0],
    ]


# ---------------------------------------------------------------------------------------------------------------
# Bad input


def rising(labels, true) -> float:
    return len(labels) / K


def floor(labels, true) -> float:
    return 0.5


def nan(labels, true) -> float:
    return float("nan")


BAD = [
    ({"risk": 0}, InputError, "risk must be above 0 and below the largest loss, 1; got 0"),
    ({"risk": 1.5}, InputError, "below the largest loss, 1; got 1.5"),
    ({"risk": 1e-12}, InputError, "read to nine decimals"),
    ({"risk": float("nan")}, InputError, "got nan"),
    ({"risk": "0.1"}, InputTypeError, "risk must be a number, the allowed expected loss; got '0.1'"),
    ({"risk": True}, InputTypeError, "got True"),
    ({"risk": 0.1, "coverage": 0.9}, InputTypeError, "Pass a risk"),
    ({"risk": 0.1, "alpha": 0.1}, InputTypeError, "Pass a risk"),
    ({"risk": 0.1, "confidence": 1}, InputError, "confidence must be strictly between 0 and 1"),
    ({"risk": 0.1, "loss": "hinge"}, InputError, 'loss must be "miss"'),
    ({"risk": 0.1, "loss": np.ones((K, K))}, InputError, "0 on its diagonal; got 1 for class 0"),
    ({"risk": 0.1, "loss": np.ones((K, 3))}, InputError, r"must have shape \(4, 4\)"),
    ({"risk": 0.1, "loss": -1 + np.eye(K)}, InputError, "none below 0"),
    ({"risk": 0.1, "loss": np.zeros((K, K))}, InputError, "one above"),
    ({"risk": 0.1, "class_costs": [1, 2]}, InputError, r"class_costs must have shape \(4,\)"),
    ({"risk": 0.1, "class_costs": [1, 2, 3, np.inf]}, InputError, "finite"),
    ({"risk": 0.1, "class_costs": list("abcd")}, InputTypeError, "must be numbers"),
    ({"risk": 0.1, "class_costs": [1] * K, "loss": MATRIX}, InputError, "not both"),
    ({"risk": 0.1, "loss": rising}, InputError, "the loss rising is not monotone: at row 0, .* rises from 0 to 0.25"),
    ({"risk": 0.1, "loss": floor}, InputError, "the loss floor of the full set must be 0; got 0.5"),
    ({"risk": 0.1, "loss": nan}, InputError, "the loss nan must return a number from 0 to largest=1; got nan"),
    ({"risk": 0.1, "loss": lambda s, y: "x"}, InputError, "got 'x'"),
    ({"risk": 0.1, "loss": closest}, InputError, "got 2.0 for a set of 0 label"),
    ({"risk": 0.1, "loss": closest, "largest": -1}, InputError, "largest must be a positive number"),
    ({"risk": 0.1, "loss": closest, "largest": 10**400}, InputError, "largest must be a positive number"),
]


@pytest.mark.parametrize(("how", "error", "message"), BAD)
def test_bad_input_is_refused_by_name(rows, how, error, message):
    with pytest.raises(error, match=message):
        control_risk(*rows, **how)


def test_a_loss_that_rises_once_in_one_row_is_found(rows):
    """Anywhere between the empty and the full set, in any row."""
    logits, labels = rows
    seen: list[int] = []

    def almost(own, true):
        if len(own) == 0:
            seen.append(true)
        size = len(own) / K
        return 1 - size + (0.6 if len(seen) == 77 and len(own) == K - 1 else 0)

    with pytest.raises(InputError, match=r"at row 76, .* as the set grows from 2 to 3 labels"):
        control_risk(logits, labels, risk=0.1, loss=almost)


def test_new_rows_and_labels_are_checked(rows):
    control = control_risk(*rows, risk=0.2, loss=MATRIX)
    with pytest.raises(evicp.errors.LogitsError, match="must have 4 classes"):
        control.predict(np.zeros((2, 3)))
    with pytest.raises(LabelsError):
        control.losses(control.predict(rows[0]), rows[1] + 4)
    with pytest.raises(InputTypeError, match=r"control.at\(risk=0.1\)"):
        control.predict(rows[0], coverage=0.9)
    with pytest.raises(InputTypeError):
        hierarchy_costs("abc")
    for paths in (None, 3, iter([["a"]]), [[["a"]], [["b"]]]):
        with pytest.raises(InputTypeError):
            hierarchy_costs(paths)
    with pytest.raises(InputError, match="2 classes or more; got 1"):
        hierarchy_costs([["a"]])
