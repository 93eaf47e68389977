"""The servers of the examples, run by uvicorn: eight threads and two processes get the library's sets."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from pages import load
from places import ROOT

for package in ("fastapi", "uvicorn"):
    pytest.importorskip(package, reason="no server is installed: make test-adapters")


@contextmanager
def serving(name: str, workers: int, **variables: str) -> Iterator[int]:
    """The port of an example's server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "examples"), f"{name}:app", "--port", str(port)]
    environment = {**os.environ, "EVICP_THREADS": "1", **variables}
    with subprocess.Popen([*command, "--workers", str(workers), "--log-level", "error"], env=environment) as process:
        try:
            for _ in range(1200):
                assert process.poll() is None
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def answer(port: int, path: str, asked: Any = None) -> tuple[int, Any]:
    body = None if asked is None else json.dumps(asked)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    return response.status, json.loads(content) if content else None


def test_fastapi_answers_with_the_librarys_sets(rows: tuple, tmp_path: Path) -> None:
    logits, labels = rows
    calibration = evicp.calibrate(logits, labels, class_names=list("abcd"))
    calibration.save(tmp_path / "cal.safetensors")
    expected = calibration.predict(logits, 0.8)
    with serving("serve_fastapi", 2, EVICP_CALIBRATION=str(tmp_path / "cal.safetensors")) as port:

        def ask(i: int) -> Any:
            return answer(port, "/sets", {"logits": [logits[i].tolist()], "coverage": 0.8})

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(len(logits))))
        assert [status for status, _ in answers] == [200] * len(logits)
        assert [content["sets"][0] for _, content in answers] == expected.to_lists()
        assert [content["names"][0] for _, content in answers] == expected.to_lists(names=True)
        status, content = answer(port, "/sets", {"logits": logits.tolist(), "coverage": 0.5, "allow_empty": False})
        assert (status, content["sets"]) == (200, calibration.predict(logits, 0.5, allow_empty=False).to_lists())
        assert answer(port, "/certificate?coverage=0.8")[1]["rank"] == calibration.certificate(0.8).rank
        for bad, said in {
            "logits must have 4 classes, as in the calibration; got 2": {"logits": [[1.0, 2.0]]},
            "logits must not be NaN; got NaN at row 0, class 1": {"logits": [[1.0, float("nan"), 0.0, 0.0]]},
            "coverage": {"logits": [[1.0, 2.0, 0.0, 0.0]], "coverage": 1.5},
        }.items():
            status, content = answer(port, "/sets", said)
            assert status == 422
            assert bad in str(content["detail"])
        assert ask(0)[0] == 200  # it is still there


@pytest.fixture
def exported(rows: tuple, tmp_path: Path) -> tuple[Path, evicp.Calibration]:
    """A graph of the identity with its sets, in single precision."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from evicp.onnx import export

    single = onnx.TensorProto.FLOAT
    values = [onnx.helper.make_tensor_value_info(name, single, ["batch", 4]) for name in ("x", "logits")]
    nodes = [onnx.helper.make_node("Identity", ["x"], ["logits"])]
    graph = onnx.helper.make_graph(nodes, "identity", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    calibration = evicp.calibrate(np.float32(rows[0]), rows[1])
    export(model, calibration, 0.8, tmp_path / "sets.onnx", output_is="logits")
    return tmp_path / "sets.onnx", calibration


def test_the_protocol_of_triton_gives_the_librarys_sets(rows: tuple, exported: tuple) -> None:
    path, calibration = exported
    logits = np.float32(rows[0])
    tensor = {"name": "x", "shape": list(logits.shape), "datatype": "FP32", "data": logits.ravel().tolist()}
    with serving("serve_onnx", 2, EVICP_ONNX=str(path)) as port:
        status, content = answer(port, "/v2/models/sets/infer", {"inputs": [tensor], "outputs": [{"name": "set_mask"}]})
        assert status == 200
        (mask,) = content["outputs"]
        assert (mask["name"], mask["datatype"], mask["shape"]) == ("set_mask", "BOOL", [80, 4])
        assert np.array_equal(np.reshape(mask["data"], (80, 4)), calibration.predict(logits, 0.8).mask())
        assert answer(port, "/v2/health/ready") == (200, None)
        about = answer(port, "/v2/models/sets")[1]
        assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert [one["name"] for one in about["outputs"]] == ["logits", "set_mask", "set_size", "uncertainty"]
        for bad, said in {
            "inputs are x of FP32 [-1, 4]; got y of FP32": {**tensor, "name": "y"},
            "inputs are x of FP32 [-1, 4]; got x of INT8": {**tensor, "datatype": "INT8"},
            "cannot be answered": {**tensor, "shape": [81, 4]},
            "got x of FP32 [160, 2]": {**tensor, "shape": [160, 2]},
        }.items():
            status, content = answer(port, "/v2/models/sets/infer", {"inputs": [said]})
            assert status == 400
            assert bad in content["detail"]


def test_a_repository_for_triton_describes_the_graph(exported: tuple, tmp_path: Path) -> None:
    example = load(ROOT / "examples" / "serve_onnx.py")
    place = example.write_repository(str(exported[0]), str(tmp_path / "models"), 16)
    assert (place / "1" / "model.onnx").read_bytes() == exported[0].read_bytes()
    assert (
        (place / "config.pbtxt").read_text()
        == """name: "sets"
backend: "onnxruntime"
max_batch_size: 16
input [
  { name: "x" data_type: TYPE_FP32 dims: [4] }
]
output [
  { name: "logits" data_type: TYPE_FP32 dims: [4] },
  { name: "set_mask" data_type: TYPE_BOOL dims: [4] },
  { name: "set_size" data_type: TYPE_INT64 dims: [1] reshape: { shape: [ ] } },
  { name: "uncertainty" data_type: TYPE_FP64 dims: [1] reshape: { shape: [ ] } }
]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
    )


def test_the_load_test_measures_servers_that_answer_right(tmp_path: Path) -> None:
    """A few requests; a wrong answer would end it."""
    code = "import serving, pathlib, sys; s = serving.servers(pathlib.Path(sys.argv[1]))[1:]; "
    code += "print(*(row[0] for row in serving.figures(s, 1, 16, 2)[1]), sep=', ')"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "FastAPI with evicp, onnxruntime"
