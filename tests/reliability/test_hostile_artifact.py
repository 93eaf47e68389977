"""A calibration file is read without trusting a byte: one typed error, quickly, in little memory, nothing executed."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import ArtifactError, SuspiciousInputWarning

pytestmark = pytest.mark.reliability

SOURCE = Path(evicp.__file__).parent
SCORES = np.array([-3.5, -1.25, -1.25, 0.0, 2.0, np.inf])
DESCRIPTION = {
    "version": 1,
    "score": {"name": "raps", "parameters": evicp.RAPS().parameters()},
    "n": 6,
    "n_classes": 3,
    "class_names": ["cat", "dog", "eel"],
}


# ---------------------------------------------------------------------------------------------------------------
# A forger who knows the format


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256(description: str, data: bytes) -> str:
    return hashlib.sha256(description.encode() + b"\0scores\0" + data).hexdigest()


def framed(header: str | bytes, data: bytes, length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    raw += b" " * (-len(raw) % 8)
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def tensor(n: int, **changes: Any) -> dict[str, Any]:
    return {"dtype": "F64", "shape": [n], "data_offsets": [0, 8 * n]} | changes


def forged(description: str | None = None, scores: Any = SCORES, **changes: Any) -> bytes:
    """A file with a checksum that is right, whatever it describes; `changes` replace fields of its description."""
    data = np.ascontiguousarray(scores, "<f8").tobytes()
    content = {k: v for k, v in (DESCRIPTION | changes).items() if v is not ABSENT}
    text = canonical(content) if description is None else description
    metadata = {"evicp": text, "sha256": sha256(text, data)}
    return framed(canonical({"__metadata__": metadata, "scores": tensor(len(data) // 8)}), data)


def with_header(change: Callable[[dict[str, Any]], Any], data: bytes | None = None) -> bytes:
    """The good file with its header changed after the checksum was taken."""
    good = forged()
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    replaced = change(header)
    return framed(canonical(header if replaced is None else replaced), good[8 + length :] if data is None else data)


def doubled_key(key: str, before: str) -> bytes:
    """The good file with a key of its header given once more, before the true one."""
    good = forged()
    length = int.from_bytes(good[:8], "little")
    return framed(good[8 : 8 + length].decode().replace(key, before + key, 1), good[8 + length :])


def with_score(name: Any = "raps", **changes: Any) -> bytes:
    parameters = {k: v for k, v in (evicp.RAPS().parameters() | changes).items() if v is not ABSENT}
    return forged(score={"name": name, "parameters": parameters})


def ecp(**changes: Any) -> bytes:
    parameters = evicp.ECP().parameters() | changes
    return forged(score={"name": "ecp", "parameters": parameters})


ABSENT = object()


def of_parts(parts: dict[str, Any], **changes: Any) -> bytes:
    """A file of several tensors (groups, weights) with a checksum that is right, whatever it describes."""
    arrays = {name: np.asarray(values, "<f8") for name, values in parts.items()}
    text = canonical({k: v for k, v in (DESCRIPTION | changes).items() if v is not ABSENT})
    digest, layout, start = hashlib.sha256(text.encode()), {}, 0
    for name, array in arrays.items():
        digest.update(f"\0{name}\0".encode() + array.tobytes())
        layout[name] = tensor(len(array), data_offsets=[start, start + array.nbytes])
        start += array.nbytes
    metadata = {"evicp": text, "sha256": digest.hexdigest()}
    return framed(canonical({"__metadata__": metadata, **layout}), b"".join(a.tobytes() for a in arrays.values()))


def by_class(parts: int = 3, by: Any = "class", groups: Any = None, scores: Any = SCORES, **changes: Any) -> bytes:
    """A file by class, two scores for each of three classes; `changes` replace parameters of the grouping."""
    whole = {field.name: getattr(evicp.ByClass(), field.name) for field in dataclasses.fields(evicp.ByClass)}
    parameters = {k: v for k, v in (whole | changes).items() if v is not ABSENT}
    stored = {"by": by, "parameters": parameters} if groups is None else groups
    named = {f"scores.{i}": part for i, part in enumerate(np.array_split(scores, parts))}
    return of_parts(named, groups=stored)


def of_true_rows() -> bytes:
    """A file by class whose last group has one score, or `true` of them."""
    good = by_class(scores=SCORES[:5])
    length = int.from_bytes(good[:8], "little")
    return framed(good[8 : 8 + length].replace(b'"shape":[1]', b'"shape":[true]'), good[8 + length :])


def weighted(rows: Any = (1.0,) * 6, classes: Any = (1.0,) * 3, kind: Any = "classes") -> bytes:
    """A file with weights of its rows, and of its classes."""
    parts = {"scores": SCORES, "weights": rows} | ({} if classes is None else {"class_weights": classes})
    return of_parts(parts, weights=kind)


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("scores.npy", bytes(2**26))
    return buffer.getvalue()


class Harmful:
    """Unpickling it would leave a mark."""

    def __reduce__(self) -> Any:
        return os.system, ("touch unpickled",)


def checkpoint() -> bytes:
    """What a torch checkpoint is: a zip of a pickle and raw tensors."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Harmful()))
        archive.writestr("archive/data/0", bytes(64))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, scores=SCORES)
    return buffer.getvalue()


