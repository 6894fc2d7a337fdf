"""Results on stdout, everything else on stderr."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lipforge.errors import InputError
from lipforge.progress import silence
from lipforge.records import lipforge_version, to_json
from lipforge.text import visible

WIDTH = 120
"""Columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise."""

command = ContextVar("command", default="")
"""The command that runs, such as "evaluate" or "data list"."""


def discard(file: TextIO) -> None:
    """Send to nowhere what is written to `file` from now on, and what it still holds: nobody reads it any more."""
    with suppress(OSError, ValueError):  # a file without a descriptor has no pipe
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


class _Console(Console):
    """A console whose reader may leave, as `head -1` does: the command does its work to the end all the same."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Names come from files that others wrote: they must not move the cursor, clear the screen or set the title.
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        discard(sys.stderr if self.stderr else sys.stdout)


_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
# No markup and no emoji codes: names and messages are printed as they are, even "[old]" and "model.py:dog: ...".
results = _Console(width=_width, highlight=False, markup=False, emoji=False)
notes = _Console(stderr=True, highlight=False, markup=False, emoji=False)
errors = _Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Inside the block no note and no progress is shown, if `quiet`; errors are."""
    notes.quiet = quiet
    try:
        with silence() if quiet else nullcontext():
            yield
    finally:
        notes.quiet = False


def note(text: object, *, word: str = "note", style: str = "yellow", console: Console = notes) -> None:
    """One line on stderr that a coloured word introduces."""
    console.print(Text.assemble((f"{word}:", style), " ", str(text)), soft_wrap=True)


def say(text: str) -> None:
    """A paragraph on stdout, which the terminal may fold and a file keeps in one line."""
    results.print(text, soft_wrap=True)


def say_wrote(paths: Iterable[str | Path]) -> None:
    for path in paths:
        say(f"wrote {path}")


def show_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; columns such as ">bound" are aligned to the right."""
    if title:  # apart from the table, which would wrap it at its own width
        results.print(Text(title, style="table.title"), soft_wrap=True)
    made = Table(header_style="bold")
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    results.print(made)


def printed(json: bool, found: Any, **more: Any) -> bool:
    """Whether results were wanted, and printed, as JSON: one object with the command as its kind and `results`, a list
    of records. `found` is a result, a dict with a kind, or a list of them; `more` are further fields of the object."""
    if json:
        from lipforge.results import record

        every = found if isinstance(found, list) else [found]
        print_json(command.get(), [one if isinstance(one, dict) else record(one) for one in every], **more)
    return json


def print_json(kind: str, records: list[dict[str, Any]], **more: Any) -> None:
    """The one JSON object on stdout, for programs to read."""
    from lipforge.results import FORMAT

    write(to_json({"kind": kind, "format": FORMAT, "lipforge": lipforge_version(), "results": records, **more}))


def write(text: str) -> None:
    """Text on stdout as it is."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        discard(sys.stdout)


def check_out(out: str) -> None:
    """Raise if a file cannot be written there: before the work, not after it."""
    path = Path(out)
    folder = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if path.is_dir():
        raise InputError(f"--out must name a file, got the folder {out}")
    if not folder.is_dir():
        raise InputError(f"--out {out} cannot be written: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {out} cannot be written: no permission to write in {folder}")
