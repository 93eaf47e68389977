"""A recipe for conda-forge, as it is there for the first time: bots bring it up to date with each release.

    make sdist && python release/recipe.py dist/evicp-0.1.0.tar.gz > recipe.yaml

Version, requirements and summary are those of pyproject.toml, the checksum that of the source distribution.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_RECIPE = """\
schema_version: 1
context:
  version: "{version}"
package:
  name: evicp
  version: ${{{{ version }}}}
source:
  url: https://pypi.org/packages/source/e/evicp/evicp-${{{{ version }}}}.tar.gz
  sha256: {sha256}
build:
  number: 0
  skip:
    - win  # the kernels need GCC or Clang
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
{scripts}
requirements:
  build:
    - ${{{{ compiler("cxx") }}}}
    - ${{{{ stdlib("c") }}}}
    - cmake
    - ninja
  host:
    - python
    - pip
{build}
  run:
    - python
{run}
tests:
  - python:
      imports:
        - evicp
        - evicp.cli
        - evicp.kernels._core
      pip_check: true
  - script:
      - evicp plan --coverage 0.9
about:
  homepage: {repository}
  summary: {summary}
  license: {license}
  license_file:
{license_files}
"""


def recipe(sdist: Path) -> str:
    """The recipe for a source distribution."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    about = {
        "version": sdist.name.removeprefix("evicp-").removesuffix(".tar.gz"),
        "sha256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
        "scripts": _items([f"{name} = {target}" for name, target in project["scripts"].items()], 6),
        "build": _items(map(_spaced, pyproject["build-system"]["requires"]), 4),
        "run": _items(map(_spaced, project["dependencies"]), 4),
        "repository": project["urls"]["Repository"],
        "summary": f'"{project["description"]}"',
        "license": project["license"],
        "license_files": _items(project["license-files"], 4),
    }
    return _RECIPE.format(**about)


def _spaced(requirement: str) -> str:
    """As conda writes it: a blank before the version."""
    return requirement.replace(">=", " >=")


def _items(entries: object, indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {entry}" for entry in entries)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.stdout.write(recipe(Path(sys.argv[1])))
