"""`lipforge report`: one page, or tables, from run directories."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say_wrote, write
from lipforge.errors import InputError
from lipforge.records import write_whole

if TYPE_CHECKING:
    from lipforge.reports import Report

FORMATS = ("html", "csv", "latex", "markdown")


def report(
    runs: Annotated[list[str], Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    out: Annotated[str | None, Option(help="Where to write; html: report.html in the first run.")] = None,
    format: Annotated[str, Option(help="html, or the tables as csv, latex or markdown.")] = "html",
    table: Annotated[list[str] | None, Option(help="Only this table; repeatable. --json lists them.")] = None,
    json: options.Json = False,
) -> None:
    """Write one self-contained HTML page about the results of run directories, or print their tables.

    [bold]Examples[/]

    lipforge report runs/demo

    lipforge report runs/small runs/large --out compared.html

    lipforge report runs/demo --format latex --table accuracy
    """
    from lipforge.reports import build_report
    from lipforge.reports.html import render

    if format not in FORMATS:
        raise InputError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "html" and table:
        raise InputError("--table is for csv, latex and markdown; the page has all tables. Add --format")
    path = Path(out) if out else Path(runs[0]) / "report.html" if format == "html" else None
    made = build_report(*runs)
    for problem in made.problems:
        note(problem)
    if path is not None:
        check_out(str(path))
    text = render(made) if format == "html" else _tables(made, table, format)
    if path is not None:
        write_whole(path, text.encode())
    elif not json:
        write(text)
    sections, tables = ([one.name for one in parts] for parts in (made.sections, made.tables))
    about = {"report": path, "runs": runs, "sections": sections, "tables": tables, "problems": made.problems}
    if not printed(json, {"kind": "report", **about}) and path is not None:
        say_wrote([path])


def _tables(made: "Report", names: list[str] | None, format: str) -> str:
    known = {table.name: table for table in made.tables}
    for name in names or ():
        if name not in known:
            raise InputError(f"--table must be one of {', '.join(known)}, got {name!r}")
    tables = [known[name] for name in names] if names else made.tables
    texts = [table.write(format) for table in tables]  # type: ignore[arg-type]  # checked before
    if format == "csv" and len(tables) > 1:
        # A CSV file holds one table; several are told apart by a line with the name, as in a notebook.
        texts = [f"# {table.name}\n{text}" for table, text in zip(tables, texts, strict=True)]
    return "\n".join(texts)