def other_safetensors(**arrays: np.ndarray) -> bytes:
    from safetensors.numpy import save

    return save(arrays)


GOOD_TEXT = canonical(DESCRIPTION)
DEEP = "[" * 50_000 + "]" * 50_000

#: Attack -> (file, what the refusal says).
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    # not the format
    "empty file": (lambda: b"", "its header states 0 bytes"),
    "seven bytes": (lambda: bytes(7), "its header states 0 bytes"),
    "header of length 0": (lambda: framed(b"", SCORES.tobytes(), 0), "it is not a calibration"),
    "header beyond the file": (lambda: framed("{}", b"", 10**6), "its header states 1,000,000 bytes"),
    "header one byte too long": (lambda: framed("{}", b"", 9), "its header states 9 bytes"),
    "header of length 2^63": (lambda: framed("{}", b"", 2**63), "its header states 9,223,372,036,854,775,808 bytes"),
    "header of length 2^64 - 1": (lambda: framed("{}", b"", 2**64 - 1), "its header states 18,446,744,073,709"),
    "a header larger than any": (lambda: framed(b" " * 2**22, b""), "its header states 4,194,304 bytes"),
    "invalid UTF-8": (lambda: framed(b'{"\xff\xfe":1}', b""), "it is not a calibration ('utf-8' codec"),
    "a byte order mark": (lambda: framed(b"\xef\xbb\xbf{}", b""), "it is not a calibration"),
    "a header that is no JSON": (lambda: framed("{'scores': 1}", b""), "it is not a calibration"),
    "a header that is a list": (lambda: framed("[]", b""), "its description is not an object"),
    "text after the header's JSON": (lambda: framed("{} {}", b""), "it is not a calibration"),
    "a deep header": (lambda: framed(DEEP, b""), "nested more deeply"),
    "a deep description": (lambda: forged(DEEP), "more parts than any calibration"),
    "deep objects": (lambda: forged('{"a":' * 1000 + "1" + "}" * 1000), "more parts than any calibration"),
    # a little more than as many groups as fit could have
    "a header of many lists": (
        lambda: framed(f'{{"a":[{"[]," * 110_000}1]}}', b""),
        "more parts than any calibration.",
    ),
    "many objects": (lambda: framed(f'{{"a":[{"{}," * 60_000}1]}}', b""), "more parts than any calibration."),
    "many keys": (lambda: framed(canonical(dict.fromkeys(range(215_000), 0)), b""), "more parts than any calibration."),
    "an endless string": (lambda: framed('"' + '\\"' * 10**6, b""), "it is not a calibration"),
    "a number of 5,000 digits": (lambda: forged(GOOD_TEXT.replace('"n":6', '"n":' + "9" * 5000)), "integer string"),
    "a pickle": (lambda: pickle.dumps(Harmful()), "its header states"),
    "a pickle behind a header": (lambda: framed(pickle.dumps(Harmful()), b""), "it is not a calibration"),
    "a torch checkpoint": (checkpoint, "its header states"),
    "a zip bomb": (zip_bomb, "its header states"),
    "an npz file": (npz, "its header states"),
    # duplicate keys
    "scores twice": (lambda: doubled_key('"scores":', '"scores":{"dtype":"F64"},'), "a key occurs twice"),
    "checksum twice": (lambda: doubled_key('"sha256":', '"sha256":"",'), "a key occurs twice"),
    "n twice": (lambda: forged(GOOD_TEXT.replace('"n":6', '"n":5,"n":6')), "a key occurs twice"),
    "version twice, equal": (lambda: forged(GOOD_TEXT[:-1] + ',"version":1}'), "a key occurs twice"),
    # other parts than a calibration's
    "no metadata": (lambda: other_safetensors(scores=SCORES), "not one written by evicp"),
    "other tensors": (lambda: other_safetensors(weight=np.ones((2, 2))), "it must contain one F64 tensor"),
    "one tensor more": (
        lambda: with_header(lambda h: h.update(extra=tensor(0))),
        "it must contain one F64 tensor",
    ),
    "no tensor": (lambda: with_header(lambda h: h.pop("scores") and None, b""), "it must contain one F64 tensor"),
    "metadata that is a list": (lambda: with_header(lambda h: h.update(__metadata__=[])), "not one written by evicp"),
    "metadata of another program": (
        lambda: with_header(lambda h: h.update(__metadata__={"format": "pt"})),
        "not one written by evicp",
    ),
    "metadata with one key more": (
        lambda: with_header(lambda h: h["__metadata__"].update(run="rm -rf /")),
        "not one written by evicp",
    ),
    "no checksum": (
        lambda: with_header(lambda h: h["__metadata__"].pop("sha256") and None),
        "not one written by evicp",
    ),
    "a checksum of another file": (
        lambda: with_header(lambda h: h["__metadata__"].update(sha256="0" * 64)),
        "its checksum does not match",
    ),
    "a checksum that is a number": (
        lambda: with_header(lambda h: h["__metadata__"].update(sha256=0)),
        "its description and checksum must be text",
    ),
    "an empty checksum": (lambda: with_header(lambda h: h["__metadata__"].update(sha256="")), "its checksum does not"),
    "a description that is an object": (
        lambda: with_header(lambda h: h["__metadata__"].update(evicp=DESCRIPTION)),
        "its description and checksum must be text",
    ),
    "one score changed": (lambda: forged()[:-8] + np.float64(7.0).tobytes(), "its checksum does not match"),
    "one name changed": (lambda: forged().replace(b"dog", b"dug"), "its checksum does not match"),
    # tensors that do not fit
    **{
        f"tensor {name}": (
            lambda c=changes: with_header(lambda h: h.update(scores=tensor(6, **c))),
            "it must contain one F64",
        )
        for name, changes in {
            "F32": {"dtype": "F32"},
            "I64": {"dtype": "I64"},
            "BF16": {"dtype": "BF16", "shape": [24]},
            "of unknown type": {"dtype": "__import__('os')"},
            "of overflowing shape": {"shape": [2**61]},
            "whose shape overflows as a product": {"shape": [2**32, 2**32]},
            "of negative shape": {"shape": [-6]},
            "of shape (6, 1)": {"shape": [6, 1]},
            "of shape ()": {"shape": []},
            "of shape 6.0": {"shape": [6.0]},
            "of shape true": {"shape": [True]},
            "beyond the end": {"data_offsets": [0, 2**40], "shape": [2**37]},
            "from elsewhere": {"data_offsets": [8, 56]},
            "backwards": {"data_offsets": [48, 0]},
            "with a field more": {"device": "cuda"},
        }.items()
    },
    "bytes after the scores": (lambda: forged() + bytes(8), "it must contain one F64 tensor"),
    "three bytes after the scores": (lambda: forged() + b"abc", "it must contain one F64 tensor"),
    "a score too few": (lambda: forged()[:-8], "it must contain one F64 tensor"),
    # scores
    "unsorted scores": (lambda: forged(scores=SCORES[::-1]), "its scores are not ascending numbers"),
    "two scores exchanged": (lambda: forged(scores=SCORES[[0, 2, 1, 4, 3, 5]]), "its scores are not ascending numbers"),
    "scores exchanged far behind": (
        lambda: forged(scores=np.r_[np.ones(2**20), 0.0], n=2**20 + 1),  # they are looked at in steps of so many
        "its scores are not ascending numbers",
    ),
    "a NaN among the scores": (lambda: forged(scores=[-1, 0, np.nan, 1, 2, 3]), "its scores are not ascending numbers"),
    "a NaN at the end": (lambda: forged(scores=[-1, 0, 1, 2, 3, np.nan]), "its scores are not ascending numbers"),
    "a NaN at the start": (lambda: forged(scores=[np.nan, 0, 1, 2, 3, 4]), "its scores are not ascending numbers"),
    "only a NaN": (lambda: forged(scores=[np.nan], n=1), "its scores are not ascending numbers"),
    "no scores": (lambda: forged(scores=[], n=0), "n must be at least 1; got 0"),
    # description
    "a description that is no JSON": (lambda: forged("import os"), "it is not a calibration"),
    "a description that is a string": (lambda: forged('"n"'), "its description is not an object"),
    "NaN for n": (lambda: forged(GOOD_TEXT.replace('"n":6', '"n":NaN')), "its description contains NaN"),
    "Infinity for lam": (
        lambda: forged(GOOD_TEXT.replace('"lam":0.1', '"lam":Infinity')),
        "its description contains Inf",
    ),
    "-Infinity for lam": (lambda: forged(GOOD_TEXT.replace('"lam":0.1', '"lam":-Infinity')), "contains -Infinity"),
    "1e999 for lam": (lambda: forged(GOOD_TEXT.replace('"lam":0.1', '"lam":1e999')), "lam must be a number >= 0"),
    "version 2": (lambda: forged(version=2), "its format is version 2; this version of evicp reads version 1"),
    "version as text": (lambda: forged(version="1"), "its format is version '1'"),
    "no version": (lambda: forged(version=ABSENT), "its format is version None"),
    "an unknown field": (lambda: forged(hook="os.system"), "its description has the fields"),
    "a field missing": (lambda: forged(class_names=ABSENT), "its description has the fields"),
    "n too large": (lambda: forged(n=7), "it states n = 7 but contains 6 scores"),
    "n negative": (lambda: forged(n=-6), "n must be at least 1; got -6"),
    "n as text": (lambda: forged(n="6"), "n must be a whole number"),
    "n as float": (lambda: forged(n=6.0), "n must be a whole number"),
    "n as bool": (lambda: forged(n=True, scores=[1.0]), "n must be a whole number"),
    "K of 1": (lambda: forged(n_classes=1, class_names=None), "n_classes must be at least 2; got 1"),
    "K as float": (lambda: forged(n_classes=2.5, class_names=None), "n_classes must be a whole number"),
    "K that is null": (lambda: forged(n_classes=None), "n_classes must be a whole number"),
    "K without its names": (lambda: forged(n_classes=4), "got 3 names for 4 classes"),
    "names with NUL": (lambda: forged(class_names=["a", "b\0c", "d"]), "contains a control character"),
    "names with an escape sequence": (
        lambda: forged(class_names=["a", "\x1b[2J", "d"]),
        "contains a control character",
    ),
    "names with half a character": (
        lambda: forged(GOOD_TEXT.replace("dog", "\\ud83d")),
        "contains a control character",
    ),
    "names that are numbers": (lambda: forged(class_names=[1, 2, 3]), "its class names are not strings"),
    "names that are one string": (lambda: forged(class_names="abc"), "its class names are not strings"),
    "names that are an object": (lambda: forged(class_names={"a": 1}), "its class names are not strings"),
    "nested names": (lambda: forged(class_names=[["a"], "b", "c"]), "its class names are not strings"),
    "columns that are numbers": (lambda: forged(columns=[1, 2, 3]), "its columns are not strings"),
    "numbers that are no numbers": (lambda: forged(numbered=True), "states that its class names are numbers"),
    "numbers without names": (
        lambda: forged(numbered=True, class_names=None),
        "states that its class names are numbers",
    ),
    "a number for numbered": (lambda: forged(numbered=1), "it states whether its class names are numbers as 1"),
    "too few columns": (lambda: forged(columns=["a", "b"]), "it has 2 columns for 3 classes"),
    "a source that is text": (lambda: forged(source="resnet"), "a source must have a name"),
    "a source without a name": (lambda: forged(source={"file": "val.npz"}), "a source must have a name"),
    "a source that says more": (lambda: forged(source={"name": "resnet", "code": "os"}), "a source must have a name"),
    "a source with a number": (lambda: forged(source={"name": 7}), "a source's name must be text"),
    "a source with an escape": (lambda: forged(source={"name": "\x1b[2J"}), "contains a control character"),
    "a source of great length": (lambda: forged(source={"name": "x" * 70_000}), "must have at most 65,536 letters"),
    # scores that do not exist
    "a score that is text": (lambda: forged(score="raps"), "its score is malformed"),
    "a score that is null": (lambda: forged(score=None), "its score is malformed"),
    "a score with a field more": (
        lambda: forged(score=DESCRIPTION["score"] | {"module": "os"}),
        "its score is malformed",
    ),
    "a score whose name is a list": (lambda: with_score(["raps"]), "its score is malformed"),
    "parameters that are a list": (lambda: forged(score={"name": "lac", "parameters": []}), "its score is malformed"),
    "an unknown score": (lambda: with_score("os.system"), "which this version of evicp does not know"),
    "a dunder": (lambda: with_score("__class__"), "which this version of evicp does not know"),
    "a score that is not conformal": (
        lambda: forged(score={"name": "base", "parameters": evicp.Base().parameters()}),
        '"base" is not conformal',
    ),
    "another score's parameters": (lambda: with_score("lac"), "which this version of evicp does not know"),
    "a parameter missing": (lambda: with_score(lam=ABSENT), "which this version of evicp does not know"),
    "a parameter more": (lambda: with_score(function="print"), "which this version of evicp does not know"),
    "a function": (lambda: with_score("custom"), "it was made with your own function or class"),
    "a function inside": (lambda: ecp(evidence="custom"), "it was made with your own function or class"),
    "lam negative": (lambda: with_score(lam=-0.1), "lam must be a number >= 0; got -0.1"),
    "lam as text": (lambda: with_score(lam="0.1"), "lam must be a number >= 0; got '0.1'"),
    "lam as a list": (lambda: with_score(lam=[0.1]), "lam must be a number >= 0; got [0.1]"),
    "lam null": (lambda: with_score(lam=None), "lam must be a number >= 0; got None"),
    "temperature zero": (lambda: with_score(temperature=0), "temperature must be a positive number; got 0"),
    "temperature true": (lambda: with_score(temperature=True), "temperature must be a positive number; got True"),
    "k_reg a fraction": (lambda: with_score(k_reg=1.5), "k_reg must be a whole number; got 1.5"),
    "a seed of 33 bits": (lambda: with_score(seed=2**32), "seed must be in [0, 2^32); got 4294967296"),
    "a flag as text": (lambda: with_score(randomized="False"), "randomized must be True or False; got 'False'"),
    "evidence that is code": (lambda: ecp(evidence="__import__('os')"), "evidence must be one of"),
    "evidence that is a list": (lambda: ecp(evidence=["relu"]), "evidence must be one of relu, softplus, exp"),
    "a utility that is code": (lambda: ecp(utility="os.system"), "utility must be a callable"),
    "a stabilizer that is a word": (lambda: ecp(stabilizer="huge"), 'stabilizer must be a number >= 0 or "scaled"'),
    "base rates of another K": (lambda: ecp(base_rates=[0.5, 0.5]), "got 2 for 3 classes"),
    "base rates of zero": (lambda: ecp(base_rates=[0.5, 0.5, 0.0]), "base_rates must be one number in (0, 1)"),
    "nested base rates": (lambda: ecp(base_rates=[[0.5], [0.5]]), "its score is malformed"),
    "more groups than classes": (lambda: by_class(6), "it states 3 groups but contains the scores of 6"),
    "fewer groups than classes": (lambda: by_class(2), "it states 3 groups but contains the scores of 2"),
    "a group of true scores": (of_true_rows, "it must contain one F64 tensor"),
    "one unsorted group": (lambda: by_class(scores=[0, 1, 0, 1, 1, 0]), "its scores are not ascending numbers"),
    "a group that is NaN": (lambda: by_class(scores=[0, 1, np.nan, 1, 0, 1]), "its scores are not ascending numbers"),
    "groups by nothing known": (lambda: by_class(by="os.system"), "kind of groups, 'os.system', is not known"),
    "groups by a number": (lambda: by_class(by=3), "its groups are malformed"),
    "groups that are a list": (lambda: by_class(groups=[1]), "its groups are malformed"),
    "groups with one field more": (lambda: by_class(code="x"), "kind of groups, 'class', is not known"),
    "groups with one field less": (lambda: by_class(seed=ABSENT), "kind of groups, 'class', is not known"),
    "groups still to be found": (lambda: by_class(rare="cluster"), "it states 0 groups but contains the scores of 3"),
    "clusters of another K": (lambda: by_class(2, clusters=[0, 1]), "clusters must have one number per class"),
    "clusters numbered with gaps": (lambda: by_class(2, clusters=[0, 5, 5]), "it states 2 groups"),
    "groups without tensors of theirs": (lambda: forged(groups={}), "its description has the fields"),
    "negative weights": (lambda: weighted(rows=[1, 1, 1, 1, 1, -1]), "weights must be finite and >= 0"),
    "weights that are NaN": (lambda: weighted(rows=[1, 1, 1, 1, 1, np.nan]), "weights must be finite and >= 0"),
    "weights that are all zero": (lambda: weighted(rows=[0] * 6), "weights must not all be 0"),
    "fewer weights than scores": (lambda: weighted(rows=[1] * 5), "weights must"),
    "class weights of another K": (lambda: weighted(classes=[1, 1]), "class_weights must"),
    "class weights not spoken of": (lambda: weighted(kind="rows"), "it states weights of 'rows'"),
    "class weights that are not there": (lambda: weighted(classes=None), "it states weights of 'classes'"),
    "base rates in text": (lambda: ecp(base_rates="uniform"), "base_rates must be an array"),
}


