"""The monitor: its null by enumeration of every stream, its state, and the level that corrects itself."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import AdaptiveLevel, ByClass, Monitor, calibrate
from evicp.calibration import monitor
from evicp.errors import InputError, InputTypeError


def make(n: int, seed: int = 0, strength: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return rng.normal(size=(n, 5)) + strength * np.eye(5)[labels], labels


# ---------------------------------------------------------------------------------------------------------------
# The null


def polya(stream: tuple[int, ...], n: int, k: int) -> Fraction:
    """The probability of a stream of hits and misses after a calibration: the urn, ball by ball."""
    probability, covered = Fraction(1), 0
    for t, hit in enumerate(stream):
        p = Fraction(k + covered, n + 1 + t)
        probability *= p if hit else 1 - p
        covered += hit
    return probability


def test_the_urn_is_what_exchangeable_scores_do():
    """Every order of 3 calibration scores and 3 new ones is equally likely: count the orders that give each stream."""
    from itertools import permutations

    n, k, counts = 3, 2, {}
    for ranks in permutations(range(6)):
        threshold = sorted(ranks[:n])[k - 1]
        stream = tuple(int(r <= threshold) for r in ranks[n:])
        counts[stream] = counts.get(stream, 0) + 1
    assert {s: Fraction(c, 720) for s, c in counts.items()} == {s: polya(s, n, k) for s in counts}


@pytest.mark.parametrize(("n", "k"), [(3, 2), (19, 18), (40, 20)])
def test_the_capital_is_a_martingale_under_the_urn(n, k):
    """The mean of the e-value over all streams of a length is 1, exactly, whenever one stops."""
    length = 9
    streams = np.array(list(product([0, 1], repeat=length)), bool)
    chance = np.array([float(polya(tuple(map(int, s)), n, k)) for s in streams])
    null = monitor.polya_odds(streams, n, k)
    log_e, _ = monitor.log_e_process(monitor.log_bets_on_misses(streams, null, k, n))
    for t in range(length):
        assert chance @ np.exp(log_e[:, t]) == pytest.approx(1, abs=1e-12)
    wrong = np.full(streams.shape, k / (n + 1))  # independent labels: not a martingale here
    log_e, _ = monitor.log_e_process(monitor.log_bets_on_misses(streams, wrong, k, n))
    assert chance @ np.exp(log_e[:, -1]) > 1 + 1e-6


def test_the_e_value_is_a_mixture_over_the_label_of_the_change(monkeypatch):
    """By its definition: a sum over when the change came, of how likely the labels since then were made by it."""
    monkeypatch.setattr(monitor, "_HALF_BET", 7.0)
    n, k = 30, 27
    stream = np.array([1, 0, 1, 1, 0, 0, 1, 0], bool)
    p = monitor.polya_odds(stream, n, k)
    log_e, _ = monitor.log_e_process(monitor.log_bets_on_misses(stream, p, k, n))
    for t in range(1, len(stream) + 1):
        total = 7.0 / (t + 7.0)  # the change has not come yet
        for start in range(t):
            joined = 7.0 / ((start + 7.0) * (start + 8.0))
            for odds in monitor._MISS_ODDS:
                coverage = 1 / (1 + odds * (n + 1 - k) / k)
                ratio = 1.0
                for i in range(start, t):
                    q = min(coverage, p[i])
                    ratio *= q / p[i] if stream[i] else (1 - q) / (1 - p[i])
                total += joined * ratio / len(monitor._MISS_ODDS)
        assert np.exp(log_e[t - 1]) == pytest.approx(total, rel=1e-12)


def test_bets_can_only_gain_from_misses():
    rng = np.random.default_rng(0)
    stream = rng.random(500) < 0.7
    p = monitor.polya_odds(stream, 50, 45)
    bets = monitor.log_bets_on_misses(stream, p, 45, 50)
    assert (bets[stream] <= 0).all()
    assert (bets[~stream] >= 0).all()


def test_sequential_p_values_are_uniform_and_independent():
    """Over orders of scores: the joint law of the first p-values, with the place within a gap at its ends."""
    n, m = 2, 2
    from itertools import permutations

    seen = []
    for ranks in permutations(range(n + m)):
        cal, counts, row = sorted(ranks[:n]), np.zeros(n + 1, np.int64), []
        for t, r in enumerate(ranks[n:]):
            gap = sum(c >= r for c in cal)  # p = (1 + this) / (n + 1)
            below, inside = gap + counts[:gap].sum(), 1 + counts[gap]
            row.append((below / (n + 1 + t), (below + inside) / (n + 1 + t)))
            counts[gap] += 1
        seen.append(row)
    for x in np.linspace(0.05, 0.95, 19):  # P(p_t <= x) = x, drawn uniformly between the ends
        for t in range(m):
            below = [min(max((x - low) / (high - low), 0), 1) for low, high in (row[t] for row in seen)]
            assert np.mean(below) == pytest.approx(x, abs=1e-12)
        both = [np.prod([min(max((x - low) / (high - low), 0), 1) for low, high in row]) for row in seen]
        assert np.mean(both) == pytest.approx(x * x, abs=1e-12)


def test_p_values_of_a_long_stream_are_uniform():
    rng = np.random.default_rng(3)
    cal, new = np.sort(rng.normal(size=500)), rng.normal(size=20_000)
    gaps = 500 - np.searchsorted(cal, new)
    counts = np.zeros(501, np.int64)
    p = monitor.sequential_p_values(gaps, counts, seed=1, seen=0)
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(p[1:], p[:-1])[0, 1]) < 0.03
    assert counts.sum() == 20_000
    fixed = (1 + gaps) / 501  # of the fixed calibration they are not: the test above would notice
    assert scipy.stats.kstest(fixed, "uniform").pvalue < 1e-3


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.999])
def test_bets_on_p_values_are_fair(coverage):
    """Each alternative's density integrates to 1 (adaptive quadrature on either side of the step)."""
    from scipy.integrate import quad

    count = monitor.log_bets_on_small(np.array([0.5]), coverage).shape[-1]
    for i in range(count):
        density = lambda u: float(np.exp(monitor.log_bets_on_small(np.array([u]), coverage)[0, i]))  # noqa: E731, B023
        total = quad(density, 0, 1 - coverage, limit=200)[0] + quad(density, 1 - coverage, 1, limit=200)[0]
        assert total == pytest.approx(1, abs=1e-6)
        assert density(1e-4 * (1 - coverage)) > density(0.9999) > 0


