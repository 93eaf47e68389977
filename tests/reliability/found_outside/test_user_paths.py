"""Whatever path a user gives, nothing but a regular file is opened, and nothing is waited for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.cli import demo, inputs
from evicp.errors import FileError
from evicp.extraction import ground_truth, images, sources, storage, torch_modules
from evicp.io import files, logits, paths

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes"),
]


class Waited(BaseException):
    """No error that a reader would handle."""


@pytest.fixture(autouse=True)
def not_for_ever() -> Iterator[None]:
    """Opening a pipe that nobody writes to would never end."""

    def give_up(_number: int, _frame: Any) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def weights(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch_modules.load_weights(torch.nn.Linear(2, 2), path)


def kit(path: Path) -> None:
    """The development kit's meta.mat is found beside its list of labels."""
    (path.parent / "labels.txt").write_text("1\n2\n")
    path.rename(path.with_name("meta.mat"))
    ground_truth.read_ground_truth(path.with_name("labels.txt"), ["a", "b"])


def exported(path: Path) -> None:
    pytest.importorskip("onnx")
    from evicp import onnx

    onnx.export(path, evicp.calibrate(3 * np.eye(3), np.arange(3)), 0.5, path.with_name("out.onnx"))


def run(path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from evicp.extraction.onnx_models import onnx_network

    onnx_network(path, "weights")


def picture(path: Path) -> None:
    pytest.importorskip("PIL")
    images.read_image(path)


#: Everything that opens a path of the user's, with a suffix that it takes.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "class names": (".txt", lambda path: inputs.read_class_names(str(path))),
    "groups": (".npy", lambda path: inputs.read_groups(str(path), 3)),
    "calibration": (".safetensors", evicp.load),
    "logits npz": (".npz", lambda path: inputs.read_rows(str(path))),
    "logits safetensors": (".safetensors", lambda path: inputs.read_rows(str(path))),
    "logits parquet": (".parquet", lambda path: inputs.read_rows(str(path))),
    "logits torch": (".pt", lambda path: inputs.read_rows(str(path))),
    "labels": (".npy", logits.open_labels),
    "sets": (".npz", files.read_sets),
    "weights torch": (".pth", weights),
    "weights safetensors": (".safetensors", weights),
    "ground truth": (".txt", lambda path: ground_truth.read_ground_truth(path, ["a"])),
    "development kit": (".mat", kit),
    "picture": (".png", picture),
    "manifest": (".json", storage._read_json),
    "digest": (".npz", storage.file_digest),
    "onnx export": (".onnx", exported),
    "onnx network": (".onnx", run),
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it takes the place of a file after one has looked what it is."""
    monkeypatch.setattr(paths, "refuse_special", lambda *_: None)
    suffix, read = READERS[name]
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"^cannot .*: it is not a regular file\."):
        read(path)


def test_a_device_is_refused() -> None:
    with pytest.raises(FileError, match=r"^cannot read class names from /dev/null: it is not a regular file\.$"):
        inputs.read_class_names("/dev/null")


def test_a_pipe_among_pictures_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    os.mkfifo(tmp_path / "a.png")
    source = sources.open_source(tmp_path)
    with pytest.raises(FileError, match=r"a\.png: it is not a regular file"):
        source.read(0)


def test_a_folder_that_holds_a_link_to_itself_is_read_once(tmp_path: Path) -> None:
    """Forty times, before the system gives up following it."""
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.png").touch()
        (tmp_path / "set" / name / "again").symlink_to(tmp_path / "set" / name)
    (tmp_path / "set" / "cat" / "all").symlink_to(tmp_path / "set")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "2.png").touch()
    (tmp_path / "set" / "dog" / "linked").symlink_to(tmp_path / "more")
    source = sources.open_source(tmp_path / "set")
    assert source.inputs == ("cat/1.png", "dog/1.png", "dog/linked/2.png")


def test_a_link_to_itself_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evicp.cli import reproduce

    monkeypatch.chdir(tmp_path)
    Path("loop.npz").symlink_to("loop.npz")
    with pytest.raises(FileError, match=r"loop\.npz"):
        [inputs.read_rows(path) for _, path in reproduce._expand(["loop.npz"])]


def test_a_state_is_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evicp.cli import app

    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"^the state must be a file, because it is read and written; got -\.$"):
        app(["monitor", "cal.safetensors", "new.npz", "--state", "-"], standalone_mode=False)


def test_a_pipe_in_the_place_of_the_demos_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    assert not demo._is_report(tmp_path / "report.html")


def test_names_are_the_lines_of_their_file(tmp_path: Path) -> None:
    """A line separator within a name is part of it."""
    names = ("form\x0cfeed", "next\x85line", "line\N{LINE SEPARATOR}separator")
    (tmp_path / "names.txt").write_bytes("\r\n".join(names).encode())
    assert inputs.read_class_names(str(tmp_path / "names.txt")) == names
