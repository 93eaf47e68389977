"""`evicp monitor`: what it prints, its exit codes, and the state it leaves for the next call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp import kernels
from places import SCHEMAS

SCHEMA = SCHEMAS / "monitor.json"


def make(n: int, seed: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return rng.normal(size=(n, 5)) + strength * np.eye(5)[labels], labels


@pytest.fixture(scope="module", autouse=True)
def same_backend() -> Iterator[None]:
    """The processes' own: scores that two backends make differ by rounding."""
    with kernels.backend("numpy"):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrations, rows like theirs and rows that are not."""
    folder = tmp_path_factory.mktemp("monitor")
    z, y = make(1000, 0, 2.0)
    groups = np.where(np.arange(1000) % 2, "odd", "even")
    evicp.calibrate(z, y).save(folder / "cal.safetensors")
    evicp.calibrate(z + 1, y).save(folder / "other.safetensors")
    evicp.calibrate(z, y, by="class", class_names=list("abcde")).save(folder / "class.safetensors")
    evicp.calibrate(z, y, by=groups).save(folder / "group.safetensors")
    evicp.calibrate(z, y, by=evicp.ByUncertainty(bands=(0.6,))).save(folder / "bands.safetensors")
    for name, n, strength in (("good", 1500, 2.0), ("bad", 1500, 0.8), ("few", 5, 2.0)):
        z, y = make(n, n, strength)
        np.savez(folder / f"{name}.npz", logits=z, labels=y)
    np.save(folder / "groups.npy", np.where(np.arange(1500) % 2, "odd", "even"))
    np.savez(folder / "wrong.npz", logits=z, labels=y + 1)
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = evicp_process(["monitor", *arguments], folder, backend="numpy")
    return done.code, done.out, done.err


def test_rows_like_the_calibration_raise_no_alarm(folder):
    code, out, err = run(folder, "cal.safetensors", "good.npz")
    assert (code, err) == (0, "")
    assert out.startswith("Monitor(coverage 0.9, n = 1,000, false alarms 0.01: 1,500 labels, ")
    assert out.rstrip().endswith("no alarm)")


@pytest.mark.parametrize("options", [[], ["--p-values"], ["--coverage", "0.8", "--confidence", "0.9"]])
def test_worse_rows_raise_one(folder, options):
    code, out, _ = run(folder, "cal.safetensors", "bad.npz", "--json", *options)
    assert code == 1
    content = json.loads(out)
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    calibration = evicp.load(folder / "cal.safetensors")
    with np.load(folder / "bad.npz") as data:
        z, y = data["logits"], data["labels"]
    coverage, confidence = (0.8, 0.9) if "--confidence" in options else (0.9, None)
    watch = evicp.Monitor(calibration, coverage, confidence=confidence)
    if "--p-values" in options:
        watch.update_p_values(calibration.p_values(z, y))
    else:
        watch.update(calibration.predict(z, coverage, confidence=confidence).contains(y))
    assert content["alarm_at"] == watch.alarm_at
    assert (content["labels"], content["covered"]) == (1500, watch.covered)
    assert content["e_value"] == pytest.approx(watch.e_value)


def test_the_state_is_continued(folder, tmp_path):
    state = str(tmp_path / "state.json")
    assert run(folder, "cal.safetensors", "good.npz", "--state", state)[0] == 0
    code, out, _ = run(folder, "cal.safetensors", "bad.npz", "--state", state, "--json")
    assert code == 1
    assert json.loads(out)["labels"] == 3000
    assert json.loads(out)["alarm_at"] > 1500
    assert run(folder, "cal.safetensors", "few.npz", "--state", state)[0] == 1  # an alarm stays
    assert evicp.Monitor.from_dict(json.loads(Path(state).read_text())).seen == 3005
    code, _, err = run(folder, "cal.safetensors", "few.npz", "--state", state, "--coverage", "0.8")
    assert code == 2
    assert "was made with coverage 0.9; got 0.8. Use another state file." in err


def test_the_state_of_another_calibration_or_group_is_refused(folder, tmp_path):
    """Of as many rows, so that nothing else tells them apart."""
    state = str(tmp_path / "state.json")
    groups = ["--groups", "groups.npy", "--state", state]
    assert run(folder, "group.safetensors", "good.npz", "--group", "odd", *groups)[0] == 0
    before = Path(state).read_text()
    code, _, err = run(folder, "group.safetensors", "good.npz", "--group", "even", *groups)
    assert code == 2
    assert "was made with group odd; got even. Use another state file." in err
    state = str(tmp_path / "other.json")
    assert run(folder, "cal.safetensors", "good.npz", "--state", state)[0] == 0
    code, _, err = run(folder, "other.safetensors", "good.npz", "--state", state)
    assert code == 2
    assert "was made with another calibration" in err
    assert Path(tmp_path / "state.json").read_text() == before


@pytest.mark.parametrize(
    ("calibration", "group", "extra"),
    [
        ("class.safetensors", "c", []),
        ("group.safetensors", "odd", ["--groups", "groups.npy"]),
        ("bands.safetensors", "u > 0.6", []),
    ],
)
def test_one_group_is_watched(folder, calibration, group, extra):
    code, out, err = run(folder, calibration, "good.npz", "--group", group, "--json", *extra)
    assert (code, err) == (0, "")
    loaded = evicp.load(folder / calibration)
    with np.load(folder / "good.npz") as data:
        z, y = data["logits"], data["labels"]
    groups = np.load(folder / "groups.npy") if extra else None
    wanted = y == 2 if group == "c" else loaded.groups_of(z, groups) == group
    part = None if groups is None else groups[wanted]
    covered = loaded.predict(z[wanted], 0.9, groups=part).contains(y[wanted])
    assert json.loads(out)["labels"] == wanted.sum() > 100
    assert json.loads(out)["covered"] == covered.sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["class.safetensors", "good.npz"], "has a threshold per class: name one with --group (a, b, c, d, e)."),
        (["class.safetensors", "good.npz", "--group", "f"], "calibration's groups (a, b, c, d, e); got 'f'."),
        (["group.safetensors", "good.npz", "--group", "odd"], "give the group of each row with --groups FILE"),
        (["cal.safetensors", "wrong.npz"], "labels must be in [0, 5)"),
        (["class.safetensors", "wrong.npz", "--group", "a"], "labels must be in [0, 5)"),
        (["cal.safetensors", "good.npz", "--false-alarm-rate", "2"], "false_alarm_rate must be strictly between"),
        (["cal.safetensors", "good.npz", "--state", "broken.json"], "it is not the state of a monitor"),
        (["cal.safetensors", "good.npz", "--state", "list.json"], "it is not the state of a monitor"),
        (["cal.safetensors", "nowhere.npz", "--state", "no/state.json"], "there is no directory no. Create it first."),
        (["cal.safetensors", "good.npz", "--state", "good.npz"], "cannot write good.npz: it is an input"),
        (["nowhere.safetensors", "good.npz"], "cannot read nowhere.safetensors"),
        (["cal.safetensors", "groups.npy"], "has no labels"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, arguments, message):
    code, out, err = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert message in err
