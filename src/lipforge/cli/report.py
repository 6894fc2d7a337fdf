"""`lipforge report`: one page, or tables, from run directories."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from lipforge.cli import options
from lipforge.cli.output import note, print_json, results
from lipforge.errors import InputError
from lipforge.records import write_whole
from lipforge.reports import Report, Table, build_report
from lipforge.reports.html import render
from lipforge.reports.tables import Format

Output = Literal["html", "csv", "latex", "markdown"]


@dataclass(frozen=True)
class Written:
    """What a report holds and where it went; `report` is None where tables went to stdout."""

    report: str | None
    runs: tuple[str, ...]
    sections: tuple[str, ...]
    tables: tuple[str, ...]
    problems: tuple[str, ...]


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    out: Annotated[str | None, typer.Option(help="Where to write; html: report.html in the first run.")] = None,
    format: Annotated[str, typer.Option(help="html, or the tables as csv, latex or markdown.")] = "html",
    table: Annotated[list[str] | None, typer.Option(help="Only this table; repeatable. --json lists them.")] = None,
    json: options.Json = False,
) -> None:
    """Write one self-contained HTML page about the results of run directories, or print their tables.

    [bold]Examples[/]

    lipforge report runs/demo

    lipforge report runs/small runs/large --out compared.html

    lipforge report runs/demo --format latex --table accuracy
    """
    if format not in get_args(Output):
        raise InputError(f"--format must be one of {', '.join(get_args(Output))}, got {format!r}")
    if format == "html" and table:
        raise InputError("--table is for csv, latex and markdown; the page has all tables. Add --format")
    path = Path(out) if out else Path(runs[0]) / "report.html" if format == "html" else None
    made = build_report(*runs)
    for problem in made.problems:
        note(problem)
    if path is not None:
        options.check_out(str(path))
    if format == "html":
        assert path is not None
        write_whole(path, render(made).encode())
    else:
        _write_tables(_chosen(made, table), format, path, silent=json)  # type: ignore[arg-type]  # checked above
    _finish(made, runs, path, json)


def _write_tables(tables: list[Table], format: Format, path: Path | None, *, silent: bool) -> None:
    # A CSV file holds one table; several are told apart by a line with the name, as in a notebook.
    parts = [(f"# {table.name}\n" if format == "csv" and len(tables) > 1 else "") + table.write(format)
             for table in tables]  # fmt: skip
    text = "\n".join(parts)
    if path is not None:
        write_whole(path, text.encode())
    elif not silent:
        print(text, end="", flush=True)


def _chosen(made: Report, names: list[str] | None) -> list[Table]:
    tables = made.tables
    if not names:
        return tables
    known = {table.name: table for table in tables}
    for name in names:
        if name not in known:
            raise InputError(f"--table must be one of {', '.join(known)}, got {name!r}")
    return [known[name] for name in names]


def _finish(made: Report, runs: list[str], path: Path | None, json: bool) -> None:
    if json:
        names = tuple(section.name for section in made.sections)
        where = None if path is None else str(path)
        print_json(Written(where, tuple(runs), names, tuple(table.name for table in made.tables), made.problems))
    elif path is not None:
        results.print(f"wrote {path}", soft_wrap=True)
