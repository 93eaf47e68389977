"""Every ingredient of a label's cost, and the table that shows them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import evicp
from evicp import ECP, explain, kernels
from evicp.errors import EvicpError, InputError, InputTypeError, LogitsError
from evicp.evaluation.explain import explain_set
from oracles import FAMILIES, adversarial_row, reference_mpmath_ecp

INGREDIENTS = (
    "evidence",
    "belief",
    "probability",
    "focal_uncertainty",
    "surprisal",
    "focal_surprisal",
    "utility",
    "expected_utility",
)


@pytest.mark.parametrize(
    "score", [ECP(), ECP("softplus", tuple(np.arange(1, 7) / 21), 0.7, 0.0)], ids=["plain", "uneven"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_ingredient_is_the_equations(family, score):
    z = adversarial_row(family, 6, np.random.default_rng(1))
    explanation = explain(z, score)
    wanted = reference_mpmath_ecp(
        z,
        evidence=score.evidence,
        base_rates=score.base_rates,
        temperature=score.temperature,
        stabilizer=score.epsilon(6),
    )
    for name in INGREDIENTS:
        got, reference = getattr(explanation, name), np.array([float(x) for x in wanted[name]])
        assert np.all(np.abs(got - reference) <= 1e-12 * np.maximum(1, np.abs(reference))), name
    assert explanation.rank.tolist() == wanted["rank"]
    assert explanation.uncertainty == pytest.approx(float(wanted["uncertainty"][0]), rel=1e-13)
    assert np.array_equal(explanation.logit, z)


@pytest.mark.parametrize(
    "score", [ECP(), ECP(stabilizer=0), ECP("exp"), ECP(base_rates=(0.1, 0.2, 0.3, 0.4))], ids=repr
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_score_is_the_scores_to_the_bit(cpu_backend, score, dtype):
    """Else a label at the threshold could be in the set and explained as being out of it."""
    rng = np.random.default_rng(2)
    for z in (3 * rng.normal(size=(50, 4))).astype(dtype):
        z[3] = -np.inf
        assert explain(z, score).score.tobytes() == score.scores(z[None]).tobytes()


def test_a_users_parts_are_explained_too():
    score = ECP(evidence=np.abs, utility=lambda z: np.full(z.shape, 0.25))
    explanation = explain([2.0, 1.0, -1.0, -np.inf], score)
    assert explanation.evidence.tolist() == [2.0, 1.0, 1.0, 0.0]
    assert np.allclose(explanation.utility, [0.25, 0.25, 0.25, 0.0])


def test_labels_are_listed_from_the_most_plausible():
    explanation = explain([0.5, 3.0, -np.inf, 3.0, -2.0])
    assert explanation.order.tolist() == [1, 3, 0, 4, 2]
    lines = explanation.table(top=3).splitlines()
    assert [line.split()[0] for line in lines] == ["label", "-----", "1", "3", "0"]
    assert len(explain(np.arange(30.0)).table().splitlines()) == 12


def test_labels_of_equal_score_are_listed_by_logit():
    """A stabilizer that swallows every denominator leaves one score for all."""
    explanation = explain([1.0, 3.0, 2.0], ECP(evidence=np.zeros_like, stabilizer=1e30))
    assert explanation.score.tolist() == [0.0, 0.0, 0.0]
    assert explanation.order.tolist() == [1, 2, 0]


def test_a_threshold_says_who_is_in():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    calibration = evicp.calibrate(rng.normal(size=(300, 5)) + 2 * np.eye(5)[labels], labels)
    row = rng.normal(size=5)
    threshold = calibration.threshold(0.9)
    explanation = explain(row, calibration.score, threshold=threshold)
    inside = calibration.predict(row, 0.9)[0].tolist()
    body = [line.split() for line in explanation.table().splitlines()[2:]]
    assert {int(line[0]) for line in body if line[-1] == "yes"} == set(inside)
    assert {int(line[0]) for line in body if line[-1] == "no"} == set(range(5)) - set(inside)
    assert f"in the set if ln score <= {threshold:.4f}" in repr(explanation)


@pytest.mark.parametrize("by", [None, "class"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_explanation_and_set_agree_on_every_label(by, dtype):
    """Also where the calibration rows were scored by another backend, or in another precision, than the new row."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 5, 60)
    logits = rng.normal(size=(60, 5)).astype(np.float32)
    with kernels.backend("numpy"):
        calibration = evicp.calibrate(logits, labels, by=by)
    on_threshold = 0
    for row, label in zip(logits.astype(dtype), labels, strict=True):  # one of them made the threshold
        explanation = explain_set(calibration, row, 0.8)
        assert set(np.flatnonzero(explanation.in_set)) == set(calibration.predict(row, 0.8)[0])
        if by is None:
            sure = explain_set(calibration, row, 0.8, confidence=0.9)
            assert set(np.flatnonzero(sure.in_set)) == set(calibration.predict(row, 0.8, confidence=0.9)[0])
        limit = np.broadcast_to(explanation.threshold, 5)
        on_threshold += bool(abs(explanation.score[label] - limit[label]) <= 3e-6 * max(1, abs(limit[label])))
    assert on_threshold


