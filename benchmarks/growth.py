"""Claim: time per logit hardly depends on the number of rows or classes."""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from evicp import ECP, calibrate, kernels
from evicp.bench import FLOOR, Timings, imagenet_like, interleave
from evicp.tables import text_table

_SHAPES = (
    (1000, 1000),
    (10000, 1000),
    (100000, 1000),
    (1000000, 1000),
    *tuple((100000000 // k // 10, k) for k in (10, 100, 1000, 10000, 100000)),
)


def measure(options: argparse.Namespace) -> list[Timings]:
    """ECP calibration scores and sets over 1e3..1e6 rows and 10..1e5 classes; nanoseconds per logit."""
    tables, rows = [], []
    for n, k in _SHAPES:
        if n * k * 4 > options.gib * 2**30:
            print(f"skipped {n:,} x {k:,}: larger than --gib {options.gib}")
            continue
        logits, labels = imagenet_like(n, k)
        calibration = calibrate(logits[:5000], labels[:5000])
        workloads = {
            FLOOR: logits.sum,
            "scores": lambda z=logits, y=labels: kernels.label_scores(ECP(), z, y),
            "sets": lambda z=logits, c=calibration: c.predict(z, 0.9),
        }
        timings = interleave(f"{n:,} x {k:,}", workloads, rounds=options.rounds)
        tables.append(timings)
        per_logit = [f"{timings[name].median / (n * k) * 1e9:.3f}" for name in workloads]
        rows.append([f"{n:,}", f"{k:,}", *per_logit])
    print(text_table(["rows", "classes", "one read", "scores", "sets"], rows), "\nnanoseconds per logit\n")
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
    common.run("growth", measure, rounds=3, gib=4.5)
