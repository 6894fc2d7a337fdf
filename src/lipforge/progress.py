"""Progress on stderr with the time left, for whatever takes longer than two seconds."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

PATIENCE = 2.0
"""Seconds that pass before a bar appears: short work stays silent."""

SPEED_PERIOD = 24 * 3600.0
"""Seconds of work from which the time left is estimated: one step may take an hour."""


REFRESHES = 2
"""Per second. Drawing takes a few milliseconds of the interpreter, which an attack on a CPU waits for."""


class Step(Protocol):
    """Call it after each piece of work: how many units were done, and a word on how it goes."""

    def __call__(self, advance: int, note: str = "") -> None: ...


@contextmanager
def progress(label: str, total: int | None, *, show: bool | None = None, status: object = "") -> Iterator[Step]:
    """A progress bar on stderr; by default only where stderr is a terminal.

    `status` stands beside the bar wherever a step brings no note; its `str` is taken anew at every refresh.

    >>> with progress("calibrating", 2, show=False) as step:
    ...     step(1); step(1, "half way")
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda advance, note="": None
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=False,
        speed_estimate_period=SPEED_PERIOD,
        refresh_per_second=REFRESHES,
    )
    task = bar.add_task(label, total=total, note=status)
    # A timer, because the first piece of work may itself take a minute.
    patience = threading.Timer(PATIENCE, bar.start)
    patience.daemon = True
    patience.start()
    try:
        yield lambda advance, note="": bar.update(task, advance=advance, note=note or status)
    finally:
        patience.cancel()
        patience.join()
        if bar.live.is_started:
            bar.stop()


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.25), duration(12.3), duration(320), duration(9000), duration(1e6)
    ('0.2 s', '12 s', '5.3 min', '2.5 h', '11.6 days')
    """
    for unit, size, most in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{seconds / size:.{0 if unit == 's' and seconds >= 1 else 1}f} {unit}"
    return f"{seconds / 86400:.1f} days"
