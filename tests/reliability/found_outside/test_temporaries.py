"""A file being written is as private as the one it replaces, and what a killed writer leaves is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evicp.errors import FileError
from evicp.io import atomic
from evicp.io.arrays import write_arrays
from evicp.io.atomic import atomic_path, write_whole

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(os.name != "posix", reason="modes and locks of POSIX"),
]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def ours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".evicp-"))


@pytest.mark.parametrize("access", [0o600, 0o640, 0o400, 0o664])
def test_a_temporary_file_is_as_private_as_the_file_it_replaces(tmp_path: Path, access: int) -> None:
    target = tmp_path / "cal.safetensors"
    target.write_text("old")
    target.chmod(access)
    with atomic_path(target) as temporary:
        assert mode(temporary) & ~access == 0o200 & ~access  # its writer must write it
        temporary.write_text("new")
        assert mode(temporary) & 0o077 == 0
    assert (mode(target), target.read_text()) == (access, "new")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")
def test_owner_and_group_stay(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    target.write_text("old")
    target.chmod(0o640)
    os.chown(target, 12345, 54321)
    write_whole(target, "new")
    found = target.stat()
    assert (found.st_uid, found.st_gid, mode(target)) == (12345, 54321, 0o640)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may become another user")
def test_a_folder_that_may_not_be_listed(tmp_path: Path) -> None:
    """A file was written there, and then said not to have been."""
    tmp_path.chmod(0o733)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(tmp_path)
            os.setgid(65534)
            os.setuid(65534)
            atomic.refuse_target(Path("new.csv"), [".csv"])
            write_whole("new.csv", "content")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may become another user")
def test_a_folder_that_may_not_be_written_to_is_said_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(tmp_path)
            os.setgid(65534)
            os.setuid(65534)
            atomic.refuse_target(Path("new.csv"), [".csv"])
        except FileError as error:
            code = 0 if "cannot be written to" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "link.csv").symlink_to("nowhere/new.csv")
    with pytest.raises(FileError, match=r"there is no directory .*nowhere"):
        atomic.refuse_target(tmp_path / "link.csv", [".csv"])


def test_another_group_gets_no_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one may not give the file to the group that could read the old one."""
    target = tmp_path / "state.json"
    target.write_text("old")
    target.chmod(0o660)
    before = target.stat()
    monkeypatch.setattr(atomic, "_status", lambda _: os.stat_result([*before[:5], before.st_gid + 1, *before[6:]]))
    monkeypatch.setattr(os, "fchown", lambda *_: (_ for _ in ()).throw(PermissionError("not yours")))
    write_whole(target, "new")
    assert mode(target) == 0o600


def test_extracted_arrays_replace_a_private_file_privately(tmp_path: Path) -> None:
    """A library that writes a file of its own would choose its mode."""
    output = tmp_path / "logits.safetensors"
    output.write_text("old")
    output.chmod(0o600)
    write_arrays(output, {"logits": np.eye(3, dtype="<f4"), "labels": np.arange(3)})
    assert mode(output) == 0o600
    (tmp_path / "new").mkdir()
    os.umask(umask := os.umask(0o027))
    write_arrays(tmp_path / "new" / "logits.safetensors", {"logits": np.eye(3, dtype="<f4")})
    assert mode(tmp_path / "new" / "logits.safetensors") == 0o666 & ~umask
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """Of the same target; a writer that lives, and what belongs to others, is left alone."""
    code = """
import sys, time
from evicp.io.arrays import write_arrays
from evicp.io.atomic import atomic_path
with atomic_path("target") as temporary:
    temporary.write_text("half")
    print("begun", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code]
    killed, alive = (subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) for _ in range(2))
    try:
        for process in (killed, alive):
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        killed.kill()
        killed.wait()
        (tmp_path / ".evicp-mine.tmp").touch()
        assert len(ours(tmp_path)) == 3
        write_whole(tmp_path / "other", "whole")
        assert len(ours(tmp_path)) == 3
        write_whole(tmp_path / "target", "whole")
        assert len(ours(tmp_path)) == 2  # the living writer's, and what is not ours
    finally:
        for process in (killed, alive):
            process.kill()
            process.wait()
            process.communicate()
    write_whole(tmp_path / "target", "again")
    assert ours(tmp_path) == [".evicp-mine.tmp"]
    assert (tmp_path / "target").read_text() == "again"


def test_killed_at_any_instant_nothing_piles_up(tmp_path: Path) -> None:
    code = """
from evicp.io.atomic import write_whole
print("begun", flush=True)
while True:
    write_whole("target", b"x" * 10**6)
"""
    for delay in np.random.default_rng(0).uniform(0.0, 0.02, 8):
        with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert len(ours(tmp_path)) <= 1
    write_whole(tmp_path / "target", b"")
    assert ours(tmp_path) == []


def test_a_temporary_file_that_was_taken_for_abandoned_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may remove it in the instant between its creation and its lock."""
    attempts = []
    really = atomic._try_lock

    def late(descriptor: int) -> bool:
        attempts.append(descriptor)
        if len(attempts) == 1:
            (unlucky,) = tmp_path.glob(".evicp-*.tmp")
            unlucky.unlink()
        return really(descriptor)

    monkeypatch.setattr(atomic, "_try_lock", late)
    write_whole(tmp_path / "target", "new")
    assert len(attempts) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
