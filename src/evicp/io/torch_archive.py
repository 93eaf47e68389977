"""Checks of torch files before torch reads them: only archives of tensors, as `torch.save` writes, are accepted.

A torch file is a zip archive: `ROOT/data.pkl`, which says what there is, and the bytes of each tensor in `ROOT/data/`.
Files of the same suffixes may also be programs (TorchScript), or pickles from before torch 1.6. Old versions of torch
run both; what a file is must not be left to them.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from evicp.errors import FileError, MissingExtraError, need
from evicp.io.paths import open_file

#: Before 2.6 `weights_only=True` runs TorchScript (CVE-2025-32434), before 2.10 a crafted file writes beyond its
#: memory (CVE-2026-24747).
_OLDEST = (2, 10)

#: How a zip archive begins, and a pickle of torch before 1.6.
_ZIP, _OLD_PICKLE = b"PK\x03\x04", b"\x80\x02\x8a\n"

#: What `torch.save` writes, below the archive's root.
_OURS = re.compile(r"data\.pkl|version|byteorder|data/[0-9]+|\..+")


def load_tensors(path: Path, extra: str, *, old: bool = False) -> Any:
    """What a torch file of tensors holds, on the CPU; whatever torch raises on the way is left to the caller.

    Parameters
    ----------
    path : the file
    extra : what to install where torch is missing
    old : whether the format from before torch 1.6 will do, of a file that came with installed code
    """
    torch = need("torch", "torch", extra, "a torch file")
    require_version(torch)
    with open_file(path) as file:  # opened once: what is looked at is what is read
        if not (old and _begins(file, _OLD_PICKLE)):
            require_plain(file)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=False)


def require_version(torch: Any) -> None:
    """Refuse a torch that a file can make run code."""
    version = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < _OLDEST:
        raise MissingExtraError(
            f"reading torch files needs torch 2.10 or newer; got {version}, in which a file can run code "
            "(CVE-2025-32434, CVE-2026-24747). Upgrade it (pip install 'torch>=2.10'), or use safetensors files."
        )


def require_plain(file: BinaryIO) -> None:
    """Refuse an open file that is no archive of tensors; nothing in it is unpickled."""
    if _begins(file, _OLD_PICKLE):
        raise FileError(
            "it has the format from before torch 1.6, a bare pickle. If you trust it, save it again: "
            "torch.save(torch.load(path, weights_only=True), path)."
        )
    if not _begins(file, _ZIP):
        raise FileError("it is not a torch file: torch.save writes a zip archive.")
    try:
        with zipfile.ZipFile(file) as archive:
            _require_tensors(archive)
    except FileError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise FileError(f"it is not a torch file: its archive is damaged ({error}).") from error


def _begins(file: BinaryIO, magic: bytes) -> bool:
    file.seek(0)
    return file.read(len(magic)) == magic


def _require_tensors(archive: zipfile.ZipFile) -> None:
    """Refuse an archive with anything in it that `torch.save` does not write."""
    members = archive.infolist()
    roots = {member.filename.partition("/")[0] for member in members}
    names = [member.filename.partition("/")[2] for member in members]
    if any(name == "constants.pkl" or name.startswith("code/") for name in names):
        raise FileError(
            "it is a TorchScript archive, a program. Save its tensors: torch.save(module.state_dict(), path)."
        )
    if len(roots) != 1 or "data.pkl" not in names:
        raise FileError("it is not a torch file: it is a zip archive, but not one that torch.save writes.")
    other = next((name for name in names if not _OURS.fullmatch(name)), None)
    if other is not None or len(set(names)) < len(names):
        twice = "a member more than once" if other is None else repr(other[:100])
        raise FileError(f"it contains {twice}, which torch.save does not write. Save its tensors again.")
    if any(member.compress_type or member.compress_size != member.file_size for member in members):
        raise FileError("its tensors are compressed, which torch.save does not do. Save them again.")
    damaged = archive.testzip()  # torch writes checksums and does not compare them
    if damaged is not None:
        raise FileError(f"it is damaged: the checksum of {damaged} does not match its content.")


def refuse_expanded(tensor: Any, what: str) -> None:
    """Refuse a tensor that claims more numbers than its file holds, as one repeated by `expand` does."""
    strided = hasattr(tensor, "untyped_storage") and str(getattr(tensor, "layout", "")) == "torch.strided"
    if strided and tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise FileError(
            f"its {what} of shape {tuple(tensor.shape)} are expanded from fewer stored numbers. Save "
            f"{what}.contiguous()."
        )
