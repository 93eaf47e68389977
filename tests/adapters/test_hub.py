"""The hub's own client against a stand-in for the hub on loopback; in its offline mode; and local folders."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import evicp
from evicp import hub
from evicp.errors import FileError, InputError
from hub_stand_in import Repositories, serving

pytest.importorskip("huggingface_hub", reason="the hub's client is not installed")

#: What every process of a user begins with.
START = """
import warnings
import numpy as np
import evicp
rng = np.random.default_rng(2)
labels = rng.integers(0, 4, 80)
logits = rng.normal(size=(80, 4)) + 2 * np.eye(4)[labels]
calibration = evicp.calibrate(logits, labels)
"""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Repositories]]:
    with serving() as hub_at:
        yield hub_at


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of the hub's client, kept from one process to the next."""
    return tmp_path_factory.mktemp("hub")


def user(code: str, endpoint: str, cache: Path, **variables: str) -> list[str]:
    """What a fresh process prints that has this hub and this cache."""
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_TELEMETRY": "1"}
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        env={**os.environ, **proxies, **own, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_calibration_goes_to_the_hub_and_comes_back_also_offline(served: tuple, cache: Path) -> None:
    endpoint, repositories = served
    printed = user(
        """
        print(calibration.push_to_hub("me/model", 0.8))
        print(evicp.load("hf://me/model") == calibration)
        other = evicp.calibrate(logits, labels, "lac", by="class")
        other.push_to_hub("me/model", filename="sets/by-class.safetensors", private=True)
        calibration.push_to_hub("me/model", 0.95)  # its section is replaced, the other stays
        print(evicp.load("hf://me/model/sets/by-class.safetensors") == other)
        print(evicp.load("hf://me/model") == calibration)
        """,
        endpoint,
        cache,
    )
    url, *same = printed
    assert url.startswith(f"{endpoint}/me/model/commit/")
    assert same == ["True", "True", "True"]
    commits = repositories["me/model"]
    assert len(commits) == 4
    card = commits[-1]["README.md"].decode()
    assert card.count("## Prediction sets") == card.count("evicp.load(") == 2
    assert 'evicp.load("hf://me/model")' in card
    assert 'evicp.load("hf://me/model/sets/by-class.safetensors")' in card
    assert "| target coverage | 0.95 |" in card
    assert "| target coverage | 0.8 |" in commits[1]["README.md"].decode()
    checksum = evicp.load(_written(cache / "own.safetensors", commits[-1])).certificate().checksum
    assert checksum in card
    offline = """
        print(evicp.load("hf://me/model") == calibration)
        try:
            evicp.load("hf://me/unseen")
        except evicp.errors.FileError as error:
            print(error)
    """
    known, unseen = user(offline, "http://127.0.0.1:9", cache, HF_HUB_OFFLINE="1")
    assert known == "True"
    assert unseen.startswith("cannot read hf://me/unseen: ")


def _written(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(files[hub.FILE])
    return path


def test_a_card_keeps_what_others_wrote_and_damaged_files_are_refused(served: tuple, cache: Path) -> None:
    endpoint, repositories = served
    text = "---\nlicense: mit\n---\n# Their model\n\nMore.\n"
    repositories["me/other"] = [{"README.md": text.encode()}, {"README.md": text.encode(), hub.FILE: b"no file"}]
    printed = user(
        """
        def refused(address):
            try:
                print(evicp.load(address))
            except evicp.errors.EvicpError as error:
                print(type(error).__name__, error)

        refused("hf://me/other")
        calibration.push_to_hub("me/other")
        print(evicp.load("hf://me/other@main") == calibration)
        refused("hf://me/other@v9")
        refused("hf://me/nobody")
        refused("hf://me/other/none.safetensors")
        refused("hf://model")
        """,
        endpoint,
        cache,
    )
    assert printed[0].startswith("ArtifactError cannot load ")
    assert printed[1] == "True"
    assert all(line.startswith("FileError cannot read hf://me/") for line in printed[2:5]), printed
    assert printed[5] == ("FileError an address on the hub must be hf://owner/model[@revision][/file]; got hf://model.")
    card = repositories["me/other"][-1]["README.md"].decode()
    assert card.startswith(f"{text}\n<!-- evicp: calibration.safetensors -->\n## Prediction sets\n")


def test_a_folder_gets_what_the_hub_would(rows: tuple, tmp_path: Path) -> None:
    calibration = evicp.calibrate(*rows, class_names=["a|b", "<i>", "c", "d"], by="class")
    found = calibration.evaluate(*rows, 0.9)
    (tmp_path / "README.md").write_text("# Mine\n")
    hub.save_beside(calibration, tmp_path, 0.9, evaluation=found)
    assert evicp.load(tmp_path / hub.FILE) == calibration
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("# Mine\n\n<!-- evicp: ")
    assert "| observed coverage |" in card
    assert str(tmp_path) not in card
    with pytest.raises(FileError, match=r"exists. Pass overwrite=True"):
        hub.save_beside(calibration, tmp_path)
    assert (tmp_path / "README.md").read_text() == card
    hub.save_beside(calibration, tmp_path, 0.9, evaluation=found, overwrite=True)
    assert (tmp_path / "README.md").read_text() == card
    with pytest.raises(FileError, match="it is not a directory"):
        hub.save_beside(calibration, tmp_path / "none")
    (tmp_path / "README.md").write_text(card.replace("<!-- end", "<!-- the end"))
    with pytest.raises(InputError, match=r"has the line .* but not"):
        hub.save_beside(calibration, tmp_path, overwrite=True)


@pytest.mark.parametrize("name", ["../up.safetensors", "/etc/a.safetensors", "a.npz", "--> x.safetensors", ""])
def test_a_name_is_one_beside_the_model(rows: tuple, tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=r"filename must be a name in the model's folder that ends in \.safetensors"):
        hub.save_beside(evicp.calibrate(*rows), tmp_path, filename=name)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(rows: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(evicp.errors.MissingExtraError):
        evicp.load("hf://me/model")
    with pytest.raises(evicp.errors.MissingExtraError):
        evicp.calibrate(*rows).push_to_hub("me/model")
