"""Scores beside each other: by temperature and coverage, ECP against LAC; Theorem 2, ties and half precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evicp.calibration.calibrator import calibrate
from evicp.calibration.reliability import Reliability
from evicp.method.scores import APS, LAC, RAPS, SAPS, Score
from evicp.method.temperature import fit_temperature
from evicp.paper.trials import EVIDENTIAL, LEAST, Network, run_trials
from study import Finding, Logits, compared, log_probabilities_accepted, paired, published, triples


def ties(networks: Sequence[Logits]) -> Finding:
    """How often labels tie, and what half precision does to sets."""
    rows = []
    for data in networks:
        z = np.asarray(data.logits, np.float64)
        half = z.astype(np.float16)
        descending = -np.sort(-z, axis=1)
        tied = np.mean(np.any(descending[:, 1:6] == descending[:, :5], axis=1))
        evidence_ties = np.mean(np.mean(z <= 0, axis=1))
        rows += [
            (data.name, "rows with a tie among their six largest logits", f"{tied:.4f}"),
            (data.name, "labels without relu evidence (tied in p)", f"{evidence_ties:.3f}"),
        ]
        for score in (published(), LAC()):
            with log_probabilities_accepted():
                exact = calibrate(z, data.labels, score).predict(z, 0.9)
                rounded = calibrate(half, data.labels, score).predict(half, 0.9)
            changed = np.mean(exact.sizes != rounded.sizes)
            rows.append((data.name, f"{score.name.upper()}: rows whose set size changes in float16", f"{changed:.4f}"))
    return Finding("ties", "Ties and half precision", ("network", "what", "figure"), tuple(rows))


def temperature(networks: Sequence[Logits]) -> Finding:
    """Every score at several temperatures, and at the fitted one."""
    rows = []
    for data in networks:
        fitted = fit_temperature(data.logits, data.labels).temperature
        for t in (0.5, 0.75, 1.0, 1.5, 2.0, fitted):
            scores: list[Score] = [
                published(temperature=t),
                LAC(temperature=t),
                APS(temperature=t),
                RAPS(temperature=t),
            ]
            comparison = compared(data, scores, trials=50)
            title = f"{t:.3f} (fitted)" if t == fitted else f"{t:g}"
            rows.append((data.name, title, *triples(comparison)))
    return Finding(
        "temperature",
        "Size / SSCV / SAT by temperature: coverage 0.9, means over 50 splits",
        ("network", "T", "ECP", "LAC", "APS", "RAPS"),
        tuple(rows),
    )


def clean_protocol(networks: Sequence[Logits]) -> Finding:
    """SAT of ECP and LAS in the paper's clean protocol, and where a few rows do not decide it."""
    rows, trials = [], 100
    for data in networks:
        if not data.raw:
            continue
        measured = run_trials(Network(data.name, "val", data.logits, data.labels), "clean", trials=trials)
        found = [[outcome.evaluation for outcome in measured[method, 0.9]] for method in (EVIDENTIAL, LEAST)]
        size, sscv, sat = (
            np.array([[getattr(e, metric) for e in of_method] for of_method in found], float)
            for metric in ("mean_size", "sscv", "sat")
        )
        many = np.array([[(e.sscv_count or 0) > 30 for e in of_method] for of_method in found]).all(0)
        for title, which in (("all", np.ones(trials, bool)), ("more than 30 rows decide SSCV", many)):
            cells = [
                " / ".join([f"{of_method[which].mean():.3f}" for of_method in figures])
                + f" / {np.median(figures[-1][which]):.3f}"
                for figures in zip(size, sscv, sat, strict=True)
            ]
            rows.append((data.name, title, *cells, f"{np.sum((sat[0] > sat[1])[which])} of {which.sum()}"))
    return Finding(
        "clean",
        f"Size / SSCV / SAT / median SAT in the clean protocol: coverage 0.9, means over {trials} trials",
        ("network", "trials", "ECP", "LAS", "ECP's SAT is larger in"),
        tuple(rows),
    )


def levels(networks: Sequence[Logits]) -> Finding:
    """The paper's three coverage levels."""
    scores = [published(), LAC(), RAPS(), SAPS(), APS()]
    rows = [
        (data.name, f"{1 - coverage:.2g}", *triples(compared(data, scores, coverage, trials=50)))
        for data in networks
        for coverage in (0.9, 0.95, 0.99)
    ]
    head = ("network", "delta", *(score.name.upper() for score in scores))
    return Finding("levels", "Size / SSCV / SAT at three levels: means over 50 splits, T = 1", head, tuple(rows))


def against_lac(networks: Sequence[Logits]) -> Finding:
    """ECP less LAC on the same splits: where LAC wins."""
    rows = []
    for data in networks:
        for coverage in (0.9, 0.95, 0.99):
            comparison = compared(data, [published(), LAC()], coverage, trials=100)
            cells = []
            for metric in ("mean_size", "sscv", "sat"):
                mean, error, no_worse = paired(comparison, "ecp", "lac", metric)
                cells.append(f"{mean:+.4f} ({error:.4f}), {no_worse}")
            rows.append((data.name, f"{coverage:g}", *cells))
    head = ("network", "coverage", "size", "SSCV", "SAT")
    title = "ECP less LAC: mean difference (standard error), trials of 100 in which ECP is no worse"
    return Finding("lac", title, head, tuple(rows))


def reliability(networks: Sequence[Logits]) -> Finding:
    """Insight 5: what gamma and U_C say, beside the coverage that is observed."""
    rows = []
    for data in networks:
        for n in (100, 1000):
            comparison = compared(data, [published()], trials=200, calibration=n)
            observed, m = comparison.values("ecp", "coverage"), comparison.n_test
            law = Reliability(n, 0.9)
            low, high = law.observed_interval(m, 0.95)
            inside = np.mean((observed >= low) & (observed <= high))
            rows.append(
                (
                    data.name,
                    f"{n:,}",
                    f"{law.gamma:.4f}",
                    f"{law.uncertainty:.4f}",
                    f"{law.expected_coverage:.4f}",
                    f"{observed.mean():.4f}",
                    f"{observed.std():.4f}",
                    f"{inside:.3f}",
                )
            )
    head = ("network", "n", "gamma", "U_C", "expected", "observed", "its deviation", "inside the 95 % interval")
    return Finding("reliability", "Theorem 2 beside what is observed: ECP, coverage 0.9, 200 splits", head, tuple(rows))
