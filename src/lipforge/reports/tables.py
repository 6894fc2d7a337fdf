"""Tables that know their numbers: as text for a page, and as CSV, LaTeX and Markdown to take away."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from lipforge.errors import InputError
from lipforge.text import duration, number, percent, points, points_text, share_text

Format: TypeAlias = Literal["csv", "latex", "markdown"]
SUFFIX: dict[Format, str] = {"csv": "csv", "latex": "tex", "markdown": "md"}


class Share(NamedTuple):
    """A share (or a difference of shares) with its interval, where one is known."""

    value: float
    interval: tuple[float, float] | None = None


Kind: TypeAlias = Literal["text", "share", "points", "count", "number", "seconds", "code"]
Cell: TypeAlias = str | int | float | Share | None


@dataclass(frozen=True)
class Column:
    """A column's heading and what its cells are; `share` and `points` cells are `Share` or None."""

    name: str
    kind: Kind = "text"

    @property
    def is_text(self) -> bool:
        """Whether its cells are words, which are set flush left."""
        return self.kind in ("text", "code")

    @property
    def has_interval(self) -> bool:
        return self.kind in ("share", "points")

    @property
    def heading(self) -> str:
        return f"{self.name} %" if self.kind == "share" else self.name


def columns(*specs: str) -> tuple[Column, ...]:
    """Columns from their names, each with its kind after a colon unless it is text.

    >>> columns("attack", "n:count")
    (Column(name='attack', kind='text'), Column(name='n', kind='count'))
    """
    parts = (spec.partition(":") for spec in specs)
    return tuple(Column(name, cast(Kind, kind or "text")) for name, _, kind in parts)


@dataclass(frozen=True)
class Table:
    """Rows under columns. `name` becomes the file name of a download; `title` is the caption."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(f"table '{self.name}' has {len(self.columns)} columns, got a row of {len(row)}: {row}")

    def texts(self, *, heading: bool = False) -> list[list[str]]:
        """The cells as a page shows them: percent, intervals in brackets, nothing for None; the heading if asked."""
        rows = [[shown(column, cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        return [[column.heading for column in self.columns], *rows] if heading else rows

    def write(self, format: Format) -> str:
        if format not in get_args(Format):
            raise InputError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
        return WRITERS[format](self)


def shown(column: Column, cell: Cell) -> str:
    """One cell as text.

    >>> shown(Column("robust", "share"), Share(0.331, (0.27, 0.4)))
    '33.1 [27.0, 40.0]'
    """
    if cell is None:
        return ""
    if isinstance(cell, Share):
        if cell.interval is None:
            return points(cell.value) if column.kind == "points" else percent(cell.value)
        return (points_text if column.kind == "points" else share_text)(cell.value, cell.interval)
    if isinstance(cell, str):
        return cell
    return duration(cell) if column.kind == "seconds" else number(cell)


def to_csv(table: Table) -> str:
    """Numbers as they were measured: shares as fractions, their bounds in columns of their own, times in seconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    bounds = {True: ("", " low", " high"), False: ("",)}
    writer.writerow([column.name + bound for column in table.columns for bound in bounds[column.has_interval]])
    for row in table.rows:
        writer.writerow([v for column, cell in zip(table.columns, row, strict=True) for v in _csv_cells(column, cell)])
    return out.getvalue()


def _csv_cells(column: Column, cell: Cell) -> list[Any]:
    if column.has_interval:
        value, interval = cell if isinstance(cell, Share) else (cell, None)
        return ["" if value is None else value, *(interval or ("", ""))]
    # A spreadsheet would run a name such as "=HYPERLINK(...)" as a formula; the apostrophe makes it text.
    if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return ["'" + cell]
    return ["" if cell is None else cell]


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ",
}  # fmt: skip


def to_latex(table: Table) -> str:
    """A booktabs table; it needs \\usepackage{booktabs}."""
    align = "".join("l" if column.is_text else "r" for column in table.columns)
    lines = [r"\begin{table}", rf"\caption{{{_latex(table.title)}}}", r"\centering", rf"\begin{{tabular}}{{{align}}}"]
    heading, *rows = (" & ".join(map(_latex, cells)) + r" \\" for cells in table.texts(heading=True))
    lines += [r"\toprule", heading, r"\midrule", *rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def to_markdown(table: Table) -> str:
    heading, *rows = ("| " + " | ".join(map(_markdown, cells)) + " |" for cells in table.texts(heading=True))
    line = "|" + "|".join("---" if column.is_text else "---:" for column in table.columns) + "|"
    return "\n".join([f"**{_markdown(table.title)}**", "", heading, line, *rows, ""])


def _markdown(text: str) -> str:
    for character in "\\|*`<>_":
        text = text.replace(character, "\\" + character)
    return " ".join(text.replace("](", "]\\(").split())


WRITERS: dict[Format, Callable[[Table], str]] = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
