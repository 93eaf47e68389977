"""Tuning: the rule by hand, what it must not see, what reuse of rows would cost, and the bar for "auto"."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp.errors import ArtifactError, InputError, InputTypeError, LogitsError, ScoreError, SuspiciousInputWarning
from evicp.evaluation.tuning import AUTO, GRIDS, Auto, Candidate, Tuning, auto, split_off

LEVELS = [Fraction(n, 100) for n in (88, 89, 90, 91, 92)]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 15, 420)
    return 2 * rng.normal(size=(420, 15)) + 4 * np.eye(15)[labels], labels


def sets_of(score: Any, logits: np.ndarray, labels: np.ndarray, coverage: Any) -> evicp.PredictionSets:
    return evicp.calibrate(logits, labels, score).predict(logits, coverage)


def merit_by_hand(score: Any, logits: np.ndarray, labels: np.ndarray, by: str) -> float:
    """The documented rule with loops: five coverages, strata of few rows weighed down, their mean."""
    values = []
    for level in LEVELS:
        sets = sets_of(score, logits, labels, level)
        sizes, covered = sets.sizes, sets.contains(labels)
        worst = 0.0
        for low, high in ((0, 1), (2, 3), (4, 10), (11, 15)):
            inside = (sizes >= low) & (sizes <= high)
            if inside.any():
                count = inside.sum()
                worst = max(worst, abs(covered[inside].mean() - float(level)) * count / (count + 5))
        sat = (1 - worst) / sizes[sizes > 0].mean()
        values.append({"size": -sizes.mean(), "sscv": -worst, "sat": sat}[by])
    return float(np.mean(values))


@pytest.mark.parametrize("by", ["size", "sscv", "sat"])
def test_the_rule_is_the_one_documented(rows: Any, by: Any) -> None:
    logits, labels = rows
    grid = {"lam": [0.001, 0.1, 1.0], "k_reg": [1, 5]}
    tuning = evicp.tune(logits, labels, "raps", by, 0.9, grid, seed=4)
    fold = np.random.default_rng([4, 420]).permutation(420) % 10
    parts = [fold >= 0, *(fold != j for j in range(10))]
    by_hand = {}
    for lam, k_reg in product(grid["lam"], grid["k_reg"]):
        score = evicp.RAPS(lam=lam, k_reg=k_reg)
        by_hand[score] = np.array([merit_by_hand(score, logits[part], labels[part], by) for part in parts])
    assert by_hand[tuning.best].mean() == max(merits.mean() for merits in by_hand.values())
    for candidate in tuning.candidates:
        lead = by_hand[candidate.score] - by_hand[evicp.RAPS()]
        assert candidate.lead == pytest.approx(lead.mean(), abs=1e-12)
        error = np.sqrt(9 / 10 * np.sum((lead[1:] - lead[1:].mean()) ** 2))
        assert candidate.standard_error == pytest.approx(error, abs=1e-12)
    merits = [by_hand[c.score].mean() for c in tuning.candidates]
    assert merits == sorted(merits, reverse=True)


def test_the_table_shows_what_evaluate_says(rows: Any) -> None:
    for candidate in auto(*rows).candidates:
        result = evicp.evaluate(sets_of(candidate.score, *rows, 0.9), rows[1])
        assert (candidate.size, candidate.sscv) == (result.mean_size, result.sscv)
        assert candidate.sat == result.sat


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_every_family_has_a_grid_and_the_result_can_be_calibrated(rows: Any, name: str) -> None:
    logits, labels = rows
    tuning = evicp.tune(logits[:200], labels[:200], name)
    assert tuning.best.name == name
    assert tuning.n == 200
    assert evicp.calibrate(logits[200:], labels[200:], tuning.best).predict(logits[:3], 0.9).sizes.shape == (3,)
    size = evicp.tune(logits[:200], labels[:200], name, by="size")
    assert min(c.lead for c in size.candidates) <= 0 <= max(c.lead for c in size.candidates)


def test_parameters_outside_the_grid_are_kept(rows: Any) -> None:
    tuning = evicp.tune(*rows, evicp.RAPS(seed=7, temperature=1.5), grid={"lam": [0.2, 0.5]})
    assert isinstance(tuning.best, evicp.RAPS)
    assert (tuning.best.seed, tuning.best.temperature) == (7, 1.5)
    assert tuning.best.lam in (0.2, 0.5)  # the score given is shown, but chosen only if the grid holds it
    assert {c.score for c in tuning.candidates} == {
        evicp.RAPS(lam=lam, seed=7, temperature=1.5) for lam in (0.1, 0.2, 0.5)
    }


def test_a_grid_that_is_worse_than_the_score_given_does_not_lead_it(rows: Any) -> None:
    worse = evicp.tune(*rows, "lac", "size", grid={"temperature": [0.1]})
    assert worse.candidates[0].score == evicp.LAC()
    assert "; but lac, which is not a default, leads it by 0." in worse.why
    equal = evicp.tune(*rows, "topk", grid={"temperature": [2.0]})  # which has no effect on ranks
    assert "; topk is equally good. " in equal.why


@pytest.mark.parametrize("grid", [["lam"], {1: [0.1]}, {"by": ["size"]}, {"score": ["raps", "lac"]}])
def test_a_grid_is_of_parameters(rows: Any, grid: Any) -> None:
    with pytest.raises(InputError, match="grid must map names of parameters to candidates"):
        evicp.tune(*rows, "raps", grid=grid)


def test_a_user_callable_can_be_tuned_around(rows: Any) -> None:
    def halved(z: np.ndarray) -> np.ndarray:
        return np.maximum(z, 0) / 2

    tuning = evicp.tune(*rows, evicp.ECP(evidence=halved), grid={"temperature": [1.0, 2.0]})
    assert tuning.best.parameters()["evidence"] is halved


def test_a_user_callable_needs_no_hash(rows: Any) -> None:
    class Halved:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, z: np.ndarray) -> np.ndarray:
            return np.maximum(z, 0) / 2

    tuning = evicp.tune(*rows, evicp.ECP(evidence=Halved()), grid={"temperature": [1.0, 2.0, 2.0]})
    assert len(tuning.candidates) == 2


def test_a_result_prints_and_becomes_json(rows: Any) -> None:
    tuning = evicp.tune(*rows, "lac")
    text = repr(tuning)
    assert f"* {tuning.best.describe()}" in text
    assert text.endswith("Calibrate and test on other rows.")
    assert tuning.best.describe() in tuning.to_markdown()
    assert "<table" in tuning._repr_html_()
    for shown in (text, tuning.to_markdown(), tuning._repr_html_()):
        assert "ordered by lead in SAT: an average over" in shown
        assert "size, SSCV and SAT are on all rows." in shown
    content = json.loads(json.dumps(tuning.to_dict(), allow_nan=False))
    assert content["best"] == tuning.best.describe()
    assert len(content["candidates"]) == len(tuning.candidates) == 8


def test_a_lead_of_nothing_has_no_minus_sign() -> None:
    lac = evicp.LAC()
    leads = [Candidate(lac, 2.0, 0.1, 0.4, lead, 0.01) for lead in (-0.0, -4e-5, -6e-5)]
    tuning = Tuning(lac, "why", tuple(leads), "sat", Fraction(9, 10), 100)
    assert [row[4] for row in tuning.table()[1]] == ["+0.0000", "+0.0000", "-0.0001"]


def test_input_is_left_alone_and_results_repeat(rows: Any) -> None:
    logits, labels = rows[0].copy(), rows[1].copy()
    logits.flags.writeable = labels.flags.writeable = False
    first, again = (evicp.tune(logits, labels, "saps") for _ in range(2))
    assert first == again
    np.testing.assert_array_equal(logits, rows[0])


def test_masked_classes_and_half_precision(rows: Any) -> None:
    logits = rows[0].astype(np.float16)
    logits[:, 14] = -np.inf
    keep = rows[1] != 14
    tuning = auto(logits[keep], rows[1][keep])
    assert tuning.best in AUTO
    assert tuning == auto(logits[keep].astype(np.float64), rows[1][keep])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"by": "coverage"}, InputError, 'by must be "size", "sscv" or "sat"'),
        ({"score": "topk"}, InputError, "topk has no default grid"),
        ({"score": "auto", "grid": {"lam": [1.0]}}, InputError, "its own candidates"),
        ({"grid": {"width": [1.0]}}, InputError, "raps has no parameter width"),
        ({"grid": {}}, InputError, "at least one parameter"),
        ({"coverage": 90}, InputError, "Did you mean 0.9"),
        ({"coverage": 0.999}, LogitsError, "needs at least 999 rows; got 420"),
        ({"score": 3}, InputTypeError, "score must be"),
    ],
)
def test_what_cannot_be_tuned(rows: Any, arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        evicp.tune(*rows, **arguments)


# ---------------------------------------------------------------------------------------------------------------
# Rows of their own


def test_split_off_gives_every_row_one_use() -> None:
    for n, used in ((30, 10), (1001, 333), (2000, 600), (4000, 800), (50_000, 5000)):
        choice, rest = split_off(n)
        assert len(choice) == used
        assert sorted([*choice, *rest]) == list(range(n))
        np.testing.assert_array_equal(choice, split_off(n)[0])
        assert not np.array_equal(choice, split_off(n, seed=1)[0])


# ---------------------------------------------------------------------------------------------------------------
# calibrate(score="auto")


def test_calibrate_auto_is_tune_on_some_rows_and_calibrate_on_the_others(rows: Any, tmp_path: Any) -> None:
    logits, labels = rows
    choice, rest = split_off(420)
    calibration = evicp.calibrate(logits, labels, "auto", class_names=[f"c{k}" for k in range(15)])
    best = auto(logits[choice], labels[choice]).best
    np.testing.assert_array_equal(calibration.scores, evicp.calibrate(logits[rest], labels[rest], best).scores)
    assert (calibration.score, calibration.n, calibration.chosen_on) == (best, 280, 140)
    assert "score selected on 140 other rows" in repr(calibration)
    certificate = calibration.certificate(0.9)
    assert (certificate.n, certificate.chosen_on) == (280, 140)
    assert "140 other rows, which are not calibration rows" in str(certificate)
    calibration.save(tmp_path / "auto.safetensors")
    loaded = evicp.load(tmp_path / "auto.safetensors")
    assert loaded == calibration
    assert loaded.chosen_on == 140
    assert loaded != evicp.calibrate(logits[rest], labels[rest], best, class_names=[f"c{k}" for k in range(15)])


@pytest.mark.parametrize("chosen_on", [0, -1, 1.5, True, "many", [3]])
def test_a_file_with_an_impossible_count_of_choosing_rows_is_refused(rows: Any, tmp_path: Any, chosen_on: Any) -> None:
    calibration = dataclasses.replace(evicp.calibrate(*rows, "lac"), chosen_on=chosen_on)
    calibration.save(tmp_path / "odd.safetensors")
    with pytest.raises(ArtifactError, match="chosen_on must be"):
        evicp.load(tmp_path / "odd.safetensors")


def test_calibrate_auto_leaves_out_groups_and_weights_of_the_rows_used_up(rows: Any) -> None:
    logits, labels = rows
    _, rest = split_off(420)
    groups, weights = np.where(labels < 5, "low", "high"), 1.0 + labels
    best = evicp.calibrate(logits, labels, "auto").score
    by_group = evicp.calibrate(logits, labels, "auto", by=groups)
    np.testing.assert_array_equal(
        by_group.thresholds(0.8), evicp.calibrate(logits[rest], labels[rest], best, by=groups[rest]).thresholds(0.8)
    )
    weighted = evicp.calibrate(logits, labels, "auto", weights=weights)
    assert weighted.weights == evicp.calibrate(logits[rest], labels[rest], best, weights=weights[rest]).weights
    for argument in ({"by": groups[:-1]}, {"weights": weights[:-1]}):
        with pytest.raises(InputError, match="one entry per row"):
            evicp.calibrate(logits, labels, "auto", **argument)


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11])
def test_fewer_rows_than_tenths_are_no_obstacle(rows: Any, n: int) -> None:
    tuning = evicp.tune(rows[0][:n], rows[1][:n], "raps", coverage=0.5)
    assert all(np.isfinite([c.lead, c.standard_error]).all() for c in tuning.candidates)


def test_auto_needs_rows_to_choose_with(rows: Any) -> None:
    with pytest.raises(LogitsError, match="at least 30 rows"):
        evicp.calibrate(rows[0][:29], rows[1][:29], "auto")
    assert evicp.calibrate(rows[0][:30], rows[1][:30], "auto").n == 20
    with pytest.raises(ScoreError, match="selects a score"):
        evicp.Calibrator("auto")


def coverage_of_auto(repeats: int) -> np.ndarray:
    """Observed coverage less what the calibrated rows guarantee, of calibrate(score="auto")."""
    deviations = []
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 6])
        labels = rng.integers(0, 4, 440)
        logits = rng.normal(size=(440, 4)) + np.eye(4)[labels]
        calibration = evicp.calibrate(logits[:40], labels[:40], "auto")
        covered = calibration.predict(logits[40:], 0.9).contains(labels[40:])
        deviations.append(covered.mean() - evicp.Reliability(calibration.n, 0.9).expected_coverage)
    return np.array(deviations)


def test_auto_keeps_the_promise_and_would_break_it_on_its_own_rows(
    monkeypatch: pytest.MonkeyPatch, figure: Any, long_run: bool
) -> None:
    """Scores that differ in their random numbers only: a choice among them can gain nothing but luck."""
    scores = tuple(evicp.APS(seed=seed) for seed in range(25))
    monkeypatch.setattr("evicp.evaluation.tuning.AUTO", scores)
    monkeypatch.setattr("evicp.evaluation.tuning._DEFAULTS", scores)
    for reuse in (False, True):
        if reuse:
            monkeypatch.setattr("evicp.evaluation.tuning.split_off", lambda n: (np.arange(n), np.arange(n)))
        observed = coverage_of_auto(80 if long_run else 50)
        z = observed.mean() / (observed.std(ddof=1) / len(observed) ** 0.5)
        figure("z if it chose on the calibration rows" if reuse else "z of auto", round(float(z), 2))
        assert (z < -4) if reuse else (abs(z) < 4), (reuse, z)


# ---------------------------------------------------------------------------------------------------------------
# auto


def test_auto_keeps_the_best_default_unless_a_lead_is_clear(rows: Any) -> None:
    tuning = auto(*rows)
    defaults = [c for c in tuning.candidates if "(" not in c.score.describe()]
    assert len(defaults) == 7
    (best_default,) = (c for c in defaults if c.lead == 0.0)  # leads are over it
    assert best_default == defaults[0]  # candidates are best first
    best = tuning.candidates[0]
    clear = best.lead > best.standard_error
    assert tuning.best == (best.score if clear else best_default.score)
    assert tuning.why.startswith(f"{best_default.score.describe()} has the best SAT of all defaults on 420 rows")


def test_auto_takes_lac_where_defaults_cannot_be_told_apart() -> None:
    """With two classes LAC and margin make the same sets; only rounding decides which comes first."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 300)
    logits = rng.normal(size=(300, 2)) + 1.5 * np.eye(2)[labels]
    tuning = auto(logits, labels)
    sat = {c.score.describe(): c.sat for c in tuning.candidates}
    assert sat["lac"] == sat["margin"]
    assert tuning.best == evicp.LAC()