def test_a_row_of_a_frame_has_the_classes_in_their_order():
    """As `predict` has it: under the wrong names every figure would look right."""
    pandas = pytest.importorskip("pandas")
    calibration = evicp.calibrate([[2.0, 1.0, 0.0]] * 4, [0, 1, 0, 0], class_names=["ant", "bee", "cat"])
    row = pandas.Series([2.0, 1.0, 0.0], index=["ant", "bee", "cat"])
    assert explain_set(calibration, row, 0.5).in_set.tolist() == [True, False, False]
    with pytest.raises(LogitsError, match="in another order: column 0 is 'cat', class 0 is 'ant'"):
        explain_set(calibration, row[["cat", "bee", "ant"]], 0.5)
    with pytest.raises(LogitsError, match="in another order"):
        explain(row[["cat", "bee", "ant"]], class_names=["ant", "bee", "cat"])


def test_every_label_may_have_its_threshold():
    explanation = explain([2.0, 1.0, -1.0], ECP(), threshold=np.array([-6.0, -3.0, -1.0]))
    assert explanation.in_set.tolist() == [False, True, False]
    assert "in the set if ln score <= threshold" in repr(explanation)
    assert [line.split()[-2:] for line in explanation.table().splitlines()[2:]] == [
        ["-6.0000", "no"],
        ["-3.0000", "yes"],
        ["-1.0000", "no"],
    ]
    assert explain([2.0, 1.0, -1.0]).in_set is None


SCORES_TO_EXPLAIN = [
    "ecp",
    "lac",
    "aps",
    "topk",
    evicp.APS(randomized=False),
    evicp.RAPS(lam=0.2, k_reg=1, randomize_penalty=True),
    evicp.SAPS(lam=0.3),
    evicp.Margin(temperature=1.7),
    evicp.ClassLAC(offsets=[0.1, -1.0, 0.5, 0, 0, 1], limits=[3, 3, 1, 6, 6, 2]),
    lambda z: z.max(1, keepdims=True) - z,
]
#: The formula of each score, of its ingredients.
FORMULAS = {
    "lac": lambda e: -np.log(e.probability),
    "aps": lambda e: e.mass_above + e.v * e.probability,
    "raps": lambda e: e.mass_above + e.v * e.probability + e.penalty,
    "saps": lambda e: e.top_share + e.penalty,
    "topk": lambda e: e.rank - 1 + e.v,
    "classlac": lambda e: -np.log(e.probability) + e.offset + e.penalty,
    "margin": lambda e: e.best_other - e.probability,
}


@pytest.mark.parametrize("score", SCORES_TO_EXPLAIN, ids=lambda score: getattr(score, "__name__", str(score)))
def test_every_score_is_made_of_its_ingredients_and_agrees_with_predict(score):
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 6, 200)
    logits = (rng.normal(size=(200, 6)) + 2 * np.eye(6)[labels]).astype(np.float32)
    calibration = evicp.calibrate(logits[:150], labels[:150], score)
    for coverage in (0.9, 0.6):
        for row, members in zip(logits[150:], calibration.predict(logits[150:], coverage), strict=True):
            found = calibration.explain(row, coverage)
            assert np.flatnonzero(found.in_set).tolist() == sorted(members.tolist())
    formula = FORMULAS.get(calibration.score.name)
    if formula is not None:
        assert np.allclose(found.score, formula(found), atol=1e-5)
        assert f"score = {calibration.score.equation}." in repr(found)
    assert calibration.score.describe() in found.to_dict()["score"]


def _laws(logits, labels):
    groups = np.where(logits[:, 0] > 0, "wet", "dry")
    weights = 0.5 + rng_of(8).random(len(labels))
    return {
        "class": (evicp.calibrate(logits, labels, "lac", by="class"), {}),
        "group": (evicp.calibrate(logits, labels, "aps", by=groups), {"groups": groups}),
        "uncertainty": (evicp.calibrate(logits, labels, "raps", by="uncertainty"), {}),
        "weighted": (evicp.calibrate(logits, labels, "lac", weights=weights), {"weights": weights}),
        "class weights": (evicp.calibrate(logits, labels, class_weights=[1.0, 2.0, 0.5, 1.0]), {}),
        "smoothed": (evicp.calibrate(logits.round(), labels, "topk"), {"smoothed": rng_of(9).random(len(labels))}),
    }


