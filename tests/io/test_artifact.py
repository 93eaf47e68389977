"""The calibration artifact: what is written comes back, whatever the score, whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import evicp
from evicp import report
from evicp.errors import ArtifactError, InputError, InputTypeError, ScoreError, SuspiciousInputWarning
from evicp.io import artifact
from evicp.io.atomic import atomic_path

K = 4


def doubled(z: np.ndarray) -> np.ndarray:
    return np.maximum(2 * z, 0)


def uniform(z: np.ndarray) -> np.ndarray:
    return np.ones_like(z)


def negated(z: np.ndarray) -> np.ndarray:
    return -z


# ---------------------------------------------------------------------------------------------------------------
# Calibrations


SCORES = [
    evicp.ECP(),
    evicp.ECP(evidence="softplus", temperature=1.7, stabilizer=0),
    evicp.ECP(evidence="exp", stabilizer="scaled", base_rates=[0.1, 0.2, 0.3, 0.4]),
    evicp.LAC(temperature=0.3),
    evicp.APS(),
    evicp.APS(randomized=False, seed=2**32 - 1),
    evicp.RAPS(lam=0.037, k_reg=2, randomize_penalty=True, temperature=1e-3, seed=5),
    evicp.SAPS(lam=1 / 3),
    evicp.TopK(randomized=True),
    evicp.Margin(temperature=1e5),
    evicp.ClassLAC(offsets=[0.1, -1 / 3, 0.0, 2.0], limits=[1, 4, 2, 3], temperature=0.9),
]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.describe())
@pytest.mark.parametrize("names", [None, ["é", "日本", "<script>", "😀 \"'\\"]], ids=["plain", "named"])
def test_every_score_comes_back(score: evicp.Score, names: list[str] | None, rows: Any, tmp_path: Path) -> None:
    calibration = evicp.calibrate(*rows, score, class_names=names)
    calibration.save(tmp_path / "cal.safetensors")
    again = evicp.load(tmp_path / "cal.safetensors")
    assert again == calibration
    assert again.score == score
    assert again.class_names == (None if names is None else tuple(names))
    assert again.scores.dtype == np.float64
    np.testing.assert_array_equal(again.scores.view(np.uint64), calibration.scores.view(np.uint64))
    assert again.predict(rows[0], 0.8) == calibration.predict(rows[0], 0.8)
    assert again.threshold(0.9) == calibration.threshold(0.9)
    # A score that needs no function may be named again, and must then be the same one.
    assert evicp.load(tmp_path / "cal.safetensors", score=score) == calibration


def test_scores_that_are_infinite_come_back(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows[0].copy(), rows[1]
    logits[::9, :] = np.where(np.arange(K) == labels[::9, None], -np.inf, logits[::9, :])
    with pytest.warns(SuspiciousInputWarning, match="true label is masked"):
        calibration = evicp.calibrate(logits, labels)
    assert calibration.scores[-1] == np.inf
    calibration.save(tmp_path / "cal.safetensors")
    assert evicp.load(tmp_path / "cal.safetensors") == calibration


def test_where_rows_come_from_is_kept(rows: Any, tmp_path: Path) -> None:
    plain = evicp.calibrate(*rows)
    assert plain.source is None
    named = evicp.calibrate(*rows, source="resnet152, weights of May")
    assert named == plain
    assert named.certificate().checksum != plain.certificate().checksum
    named.save(tmp_path / "cal.safetensors")
    assert evicp.load(tmp_path / "cal.safetensors").source == named.source
    assert str(named.source) in str(named.certificate())
    assert named.extended(*rows).source == named.source


def test_one_row_is_a_calibration_too(tmp_path: Path) -> None:
    calibration = evicp.calibrate([[1.0, 0.5]], [0], "lac")
    calibration.save(tmp_path / "cal.safetensors")
    assert evicp.load(str(tmp_path / "cal.safetensors")) == calibration


@pytest.mark.parametrize(
    "view",
    [lambda a: a[::2], lambda a: a[::-1][::-1], lambda a: np.stack([a, a], 1)[:, 0], lambda a: a.astype(">f8")],
    ids=["strided", "reversed twice", "column", "big-endian"],
)
def test_scores_that_are_not_contiguous(view: Any, rows: Any, tmp_path: Path) -> None:
    """safetensors' own writer saves wrong values for these without a word."""
    whole = evicp.calibrate(*rows)
    calibration = evicp.Calibration(whole.score, view(whole.scores.copy()), K)
    calibration.save(tmp_path / "cal.safetensors")
    np.testing.assert_array_equal(evicp.load(tmp_path / "cal.safetensors").scores, view(whole.scores))


