"""The scoreboard: runs every row of it at full length and writes RELIABILITY.md.

A row is a guarantee, the tests that measure it, and the line they must not cross; the tests leave their figures with
the fixture `figure`. Of several figures of one name the largest stands if the name begins with "largest", the smallest
if it begins with "smallest", and otherwise their sum. A row without a fresh figure is open.

    python tests/reliability/scoreboard.py          # all rows
    python tests/reliability/scoreboard.py 2 9      # some; the others keep their figures while they are fresh
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parents[2]
BOARD = REPOSITORY / "RELIABILITY.md"
FRESH = timedelta(days=30)
OPEN = "open"


@dataclass(frozen=True)
class Row:
    """One promise. `alone` keeps its tests in one process: they share a costly fixture, a clock or the memory."""

    name: str
    what: str
    pass_line: str
    tests: tuple[str, ...]
    alone: bool = False


@dataclass(frozen=True)
class Result:
    """What a row's tests found, and when, on which commit and machine."""

    figure: str
    date: str
    commit: str
    machine: str

    @property
    def passed(self) -> bool:
        return not self.figure.startswith(("FAILED", OPEN))

    def fresh(self, today: date) -> bool:
        return self.passed and today - date.fromisoformat(self.date) <= FRESH


def _own(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/reliability/test_{name}.py" for name in names)


_ARTIFACT = _own("hostile_artifact")[0]

#: A star marks a negative control: a deliberately wrong variant that the same tests must, and do, find wrong.
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "1*",
            "exact rank: coverages on the 0.001 grid, also as 1 - x, n <= 2,000, against integers",
            "0 mismatches; the control, `ceil` of doubles, has > 2,000",
            _own("exact_rank"),
        ),
        Row(
            "2*",
            "coverage law: every score, backend and guarantee, n = 99, 1,000 repeats of 1,000 rows, "
            "against BetaBinomial(m, k, n + 1 - k)",
            "abs(z) <= 4 and KS p >= 1e-4; z >= -4 with ties; ranks off by one are caught",
            _own("coverage_law", "conditional_law"),
        ),
        Row(
            "3",
            "scores against 100-digit arithmetic: Gaussian, +-1e4, +-1e30, ties, spikes, denormals, masks",
            "error <= 1e-12 max(1, abs(reference)) in float64, 1e-5 in float32; halves equal their upcast; 0 NaN",
            _own("high_precision"),
        ),
        Row(
            "4",
            "backend agreement: NumPy, native, torch, Triton (interpreted), every kernel line run",
            "ranks identical; memberships differ <= 1 in 10^6, above 0.99 only within 1e-5 of the threshold",
            (*_own("backend_agreement"), "tests/kernels/test_kernels_triton.py"),
            alone=True,
        ),
        Row(
            "5*",
            "metamorphic: class and row order, chunks, memory layout, nesting, p-values, membership",
            "0 violations in 10,000 examples each; wrong scores are caught",
            _own("metamorphic"),
        ),
        Row(
            "6",
            "bad input through functions, estimator and command line",
            "exact error and message; exit 2 and one line; 0 tracebacks, 0 NaN",
            (*_own("bad_input"), "tests/cli/test_cli.py::test_bad_input_is_one_line_and_exit_2"),
        ),
        Row(
            "7",
            "scikit-learn's estimator contract, clone, Pipeline, GridSearchCV",
            "all pass, exceptions listed with reasons (none)",
            ("tests/adapters/test_sklearn.py",),
        ),
        Row(
            "8",
            "oracle agreement: LAC, APS, RAPS, SAPS of TorchCP 1.2.1, LAC, APS and top-k of MAPIE 1.6.0, on real "
            "logits with the same random numbers; its abstention and its sets of several labels",
            "sets equal outside the documented differences",
            (
                *_own("oracle_agreement"),
                "tests/risk/test_selective.py::test_mapies_controller_abstains_from_the_same_rows",
                "tests/risk/test_multilabel.py::test_mapies_threshold_is_the_next_one_on_its_grid",
            ),
        ),
        Row(
            "9*",
            "atomic save: SIGKILL at random instants, a full disk, two writers",
            "always the old file or the new one; the control, a plain write, is caught",
            _own("atomic_save"),
        ),
        Row(
            "10",
            "hostile artifact: attacks by hand, random mutations, every bit flip, every truncation; rules",
            "one typed error, <= 1 s alone, <= file + 64 MiB; no damaged file is accepted",
            (_ARTIFACT, "tests/risk/test_hostile_rules.py"),
        ),
        Row(
            "11",
            "no pickle, no eval: a scan of the source, an audit hook while loading",
            "0",
            tuple(
                f"{_ARTIFACT}::test_{name}"
                for name in (
                    "nothing_is_executed_and_no_other_file_is_read",
                    "no_module_can_unpickle_or_evaluate",
                    "the_scan_finds_what_it_looks_for",
                )
            ),
        ),
        Row(
            "12",
            "determinism: 1 and 2 threads, fork and spawn, chunk sizes, repeated runs",
            "one hash per backend",
            _own("determinism"),
            alone=True,
        ),
        Row(
            "13",
            "threads: 16 threads x 1,000 calls from a cold start on one object",
            "identical to serial",
            _own("threads"),
            alone=True,
        ),
        Row(
            "14*",
            "memory: 1M x 1,000 float32 from disk through calibrate, predict, evaluate",
            "peak <= 1 GiB; the control, without blocks, exceeds it",
            _own("memory"),
            alone=True,
        ),
        Row(
            "15",
            "worker death: a Ray worker killed in mid-run",
            "same result, every row once",
            ("tests/adapters/test_ray.py",),
            alone=True,
        ),
        Row(
            "16",
            "report and command line: names with `<script>`, `../`, NUL; the report in a browser",
            "escaped; 0 network requests; nothing written outside the given path",
            ("tests/report/test_report.py -m reliability", "tests/cli/test_cli.py -m reliability"),
            alone=True,
        ),
        Row(
            "17",
            "import and install: what `import evicp` loads and costs; oldest and newest dependencies",
            "<= 150 ms over NumPy's; no heavy package; both green",
            ("tests/project/test_import.py", *_own("install")),
            alone=True,
        ),
        Row(
            "18*",
            "sensitivity of the tests: bugs with silently wrong results, put into a copy of the package one by one",
            "all of them caught, at least 15; the control, a copy without a bug, passes",
            _own("seeded_bugs"),
        ),
        Row(
            "18b",
            "sensitivity of the tests: a random sample of mutants of evidence, scores, calibration, reliability, files",
            ">= 90 % killed in each module",
            _own("mutants"),
        ),
        Row(
            "19*",
            "monitor: false alarms over exchangeable streams, delay after a drop",
            "alarms <= the stated rate; the control, betting against independent labels, raises too many",
            _own("monitor_law"),
        ),
        Row(
            "20",
            "defects measured in other packages, one test each",
            "none of them here",
            _own("peers_defects"),
        ),
        Row(
            "21*",
            "statements of results: verdicts, intervals, plans, figures, checksums",
            "errors at the stated rates; the control, a verdict that ignores the variation of calibration sets, is "
            "caught",
            _own("honest_results"),
        ),
        Row(
            "22*",
            "a selected score (`auto`) has the right coverage on other rows",
            "abs(z) < 4; the control, selection on the calibration rows, is caught",
            ("tests/evaluation/test_tuning.py::test_auto_keeps_the_promise_and_would_break_it_on_its_own_rows",),
        ),
        Row(
            "23*",
            "calibrated by one backend in one precision, used by another in another: rows of a very certain network",
            "no coverage is lost; the control, unchanged thresholds, loses coverage",
            ("tests/kernels/test_arithmetic.py",),
        ),
        Row(
            "24*",
            "instruction sets: one hash at every level the machine has, by GCC and Clang; the reference, the "
            "metamorphic relations and the kernels' tests at each",
            "one hash; a build that may fuse products and sums is caught",
            _own("levels"),
        ),
        Row(
            "25*",
            "sanitizers: the kernels' tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer",
            "0 reports; an inserted read beyond a row and an inserted race are caught",
            _own("sanitizers"),
        ),
        Row(
            "26",
            "silently wrong results reported from outside: a test for each",
            "0 left",
            ("tests/reliability/found_outside",),
        ),
        Row(
            "27*",
            "few rows per class; tied and low-entropy logits: smoothed sets, randomised scores of ten seeds, every "
            "pair of precisions; 2,500 repeats",
            "abs(z) < 3 where coverage is exact, z > -3 where ties may raise it; rows split in the order of their "
            "classes, shared random numbers and thresholds without a margin are caught",
            _own("few_rows_law", "ties_law"),
        ),
        Row(
            "28*",
            "checks of new rows: rate of false alarms by logits, reference, labels, with ties",
            "alarms <= the stated rate + 4 standard errors; a reference used as truth, the wrong tail and an "
            "uncorrected triple test are caught",
            _own("exchangeable_law"),
        ),
        Row(
            "34*",
            "groups that overlap: coverage in every one of them, 2,000 repeats, with ties; thresholds compared with "
            "linear programs that include the new row; seconds for 1,000 rows of 20 groups",
            ">= 4 standard errors below the target in no group; one threshold for all, a fit without the new row and "
            "one with the wrong sign are caught; <= 10 s",
            (*_own("overlapping_law"), "tests/calibration/laws/test_overlapping.py"),
        ),
        Row(
            "35*",
            "scores for long tails (frequencies, class offsets, rank limits) learned from other rows: 2,000 repeats",
            "abs(z) <= 4 over all rows, and in every class with rank limits; ranks off by one are caught",
            _own("long_tail_law"),
        ),
        Row(
            "36*",
            "folds with all of the coverage proven, by e-values: models that share most of their rows, 2,000 repeats",
            "abs(z) <= 4; sets without all labels that any fold lacks, and ranks off by one, are caught",
            _own("cross_law"),
        ),
        Row(
            "37*",
            'labels that the model lacks: coverage of known rows, and of unseen ones by "something else"; '
            "2,000 repeats",
            "abs(z) <= 4 for each; a threshold from known rows alone, and ranks off by one, are caught",
            _own("unseen_law"),
        ),
        Row(
            "29",
            "first call and footprint: empty home, read-only site-packages, no compiler, 20 processes at once",
            "the same result, immediately, nothing written",
            _own("first_call"),
            alone=True,
        ),
        Row(
            "31*",
            "risk control: misses, costs by class, distances and a user-defined function, 2,000 calibrations",
            "mean loss <= risk (z <= 4); with a confidence, few enough calibrations exceed it; a threshold that "
            "ignores the new row, or was selected on the test rows, is caught",
            _own("risk_law"),
        ),
        Row(
            "32*",
            "answer or abstain: how often the error of answers exceeds its bound, and how often a threshold at the "
            "bound is certified, also by class and by group; 2,000 calibrations",
            "at most at the stated rate, within 4 standard errors; abs(z) <= 4 at the bound; a threshold that suits "
            "the calibration rows themselves, the wrong tail, and one mistake not counted are caught",
            _own("selective_law"),
        ),
        Row(
            "33*",
            "several labels at once: the share of missed labels, by label, and with the precision of sure labels, "
            "2,000 calibrations",
            "at most the target (z <= 4), both bounds together at the stated rate; a threshold that ignores the new "
            "row, and a precision that suits the calibration rows, are caught",
            _own("multilabel_law"),
        ),
        Row(
            "30",
            "the cases that the short run skips: real logits on ten splits, the nine networks of the paper, the "
            "pages of findings and of the leaderboard, the gallery, the report on every screen, estimated weights, the "
            "text example, torch's formats",
            "all pass",
            (
                "tests/paper/test_reference_splits.py",
                "tests/extraction/test_extraction_networks.py",
                "tests/project/test_examples.py",
                "tests/project/test_pictures.py",
                "tests/paper/test_experiments.py",
                "tests/studies/test_findings.py",
                "tests/studies/test_reproduction.py",
                "tests/report/test_report.py",
                "tests/evaluation/test_leaderboard.py",
                "tests/adapters/test_torch_export.py",
                "tests/calibration/laws/test_density.py",
                "tests/calibration/test_limits.py",
                "tests/calibration/test_smoothed.py",
            ),
        ),
    )
}