# ---------------------------------------------------------------------------------------------------------------
# The monitor


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.concatenate([rng.random(1500) < 0.9, rng.random(1500) < 0.8])


def test_batches_do_not_matter(stream, monkeypatch):
    whole = Monitor(1000, 0.9).update(stream)
    single = Monitor(1000, 0.9)
    for covered in stream:
        single.update(bool(covered))
    pieces = Monitor(1000, 0.9)
    for part in np.split(stream, [1, 7, 7, 900, 2500]):
        pieces.update(part)
    monkeypatch.setattr(monitor, "_AT_ONCE", 64)
    chunks = Monitor(1000, 0.9).update(stream)
    for other in (single, pieces, chunks):
        assert other.alarm_at == whole.alarm_at
        assert (other.seen, other.covered) == (whole.seen, whole.covered) == (3000, stream.sum())
        assert np.log(other.e_value) == pytest.approx(np.log(whole.e_value), abs=1e-9)
        assert other.p_value == pytest.approx(whole.p_value, rel=1e-9)


def test_an_alarm_stays_and_says_when(stream):
    watch = Monitor(1000, 0.9, false_alarm_rate=0.01).update(stream)
    assert watch.alarm
    assert 1500 < watch.alarm_at < 2500
    before = Monitor(1000, 0.9).update(stream[: watch.alarm_at - 1])
    assert not before.alarm
    assert before.update(stream[watch.alarm_at - 1]).e_value >= 100
    at = watch.alarm_at
    assert watch.update(np.ones(20_000, bool)).alarm_at == at
    assert watch.p_value <= 0.01
    assert watch.e_value < 100  # the evidence of the moment has faded, the alarm has not


def test_a_lower_rate_of_false_alarms_takes_longer(stream):
    times = [Monitor(1000, 0.9, false_alarm_rate=rate).update(stream).alarm_at for rate in (0.1, 0.01, 0.0001)]
    assert times == sorted(set(times))