def rng_of(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("law", ["class", "group", "uncertainty", "weighted", "class weights", "smoothed"])
def test_every_law_is_explained_as_predict_decides(law):
    """Thresholds that depend on the row, too: its group, its band of uncertainty, its weight."""
    rng = rng_of(7)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(size=(300, 4)) + 2 * np.eye(4)[labels]
    calibration, of_rows = _laws(logits, labels)[law]
    for i in range(40):
        how = {name: values[i : i + 1] for name, values in of_rows.items()}
        found = calibration.explain(logits[i], 0.8, **how)
        assert np.flatnonzero(found.in_set).tolist() == sorted(calibration.predict(logits[i], 0.8, **how)[0].tolist())


def test_what_an_explanation_does_not_have_is_said():
    with pytest.raises(AttributeError, match="no 'evidence'; its ingredients are probability"):
        explain([2.0, 1.0], "lac").evidence  # noqa: B018
    with pytest.raises(InputError, match="needs the group of each row"):
        evicp.calibrate(2 * np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0], by=[0, 0, 1, 1]).explain([1.0, 0.0, 0.0])
    assert "a user-defined function" in repr(explain([2.0, 1.0], np.negative))


def test_class_names_are_shown():
    text = repr(explain([2.0, 1.0, -1.0], class_names=["cat", "dog", "axolotl"]))
    assert "0 cat" in text
    assert "2 axolotl" in text
    assert "uncertainty u = 0.5000" in text
    assert "in set" not in text


def test_decimals_stand_under_one_another_in_eighty_columns():
    """Probabilities that differ by orders of magnitude have as many digits; a huge logit does not widen the table."""
    rng = np.random.default_rng(3)
    explanation = explain(
        4 * rng.normal(size=1000), ECP(), threshold=-3.0, class_names=[f"name {i}" for i in range(1000)]
    )
    head, _, *lines = explanation.table(top=20).splitlines()
    assert max(map(len, [head, *lines, *explanation.note.splitlines()])) <= 80
    assert len({tuple(i for i, c in enumerate(line) if c == ".") for line in lines}) == 1
    assert " belief  Dirichlet p  softmax  ln score  in set" in head
    assert repr(explanation).endswith(
        "softmax: the network's probability, at the score's temperature.\n"
        "Dirichlet p: spread over all 1,000 labels, so it is small for many labels."
    )
    assert "1e+30" in explain([1e30, 2.0]).table()


def test_a_users_utility_is_not_called_softmax():
    text = repr(explain([2.0, 1.0, -1.0], ECP(utility=np.abs)))
    assert "softmax" not in text
    assert "  Dirichlet p  utility  ln score" in text


def test_a_notebook_shows_the_explanation_as_text():
    page = explain([2.0, 1.0], class_names=["<script>alert(1)</script>", "b"])._repr_html_()
    assert "0 &lt;script&gt;alert(1)&lt;/script&gt;</td>" in page
    assert "<script>" not in page
    assert "uncertainty u = 0.4000</caption>" in page
    assert "<p>softmax: the network&#x27;s probability" in page


def test_one_row_of_either_shape():
    assert np.array_equal(explain([[2.0, 1.0, -1.0]]).score, explain(np.array([2.0, 1.0, -1.0])).score)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([[1.0, 2.0], [3.0, 4.0]],), {}, LogitsError, "one row of logits; got 2"),
        ((np.empty((0, 3)),), {}, LogitsError, "one row of logits; got 0"),
        (([1.0, np.nan],), {}, LogitsError, "NaN"),
        (([1.0, 2.0], 3), {}, InputTypeError, "score must be a name"),
        (([1.0, 2.0],), {"class_names": ["a"]}, EvicpError, "one name per class"),
        (([1.0, 2.0], ECP()), {"threshold": [1.0, 2.0, 3.0]}, EvicpError, "one number, or one per class"),
        (([1.0, 2.0], ECP()), {"threshold": np.nan}, InputError, "not NaN; got nan"),
        (([1.0, 2.0], ECP()), {"threshold": "low"}, InputTypeError, "threshold must be an array; got 'low'"),
    ],
)
def test_what_cannot_be_explained(arguments, options, error, message):
    with pytest.raises(error, match=message):
        explain(*arguments, **options)


@pytest.mark.parametrize("threshold", [None, -3.0, np.array([-3.0, -8.0, 1.0])], ids=["none", "one", "each"])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_an_explanation_as_json(threshold, names):
    explanation = evicp.explain([0.5, 2.0, -1.0], ECP(), threshold=threshold, class_names=names)
    content = json.loads(json.dumps(explanation.to_dict()))
    assert content["uncertainty"] == explanation.uncertainty
    assert content["threshold"] == (threshold if isinstance(threshold, float) else None)
    assert [entry["label"] for entry in content["labels"]] == explanation.order.tolist()
    for entry in content["labels"]:
        label = entry["label"]
        for name in ("logit", "evidence", "belief", "probability", "surprisal", "utility", "rank", "score"):
            assert entry[name] == getattr(explanation, name)[label]
        assert entry.get("name") == (None if names is None else names[label])
        assert entry.get("in_set") == (None if threshold is None else bool(explanation.in_set[label]))
        if threshold is not None:
            assert entry["threshold"] == np.broadcast_to(threshold, 3)[label]
    assert explanation.to_dict(2) == {**explanation.to_dict(), "labels": explanation.to_dict()["labels"][:2]}
