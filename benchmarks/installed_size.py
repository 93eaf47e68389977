"""Claim: the base, with all it needs, takes as little disk as NumPy and SciPy allow.

`--pythons` are those of environments with evicp installed, separated by commas: this version's, and another's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

_CODE = """
import re
from importlib.metadata import PackageNotFoundError, distribution
sizes, left = {}, ["evicp"]
while left:
    name = left.pop()
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    if found.name in sizes:
        continue
    paths = {path.locate().resolve() for path in found.files or ()}
    sizes[found.name] = sum(path.stat().st_size for path in paths if path.is_file())
    left += [re.match(r"[\\w.-]+", need)[0] for need in found.requires or () if "extra ==" not in need]
for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
    print(f"{name:20} {size / 1e6:8.1f} MB")
print(f"{'in all':20} {sum(sizes.values()) / 1e6:8.1f} MB")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", default=sys.executable)
    for python in parser.parse_args().pythons.split(","):
        print(python)
        print(subprocess.run([python, "-c", _CODE], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
