"""Sets as tables in memory: of Arrow, and of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.errors import need
from evicp.sets import PredictionSets

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def as_arrow(sets: PredictionSets, first_row: int) -> pa.Table:
    """See `PredictionSets.to_arrow`."""
    pa = need("pyarrow", "pyarrow", "parquet", "an Arrow table")
    small = len(sets.labels) < 2**31  # the plain list type, which every reader knows, counts in 32 bits
    lists = pa.ListArray if small else pa.LargeListArray
    offsets, labels = pa.array(sets.offsets, pa.int32() if small else pa.int64()), pa.array(sets.labels)
    columns: dict[str, Any] = {
        "row": pa.array(np.arange(first_row, first_row + len(sets))),
        "labels": lists.from_arrays(offsets, labels),
        "size": pa.array(sets.sizes.astype(np.int32)),
    }
    if sets.class_names is not None:
        columns["names"] = lists.from_arrays(offsets, pa.array(sets.class_names, pa.string()).take(labels))
    if sets.ids is not None:
        columns["id"] = pa.array(sets.ids)
    return pa.table(columns)


def as_pandas(sets: PredictionSets) -> pd.DataFrame:
    """See `PredictionSets.to_pandas`."""
    pd = need("pandas", "pandas", "pandas", "a data frame")
    columns: dict[str, Any] = {"labels": list(sets), "size": sets.sizes.astype(np.int32)}
    if sets.class_names is not None:
        columns["names"] = sets.to_lists(names=True)
    index = pd.RangeIndex(len(sets), name="row") if sets.ids is None else pd.Index(sets.ids, name="id")
    return pd.DataFrame(columns, index=index)