def test_auto_takes_a_tuned_candidate_that_leads_clearly() -> None:
    """Logits twice too sharp, of rows that differ in scale: a temperature helps, and one is found."""
    rng = np.random.default_rng(0)
    z = np.exp(rng.uniform(-1, 1.5, (3000, 1))) * rng.normal(size=(3000, 30))
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    tuning = auto(2 * z, labels, by="size")
    assert tuning.candidates[0].score == tuning.best
    assert tuning.best.parameters()["temperature"] != 1.0
    assert f"but {tuning.best.describe()} leads it by" in tuning.why


def test_auto_by_name_and_by_function_agree(rows: Any) -> None:
    assert evicp.tune(*rows, "auto", "size", 0.8, seed=3) == auto(*rows, "size", 0.8, seed=3)


def test_compare_lets_auto_choose_on_tuning_rows_only(rows: Any) -> None:
    logits, labels = rows
    comparison = evicp.compare(logits, labels, ["auto", "lac"], 0.9, trials=2, seed=6)
    assert comparison.n_tuning == 140  # a third
    for trial in range(2):
        order = np.random.default_rng([6, trial]).permutation(420)
        own, calibrated, tested = np.split(order, [140, 140 + 126])
        chosen = comparison.chosen["auto"][trial]
        assert chosen == auto(logits[own], labels[own], seed=6).best
        sets = evicp.calibrate(logits[calibrated], labels[calibrated], chosen).predict(logits[tested], 0.9)
        assert comparison.evaluations["auto"][trial].sat == evicp.evaluate(sets, labels[tested]).sat
    assert evicp.compare(logits, labels, ["auto"], 0.9, trials=1, tuning=0.4).n_tuning == 168
    both = evicp.compare(logits, labels, [Auto(), Auto(by="size")], 0.9, trials=1)
    assert list(both.evaluations) == ["auto", "auto (by size)"]