def refused(path: Path) -> str:
    """Load must fail with one ArtifactError, of one line, that names the file, within a second."""
    start = time.process_time()
    with pytest.raises(ArtifactError) as caught:
        evicp.load(path)
    assert time.process_time() - start < 1.0
    assert type(caught.value) is ArtifactError
    message = str(caught.value)
    assert message.startswith(f"cannot load {path}: ")
    assert "\n" not in message
    return message.removeprefix(f"cannot load {path}: ")


def test_the_forger_can_make_a_good_file(tmp_path: Path) -> None:
    """Otherwise every attack below would fail for the wrong reason."""
    path = tmp_path / "cal.safetensors"
    path.write_bytes(forged())
    expected = evicp.Calibration(evicp.RAPS(), SCORES, 3, ("cat", "dog", "eel"))
    assert evicp.load(path) == expected
    expected.save(path, overwrite=True)
    assert path.read_bytes() == forged()
    path.write_bytes(ecp(base_rates=[0.5, 0.25, 0.25]))
    assert evicp.load(path).score == evicp.ECP(base_rates=(0.5, 0.25, 0.25))
    path.write_bytes(with_header(lambda header: None))
    assert evicp.load(path) == expected
    path.write_bytes(by_class())
    assert evicp.load(path).guarantee == "class"
    path.write_bytes(weighted())
    assert evicp.load(path).guarantee == "weighted"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build, reason = ATTACKS[attack]
    path = tmp_path / "cal.safetensors"
    path.write_bytes(build())
    assert reason in refused(path)
    assert list(tmp_path.iterdir()) == [path]  # nothing was unpickled, nothing written


