"""A real Spark with two workers on this machine gives what one process gives, exactly."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import InputError, InputTypeError, LabelsError, LogitsError, SmallCalibrationWarning

pytest.importorskip("pyspark", reason="Spark is not installed: make test-adapters")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    # Spark's own: versions of pandas it does not know yet, and sockets it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N, K = 3000, 12


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        options = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
            "spark.log.level": "OFF",
        }
        session = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, K, N)
    logits = (rng.normal(size=(N, K)) + 2 * np.eye(K)[labels]).astype(np.float32)
    masked = rng.random((N, K)) < 0.03
    masked[np.arange(N), labels] = masked[3] = False
    logits[masked] = -np.inf
    logits[rng.integers(0, N, 50)] = logits[3]
    return logits, labels


@pytest.fixture(scope="module")
def frame(spark: Any, data: tuple) -> Any:
    """Partitions of different sizes in another order, one of them empty; a column with a dot in its name."""
    import pyarrow as pa

    ids = np.arange(N)
    columns = {"my.logits": list(data[0]), "labels": data[1], "group": [f"g{i}" for i in data[1] % 3], "id": ids}
    return spark.createDataFrame(pa.table(columns)).repartitionByRange(3, "labels").union(_none(spark, columns))


def _none(spark: Any, columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    return spark.createDataFrame(pa.table({name: values[:1] for name, values in columns.items()})).where("id < 0")


def collected(predicted: Any, column: str = "set") -> list[Any]:
    """Sets of a predicted frame in the order of the row numbers."""
    rows = sorted(predicted.select("id", column, "size").collect())
    assert [row.id for row in rows] == list(range(N))
    assert all(row.size == len(row[column]) for row in rows)
    return [list(row[column]) for row in rows]


@pytest.mark.parametrize("score", ["ecp", evicp.APS(seed=5)])
def test_a_frame_gives_what_one_process_gives(frame: Any, data: tuple, score: Any) -> None:
    from evicp import spark

    expected = evicp.calibrate(*data, score)
    calibration = spark.calibrate(frame, score, column="my.logits")
    assert calibration == expected
    assert calibration.origin == expected.origin
    predicted = spark.predict(frame, calibration, 0.9, column="my.logits")
    assert predicted.columns == [*frame.columns, "set", "size"]
    assert collected(predicted) == expected.predict(data[0], 0.9).to_lists()


def test_one_row_more_or_less_is_seen(frame: Any, data: tuple) -> None:
    """What holds a calibration against another is exact: a row left out makes another one."""
    from evicp import spark

    calibration = spark.calibrate(frame.where("id <> 17"), column="my.logits")
    assert calibration == evicp.calibrate(np.delete(data[0], 17, 0), np.delete(data[1], 17))
    assert calibration != evicp.calibrate(*data)


def test_groups_names_and_options_travel_too(frame: Any, data: tuple) -> None:
    from evicp import spark

    names, groups = [f"class {number}" for number in range(K)], np.array([f"g{i}" for i in data[1] % 3])
    expected = evicp.calibrate(*data, "lac", by=groups, class_names=names)
    calibration = spark.calibrate(frame, "lac", by="group", groups="group", class_names=names, column="my.logits")
    assert calibration == expected
    how: dict[str, Any] = {"allow_empty": False, "confidence": 0.9}
    predicted = spark.predict(frame, calibration, 0.8, column="my.logits", groups="group", **how)
    sets = expected.predict(data[0], 0.8, groups=groups, **how)
    assert collected(predicted) == sets.to_lists()
    assert collected(predicted, "names") == sets.to_lists(names=True)


def test_outputs_of_spark_ml_are_taken_as_they_are(spark: Any) -> None:
    """Vectors, and labels that are doubles; from a model to sets."""
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.linalg import Vectors

    from evicp import spark as adapter

    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 600)
    features = rng.normal(size=(600, 2)) + 1.5 * np.array([[0, 0], [2, 0], [0, 2]])[truth]
    rows = [(i, Vectors.dense(x.tolist()), float(y)) for i, (x, y) in enumerate(zip(features, truth, strict=True))]
    whole = spark.createDataFrame(rows, ["id", "features", "label"])
    scored = LogisticRegression().fit(whole.where("id < 200")).transform(whole.where("id >= 200")).cache()
    old, new = scored.where("id < 400"), scored.where("id >= 400")
    calibration = adapter.calibrate(old, "lac", column="rawPrediction", labels="label")
    local = {row.id: row for row in scored.select("id", "rawPrediction", "label").collect()}
    logits = {i: row.rawPrediction.toArray() for i, row in local.items()}
    early, late = range(200, 400), range(400, 600)
    expected = evicp.calibrate([logits[i] for i in early], [int(local[i].label) for i in early], "lac")
    assert calibration == expected
    found = {row.id: row.set for row in adapter.predict(new, calibration, column="rawPrediction").collect()}
    sets = expected.predict([logits[i] for i in late], 0.9)
    assert [found[i] for i in late] == sets.to_lists()
    assert sets.contains(truth[400:]).mean() > 0.8


def test_what_is_wrong_is_said_as_anywhere_else(spark: Any, frame: Any, data: tuple) -> None:
    from pyspark.errors import PythonException

    from evicp import spark as adapter

    with pytest.raises(InputError, match=r"^the data frame has no column 'logits'; it has my\.logits, labels"):
        adapter.calibrate(frame)
    with pytest.raises(LabelsError, match=r"^labels must be in \[0, 12\); got \d+ at row \d+ of its batch\."):
        adapter.calibrate(frame, column="my.logits", labels="id")
    with pytest.raises(InputTypeError, match=r"^df must be a pyspark.sql.DataFrame; got a ndarray"):
        adapter.calibrate(data[0])  # type: ignore[arg-type]
    bad = spark.createDataFrame([([1.0, 2.0], 0.0), ([1.0, float("nan")], 1.0)], ["logits", "labels"]).coalesce(1)
    with pytest.raises(LogitsError, match=r"^logits must not be NaN; got NaN at row 1 of its batch, class 1"):
        adapter.calibrate(bad)
    with pytest.raises(InputTypeError, match=r"^labels must be integers; got dtype float64"):
        adapter.calibrate(bad.selectExpr("array(1.0D, 2.0D) logits", "labels + 0.5 labels"))
    with pytest.raises(InputError, match=r"^logits must not be null; got null at row \d of its batch"):
        adapter.calibrate(bad.selectExpr("if(labels > 0, null, logits) logits", "labels"))
    few = evicp.calibrate([[2.0, 0.0], [0.0, 2.0]], [0, 1])
    with pytest.warns(SmallCalibrationWarning, match="cannot guarantee"):
        predicted = adapter.predict(bad, few)
    with pytest.raises(PythonException, match=r"LogitsError: logits must not be NaN; got NaN at row 1 of its batch"):
        predicted.collect()
    with pytest.raises(InputError, match=r"has a column 'set'.*df\.withColumnRenamed\('set', 'own_set'\)"):
        adapter.predict(bad.withColumnRenamed("labels", "set"), few)
