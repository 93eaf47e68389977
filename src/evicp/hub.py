"""Hugging Face Hub: a calibration next to its model, with its certificate on the model card.

`evicp.load("hf://owner/model")` reads it from there, also offline where the hub's client has it in its cache. What is
downloaded is checked as any other file.
"""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from evicp.calibration.calibration import Calibration
from evicp.calibration.certificate import Certificate
from evicp.errors import FileError, InputError, need
from evicp.evaluation.result import Evaluation
from evicp.io.artifact import save
from evicp.io.atomic import write_whole
from evicp.io.paths import as_path, read_text
from evicp.types import Coverage

__all__ = ["FILE", "push", "save_beside", "with_section"]

#: What a calibration next to a model is called, unless it is given another name.
FILE = "calibration.safetensors"

_CARD = "README.md"
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.safetensors", re.ASCII)
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/@]+))?(?:/(?P<file>[^/].*[^/]))?/?", re.ASCII)


def push(
    calibration: Calibration,
    repo_id: str,
    coverage: Coverage = 0.9,
    *,
    evaluation: Evaluation | None = None,
    filename: str = FILE,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Write a calibration and the section of its certificate on the model card, in one commit; returns its address.

    What else is on the card stays as it is. The hub refuses the commit if another one came in between.

    Parameters
    ----------
    repo_id : of the model, "owner/model"; it is created where there is none
    coverage, evaluation : of the certificate, as for `Calibration.certificate`
    filename : of the calibration in the repository; each one has its own section
    private : whether a repository that is created is private
    token : of the hub; by default the one that `hf auth login` has stored, or HF_TOKEN
    revision : the branch; main by default
    create_pr : whether to propose the commit as a pull request
    """
    hub = _client("push_to_hub")
    certificate = calibration.certificate(coverage, evaluation)
    with_section("", certificate, filename, repo_id)  # refuses a bad name before anything is sent
    api = hub.HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    parent = api.model_info(repo_id, revision=revision).sha
    card = with_section(_card_of(api, hub, repo_id, parent), certificate, filename, repo_id)
    how: dict[str, Any] = {"revision": revision, "parent_commit": parent, "create_pr": create_pr}
    how["commit_message"] = f"Add prediction sets with coverage {certificate.coverage:g}"
    with TemporaryDirectory() as folder:
        save(calibration, Path(folder, FILE))
        files = {filename: Path(folder, FILE), _CARD: card.encode()}
        made = api.create_commit(repo_id, [hub.CommitOperationAdd(*file) for file in files.items()], **how)
    return str(made.pr_url or made.commit_url)


def _card_of(api: Any, hub: Any, repo_id: str, commit: str) -> str:
    """The model card as a commit has it; "" where there is none."""
    try:
        return read_text(Path(api.hf_hub_download(repo_id, _CARD, revision=commit)))
    except hub.errors.EntryNotFoundError:
        return ""


def save_beside(
    calibration: Calibration,
    folder: str | PathLike[str],
    coverage: Coverage = 0.9,
    *,
    evaluation: Evaluation | None = None,
    filename: str = FILE,
    overwrite: bool = False,
) -> None:
    """Write into a local folder what `push` writes: the calibration, and its section in README.md.

    Parameters
    ----------
    folder : of a saved model; upload it whole with the hub's own tools
    coverage, evaluation : of the certificate, as for `Calibration.certificate`
    filename : of the calibration in the folder
    overwrite : whether a calibration that is there is replaced; it is refused otherwise
    """
    certificate = calibration.certificate(coverage, evaluation)
    place = as_path(folder)
    if not place.is_dir():
        raise FileError(f"cannot write to {place}: it is not a directory. Save the model there first.")
    card = place / _CARD
    text = with_section(read_text(card) if card.exists() else "", certificate, filename)
    save(calibration, place / filename, overwrite=overwrite)
    write_whole(card, text)


def with_section(card: str, certificate: Certificate, filename: str = FILE, repo_id: str | None = None) -> str:
    """A model card with the section of a calibration: in place of the one it has, or at its end.

    Parameters
    ----------
    card : the text of README.md, "" where there is none
    filename : of the calibration next to the card
    repo_id : "owner/model", where they are on the hub

    >>> from evicp import calibrate
    >>> certificate = calibrate([[2.0, 1.0, 0.0]] * 30, [0] * 30, "lac").certificate(0.9)
    >>> card = with_section("# A model", certificate)
    >>> card.splitlines()[:4]
    ['# A model', '', '<!-- evicp: calibration.safetensors -->', '## Prediction sets']
    >>> with_section(card, certificate) == card
    True
    """
    if not _NAME.fullmatch(filename) or ".." in filename:
        raise FileError(f"filename must be a name in the model's folder that ends in .safetensors; got {filename!r}.")
    begin, end = f"<!-- evicp: {filename} -->", f"<!-- end of evicp: {filename} -->"
    section = f"{begin}\n{_section(certificate, filename, repo_id)}\n{end}\n"
    before, found, rest = card.partition(begin)
    if not found:
        return f"{card.rstrip()}\n\n{section}".lstrip()
    _, closed, after = rest.partition(end)
    if not closed:
        raise InputError(f"the model card has the line {begin} but not {end}. Put it back, or remove both.")
    return before + section + after.removeprefix("\n")


def _section(certificate: Certificate, filename: str, repo_id: str | None) -> str:
    """What the card says of a calibration, as Markdown."""
    address = filename if repo_id is None else f"hf://{repo_id}" if filename == FILE else f"hf://{repo_id}/{filename}"
    return f"""## Prediction sets

`{filename}` turns the logits of this model into prediction sets with a coverage guarantee:

```python
import evicp

calibration = evicp.load("{address}")
sets = calibration.predict(logits, coverage={certificate.coverage:g})  # logits: (rows, {certificate.n_classes})
```

{certificate.to_markdown()}"""


def fetched(address: str) -> Path:
    """The file that `hf://owner/model[@revision][/file]` stands for, from the hub or from the cache of its client."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise FileError(f"an address on the hub must be hf://owner/model[@revision][/file]; got {address}.")
    hub = _client("an address hf://")
    revision = match["revision"] and unquote(match["revision"])
    try:
        return Path(hub.hf_hub_download(match["repo"], match["file"] or FILE, revision=revision))
    except (OSError, ValueError, hub.errors.EntryNotFoundError) as error:
        reason = next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)
        raise FileError(f"cannot read {address}: {reason}") from error


def _client(purpose: str) -> Any:
    return need("huggingface_hub", "huggingface_hub", "hub", purpose)
