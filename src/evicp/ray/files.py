"""Rows on disk on a cluster: an executor for `evicp.blocks` whose workers read their own rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from os import PathLike
from typing import Any

import ray
import ray.exceptions

from evicp import blocks
from evicp.calibration.batches import Batch
from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.calibration.source import RowSource
from evicp.errors import EvicpError
from evicp.input.classes import ClassNames
from evicp.io.executor import Executor, Task, tasks
from evicp.io.files import SetsFormat
from evicp.io.rows import Rows
from evicp.io.workers import Driver, recording
from evicp.method.scores import ScoreLike
from evicp.ray.cluster import own_errors, processors
from evicp.sets import PredictionSets, SetsSummary, join_sets
from evicp.types import Coverage

#: Blocks of the memory budget in one task: enough to hide what a task costs, few enough to distribute evenly.
_BLOCKS_PER_TASK = 4

#: How often the rows of a worker that died are tried again: more deaths are no accident.
_RETRIES = 8


class _Cluster(Executor):
    """Tasks of a few blocks, done by workers that read their own rows."""

    def calibrate(self, rows: Rows, values: Mapping[str, Any], calibrator: Calibrator) -> Generator[int]:
        for content, n_classes in self._each(_calibrate_task, rows, values, calibrator.empty()):
            calibrator.restore(content, n_classes)
            yield len(content.scores)

    def predict(
        self, rows: Rows, values: Mapping[str, Any], predict: Callable[..., PredictionSets]
    ) -> Generator[PredictionSets]:
        yield from self._each(_predict_task, rows, values, predict)

    @staticmethod
    def _each(work: Callable[..., Any], rows: Rows, values: Mapping[str, Any], *common: Any) -> Generator[Any]:
        """What workers make of tasks, in order; never more of them under way than keep all processors busy."""
        task = ray.remote(recording).options(num_cpus=1, max_retries=_RETRIES)
        given = [ray.put(value) for value in common]
        under_way: deque[Any] = deque()
        driver = Driver()

        def next_result() -> Any:
            result, warned = ray.get(under_way.popleft())
            driver.say(warned)
            return result

        size = max(1, min(_BLOCKS_PER_TASK * rows.step, -(-len(rows) // (2 * processors()))))
        try:
            with own_errors():
                for one in tasks(rows, values, size):
                    under_way.append(task.remote(work, one, *given))
                    if len(under_way) >= 2 * processors():
                        yield next_result()
                while under_way:
                    yield next_result()
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
            raise EvicpError(
                "a worker died, and so did those that repeated its rows, probably because memory ran out. Open the "
                "rows with a smaller memory budget."
            ) from error
        finally:
            for waiting in under_way:
                ray.cancel(waiting, force=True)  # a worker interrupted while it imports is of no use afterwards


def _calibrate_task(task: Task, calibrator: Calibrator) -> tuple[Batch, int | None]:
    """The scores of a task's rows, as `Calibrator.restore` takes them."""
    own = calibrator.empty()
    for _ in task.calibrate(own):
        pass
    return own.content(), own.n_classes


def _predict_task(task: Task, predict: Callable[..., PredictionSets]) -> PredictionSets:
    """The sets of a task's rows."""
    return join_sets([sets for _, sets in task.predict(predict)])


def calibrate_files(
    rows: Rows | str | PathLike[str],
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    groups: Any = None,
    weights: Any = None,
    class_weights: Any = None,
    class_names: ClassNames | None = None,
    source: RowSource | str | None = None,
    progress: blocks.Progress | None = None,
) -> Calibration:
    """`evicp.blocks.calibrate` on a cluster: every worker reads its own rows, from paths that all workers can read.

    Parameters
    ----------
    rows : from `evicp.blocks.open_rows`, or a path
    score, by, groups, weights, class_weights, class_names, source, progress : as for `evicp.blocks.calibrate`
    """
    how: dict[str, Any] = {"by": by, "groups": groups, "weights": weights, "class_weights": class_weights}
    how |= {"class_names": class_names, "source": source}
    return blocks.calibrate(rows, score, progress=progress, executor=_Cluster(), **how)


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
    progress: blocks.Progress | None = None,
    more: Mapping[str, SetsFormat] | None = None,
) -> SetsSummary:
    """`evicp.blocks.predict` on a cluster: sets are written to one file in the order of the rows.

    Parameters
    ----------
    calibration, coverage, output, confidence, groups, weights, allow_empty, smoothed, progress, more : as for
        `evicp.blocks.predict`
    rows : from `evicp.blocks.open_rows`, or a path that all workers can read
    """
    how: dict[str, Any] = {"confidence": confidence, "groups": groups, "weights": weights, "allow_empty": allow_empty}
    how |= {"smoothed": smoothed, "progress": progress, "more": more}
    return blocks.predict(calibration, rows, coverage, output, executor=_Cluster(), **how)
