"""Spark: calibrate on a data frame, and prediction sets as columns of one.

Rows are scored where they are: only scores travel to the driver, and sets stay in their row. A row's score is a
function of that row, so thresholds and sets are those of one process, to the bit, however the rows are partitioned.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.errors import EvicpError, InputError, InputTypeError, need
from evicp.input import columns
from evicp.input.classes import ClassNames
from evicp.io.workers import Driver, columns_of_sets, in_batch, recording, refuse_early, refuse_taken
from evicp.method.scores import ScoreLike
from evicp.types import Coverage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["calibrate", "predict"]


def calibrate(
    df: DataFrame,
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    class_names: ClassNames | None = None,
    column: str = "logits",
    labels: str = "labels",
    groups: str | None = None,
) -> Calibration:
    """Calibrate on a data frame; each partition becomes the content of a `Calibrator`, which the driver merges.

    Parameters
    ----------
    df : a `pyspark.sql.DataFrame`
    score, by, class_names : as for `evicp.Calibrator`
    column : the column of logits, arrays of numbers or vectors of Spark ML
    labels : the column of labels; whole numbers may be doubles, as Spark ML has them
    groups : the column of groups, for by="group"
    """
    calibrator = Calibrator(score, by=by, class_names=class_names)
    names = [column, labels, *([] if groups is None else [groups])]
    chosen = _checked(df, names).select(*(_as_array(df, name).alias(f"c{i}") for i, name in enumerate(names)))
    work = partial(_score_partition, calibrator.empty(), names)
    driver = Driver()
    for row in chosen.mapInArrow(work, "content binary").collect():
        content = pickle.loads(row.content)
        if isinstance(content, EvicpError):
            raise content
        (batch, n_classes), warned = content
        calibrator.restore(batch, n_classes)
        driver.say(warned)
    return calibrator.finish()


def _score_partition(like: Calibrator, names: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    """The content of a calibrator of a partition's rows, or what is wrong with them, as one row of bytes."""
    import pyarrow as pa

    calibrator = like.empty()
    try:
        found: Any = recording(_score_batches, calibrator, names, batches)
    except EvicpError as error:
        found = error
    if calibrator.n or isinstance(found, EvicpError):
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(found)], pa.binary())], ["content"])


def _score_batches(calibrator: Calibrator, names: list[str], batches: Iterator[Any]) -> tuple[Any, int | None]:
    for batch in batches:
        with in_batch():
            logits = columns.matrix(batch.column(0), names[0])
            labels = _whole(columns.values(batch.column(1), names[1]))
            groups = _groups(batch.column(2), names[2]) if len(names) > 2 else None
            calibrator.update(logits, labels, groups=groups)
    return calibrator.content(), calibrator.n_classes


def _whole(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as they are, or as whole numbers where they are such in doubles."""
    if labels.dtype.kind == "f" and np.array_equal(labels, np.rint(labels)):
        return labels.astype(np.int64)
    return labels


def _groups(column: Any, name: str) -> NDArray[Any]:
    """The group of each row, or the groups that each row is in, where the column holds lists."""
    return columns.matrix(column, name) if hasattr(column.type, "value_type") else columns.values(column, name)


def predict(
    df: DataFrame,
    calibration: Calibration,
    coverage: Coverage = 0.9,
    *,
    column: str = "logits",
    groups: str | None = None,
    confidence: float | None = None,
    allow_empty: bool = True,
    smoothed: bool = False,
) -> DataFrame:
    """The data frame with the prediction set of each row, computed when it is needed, by a pandas UDF.

    Its new columns are `set` (array<int>, most plausible first), `size`, and `names` where the calibration has class
    names. A data frame that has one of these already is refused.

    Parameters
    ----------
    df : a `pyspark.sql.DataFrame`, also of a stream
    column : the column of logits, arrays of numbers or vectors of Spark ML
    groups : the column of groups, for a calibration by="group"
    coverage, confidence, allow_empty, smoothed : as for `Calibration.predict`
    """
    used = [column, *([] if groups is None else [groups])]
    _checked(df, used)
    made = columns_of_sets(calibration)
    refuse_taken(df.columns, made, "df.withColumnRenamed({0!r}, 'own_{0}')")
    how = {"confidence": confidence, "allow_empty": allow_empty, "smoothed": smoothed}
    refuse_early(calibration, coverage, how)
    sets, whole = _udf(calibration, coverage, how, used), f"sets-{uuid4().hex}"
    found = df.withColumn(whole, sets(*(_as_array(df, name) for name in used)))
    return found.select("*", *(found[f"`{whole}`.{name}"] for name in made)).drop(whole)


def _udf(calibration: Calibration, coverage: Coverage, how: dict[str, Any], used: list[str]) -> Callable[..., Column]:
    """A function of columns: logits (and groups) to a struct of what a set is made of."""
    from pyspark.sql.functions import pandas_udf

    pandas = need("pandas", "pandas", "spark", "prediction sets in Spark")

    def sets(logits: Any) -> Any:
        return _sets(calibration, coverage, how, used, logits)

    def sets_in_groups(logits: Any, groups: Any) -> Any:
        return _sets(calibration, coverage, how, used, logits, groups)

    function = sets if len(used) == 1 else sets_in_groups
    # Spark reads from annotations what kind of UDF it is.
    function.__annotations__ = {**dict.fromkeys(function.__annotations__, pandas.Series), "return": pandas.DataFrame}
    types = {"set": "array<int>", "size": "int", "names": "array<string>"}
    made: Callable[..., Column] = pandas_udf(
        function, ", ".join(f"`{name}` {types[name]}" for name in columns_of_sets(calibration))
    )
    return made


def _sets(
    calibration: Calibration, coverage: Coverage, how: dict[str, Any], used: list[str], logits: Any, groups: Any = None
) -> Any:
    """A pandas data frame of the sets of some rows."""
    import pyarrow as pa

    with in_batch():
        matrix = columns.matrix(pa.array(logits, from_pandas=False), used[0])
        of_rows = None if groups is None else _groups(pa.array(groups), used[1])
        found, _ = recording(calibration.predict, matrix, coverage, groups=of_rows, **how)
    return found.to_pandas().rename(columns={"labels": "set"})


def _checked(df: Any, names: list[str]) -> DataFrame:
    """A data frame of Spark's that has these columns."""
    need("pyspark", "pyspark", "spark", "the Spark adapter")
    if not all(hasattr(df, method) for method in ("mapInArrow", "withColumn")):
        raise InputTypeError(f"df must be a pyspark.sql.DataFrame; got a {type(df).__name__}.")
    for name in names:
        if name not in df.columns:
            raise InputError(f"the data frame has no column {name!r}; it has {', '.join(df.columns)}.")
    return df


def _as_array(df: DataFrame, name: str) -> Column:
    """A column, its vectors of Spark ML as arrays."""
    quoted = "`" + name.replace("`", "``") + "`"
    if df.schema[name].dataType.typeName() == "vectorudt":
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(df[quoted])
    return df[quoted]
