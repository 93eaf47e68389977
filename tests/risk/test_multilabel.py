"""Several labels at once: thresholds by hand, every form of truth, evaluation, files, agreement with MAPIE."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import evicp
from evicp import MultiLabel, multilabel
from evicp.datasets import load_imagenet_sample
from evicp.errors import ArtifactError, InputError, InputTypeError, LabelsError, LogitsError
from evicp.risk.precision import _LOGITS, _wrong_shares
from evicp.risk.steps import log_p_value

K = 5


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of no label, of some, or of all."""
    rng = np.random.default_rng(seed)
    truth = rng.random((n, K)) < rng.random((n, 1))
    return rng.normal(size=(n, K)) * 1.2 + 2 * truth - 1, truth


@pytest.fixture(scope="module")
def many():
    return draw(800)


def share_missed(logits, truth, threshold) -> list[Fraction]:
    missed = (truth & (logits < threshold)).sum(1)
    return [Fraction(int(m), max(1, int(t))) for m, t in zip(missed, truth.sum(1), strict=True)]


# ---------------------------------------------------------------------------------------------------------------
# Thresholds


def test_the_threshold_against_every_one_tried_in_fractions():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits, truth = draw(int(rng.integers(3, 40)), seed)
        logits = np.round(logits, 1)
        risk = Fraction(int(rng.integers(2, 18)), 20)
        if not truth.any():
            continue
        allowed = [
            t
            for t in [np.inf, *np.unique(logits), -np.inf]
            if (sum(share_missed(logits, truth, t)) + 1) / (len(truth) + 1) <= risk
        ]
        expected = max(allowed, default=-np.inf)
        got = float(multilabel(logits, truth, missed=risk).thresholds[0])
        members = logits[truth]  # between two true labels all thresholds are alike
        assert np.sum(members >= got) == np.sum(members >= expected), seed


def test_thirds_are_thirds():
    """Three rows of three labels, one missed in each: 3 / 3, and not a little more."""
    logits = np.tile([3.0, 2.0, 1.0, 0.0], (3, 1))
    truth = np.tile([True, True, True, False], (3, 1))
    rule = multilabel(logits, truth, missed=Fraction(1, 2))  # (1 + 1) / 4
    assert rule.thresholds.tolist() == [2.0]
    assert rule.steps.loss_at(-2.0) == Fraction(1, 3)


def test_by_label_each_threshold_is_the_conformal_one_of_the_rows_where_it_is_true(many):
    logits, truth = many
    for confidence in (None, 0.9):
        rule = multilabel(logits, truth, missed=0.1, by_label=True, confidence=confidence)
        for label in range(K):
            own = np.sort(-logits[truth[:, label], label])
            n = len(own)
            rank = evicp.conformal_rank(n, 0.9) if confidence is None else evicp.pac_rank(n, 0.9, confidence)
            assert rule.thresholds[label] == -own[rank - 1]
    few = multilabel(logits[:30], truth[:30] & [True, True, True, True, False], missed=0.1, by_label=True)
    assert few.thresholds[4] == -np.inf
    assert few.predict(logits)[:5].contains([4] * 5).all()
    assert "in every set" in str(few.certificate())


def test_sets_hold_the_labels_from_the_threshold_on_likeliest_first(many):
    logits, truth = many
    rule = multilabel(logits, truth, missed=0.2)
    new, _ = draw(300, 1)
    sets = rule.predict(new)
    assert np.array_equal(sets.mask(), new >= rule.thresholds[0])
    for row, labels in zip(new, sets, strict=True):
        assert np.all(np.diff(row[labels]) <= 0)
    assert rule.predict(new[3]).to_lists() == sets[3:4].to_lists()
    assert np.array_equal(rule.predict(new.astype(np.float32)).mask(), new.astype(np.float32) >= rule.thresholds[0])
    assert len(rule.predict(np.empty((0, K)))) == 0


