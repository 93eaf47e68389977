"""A server of prediction sets: rows of logits in, sets out. FastAPI, with as many processes as asked for.

    EVICP_CALIBRATION=cal.safetensors EVICP_THREADS=1 uvicorn --app-dir examples serve_fastapi:app --workers 4
    curl -X POST localhost:8000/sets -H "Content-Type: application/json" -d '{"logits": [[2.0, 0.5, 0.1]]}'

The calibration is a file, or an address hf://owner/model. Requests of one process share it and run in threads, in which
the kernels do not hold Python's lock. What evicp refuses is an answer 422 that says why.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import evicp
from evicp.errors import InputError

calibration = evicp.load(os.environ["EVICP_CALIBRATION"])


@asynccontextmanager
async def prepared(_: FastAPI) -> AsyncIterator[None]:
    """Make a first set before the first request comes."""
    calibration.predict(np.zeros((1, calibration.n_classes)), coverage=Query.model_fields["coverage"].default)
    yield


class Query(BaseModel):
    """Rows of logits, and the target of their sets."""

    logits: list[list[float]]
    coverage: float = 0.9
    allow_empty: bool = True


class Sets(BaseModel):
    """A set for each row, the most plausible label first; and by name, where the calibration has class names."""

    sets: list[list[int]]
    names: list[list[str]] | None = None


app = FastAPI(title="Prediction sets", lifespan=prepared)


@app.post("/sets")
def sets(query: Query) -> Sets:
    """The prediction sets of some rows."""
    found = calibration.predict(query.logits, query.coverage, allow_empty=query.allow_empty)
    names = None if calibration.class_names is None else found.to_lists(names=True)
    return Sets(sets=found.to_lists(), names=names)


@app.get("/certificate")
def certificate(coverage: float = 0.9) -> dict[str, object]:
    """What is guaranteed at this coverage."""
    return calibration.certificate(coverage).to_dict()


@app.exception_handler(InputError)
def refused(_: Request, error: InputError) -> JSONResponse:
    """What evicp refuses is the client's to mend."""
    return JSONResponse({"detail": str(error)}, status_code=422)
