"""The same sets in other runtimes: memberships unlike the library's, and milliseconds a row.

    pip install '.[onnx,torch]' onnxscript openvino
    npm install --ignore-scripts --prefix node onnxruntime-node
    python benchmarks/runtimes.py --node node

Calibrated on half of the embedded ImageNet logits at coverage 0.9; the other half, 1,250 rows of 1,000 classes in
single precision, goes through each runtime in batches of 250. The network is the identity, so the time is that of the
sets. One thread, CPU time, the shortest of several runs. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import evicp
from evicp.datasets import load_imagenet_sample
from evicp.tables import markdown_table

COVERAGE, BATCH = 0.9, 250
SCORES = (evicp.LAC(), evicp.ECP(), evicp.APS(randomized=False))
Rows = np.ndarray
#: Takes rows, gives memberships and the milliseconds a row took.
Runner = Callable[[Rows], tuple[np.ndarray, float]]

NODE = """
const ort = require("onnxruntime-node"), fs = require("fs");
const [model, input, output, n, k, batch, repeats] = process.argv.slice(1);
const file = fs.readFileSync(input), rows = new Float32Array(file.buffer, file.byteOffset, n * k);
(async () => {
  const session = await ort.InferenceSession.create(model, {intraOpNumThreads: 1, interOpNumThreads: 1});
  const mask = new Uint8Array(n * k);
  let best = Infinity;
  for (let round = 0; round < repeats; round++) {
    const before = process.cpuUsage();
    for (let start = 0; start < n; start += Number(batch)) {
      const count = Math.min(batch, n - start);
      const x = new ort.Tensor("float32", rows.subarray(start * k, (start + count) * k), [count, Number(k)]);
      mask.set((await session.run({x}, ["set_mask"])).set_mask.data, start * k);
    }
    const used = process.cpuUsage(before);
    best = Math.min(best, (used.user + used.system) / 1000);
  }
  fs.writeFileSync(output, mask);
  console.log(JSON.stringify({milliseconds: best, version: require("onnxruntime-node/package.json").version}));
})();
"""


def timed(call: Callable[[Rows], Any], repeats: int) -> Runner:
    """A runner from a function of a batch."""

    def run(rows: Rows) -> tuple[np.ndarray, float]:
        batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        taken = []
        for _ in range(repeats + 1):  # the first one warms up
            before = time.process_time()
            masks = [np.asarray(call(batch)) for batch in batches]
            taken.append(time.process_time() - before)
        return np.concatenate(masks), 1000 * min(taken[1:]) / len(rows)

    return run


def identity_model(path: Path, n_classes: int) -> Path:
    """An ONNX classifier whose inputs are its logits."""
    import onnx

    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["logits"])],
        "identity",
        [info("x", onnx.TensorProto.FLOAT, ["batch", n_classes])],
        [info("logits", onnx.TensorProto.FLOAT, ["batch", n_classes])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def by_onnxruntime(path: Path, output: str = "set_mask") -> Callable[[Rows], Any]:
    """A graph in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda rows: session.run([output], {name: rows})[0]


def by_openvino(path: Path) -> Callable[[Rows], Any]:
    """A graph in OpenVINO, with all numbers as the graph has them."""
    import openvino

    how = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", how)
    return lambda rows: compiled({"x": rows})["set_mask"].copy()


def by_node(path: Path, folder: Path, repeats: int) -> Runner:
    """A graph in Node's onnxruntime, in a separate process."""

    def run(rows: Rows) -> tuple[np.ndarray, float]:
        given, made = path.with_suffix(".rows"), path.with_suffix(".mask")
        given.write_bytes(rows.tobytes())
        arguments = [path, given, made, *rows.shape, BATCH, repeats + 1]
        command = ["node", "-e", NODE, "--", *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        mask = np.frombuffer(made.read_bytes(), np.uint8).reshape(rows.shape).astype(bool)
        return mask, json.loads(done.stdout)["milliseconds"] / len(rows)

    return run


def torch_runners(calibration: evicp.Calibration, rows: Rows, folder: Path, repeats: int) -> dict[str, Runner]:
    """The module of sets in torch's own formats, saved and loaded again."""
    import torch

    import evicp.torch

    torch.set_num_threads(1)
    module = evicp.torch.SetPredictor(torch.nn.Identity(), calibration, COVERAGE).eval()
    example, dynamic = torch.from_numpy(rows[:BATCH]), {0: torch.export.Dim("rows")}
    program = torch.export.export(module, (example,), dynamic_shapes={"args": (dynamic,)})
    torch.export.save(program, folder / "sets.pt2")
    exported = torch.export.load(folder / "sets.pt2").module()
    torch.jit.trace(module, (example,)).save(folder / "sets.pt")
    traced = torch.jit.load(folder / "sets.pt")
    names = ["logits", "set_mask", "uncertainty"]
    how = {"dynamo": True, "output_names": names, "dynamic_shapes": ((dynamic,),), "verbose": False}
    torch.onnx.export(module, (example,), folder / "torch.onnx", **how)

    def masks(network: Any) -> Callable[[Rows], Any]:
        return lambda batch: network(torch.from_numpy(batch))[1].numpy()

    with torch.inference_mode():
        return {
            "torch.export": timed(masks(exported), repeats),
            "TorchScript": timed(masks(traced), repeats),
            "ONNX by torch, onnxruntime": timed(by_onnxruntime(folder / "torch.onnx"), repeats),
        }


def runners(calibration: Any, rows: Rows, folder: Path, options: argparse.Namespace) -> dict[str, Runner | str]:
    """What there is to run sets with, or why not."""
    import evicp.onnx

    graph = folder / "sets.onnx"
    evicp.onnx.export(
        identity_model(folder / "m.onnx", rows.shape[1]), calibration, COVERAGE, graph, output_is="logits"
    )
    found: dict[str, Runner | str] = {
        "the library": timed(lambda batch: calibration.predict(batch, COVERAGE).mask(), options.repeats),
        "onnxruntime, Python": timed(by_onnxruntime(graph), options.repeats),
        "onnxruntime, Node": by_node(graph, options.node, options.repeats) if options.node else "no --node",
    }
    try:
        found["OpenVINO"] = timed(by_openvino(graph), options.repeats)
    except ImportError as error:
        found["OpenVINO"] = str(error)
    return {**found, **torch_runners(calibration, rows, folder, options.repeats)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--node", type=Path, help="folder in which npm installed onnxruntime-node")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    sample, table = load_imagenet_sample(), []
    logits, half = sample.logits.astype(np.float32), len(sample.labels) // 2
    rows = logits[half:]
    for score in SCORES:
        calibration = evicp.calibrate(logits[:half], sample.labels[:half], score)
        expected = calibration.predict(rows, COVERAGE).mask()
        with tempfile.TemporaryDirectory() as folder:
            for name, runner in runners(calibration, rows, Path(folder), options).items():
                line = [name, score.describe().partition("(")[0].upper(), f"{len(rows):,} x {rows.shape[1]:,}"]
                if isinstance(runner, str):
                    table.append([*line, runner, "", ""])
                    continue
                mask, milliseconds = runner(rows)
                more, fewer = np.sum(mask & ~expected), np.sum(expected & ~mask)
                table.append([*line, f"{more:,}", f"{fewer:,}", f"{milliseconds:.3f}"])
    print(markdown_table(["runtime", "score", "rows", "labels too many", "labels missing", "ms a row"], table))


if __name__ == "__main__":
    main()