def test_sure_labels_are_tested_from_the_surest_on(many):
    logits, truth = (part[:400] for part in many)
    rule = multilabel(logits, truth, missed=0.2, confidence=0.9, precision=0.8)
    shares = np.array([((logits >= t) & ~truth).sum(1) / np.maximum((logits >= t).sum(1), 1) for t in _LOGITS]).T
    assert np.allclose(shares, _wrong_shares(logits, truth))
    certified = []
    for t, mean in zip(_LOGITS, shares.mean(0), strict=True):
        if log_p_value(Fraction(float(mean)), Fraction(1, 5), 400) > np.log(0.05):
            break
        certified.append(t)
    assert rule.surest == pytest.approx(certified[-1])
    assert np.array_equal(rule.predict(logits, sure=True).mask(), logits >= rule.surest)
    assert rule.thresholds[0] == multilabel(logits, truth, missed=0.2, confidence=0.95).thresholds[0]


@pytest.mark.parametrize("calibrated", [np.float64, np.float32])
def test_tied_logits_are_found_in_every_precision(calibrated):
    """Shares of votes: in double precision 0.3 is smaller than in single precision."""
    truth = np.random.default_rng(0).random((600, K)) < 0.4
    votes = np.round(np.clip(0.45 * truth + 0.3 + np.random.default_rng(1).normal(0, 0.15, (600, K)), 0, 1) * 10) / 10
    rule = multilabel(votes.astype(calibrated), truth, missed=0.1)
    expected = rule.predict(votes.astype(calibrated)).mask()
    assert expected.mean() < 0.6
    for given in (votes, votes.astype(np.float32), votes.astype(np.float16), votes.astype(np.float32).tolist()):
        assert np.array_equal(rule.predict(given).mask(), expected)


# ---------------------------------------------------------------------------------------------------------------
# Forms of truth


class Column:
    """As an Arrow column of lists is."""

    def __init__(self, lists):
        self.lists = lists

    def __iter__(self):
        raise AssertionError("its values are Arrow's own")

    def to_pylist(self):
        return self.lists


def test_every_form_of_truth_is_the_same(many):
    logits, truth = many
    names = ["sky", "sea", "sand", "sun", "snow"]
    lists = [np.flatnonzero(row).tolist() for row in truth]
    forms = [
        truth.astype(int),
        truth.astype(float),
        truth.tolist(),
        lists,
        [set(row) for row in lists],
        [np.array(row, int) for row in lists],
        [[names[label] for label in row] for row in lists],
        Column(lists),
        evicp.PredictionSets.from_mask(truth, coverage=0.5),
    ]
    expected = multilabel(logits, truth, class_names=names).thresholds
    for form in forms:
        assert np.array_equal(multilabel(logits, form, class_names=names).thresholds, expected)


def test_a_frame_of_truth_must_have_its_labels_in_the_order_of_the_logits(many):
    pd = pytest.importorskip("pandas")
    logits, truth = pd.DataFrame(many[0], columns=list("abcde")), pd.DataFrame(many[1], columns=list("abcde"))
    assert np.array_equal(multilabel(logits, truth).thresholds, multilabel(*many).thresholds)
    with pytest.raises(LogitsError, match="truth have the columns of the classes in another order"):
        multilabel(logits, truth[list("edcba")])
    with pytest.raises(InputError, match="truth"):
        multilabel(logits, truth[::-1])


def test_an_arrow_column_is_read(many):
    pa = pytest.importorskip("pyarrow")
    logits, truth = many
    column = pa.array([np.flatnonzero(row).tolist() for row in truth])
    for form in (column, pa.chunked_array([column[:300], column[300:]])):
        assert np.array_equal(multilabel(logits, form).thresholds, multilabel(logits, truth).thresholds)


# ---------------------------------------------------------------------------------------------------------------
# Evaluation


def test_figures_are_scikit_learns(many):
    metrics = pytest.importorskip("sklearn.metrics")
    new, true = draw(500, 2)
    rule = multilabel(*many, missed=0.15, confidence=0.9, precision=0.7)
    found, mask = rule.evaluate(new, true), rule.predict(new).mask()
    micro = metrics.precision_recall_fscore_support(true, mask, average="micro")[:3]
    assert (found.precision, found.recall, found.f1) == pytest.approx(micro)
    by_label = metrics.precision_recall_fscore_support(true, mask)
    assert np.allclose([found.label_precision, found.label_recall, found.label_f1], by_label[:3])
    assert np.array_equal(found.counts, by_label[3])
    assert found.mean_size == mask.sum(1).mean()
    sure = rule.predict(new, sure=True).mask()
    wrong = (sure & ~true).sum(1) / np.maximum(sure.sum(1), 1)
    assert found.sure_precision == pytest.approx(1 - wrong.mean())
    assert found.missed.mean_loss == pytest.approx(float(np.mean(share_missed(new, true, rule.thresholds[0]))))
    text = str(found)
    assert "labels with the lowest recall" in text
    assert "sure labels" in text
    assert "agrees with the risk 0.15" in " ".join(str(rule.certificate(found)).split())
    assert not rule.evaluate(-new, true).missed.kept
    assert found.to_dict()["label_f1"] == found.label_f1.tolist()


