"""Progress on stderr with the time left, for whatever takes longer than two seconds."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeRemainingColumn

from lipforge.ranks import is_first
from lipforge.text import duration, visible

PATIENCE = 0.5  # seconds that pass before a bar appears: short work stays silent
PERIOD = 60.0  # seconds between two lines where stderr is no terminal, as in the log of a cluster's job
SPEED_PERIOD = 24 * 3600.0  # seconds of work from which the time left is estimated: one step may take an hour
GAP = 10.0  # seconds without work after which what comes next is a command, or a call, of its own


@dataclass
class _Clock:
    """When the pieces of work in a row began and the last of them ended, and when the last line was written."""

    began: float = float("-inf")
    ended: float = float("-inf")
    wrote: float = float("-inf")


_clock = _Clock()

_silent = ContextVar("silent", default=False)

REFRESHES = 2  # per second. Drawing takes a few milliseconds of the interpreter, which an attack on a CPU waits for


class Step(Protocol):
    """Call it after each piece of work: how many units were done, and a word on how it goes."""

    def __call__(self, advance: int, note: str = "") -> None: ...


@contextmanager
def silence() -> Iterator[None]:
    """Inside the block no progress is shown."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent() -> bool:
    return _silent.get()


@contextmanager
def progress(
    label: str, total: int | None, *, done: int = 0, show: bool | None = None, status: object = ""
) -> Iterator[Step]:
    """A progress bar on stderr; where that is no terminal a line a minute, unless `show` asks for the bar.

    Under torchrun only the first rank shows any. Of `total` units `done` are done already, which says nothing of the
    time left. `status` is shown where a step brings no note; its `str` is taken anew at every refresh.

    >>> with progress("calibrating", 2, show=False) as step:
    ...     step(1); step(1, "half way")
    """
    if show is False or is_silent() or not is_first():
        yield lambda advance, note="": None
        return
    name, remark = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
    columns = (SpinnerColumn(), name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), remark)
    bar = Progress(
        *columns, console=Console(stderr=True), speed_estimate_period=SPEED_PERIOD, refresh_per_second=REFRESHES
    )
    task = bar.add_task(visible(label), total=total, completed=done, note=status)
    with _drawn(bar) if show or sys.stderr.isatty() else _logged(bar.tasks[0]):
        yield lambda advance, note="": bar.update(task, advance=advance, note=note or status)


@contextmanager
def _drawn(bar: Progress) -> Iterator[None]:
    """Draw the bar once the work has taken a while."""
    # A timer, because the first piece of work may itself take a minute.
    patience = threading.Timer(PATIENCE, bar.start)
    patience.daemon = True
    patience.start()
    try:
        yield
    finally:
        patience.cancel()
        patience.join()
        if bar.live.is_started:
            bar.stop()


@contextmanager
def _logged(task: Task) -> Iterator[None]:
    """Write a line now and then, and one at the end if there was any before. Pieces of work that follow each other
    share one clock; their first line comes after half a period."""
    over, now = threading.Event(), time.monotonic()
    if now > _clock.ended + GAP:
        _clock.began = now

    def talk() -> None:
        lines = 0
        while not over.wait(_pause()):
            _write_line(task)
            lines += 1
        if lines:
            _write_line(task)

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    try:
        yield
    finally:
        over.set()
        talker.join()
        _clock.ended = time.monotonic()


def _pause() -> float:
    """How many seconds from now the next line is due."""
    return max(_clock.began + PERIOD / 2, _clock.wrote + PERIOD) - time.monotonic()


def _write_line(task: Task) -> None:
    _clock.wrote = time.monotonic()
    left = task.time_remaining
    parts = (
        f"{task.completed:.0f} of {task.total:.0f}" if task.total is not None else "",
        f"about {duration(left)} left" if left else "",
        str(task.fields["note"]),
    )
    words = ", ".join(part for part in parts if part)
    print(f"{time.strftime('%H:%M:%S')} {task.description}: {words}", file=sys.stderr, flush=True)