def test_what_is_seen_is_counted():
    watch = Monitor(100, 0.8)
    assert watch.observed is None
    assert repr(watch) == "Monitor(coverage 0.8, n = 100, false alarms 0.01: no labels yet)"
    watch.update([True, True, False, True])
    assert (watch.observed, watch.seen, watch.alarm) == (0.75, 4, False)
    assert watch.e_value > 0
    assert "4 labels, 0.7500 covered" in repr(watch)
    assert "no alarm" in repr(watch)
    assert "ALARM at label" in repr(Monitor(100, 0.8).update(np.zeros(100, bool)))
    assert watch.update([]).seen == 4
    assert "0.01: 1 label, 1.0000 covered" in repr(Monitor(100, 0.8).update(True))


def test_sets_of_a_calibration_are_watched():
    calibration = calibrate(*make(2000))
    new, truth = make(3000, 1)
    good = calibration.predict(new, 0.9).contains(truth)
    assert not Monitor(calibration, 0.9).update(good).alarm
    worse, truth = make(3000, 2, strength=1.2)
    bad = calibration.predict(worse, 0.9).contains(truth)
    assert Monitor(calibration, 0.9).update(good).update(bad).alarm
    p = Monitor(calibration, 0.9).update_p_values(calibration.p_values(new, make(3000, 1)[1]))
    assert not p.alarm
    assert p.covered == good.sum()
    assert p.update_p_values(calibration.p_values(worse, truth)).alarm
    assert p.alarm_at > 3000
    assert p.covered == good.sum() + bad.sum()


def test_the_rank_is_that_of_the_sets():
    assert Monitor(200, 0.9).k == evicp.conformal_rank(200, 0.9)
    assert Monitor(200, 0.9, confidence=0.95).k == evicp.pac_rank(200, 0.9, 0.95)


def test_one_group_is_watched_at_a_time():
    z, y = make(600)
    calibration = calibrate(z, y, by="class", class_names=list("abcde"))
    assert Monitor(calibration, 0.8, group="c").n == np.sum(y == 2)
    assert Monitor(calibrate(z, y, by=y), 0.8, group=2).n == np.sum(y == 2)  # as it was given
    with pytest.raises(InputError, match=r"^group must be one of the calibration's groups \(a, b, c, d, e\); got None"):
        Monitor(calibration, 0.8)
    with pytest.raises(InputError, match=r"^this calibration has no groups; got group='a'\.$"):
        Monitor(calibrate(z, y), 0.8, group="a")
    with pytest.raises(InputError, match=r"^group is a group of a calibration"):
        Monitor(100, 0.8, group="a")
    with pytest.raises(InputError, match=r"^the law of coverage is not known for weighted calibrations"):
        Monitor(calibrate(z, y, weights=np.ones(600)), 0.8)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda: Monitor(5, 0.9),
            InputError,
            r"^5 calibration row\(s\) give full sets at coverage 0.9: they cannot miss",
        ),
        (lambda: Monitor(0, 0.9), InputError, r"n must be at least 1"),
        (lambda: Monitor("cal", 0.9), InputTypeError, r"n must be a whole number"),
        (lambda: Monitor(100, 90), InputError, r"Did you mean 0.9"),
        (lambda: Monitor(100, 0.9, false_alarm_rate=0), InputError, r"^false_alarm_rate must be strictly between"),
        (lambda: Monitor(100, 0.9).update([1, 0]), InputTypeError, r"^covered must be True or False; got dtype int64"),
        (lambda: Monitor(100, 0.9).update([[True]]), InputError, r"^covered must be one-dimensional"),
        (
            lambda: Monitor(100, 0.9).update_p_values([0.5]),
            InputError,
            r"^p_values must be multiples of 1 / \(n \+ 1\)",
        ),
        (lambda: Monitor(99, 0.9).update_p_values([0.0]), InputError, r"^p_values must be multiples"),
        (lambda: Monitor(99, 0.9).update_p_values([1.01]), InputError, r"^p_values must be multiples"),
        (lambda: Monitor(99, 0.9).update_p_values([np.nan]), InputError, r"^p_values must be multiples"),
        (lambda: Monitor(99, 0.9).update_p_values([True]), InputTypeError, r"^p_values must be real numbers"),
        (lambda: Monitor(99, 0.9).update(True).update_p_values([0.5]), InputError, r"takes covered labels"),
        (lambda: Monitor(99, 0.9).update_p_values([0.5]).update(True), InputError, r"takes p-values"),
    ],
)
def test_what_cannot_be_monitored(act, error, message):
    with pytest.raises(error, match=message):
        act()


