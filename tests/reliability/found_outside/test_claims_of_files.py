"""A small file that claims much is refused by its size: nothing is allocated or counted on its word.

Memory is measured in one process for all files of a kind, which the claims of any of them would kill or swell.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import ArtifactError, FileError, InputError
from evicp.io import arrays, files

# ---------------------------------------------------------------------------------------------------------------
# Calibrations


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def forged(tensors: dict[str, np.ndarray], **changes: Any) -> bytes:
    """A calibration file whose checksum is right, whatever it describes."""
    description: dict[str, Any] = {
        "version": 1,
        "score": {"name": "lac", "parameters": {"temperature": 1.0}},
        "n": sum(len(tensor) for name, tensor in tensors.items() if name.startswith("scores")),
        "n_classes": 3,
        "class_names": None,
    }
    text = canonical(description | changes)
    digest, header, start = hashlib.sha256(text.encode()), {}, 0
    for name, tensor in tensors.items():
        digest.update(f"\0{name}\0".encode() + tensor.tobytes())
        header[name] = {"dtype": "F64", "shape": [len(tensor)], "data_offsets": [start, start + tensor.nbytes]}
        start += tensor.nbytes
    header["__metadata__"] = {"evicp": text, "sha256": digest.hexdigest()}
    raw = canonical(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + b"".join(tensor.tobytes() for tensor in tensors.values())


SCORES = np.array([0.25, 0.5])
LONG = "x" * 500_000


def by(kind: str, parts: int = 1, n_classes: int = 3, **parameters: Any) -> bytes:
    """A file by groups, of which all but the first are empty."""
    default = dataclasses.asdict(
        {"class": evicp.ByClass, "group": evicp.ByGroup, "uncertainty": evicp.ByUncertainty}[kind]()
    )
    tensors = {f"scores.{number}": SCORES if number == 0 else SCORES[:0] for number in range(parts)}
    return forged(tensors, n_classes=n_classes, groups={"by": kind, "parameters": default | parameters})


def ecp(**parameters: Any) -> bytes:
    return forged({"scores": SCORES}, score={"name": "ecp", "parameters": evicp.ECP().parameters() | parameters})


#: Calibrations that claim more than they hold -> what the refusal says.
CLAIMS: dict[str, tuple[Callable[[], bytes], str]] = {
    "20,000,000 classes": (lambda: by("class", n_classes=20_000_000), "20,000,000 groups but contains the scores of 1"),
    "10^30 classes": (lambda: forged({"scores": SCORES}, n_classes=10**30), "n_classes must be below 2^31"),
    "2^31 classes": (lambda: forged({"scores": SCORES}, n_classes=2**31), "n_classes must be below 2^31"),
    "10^30 folds": (lambda: forged({"scores": SCORES}, folds=10**30), "which is too large"),
    "10^30 rows that chose": (lambda: forged({"scores": SCORES}, chosen_on=10**30), "which is too large"),
    "a cluster 10^18": (
        lambda: by("class", 2, rare="cluster", clusters=[0, 0, 10**18]),
        "it states 2 groups but contains the scores of 2",
    ),
    "clusters of other classes": (
        lambda: by("class", 1, n_classes=2**31 - 1, rare="cluster", clusters=[0, 0, 0]),
        "clusters must have one number per class",
    ),
    "10^9 bands": (lambda: by("uncertainty", bands=10**9), "it states 0 groups"),
    "a temperature of 10^400": (
        lambda: forged({"scores": SCORES}, score={"name": "lac", "parameters": {"temperature": 10**400}}),
        "temperature must be a positive number",
    ),
    "a band of 10^400": (lambda: by("uncertainty", 2, bands=[10**400]), "it is not a calibration"),
    # NumPy would make each number as long a text as the longest.
    "text among base rates": (lambda: ecp(base_rates=[0] * 3000 + [LONG]), "its score is malformed"),
    "text among clusters": (lambda: by("class", rare="cluster", clusters=[0] * 3000 + [LONG]), "groups are malformed"),
    "text among bands": (lambda: by("uncertainty", bands=[0] * 3000 + [LONG]), "its groups are malformed"),
    "text among groups": (lambda: by("group", groups=[0] * 3000 + [LONG]), "its groups are malformed"),
}


def by_named_groups() -> bytes:
    """A good file of many groups, one of them with a long name."""
    names = sorted([f"g{number:04d}" for number in range(3000)] + [LONG])
    tensors = {f"scores.{number}": SCORES if number == 0 else SCORES[:0] for number in range(len(names))}
    return forged(tensors, groups={"by": "group", "parameters": {"groups": names}})


#: Good files, which load within the same bound.
GOOD: dict[str, Callable[[], bytes]] = {
    "classes without rows": lambda: by("class", 3),
    "2^31 - 1 classes": lambda: forged({"scores": SCORES}, n_classes=2**31 - 1),
    "a long name among many groups": by_named_groups,
    "weights of 4,000,000 rows": lambda: forged(
        {"scores": np.arange(4e6), "weights": np.ones(4_000_000)}, weights="rows"
    ),
}

MEASURE = """
    import sys
    from pathlib import Path
    import evicp
    from evicp import blocks
    from evicp.io import files

    def status(name):
        return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) * 1024

    def work(path):
        if sys.argv[1] == "load":
            return evicp.load(path)
        return blocks.predict(calibration, blocks.open_rows(path, memory="4MiB"), 0.9, "sets.npz")

    if sys.argv[1] != "load":
        calibration = evicp.load("warm.safetensors")
        blocks.predict(calibration, "warm.npz", 0.9, "sets.npz")
    for path in sorted(Path("claims").iterdir()):
        open("/proc/self/clear_refs", "w").write("5")
        before = status("VmRSS")
        try:
            work(path)
            outcome = "taken"
        except evicp.EvicpError as error:
            outcome = type(error).__name__
        print(outcome, status("VmHWM") - before - path.stat().st_size, sep="\\t")
