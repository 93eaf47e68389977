"""Take the picture of a report: `python docs/pictures/report.py` (needs Chromium, Playwright and Pillow)."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from evicp.cli import app

PICTURE = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1280, 1180


def draw() -> None:
    """Write the picture: the top of the page that `evicp demo` writes."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        app(["demo", "-o", str(page)], standalone_mode=False)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached")
        tab.wait_for_timeout(500)
        shot = Image.open(io.BytesIO(tab.screenshot()))
        browser.close()
    shot.convert("RGB").quantize(64).save(PICTURE, optimize=True)


if __name__ == "__main__":
    draw()