def test_auto_takes_the_temperature_of_a_comparison(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["auto"], 0.9, trials=1, temperature=1.7)
    temperature = comparison.chosen["auto"][0].parameters()["temperature"]
    assert temperature == 1.7 or temperature in {s.parameters()["temperature"] for s in AUTO} - {1.0}


NETWORKS = {
    "cifar10_wrn16_4_logprob": False,
    "news20_logprob": False,
    "cifar100_wrn16_4_logprob": True,
    "imagenet_val5k_efficientnet_lite0": True,
    "imagenet_val5k_efficientnet_lite1": True,
}


@pytest.mark.filterwarnings("ignore::evicp.errors.SuspiciousInputWarning")
@pytest.mark.parametrize("network", NETWORKS)
def test_auto_is_not_behind_the_best_default(shared_data: Any, long_run: bool, network: str) -> None:
    if NETWORKS[network] and not long_run:
        pytest.skip("runs with EVICP_RELIABILITY=long")
    with np.load(shared_data / f"{network}.npz") as file:
        logits, labels = file["logits"], file["labels"]
    singles = ["ecp", "lac", "aps", "raps", "saps", "topk", "margin"]
    comparison = evicp.compare(logits, labels, ["auto", *singles], 0.9, trials=20)
    best = max(singles, key=lambda name: comparison.mean(name, "sat"))
    difference = comparison.values("auto", "sat") - comparison.values(best, "sat")
    assert difference.mean() >= -2 * difference.std(ddof=1) / 20**0.5