@pytest.mark.parametrize("kind", ["covered", "p-values", "nothing"])
def test_a_monitor_continues_from_its_state(stream, kind):
    watch = Monitor(999, 0.9, confidence=0.9, false_alarm_rate=0.001, seed=4)
    p = np.where(stream, 0.5, 0.01)
    feed = {
        "covered": lambda m, part: m.update(stream[part]),
        "p-values": lambda m, part: m.update_p_values(p[part]),
        "nothing": lambda m, part: m if part.start is None else m.update(stream[part]),
    }[kind]
    feed(watch, slice(None, 2000))
    again = Monitor.from_dict(json.loads(json.dumps(watch.to_dict())))
    assert again.to_dict() == watch.to_dict()
    feed(watch, slice(2000, None))
    feed(again, slice(2000, None))
    assert again.to_dict() == watch.to_dict()
    assert again.k == watch.k


@pytest.mark.parametrize(
    "change",
    [
        {"seen": -1},
        {"seen": 0},
        {"covered": 9999},
        {"alarm_at": 9999},
        {"log_active": [0.0]},
        {"log_active": None},
        {"log_e": float("nan")},
        {"n": "many"},
        {"coverage": "a/b"},
        {"coverage": "0/0"},
        {"gaps": [1, 2]},
        {"false_alarm_rate": 2},
        {"seed": -1},
        {"log_active": [0.0] * 8},
        {"log_e": None},
        {"covered": True},
    ],
    ids=str,
)
def test_an_impossible_state_is_refused(change):
    state = Monitor(999, 0.9).update([True] * 5).to_dict()
    with pytest.raises((InputError, InputTypeError)):
        Monitor.from_dict({**state, **change})
    with pytest.raises(InputError, match=r"^this is not the state of a monitor"):
        Monitor.from_dict({})


@pytest.mark.parametrize("strength", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (500, 0.1), (2000, 0.99)])
def test_every_state_that_labels_lead_to_is_taken(n: int, coverage: float, strength: float) -> None:
    """At every length, of either kind: the rules must refuse nothing that can be."""
    rng = np.random.default_rng(n)
    sets, p_values = Monitor(n, coverage, seed=3), Monitor(n, coverage, seed=3)
    for step in (1, 1, 2, 7, 50, 700):
        sets.update(rng.random(step) < strength)
        p_values.update_p_values((1 + rng.integers(0, max(1, int((n + 1) * strength)), step)) / (n + 1))
        for watch in (sets, p_values):
            state = json.loads(json.dumps(watch.to_dict()))
            assert Monitor.from_dict(state).to_dict() == state


# ---------------------------------------------------------------------------------------------------------------
# Adaptive conformal inference


def test_the_level_follows_its_recursion():
    rng = np.random.default_rng(0)
    level, expected = AdaptiveLevel(0.9, step=0.02), 0.9
    for covered in rng.random(200) < 0.8:
        level.update(bool(covered))
        expected += 0.02 * ((0.0 if covered else 1.0) - 0.1)
        assert level.level == pytest.approx(expected, abs=1e-12)
    together = AdaptiveLevel(0.9, step=0.02).update(np.array([True, False, False]))
    assert together.level == pytest.approx(0.9 + 0.02 * (2 - 0.3))
    assert repr(together) == f"AdaptiveLevel(0.9, step=0.02; now {together.level:.4f})"


def adversary(labels_left: int, sets, truth: int) -> int:
    """A label outside the set if there is one."""
    outside = np.setdiff1d(np.arange(5), sets)
    return int(outside[0]) if len(outside) and labels_left % 3 else truth


