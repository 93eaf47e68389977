"""Whatever dies on the way, a saved file is the old one or the new one: kills, full disks, two writers.

The starred control writes the same bytes straight to the target; the same test must catch it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp.errors import FileError
from evicp.io import files
from evicp.io.atomic import atomic_path, write_whole

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]

#: Runs in a separate process: children save two calibrations in turn until they are killed, the parent looks.
KILLER = """
    import contextlib, json, os, random, signal, sys, time
    from pathlib import Path
    import numpy as np
    import evicp
    from evicp.io import artifact
    from evicp.io import files

    kind, kills, control = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "control"
    target = Path("target" + (".safetensors" if kind == "calibration" else ".jsonl"))
    rng = np.random.default_rng(0)

    def calibration(n):
        return evicp.Calibration(evicp.LAC(), np.sort(rng.normal(size=n)), 10)

    def sets(n):
        from fractions import Fraction
        return evicp.PredictionSets(np.arange(n + 1), np.zeros(n, np.int32), n_classes=2, coverage=Fraction(9, 10))

    if kind == "calibration":
        versions = [calibration(60_000), calibration(90_000)]
        write = lambda version: version.save(target, overwrite=True)
        read = lambda: evicp.load(target) in versions
    else:
        versions = [sets(1_000), sets(1_500)]
        write = lambda version: files.write_sets(version, target)
        read = lambda: sum(1 for line in target.open() if json.loads(line)["size"] == 1) in (1_000, 1_500)

    @contextlib.contextmanager
    def plain(path):
        yield Path(path)

    write(versions[0])
    start = time.perf_counter()
    write(versions[1])
    one_write = time.perf_counter() - start
    if control:
        artifact.atomic_path = files.atomic_path = plain
    corrupt = changed = 0
    random.seed(1)
    for kill in range(kills):
        before = target.stat().st_ino, target.stat().st_mtime_ns
        child = os.fork()
        if child == 0:
            while True:
                for version in versions:
                    write(version)
        time.sleep(random.uniform(0, 4 * one_write))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        changed += before != (target.stat().st_ino, target.stat().st_mtime_ns)
        try:
            corrupt += not read()
        except (evicp.EvicpError, ValueError):
            corrupt += 1
    write(versions[0])  # and removes what the last one killed has left
    others = [path.name for path in Path().iterdir() if path != target]
    print(json.dumps({"corrupt": corrupt, "changed": changed, "left": len(others)}))