def test_there_are_enough_attacks(figure: Callable) -> None:
    figure("attacks", len(ATTACKS))
    assert len(ATTACKS) >= 100


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "<script>alert(1)</script>", "{0.__class__}", "%s%n", "$(rm -rf /)"]
)
def test_names_are_text_and_stay_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cal.safetensors"
    path.write_bytes(forged(class_names=["a", name, "c"]))
    calibration = evicp.load(path)
    assert calibration.class_names == ("a", name, "c")
    with pytest.warns(SuspiciousInputWarning, match="true label scores"):
        sets = calibration.predict([[0.0, 5.0, 1.0]], 0.8)
    assert name in sets.names(0)
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------------------------
# Damage


def smallest(kind: str) -> evicp.Calibration:
    logits, labels = np.array([[2.0, 0.0], [1.0, 1.5], [0.5, 0.0]]), np.array([0, 1, 0])
    options = {"plain": {}, "grouped": {"by": "class"}, "weighted": {"class_weights": [0.5, 2.0]}}[kind]
    return evicp.calibrate(logits, labels, "lac", class_names=["a", "b"], **options)


@pytest.fixture(params=["plain", "grouped", "weighted"])
def small(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small good file, in memory where possible: thousands of versions of it are written."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = Path(folder) / "cal.safetensors"
        smallest(request.param).save(path)
        yield path


def test_truncated_at_every_byte(small: Path) -> None:
    whole = small.read_bytes()
    for length in range(len(whole)):
        small.write_bytes(whole[:length])
        refused(small)
    small.write_bytes(whole)
    evicp.load(small)


def test_every_bit_flip(small: Path, figure: Callable) -> None:
    """Header length, header, padding, scores: no bit may be wrong."""
    whole = small.read_bytes()
    survivors = []
    for position in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        small.write_bytes(damaged)
        try:
            evicp.load(small)
        except ArtifactError:
            continue
        survivors.append(position)
    figure("bit flips", 8 * len(whole))
    figure("bit flips believed", len(survivors))
    assert survivors == []


def mutated(whole: bytes, rng: np.random.Generator) -> bytes:
    """A few random edits: bytes changed, removed, inserted, repeated, exchanged; numbers replaced by extreme ones."""
    data = bytearray(whole)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data)))
        size = int(rng.integers(1, 9))
        match rng.integers(0, 6):
            case 0:
                data[at] = rng.integers(0, 256)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = rng.bytes(size)
            case 3:
                data[at:at] = data[at : at + size]
            case 4:
                other = int(rng.integers(0, len(data)))
                data[at], data[other] = data[other], data[at]
            case _:
                extremes = (b"\xff" * 8, bytes(8), b"9" * 20, b'"', b"{", b"}", b"null", b"1e999", b"\\u0000", b"-")
                data[at : at + size] = extremes[rng.integers(0, len(extremes))]
        if not data:
            break
    return bytes(data)


