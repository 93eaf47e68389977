"""Claim: in a server, prediction sets cost little beside the request itself.

Servers run on loopback, with one process and with four, and eight threads of one client ask for the sets of one row of
1,000 classes at a time. Beside them a server of FastAPI takes the same request and answers with the likeliest label.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np

import evicp
from evicp.bench import Timing, Timings
from evicp.datasets import load_imagenet_sample
from evicp.tables import text_table

ROOT = Path(__file__).resolve().parents[1]


def alone() -> Any:
    """The control: a server that reads the same request and does next to nothing with it."""
    from fastapi import FastAPI
    from pydantic import create_model

    app = FastAPI()
    query = create_model("Query", logits=(list[list[float]], ...), coverage=(float, 0.9))

    def likeliest(query: Any) -> dict[str, list[int]]:
        return {"labels": np.argmax(query.logits, axis=1).tolist()}

    likeliest.__annotations__["query"] = query
    app.post("/sets")(likeliest)
    return app


@dataclass(frozen=True)
class Server:
    """What uvicorn runs, the path and body of its requests, and what makes labels of an answer."""

    name: str
    command: list[str]
    path: str
    body: bytes
    labels: Callable[[Any], list[int]]


def servers(folder: Path) -> list[Server]:
    """The servers, over files made in a folder."""
    from onnx import TensorProto, helper

    from evicp.onnx import export

    sample = load_imagenet_sample()
    logits = sample.logits.astype(np.float32)
    calibration = evicp.calibrate(logits[:1250], sample.labels[:1250])
    calibration.save(folder / "cal.safetensors")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1000]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "logits", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    export(model, calibration, 0.9, folder / "sets.onnx")
    row = logits[1250].tolist()
    os.environ |= {"EVICP_CALIBRATION": str(folder / "cal.safetensors"), "EVICP_ONNX": str(folder / "sets.onnx")}
    os.environ["EVICP_THREADS"] = "1"
    asked = json.dumps({"logits": [row]}).encode()
    tensor = {"name": "x", "shape": [1, 1000], "datatype": "FP32", "data": row}
    infer = json.dumps({"inputs": [tensor], "outputs": [{"name": "set_mask"}]}).encode()
    in_mask = lambda answer: [i for i, inside in enumerate(answer["outputs"][0]["data"]) if inside]  # noqa: E731
    found = [
        Server("FastAPI alone", ["benchmarks", "--factory", "serving:alone"], "/sets", asked, lambda a: a["labels"]),
        Server("FastAPI with evicp", ["examples", "serve_fastapi:app"], "/sets", asked, lambda a: a["sets"][0]),
        Server("onnxruntime", ["examples", "serve_onnx:app"], "/v2/models/sets/infer", infer, in_mask),
    ]
    expected = calibration.predict(logits[1250:1251], 0.9)[0].tolist()
    return [_checking(one, expected) for one in found]


def _checking(server: Server, expected: list[int]) -> Server:
    """The same server, each of whose answers is held against the library's set."""

    def labels(answer: Any) -> list[int]:
        found = server.labels(answer)
        if sorted(found) != sorted(expected) and server.name != "FastAPI alone":
            raise SystemExit(f"{server.name} answers {found}, not {expected}.")
        return found

    return Server(server.name, server.command, server.path, server.body, labels)


@contextmanager
def running(server: Server, workers: int) -> Iterator[tuple[int, int, float]]:
    """The port and the process of a server, and the seconds until it answered for the first time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, *what = server.command
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / folder), *what, "--port", str(port)]
    start = time.perf_counter()
    with subprocess.Popen([*command, "--workers", str(workers), "--log-level", "error"]) as process:
        try:
            while True:
                try:
                    load(server, port, 1, 1)
                    break
                except OSError:
                    if process.poll() is not None or time.perf_counter() - start > 120:
                        raise
                    time.sleep(0.02)
            yield port, process.pid, time.perf_counter() - start
        finally:
            process.terminate()


def answered(server: Server, connection: http.client.HTTPConnection) -> float:
    """The seconds of one request; an answer that is not right ends the measurement."""
    start = time.perf_counter()
    connection.request("POST", server.path, server.body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    seconds = time.perf_counter() - start
    if response.status != 200:
        raise SystemExit(f"{server.name} answers {response.status}: {content.decode()}")
    server.labels(json.loads(content))
    return seconds


def load(server: Server, port: int, requests: int, threads: int = 8) -> list[float]:
    """The seconds of each request, asked by some threads that each keep their connection."""

    def ask(count: int) -> list[float]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            return [answered(server, connection) for _ in range(count)]

    with ThreadPoolExecutor(threads) as pool:
        return [seconds for part in pool.map(ask, [requests // threads] * threads) for seconds in part]


def family(pid: int) -> list[int]:
    """A process and those that it started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(") ")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def processor_seconds(pids: list[int]) -> float:
    """What the processes have used so far."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids)
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def memory(pids: list[int]) -> float:
    """MiB of the largest; pages that processes share are divided among them."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return max(int(rollup.split("Pss:")[1].split()[0]) for rollup in rollups) / 1024


def figures(found: list[Server], workers: int, requests: int, rounds: int) -> tuple[list[Timing], list[list[str]]]:
    """The medians of each round, and a row of the table for each server; servers are asked in turn."""
    rows = []
    with ExitStack() as stack:
        started = [(server, *stack.enter_context(running(server, workers))) for server in found]
        for server, port, *_ in started:
            load(server, port, requests // 10)
        before = [processor_seconds(family(pid)) for _, _, pid, _ in started]
        parts = [[load(server, port, requests // rounds) for server, port, *_ in started] for _ in range(rounds)]
        for (server, _, pid, ready), used, *seconds in zip(started, before, *parts, strict=True):
            pids, whole = family(pid), np.concatenate(seconds)
            middle, high = 1000 * np.quantile(whole, [0.5, 0.99])
            shown = [f"{middle:.1f}", f"{high:.1f}", f"{1000 * (processor_seconds(pids) - used) / len(whole):.2f}"]
            rows.append([server.name, str(workers), *shown, f"{memory(pids):.0f}", f"{ready:.1f}"])
    medians = [tuple(float(np.median(part)) for part in seconds) for seconds in zip(*parts, strict=True)]
    timings = [Timing(row[0], some) for row, some in zip(rows, medians, strict=True)]
    return timings, rows


def measure(options: argparse.Namespace) -> list[Timings]:
    """p50 and p99 of requests, processor time of the servers, memory per worker, the first answer of a new server."""
    head = ["server", "workers", "p50 ms", "p99 ms", "CPU ms", "MiB a worker", "first answer after s"]
    rows, tables = [], []
    with tempfile.TemporaryDirectory() as folder:
        found = servers(Path(folder))
        for workers in (1, 4):
            timings, some = figures(found, workers, options.requests, options.rounds)
            rows += some
            tables.append(Timings(f"one row, eight threads, {workers} workers, wall time", tuple(timings), {}))
    print(text_table(head, rows), end="\n\n")
    return tables


if __name__ == "__main__":
    common.run("serving", measure, quiet=True, clock=None, rounds=10, requests=4000)
