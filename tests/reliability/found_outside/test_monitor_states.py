"""Labels that several processes bring to one monitor all count, and a state that nothing can have led to is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import Monitor
from evicp.errors import InputError
from evicp.io import atomic

pytestmark = pytest.mark.reliability

RUN = "from evicp.cli import main; main()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    logits = rng.normal(size=(300, 5)) + 2 * np.eye(5)[labels]
    with evicp.kernels.backend("numpy"):
        evicp.calibrate(logits[:200], labels[:200]).save(tmp_path / "cal.safetensors")
    np.savez(tmp_path / "new.npz", logits=logits[200:], labels=labels[200:])
    np.savez(tmp_path / "other.npz", logits=logits[:100], labels=labels[:100])
    return tmp_path


def watch(folder: Path, state: str = "state.json", file: str = "new.npz", **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, "monitor", "cal.safetensors", file, "--state", state]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_no_labels_are_lost_between_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They all read the state before any of them has written it, unless they wait for each other."""
    monkeypatch.setenv("EVICP_BACKEND", "numpy")
    (folder / "link.json").symlink_to("state.json")
    with atomic.locked(folder / "state.json"):  # until all have come as far as that
        processes = [
            watch(folder, state, file) for state, file in (("state.json", "new.npz"), ("link.json", "other.npz"))
        ]
        ready = [process.stderr.readline() for process in processes if process.stderr is not None]
    assert [line.split(" another process")[0] for line in ready] == ["waiting for"] * 2
    assert [process.communicate() and process.returncode for process in processes] == [0] * 2
    assert json.loads((folder / "state.json").read_text())["seen"] == 200
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["cal.safetensors", "link.json", "new.npz", "other.npz", "state.json"]


def test_a_killed_process_holds_nobody_up(folder: Path) -> None:
    code = (
        "import time; from evicp.io.atomic import locked\nwith locked('state.json'): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
    before = sorted(path.name for path in folder.iterdir())
    assert len(before) == 4  # its lock, which nobody holds
    with atomic.locked(folder / "state.json"):
        pass
    assert sorted(path.name for path in folder.iterdir()) == ["cal.safetensors", "new.npz", "other.npz"]


# ---------------------------------------------------------------------------------------------------------------
# States


def covered() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return Monitor(500, 0.9).update(rng.random(400) < 0.9).to_dict()


def alarmed() -> dict[str, Any]:
    return Monitor(500, 0.9).update(np.arange(400) % 2 == 0).to_dict()


def by_p_values() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return Monitor(99, 0.9).update_p_values(rng.integers(1, 101, 300) / 100).to_dict()


def moved(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(state), **changes}


def more_evidence(state: dict[str, Any]) -> dict[str, Any]:
    """A p-value of 1.9e-22 and no alarm, in all parts that are compared with each other."""
    bets = list(state["log_active"])
    bets[0] = log_e = log(1 / 1.9e-22)
    return moved(state, log_active=bets, log_e=log_e, largest_log_e=log_e)


def moved_gap(state: dict[str, Any]) -> dict[str, Any]:
    """A label that was missed, said to be covered: the number of labels stays."""
    gaps = list(state["gaps"])
    missed = next(i for i in range(len(gaps)) if gaps[i])
    gaps[missed], gaps[-1] = gaps[missed] - 1, gaps[-1] + 1
    return moved(state, gaps=gaps)


IMPOSSIBLE: dict[str, Callable[[], dict[str, Any]]] = {
    "p-value without alarm": lambda: moved(covered(), largest_log_e=log(1 / 1.9e-22)),
    "p-value without alarm, bets and all": lambda: more_evidence(covered()),
    "alarm without evidence": lambda: moved(covered(), alarm_at=3),
    "alarm taken back": lambda: moved(alarmed(), alarm_at=None),
    "evidence taken back": lambda: moved(alarmed(), largest_log_e=0.0, alarm_at=None),
    "evidence that is not that of the bets": lambda: moved(covered(), log_e=-1.0),
    "seen 10^30": lambda: moved(covered(), seen=10**30),
    "seen 10^400": lambda: moved(covered(), seen=10**400),
    "n 10^30": lambda: moved(covered(), n=10**30),
    "more evidence than misses give": lambda: moved(alarmed(), covered=400),
    "no labels, but evidence": lambda: moved(Monitor(500, 0.9).to_dict(), log_e=-3.0),
    "a number as text": lambda: moved(covered(), log_e=str(covered()["log_e"])),
    "labels counted in fractions": lambda: moved(by_p_values(), gaps=[float(gap) for gap in by_p_values()["gaps"]]),
    "p-values that cover another number": lambda: moved_gap(by_p_values()),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_state_that_contradicts_itself_is_refused(name: str) -> None:
    state = IMPOSSIBLE[name]()
    with pytest.raises(InputError, match=r"^this is not the state of a monitor: .+\.$"):
        Monitor.from_dict(state)


def test_the_command_refuses_it_too_and_leaves_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVICP_BACKEND", "numpy")
    state = folder / "state.json"
    state.write_text(json.dumps(more_evidence(covered())))
    before = state.read_bytes()
    process = watch(folder)
    _, error = process.communicate()
    assert process.returncode == 2
    assert error.startswith("error: cannot read state.json: this is not the state of a monitor: ")
    assert state.read_bytes() == before