def test_mutations(small: Path, long_run: bool, figure: Callable) -> None:
    """A mutated file is refused, or it is the same calibration (white space before the scores may vary)."""
    whole, original = small.read_bytes(), evicp.load(small)
    rng = np.random.default_rng(0)
    unharmed = changed = 0
    # Three kinds of file share the hundred thousand.
    count = 34_000 if long_run else 2_000
    for _ in range(count):
        damaged = mutated(whole, rng)
        if damaged == whole:
            continue
        small.write_bytes(damaged)
        try:
            loaded = evicp.load(small)
        except ArtifactError:
            continue
        changed += loaded != original
        unharmed += 1
    figure("mutations", count)
    figure("mutations believed", changed)
    assert changed == 0
    assert unharmed <= 5 + (100 if long_run else 0)


# ---------------------------------------------------------------------------------------------------------------
# Memory, time, execution: measured in a separate process


def python(code: str, folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def grouped(n: int) -> bytes:
    """A good file of two groups of n scores each."""
    logits, labels = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 1])
    small = evicp.calibrate(logits, labels, "lac", by="class")
    assert small.groups is not None
    partition = replace(small.groups, counts=np.array([n, n]))
    scores = np.tile(np.arange(n, dtype=float), 2)
    with tempfile.TemporaryDirectory() as folder:
        evicp.Calibration(small.score, scores, 2, None, partition).save(Path(folder) / "cal.safetensors")
        return (Path(folder) / "cal.safetensors").read_bytes()


