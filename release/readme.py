"""README.md for the package index, which knows no files beside it: links and pictures with their whole address.

    python release/readme.py README.md v0.1.0 > build/README.md

The address is that of the repository in pyproject.toml, at the tag of the release.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: [text](target) and ![text](target), where the target is a file of the repository.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def repository() -> str:
    """The address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def with_addresses(text: str, tag: str) -> str:
    """The same text with an address for every link to a file; a file that is not there is an error."""

    def address(match: re.Match[str]) -> str:
        mark, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not (ROOT / target).exists():
            raise SystemExit(f"README.md links to {target}, which does not exist.")
        return f"{mark}[{label}]({repository()}/{'raw' if mark else 'blob'}/{tag}/{target}{anchor})"

    return _LINK.sub(address, text)


if __name__ == "__main__":
    sys.stdout.write(with_addresses(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]))