def test_by_label_every_label_is_judged(many):
    """A label that is missed too often is named, though all labels together are missed as rarely as asked."""
    new, true = draw(1000, 5)
    rule = multilabel(*many, missed=0.2, by_label=True, class_names=list("abcde"))
    found = rule.evaluate(new, true)
    assert found.kept
    assert "agrees with 0.2 of each label" in str(found)
    recalls = rule.evaluation_of(
        np.concatenate(
            [rule.observed(rule.predict(z), t) for z, t in ((new[:300], true[:300]), (new[300:], true[300:]))]
        ),
        0,
    )
    assert recalls.to_dict() == found.by_label.to_dict()
    assert found.by_label.lost.tolist() == (true & (new < rule.thresholds)).sum(0).tolist()
    moved = new.copy()
    moved[:, 2] -= 0.5
    moved[:, [0, 1, 3, 4]] += 0.5
    broken = rule.evaluate(moved, true)
    assert broken.missed.mean_loss < 0.2
    assert not broken.kept
    assert "is MORE than 0.2 in c of each label" in str(broken)
    assert "for each by itself" in " ".join(str(rule.certificate(broken)).split())


def test_a_classifier_of_scikit_learn_keeps_the_share():
    datasets, linear, multiclass = (
        pytest.importorskip(f"sklearn.{name}") for name in ("datasets", "linear_model", "multiclass")
    )
    x, y = datasets.make_multilabel_classification(1500, 12, n_classes=6, n_labels=2, random_state=0)
    model = multiclass.OneVsRestClassifier(linear.LogisticRegression()).fit(x[:500], y[:500])
    logits = model.decision_function(x[500:])
    rule = multilabel(logits[:500], y[500:1000], missed=0.1)
    found = rule.evaluate(logits[500:], y[1000:])
    assert found.missed.kept
    assert 0.05 < found.missed.mean_loss < 0.15
    assert found.mean_size < 5


def hierarchical() -> tuple[np.ndarray, np.ndarray]:
    """Real logits as log-odds of 1,000 classes, their tens and their hundreds; each image has one label of each."""
    sample = load_imagenet_sample()
    z = np.asarray(sample.logits, np.float64)[:1200]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p = np.hstack([p, p.reshape(-1, 100, 10).sum(2), p.reshape(-1, 10, 100).sum(2)])
    labels = sample.labels[:1200].astype(int)
    truth = np.zeros(p.shape, bool)
    for columns in (labels, 1000 + labels // 10, 1100 + labels // 100):
        truth[np.arange(1200), columns] = True
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.log(p) - np.log1p(-p), truth


def test_real_logits_with_a_hierarchy_keep_the_share():
    logits, truth = hierarchical()
    order = np.random.default_rng(0).permutation(1200)
    used, new = order[:600], order[600:]
    for risk in (0.05, 0.2):
        found = multilabel(logits[used], truth[used], missed=risk).evaluate(logits[new], truth[new])
        assert found.missed.kept
        assert found.missed.mean_loss > risk / 2
        assert found.mean_size < 20


# ---------------------------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize("how", [{}, {"by_label": True}, {"confidence": 0.9}, {"confidence": 0.8, "precision": 0.75}])
def test_files_give_back_what_was_saved(many, tmp_path, how):
    rule = multilabel(*many, missed=0.15, class_names=list("abcde"), **how)
    rule.save(tmp_path / "rule.safetensors")
    found = MultiLabel.load(tmp_path / "rule.safetensors")
    assert np.array_equal(found.thresholds, rule.thresholds)
    assert found.predict(many[0]) == rule.predict(many[0])
    assert found.certificate().to_json() == rule.certificate().to_json()
    assert repr(found) == repr(rule)
    assert "Certificate of sets of several labels" in found._repr_html_()
    with pytest.raises(ArtifactError):
        evicp.RiskControl.load(tmp_path / "rule.safetensors")
    whole = (tmp_path / "rule.safetensors").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 30):
        (tmp_path / "damaged.safetensors").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ArtifactError):
            MultiLabel.load(tmp_path / "damaged.safetensors")


