"""Ray: calibrate and predict on a cluster, or on all processors of one machine; also straight from a model.

Rows are scored where they are and only scores (or sets) travel. A row's score is a function of that row, and a worker
that dies has its rows done again by another: results are those of one machine, to the bit, every row once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import errors
from evicp.blocks import (
    ArrayPart,
    Part,
    Progress,
    Rows,
    as_rows,
    calibrator_for,
    in_one_type,
    located,
    no_input,
    of_rows,
    row_wise,
    same_names,
    write_sets,
)
from evicp.calibration.batches import Batch
from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.calibration.origin import UNKNOWN, Origin
from evicp.errors import EvicpError, EvicpWarning, InputError, InputTypeError, LogitsError, missing_extra
from evicp.input import columns, validate
from evicp.input.classes import ClassNames
from evicp.input.warn import warn
from evicp.io.files import SetsFile, typed
from evicp.io.stored import HeldArray, RawArray, Stored
from evicp.method.scores import ScoreLike
from evicp.sets import PredictionSets, SetsSummary, join_sets
from evicp.types import Coverage

try:
    import pyarrow as pa
    import ray
    import ray.data
    import ray.data.block
    import ray.exceptions
except ImportError as error:
    raise missing_extra("ray[data]", "ray", "the Ray adapter") from error

__all__ = ["calibrate", "calibrate_files", "connected", "predict", "predict_files"]

#: Blocks of the memory budget in one task: enough to hide what a task costs, few enough to share out evenly.
_BLOCKS_PER_TASK = 4

#: How often the rows of a worker that died are tried again: more deaths are no accident.
_RETRIES = 8


@contextmanager
def connected(address: str | None = None, *, workers: int | None = None) -> Iterator[None]:
    """Connect to a cluster for the time being: the one in use, the one at an address, or one of this machine.

    Parameters
    ----------
    address : as `ray.init` takes it: "auto", "ray://host:10001", "host:6379"; without one (and without RAY_ADDRESS) a
        cluster is started on this machine and stopped afterwards
    workers : processors of a cluster on this machine; all by default
    """
    if ray.is_initialized():
        yield
        return
    where: dict[str, Any] = {"address": address or os.environ.get("RAY_ADDRESS")}
    if where["address"] is None:
        where = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot reach a Ray cluster at {where['address']}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _resources(name: str) -> float:
    """How much of something the cluster has: "CPU", "GPU"."""
    everything: Callable[[], dict[str, float]] = ray.cluster_resources
    return everything().get(name, 0.0)


def _processors() -> int:
    return max(1, int(_resources("CPU")))


@contextmanager
def _own_errors() -> Iterator[None]:
    """What a worker refused is raised here as what it is, not as an error of Ray's with a worker's traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause: BaseException | None = error
        while cause is not None and (not isinstance(cause, EvicpError) or isinstance(cause, ray.exceptions.RayError)):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is None:
            raise
        raise cause from None


