"""Results on stdout, everything else on stderr."""

import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipforge.records import to_json
from lipforge.types import ratio_text as ratio_text

WIDTH = 120
"""Columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise."""

_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
# No markup and no emoji codes: names and messages are printed as they are, even "[old]" and "model.py:dog: ...".
results = Console(width=_width, highlight=False, markup=False, emoji=False)
notes = Console(stderr=True, highlight=False, markup=False, emoji=False)


def note(text: str, *, word: str = "note", style: str = "yellow") -> None:
    """One line on stderr that a coloured word introduces."""
    notes.print(Text.assemble((f"{word}:", style), " ", text), soft_wrap=True)


def table(title: str, columns: dict[str, str], rows: list[list[str]]) -> Table:
    """A table whose columns are given with their alignment, such as {"site": "left", "bound": "right"}."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for name, justify in columns.items():
        made.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # a rich literal
    for row in rows:
        made.add_row(*row)
    return made


def print_json(value: Any) -> None:
    """One JSON value on stdout and nothing else, for programs to read."""
    print(to_json(value), end="", flush=True)
