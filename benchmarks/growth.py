"""Claim: time per logit hardly depends on the number of rows or classes."""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from evicp import ECP, calibrate, kernels
from evicp.bench import FLOOR, Timing, Timings, imagenet_like
from evicp.tables import text_table

_ROWS = [(n, 1000) for n in (1000, 10000, 100000, 1000000)]
_CLASSES = [(10000000 // k, k) for k in (10, 100, 1000, 10000, 100000)]
_PARTS = (FLOOR, "scores", "sets")
#: What the claim is about: smaller problems are measured as well, and time there goes into other things.
_FEWEST_ROWS, _FEWEST_CLASSES = 10000, 100


def measure(options: argparse.Namespace) -> list[Timings]:
    """ECP calibration scores and sets over 1e3..1e6 rows and 10..1e5 classes, all in turn; nanoseconds per logit."""
    shapes = [(n, k) for n, k in dict.fromkeys(_ROWS + _CLASSES) if n * k * 4 <= options.gib * 2**30]
    workloads = {}
    for n, k in shapes:
        logits, labels = imagenet_like(n, k)
        calibration = calibrate(logits[:5000], labels[:5000])
        workloads[n, k, FLOOR] = logits.sum
        workloads[n, k, "scores"] = lambda z=logits, y=labels: kernels.label_scores(ECP(), z, y)
        workloads[n, k, "sets"] = lambda z=logits, c=calibration: c.predict(z, 0.9)
    timings = common.interleaved("growth", workloads, options)
    per_logit = {(n, k): [timings[n, k, part].median / (n * k) * 1e9 for part in _PARTS] for n, k in shapes}
    rows = [[f"{n:,}", f"{k:,}", *(f"{value:.3f}" for value in values)] for (n, k), values in per_logit.items()]
    print(text_table(["rows", "classes", "one read", "scores", "sets"], rows), "\nnanoseconds per logit\n")
    for what, axis in (
        (f"{_FEWEST_ROWS:,} to 1,000,000 rows", [shape for shape in _ROWS if shape[0] >= _FEWEST_ROWS]),
        (f"{_FEWEST_CLASSES:,} to 100,000 classes", [shape for shape in _CLASSES if shape[1] >= _FEWEST_CLASSES]),
    ):
        values = [per_logit[shape][1:] for shape in axis if shape in per_logit]
        scores, sets = (max(column) / min(column) for column in zip(*values, strict=True))
        print(f"{what}: the slowest logit takes {scores:.2f} x the fastest for scores, {sets:.2f} x for sets")
    print()
    tables = [
        Timings(f"{n:,} x {k:,}", tuple(Timing(part, timings[n, k, part].seconds) for part in _PARTS), {})
        for n, k in shapes
    ]
    _plot(tables, Path(__file__).parent / "results" / "growth.svg")
    return tables


def _plot(tables: list[Timings], path: Path) -> None:
    """Nanoseconds per logit against the size of the problem, as a small SVG."""
    width, height, left, bottom = 640, 320, 60, 50
    series = {name: [] for name in (FLOOR, "scores", "sets")}
    for table in tables:
        n, k = (int(part.replace(",", "")) for part in table.what.split(" x "))
        for name, points in series.items():
            points.append((table.what, table[name].median / (n * k) * 1e9))
    top = max(value for points in series.values() for _, value in points) * 1.1
    step = (width - left - 20) / max(1, len(tables) - 1)
    colours = {FLOOR: "#888", "scores": "#1f77b4", "sets": "#d62728"}
    size = f'width="{width}" height="{height}" font-family="sans-serif" font-size="10"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    parts.append(f'<text x="{left}" y="14" font-size="12">ECP: nanoseconds per logit (grey: one read)</text>')
    for tick in range(5):
        y = height - bottom - tick / 4 * (height - bottom - 30)
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 3}" text-anchor="end">{top * tick / 4:.2f}</text>')
    for name, points in series.items():
        xy = [
            (left + i * step, height - bottom - value / top * (height - bottom - 30))
            for i, (_, value) in enumerate(points)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in xy)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"><title>{name}</title></circle>'
            for x, y in xy
        ]
    for i, (label, _) in enumerate(series["sets"]):
        place = f'x="{left + i * step:.1f}" y="{height - bottom + 14}"'
        parts.append(f'<text {place} text-anchor="middle" font-size="7">{label}</text>')
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    common.run("growth", measure, gib=4.5)