def _noting(work: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, list[tuple[str, str]]]:
    """What some work in a worker gives, and what it warned of, for nobody hears it there.

    A task has one processor, however many the machine has.
    """
    os.environ.setdefault("EVICP_THREADS", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(*arguments, **options)
    own = [one for one in caught if issubclass(one.category, EvicpWarning)]
    return result, [(one.category.__name__, str(one.message)) for one in own]


class _Driver:
    """Says what workers warned of, each thing once; warnings that differ in their numbers only are one."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, noted: Iterable[tuple[str, str]]) -> None:
        for category, message in noted:
            thing = re.sub(r"[\d.,]+", "", message)
            if thing not in self._said:
                self._said.add(thing)
                warn(message, getattr(errors, category))


# ---------------------------------------------------------------------------------------------------------------
# Ray Data


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
    """Calibrate on a Ray dataset; only scores (and what the grouping needs of each row) come to the driver.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`
    score, by, class_names : as for `evicp.Calibrator`
    logits, labels, groups : names of columns; groups for by="group"
    model : called without arguments once in every worker, returns what makes logits of the column `inputs`: a torch
        module (run in evaluation mode, on a GPU where the worker has one) or any callable of an array
    inputs : the name of the column a model takes
    batch_rows : rows scored at a time
    workers : how many at once; by default as many as there are processors, or GPUs for a model
    gpus : of each worker; by default 1 for a model where the cluster has any, else 0
    """
    calibrator = Calibrator(score, by=by, class_names=class_names)
    work = partial(_score_batch, like=calibrator.empty(), logits=logits, labels=labels, groups=groups)
    scored = _mapped(dataset, work, model, inputs, batch_rows, workers, gpus)
    driver = _Driver()
    with _own_errors():
        for table in scored.iter_batches(batch_size=None, batch_format="pyarrow"):
            if table.num_rows:
                _restore(calibrator, table)
                driver.say(pair for text in table["noted"].unique().to_pylist() for pair in json.loads(text))
    return calibrator.finish()


def _score_batch(
    batch: Any, made: Any = None, *, like: Calibrator, logits: str, labels: str, groups: str | None
) -> Any:
    """A table of rows, with the logits a model has made of them if one has, to a table of their scores."""
    calibrator = like.empty()
    with _in_batch():
        given = None if groups is None else _column(batch, groups)
        made = _matrix(_column(batch, logits)) if made is None else made
        _, noted = _noting(calibrator.update, made, _column(batch, labels), groups=given)
    scores, keys, _, origin, hashes = calibrator.content()[:5]
    scored = {
        "score": pa.array(scores),
        "n_classes": pa.array(np.full(len(scores), calibrator.n_classes, np.int32)),
        "origin": pa.repeat(json.dumps(replace(origin, digest=0).to_dict()), len(scores)).dictionary_encode(),
        "hash": pa.array(np.empty(0, np.uint64) if hashes is None else hashes),
        "noted": pa.repeat(json.dumps(noted), len(scores)).dictionary_encode(),
    }
    return pa.table(scored if calibrator.by is None else {**scored, "key": pa.array(keys)})


def _restore(calibrator: Calibrator, table: Any) -> None:
    """Add a table of scores, which may come from several batches."""
    keys = table["key"].to_numpy() if "key" in table.column_names else np.empty(0)
    keys = keys.astype(str) if keys.dtype == object else keys
    origins = [Origin.from_dict(json.loads(text)) or UNKNOWN for text in table["origin"].unique().to_pylist()]
    origin, hashes = Origin.joined(origins, None), table["hash"].to_numpy()
    first, *others = table["n_classes"].unique().to_pylist()
    if others:
        raise LogitsError(f"logits must have {first} classes in every batch; got {others[0]}.")
    calibrator.restore(Batch(table["score"].to_numpy(), keys, calibrator.kind, origin, hashes), first)


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
    and the dataset's own as they are, without those of logits or inputs and of tensors. One that has one of these names
    is refused. Rows that look like probabilities are not warned of here: nobody waits for them.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`
    confidence, allow_empty, smoothed : as for `Calibration.predict`
    logits, groups, model, inputs, batch_rows, workers, gpus : as for `calibrate`
    """
    how = {"confidence": confidence, "allow_empty": allow_empty, "smoothed": smoothed}
    _try(calibration, coverage, how)
    known = dataset.schema(fetch_if_missing=False) if isinstance(dataset, ray.data.Dataset) else None
    used = logits if model is None else inputs
    if known is not None:
        names = [] if calibration.class_names is None else ["names"]
        _check_names(known.names, used, ["set", "size", *names])
    work = partial(
        _predict_batch,
        calibration=ray.put(calibration),  # once for each machine, however many batches
        coverage=coverage,
        how=how,
        logits=logits,
        groups=groups,
        used=used,
    )
    return _mapped(dataset, work, model, inputs, batch_rows, workers, gpus)


def _try(calibration: Calibration, coverage: Coverage, how: dict[str, Any]) -> None:
    """Refuse and warn of, here and once, what does not depend on the rows."""
    none, by_group = np.empty((0, calibration.n_classes)), calibration.guarantee == "group"
    calibration.predict(none, coverage, groups=np.empty(0, np.int64) if by_group else None, **how)


def _predict_batch(
    batch: Any,
    made: Any = None,
    *,
    calibration: Any,
    coverage: Coverage,
    how: dict[str, Any],
    logits: str,
    groups: str | None,
    used: str,
) -> Any:
    """A table of rows, with the logits a model has made of them if one has, to a table of their sets."""
    with _in_batch():
        given = None if groups is None else _column(batch, groups)
        made = _matrix(_column(batch, logits)) if made is None else made
        sets, _ = _noting(ray.get(calibration).predict, made, coverage, groups=given, **how)
    table = sets.to_arrow().drop_columns(["row"])
    table = table.rename_columns(["set", *table.column_names[1:]])
    _check_names(batch.column_names, used, table.column_names)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name != used and "tensor" not in getattr(field.type, "extension_name", ""):
            table = table.append_column(field, column)
    return table


def _check_names(own: Sequence[str], used: str, made: Sequence[str]) -> None:
    """Refuse a dataset with a column that is called as one of the result's."""
    clash = next((name for name in own if name in made and name != used), None)
    if clash is not None:
        raise InputError(
            f"the dataset has a column {clash!r}, which the result has too ({', '.join(made)}). Rename it first: "
            f"dataset.rename_columns({{{clash!r}: 'own_{clash}'}})."
        )


@contextmanager
def _in_batch() -> Iterator[None]:
    """A batch does not know where it lies: its rows are counted from its own first, and messages say so."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        raise type(error)(re.sub(r"\b([Rr]ow \d+)", r"\1 of its batch", str(error))) from error


def _column(batch: Any, name: str) -> NDArray[Any]:
    """A column of a table as an array; it has no nulls."""
    if name not in batch.column_names:
        raise InputError(f"the dataset has no column {name!r}; it has {', '.join(sorted(batch.column_names))}.")
    columns.refuse_nulls(batch[name], name)
    return np.asarray(ray.data.block.BlockAccessor.for_block(batch).to_numpy(name))


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
        gpus = min(1.0, _resources("GPU")) if gpus is None else gpus
        pool = workers or (max(1, int(_resources("GPU") / gpus)) if gpus else _processors())
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
        with _in_batch():
            column = _column(batch, self._inputs)
            values = np.stack(column.tolist()) if column.dtype == object else column.copy()  # batches are read-only
            made = validate.as_logits(self._run(values))
        return self._work(batch, made)


# ---------------------------------------------------------------------------------------------------------------
# Files


@dataclass(frozen=True)
class _Share:
    """Rows start to stop of a file, the first of which has a number among all rows; what belongs to them."""

    part: Part
    start: int
    stop: int
    first: int
    step: int
    source: str
    dtype: np.dtype[Any]
    own: Mapping[str, Any]

    def each(self, work: Callable[..., Any]) -> list[Any]:
        """What some work gives for each block's logits, labels, and row-wise values."""
        done, results = 0, []
        for logits, labels in typed(
            str(self.part.path or self.source), self.part.pieces(self.step, self.start, self.stop)
        ):
            values = {name: of_rows(v, done, done + len(logits)) for name, v in self.own.items()}
            with located(self.source, self.first + done):
                results.append(work(in_one_type(logits, self.dtype), labels, **values))
            done += len(logits)
        return results


def _shares(rows: Rows, own: Mapping[str, Any]) -> Iterator[_Share]:
    """The rows in shares of a few blocks; files that can only be read from their beginning are not divided."""
    for name, values in own.items():
        row_wise(values, rows, name)
    first, step, dtype = 0, rows.step, rows.dtype
    size = max(1, min(_BLOCKS_PER_TASK * step, -(-len(rows) // (2 * _processors()))))
    for part in rows.parts:
        n = part.shape[0]
        for start in range(0, max(1, n), size if _divisible(part) else max(1, n)):
            stop = min(start + size, n) if _divisible(part) else n
            span = slice(first + start, first + stop)
            mine = {name: of_rows(values, span.start, span.stop) for name, values in own.items()}
            yield _Share(*_cut(part, start, stop), span.start, step, rows.source, dtype, mine)
        first += n


def _divisible(part: Part) -> bool:
    return isinstance(part, ArrayPart) and isinstance(part.logits, RawArray | HeldArray)


def _cut(part: Part, start: int, stop: int) -> tuple[Part, int, int]:
    """What a worker needs of a file: its full name, or, of arrays in memory, the rows themselves."""
    if not isinstance(part, ArrayPart):
        return replace(part, path=part.path.absolute(), stamp=None), start, stop
    labels = part.labels
    if not isinstance(part.logits, HeldArray):
        return ArrayPart(_findable(part.logits), labels and _findable(labels)), start, stop
    if isinstance(labels, RawArray):
        labels = _findable(labels.part(start, stop))
    elif labels is not None:
        labels = HeldArray(labels.whole()[start:stop])
    return ArrayPart(HeldArray(part.logits.values[start:stop]), labels), 0, stop - start


def _findable(array: Stored) -> Stored:
    """An array on disk under its full name: workers have other working directories, and maybe other clocks."""
    if isinstance(array, HeldArray):
        return array
    return replace(array, path=array.path.absolute(), stamp=None)


def _each(work: Callable[..., Any], shares: Iterator[_Share], *common: Any) -> Generator[Any, None, None]:
    """What workers make of the shares, in order; never more of them under way than keep all processors busy."""
    task = ray.remote(_noting).options(num_cpus=1, max_retries=_RETRIES)
    given = [ray.put(value) for value in common]
    under_way: deque[Any] = deque()
    driver = _Driver()

    def next_result() -> Any:
        result, noted = ray.get(under_way.popleft())
        driver.say(noted)
        return result

    try:
        with _own_errors():
            for share in shares:
                under_way.append(task.remote(work, share, *given))
                if len(under_way) >= 2 * _processors():
                    yield next_result()
            while under_way:
                yield next_result()
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise EvicpError(
            "a worker died, and so did those that tried its rows again, most likely for want of memory. Open the rows "
            "with a smaller memory budget."
        ) from error
    finally:
        for waiting in under_way:
            ray.cancel(waiting, force=True)  # a worker that is interrupted while it imports is of no use afterwards


def calibrate_files(
    rows: Rows | str | PathLike[str],
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    groups: Any = None,
    weights: Any = None,
    class_weights: Any = None,
    class_names: ClassNames | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """`evicp.blocks.calibrate` on a cluster: every worker reads its own rows, which must lie where all can read them.

    Parameters
    ----------
    rows : from `evicp.blocks.open_rows`, or a path
    score, by, groups, weights, class_weights, class_names, progress : as for `evicp.blocks.calibrate`
    """
    source = as_rows(rows)
    calibrator = calibrator_for(source, score, by, class_weights, class_names)
    shares = _shares(source, {"groups": groups, "weights": weights})
    with closing(_each(_score_share, shares, calibrator.empty())) as contents:
        for content in contents:
            calibrator.restore(*content)
            if progress is not None:
                progress(len(content[0].scores))
    return calibrator.finish()


def _score_share(share: _Share, like: Calibrator) -> tuple[Any, ...]:
    """The scores of a share of the rows, as `Calibrator.restore` takes them."""
    calibrator = like.empty()
    share.each(calibrator.update)
    return calibrator.content(), calibrator.n_classes


def predict_files(
    calibration: Calibration,
    rows: Rows | str | PathLike[str],
    coverage: Coverage,
    output: str | PathLike[str],
    *,
    confidence: float | None = None,
    groups: Any = None,
    weights: Any = None,
    allow_empty: bool = True,
    smoothed: Any = False,
    progress: Progress | None = None,
    more: Mapping[str, type[SetsFile]] | None = None,
) -> SetsSummary:
    """`evicp.blocks.predict` on a cluster: the sets come back in the order of the rows and go to one file.

    Parameters
    ----------
    calibration, coverage, output, confidence, groups, weights, allow_empty, smoothed, progress, more : as for
        `evicp.blocks.predict`
    rows : from `evicp.blocks.open_rows`, or a path that all workers can read
    """
    source = as_rows(rows).with_labels(None)
    no_input(source, output)
    validate.as_coverage(coverage)
    same_names(calibration, source, "the calibration")
    how = {"confidence": confidence, "allow_empty": allow_empty}
    shares = _shares(source, {"groups": groups, "weights": weights, "smoothed": smoothed})
    with closing(_each(_predict_share, shares, calibration, coverage, how)) as parts:
        return write_sets(parts, output, progress, more)


def _predict_share(share: _Share, calibration: Calibration, coverage: Coverage, how: dict[str, Any]) -> PredictionSets:
    """The sets of a share of the rows."""
    return join_sets(share.each(lambda logits, _, **own: calibration.predict(logits, coverage, **own, **how)))
