"""A torch file is looked at before torch is: programs, pickles and damaged archives never reach its reader."""

from __future__ import annotations

import importlib.util
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evicp.cli import inputs
from evicp.errors import FileError, MissingExtraError

torch = pytest.importorskip("torch")

LOGITS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
LABELS = np.arange(20) % 3


def good(path: Path) -> Path:
    torch.save({"logits": torch.from_numpy(LOGITS), "labels": torch.from_numpy(LABELS)}, path)
    return path


PROGRAM = """
from typing import Tuple
import torch

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    @torch.jit.export
    def __getstate__(self):
        return (self.count, self.training)

    @torch.jit.export
    def __setstate__(self, state: Tuple[int, bool]):
        self.training = state[1]
        self.count = state[0] + int(torch.from_file("made-by-reading", True, 4).sum())

    def forward(self, x):
        return x

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TorchScript archive that makes a file when it is read, under a tensor file's name."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "a_program.py").write_text(PROGRAM)  # TorchScript is made from a file
    spec = importlib.util.spec_from_file_location("a_program", folder / "a_program.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is out of fashion
        spec.loader.exec_module(module)
        torch.jit.save(torch.jit.script(module.Outer()), folder / "program.pt")
    return folder / "program.pt"


def test_a_program_is_neither_run_nor_handed_to_torch(program: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    content = program.read_bytes()
    for name in ("program.pt", "program.pth"):
        (tmp_path / name).write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch's own, of what it is about to do
            with pytest.raises(FileError, match=rf"cannot read {name}: it is a TorchScript archive, a program\."):
                inputs.read_rows(name)
    assert not (tmp_path / "made-by-reading").exists()


def test_weights_are_looked_at_too(program: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from evicp.extraction.torch_modules import load_weights

    monkeypatch.chdir(tmp_path)
    module = torch.nn.Linear(2, 2)
    with pytest.raises(FileError, match=r"it is a TorchScript archive"):
        load_weights(module, program)
    torch.save(module.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(FileError, match=r"it has the format from before torch 1\.6, .* save it again"):
        load_weights(module, tmp_path / "old.pth")
    load_weights(module, tmp_path / "old.pth", installed=True)  # as of a package, which could run code anyway
    torch.save(module.state_dict(), tmp_path / "new.pth")
    load_weights(module, tmp_path / "new.pth")
    assert not (tmp_path / "made-by-reading").exists()


def test_weights_of_a_folder_of_transformers(program: Path, tmp_path: Path) -> None:
    from evicp.extraction.huggingface_models import _refuse_programs

    (tmp_path / "pytorch_model.bin").write_bytes(program.read_bytes())
    with pytest.raises(FileError, match=r"cannot load .*pytorch_model\.bin: it is a TorchScript archive"):
        _refuse_programs(str(tmp_path))
    torch.save({"weight": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    _refuse_programs(str(tmp_path))


# ---------------------------------------------------------------------------------------------------------------
# Archives


def members(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def archive_of(path: Path, content: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, of names it writes twice
        for name, data in content:
            archive.writestr(name, data)


CHANGES: dict[str, tuple[Callable[[Path, list[tuple[str, bytes]]], Any], str]] = {
    "a file of constants": (lambda p, m: archive_of(p, [*m, ("rows/constants.pkl", b"")]), "a TorchScript archive"),
    "code": (lambda p, m: archive_of(p, [*m, ("rows/code/__torch__.py", b"")]), "a TorchScript archive"),
    "a file more": (lambda p, m: archive_of(p, [*m, ("rows/extra/model.py", b"")]), "it contains 'extra/model.py'"),
    "another root": (lambda p, m: archive_of(p, [*m, ("other/data.pkl", b"")]), "not one that torch.save writes"),
    "no tensors": (lambda p, _: archive_of(p, [("rows/version", b"3")]), "not one that torch.save writes"),
    "a member twice": (lambda p, m: archive_of(p, [*m, m[0]]), "it contains a member more than once"),
    "compressed": (lambda p, m: archive_of(p, m, zipfile.ZIP_DEFLATED), "its tensors are compressed"),
    "cut off": (lambda p, _: p.write_bytes(p.read_bytes()[:-50]), "its archive is damaged"),
    "empty": (lambda p, _: p.write_bytes(b""), "it is not a torch file"),
    "behind other bytes": (lambda p, _: p.write_bytes(b"#!" + p.read_bytes()), "it is not a torch file"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_archive_that_torch_did_not_write(tmp_path: Path, name: str) -> None:
    path = good(tmp_path / "rows.pt")
    content = members(path)
    archive_of(path, content)  # as it was, by another hand
    np.testing.assert_array_equal(inputs.read_rows(str(path)).logits, LOGITS)
    change, reason = CHANGES[name]
    change(path, content)
    with pytest.raises(FileError, match=reason):
        inputs.read_rows(str(path))


def test_a_pickle_from_before(tmp_path: Path) -> None:
    torch.save({"logits": torch.from_numpy(LOGITS)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(FileError, match=r"before torch 1\.6, a bare pickle\. If you trust it, save it again"):
        inputs.read_rows(str(tmp_path / "old.pt"))


@pytest.mark.parametrize("what", ["logits", "labels", "alone", "pair"])
def test_tensors_that_claim_more_than_the_file_holds(tmp_path: Path, what: str) -> None:
    many, one = torch.zeros(1, 1).expand(2**40, 4), torch.zeros(1, dtype=torch.int64).expand(20)
    content: Any = {
        "logits": {"logits": many},
        "labels": {"logits": torch.from_numpy(LOGITS), "labels": one},
        "alone": many,
        "pair": (torch.from_numpy(LOGITS), one),
    }[what]
    torch.save(content, tmp_path / "rows.pt")
    with pytest.raises(FileError, match=r"are expanded from fewer stored numbers\. Save \w+\.contiguous\(\)"):
        inputs.read_rows(str(tmp_path / "rows.pt"))


def test_parts_of_tensors_are_still_read(tmp_path: Path) -> None:
    wide = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 8)))
    for tensor in (wide[:, :3], wide.T, wide[::2], wide.to(torch.bfloat16)):
        torch.save(tensor, tmp_path / "rows.pt")
        np.testing.assert_array_equal(inputs.read_rows(str(tmp_path / "rows.pt")).logits, tensor.double().numpy())


# ---------------------------------------------------------------------------------------------------------------
# Versions


@pytest.mark.parametrize(
    ("version", "fine"),
    [
        ("1.13.1", False),
        ("2.2.0", False),
        ("2.5.1+cpu", False),
        ("2.6.0", False),
        ("2.9.1+cu128", False),
        ("2.10.0", True),
        ("2.13.0+cpu", True),
        ("2.10.0a0+git1234", True),
        ("3.0", True),
        ("unknown", False),
    ],
)
def test_versions_that_a_file_can_make_run_code(version: str, fine: bool) -> None:
    from evicp.io import torch_archive

    module = types.SimpleNamespace(__version__=version)
    if fine:
        torch_archive.require_version(module)
        return
    with pytest.raises(
        MissingExtraError, match=r"needs torch 2\.10 or newer; got .* \(CVE-2025-32434, CVE-2026-24747\)"
    ):
        torch_archive.require_version(module)


def test_an_old_torch_reads_no_file_at_all(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither logits nor weights, however harmless."""
    from evicp.extraction.torch_modules import load_weights

    path = good(tmp_path / "rows.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was handed to torch"))
    with pytest.raises(MissingExtraError, match=r"needs torch 2\.10"):
        inputs.read_rows(str(path))
    with pytest.raises(MissingExtraError, match=r"needs torch 2\.10"):
        load_weights(torch.nn.Linear(2, 2), path)