@pytest.mark.parametrize("step", [0.005, 0.05])
@pytest.mark.parametrize("world", ["same", "broken", "adversarial"])
def test_coverage_approaches_what_was_asked_whatever_the_labels_do(step, world):
    """The deterministic bound of adaptive conformal inference: |coverage - asked| <= (1 + step) / (step T)."""
    calibration = calibrate(*make(200, strength=1.5))
    level, total = AdaptiveLevel(0.8, step=step), 1200
    z, y = make(total, 1, strength={"same": 1.5, "broken": 0.0, "adversarial": 1.5}[world])
    hits = 0
    for t in range(total):
        sets = level.predict(calibration, z[t])
        label = adversary(t, sets[0], y[t]) if world == "adversarial" else y[t]
        covered = sets.contains([label])
        hits += int(covered[0])
        level.update(covered)
        assert -step <= level.level <= 1 + step
    assert abs(hits / total - 0.8) <= (1 + step) / (step * total)
    if world != "same":  # the fixed level fails by far
        fixed = calibration.predict(z, 0.8)
        labels = [adversary(t, fixed[t], y[t]) for t in range(total)] if world == "adversarial" else y
        assert fixed.contains(labels).mean() < 0.6


def test_a_level_that_rounds_to_an_end_is_there():
    calibration = calibrate(*make(50), "lac")
    new, _ = make(3, 1)
    up, down = AdaptiveLevel(0.5, step=0.2), AdaptiveLevel(0.9, step=0.1)
    for _ in range(5):
        up.update(False)
    for _ in range(90):
        down.update(True)
    assert 1 - 1e-9 < up.level < 1
    assert abs(down.level) < 1e-9
    assert up.predict(calibration, new).sizes.tolist() == [5, 5, 5]
    assert down.predict(calibration, new).sizes.tolist() == [0, 0, 0]


def test_batches_have_a_bound_of_their_own():
    """Fed m labels at a time the level overshoots by up to m steps: the bound of single labels does not hold."""
    step, m = 0.05, 500
    calibration, level, total, hits = calibrate(*make(200), "lac"), AdaptiveLevel(0.9, step=step), 0, 0
    for batch in range(4):
        z, _ = make(m, batch)
        covered = np.array([len(labels) == 5 for labels in level.predict(calibration, z)])  # labels against us
        level.update(covered)
        hits, total = hits + int(covered.sum()), total + m
        assert abs(hits / total - 0.9) <= (1 + m * step) / (step * total)
    assert abs(hits / total - 0.9) > (1 + step) / (step * total)


def test_levels_beyond_the_calibration_give_full_or_empty_sets():
    calibration = calibrate(*make(50))
    new, _ = make(3, 1)
    level = AdaptiveLevel(0.9, step=0.5)
    level.level = 1.2
    assert level.predict(calibration, new).sizes.tolist() == [5, 5, 5]
    level.level = 0.995  # more than fifty rows can guarantee: full, and no warning
    assert level.predict(calibration, new).sizes.tolist() == [5, 5, 5]
    level.level = -0.1
    empty = level.predict(calibration, new)
    assert empty.sizes.tolist() == [0, 0, 0]
    assert (empty.coverage, empty.n_calibration, empty.score) == (Fraction(9, 10), None, "ecp")
    level.level = 0.5
    assert level.predict(calibration, new).to_lists() == calibration.predict(new, 0.5).to_lists()
    assert level.predict(calibration, new).coverage == Fraction(9, 10)


@pytest.mark.parametrize("reached", [-0.1, 0.3, 1.1])
def test_sets_at_any_level_are_made_as_those_of_a_calibration(reached):
    z, y = make(500)
    calibration = calibrate(z, y, by="class", class_names=list("abcde"))
    level = AdaptiveLevel(0.9)
    level.level = reached
    sets = level.predict(calibration, z[:20], allow_empty=False)
    assert (sets.guarantee, sets.filled, sets.coverage) == ("class", True, Fraction(9, 10))
    assert sets.n_calibration is None  # whose law is not that of sets whose level moves
    with pytest.raises(InputError, match="must be of sets of this calibration"):
        calibration.certificate(0.9, evicp.evaluate(sets, y[:20]))
    assert sets.sizes.min() >= 1
    if reached < 0:
        assert sets.to_lists() == [[label] for label in z[:20].argmax(1)]
    with pytest.raises(TypeError, match="unexpected keyword"):
        level.predict(calibration, z, allowempty=False)
    with pytest.raises(InputError, match="groups need a"):
        level.predict(calibration, z, groups=y)


