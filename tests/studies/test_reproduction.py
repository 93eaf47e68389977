"""The page of the reproduction: what it shows is what the trials measure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evicp.paper.trials import Method, Network, run_trials
from pages_apart import is_rounding_apart
from places import DOCS
from reproduction import COVERAGES, METHODS, page
from study import embedded, read


def test_the_page_shows_medians_of_both_protocols():
    data = embedded()
    data = replace(data, logits=data.logits[:600], labels=data.labels[:600])
    text = page([data], trials=2)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    tables = [cells for cells in rows if len(cells) == 11 and cells[0] in map(str, METHODS)]
    assert len(tables) == 3 * len(METHODS) - 2  # lambda is chosen at coverage 0.9 only
    network = Network("embedded", "val", data.logits, data.labels)
    for position, protocol in ((1, "as released"), (6, "clean")):
        extra = (Method("LAS"), Method("SAPS"))
        trials = run_trials(network, protocol, trials=2, reference=True, extra=extra)
        for name in ("ECP", "LAS", "SAPS"):
            of_method = [cells for cells in tables if cells[0] == name]
            for cells, coverage in zip(of_method, COVERAGES, strict=True):
                found = [outcome.evaluation for outcome in trials[Method(name), coverage]]
                figures = [
                    np.median([getattr(e, f) for e in found])
                    for f in ("coverage", "mean_size", "sscv", "sscv_count", "sat")
                ]
                shown = np.array(cells[position : position + 5], float)
                assert np.all(np.abs(shown - figures) <= [6e-5, 6e-4, 6e-4, 0.6, 6e-4])
    for name in ("size", "SAT"):
        assert text.count(f"- By {name}, best first: as released ") == 3
        assert text.count(f"- Clean, ECP less LAS in {name}, ") == 3
        assert f"- By {name}, both protocols order the methods alike in " in text


def test_methods_that_are_extra_move_no_other_split():
    data = embedded()
    network = Network("embedded", "val", data.logits[:300], data.labels[:300])
    for protocol in ("as released", "clean"):
        few = run_trials(network, protocol, trials=1)
        more = run_trials(network, protocol, trials=1, extra=(Method("LAS"), Method("SAPS")))
        assert set(more) - set(few) == {(Method("LAS"), 0.95), (Method("SAPS"), 0.9), (Method("SAPS"), 0.95)}
        assert all(more[key][0].evaluation.to_dict() == few[key][0].evaluation.to_dict() for key in few)


@pytest.mark.long
def test_the_committed_page_is_what_the_study_writes(shared_data):
    networks = [
        replace(read(str(shared_data / f"imagenet_val5k_efficientnet_{lite}.npz")), name=f"efficientnet_{lite}")
        for lite in ("lite0", "lite1")
    ]
    kept = (DOCS / "reproduction.md").read_text(encoding="utf-8").splitlines()
    for line, other in zip(page(networks).splitlines(), kept, strict=True):
        assert is_rounding_apart(line, other, 2e-3)
