"""Draw the pictures of the documentation from the embedded sample: `python docs/pictures/draw.py`.

Plain SVG, written as text, in colours that read on light and on dark paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

import evicp
from evicp.datasets import load_imagenet_sample

INK, SOFT, ACCENT, SECOND, THIRD, FOURTH = "#7a8490", "#a9b1ba", "#3d85c6", "#c27c1a", "#4a9a74", "#a06cb4"
F64 = np.ndarray


@dataclass
class Canvas:
    """A plot area with linear axes; y may be logarithmic."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 720
    height: int = 340
    left: int = 64
    right: int = 120
    top: int = 24
    bottom: int = 52
    log: bool = False
    parts: list[str] = field(default_factory=list)

    def px(self, x: float) -> float:
        """Where a value of x lies on the page."""
        return self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        """Where a value of y lies on the page."""
        low, high, at = (np.log10((*self.y, y)) if self.log else (*self.y, y)).__iter__()
        return self.height - self.bottom - (at - low) / (high - low) * (self.height - self.top - self.bottom)

    def line(
        self, xs: Sequence[float], ys: Sequence[float], colour: str = ACCENT, width: float = 2, dash: str = ""
    ) -> None:
        """A polyline."""
        points = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in zip(xs, ys, strict=True))
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{style}/>')

    def bar(self, x0: float, x1: float, y: float, colour: str, opacity: float = 1.0) -> None:
        """A bar from the axis to y."""
        top, left = self.py(y), self.px(x0)
        size = f'width="{self.px(x1) - left:.1f}" height="{self.height - self.bottom - top:.1f}"'
        self.parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}" fill-opacity="{opacity}"/>')

    def text(self, x: float, y: float, text: str, colour: str = INK, anchor: str = "start", size: int = 13) -> None:
        """Text at a place on the page, in pixels."""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def axes(self, xs: Sequence[float], ys: Sequence[float], x_title: str, y_title: str, form: str = "g") -> None:
        """Ticks, a base line and titles."""
        base = self.height - self.bottom
        for y in ys:
            self.line(self.x, (y, y), f"{SOFT}80", 0.5)
            self.text(self.left - 8, self.py(y) + 4, f"{y:{form}}", anchor="end")
        for x in xs:
            self.text(self.px(x), base + 18, f"{x:g}", anchor="middle")
        self.text((self.left + self.width - self.right) / 2, base + 40, x_title, anchor="middle")
        self.text(12, 16, y_title)

    def svg(self, title: str) -> str:
        """The picture."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
        font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
        return "\n".join([f"{head} {font}>", f"<title>{escape(title)}</title>", *self.parts, "</svg>", ""])


def halves() -> tuple[F64, F64, F64, F64]:
    """The embedded sample, cut in two at random: logits and labels to calibrate on, and to test on."""
    sample = load_imagenet_sample()
    order = np.random.default_rng(0).permutation(len(sample.labels))
    used, new = order[:1250], order[1250:]
    return sample.logits[used], sample.labels[used], sample.logits[new], sample.labels[new]


def threshold() -> str:
    """The scores of true labels, and the threshold that 90 % of them stay below."""
    logits, labels, _, _ = halves()
    calibration = evicp.calibrate(logits, labels)
    limit, rank = calibration.threshold(0.9), evicp.conformal_rank(calibration.n, 0.9)
    edges = np.arange(-13, 0.01, 0.5)
    counts, _ = np.histogram(calibration.scores, edges)
    canvas = Canvas((-13, 0), (0, float(counts.max()) * 1.15), right=24)
    canvas.axes(
        range(-12, 1, 2), range(0, int(counts.max()) + 1, 100), "score of the true label (ln S)", "calibration rows"
    )
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        inside = min(max((limit - low) / (high - low), 0), 1)
        middle = low + inside * (high - low)
        canvas.bar(low + 0.03, max(middle, low + 0.03), count, ACCENT)
        canvas.bar(max(middle, low + 0.03), high, count, SOFT)
    canvas.line((limit, limit), canvas.y, SECOND, 2)
    canvas.text(canvas.px(limit) + 8, 40, f"threshold {limit:.2f}: score {rank:,} of {calibration.n:,}", SECOND)
    canvas.text(canvas.px(limit) + 8, 58, "a label that scores more is left out")
    canvas.text(canvas.px(limit) - 8, 40, "a label that scores less is in the set", ACCENT, "end")
    return canvas.svg("Scores of true labels in the calibration rows, and the threshold")


def law() -> str:
    """Coverage differs between calibration sets: the Beta law for three sizes."""
    x = np.linspace(0.80, 0.97, 400)
    lines = [
        (n, evicp.Reliability(n, 0.9).density(x), colour)
        for n, colour in ((100, SECOND), (1000, ACCENT), (10_000, THIRD))
    ]
    canvas = Canvas((0.80, 0.97), (0, float(lines[-1][1].max()) * 1.05), left=30, right=24)
    canvas.axes(
        (0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96),
        (),
        "coverage over all future rows",
        "density, by number of calibration rows",
    )
    canvas.line((0.9, 0.9), canvas.y, SOFT, 1, "4 3")
    for (n, density, colour), (at, shift) in zip(lines, ((0.925, -14), (0.911, -12), (0.9045, 0)), strict=True):
        canvas.line(x, density, colour)
        here = float(np.interp(at, x, density))
        canvas.text(canvas.px(at) + 6, canvas.py(here) + shift, f"n = {n:,}", colour)
    return canvas.svg("The Beta law of coverage for 100, 1,000 and 10,000 calibration rows")


def conditional() -> str:
    """The guarantee is an average: coverage by difficulty."""
    logits, labels, new, truth = halves()
    evaluation = evicp.evaluate(evicp.calibrate(logits, labels).predict(new, 0.9), truth, new)
    strata = evaluation.difficulty_strata or ()
    canvas = Canvas((0, len(strata)), (0, 1.05), right=24)
    canvas.axes(
        (), (0, 0.25, 0.5, 0.75, 1), "rank of the true label among the logits, and test rows", "coverage", ".2f"
    )
    for i, stratum in enumerate(strata):
        canvas.bar(i + 0.2, i + 0.8, stratum.coverage or 0, ACCENT)
        centre = canvas.px(i + 0.5)
        inside = (stratum.coverage or 0) > 0.1
        y = canvas.py(stratum.coverage or 0) + (18 if inside else -6)
        canvas.text(centre, y, f"{stratum.coverage or 0:.2f}", "#ffffff" if inside else INK, "middle")
        canvas.text(centre, canvas.height - canvas.bottom + 18, f"{stratum.label}: {stratum.count}", anchor="middle")
    canvas.line(canvas.x, (0.9, 0.9), SECOND, 1.5, "6 4")
    canvas.text(
        canvas.width - 24,
        canvas.py(0.9) - 8,
        f"target 0.90, observed {evaluation.coverage:.4f} over all rows",
        SECOND,
        "end",
    )
    return canvas.svg("Coverage by difficulty: the guarantee holds on average, not for every kind of row")


def sizes() -> str:
    """What a coverage costs: mean size of four scores, their temperature fitted on rows of its own."""
    logits, labels, new, _ = halves()
    temperature = evicp.fit_temperature(logits[:250], labels[:250]).temperature
    coverages = np.arange(0.70, 0.9851, 0.005)
    canvas = Canvas((0.70, 0.985), (0.6, 200), log=True)
    ticks = (1, 2, 5, 10, 20, 50, 100)
    canvas.axes((0.7, 0.75, 0.8, 0.85, 0.9, 0.95), ticks, "target coverage", "mean set size, logarithmic")
    ends = []
    for kind, colour in ((evicp.ECP, ACCENT), (evicp.LAC, SECOND), (evicp.RAPS, THIRD), (evicp.APS, FOURTH)):
        calibration = evicp.calibrate(logits[250:], labels[250:], kind(temperature=temperature))
        means = [sets.sizes.mean() for sets in calibration.predict(new, coverages.round(3).tolist())]
        canvas.line(coverages, means, colour, 2.5 if kind is evicp.ECP else 1.5)
        ends.append((canvas.py(means[-1]), f"{kind.name} {means[-1]:.1f}", colour))
    lowest = float("-inf")
    for y, text, colour in sorted(ends):
        lowest = max(y + 4, lowest + 16)
        canvas.text(canvas.width - canvas.right + 8, lowest, text, colour)
    return canvas.svg("Mean set size against coverage for ECP, LAC, RAPS and APS")


def risk() -> str:
    """What a risk costs: mean size where misses count alike, and where near misses cost less."""
    logits, labels, new, _ = halves()
    tree = evicp.hierarchy_costs([[label // 100, label // 10] for label in range(1000)])
    risks = np.arange(0.02, 0.2001, 0.005)
    canvas = Canvas((0.02, 0.2), (0.6, 20), log=True)
    ticks = (0.02, 0.05, 0.1, 0.15, 0.2)
    canvas.axes(ticks, (1, 2, 5, 10, 20), "target risk (expected loss)", "mean set size, logarithmic")
    for name, loss, colour, shift in (("a miss", "miss", ACCENT, -4), ("a distance", tree, SECOND, 12)):
        control = evicp.control_risk(logits, labels, risk=0.1, loss=loss)
        means = [float(control.at(float(at)).predict(new).sizes.mean()) for at in risks]
        canvas.line(risks, means, colour, 2.5)
        canvas.text(canvas.width - canvas.right + 8, canvas.py(means[-1]) + shift, f"{name} {means[-1]:.2f}", colour)
    return canvas.svg("Mean set size against the target risk, for misses and for distances in a hierarchy")


def overlapping() -> str:
    """Coverage in groups that overlap, with one threshold for all and with overlapping groups, over ten splits."""
    sample = load_imagenet_sample()
    groups = groups_of(sample.logits)
    found: dict[str, list[F64]] = {"marginal": [], "overlapping": []}
    for seed in range(10):
        used, new = np.array_split(np.random.default_rng(seed).permutation(len(sample.labels)), 2)
        for name, how in (("marginal", {}), ("overlapping", {"groups": groups[new]})):
            by = groups[used] if how else None
            sets = evicp.calibrate(sample.logits[used], sample.labels[used], by=by).predict(sample.logits[new], **how)
            covered = sets.contains(sample.labels[new])
            found[name].append(np.array([covered[members].mean() for members in groups[new].T]))
    canvas = Canvas((0, len(GROUPS)), (0.3, 1.0), right=24)
    canvas.axes((), (0.3, 0.5, 0.7, 0.9), "group of rows", "coverage", ".1f")
    for i, name in enumerate(GROUPS):
        canvas.text(canvas.px(i + 0.5), canvas.height - canvas.bottom + 18, name, anchor="middle")
        for (start, colour), coverage in zip(
            ((0.15, SOFT), (0.52, ACCENT)), (np.mean(each, 0)[i] for each in found.values()), strict=True
        ):
            canvas.bar(i + start, i + start + 0.34, coverage, colour)
            canvas.text(canvas.px(i + start + 0.17), canvas.py(coverage) + 18, f"{coverage:.2f}", "#ffffff", "middle")
    canvas.line(canvas.x, (0.9, 0.9), SECOND, 1.5, "6 4")
    canvas.text(canvas.width - 24, 16, "left: one threshold for all; right: overlapping groups", anchor="end")
    return canvas.svg("Coverage in four groups that overlap, with one threshold and with overlapping groups")


GROUPS = ("animals", "flat softmax", "two labels close", "small logits")


def groups_of(logits: F64) -> F64:
    """Four groups of rows that overlap, by their logits alone: (n, 4), True where a row is in a group."""
    logits = logits.astype(np.float64)
    top = np.sort(logits, axis=1)[:, ::-1]
    spread = np.exp(logits - top[:, :1]).sum(1)  # 1 where one label has all probability
    return np.column_stack([logits.argmax(1) < 398, spread > 8, top[:, 0] - top[:, 1] < 1, top[:, 0] < 7])


def abstention() -> str:
    """The error of answers against the share of rows answered, and where the rule answers."""
    logits, labels, new, truth = halves()
    rule = evicp.selective(logits, labels, error=0.1, doubt="margin")
    curve, found = rule.curve(), rule.evaluate(new, truth)
    canvas = Canvas((0, 1), (0, 0.3), right=24)
    canvas.axes((0, 0.25, 0.5, 0.75, 1), (0, 0.1, 0.2, 0.3), "share of rows answered", "share of wrong answers")
    canvas.line(curve.share[5:], np.minimum(curve.upper[5:], 0.3), SOFT, 1)
    canvas.line(curve.share, curve.error, ACCENT, 2.5)
    canvas.line(canvas.x, (0.1, 0.1), SECOND, 1.5, "6 4")
    share, error = curve.chosen
    canvas.line((share, share), (0, error), SECOND, 1.5)
    canvas.text(canvas.px(share) + 8, canvas.py(0) - 12, f"answers {share:.2f} of the rows", SECOND)
    canvas.text(canvas.px(0.02), canvas.py(0.1) - 8, "target: at most 0.10", SECOND)
    canvas.text(canvas.px(0.02), canvas.py(0.28), f"on other rows {found.observed:.3f} of the answers are wrong")
    return canvas.svg("The error of answers against the share of answered rows")


def several() -> str:
    """The share of missed labels on other rows, and the size of sets, against the target share."""
    logits, labels, new, truth = halves()
    used, others = (_several(z, y) for z, y in ((logits, labels), (new, truth)))
    asked = np.arange(0.02, 0.3001, 0.01)
    found = [evicp.multilabel(*used, missed=float(share)).evaluate(*others) for share in asked]
    canvas = Canvas((0, 0.3), (0, 0.3), right=150)
    ticks = (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
    canvas.axes(ticks, (0, 0.1, 0.2, 0.3), "share of true labels that may be missed", "share missed on other rows")
    canvas.line((0, 0.3), (0, 0.3), SECOND, 1.5, "6 4")
    canvas.line(asked, [one.missed.mean_loss for one in found], ACCENT, 2.5)
    for at in (3, 8, 18, 28):
        size, y = found[at].mean_size, found[at].missed.mean_loss
        canvas.text(canvas.px(asked[at]) + 8, canvas.py(y) + 16, f"{size:.1f} labels per set")
    return canvas.svg("The share of true labels missed against the target share, and the size of sets")


def _several(logits: F64, labels: F64) -> tuple[F64, F64]:
    """Log-odds of classes, their tens and their hundreds, and the three labels of each row as a matrix."""
    p = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p = np.hstack([p, p.reshape(-1, 100, 10).sum(2), p.reshape(-1, 10, 100).sum(2)]).clip(1e-12, 1 - 1e-12)
    y = labels.astype(int)
    truth = np.zeros(p.shape, bool)
    np.put_along_axis(truth, np.column_stack([y, 1000 + y // 10, 1100 + y // 100]), True, 1)
    return np.log(p / (1 - p)), truth


def evidence() -> str:
    """Figure 1 of the paper by its caption: from logits to probabilities, with the three largest figures of one row."""
    logits = load_imagenet_sample().logits[:1].astype(float)
    opinion, top = evicp.opinion(logits), np.argsort(-logits[0])[:3]
    canvas = Canvas((0, 1), (0, 1), height=230)

    def box(left: float, top_: float, title: str, where: str, values: str) -> None:
        shape = f'<rect x="{left}" y="{top_}" width="200" height="70" rx="6" fill="none" stroke="{SOFT}"/>'
        canvas.parts.append(shape)
        for line, (text, colour) in enumerate(((title, ACCENT), (where, INK), (values, SECOND))):
            canvas.text(left + 100, top_ + 20 + 20 * line, text, colour, "middle")

    def arrow(x: float, y: float, to_x: float, to_y: float) -> None:
        canvas.parts.append(f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{INK}" stroke-width="1.5"/>')
        canvas.parts.append(f'<circle cx="{to_x}" cy="{to_y}" r="3" fill="{INK}"/>')

    def three(values: F64, form: str) -> str:
        return ", ".join(format(value, form) for value in values[0, top]) + ", ..."

    box(10, 20, "logits z", "1,000 of one photograph", three(logits, ".1f"))
    box(260, 20, "evidence e", "relu: max(z, 0)", three(opinion.evidence, ".1f"))
    box(
        510,
        20,
        "beliefs b, uncertainty u",
        f"Eq. 3, here u = {opinion.uncertainty.item():.2f}",
        three(opinion.belief, ".4f"),
    )
    box(260, 140, "Dirichlet parameters alpha", "Eq. 1: e + K x base rate", three(opinion.alpha, ".1f"))
    box(510, 140, "probabilities p", "Eq. 2: alpha / sum alpha", three(opinion.probability, ".4f"))
    arrow(210, 55, 260, 55)
    arrow(460, 55, 510, 55)
    arrow(360, 90, 360, 140)
    arrow(460, 175, 510, 175)
    return canvas.svg("From logits to evidence, beliefs, Dirichlet parameters and probabilities, for one row")


PICTURES: dict[str, Callable[[], str]] = {
    "threshold.svg": threshold,
    "law.svg": law,
    "conditional.svg": conditional,
    "sizes.svg": sizes,
    "risk.svg": risk,
    "overlapping.svg": overlapping,
    "abstention.svg": abstention,
    "multilabel.svg": several,
    "evidence.svg": evidence,
}


def main() -> None:
    """Write every picture beside this script."""
    for name, draw in PICTURES.items():
        Path(__file__).with_name(name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