CALLABLES = [
    (negated, negated),
    (evicp.Custom(negated), evicp.Custom(negated)),
    (evicp.ECP(evidence=doubled), evicp.ECP(evidence=doubled)),
    (evicp.ECP(utility=uniform, temperature=2.0), evicp.ECP(utility=uniform, temperature=2.0)),
    (evicp.ECP(evidence=doubled, utility=uniform, base_rates=(0.1, 0.2, 0.3, 0.4)),) * 2,
]


@pytest.mark.parametrize(("made_with", "supplied"), CALLABLES)
def test_a_users_function_is_supplied_again(made_with: Any, supplied: Any, rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "cal.safetensors"
    calibration = evicp.calibrate(*rows, made_with)
    calibration.save(path)
    assert b"negated" not in path.read_bytes()  # no name, no code: "custom" is all the file says
    assert b"custom" in path.read_bytes()
    assert evicp.load(path, score=supplied) == calibration
    with pytest.raises(ArtifactError) as caught:
        evicp.load(path)
    assert str(caught.value) == (
        f"cannot load {path}: it was made with your own function or class. "
        "Supply it again: evicp.load(path, score=...)."
    )


@pytest.mark.parametrize(
    ("made_with", "wrong"),
    [
        (negated, "lac"),
        (negated, evicp.ECP(evidence=doubled)),
        (evicp.ECP(evidence=doubled), negated),
        (evicp.ECP(evidence=doubled), evicp.ECP()),
        (evicp.ECP(evidence=doubled), evicp.ECP(utility=uniform)),
        (evicp.ECP(evidence=doubled), evicp.ECP(evidence=doubled, temperature=2.0)),
        (evicp.ECP(evidence=doubled), evicp.ECP(evidence=doubled, utility=uniform)),
        ("lac", evicp.LAC(temperature=2.0)),
        ("aps", "raps"),
        ("aps", evicp.APS(seed=1)),
    ],
)
def test_another_score_is_refused(made_with: Any, wrong: Any, rows: Any, tmp_path: Path) -> None:
    evicp.calibrate(*rows, made_with).save(tmp_path / "cal.safetensors")
    with pytest.raises(ArtifactError, match=r"cal\.safetensors: it was made with the score \w+ \{.*\}; got \w+ \{"):
        evicp.load(tmp_path / "cal.safetensors", score=wrong)


def test_a_bad_argument_is_not_blamed_on_the_file(rows: Any, tmp_path: Path) -> None:
    evicp.calibrate(*rows).save(tmp_path / "cal.safetensors")
    with pytest.raises(InputTypeError, match=r"^score must be a name, a score or a callable; got 5\.$"):
        evicp.load(tmp_path / "cal.safetensors", score=5)
    with pytest.raises(ScoreError, match=r"^unknown score 'ecq'"):
        evicp.load(tmp_path / "cal.safetensors", score="ecq")


@dataclass(frozen=True)
class Power(evicp.Score):
    """A user's own score with a parameter."""

    exponent: Any = 2.0
    name: ClassVar[str] = "power"

    def formula(self, z: np.ndarray) -> np.ndarray:
        """Higher logits conform better."""
        return -np.sign(z) * np.abs(z) ** self.exponent


def test_a_score_class_of_ones_own(rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "cal.safetensors"
    calibration = evicp.calibrate(*rows, Power(1.5))
    calibration.save(path)
    assert evicp.load(path, score=Power(1.5)) == calibration
    with pytest.raises(
        ArtifactError, match=r"it names the score 'power' with parameters exponent, which this version of evicp "
    ):
        evicp.load(path)
    with pytest.raises(ArtifactError, match=r"it was made with the score power"):
        evicp.load(path, score=Power(2.5))
    for unwritable in (np.ones(2), np.nan, np.inf):
        with pytest.raises(ScoreError, match=r"cannot be stored as JSON"):
            evicp.Calibration(Power(unwritable), calibration.scores, K).save(path, overwrite=True)
    assert evicp.load(path, score=Power(1.5)) == calibration  # the failed save left the file alone


# ---------------------------------------------------------------------------------------------------------------
# The format


def test_the_same_calibration_gives_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import numpy as np, evicp\n"
        "evicp.Calibration(evicp.RAPS(), np.arange(9.0), 4, tuple('abcd')).save('again.safetensors', overwrite=True)"
    )
    evicp.Calibration(evicp.RAPS(), np.arange(9.0), 4, tuple("abcd")).save(tmp_path / "cal.safetensors")
    for seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60)
        assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "cal.safetensors").read_bytes()


