"""Ray Data: datasets to calibrations, and to datasets of sets; also straight from a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
import ray.data.block
from numpy.typing import NDArray

from evicp.calibration.batches import Batch
from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.calibration.origin import UNKNOWN, Origin
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.input import columns, validate
from evicp.input.classes import ClassNames
from evicp.io.workers import Driver, columns_of_sets, in_batch, recording, refuse_early, refuse_taken
from evicp.method.scores import ScoreLike
from evicp.ray.cluster import own_errors, processors, resources
from evicp.types import Coverage


def calibrate(
    dataset: Any,
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    class_names: ClassNames | None = None,
    logits: str = "logits",
    labels: str = "labels",
    groups: str | None = None,
    model: Callable[[], Any] | None = None,
    inputs: str = "inputs",
    batch_rows: int = 1024,
    workers: int | None = None,
    gpus: float | None = None,
) -> Calibration:
    """Calibrate on a Ray dataset; only scores (and groups) are sent to the driver.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`
    score, by, class_names : as for `evicp.Calibrator`
    logits, labels, groups : names of columns; groups for by="group"
    model : a function without arguments, called once in every worker; it returns a torch module (run in evaluation
        mode, on the worker's GPU if it has one) or a callable that maps the column `inputs` to logits
    inputs : the name of the column a model takes
    batch_rows : rows scored at a time
    workers : the number of workers; by default the number of processors, or of GPUs for a model
    gpus : GPUs of each worker; by default 1 for a model if the cluster has any, else 0
    """
    calibrator = Calibrator(score, by=by, class_names=class_names)
    work = partial(_score_batch, calibrator.empty(), logits, labels, groups)
    scored = _mapped(dataset, work, model, inputs, batch_rows, workers, gpus)
    driver = Driver()
    with own_errors():
        for table in scored.iter_batches(batch_size=None, batch_format="pyarrow"):
            if table.num_rows:
                _restore(calibrator, table)
                driver.say(pair for text in table["warnings"].unique().to_pylist() for pair in json.loads(text))
    return calibrator.finish()


def _score_batch(like: Calibrator, logits: str, labels: str, groups: str | None, batch: Any, made: Any = None) -> Any:
    """A table of rows, with the logits a model has made of them if one has, to a table of their scores."""
    calibrator = like.empty()
    with in_batch():
        given = None if groups is None else _groups(batch, groups)
        made = _matrix(_column(batch, logits)) if made is None else made
        _, warned = recording(calibrator.update, made, _column(batch, labels), groups=given)
    kept = calibrator.content()
    n = len(kept.scores)
    scored = {
        "score": pa.array(kept.scores),
        "n_classes": pa.array(np.full(n, calibrator.n_classes, np.int32)),
        "origin": pa.repeat(json.dumps(replace(kept.origin, digest=0).to_dict()), n).dictionary_encode(),
        "hash": pa.array(np.empty(0, np.uint64) if kept.hashes is None else kept.hashes),
        "bits": pa.array([kept.bits] * n, pa.int64()),
        "warnings": pa.repeat(json.dumps(warned), n).dictionary_encode(),
    }
    return pa.table(
        scored
        if calibrator.by is None
        else {**scored, "key": pa.array(kept.keys if kept.keys.ndim == 1 else list(kept.keys))}
    )


def _restore(calibrator: Calibrator, table: Any) -> None:
    """Add a table of scores, which may come from several batches."""
    keys = table["key"].to_numpy() if "key" in table.column_names else np.empty(0)
    if keys.dtype == object:
        keys = keys.astype(str) if isinstance(keys[0], str) else np.stack(keys.tolist())
    origins = [Origin.from_dict(json.loads(text)) or UNKNOWN for text in table["origin"].unique().to_pylist()]
    origin, hashes = Origin.joined(origins, None), table["hash"].to_numpy()
    first, *others = table["n_classes"].unique().to_pylist()
    if others:
        raise LogitsError(f"logits must have {first} classes in every batch; got {others[0]}.")
    bits = table["bits"].unique().to_pylist()
    batch = Batch(table["score"].to_numpy(), keys, calibrator.kind, origin, hashes)
    calibrator.restore(batch._replace(bits=None if None in bits else reduce(or_, bits)), first)


def predict(
    dataset: Any,
    calibration: Calibration,
    coverage: Coverage,
    *,
    confidence: float | None = None,
    allow_empty: bool = True,
    smoothed: bool = False,
    logits: str = "logits",
    groups: str | None = None,
    model: Callable[[], Any] | None = None,
    inputs: str = "inputs",
    batch_rows: int = 1024,
    workers: int | None = None,
    gpus: float | None = None,
) -> Any:
    """The prediction sets of a Ray dataset, as a Ray dataset in the same order, computed when it is consumed.

    Its columns are `set` (list<int32>, most plausible first), `size`, `names` where the calibration has class names,
    and the other columns of the dataset, except logits, inputs and tensors. A column with one of these names is
    refused. There is no warning of rows that look like probabilities.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`
    confidence, allow_empty, smoothed : as for `Calibration.predict`
    logits, groups, model, inputs, batch_rows, workers, gpus : as for `calibrate`
    """
    how = {"confidence": confidence, "allow_empty": allow_empty, "smoothed": smoothed}
    used = logits if model is None else inputs
    _refuse_early(dataset, calibration, coverage, how, used)
    shared = ray.put(calibration)  # once for each machine, however many batches
    work = partial(_predict_batch, shared, coverage, how, logits, groups, used)
    return _mapped(dataset, work, model, inputs, batch_rows, workers, gpus)


def _refuse_early(dataset: Any, calibration: Calibration, coverage: Coverage, how: dict[str, Any], used: str) -> None:
    """Refuse and warn of, here and once, what does not depend on the rows."""
    refuse_early(calibration, coverage, how)
    known = dataset.schema(fetch_if_missing=False) if isinstance(dataset, ray.data.Dataset) else None
    if known is not None:
        _check_names(known.names, used, columns_of_sets(calibration))


def _predict_batch(
    calibration: Any,
    coverage: Coverage,
    how: dict[str, Any],
    logits: str,
    groups: str | None,
    used: str,
    batch: Any,
    made: Any = None,
) -> Any:
    """A table of rows, with the logits a model has made of them if one has, to a table of their sets."""
    with in_batch():
        given = None if groups is None else _groups(batch, groups)
        made = _matrix(_column(batch, logits)) if made is None else made
        sets, _ = recording(ray.get(calibration).predict, made, coverage, groups=given, **how)
    table = sets.to_arrow().drop_columns(["row"])
    table = table.rename_columns(["set", *table.column_names[1:]])
    _check_names(batch.column_names, used, table.column_names)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name != used and "tensor" not in getattr(field.type, "extension_name", ""):
            table = table.append_column(field, column)
    return table


def _check_names(own: Sequence[str], used: str, made: Sequence[str]) -> None:
    """Refuse a dataset with a column that is called as one of the result's."""
    others = (name for name in own if name != used)
    refuse_taken(others, made, "dataset.rename_columns({{{0!r}: 'own_{0}'}})")


