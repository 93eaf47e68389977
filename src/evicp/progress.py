"""Progress bars on standard error, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(description: str, total: int | None = None, *, after: float = 1.0) -> Iterator[Callable[..., None]]:
    """One bar; yields a function to be called with the number of steps done since the last call, by default one.

    Parameters
    ----------
    description : what is being done
    total : how many steps there are, if that is known
    after : seconds before it is shown: shorter work shows nothing
    """
    with progress_bars(after=after, stays=False) as start:
        yield start(description, total)


@contextmanager
def progress_bars(
    *, after: float = 0.0, stays: bool = True, wanted: bool = True
) -> Iterator[Callable[..., Callable[..., None]]]:
    """Bars below each other; yields a function of description, total and steps done before, which begins one.

    Parameters
    ----------
    after : seconds before anything is shown: shorter work shows nothing
    stays : whether the last state stays on the screen
    wanted : False for silence; on anything but a terminal there is silence anyway
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda *_: lambda *_: None
        return
    bars = _bars(stays)
    timer = threading.Timer(after, bars.start)
    timer.daemon = True

    def start(description: str, total: int | None = None, done: int = 0) -> Callable[..., None]:
        task = bars.add_task(description, total=total, completed=done)
        return lambda steps=1: bars.advance(task, steps)

    (timer.start if after else bars.start)()
    try:
        yield start
    finally:
        timer.cancel()
        if after:
            timer.join()
        bars.stop()


def _bars(stays: bool) -> Any:
    """Bars with steps, speed and times."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Steps(ProgressColumn):
        """Steps done of all, and per second; what an earlier run did does not count in the latter."""

        def render(self, task: Any) -> Text:
            counts = "" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}"
            return Text(counts + (f" {task.speed:.1f}/s" if counts and task.speed else ""))

    columns = (TextColumn("{task.description}"), BarColumn(), Steps(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=not stays)