"""


def kill_writers(folder: Path, kind: str, kills: int, variant: str) -> dict[str, int]:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLER), kind, str(kills), variant],
        cwd=folder,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcome: dict[str, int] = json.loads(result.stdout)
    return outcome


@pytest.mark.parametrize("kind", ["calibration", "sets"])
def test_killed_at_random_instants(kind: str, tmp_path: Path, long_run: bool, figure: Callable) -> None:
    kills = 200 if long_run else 30
    outcome = kill_writers(tmp_path, kind, kills, "atomic")
    figure("kills", kills)
    figure("corrupt files", outcome["corrupt"])
    assert outcome["corrupt"] == 0
    assert outcome["changed"] > 0  # the writers did write
    assert outcome["left"] == 0


def test_control_a_plain_write_is_caught(tmp_path: Path, long_run: bool, figure: Callable) -> None:
    corrupt = kill_writers(tmp_path, "calibration", 200 if long_run else 30, "control")["corrupt"]
    figure("corrupt files of the control", corrupt)
    assert corrupt > 0


# ---------------------------------------------------------------------------------------------------------------
# A machine that loses its power


def test_content_reaches_the_disk_before_its_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that reaches the disk before the content names an empty file after a power cut; the folder comes last."""
    events, synchronise, replace = [], os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        synchronise(descriptor)
        events.append(("fsync", os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    def rename(path: Path, target: Path) -> Path:
        events.append(("rename", path.stat().st_ino, path.stat().st_size))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    target = tmp_path / "cal.safetensors"
    calibration_of(100).save(target)
    content = target.stat().st_ino, target.stat().st_size
    assert events[:2] == [("fsync", *content), ("rename", *content)]
    assert [(name, number) for name, number, _ in events[2:]] == [("fsync", tmp_path.stat().st_ino)]


# ---------------------------------------------------------------------------------------------------------------
# No room


def calibration_of(n: int) -> evicp.Calibration:
    return evicp.Calibration(evicp.LAC(), np.sort(np.random.default_rng(n).normal(size=n)), 10)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=10)


def test_a_full_disk_keeps_the_old_file(small_disk: Path) -> None:
    path, small, large = small_disk / "cal.safetensors", calibration_of(1_000), calibration_of(200_000)
    small.save(path)
    for _ in range(3):  # a temporary file left behind would fill the disk for good
        with pytest.raises(FileError) as caught:
            large.save(path, overwrite=True)
        assert str(caught.value) == f"cannot write {path}: No space left on device."
        assert evicp.load(path) == small
        assert list(small_disk.iterdir()) == [path]
    middle = calibration_of(50_000)
    middle.save(path, overwrite=True)
    assert evicp.load(path) == middle


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_a_full_disk_keeps_the_old_sets(small_disk: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = small_disk / f"sets{suffix}"
    calibration = evicp.calibrate(np.eye(5) * 3, np.arange(5))
    few = calibration.predict(np.random.default_rng(0).normal(size=(50, 5)), 0.5)
    files.write_sets(few, path)
    before = path.read_bytes()
    many = few[np.random.default_rng(1).integers(0, 50, 400_000)]
    with pytest.raises(FileError, match=r"^cannot write .*: .*No space left on device"):
        files.write_sets(many, path)
    assert path.read_bytes() == before
    assert list(small_disk.iterdir()) == [path]


def test_a_write_cut_off_by_the_system(tmp_path: Path) -> None:
    """A limit on file sizes stops the write in the middle, without root."""
    small = calibration_of(1_000)
    small.save(tmp_path / "cal.safetensors")
    code = """
        import resource, signal, numpy as np, evicp
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        large = evicp.Calibration(evicp.LAC(), np.arange(50_000.0), 10)
        try:
            large.save("cal.safetensors", overwrite=True)
        except evicp.EvicpError as error:
            print(type(error).__name__, error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == "FileError cannot write cal.safetensors: File too large.\n"
    assert evicp.load(tmp_path / "cal.safetensors") == small
    assert [path.name for path in tmp_path.iterdir()] == ["cal.safetensors"]


# ---------------------------------------------------------------------------------------------------------------
# Two writers, and readers in between


def test_two_writers_and_a_reader(tmp_path: Path, long_run: bool) -> None:
    """Whoever wins, every reader at every instant finds one whole file."""
    code = """
        import sys, numpy as np, evicp
        n, times = int(sys.argv[1]), int(sys.argv[2])
        calibration = evicp.Calibration(evicp.LAC(), np.sort(np.random.default_rng(n).normal(size=n)), 10)
        for _ in range(times):
            calibration.save("cal.safetensors", overwrite=True)
    """
    versions = [calibration_of(20_000), calibration_of(30_000)]
    versions[0].save(tmp_path / "cal.safetensors")
    times = "300" if long_run else "40"
    writers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(v.n), times], cwd=tmp_path) for v in versions
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        loaded = evicp.load(tmp_path / "cal.safetensors")
        assert loaded in versions
        seen.add(loaded.n)
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert seen == {20_000, 30_000}
    assert [path.name for path in tmp_path.iterdir()] == ["cal.safetensors"]


def test_writers_of_one_file_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    """Each removes what it finds abandoned while the others create theirs."""
    failures: list[Exception] = []

    def write(number: int) -> None:
        for _ in range(60):
            try:
                write_whole(tmp_path / "target", str(number) * 1000)
            except FileError as error:
                failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set((tmp_path / "target").read_text())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path, umask: int) -> None:
    code = (
        "import os, sys; os.umask(int(sys.argv[1])); from evicp.io.atomic import write_whole; write_whole('new', 'x')"
    )
    subprocess.run([sys.executable, "-c", code, str(umask)], cwd=tmp_path, check=True)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o666 & ~umask


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_a_link_stays_a_link(tmp_path):
    """State kept on another volume by a link must not be left behind there."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "file").write_text("old")
    (tmp_path / "link").symlink_to("volume/file")
    (tmp_path / "dangling").symlink_to("volume/new")
    for name in ("link", "dangling"):
        with atomic_path(tmp_path / name) as temporary:
            temporary.write_text("new")
        assert (tmp_path / name).is_symlink()
    assert [(tmp_path / "volume" / name).read_text() for name in ("file", "new")] == ["new", "new"]
    assert sorted(path.name for path in (tmp_path / "volume").iterdir()) == ["file", "new"]