# ---------------------------------------------------------------------------------------------------------------
# MAPIE 1.6


@pytest.mark.filterwarnings("ignore:WARNING:UserWarning")
@pytest.mark.parametrize("name", ["made up", "hierarchy of ImageNet"])
def test_mapies_threshold_is_the_next_one_on_its_grid(name):
    """Its controller looks at probabilities 0, 0.01, ...: of those below our threshold it takes the largest."""
    controllers = pytest.importorskip("mapie.risk_control")
    if name == "made up":
        logits, truth = draw(300, 3)
        truth[:, 0] |= ~truth.any(1)  # it wants a label in every row
    else:
        logits, truth = (part[:400, 1000:] for part in hierarchical())
    probabilities = 1 / (1 + np.exp(-logits))
    for risk in (0.05, 0.1, 0.3):
        theirs = controllers.MultiLabelClassificationController(
            lambda p: p, risk="recall", method="crc", target_level=1 - risk
        ).calibrate(probabilities, truth.astype(int))
        rule = multilabel(logits, truth, missed=risk)
        ours = 1 / (1 + np.exp(-rule.thresholds[0]))
        grid = theirs.predict_params
        assert theirs.best_predict_param.tolist() == [grid[grid < ours][-1]]
        found = theirs.predict(probabilities)[:, :, 0] == 1
        assert not np.any(rule.predict(logits).mask() & ~found)  # all of ours, and those between the two thresholds


# ---------------------------------------------------------------------------------------------------------------
# Bad input

BAD = [
    ({"missed": 0}, InputError, "risk must be above 0"),
    ({"missed": 1}, InputError, "below the largest loss, 1; got 1"),
    ({"missed": "few"}, InputTypeError, "must be a number"),
    ({"confidence": 2}, InputError, "confidence must be strictly"),
    ({"precision": 0.9}, InputError, "precision= needs confidence="),
    ({"precision": 0.9, "confidence": 0.9, "by_label": True}, InputError, "and no by_label="),
    ({"by_label": "yes"}, InputTypeError, "by_label must be True or False"),
    ({"coverage": 0.9}, InputTypeError, "Pass the share of true labels"),
]


@pytest.mark.parametrize(("how", "error", "message"), BAD)
def test_bad_input_is_refused_by_name(many, how, error, message):
    with pytest.raises(error, match=message):
        multilabel(*many, **how)


def test_truth_that_does_not_fit_is_refused(many):
    logits, truth = many
    bad = [
        (truth[:5], LabelsError, r"truth must have shape \(800, 5\), as the logits; got \(5, 5\)"),
        (truth.astype(int) * 2, InputTypeError, "0 or 1 for each label"),
        ([[0]] * 5, LabelsError, "one list of labels for each of 800 rows; got 5"),
        ([[0, 0]] + [[1]] * 799, LabelsError, "a label only once per row; got 0 twice in row 0"),
        ([[7]] + [[1]] * 799, LabelsError, "in row 0"),
        (np.zeros((800, K), bool), InputError, "must contain at least one true label; got none"),
        ("cat", InputTypeError, "a list of labels per row"),
        (np.arange(800), InputTypeError, "one list of labels per row"),
    ]
    for form, error, message in bad:
        with pytest.raises(error, match=message):
            multilabel(logits, form)
    with pytest.raises(InputTypeError, match="Pass a matrix as"):
        multilabel(logits[:3, :2], [[0, 1], [1, 0], [0, 1]])
    assert multilabel(logits[:3, :2], np.array([[0, 1], [1, 0], [0, 1]]), missed=0.7).codes.size == 3
    with pytest.raises(LogitsError, match="NaN"):
        multilabel(np.full((800, K), np.nan), truth)
    rule = multilabel(logits, truth)
    with pytest.raises(LogitsError, match="must have 5 classes"):
        rule.predict(np.zeros((2, 4)))
    with pytest.raises(InputError, match="sure labels need a precision"):
        rule.predict(logits, sure=True)
