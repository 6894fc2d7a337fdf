"""Results on stdout, everything else on stderr."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipforge.records import to_json

WIDTH = 120
"""Columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise."""

_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
# No markup and no emoji codes: names and messages are printed as they are, even "[old]" and "model.py:dog: ...".
results = Console(width=_width, highlight=False, markup=False, emoji=False)
notes = Console(stderr=True, highlight=False, markup=False, emoji=False)


def note(text: object, *, word: str = "note", style: str = "yellow") -> None:
    """One line on stderr that a coloured word introduces."""
    notes.print(Text.assemble((f"{word}:", style), " ", str(text)), soft_wrap=True)


def say(text: str) -> None:
    """A paragraph on stdout, which the terminal may fold and a file keeps in one line."""
    results.print(text, soft_wrap=True)


def say_wrote(paths: Iterable[str | Path]) -> None:
    for path in paths:
        say(f"wrote {path}")


def show_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; columns such as ">bound" are aligned to the right."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    results.print(made)


def printed(json: bool, found: Any, **more: Any) -> bool:
    """Whether a result was wanted, and printed, as JSON: its record, or for a list an object with all as "results"."""
    if json:
        from lipforge.results import record

        shown = {"results": [record(one) for one in found]} if isinstance(found, list) else record(found)
        print_json({**shown, **more})
    return json


def print_json(value: Any) -> None:
    """One JSON object on stdout and nothing else, for programs to read."""
    print(to_json(value), end="", flush=True)