def test_every_extra_with_torch_asks_for_such_a_version() -> None:
    import re
    import tomllib

    project = Path(__file__).parents[3] / "pyproject.toml"
    if not project.exists():
        pytest.skip("the project's own file is not beside its tests")
    extras = tomllib.loads(project.read_text("utf-8"))["project"]["optional-dependencies"]
    bounds = [line for extra in extras.values() for line in extra if re.match(r"torch\b", line)]
    assert len(bounds) > 4
    for bound in bounds:
        major, minor = re.search(r"[>=]=(\d+)\.(\d+)", bound).groups()  # type: ignore[union-attr]
        assert (int(major), int(minor)) >= (2, 10), bound


def test_what_stands_between_cannot_ask_torch_to_unpickle(monkeypatch: Any) -> None:
    """Torch's own switch, for the time of a call, whatever the user's was."""
    import os

    from evicp.extraction.torch_modules import plain_weights

    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with plain_weights():
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
        assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_a_bit_that_was_lost_is_found(tmp_path: Path) -> None:
    """Torch writes checksums and does not compare them."""
    whole = good(tmp_path / "rows.pt").read_bytes()
    found = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (tmp_path / "damaged.pt").write_bytes(damaged)
        try:
            rows = inputs.read_rows(str(tmp_path / "damaged.pt"))
        except FileError:
            found += 1
            continue
        np.testing.assert_array_equal(rows.logits, LOGITS)
        np.testing.assert_array_equal(rows.labels, LABELS)
    assert found > len(whole) // 14
