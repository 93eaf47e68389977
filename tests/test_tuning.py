"""Tuning: the rule by hand, what it must not see, what reuse of rows would cost, and the bar for "auto"."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import InputError, InputTypeError, LogitsError, SuspiciousInputWarning
from evicp.tuning import AUTO, GRIDS, Auto, auto, split_off

LEVELS = [Fraction(n, 100) for n in (88, 89, 90, 91, 92)]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 15, 420)
    return 2 * rng.normal(size=(420, 15)) + 4 * np.eye(15)[labels], labels


def sets_of(score: Any, logits: np.ndarray, labels: np.ndarray, coverage: Any) -> evicp.PredictionSets:
    return evicp.calibrate(logits, labels, score).predict(logits, coverage)


def merit_by_hand(score: Any, logits: np.ndarray, labels: np.ndarray, by: str) -> float:
    """The documented rule with loops: five coverages, strata of few rows weighed down, the mean of it all."""
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
    by_hand = {
        evicp.RAPS(lam=lam, k_reg=k): merit_by_hand(evicp.RAPS(lam=lam, k_reg=k), logits, labels, by)
        for lam in grid["lam"]
        for k in grid["k_reg"]
    }
    assert by_hand[tuning.best] == max(by_hand.values())
    given = evicp.RAPS()
    fold = np.random.default_rng([4, 420]).permutation(420) % 10
    for candidate in tuning.candidates:
        assert candidate.lead == pytest.approx(by_hand[candidate.score] - by_hand[given], abs=1e-12)
        without = [
            merit_by_hand(candidate.score, logits[fold != j], labels[fold != j], by)
            - merit_by_hand(given, logits[fold != j], labels[fold != j], by)
            for j in range(10)
        ]
        error = np.sqrt(9 / 10 * np.sum((np.array(without) - np.mean(without)) ** 2))
        assert candidate.standard_error == pytest.approx(error, abs=1e-12)
    merits = [by_hand[c.score] for c in tuning.candidates]
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


def test_a_user_callable_can_be_tuned_around(rows: Any) -> None:
    def halved(z: np.ndarray) -> np.ndarray:
        return np.maximum(z, 0) / 2

    tuning = evicp.tune(*rows, evicp.ECP(evidence=halved), grid={"temperature": [1.0, 2.0]})
    assert tuning.best.parameters()["evidence"] is halved


def test_a_result_prints_and_becomes_json(rows: Any) -> None:
    tuning = evicp.tune(*rows, "lac")
    text = repr(tuning)
    assert f"* {tuning.best.describe()}" in text
    assert text.endswith("These rows are used up: calibrate and test on others.")
    assert tuning.best.describe() in tuning.to_markdown()
    assert "<table" in tuning._repr_html_()
    content = json.loads(json.dumps(tuning.to_dict(), allow_nan=False))
    assert content["best"] == tuning.best.describe()
    assert len(content["candidates"]) == len(tuning.candidates) == 8


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
        ({"score": "topk"}, InputError, "topk has no grid of its own"),
        ({"score": "auto", "grid": {"lam": [1.0]}}, InputError, "candidates of its own"),
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


def coverage_after_choosing_a_seed(*, reuse: bool, repeats: int = 120) -> np.ndarray:
    """APS with the seed of smallest sets among sixty, chosen on the calibration rows or on others."""
    observed = []
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 5])
        labels = rng.integers(0, 10, 560)
        logits = rng.normal(size=(560, 10)) + 1.5 * np.eye(10)[labels]
        own, calibrated, new = np.split(np.arange(560), [60, 120])
        tuned_on = calibrated if reuse else own
        tuned = evicp.Tuned("aps", by="size", seed=range(60))
        best = tuned.choose(logits[tuned_on], labels[tuned_on], Fraction(4, 5), 0, None)
        sets = evicp.calibrate(logits[calibrated], labels[calibrated], best).predict(logits[new], 0.8)
        observed.append(sets.contains(labels[new]).mean())
    return np.array(observed)


def test_rows_of_their_own_keep_the_promise_and_reused_rows_break_it() -> None:
    expected = evicp.Reliability(60, 0.8).expected_coverage
    for reuse in (False, True):
        observed = coverage_after_choosing_a_seed(reuse=reuse)
        z = (observed.mean() - expected) / (observed.std(ddof=1) / len(observed) ** 0.5)
        assert (z < -4) if reuse else (abs(z) < 4)


def test_split_off_parts_rows_by_what_they_are() -> None:
    labels = np.random.default_rng(0).integers(0, 50, 1001)
    choice, rest = split_off(labels)
    assert len(choice) == 200
    assert sorted([*choice, *rest]) == list(range(1001))
    np.testing.assert_array_equal(choice, split_off(labels.astype(np.int32))[0])
    assert not np.array_equal(choice, split_off(labels, seed=1)[0])
    assert not np.array_equal(choice, split_off(labels[::-1])[0])
    assert len(split_off(np.zeros(50_000, int))[0]) == 1000


# ---------------------------------------------------------------------------------------------------------------
# auto


def test_auto_keeps_the_best_default_unless_a_lead_is_clear(rows: Any) -> None:
    tuning = auto(*rows)
    defaults = [c for c in tuning.candidates if "(" not in c.score.describe()]
    assert len(defaults) == 7
    best_default = defaults[0]  # candidates are best first
    best = tuning.candidates[0]
    clear = best.lead > 1.5 * best.standard_error
    assert tuning.best == (best.score if clear else best_default.score)
    assert best_default.lead == 0.0
    assert tuning.why.startswith(f"{best_default.score.describe()} has the best SAT of all defaults on 420 rows")


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
    assert comparison.n_tuning == 84  # a fifth
    for trial in range(2):
        order = np.random.default_rng([6, trial]).permutation(420)
        own, calibrated, tested = np.split(order, [84, 84 + 126])
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


def run(*arguments: str, cwd: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from evicp.cli import main; main()", "tune", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_command(rows: Any, tmp_path: Any) -> None:
    np.savez(tmp_path / "rows.npz", logits=rows[0], labels=rows[1])
    grid = ["--grid", "lam=0.1,1", "--grid", "k_reg=1,5"]
    done = run("rows.npz", "-s", "raps", "--by", "size", *grid, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = evicp.tune(*rows, "raps", "size", grid={"lam": [0.1, 1.0], "k_reg": [1, 5]})
    assert json.loads(done.stdout) == json.loads(json.dumps(expected.to_dict()))
    plain = run("rows.npz", cwd=tmp_path)
    assert auto(*rows).why in plain.stdout
    assert f"--score '{auto(*rows).best.describe()}'" in plain.stdout


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
    done = run("rows.npz", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_log_probabilities_are_no_obstacle() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 6, 200)
    logits = rng.normal(size=(200, 6)) + 3 * np.eye(6)[labels]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert auto(log_p, labels).best in AUTO
    with pytest.warns(SuspiciousInputWarning):
        evicp.compare(log_p, labels, ["ecp"], 0.8, trials=1)
