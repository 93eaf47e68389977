"""What users call on a GPU, and the kernels inside it, against one read of the logits: `logits.sum()`.

    python benchmarks/gpu.py                    # public calls, then the kernels of every score
    python benchmarks/gpu.py --calls            # public calls alone, beside TorchCP's where it is installed
    python benchmarks/gpu.py --kernels --shapes 200000x1000,4096x128256
    python benchmarks/gpu.py --steps            # where the time of a small call goes
    python benchmarks/gpu.py --profile          # device time of each kernel inside the public calls
    python benchmarks/gpu.py --guarantees       # by class, by group, by uncertainty, weighted, against marginal sets
    python benchmarks/gpu.py --sweep            # tile sizes and warps, to choose what `tiling_for` returns
    python benchmarks/gpu.py --json gpu.json    # all figures, each kernel's too, with device and versions

Calls are timed in a row from CUDA event to CUDA event, Python included, as in a loop over batches. On the device the
kernels are timed, replayed from a recorded graph. Agreement with the NumPy reference and the rule that membership is
`score <= threshold`, exactly, are checked before kernels are timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch

import evicp
from evicp.kernels import _numpy, _triton, _triton_batch, _triton_launch, _triton_sets

SCORES = (evicp.ECP(), evicp.LAC(), evicp.APS(), evicp.RAPS(), evicp.SAPS(), evicp.TopK(), evicp.Margin())
COVERAGE = 0.9


def synthetic(n: int, n_classes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a classifier that is right about three times in four, and labels."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.empty(n, n_classes, device="cuda", dtype=dtype)
    for rows in torch.arange(n, device="cuda").split(max(1, 2**28 // n_classes)):
        logits[rows] = (1.5 * torch.randn(len(rows), n_classes, device="cuda", generator=generator)).to(dtype)
    labels = torch.randint(n_classes, (n,), device="cuda", generator=generator)
    largest = 1.5 * float(np.sqrt(2 * np.log(n_classes)))
    lift = largest + 3.5 + 3.0 * torch.randn(n, device="cuda", generator=generator)
    logits[torch.arange(n, device="cuda"), labels] += lift.to(dtype)
    return logits, labels


def from_file(path: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Real logits and labels from an npz file, repeated until there are n rows."""
    with np.load(path) as file:
        logits, labels = torch.tensor(file["logits"]).float().cuda(), torch.tensor(file["labels"]).long().cuda()
    times = -(-n // len(labels))
    return logits.repeat(times, 1)[:n].contiguous(), labels.repeat(times)[:n]


def microseconds(work: Callable[[], Any], repeats: int = 25, calls: int = 4) -> float:
    """The median time of a call, one after the other as in a loop over batches, from event to event."""
    for _ in range(5):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def threshold_of(score: evicp.Score, logits: torch.Tensor, labels: torch.Tensor, coverage: float = COVERAGE) -> float:
    scores = _triton.label_scores(score, logits, labels).sort().values
    return float(scores[min(len(scores) - 1, int(np.ceil((len(scores) + 1) * coverage)) - 1)])


def check(score: evicp.Score, logits: torch.Tensor, labels: torch.Tensor, rows: int) -> dict[str, Any]:
    """Agreement with the reference on some rows; the bit rule on all of them."""
    own = _triton.label_scores(score, logits, labels)
    threshold = threshold_of(score, logits, labels)
    offsets, members, _ = _triton.ragged_sets(score, logits, threshold)
    row = torch.repeat_interleave(torch.arange(len(labels), device="cuda"), offsets.diff())
    covered = torch.zeros(len(labels), dtype=torch.bool, device="cuda")
    covered[row[members == labels[row]]] = True
    assert torch.equal(covered, own <= threshold), "membership and score disagree"
    z = logits[:rows].float().cpu().numpy()
    reference = _numpy.dense_scores(score, z)
    expected = np.take_along_axis(reference, labels[:rows, None].cpu().numpy(), 1)[:, 0]
    error = np.abs(own[:rows].cpu().numpy() - expected) / np.maximum(1, np.abs(expected))
    dense = np.zeros(reference.shape, bool)
    upto = int(offsets[rows])
    dense[row[:upto].cpu().numpy(), members[:upto].cpu().numpy()] = True
    differing = int((dense != (reference <= threshold)).sum())
    return {
        "error": float(error.max()),
        "differing": differing,
        "of": dense.size,
        "mean size": len(members) / len(labels),
    }


#: The shapes at which public calls are timed: rows, classes and type.
CALIBRATED = ((100_000, 1000, "float32"), (500_000, 100, "float32"), (1_000_000, 1000, "float32"))
PREDICTED = (
    *((200_000, 1000, "float32"), (200_000, 1000, "bfloat16"), (1_000_000, 100, "float32")),
    *((4096, 151_936, "bfloat16"), (64, 151_936, "bfloat16"), (32, 1000, "float32"), (1, 1000, "float32")),
)
REPLAYED = ((64, 151_936, "bfloat16"), (32, 1000, "float32"))


def calls() -> list[dict[str, Any]]:
    """The public calls, as multiples of a read; sets of RAPS and APS against TorchCP's."""
    results: list[dict[str, Any]] = []

    def report(what: str, logits: torch.Tensor, times: float) -> None:
        read, (n, n_classes) = microseconds(logits.sum), logits.shape
        dtype = str(logits.dtype).removeprefix("torch.")
        results.append({"call": what, "n": n, "K": n_classes, "dtype": dtype, "us": times, "read_us": read})
        shape = f"{n:,} x {n_classes:,} {dtype}"
        print(f"{what:32s} {shape:28s} {times:9,.0f} us  {times / read:6.2f} reads of {read:,.0f} us", flush=True)

    for shape in CALIBRATED:
        logits, labels = synthetic(*shape[:2], getattr(torch, shape[2]))
        report("calibrate", logits, microseconds(lambda z=logits, y=labels: evicp.calibrate(z, y), 15))
        del logits, labels
    for shape in PREDICTED:
        calibration, logits = calibrated(shape)
        report("predict", logits, microseconds(lambda c=calibration, z=logits: c.predict(z, COVERAGE), 15))
        if shape in REPLAYED:
            for labels in (None, 8):
                graph = recorded(calibration.predictor(COVERAGE, logits, labels=labels), logits)
                what = f"predictor, {'mask' if labels is None else '8 labels'}, replayed"
                report(what, logits, microseconds(graph.replay, 25, 1))
        del calibration, logits
    logits, labels = synthetic(200_000, 1000, torch.float32)
    calibration = evicp.calibrate(logits[:5000], labels[:5000])
    sets = calibration.predict(logits, COVERAGE)
    report("predict, three coverages", logits, microseconds(lambda: calibration.predict(logits, [0.8, 0.9, 0.95]), 9))
    report("evaluate", logits, microseconds(lambda: evaluated(sets, labels, logits), 9))
    return results + against_torchcp(logits, labels)


def evaluated(sets: Any, labels: torch.Tensor, logits: torch.Tensor) -> tuple[float, float]:
    """The figures that every user reads: each is computed when it is read."""
    result = evicp.evaluate(sets, labels, logits)
    return result.coverage, result.mean_size


def calibrated(shape: tuple[int, int, str]) -> tuple[evicp.Calibration, torch.Tensor]:
    """A calibration on some rows, and n new ones."""
    n, n_classes, dtype = shape
    logits, labels = synthetic(max(n, 2000) if n_classes > 10_000 else max(n, 5000), n_classes, getattr(torch, dtype))
    rows = min(len(labels), 5000)
    calibration = evicp.calibrate(logits[:rows], labels[:rows])
    return calibration, logits if n == len(logits) else logits[:n].clone()


def recorded(predictor: Callable[[torch.Tensor], Any], logits: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A call of a predictor as a graph."""
    predictor(logits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        predictor(logits)
    return graph


def against_torchcp(logits: torch.Tensor, labels: torch.Tensor) -> list[dict[str, Any]]:
    """Whole predictions of TorchCP and of evicp, by the same score on the same tensor."""
    _, prediction, missing = peers.torchcp(logits, labels)
    for name, reason in missing.items():
        print(f"{name} {reason}")
    results = []
    for score in ("lac", "raps", "aps"):
        work = prediction.get(f"TorchCP {score.upper()}")
        if work is None:
            continue
        calibration = evicp.calibrate(logits[:5000], labels[:5000], score)
        own = microseconds(lambda c=calibration: c.predict(logits, COVERAGE), 7)
        theirs = microseconds(work, 7)
        results.append({"call": "predict", "score": score, "us": own, "torchcp_us": theirs})
        print(f"sets of {score}: {own:,.0f} us, TorchCP {theirs:,.0f} us, {theirs / own:.1f} x", flush=True)
    return results


def steps(n: int = 32, n_classes: int = 1000) -> list[dict[str, Any]]:
    """Where the time of a small prediction goes, launched kernel by kernel and replayed: host time of each step."""
    calibration, logits = calibrated((n, n_classes, "float32"))
    score, threshold = calibration.score, calibration.threshold(COVERAGE)
    batch = _triton_batch.Batch(score, logits, 0)
    found = batch.slots()
    room = batch.candidates(found)
    whole = _triton_sets.Recorded(score, logits, threshold, _triton_launch.made_for(score, logits))
    named: dict[str, Callable[[], Any]] = {
        "predict, as it is": lambda: calibration.predict(logits, COVERAGE),
        "launched: statistics and report, allocated and cleared": lambda: _triton_batch.Batch(score, logits, 0),
        "launched: other memory": lambda: (batch.slots(), batch.candidates(found)),
        "launched: the kernel that reads": lambda: batch.read_candidates(found, threshold),
        "launched: the kernel that scores": lambda: batch.score_candidates(room, threshold),
        "launched: running sum": lambda: torch.cumsum(room[3], 0, dtype=torch.int64),
        "launched: all of it": lambda: _triton.ragged_sets(score, logits, threshold),
        "both: wait and read the report": batch.status.tolist,
        "replayed: logits copied": lambda: whole.logits.copy_(logits),
        "replayed: launch of the graph": whole.graph.replay,
        "replayed: sets copied out": whole.out[: 2 * n].clone,
    }
    results = []
    for name, work in named.items():
        times = []
        for _ in range(200):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            times.append(1e6 * (time.perf_counter() - start))
        results.append({"step": name, "us": statistics.median(times)})
        print(f"{name:56s} {results[-1]['us']:6.1f} us", flush=True)
    return results


def profile(calls: int = 5) -> list[dict[str, Any]]:
    """The device time of each kernel inside public calls, as torch.profiler has it."""
    results = []

    def report(what: str, work: Callable[[], Any]) -> None:
        for _ in range(4):
            work()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(calls):
                work()
            torch.cuda.synchronize()
        kernels = {event.key[:44]: event.self_device_time_total / calls for event in found.key_averages()}
        kernels = {name: time for name, time in sorted(kernels.items(), key=lambda one: -one[1]) if time >= 0.5}
        results.append({"call": what, "kernels": kernels})
        listed = ", ".join(f"{name} {time:.1f}" for name, time in kernels.items())
        print(f"{what}: {sum(kernels.values()):,.0f} us on the device: {listed}", flush=True)

    for shape in PREDICTED:
        calibration, logits = calibrated(shape)
        name = " x ".join(map(str, shape))
        report(f"predict {name}", lambda c=calibration, z=logits: c.predict(z, COVERAGE))
        if shape in REPLAYED:
            graph = recorded(calibration.predictor(COVERAGE, logits), logits)
            report(f"predictor, mask, replayed, {name}", graph.replay)
        del calibration, logits
    logits, labels = synthetic(200_000, 1000, torch.float32)
    for score in ("raps", "aps"):
        calibration = evicp.calibrate(logits[:5000], labels[:5000], score)
        report(f"predict, {score}, 200,000 x 1,000", lambda c=calibration: c.predict(logits, COVERAGE))
    sets = evicp.calibrate(logits[:5000], labels[:5000]).predict(logits, COVERAGE)
    report("evaluate 200,000 x 1,000", lambda: evicp.evaluate(sets, labels, logits))
    report("calibrate 200,000 x 1,000", lambda: evicp.calibrate(logits, labels))
    return results


def compare(logits: torch.Tensor, labels: torch.Tensor, scores: tuple[evicp.Score, ...]) -> list[dict[str, Any]]:
    """Whole calls, Python and the wait for the device included, and what their kernels take, as multiples of a read."""
    n, n_classes = logits.shape
    floor, device_floor = microseconds(logits.sum), captured(logits.sum)
    dtype = str(logits.dtype).removeprefix("torch.")
    print(f"\n{n:,} x {n_classes:,} {dtype}: logits.sum() {floor:,.0f} us a call, {device_floor:,.0f} us on the device")
    print(f"torch.logsumexp {microseconds(lambda: logits.logsumexp(1)) / floor:.2f} x", flush=True)
    print("          labels: call   x  device x   sets: call   x  device x  mean size  error    differing")
    results = []
    for score in scores:
        agreement = check(score, logits, labels, rows=max(2, min(2000, 2_000_000 // n_classes)))
        threshold = threshold_of(score, logits, labels)
        call = {
            "labels": microseconds(lambda s=score: _triton.label_scores(s, logits, labels, settled=False)),
            "sets": microseconds(lambda s=score, q=threshold: _triton.ragged_sets(s, logits, q)),
        }
        steps = kernels(score, logits, labels, threshold)
        device = {what: sum(v for name, v in steps.items() if name.startswith(what)) for what in call}
        results.append(
            {
                "score": score.name,
                "n": n,
                "K": n_classes,
                "dtype": dtype,
                "sum_us": floor,
                "sum_device_us": device_floor,
            }
            | {f"{what}_us": value for what, value in call.items()}
            | {f"{what}_device_us": value for what, value in device.items()}
            | {"device_steps_us": steps}
            | agreement
        )
        line = "".join(
            f"  {call[what]:10,.0f} {call[what] / floor:6.2f} {device[what] / device_floor:6.2f}" for what in call
        )
        about = (
            f"{agreement['mean size']:9.2f}  {agreement['error']:.1e}  {agreement['differing']} of {agreement['of']:,}"
        )
        crowded = f"  ({steps['crowded']:.0f} rows sorted, not in device x)" if steps["crowded"] else ""
        print(f"{score.name:7s} {line} {about}{crowded}", flush=True)
    return results + beside_torchcp(logits, labels, results)


def beside_torchcp(logits: torch.Tensor, labels: torch.Tensor, ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """TorchCP on the same tensors, and how many times faster our ECP is."""
    calibration, prediction, missing = peers.torchcp(logits, labels)
    for name, reason in missing.items():
        print(f"{name} {reason}")
    results = []
    for what, works in {"labels": calibration, "sets": prediction}.items():
        for name, work in works.items():
            try:
                times = microseconds(work, 7)
            except torch.cuda.OutOfMemoryError:
                print(f"{name}, {what}: out of memory")
                continue
            results.append({"peer": name, "what": what, "us": times, "n": logits.shape[0], "K": logits.shape[1]})
            ratios = ", ".join(f"{times / row[f'{what}_us']:.0f} x our {row['score']}" for row in ours[:4])
            print(f"{name}, {what}: {times:,.0f} us, {ratios}", flush=True)
    return results


def captured(work: Callable[[], Any], times: int = 8) -> float:
    """The time a kernel itself takes: launched from a recorded graph, without Python between launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    return microseconds(graph.replay, 7, 1) / times


def kernels(score: evicp.Score, logits: torch.Tensor, labels: torch.Tensor, threshold: float) -> dict[str, float]:
    """Each kernel of label scores and of sets by itself, in microseconds of the device."""
    batch = _triton_batch.Batch(score, logits, 0)
    found, result = batch.slots(), torch.empty(len(logits), dtype=torch.float64, device="cuda")
    room = batch.candidates(found)
    report = {"labels: read": captured(lambda: batch.read_labels(labels))}
    report["labels: score"] = captured(lambda: batch._score_labels(labels, result))
    report["sets: read"] = captured(lambda: batch.read_candidates(found, threshold))
    report["sets: score"] = captured(lambda: batch.score_candidates(room, threshold))
    batch.read_candidates(found, threshold)
    batch.score_candidates(room, threshold)
    _, counts, _, sizes, *_ = room
    offsets = torch.cumsum(sizes, 0, dtype=torch.int64)
    total = int(offsets[-1])
    report["sets: offsets"] = captured(lambda: torch.cumsum(sizes, 0, dtype=torch.int64))
    report["sets: write"] = captured(lambda: batch.write_sets(room, offsets, total, threshold))
    report["candidates"], report["crowded"] = float(counts.double().mean()), int((counts > batch.tiling.slots).sum())
    return report


def device_times(
    score: evicp.Score, logits: torch.Tensor, labels: torch.Tensor, threshold: float
) -> tuple[float, float]:
    """What the kernels of label scores and of sets add up to."""
    report = kernels(score, logits, labels, threshold)
    return tuple(sum(v for name, v in report.items() if name.startswith(part)) for part in ("labels", "sets"))


def sweep(logits: torch.Tensor, labels: torch.Tensor, scores: tuple[evicp.Score, ...]) -> None:
    """Other tilings than the chosen one."""
    chosen, _triton_launch.FEW_ROWS = _triton_launch.tiling_for, 0
    n_classes, floor = logits.shape[1], captured(logits.sum)
    tiling = chosen(n_classes, scores[0].name)
    if tiling.long:
        variants = [
            {"block": b, "warps": w}
            for b, w in ((1024, 2), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16), (8192, 32), (16384, 32))
        ]
    else:
        each = {(r, w): r * tiling.block // (32 * w) for r in (1, 2, 4, 8, 16, 32) for w in (1, 2, 4)}
        variants = [{"rows": r, "warps": w} for (r, w), logits_each in each.items() if 16 <= logits_each <= 128]
        variants += [
            {"rows_ahead": r, "chunk": c}
            for r, c in ((32, 32), (64, 64), (128, 64), (256, 128), (256, 256), (512, 128))
        ]
        variants += [{"slots": s} for s in (16, 32, 64, 128) if s <= tiling.block]
    for score in scores:
        threshold = threshold_of(score, logits, labels)
        for variant in [{}, *variants]:
            _triton_launch.tiling_for = lambda k, r, v=variant: dataclasses.replace(chosen(k, r), **v)
            try:
                start = time.perf_counter()
                calibration, sets = (time_ / floor for time_ in device_times(score, logits, labels, threshold))
                spent = time.perf_counter() - start
                what = f"{score.name:7s} K {n_classes} {variant}"
                print(f"{what}: labels {calibration:.2f} x, sets {sets:.2f} x ({spent:.1f} s)", flush=True)
            except Exception as error:  # a tile that does not fit is a result, too
                print(f"{score.name:7s} K {n_classes} {variant}: {type(error).__name__} {str(error)[:80]}", flush=True)
    _triton_launch.tiling_for = chosen


def guarantees(logits: torch.Tensor, labels: torch.Tensor, score: evicp.Score) -> list[dict[str, Any]]:
    """The public calls under each guarantee, as multiples of the marginal ones."""
    n, n_classes = logits.shape
    rng = np.random.default_rng(0)
    weights, groups = rng.exponential(size=n), rng.integers(0, 10, n)
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "marginal": ({}, {}),
        "by class": ({"by": "class"}, {}),
        "by 10 groups of rows": ({"by": groups}, {"groups": groups}),
        "by 5 bands of uncertainty": ({"by": "uncertainty"}, {}),
        "weights of rows": ({"weights": weights}, {"weights": weights}),
    }
    results, base = [], {}
    print(f"\n{score.name}, {n:,} x {n_classes:,}: calibration us, x marginal, sets us, x marginal, mean size")
    for name, (made, used) in ways.items():
        calibration = evicp.calibrate(logits, labels, score, **made)
        sets = calibration.predict(logits, COVERAGE, **used)
        took = {
            "calibration": microseconds(lambda made=made: evicp.calibrate(logits, labels, score, **made), 5, 1),
            "sets": microseconds(lambda c=calibration, used=used: c.predict(logits, COVERAGE, **used), 5, 1),
        }
        base = base or took
        size = float(sets.sizes.double().mean())
        results.append({"score": score.name, "n": n, "K": n_classes, "guarantee": name, "mean size": size} | took)
        figures = "".join(f"{took[what]:12,.0f} {took[what] / base[what]:7.2f}" for what in took)
        print(f"{name:26s}{figures}  {size:.2f}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="200000x1000,4096x128256", help="rows x classes, comma-separated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--scores", default="ecp,lac,aps,raps,saps,topk,margin")
    parser.add_argument("--logits", help="npz with logits and labels, repeated to the first shape's rows")
    parser.add_argument("--calls", action="store_true", help="public calls alone")
    parser.add_argument("--kernels", action="store_true", help="kernels alone")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--guarantees", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    scores = tuple(score for score in SCORES if score.name in options.scores.split(","))
    others = options.sweep or options.guarantees or options.kernels
    alone = options.calls or options.steps or options.profile
    results: list[dict[str, Any]] = []
    if options.steps or options.profile:
        results += (steps() if options.steps else []) + (profile() if options.profile else [])
    elif not others:
        results += calls()
    for shape in () if alone else options.shapes.split(","):
        n, n_classes = map(int, shape.split("x"))
        data = (
            from_file(options.logits, n) if options.logits else synthetic(n, n_classes, getattr(torch, options.dtype))
        )
        if options.sweep:
            sweep(*data, scores)
        elif options.guarantees:
            results += [figure for score in scores for figure in guarantees(*data, score)]
        else:
            results += compare(*data, scores)
        del data
    if options.json:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        Path(options.json).write_text(json.dumps(about | {"results": results}, indent=1))


if __name__ == "__main__":
    main()