def crowd(n_classes: int) -> bytes:
    """A good file of one group for each of many classes, all but one of them empty."""
    parts = {f"scores.{i}": [] if i else SCORES for i in range(n_classes)}
    groups = {"by": "class", "parameters": dataclasses.asdict(evicp.ByClass())}
    return of_parts(parts, n_classes=n_classes, class_names=None, groups=groups)


FLAT = 2_900_000
HEAVY: dict[str, Callable[[], bytes]] = {
    "a list of small numbers": lambda: framed("[" + "0," * (FLAT // 2) + "0]", b""),
    "a list of floats": lambda: framed('{"scores":[' + "1.5," * (FLAT // 4) + "0]}", b""),
    "a list of short strings": lambda: framed('{"scores":[' + '"ab",' * (FLAT // 5) + '"c"]}', b""),
    "a list of empty objects": lambda: framed("[" + "{}," * (FLAT // 3) + "{}]", b""),
    "a list of empty lists": lambda: framed("[" + "[]," * (FLAT // 3) + "[]]", b""),
    "one object of many keys": lambda: framed("{" + ",".join(f'"{i:x}":0' for i in range(FLAT // 10)) + "}", b""),
    "a long string of wide characters": lambda: framed('{"scores":"' + "😀" + "a" * FLAT + '"}', b""),
    "many names": lambda: forged(canonical(DESCRIPTION | {"n_classes": 300_000, "class_names": ["ab"] * 300_000})),
    "many wrong names": lambda: forged(canonical(DESCRIPTION | {"class_names": ["ab"] * 300_000})),
    "nested lists": lambda: framed("[" * 90_000 + "]" * 90_000, b""),
    "empty lists within bounds": lambda: framed("[" + "[]," * 104_000 + "[]]", b""),
    "keys within bounds": lambda: framed("{" + ",".join(f'"{i:x}":999' for i in range(209_000)) + "}", b""),
    "objects within bounds": lambda: framed("[" + ",".join(f'{{"{i:x}":[999]}}' for i in range(52_000)) + "]", b""),
    "tensors of nothing": lambda: framed(canonical({f"scores.{i}": tensor(0) for i in range(48_000)}), b""),
    "as many groups as fit": lambda: crowd(47_000),
    "many base rates": lambda: forged(
        canonical(
            DESCRIPTION
            | {"score": {"name": "ecp", "parameters": evicp.ECP().parameters() | {"base_rates": [1e-5] * 250_000}}}
        )
    ),
    "many scores": lambda: forged(scores=np.arange(8_000_000.0), n=8_000_000),
    "many scores in groups": lambda: grouped(6_000_000),
    "many unsorted scores": lambda: forged(scores=-np.arange(8_000_000.0), n=8_000_000),
    "a claim of 2^60 scores": lambda: with_header(lambda h: h.update(scores=tensor(2**60))),
}


def test_loading_takes_no_more_than_the_file_and_64_mib(tmp_path: Path, figure: Callable) -> None:
    for number, build in enumerate(HEAVY.values()):
        (tmp_path / f"{number:02d}.safetensors").write_bytes(build())
    evicp.calibrate([[2.0, 0.0]], [0]).save(tmp_path / "warm.safetensors")
    code = """
        import resource, sys, time
        from pathlib import Path
        import evicp
        def peak():
            return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
        def reset():
            open("/proc/self/clear_refs", "w").write("5")
        evicp.load("warm.safetensors")
        for path in sorted(Path().glob("[0-9]*.safetensors")):
            reset()
            before, start = peak(), time.process_time()
            try:
                evicp.load(path)
                outcome = "loaded"
            except evicp.EvicpError as error:
                outcome = type(error).__name__
            print(path.stem, outcome, peak() - before - path.stat().st_size, time.process_time() - start)
    """
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("needs a resettable high-water mark of memory (Linux)")
    lines = [line.split() for line in python(code, tmp_path).splitlines()]
    outcomes = {name: outcome for name, (_, outcome, _, _) in zip(HEAVY, lines, strict=True)}
    assert {name for name, outcome in outcomes.items() if outcome == "loaded"} == {
        "many names",
        "many scores",
        "many scores in groups",
        "as many groups as fit",
    }
    assert set(outcomes.values()) == {"loaded", "ArtifactError"}
    for name, (_, _, above_file, seconds) in zip(HEAVY, lines, strict=True):
        assert int(above_file) <= 64 * 2**20, name
        figure("largest memory above the file, MiB", round(int(above_file) / 2**20, 1))
        figure("largest loading time of a heavy file, s", round(float(seconds), 2))
        assert float(seconds) <= 5.0, name  # alone on a machine: under a second


def test_a_file_larger_than_memory_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """A sparse file of 8 GiB under a limit of 2 GiB of address space."""
    n = 2**30
    data_length = 8 * n
    text = canonical(DESCRIPTION | {"n": n})
    metadata = {"evicp": text, "sha256": "0" * 64}
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(framed(canonical({"__metadata__": metadata, "scores": tensor(n)}), b""))
        file.truncate(file.tell() + data_length)
    code = """
        import resource, evicp
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
        try:
            evicp.load("large.safetensors")
        except evicp.EvicpError as error:
            print(type(error).__name__)
    """
    assert python(code, tmp_path) == "ArtifactError\n"


def test_nothing_is_executed_and_no_other_file_is_read(tmp_path: Path, figure: Callable) -> None:
    """An audit hook watches good and hostile files load."""
    executing = [
        "a pickle",
        "a pickle behind a header",
        "a torch checkpoint",
        "evidence that is code",
        "an unknown score",
    ]
    for number, name in enumerate(executing):
        (tmp_path / f"{number}.safetensors").write_bytes(ATTACKS[name][0]())
    (tmp_path / "good.safetensors").write_bytes(forged(class_names=["../../etc/passwd", "__import__('os')", "c"]))
    code = """
        import sys
        from pathlib import Path
        import evicp
        evicp.load("good.safetensors")
        try:
            evicp.load("0.safetensors")
        except evicp.EvicpError:
            pass
        paths = sorted(Path().glob("*.safetensors"))
        seen = []
        watching = True
        def hook(event, arguments):
            if watching:
                seen.append((event, arguments))
        sys.addaudithook(hook)
        for path in paths:
            try:
                evicp.load(path)
            except evicp.EvicpError:
                pass
        watching = False
        harmless = {"object.__getattr__", "object.__setattr__", "sys._getframe", "os.listdir", "os.scandir"}
        for event, arguments in seen:
            if event == "open":
                print("open", arguments[0])
            elif event not in harmless:
                print(event)
    """
    events = set(python(code, tmp_path).split("\n")) - {""}
    figure("events other than opening the file itself", len(events - {f"open {p.name}" for p in tmp_path.iterdir()}))
    assert events == {f"open {path.name}" for path in tmp_path.iterdir()}


# ---------------------------------------------------------------------------------------------------------------
# No pickle, no eval


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "code"}
#: What Spark's workers return to the driver, in the same way as Spark itself: no file and no user's bytes.
KNOWN = {"spark.py": ["import pickle"]}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}


def offences(source: str) -> list[str]:
    """Everything in a module that could run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"import {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        called = ast.unparse(node.func)
        if called in FORBIDDEN_CALLS or called in ("os.system", "os.popen"):
            found.append(called)
        if called in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
            found.append(f"{called} that may unpickle")
        if called == "torch.load" and options.get("weights_only") != "True":
            found.append("torch.load that may unpickle")
        if options.get("trust_remote_code") not in (None, "False") or options.get("shell") == "True":
            found.append(f"{called} that runs what it is given")
    return found


def test_no_module_can_unpickle_or_evaluate(figure: Callable) -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    found = {str(path.relative_to(SOURCE)): offences(path.read_text("utf-8")) for path in modules}
    others = {name: some for name, some in found.items() if some != KNOWN.get(name, [])}
    figure("offences in the source", sum(map(len, others.values())))
    assert len(modules) > 10
    assert others == {}


def test_the_scan_finds_what_it_looks_for() -> None:
    bad = """
        import pickle, dill.source
        from joblib import load
        np.load("x"); np.load("x", allow_pickle=True); torch.load("x"); torch.load("x", weights_only=False)
        eval("1"); exec("1"); compile("1", "", "exec"); __import__("os"); os.system("ls")
        run("ls", shell=True); from_pretrained("x", trust_remote_code=True)
        np.load("x", allow_pickle=False); torch.load("x", weights_only=True); model.eval(); re.compile("x")
    """
    assert len(offences(textwrap.dedent(bad))) == 14