def test_the_level_of_grouped_calibrations():
    z, y = make(500)
    calibration = calibrate(z, y, by=ByClass(clusters=[0, 0, 0, 1, 1]))
    level = AdaptiveLevel(0.9)
    assert level.predict(calibration, z).to_lists() == calibration.predict(z, 0.9).to_lists()
    grouped = calibrate(z, y, by=y % 2)
    assert level.predict(grouped, z, groups=y % 2).to_lists() == grouped.predict(z, 0.9, groups=y % 2).to_lists()


def test_no_p_values_decide_nothing():
    monitor = Monitor(50, 0.9).update_p_values([]).update([True])
    assert monitor.seen == 1


def test_a_name_of_two_groups_says_which_is_not_meant():
    calibration = calibrate(*make(200), by="class", class_names=["x", "x", "y", "z", "w"])
    with pytest.raises(InputError, match=r"^2 groups are called 'x'; monitor the rows of one"):
        Monitor(calibration, 0.5, group="x")
    assert Monitor(calibration, 0.5, group="y").n == calibration.groups.counts[2]


def test_levels_that_cannot_be_used():
    with pytest.raises(InputError, match=r"^step must be strictly between 0 and 1; got 0\.$"):
        AdaptiveLevel(0.9, step=0)
    with pytest.raises(InputTypeError, match=r"^covered must be True or False"):
        AdaptiveLevel(0.9).update(1)


@pytest.mark.parametrize("n", [9, 19, 99])
def test_p_values_raise_no_more_false_alarms_than_promised_from_the_first_label_on(n):
    """With the seed everyone has: the place of the first label within its gap must not be an end of it."""
    rng, streams, alarms = np.random.default_rng(n), 2000, 0
    for _ in range(streams):
        scores = rng.random(n + 60)
        gaps = 1 + np.sum(scores[None, :n] >= scores[n:, None], axis=1)
        alarms += Monitor(n, 0.5, false_alarm_rate=0.01).update_p_values(gaps / (n + 1)).alarm
    assert alarms <= 0.01 * streams + 3 * np.sqrt(0.01 * streams)
    for seed in range(50):
        assert not Monitor(n, 0.5, seed=seed).update_p_values([1 / (n + 1)]).alarm


def test_seeds_beyond_32_bits_are_refused():
    with pytest.raises(InputError, match=r"seed must be below 2\^32; got 4294967296"):
        Monitor(100, 0.9, seed=2**32)


def test_filled_sets_do_not_wind_the_level_up():
    level = AdaptiveLevel(0.9, step=0.05)
    for _ in range(1000):
        level.update(True)  # as filled sets of an easy network do, whatever the level
    assert -0.05 < level.level <= 0
    misses = 0
    while level.level < 0.9:
        level.update(False)
        misses += 1
    assert misses <= 21


def test_a_state_is_not_taken_in_the_middle_of_an_update():
    monitor, p = Monitor(5000, 0.9), np.random.default_rng(0).integers(1, 5002, 2000) / 5001
    feeding = threading.Thread(target=lambda: [monitor.update_p_values(p) for _ in range(3)])
    feeding.start()
    taken = []
    while feeding.is_alive():
        taken += [
            Monitor.from_dict(monitor.to_dict()),
            pickle.loads(pickle.dumps(monitor)),
        ]  # refused if it does not fit
    assert {one.seen for one in taken} <= {0, 2000, 4000, 6000}
    assert all(one._gaps is None or one._gaps.sum() == one.seen for one in taken)


def test_threads_may_share_a_monitor():
    """Equal batches in any order are one sequence; each bet needs the state that the one before it left."""
    rows = np.array([True] * 4 + [False])
    shared, alone = Monitor(2000, 0.9), Monitor(2000, 0.9)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: shared.update(rows), range(400)))
    finally:
        sys.setswitchinterval(before)
    for _ in range(400):
        alone.update(rows)
    assert shared.to_dict() == alone.to_dict()


def test_a_monitor_travels():
    monitor = Monitor(100, 0.9).update([True, False])
    again = pickle.loads(pickle.dumps(monitor))
    assert again.update([True]).to_dict() == copy.deepcopy(monitor).update([True]).to_dict()


def test_a_level_needs_a_calibration() -> None:
    with pytest.raises(InputTypeError, match="calibration must be a Calibration; got a list"):
        AdaptiveLevel(0.9).predict([], np.zeros((1, 2)))  # type: ignore[arg-type]
