"""A bar with rate and time left, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(total: int, done: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to be called with the number of inputs done since the last call.

    Parameters
    ----------
    total, done : how many inputs there are, and how many an earlier run has left done
    wanted : False for silence; on anything but a terminal there is silence anyway
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        """Inputs per second; what an earlier run did does not count."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")

    columns = (TextColumn("extracting"), BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda steps: bar.advance(task, steps)