# ---------------------------------------------------------------------------------------------------------------
# The command


def test_the_command(rows: Any, tmp_path: Any) -> None:
    np.savez(tmp_path / "rows.npz", logits=rows[0], labels=rows[1])
    grid = ["--grid", "lam=0.1,1", "--grid", "k_reg=1,5"]
    done = evicp_process(["tune", "rows.npz", "-s", "raps", "--by", "size", *grid, "--json"], tmp_path)
    assert done.code == 0, done.err
    expected = evicp.tune(*rows, "raps", "size", grid={"lam": [0.1, 1.0], "k_reg": [1, 5]})
    assert done.json == json.loads(json.dumps(expected.to_dict()))
    plain = evicp_process(["tune", "rows.npz"], tmp_path).out
    chosen = auto(*rows)
    assert chosen.why in plain
    assert f"--score '{chosen.best.describe()}'" in plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "lam"], "write it as lam=0.01,0.1"),
        (["-s", "nonsense"], "unknown score"),
        (["--by", "x"], "by must be"),
    ],
)
def test_the_command_refuses(rows: Any, tmp_path: Any, arguments: list[str], message: str) -> None:
    np.savez(tmp_path / "rows.npz", logits=rows[0], labels=rows[1])
    done = evicp_process(["tune", "rows.npz", *arguments], tmp_path)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_log_probabilities_are_no_obstacle() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 6, 200)
    logits = rng.normal(size=(200, 6)) + 3 * np.eye(6)[labels]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert auto(log_p, labels).best in AUTO
    with pytest.warns(SuspiciousInputWarning):
        evicp.compare(log_p, labels, ["ecp"], 0.8, trials=1)


@pytest.mark.parametrize("coverage", [0.02, 0.1, 0.5])
def test_low_coverages_are_tuned_for_too(coverage, rows):
    assert evicp.tune(*rows, "lac", coverage=coverage).coverage == Fraction(str(coverage))


@pytest.mark.parametrize(("seed", "error"), [(-1, InputError), (2**32, InputError), (1.5, InputTypeError)])
def test_seeds_that_are_none_are_refused(seed, error, rows):
    with pytest.raises(error, match=r"^seed must be"):
        evicp.tune(*rows, "lac", seed=seed)


def test_two_tuned_variants_of_a_score_have_names_of_their_own():
    variants = [
        evicp.Tuned(evicp.ECP(stabilizer=stabilizer), temperature=[0.5, 1.0]) for stabilizer in (1e-8, "scaled")
    ]
    names = [variant.describe() for variant in variants]
    assert names == ["ecp(stabilizer=1e-08) (tuned temperature by sat)", "ecp (tuned temperature by sat)"]