# ---------------------------------------------------------------------------------------------------------------
# Running


def measure(row: Row) -> Result:
    """Run a row's tests at full length."""
    begun = _commit()
    with tempfile.TemporaryDirectory() as folder:
        reports = []
        for number, selection in enumerate(row.tests):
            path, _, options = selection.partition(" ")
            if not (REPOSITORY / path.partition("::")[0]).exists():
                return _stamped(f"{OPEN}: {path} does not exist yet", begun)
            reports.append(Path(folder) / f"{number}.xml")
            _pytest([path, *options.split()], reports[-1], alone=row.alone)
        if not all(report.exists() for report in reports):
            return _stamped("FAILED: the tests did not run to their end", begun)
        return _stamped(summary(ElementTree.parse(report).getroot() for report in reports), begun)


def _pytest(arguments: list[str], report: Path, *, alone: bool) -> None:
    parallel = [] if alone else ["-n", str(os.cpu_count() or 1), "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", "--quiet", "--quiet", *parallel, f"--junitxml={report}", *arguments]
    environment = os.environ | {"EVICP_RELIABILITY": "long"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=False)


def summary(reports: Iterable[ElementTree.Element]) -> str:
    """The figures of test reports in one line; what failed, where something did."""
    cases = [case for report in reports for case in report.iter("testcase")]
    failed = [case.get("name", "") for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if failed:
        return f"FAILED: {len(failed)} of {len(cases)} tests, first {failed[0]}".replace("|", "/")
    if len(cases) == skipped:
        return f"{OPEN}: no test could run here"
    figures: dict[str, list[str]] = {}
    for item in (item for case in cases for item in case.iter("property")):
        figures.setdefault(item.get("name", ""), []).append(item.get("value", ""))
    parts = [f"{name} {combined(name, values)}" for name, values in figures.items()]
    parts.append(f"{len(cases) - skipped:,} tests passed" + (f", {skipped} could not run here" if skipped else ""))
    return "; ".join(parts).replace("|", "/")


def combined(name: str, values: list[str]) -> str:
    """One figure out of those that several tests left under one name."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return ", ".join(dict.fromkeys(values))
    pick = {"largest": max, "smallest": min}.get(name.partition(" ")[0], sum)
    return f"{pick(numbers):,.3g}" if any(x % 1 for x in numbers) else f"{int(pick(numbers)):,}"


def _stamped(figure: str, begun: str) -> Result:
    """A figure with its date, the commit it was measured on (or between which ones) and the machine."""
    ended = _commit()
    commit = ended if begun == ended else f"{begun.rstrip('+')}..{ended}"
    return Result(figure, datetime.now(UTC).date().isoformat(), commit, _machine())


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "src") else "")


def _machine() -> str:
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(": ")[2].strip() if named else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


# ---------------------------------------------------------------------------------------------------------------
# Writing


HEAD = """# Reliability

Each row is one claim with its tests, a measured figure and a pass line. `make reliability` runs all tests at full
length and writes this page (short versions are part of `make test`). A star marks a row with a negative control: a
deliberately wrong variant that the same tests must detect, which is itself tested. A row without a figure, with a
figure older than 30 days or beyond its pass line is **open**. A `+` after a commit: the source had uncommitted
changes; two commits: the source changed from the first to the second during the run. [SECURITY.md](SECURITY.md)
states what is guaranteed and what is not.

| # | what is tested | figure | pass line | date | commit | machine |
|---|---|---|---|---|---|---|
"""


def render(results: dict[str, Result], today: date) -> str:
    """The page; rows without a fresh figure are open."""
    lines = []
    for name, row in ROWS.items():
        result = results.get(name, Result(OPEN, "", "", ""))
        stale = result.passed and not result.fresh(today)
        figure = f"{OPEN}: not measured since {result.date}" if stale else result.figure
        cells = (name, row.what, figure, row.pass_line, result.date, result.commit, result.machine)
        lines.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(lines)


def parse(text: str) -> dict[str, Result]:
    """The results a page holds."""
    cells = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in text.splitlines()]
    return {row[0]: Result(row[2], *row[4:]) for row in cells if len(row) == 7 and row[0] in ROWS and row[4]}


def write(results: dict[str, Result], path: Path = BOARD) -> None:
    """Put the page in place whole: whoever interrupts a run keeps the last page."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(render(results, datetime.now(UTC).date()), encoding="utf-8")
    temporary.replace(path)


def main(names: list[str]) -> int:
    """Run the named rows, or all of them, and note each on the page: whoever interrupts a run keeps what was done."""
    known = {row.rstrip("*"): row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown row {unknown[0]}; there are {', '.join(known)}")
    results: dict[str, Result] = {}
    begun = time.monotonic()
    for name in [known[name] for name in names] or ROWS:
        start = time.monotonic()
        results[name] = measure(ROWS[name])
        print(f"{name:>4}  {time.monotonic() - start:6.0f} s  {results[name].figure}", flush=True)  # noqa: T201
        before = parse(BOARD.read_text(encoding="utf-8")) if BOARD.exists() else {}
        write(before | {name: results[name]})
    print(f"{len(results)} rows in {(time.monotonic() - begun) / 60:.1f} minutes: {BOARD.name}")  # noqa: T201
    return 0 if all(result.passed for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
