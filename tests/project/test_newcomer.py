"""A newcomer tries what other packages have taught: every guess works, or says what to type instead."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp.calibration.verification import verify
from evicp.errors import FileError, InputError, InputTypeError, SuspiciousInputWarning
from evicp.io.files import read_sets
from evicp.types import TargetCoverage

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 5, 600)
LOGITS = RNG.normal(size=(600, 5)) + 2.5 * np.eye(5)[LABELS]
CALIBRATION = evicp.calibrate(LOGITS[:300], LABELS[:300])
SETS = CALIBRATION.predict(LOGITS[300:])


# ---------------------------------------------------------------------------------------------------------------
# What is there


def test_the_package_shows_its_interface_and_nothing_else() -> None:
    modules = {
        "blocks",
        "datasets",
        "errors",
        "hub",
        "losses",
        "mlflow",
        "onnx",
        "ray",
        "report",
        "sklearn",
        "spark",
        "torch",
    }
    assert set(dir(evicp)) == {*evicp.__all__, *modules, "__version__"}


@pytest.mark.parametrize("name", ["sklearn", "torch", "datasets"])
def test_modules_need_no_second_import(name: str) -> None:
    pytest.importorskip(name if name != "datasets" else "evicp")
    assert getattr(evicp, name) is sys.modules[f"evicp.{name}"]


#: What once was a method of these, and is nothing for users.
INNER = ("alike", "no_sets", "require_law", "holds", "listed", "level", "comparable", "about", "filled_with", "numbers")


@pytest.mark.parametrize("thing", [CALIBRATION, SETS], ids=["calibration", "sets"])
def test_no_inner_method_is_public(thing: Any) -> None:
    assert not set(INNER) & set(dir(thing))


# ---------------------------------------------------------------------------------------------------------------
# Coverage: 0.9 unless asked, and one name for each thing


def test_sets_are_made_at_coverage_0_9_by_default() -> None:
    assert CALIBRATION.predict(LOGITS[300:], 0.9) == SETS
    assert evicp.Base().predict(LOGITS).coverage == 0.9
    assert CALIBRATION.threshold() == CALIBRATION.threshold(0.9)
    assert CALIBRATION.certificate(date="today").to_dict() == CALIBRATION.certificate(0.9, date="today").to_dict()
    folds = evicp.CrossCalibration([evicp.calibrate(LOGITS[i::2], LABELS[i::2]) for i in range(2)])
    assert folds.predict([LOGITS, LOGITS]).coverage == 0.9


@pytest.mark.parametrize("coverage", [0.9, np.float64(0.9), Fraction(9, 10)])
def test_a_coverage_equals_the_number_it_was_given_as(coverage: Any) -> None:
    evaluation = evicp.evaluate(SETS, LABELS[300:])
    for known in (
        SETS.coverage,
        evaluation.target,
        CALIBRATION.at(0.9).coverage,
        pickle.loads(pickle.dumps(SETS)).coverage,
    ):
        assert known == coverage
        assert coverage == known
        assert known <= coverage <= known
        assert not known < coverage
        assert not known > coverage
        assert hash(known) == hash(Fraction(9, 10))
    assert repr(SETS.coverage) == "0.9"
    assert SETS.coverage != 0.91


def test_a_coverage_is_compared_as_it_is_written() -> None:
    third = TargetCoverage(1, 3)
    assert third == 1 / 3
    assert third != 0.333
    assert third < 0.5 < TargetCoverage(2, 3)
    assert not third > float("inf")
    assert 1 - third == Fraction(2, 3)


def test_what_is_asked_and_what_is_observed_have_their_own_names() -> None:
    evaluation = evicp.evaluate(SETS, LABELS[300:])
    comparison = evicp.compare(LOGITS, LABELS, ["lac"], trials=2)
    for result in (SETS, evaluation, comparison, CALIBRATION.certificate()):
        assert result.target_coverage == 0.9
    assert evaluation.observed_coverage == evaluation.coverage == np.mean(SETS.contains(LABELS[300:]))
    for asked in (SETS, comparison, CALIBRATION.certificate()):
        assert not hasattr(asked, "observed_coverage")


ALPHA = {
    "predict": lambda **given: CALIBRATION.predict(LOGITS, **given),
    "threshold": CALIBRATION.threshold,
    "certificate": CALIBRATION.certificate,
    "compare": lambda **given: evicp.compare(LOGITS, LABELS, **given),
    "tune": lambda **given: evicp.tune(LOGITS, LABELS, **given),
    "plan": evicp.plan,
}


@pytest.mark.parametrize("call", ALPHA)
def test_alpha_is_told_what_it_is_called_here(call: str) -> None:
    with pytest.raises(
        InputTypeError, match=rf"^{call}\(\) got an unexpected argument 'alpha'. Did you mean coverage=0.9\?$"
    ):
        ALPHA[call](alpha=0.1)
    with pytest.raises(InputTypeError, match=r"'confidence_level'. Did you mean coverage=0.95\?$"):
        ALPHA[call](confidence_level=0.95)
    with pytest.raises(InputTypeError, match=r"'alpha'. Did you mean coverage=0.9\?$"):
        ALPHA[call](alpha="a tenth")
    with pytest.raises(TypeError, match=r"got an unexpected argument 'covrage'.$"):
        ALPHA[call](covrage=0.9)


def test_calibrate_says_where_a_coverage_belongs() -> None:
    for name, value in (("alpha", 0.1), ("coverage", 0.9)):
        with pytest.raises(
            InputTypeError, match=r"One calibration works for every coverage: pass it to predict, coverage=0.9.$"
        ):
            evicp.calibrate(LOGITS, LABELS, **{name: value})


def test_the_classifier_knows_alpha_too() -> None:
    classifier = pytest.importorskip("evicp.sklearn").ConformalClassifier
    with pytest.raises(InputTypeError, match=r"^ConformalClassifier\(\) .*Did you mean coverage=0.8\?$"):
        classifier(alpha=0.2)
    with pytest.raises(InputTypeError, match=r"^predict_set\(\) .*Did you mean coverage=0.8\?$"):
        classifier().predict_set(LOGITS, alpha=0.2)


@pytest.mark.parametrize(("given", "meant"), [("0.05", "0.95"), ("a", "0.9"), ("7", "0.9")])
def test_the_command_line_knows_alpha(given: str, meant: str, tmp_path: Path) -> None:
    run = evicp_process(["predict", "cal.safetensors", "new.npz", "--alpha", given], tmp_path)
    assert run.code == 2
    assert run.err.startswith(f"error: No such option: --alpha. Did you mean --coverage {meant}? Try ")


# ---------------------------------------------------------------------------------------------------------------
# Plans


def test_a_plan_is_its_number_of_rows() -> None:
    plan = evicp.plan(0.9, tolerance=0.02)
    assert plan == 854
    assert (repr(plan), str(plan), f"{plan:,}") == ("854", "854", "854")
    assert plan + 1 == 855
    assert (plan.coverage, plan.tolerance, plan.confidence) == (0.9, 0.02, 0.95)
    again = pickle.loads(pickle.dumps(plan))
    assert (again, again.tolerance) == (854, 0.02)
    assert evicp.plan() == evicp.plan(0.9, 0.01, 0.95)


# ---------------------------------------------------------------------------------------------------------------
# From rows to figures, files and frames


def test_a_calibration_evaluates_its_sets() -> None:
    logits, labels = LOGITS[300:], LABELS[300:]
    assert repr(CALIBRATION.evaluate(logits, labels)) == repr(evicp.evaluate(SETS, labels, logits))
    sure = CALIBRATION.evaluate(logits, labels, 0.8, confidence=0.9, allow_empty=False)
    assert (sure.target, sure.target_confidence, sure.filled) == (0.8, 0.9, True)
    groups = np.arange(600) % 2
    by_group = evicp.calibrate(LOGITS[:300], LABELS[:300], by=groups[:300])
    found = by_group.evaluate(logits, labels, groups=groups[300:])
    assert found.group_coverage is not None
    assert found.group_coverage.names == ("0", "1")
    with pytest.raises(InputTypeError, match=r"Did you mean coverage=0.9"):
        CALIBRATION.evaluate(logits, labels, alpha=0.1)
    with pytest.raises(InputTypeError, match="takes one coverage"):
        CALIBRATION.evaluate(logits, labels, [0.8, 0.9])


def test_every_guarantee_explains_its_verdict() -> None:
    """The text of an evaluation, its HTML and its dictionary say whether coverage is as guaranteed."""
    logits, labels = LOGITS[300:], LABELS[300:]
    for by, words in ((None, "compatible with ["), ("class", "5 groups compatible")):
        found = evicp.calibrate(LOGITS[:300], LABELS[:300], by=by).evaluate(logits, labels)
        promise = found.to_dict()["promise"]
        assert promise == found.verdict
        assert promise["compatible"]
        for text in (repr(found), found.to_markdown(), found._repr_html_()):
            assert words in text


def test_an_evaluation_of_shifted_rows_says_so() -> None:
    logits, labels = LOGITS[300:] - 2.5 * np.eye(5)[LABELS[300:]], LABELS[300:]
    for found in (evicp.evaluate(CALIBRATION.predict(logits), labels), CALIBRATION.evaluate(logits, labels)):
        assert found.verdict is not None
        assert not found.verdict["kept"]
        assert "NOT compatible" in str(found)
        assert "These rows differ from the calibration rows" in str(found)
        assert "NOT compatible" in found._repr_html_()


def test_sets_that_cover_far_more_are_named_with_the_likely_cause() -> None:
    easy = LOGITS[300:] + 3 * np.eye(5)[LABELS[300:]]
    found = CALIBRATION.evaluate(easy, LABELS[300:])
    assert found.verdict is not None
    assert found.verdict["kept"]
    assert "MORE than" in str(found)
    assert "the model was trained on them" in str(found)


def test_check_warns_of_coverage_far_above(tmp_path: Path) -> None:
    easy = LOGITS[300:] + 3 * np.eye(5)[LABELS[300:]]
    CALIBRATION.save(tmp_path / "cal.safetensors")
    np.savez(tmp_path / "easy.npz", logits=easy, labels=LABELS[300:])
    np.savez(tmp_path / "usual.npz", logits=LOGITS[300:], labels=LABELS[300:])
    run = evicp_process(["evaluate", "cal.safetensors", "easy.npz", "--check"], tmp_path)
    assert run.code == 0
    assert run.err.startswith("warning: 1.0000 is covered, far more than expected from the guarantee.")
    usual = evicp_process(["evaluate", "cal.safetensors", "usual.npz", "--check"], tmp_path)
    assert (usual.code, usual.err) == (0, "")


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    for thing, name in ((CALIBRATION, "cal.safetensors"), (SETS, "sets.parquet"), (SETS, "sets.csv")):
        path = tmp_path / name
        thing.save(path)
        before = path.read_bytes()
        with pytest.raises(FileError, match=r"exists. Pass overwrite=True"):
            thing.save(path)
        thing.save(path, overwrite=True)
        assert path.read_bytes() == before
    assert evicp.load(tmp_path / "cal.safetensors") == CALIBRATION
    assert read_sets(tmp_path / "sets.parquet") == SETS


def test_sets_become_text(tmp_path: Path) -> None:
    lines = SETS.to_csv().splitlines()
    assert lines[:2] == ["row,size,labels", f"0,{len(SETS[0])},{' '.join(map(str, SETS[0]))}"]
    assert len(lines) == len(SETS) + 1
    SETS.to_csv(tmp_path / "sets.csv")
    assert (tmp_path / "sets.csv").read_text() == SETS.to_csv()
    with pytest.raises(FileError, match=r"ends in .csv"):
        SETS.to_csv(tmp_path / "sets.txt")


def test_results_become_data_frames() -> None:
    pytest.importorskip("pandas")
    evaluation = CALIBRATION.evaluate(LOGITS[300:], LABELS[300:])
    frame = evaluation.to_pandas()
    assert frame.shape[0] == 1
    assert frame["coverage"].item() == evaluation.coverage
    comparison = evicp.compare(LOGITS, LABELS, ["lac", "ecp"], trials=3)
    frame = comparison.to_pandas()
    assert frame.shape[0] == 6
    assert frame.loc["lac"]["mean_size"].tolist() == comparison.values("lac", "mean_size").tolist()


# ---------------------------------------------------------------------------------------------------------------
# Mistakes in what is calibrated


MISTAKES = {
    "near chance": (LOGITS, RNG.permutation(LABELS)),
    "they may count from 1": (LOGITS, (LABELS + 1) % 5),
    "training rows": (LOGITS, LOGITS.argmax(1)),
    "are duplicates": (np.tile(LOGITS, (2, 1)), np.tile(LABELS, 2)),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_calibrate_names_a_mistake(words: str, tmp_path: Path) -> None:
    logits, labels = MISTAKES[words]
    with pytest.warns(SuspiciousInputWarning, match=words):
        evicp.calibrate(logits, labels)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    run = evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path)
    assert run.code == 0
    assert words in run.err
    assert run.err.startswith("warning: ")


def test_rows_of_another_network_are_refused_where_it_is_named() -> None:
    known = evicp.calibrate(LOGITS, LABELS, source="resnet152")
    assert known.predict(LOGITS, source="resnet152") == known.predict(LOGITS)
    for call in (
        lambda source: known.predict(LOGITS, source=source),
        lambda s: known.evaluate(LOGITS, LABELS, source=s),
    ):
        with pytest.raises(InputError, match=r"^new rows are from vit, the calibration rows from resnet152: coverage"):
            call("vit")
    with pytest.raises(InputError, match=r"does not say where its rows come from\. Give source= to calibrate, too"):
        CALIBRATION.predict(LOGITS, source="resnet152")
    other = evicp.Calibrator(source="vit").update(LOGITS, LABELS)
    with pytest.raises(InputError, match="rows of one calibration must have one source"):
        evicp.Calibrator(source="resnet152").update(LOGITS, LABELS).merge(other)


def test_rows_of_another_network_are_warned_of_where_files_name_it(tmp_path: Path) -> None:
    """As `extract` writes it: the network, its weights, and how its inputs are prepared."""
    resnet = {"name": "resnet", "parameters": "ab" * 32, "preparation": '{"transform": {"size": 224}}', "data_set": "a"}
    files = {
        "val": resnet,
        "new": resnet | {"data_set": "b", "name": "the same under another name"},
        "other": resnet | {"parameters": "cd" * 32},
        "larger": resnet | {"preparation": '{"transform": {"size": 299}}'},
        "named": {"name": "vit"},
    }
    for name, source in files.items():
        np.savez(tmp_path / f"{name}.npz", logits=LOGITS, labels=LABELS, source=np.array([*source.items()]))
    run = evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path)
    assert "rows from             resnet (weights abababab), of a, in val.npz\n" in run.out
    assert (
        "rows from       resnet (weights abababab), of a, in"
        in evicp_process(["show", "cal.safetensors"], tmp_path).out
    )
    words = {
        "new": "",
        "other": "are from resnet (weights cdcdcdcd), the calibration rows from resnet (weights abababab)",
        "larger": "are of inputs prepared in another way than the calibration's (transform.size 299, was 224)",
        "named": "are from vit, the calibration rows from resnet",
    }
    for name, warning in words.items():
        for command in ("predict", "evaluate"):
            run = evicp_process([command, "cal.safetensors", f"{name}.npz"], tmp_path)
            assert run.code == 0
            assert run.err == (f"warning: the rows of {name}.npz {warning}: {_NEED_NOT}\n" if warning else "")
    run = evicp_process(["predict", "cal.safetensors", "new.npz", "--source", "vit"], tmp_path)
    assert (run.code, run.out) == (2, "")
    (tmp_path / "mixed").mkdir()
    for name in ("val", "other"):
        (tmp_path / f"{name}.npz").rename(tmp_path / "mixed" / f"{name}.npz")
    np.savez(tmp_path / "mixed/other.npz", logits=LOGITS + 1, labels=LABELS, source=np.array([*files["other"].items()]))
    run = evicp_process(["calibrate", "mixed", "-o", "mixed.safetensors"], tmp_path)
    assert run.code == 2
    assert "rows of one calibration must have one source" in run.err


_NEED_NOT = "coverage need not hold. Calibrate on rows that were made so."


def test_calibrate_says_what_the_rows_are_like(tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", logits=LOGITS, labels=LABELS)
    run = evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path)
    assert run.err.splitlines() == ["wrote cal.safetensors"]
    calibration = evicp.calibrate(LOGITS, LABELS)
    assert run.out.splitlines()[-1] == f"  {calibration.first_look}"
    assert str(calibration) == f"{calibration!r}\n{calibration.first_look}"


def test_a_monitor_counts_no_file_twice(tmp_path: Path) -> None:
    CALIBRATION.save(tmp_path / "cal.safetensors")
    np.savez(tmp_path / "today.npz", logits=LOGITS[300:], labels=LABELS[300:])
    command = ["monitor", "cal.safetensors", "today.npz", "--state", "state.json"]
    first, second = (evicp_process(command, tmp_path) for _ in range(2))
    assert (first.code, first.err) == (0, "")
    assert second.err.startswith("warning: 300 of 300 rows were given to this monitor before. They are skipped")
    assert (second.code, second.out) == (0, first.out)


# ---------------------------------------------------------------------------------------------------------------
# Pictures


@pytest.fixture
def pyplot() -> Iterator[Any]:
    """Matplotlib without a screen; its figures are closed afterwards."""
    pytest.importorskip("matplotlib").use("agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")  # those of other tests
    yield plt
    plt.close("all")


def test_results_draw_themselves(pyplot: Any) -> None:
    groups = np.arange(600) % 3
    by_group = evicp.calibrate(LOGITS, LABELS, by=groups)
    weighted = evicp.calibrate(LOGITS, LABELS, weights=np.ones(600))
    results = {
        "coverage": [CALIBRATION, by_group, evicp.calibrate(LOGITS, LABELS, by="class")],
        "share of calibration scores": [weighted],
        "mean set size": [evicp.compare(LOGITS, LABELS, ["lac", "aps"], trials=2)],
        "set size": [CALIBRATION.evaluate(LOGITS[300:], LABELS[300:])],
        "calibration rows": [evicp.plan(0.9, 0.05)],
    }
    for title, things in results.items():
        for thing in things:
            axes = thing.plot()
            assert title in (axes.get_xlabel(), axes.get_ylabel())
            own = pyplot.subplots()[1]
            assert thing.plot(ax=own) is own
            axes.figure.canvas.draw()
    assert len(by_group.plot().get_lines()) == 3


def test_the_plotted_curve_is_that_of_thresholds(pyplot: Any) -> None:
    assert pyplot.get_fignums() == []
    line = CALIBRATION.plot().get_lines()[0]
    at = np.searchsorted(line.get_xdata(), CALIBRATION.threshold(0.9))
    assert line.get_ydata()[at] == evicp.conformal_rank(300, 0.9) / 301


# ---------------------------------------------------------------------------------------------------------------
# What is in a file, and is a certificate that of it?


def test_a_file_shows_what_is_in_it(tmp_path: Path) -> None:
    evicp.calibrate(LOGITS, LABELS, class_names=list("abcde")).save(tmp_path / "cal.safetensors")
    run = evicp_process(["show", "cal.safetensors", "--coverage", "0.8"], tmp_path)
    assert (run.code, run.err) == (0, "")
    assert "content         Calibration(ecp, 600 rows, 5 classes)\n" in run.out
    assert "class names     5: a, b, c, ...\n" in run.out
    assert str(evicp.load(tmp_path / "cal.safetensors").certificate(0.8)) in run.out


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", logits=LOGITS, labels=LABELS)
    made = evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors", "-c", "0.8", "--json"], tmp_path)
    (tmp_path / "certificate.json").write_text(made.out)
    command = ["verify", "cal.safetensors", "certificate.json"]
    run = evicp_process(command, tmp_path)
    assert (run.code, run.err) == (0, "")
    assert run.out == "The certificate belongs to this calibration, and its 21 figures are right.\n"
    for figure, wrong in (("rank", 482), ("gamma", 0.9), ("n", 601), ("coverage_interval", [0.7, 0.9]), ("tied", 1)):
        content = json.loads(made.out)
        content["certificate"][figure] = wrong
        (tmp_path / "certificate.json").write_text(json.dumps(content))
        run = evicp_process(command, tmp_path)
        assert run.code == 1
        assert "NOT RIGHT" in run.out
        assert f"\n{figure} " in run.out


def test_a_certificate_of_another_calibration_is_told() -> None:
    other = evicp.calibrate(LOGITS[:301], LABELS[:301]).certificate()
    assert not verify(CALIBRATION, other.to_dict()).holds
    assert "ANOTHER calibration" in repr(verify(CALIBRATION, other.to_dict()))
    evaluation = CALIBRATION.evaluate(LOGITS[300:], LABELS[300:])
    for by in (None, "class"):
        calibration = evicp.calibrate(LOGITS, LABELS, by=by)
        for pac in (None, 0.9):
            stated = calibration.certificate(0.8, pac=pac, confidence=0.99).to_dict()
            assert verify(calibration, json.loads(json.dumps(stated))).holds
    found = verify(CALIBRATION, CALIBRATION.certificate(0.9, evaluation).to_dict())
    assert (found.holds, found.not_compared) == (True, ("observed",))
    assert repr(found).endswith("Not compared, because it is about other rows: observed.")