def _column(batch: Any, name: str) -> NDArray[Any]:
    """A column of a table as an array; it has no nulls."""
    if name not in batch.column_names:
        raise InputError(f"the dataset has no column {name!r}; it has {', '.join(sorted(batch.column_names))}.")
    columns.refuse_nulls(batch[name], name)
    return np.asarray(ray.data.block.BlockAccessor.for_block(batch).to_numpy(name))


def _groups(batch: Any, name: str) -> NDArray[Any]:
    """The group of each row, or the groups that each row is in, where the column holds lists."""
    column = _column(batch, name)
    is_text = column.dtype == object and all(isinstance(value, str) for value in column)
    return column if is_text else _matrix(column)


def _matrix(column: NDArray[Any]) -> NDArray[Any]:
    """Rows as an (n, K) array: lists, as parquet files have them, come as an array of arrays."""
    if column.dtype != object:
        return column
    if len({len(row) for row in column}) > 1:
        raise LogitsError("logits must be rectangular; got rows of different lengths. Pad or drop the short rows.")
    return np.stack(column.tolist()) if len(column) else np.empty((0, 0))


def _mapped(
    dataset: Any,
    work: Any,
    model: Callable[[], Any] | None,
    inputs: str,
    batch_rows: int,
    workers: int | None,
    gpus: float | None,
) -> Any:
    """A dataset with some work done on its batches, in the same order."""
    if not isinstance(dataset, ray.data.Dataset):
        raise InputTypeError(
            f"dataset must be a ray.data.Dataset; got a {type(dataset).__name__}. For files use calibrate_files."
        )
    dataset = ray.data.Dataset.copy(dataset, _deep_copy=True)  # what is set below is not set for the caller's
    how: dict[str, Any] = {"batch_size": batch_rows, "batch_format": "pyarrow", "zero_copy_batch": True}
    if model is None:
        result = dataset.map_batches(work, **how, concurrency=workers)
    else:
        gpus = min(1.0, resources("GPU")) if gpus is None else gpus
        pool = workers or (max(1, int(resources("GPU") / gpus)) if gpus else processors())
        arguments = (model, inputs, work)
        how |= {"compute": ray.data.ActorPoolStrategy(size=pool), "num_gpus": gpus or None}
        result = dataset.map_batches(_Inference, fn_constructor_args=arguments, **how)
    result.context.execution_options.preserve_order = True
    result.context.raise_original_map_exception = True
    return result


class _Inference:
    """A model in a worker: inputs to logits, and what is to be done with them."""

    def __init__(self, make: Callable[[], Any], inputs: str, work: Callable[..., Any]) -> None:
        self._model, self._inputs, self._work = make(), inputs, work
        torch = sys.modules.get("torch")
        self._run: Callable[[NDArray[Any]], Any] = self._model
        if torch is not None and isinstance(self._model, torch.nn.Module):
            self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            self._model.to(self._device).eval()
            self._run = self._run_torch

    def _run_torch(self, values: NDArray[Any]) -> Any:
        """Logits on the CPU, where all rows of all workers are scored by the same kernels."""
        import torch

        from evicp.torch import logits_of

        with torch.inference_mode():
            return logits_of(self._model(torch.from_numpy(values).to(self._device))).cpu()

    def __call__(self, batch: Any) -> Any:
        with in_batch():
            column = _column(batch, self._inputs)
            values = np.stack(column.tolist()) if column.dtype == object else column.copy()  # batches are read-only
            made = validate.as_logits(self._run(values))
        return self._work(batch, made)
