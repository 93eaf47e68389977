"""Claim: a new Python worker of Spark is ready soon after one that has nothing to load but pandas.

Spark is told to use no worker twice, so that each job starts one. Both kinds of job are of one row.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import common

import evicp
from evicp.bench import Timings
from evicp.datasets import load_imagenet_sample


def session() -> Any:
    """Spark on this machine with one worker at a time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.python.worker.reuse": "false",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
    }
    return SparkSession.builder.master("local[1]").config(map=options).getOrCreate()


def measure(options: argparse.Namespace) -> Timings:
    """Jobs of one row in a new worker: a UDF that counts classes, and one that predicts."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.functions import pandas_udf

    from evicp import spark as adapter

    sample = load_imagenet_sample()
    calibration = evicp.calibrate(sample.logits[:1250], sample.labels[:1250])
    row = session().createDataFrame(pa.table({"logits": list(sample.logits[:1].astype("float32"))})).cache()

    def count(logits: Any) -> Any:
        return logits.map(len)

    count.__annotations__ = {"logits": pd.Series, "return": pd.Series}
    counted = row.select(pandas_udf(count, "int")("logits").alias("size"))
    workloads = {"pandas UDF alone": counted.collect, "evicp.spark.predict": adapter.predict(row, calibration).collect}
    for first in workloads.values():
        first()  # Spark itself is slower the first time
    timings = common.interleaved("a job of one row in a new worker", workloads, options)
    alone, ours = (timing.median for timing in timings.timings)
    print(f"evicp adds {ours - alone:.2f} s to the {alone:.2f} s of a new worker's first row\n")
    return timings


if __name__ == "__main__":
    common.run("spark_workers", measure, rounds=9)
