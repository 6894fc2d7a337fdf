"""Progress on stderr with the time left, for whatever takes longer than two seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

PATIENCE = 2.0
"""Seconds that pass before a bar appears: short work stays silent."""


class Step(Protocol):
    """Call it after each piece of work: how many units were done, and a word on how it goes."""

    def __call__(self, advance: int, note: str = "") -> None: ...


@contextmanager
def progress(label: str, total: int | None, *, show: bool | None = None) -> Iterator[Step]:
    """A progress bar on stderr; by default only where stderr is a terminal.

    >>> with progress("calibrating", 2, show=False) as step:
    ...     step(1); step(1, "half way")
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda advance, note="": None
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=False,
    )
    task = bar.add_task(label, total=total, note="")
    started = time.monotonic()

    def step(advance: int, note: str = "") -> None:
        bar.update(task, advance=advance, note=note)
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()

    try:
        yield step
    finally:
        if bar.live.is_started:
            bar.stop()