"""


def measured(folder: Path, what: str, names: list[str]) -> dict[str, tuple[str, int]]:
    """What becomes of each of the files in `claims`, and the memory it takes above its size, in one process."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("needs a resettable high-water mark of memory (Linux)")
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), what]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: (outcome, int(taken)) for name, (outcome, taken) in zip(names, lines, strict=True)}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_calibration_that_claims_more_than_it_holds(tmp_path: Path, name: str) -> None:
    make, reason = CLAIMS[name]
    (tmp_path / "cal.safetensors").write_bytes(make())
    with pytest.raises(ArtifactError) as caught:
        evicp.load(tmp_path / "cal.safetensors")
    assert reason in str(caught.value)


def test_loading_any_of_them_takes_no_more_than_the_file_and_64_mib(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    made = {name: make for name, (make, _) in CLAIMS.items()} | GOOD
    for number, make in enumerate(made.values()):
        (tmp_path / "claims" / f"{number:02d}.safetensors").write_bytes(make())
    found = measured(tmp_path, "load", list(made))
    assert {name for name, (outcome, _) in found.items() if outcome == "taken"} == set(GOOD)
    assert {name: taken for name, (_, taken) in found.items() if taken > 64 * 2**20} == {}


def test_groups_with_a_long_name_are_found_as_before(tmp_path: Path) -> None:
    """Names are looked for without an array that has room for the longest."""
    (tmp_path / "cal.safetensors").write_bytes(by_named_groups())
    calibration = evicp.load(tmp_path / "cal.safetensors")
    logits = np.eye(3)
    assert calibration.groups_of(logits, ["g0000", "g2999", "g0007"]).tolist() == ["g0000", "g2999", "g0007"]
    with pytest.raises(InputError, match=r"got g9999 at row 1"):
        calibration.groups_of(logits[:2], ["g0000", "g9999"])
    numbers = evicp.calibrate(np.eye(3)[[0, 1, 2] * 9] * 3, [0, 1, 2] * 9, "lac", by=[4, -2, 9] * 9)
    assert numbers.groups_of(logits, [9, 4, -2]).tolist() == ["9", "4", "-2"]
    for unknown in (5, -3, 10):
        with pytest.raises(InputError, match=rf"got {unknown} at row 0"):
            numbers.groups_of(logits[:1], [unknown])


# ---------------------------------------------------------------------------------------------------------------
# Logits


def npy(shape: Any, data: bytes = b"", descr: str = "<f8", *, by_column: bool = False) -> bytes:
    header = repr({"descr": descr, "fortran_order": by_column, "shape": shape}).encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(path: Path, content: bytes, method: int = zipfile.ZIP_STORED, name: str = "logits") -> None:
    with zipfile.ZipFile(path, "a", method) as archive:
        archive.writestr(f"{name}.npy", content)


def with_claimed_size(path: Path, content: bytes, claimed: int) -> None:
    """A deflated npz whose directory claims that its array has more bytes."""
    npz(path, content, zipfile.ZIP_DEFLATED)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\x01\x02") + 24
    whole[at : at + 4] = struct.pack("<I", claimed)
    path.write_bytes(whole)


def safetensors(shape: list[int], data: bytes = b"") -> bytes:
    header = json.dumps({"logits": {"dtype": "F64", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


ROW = np.array([2.0, 1.0, 0.0, 0.0]).tobytes()

#: Files of logits that claim more than they hold: name -> what writes them.
ROWS: dict[str, Callable[[Path], Any]] = {
    "2^62 rows of no classes.npz": lambda p: npz(p, npy((2**62, 0))),
    "2^62 rows of no classes, deflated.npz": lambda p: npz(p, npy((2**62, 0)), zipfile.ZIP_DEFLATED),
    "2^62 rows of no classes.npy": lambda p: p.write_bytes(npy((2**62, 0))),
    "2^62 rows of no classes.safetensors": lambda p: p.write_bytes(safetensors([2**62, 0])),
    "2^62 labels of no letters.npz": lambda p: (
        npz(p, npy((2**62,), descr="<U0"), name="labels"),
        npz(p, npy((1, 4), ROW)),
    ),
    "2^62 rows of nothing.npy": lambda p: p.write_bytes(npy((2**62,), descr="|V0")),
    "2^62 rows.npz": lambda p: npz(p, npy((2**62, 4), ROW)),
    "2^62 rows, deflated.npz": lambda p: npz(p, npy((2**62, 4), ROW), zipfile.ZIP_DEFLATED),
    "2^62 rows.npy": lambda p: p.write_bytes(npy((2**62, 4), ROW)),
    "2^62 rows, packed by bzip2.npz": lambda p: npz(p, npy((2**62, 4), ROW), zipfile.ZIP_BZIP2),
    "2^40 rows by column, deflated.npz": lambda p: npz(p, npy((2**40, 4), ROW, by_column=True), zipfile.ZIP_DEFLATED),
    "a negative number of rows.npy": lambda p: p.write_bytes(npy((-5, 4), ROW)),
    "a row too many.npz": lambda p: npz(p, npy((2, 4), ROW)),
    "a row too few.npz": lambda p: npz(p, npy((1, 4), 2 * ROW)),
    "a row too few, deflated.npz": lambda p: npz(p, npy((1, 4), 2 * ROW), zipfile.ZIP_DEFLATED),
    "more than deflate can hold.npz": lambda p: with_claimed_size(
        p, npy((100_000, 4), ROW), len(npy((100_000, 4))) + 3_200_000
    ),
    "rows twice.npz": lambda p: (npz(p, npy((1, 4), ROW)), npz(p, npy((1, 4), ROW))),
    "rows twice, once without a suffix.npz": lambda p: (
        npz(p, npy((1, 4), ROW)),
        zipfile.ZipFile(p, "a").writestr("logits", npy((1, 4), ROW)),
    ),
}


def write(name: str, folder: Path) -> Path:
    path = folder / name
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, of names it writes twice
        ROWS[name](path)
    return path


@pytest.mark.parametrize("name", ROWS)
def test_logits_that_claim_more_than_they_hold(tmp_path: Path, name: str) -> None:
    path = write(name, tmp_path)
    for read in (blocks.open_rows, files.read_logits):
        with pytest.raises(FileError, match=r"^cannot read .*: it"):
            read(path)


def test_predicting_any_of_them_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    logits = np.random.default_rng(0).normal(size=(500, 4))
    evicp.calibrate(logits, np.arange(500) % 4, "lac").save(tmp_path / "warm.safetensors")
    np.savez(tmp_path / "warm.npz", logits=logits)
    for name in ROWS:
        write(name, tmp_path / "claims")
    found = measured(tmp_path, "predict", sorted(ROWS))
    assert {name: outcome for name, (outcome, _) in found.items() if outcome != "FileError"} == {}
    assert {name: taken for name, (_, taken) in found.items() if taken > 32 * 2**20} == {}


def test_good_files_are_read_as_before(tmp_path: Path) -> None:
    """None of the bounds is met by a file that NumPy or safetensors writes."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    for logits in (
        rng.normal(size=(7, 3)),
        np.zeros((4000, 50)),
        np.empty((0, 3)),
        np.asfortranarray(rng.normal(size=(5, 3))),
    ):
        labels = np.arange(len(logits)) % 3
        np.savez(tmp_path / "a.npz", logits=logits, labels=labels)
        np.savez_compressed(tmp_path / "b.npz", logits=logits, labels=labels)
        save_file({"logits": np.ascontiguousarray(logits), "labels": labels}, tmp_path / "c.safetensors")
        np.save(tmp_path / "logits.npy", logits)
        np.save(tmp_path / "labels.npy", labels)
        for name in ("a.npz", "b.npz", "c.safetensors", "logits.npy"):
            rows = blocks.open_rows(tmp_path / name)
            np.testing.assert_array_equal(rows.logits, logits)
            np.testing.assert_array_equal(rows.labels, labels)
            np.testing.assert_array_equal(np.concatenate([block.logits.copy() for block in rows]), logits)


def test_rows_are_counted_off_one_by_one_and_not_ahead(tmp_path: Path) -> None:
    """A file of very many short rows, mostly a hole, read a row at a time: what is next is not computed before."""
    rows = 2**33
    with (tmp_path / "logits.npy").open("wb") as file:
        file.write(npy((rows, 2), descr="|u1"))
        file.truncate(file.tell() + 2 * rows)
    pieces = arrays.open_npy(tmp_path / "logits.npy").pieces(1)
    assert next(pieces).tolist() == [[0, 0]]
    pieces.close()


def test_a_parquet_footer_that_claims_other_rows(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    longer = [[1.0, 2.0]] * 50 + [[0.0] * 100_000]
    pq.write_table(pa.table({"logits": longer}), tmp_path / "long.parquet")
    with pytest.raises(FileError, match=r"row group 0 has 100,100 numbers in 51 rows, the first row 2"):
        blocks.open_rows(tmp_path / "long.parquet")
    pq.write_table(
        pa.table({"logits": [[]] * 1000}, schema=pa.schema({"logits": pa.list_(pa.float64())})), tmp_path / "no.parquet"
    )
    with pytest.raises(FileError, match=r"rows without content: shape \(1000, 0\)"):
        blocks.open_rows(tmp_path / "no.parquet")
    pq.write_table(pa.table({"logits": [[1.0, 2.0]] * 9}), tmp_path / "short.parquet")
    (part,) = blocks.open_rows(tmp_path / "short.parquet").files
    claimed = dataclasses.replace(part.logits, shape=(12, 2))
    with pytest.raises(FileError, match=r"it ends after 9 of its 12 rows"):
        list(claimed.pieces(5))


# ---------------------------------------------------------------------------------------------------------------
# Sets


def sets_file(path: Path, compressed: bool = False, about: dict[str, Any] | None = None, **arrays: Any) -> None:
    """A file of two sets of three classes, changed."""
    files.write_sets(evicp.PredictionSets.from_lists([[0], [1, 2]], n_classes=3, coverage=0.9), path)
    with np.load(path) as good:
        parts = dict(good)
    text = json.dumps(json.loads(str(parts["about"])) | (about or {}))
    (np.savez_compressed if compressed else np.savez)(path, **{**parts, "about": np.array(text), **arrays})


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"about": {"n_classes": 10**30}}, r"n_classes must be below 2\^31"),
        ({"about": {"n_classes": 2**31 - 1}}, r"it states 2,147,483,647 classes; a file of its size has at most"),
        ({"about": {"n_calibration": 10**30}}, "which is too large"),
        ({"about": {"coverage": f"1/{10**4000}"}}, "its description is malformed"),
        ({"about": {"class_names": ["a", None, "b"]}}, "class_names must be strings; got None"),
        ({"offsets": np.array([0, 4, 3])}, "do not match|not "),
        ({"offsets": np.array([0, 1, 2**62])}, "do not match"),
        ({"labels": np.array([0, 1, 3], np.int32)}, r"labels are not in \[0, 3\)"),
    ],
)
def test_sets_that_claim_more_than_they_hold(
    tmp_path: Path, changes: dict[str, Any], reason: str, compressed: bool
) -> None:
    sets_file(tmp_path / "sets.npz", compressed, **changes)
    with pytest.raises(FileError, match=reason):
        files.read_sets(tmp_path / "sets.npz")
    np.savez(tmp_path / "rows.npz", logits=np.eye(3)[:2], labels=[0, 1])
    with pytest.raises(FileError, match=reason):
        blocks.evaluate(tmp_path / "sets.npz", tmp_path / "rows.npz")


def test_damaged_sets_in_npz_are_not_read_as_others(tmp_path: Path) -> None:
    """Whatever bit of the labels or offsets was lost: the archive has a checksum of each array."""
    sets = evicp.PredictionSets.from_lists([[0, 1], [2], [], [1]] * 1000, n_classes=3, coverage=0.9)
    files.write_sets(sets, tmp_path / "sets.npz")
    whole = (tmp_path / "sets.npz").read_bytes()
    for place in range(0, len(whole), 111):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (tmp_path / "damaged.npz").write_bytes(damaged)
        try:
            read = files.read_sets(tmp_path / "damaged.npz")
        except FileError:
            continue
        assert read == sets, place