def test_any_safetensors_reader_can_open_it(rows: Any, tmp_path: Path) -> None:
    from safetensors import safe_open

    calibration = evicp.calibrate(*rows, "lac", class_names=list("abcd"))
    calibration.save(tmp_path / "cal.safetensors")
    compiled = find_spec("evicp.kernels._core") and os.environ.get("EVICP_BACKEND") != "numpy"
    with safe_open(tmp_path / "cal.safetensors", framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("scores"), calibration.scores)
        metadata = file.metadata()
    assert json.loads(metadata["evicp"]) == {
        "version": 1,
        "score": {"name": "lac", "parameters": {"temperature": 1.0}},
        "n": 80,
        "n_classes": K,
        "class_names": list("abcd"),
        "arithmetic": f"{'native' if compiled else 'numpy'} float64 of float64",
        "row_digest": f"{calibration.origin.digest:016x}",
        "largest_logit": float(rows[0][np.arange(80), rows[1]].max()),
    }
    assert metadata["evicp"] == json.dumps(json.loads(metadata["evicp"]), sort_keys=True, separators=(",", ":"))
    body = metadata["evicp"].encode() + b"\0scores\0" + calibration.scores.astype("<f8").tobytes()
    assert metadata["sha256"] == hashlib.sha256(body).hexdigest()
    assert int.from_bytes((tmp_path / "cal.safetensors").read_bytes()[:8], "little") % 8 == 0  # aligned scores


