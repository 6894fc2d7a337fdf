"""One HTML file from run directories: no network, no model, nothing that a result's name could smuggle in."""

import base64
import hashlib
import warnings
from dataclasses import dataclass, replace
from importlib import resources
from itertools import count
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from lipforge.errors import InputError
from lipforge.records import lipforge_version, write_whole
from lipforge.reports.blocks import Figure, Grid, Section
from lipforge.reports.charts import point, tag
from lipforge.reports.read import Run, read_run
from lipforge.reports.sections import SECTIONS, about, compare_runs
from lipforge.reports.tables import SUFFIX, Format, Table

MIME: dict[Format, str] = {"csv": "text/csv", "latex": "application/x-tex", "markdown": "text/markdown"}


class ReportWarning(UserWarning):
    """A file of a run could not be used."""


@dataclass(frozen=True)
class Page:
    """One run's part of a report."""

    name: str
    anchor: str
    about: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Report:
    """What a report shows, before it becomes HTML."""

    title: str
    about: str
    pages: tuple[Page, ...]
    comparison: Section | None
    problems: tuple[str, ...]

    @property
    def sections(self) -> list[Section]:
        """All sections in the order of the page."""
        first = [self.comparison] if self.comparison else []
        return first + [section for page in self.pages for section in page.sections]

    @property
    def tables(self) -> list[Table]:
        """All tables in the order of the page, each under a name of its own."""
        blocks = (block for section in self.sections for block in section.blocks)
        return _renamed([block.table for block in blocks if isinstance(block, Figure | Grid) and block.table])


def write_report(*runs: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained HTML file about the results in `runs`, by default report.html in the first of them.

    Files that cannot be used are named in the page and in a `ReportWarning` each.
    """
    report = build_report(*runs)
    for problem in report.problems:
        warnings.warn(problem, ReportWarning, stacklevel=2)
    path = Path(runs[0]) / "report.html" if out is None else Path(out)
    write_whole(path, render(report).encode())
    return path


def build_report(*runs: str | Path) -> Report:
    """What a report of these runs shows; files that cannot be used are in its `problems`."""
    if not runs:
        raise InputError("runs must name at least one run directory")
    read = [read_run(path) for path in runs]
    pages = tuple(_page(run, f"run-{place}") for place, run in enumerate(read, 1))
    comparison = compare_runs(read) if len(read) > 1 else None
    problems = tuple((f"{run.name}: " if len(read) > 1 else "") + problem for run in read for problem in run.problems)
    title = read[0].name if len(read) == 1 else f"{len(read)} runs: {', '.join(run.name for run in read)}"
    text = pages[0].about if len(read) == 1 else ""
    return Report(title, text, pages, comparison, problems)


def render(report: Report) -> str:
    """The report as HTML text."""
    style, script = (Markup(_asset(f"report.{kind}")) for kind in ("css", "js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    numbers = count(1)
    given: dict[int, int] = {}
    environment.filters |= {
        "data_uri": _data_uri,
        "swatch": _swatch,
        "bracketed": _bracketed,
        "breakable": _breakable,
        "figure_number": lambda block: given.setdefault(id(block), next(numbers)),
    }
    return environment.from_string(_asset("report.html.j2")).render(
        report=report,
        style=style,
        script=script,
        policy=_policy(style, script),
        formats=SUFFIX,
        version=lipforge_version(),
    )


def _page(run: Run, anchor: str) -> Page:
    sections = tuple(section for build in SECTIONS if (section := build(run)) is not None)
    return Page(run.name, anchor, about(run), sections)


def _renamed(tables: list[Table]) -> list[Table]:
    """Tables of one name get numbers, so that each can be asked for."""
    seen: dict[str, int] = {}
    named = []
    for table in tables:
        seen[table.name] = seen.get(table.name, 0) + 1
        named.append(table if seen[table.name] == 1 else replace(table, name=f"{table.name}-{seen[table.name]}"))
    return named


def _policy(style: str, script: str) -> str:
    """Allow our own style, our own script and embedded images, and nothing else: the browser then asks no one."""
    digests = ["'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
               for text in (style, script)]  # fmt: skip
    return f"default-src 'none'; style-src {digests[0]}; script-src {digests[1]}; img-src data:; base-uri 'none'"


def _data_uri(table: Table, format: Format) -> str:
    return f"data:{MIME[format]};charset=utf-8,{quote(table.write(format))}"


def _swatch(role: str) -> Markup:
    return tag("svg", point(7.0, 7.0, role, 4.5), viewBox="0 0 14 14", aria_hidden="true")


def _bracketed(text: str) -> Markup:
    """A number's interval in a softer colour, so that the eye finds the number."""
    value, bracket, interval = text.partition(" [")
    return escape(value) + (tag("span", bracket + interval, class_="range") if bracket else Markup(""))


def _breakable(text: str) -> Markup:
    """Words that may break after the colons and commas of an attack's settings, rather than inside a word."""
    made = escape(text)
    for mark in (":", ","):
        made = made.replace(mark, Markup(mark + "<wbr>"))
    return made


def _asset(name: str) -> str:
    return resources.files("lipforge.reports").joinpath("page", name).read_text(encoding="utf-8")
