"""Draw the badges of the README from pyproject.toml: `python docs/pictures/badges.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).parent
ROOT = PICTURES.parents[1]
_WIDTH, _HEIGHT = 6.6, 20  # of a character, of a badge


def badges() -> dict[str, str]:
    """Each badge as SVG, by the name of its file."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    assert settings["tool"]["mypy"]["strict"] is True
    assert (ROOT / "src" / "evicp" / "py.typed").is_file()
    return {
        "badge-python.svg": badge("python", project["requires-python"].replace(">=", ">= ")),
        "badge-license.svg": badge("license", project["license"]),
        "badge-types.svg": badge("types", "mypy strict"),
    }


def badge(name: str, value: str) -> str:
    """A grey name and a blue value, next to each other."""
    left, right = (round(_WIDTH * len(text)) + 12 for text in (name, value))
    texts = [
        f'<text x="{x:g}" y="14" fill="#fff" text-anchor="middle">{text.replace(">", "&gt;")}</text>'
        for x, text in ((left / 2, name), (left + right / 2, value))
    ]
    size = f'width="{left + right}" height="{_HEIGHT}"'
    grey = f"M3 0h{left - 3}v{_HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="11">',
        f"<title>{name}: {value.replace('>', '&gt;')}</title>",
        f'<rect {size} rx="3" fill="#2f6fb0"/><path d="{grey}" fill="#555"/>',
        *texts,
        "</svg>\n",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    for file, text in badges().items():
        (PICTURES / file).write_text(text, encoding="utf-8")