def test_the_order_of_a_header_does_not_matter(rows: Any, tmp_path: Path) -> None:
    """What safetensors' own writer makes of the same parts is the same calibration."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    calibration = evicp.calibrate(*rows, "aps")
    calibration.save(tmp_path / "cal.safetensors")
    with safe_open(tmp_path / "cal.safetensors", framework="np") as file:
        metadata = file.metadata()
    for _ in range(8):  # its order of metadata is random
        save_file({"scores": calibration.scores.copy()}, tmp_path / "other.safetensors", metadata)
        assert evicp.load(tmp_path / "other.safetensors") == calibration


def test_the_checksum_is_of_everything(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    different = [
        evicp.calibrate(logits, labels),
        evicp.calibrate(logits + 1e-12, labels),
        evicp.calibrate(logits[:-1], labels[:-1]),
        evicp.calibrate(logits, labels, evicp.ECP(temperature=1.0000000001)),
        evicp.calibrate(logits, labels, class_names=list("abcd")),
        evicp.calibrate(logits, labels, class_names=list("abdc")),
        evicp.calibrate(logits, labels, "lac"),
    ]
    sums = [artifact.checksum(calibration) for calibration in different]
    assert len(set(sums)) == len(sums)
    different[0].save(tmp_path / "cal.safetensors")
    assert artifact.checksum(evicp.load(tmp_path / "cal.safetensors")) == sums[0]
    assert different[0].certificate(0.9).checksum == sums[0]


def test_many_class_names_fit_and_too_many_are_refused_at_once(tmp_path: Path) -> None:
    names = [f"n{k:08d} {'a rather long name of a class':.45}" for k in range(50_000)]
    scores = np.sort(np.random.default_rng(0).normal(size=100))
    calibration = evicp.Calibration(evicp.LAC(), scores, 50_000, tuple(names))
    calibration.save(tmp_path / "cal.safetensors")
    assert evicp.load(tmp_path / "cal.safetensors") == calibration
    before = (tmp_path / "cal.safetensors").read_bytes()
    too_long = evicp.Calibration(evicp.LAC(), scores, 50_000, tuple(name * 2 for name in names))
    with pytest.raises(InputError, match=r"^class names must fit into 3,145,728 bytes; the file's header would have "):
        too_long.save(tmp_path / "cal.safetensors", overwrite=True)
    assert (tmp_path / "cal.safetensors").read_bytes() == before


def by_class_of(n_classes: int) -> evicp.Calibration:
    """Three rows, and a group for every class."""
    logits = np.random.default_rng(0).normal(size=(3, n_classes)).astype(np.float32)
    return evicp.Calibrator("topk", by="class").update(logits, [0, 1, n_classes - 1]).finish()


def test_as_many_groups_as_fit_are_read_again_and_more_are_refused_at_once(tmp_path: Path) -> None:
    calibration = by_class_of(47_500)
    calibration.save(tmp_path / "cal.safetensors")
    assert evicp.load(tmp_path / "cal.safetensors") == calibration
    with pytest.raises(
        InputError, match=r"^a calibration's groups must fit .* for 60,000 groups\. Calibrate with fewer"
    ):
        by_class_of(60_000).save(tmp_path / "more.safetensors")
    assert not (tmp_path / "more.safetensors").exists()


# ---------------------------------------------------------------------------------------------------------------
# Written whole or not at all


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")

    def fail_midway() -> None:
        with atomic_path(target) as temporary:
            temporary.write_bytes(b"half of the n")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old"  # until the block ends
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_relative_name_and_the_umask(rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        evicp.calibrate(*rows).save("cal.safetensors")
    finally:
        os.umask(before)
    assert Path("cal.safetensors").stat().st_mode & 0o777 == 0o640


def test_how_many_parts_a_description_may_have() -> None:
    parts = {str(number): 0 for number in range(100)}
    assert artifact.strict_json(json.dumps(parts)) == parts
    with pytest.raises(ArtifactError, match=r"^its description has more parts than any calibration\.$"):
        artifact.strict_json(json.dumps(parts | {"another": 0}))


def test_how_many_rows_chose_the_score_is_not_forgotten(tmp_path):
    calibration = evicp.Calibration(evicp.LAC(), np.array([0.5, 1.0]), 3, chosen_on=7)
    calibration.save(tmp_path / "c.safetensors")
    assert evicp.load(tmp_path / "c.safetensors").chosen_on == 7
    assert evicp.load(tmp_path / "c.safetensors") == calibration


def test_folds_are_remembered_and_said(tmp_path: Path) -> None:
    calibration = evicp.Calibration(evicp.LAC(), np.arange(20.0), 3, folds=5)
    calibration.save(tmp_path / "c.safetensors")
    assert evicp.load(tmp_path / "c.safetensors") == calibration
    assert calibration != evicp.Calibration(evicp.LAC(), np.arange(20.0), 3)
    assert repr(calibration).endswith("; scored in 5 folds)")
    assert "in 5 folds, by models other than the one that predicts" in calibration.certificate(0.9).caveat
    assert "folds" not in evicp.Calibration(evicp.LAC(), np.arange(20.0), 3).certificate(0.9).caveat


def test_what_rests_on_the_law_of_coverage_is_refused_where_rows_were_scored_in_folds(rows) -> None:
    """Of folds nothing is known that a monitor, a confidence or a verdict could rest on."""
    whole = evicp.calibrate(*rows)
    folds = dataclasses.replace(whole, folds=5)
    sets = folds.predict(rows[0], 0.9)
    assert (sets.n_calibration, whole.predict(rows[0], 0.9).n_calibration) == (None, whole.n)
    assert np.array_equal(sets.labels, whole.predict(rows[0], 0.9).labels)
    evaluation = evicp.evaluate(sets, rows[1])
    for call in (
        lambda: folds.predict(rows[0], 0.9, confidence=0.9),
        lambda: folds.threshold(0.9, 0.9),
        lambda: folds.reliability(0.9),
        lambda: folds.certificate(0.9, pac=0.9),
        lambda: folds.certificate(0.9, evaluation),
        lambda: evicp.Monitor(folds, 0.9),
    ):
        with pytest.raises(InputError, match=r"needs the distribution of coverage.* scored in 5 folds"):
            call()
    assert folds.certificate(0.9).observed is None
    page = report.build(*rows, {"folds": folds, "whole": whole})
    assert [method["law"] for method in page.data["methods"]] == [None, 0]


class Mild(evicp.LAC):
    """A class of a user's that has the name of the score it is made from."""

    def formula(self, logits):
        return 0.1 * super().formula(logits)


def test_a_class_made_from_a_built_in_score_is_not_taken_for_it(tmp_path, rows) -> None:
    path, own = tmp_path / "c.safetensors", evicp.calibrate(*rows, Mild())
    own.save(path)
    with pytest.raises(ArtifactError, match="your own function or class"):
        evicp.load(path)
    with pytest.raises(ArtifactError, match=r"made with the score custom .* got lac"):
        evicp.load(path, score=evicp.LAC())
    assert evicp.load(path, score=Mild()) == own
    evicp.calibrate(*rows, evicp.LAC()).save(path, overwrite=True)
    with pytest.raises(ArtifactError, match=r"made with the score lac .* got custom"):
        evicp.load(path, score=Mild())


@pytest.mark.skipif(os.name == "nt", reason="modes of files are POSIX's")
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_private_file_stays_private(tmp_path, mode, rows):
    calibration = evicp.calibrate(*rows)
    path = tmp_path / "model.safetensors"
    calibration.save(path)
    path.chmod(mode)
    calibration.save(path, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_path_that_no_file_can_have(tmp_path, rows):
    with pytest.raises(evicp.errors.FileError, match="a path must be text that this system allows"):
        evicp.calibrate(*rows).save(str(tmp_path / "\ud800.safetensors"))
