"""A server of a classifier with its sets in one ONNX graph, by the protocol that Triton and KServe speak (v2, JSON).

    evicp export model.onnx cal.safetensors --coverage 0.9 -o model_with_sets.onnx
    EVICP_ONNX=model_with_sets.onnx uvicorn --app-dir examples serve_onnx:app --workers 4
    python examples/serve_onnx.py model_with_sets.onnx models      # instead: a repository for Triton, models/sets

Triton takes the same requests. The graph needs nothing of evicp: the sets are the outputs `set_mask` and `set_size`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException, Response

NAME = "sets"

#: onnxruntime's types by the names of the protocol, and of NumPy.
TYPES = {
    "tensor(float)": ("FP32", np.float32),
    "tensor(double)": ("FP64", np.float64),
    "tensor(float16)": ("FP16", np.float16),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(bool)": ("BOOL", np.bool_),
}


def session_of(path: str) -> onnxruntime.InferenceSession:
    """A session of one thread: requests run beside each other, each in a thread of the server."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def described(tensor: Any) -> dict[str, Any]:
    """An input or output as the protocol describes it; -1 is a dimension that requests decide."""
    shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
    return {"name": tensor.name, "datatype": TYPES[tensor.type][0], "shape": shape}


# ---------------------------------------------------------------------------------------------------------------
# A repository for Triton


def write_repository(model: str, folder: str, max_batch_size: int = 64) -> Path:
    """Put a model where Triton looks for it, with its configuration: requests that wait are put into one batch."""
    session = session_of(model)
    place = Path(folder, NAME)
    (place / "1").mkdir(parents=True)
    shutil.copyfile(model, place / "1" / "model.onnx")
    blocks = "\n".join(
        f"{kind} [\n" + ",\n".join(_tensor(described(tensor)) for tensor in tensors) + "\n]"
        for kind, tensors in (("input", session.get_inputs()), ("output", session.get_outputs()))
    )
    (place / "config.pbtxt").write_text(
        f'name: "{NAME}"\nbackend: "onnxruntime"\nmax_batch_size: {max_batch_size}\n{blocks}\n'
        "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
    )
    return place


def _tensor(about: dict[str, Any]) -> str:
    """Of one row: the first dimension is the batch, which Triton adds."""
    one = about["shape"][1:] or [1]
    reshape = "" if about["shape"][1:] else " reshape: { shape: [ ] }"
    return f'  {{ name: "{about["name"]}" data_type: TYPE_{about["datatype"]} dims: {one}{reshape} }}'


# ---------------------------------------------------------------------------------------------------------------
# The same protocol on this machine


def server(path: str) -> FastAPI:
    """An application that answers for one model."""
    session, app = session_of(path), FastAPI(title="ONNX with prediction sets")
    inputs = {tensor.name: described(tensor) for tensor in session.get_inputs()}
    outputs = {tensor.name: described(tensor) for tensor in session.get_outputs()}
    dtypes = dict(TYPES.values())

    def array(given: dict[str, Any]) -> Any:
        """A tensor of a request; its values may be nested or in one list."""
        name, datatype, shape = given["name"], given["datatype"], given["shape"]
        expected = inputs.get(name, {"datatype": None, "shape": []})
        fits = len(shape) == len(expected["shape"]) and all(
            wanted in (-1, got) for wanted, got in zip(expected["shape"], shape, strict=True)
        )
        if datatype != expected["datatype"] or not fits:
            wanted = ", ".join(f"{one['name']} of {one['datatype']} {one['shape']}" for one in inputs.values())
            raise HTTPException(400, f"inputs are {wanted}; got {name} of {datatype} {shape}.")
        return np.asarray(given["data"], dtypes[datatype]).reshape(shape)

    @app.get("/v2/health/ready")
    def ready() -> Response:
        return Response()

    @app.get(f"/v2/models/{NAME}")
    def metadata() -> dict[str, Any]:
        return {"name": NAME, "platform": "onnx", "inputs": [*inputs.values()], "outputs": [*outputs.values()]}

    @app.post(f"/v2/models/{NAME}/infer")
    def infer(request: dict[str, Any]) -> dict[str, Any]:
        wanted = [one["name"] for one in request.get("outputs") or outputs.values()]
        try:
            results = session.run(wanted, {one["name"]: array(one) for one in request["inputs"]})
        except (KeyError, TypeError, ValueError) as error:
            raise HTTPException(400, f"the request cannot be answered: {error}") from error
        found = [
            {**outputs[name], "shape": list(result.shape), "data": result.ravel().tolist()}
            for name, result in zip(wanted, results, strict=True)
        ]
        return {"model_name": NAME, "outputs": found}

    return app


if __name__ == "__main__":
    print(write_repository(sys.argv[1], sys.argv[2]))
elif "EVICP_ONNX" in os.environ:  # uvicorn imports this file
    app = server(os.environ["EVICP_ONNX"])
