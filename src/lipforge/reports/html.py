"""One HTML file from run directories: no network, no model, nothing that a result's name could smuggle in."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from importlib import resources
from itertools import count
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from lipforge.errors import InputError
from lipforge.logs import warn
from lipforge.records import lipforge_version, write_whole
from lipforge.reports.blocks import Figure, Grid, Section
from lipforge.reports.charts import point, tag
from lipforge.reports.read import read_run
from lipforge.reports.sections import SECTIONS, about, compare_runs
from lipforge.reports.tables import SUFFIX, Format, Table

MIME: dict[Format, str] = {"csv": "text/csv", "latex": "application/x-tex", "markdown": "text/markdown"}


class ReportWarning(UserWarning):
    """A file of a run could not be used."""


@dataclass(frozen=True)
class Page:
    name: str
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
        first = [self.comparison] if self.comparison else []
        return first + [section for page in self.pages for section in page.sections]

    @property
    def tables(self) -> list[Table]:
        """All tables in the order of the page, each under a name of its own."""
        seen: Counter[str] = Counter()
        tables = []
        for block in (block for section in self.sections for block in section.blocks):
            if isinstance(block, Figure | Grid) and (table := block.table):
                seen[table.name] += 1
                again = seen[table.name]
                tables.append(table if again == 1 else replace(table, name=f"{table.name}-{again}"))
        return tables


def write_report(*runs: str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML file about `runs`, by default report.html in the first; a `ReportWarning` per unusable file."""
    report = build_report(*runs)
    for problem in report.problems:
        warn(problem, ReportWarning)
    path = Path(runs[0]) / "report.html" if out is None else Path(out)
    write_whole(path, render(report).encode(errors="backslashreplace"))
    return path


def build_report(*runs: str | Path) -> Report:
    """What a report of these runs shows; files that cannot be used are in its `problems`."""
    if not runs:
        raise InputError("runs must name at least one run directory")
    read = [read_run(path) for path in runs]
    pages = tuple(
        Page(run.name, about(run), tuple(section for build in SECTIONS if (section := build(run)).blocks))
        for run in read
    )
    if len(read) == 1:
        return Report(read[0].name, pages[0].about, pages, None, tuple(read[0].problems))
    problems = tuple(f"{run.name}: {problem}" for run in read for problem in run.problems)
    title = f"{len(read)} runs: {', '.join(run.name for run in read)}"
    return Report(title, "", pages, compare_runs(read), problems)


def render(report: Report) -> str:
    style, script = (Markup(_asset(f"report.{kind}")) for kind in ("css", "js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    numbers = count(1)
    given: dict[int, int] = {}
    environment.filters |= {
        "kind": lambda block: type(block).__name__.lower(),
        "data_uri": lambda table, format: (
            f"data:{MIME[format]};charset=utf-8,{quote(table.write(format).encode(errors='backslashreplace'))}"
        ),
        "swatch": lambda role: tag("svg", point(7.0, 7.0, role, 4.5), viewBox="0 0 14 14", aria_hidden="true"),
        "bracketed": _bracketed,
        "breakable": _breakable,
        "figure_number": lambda block: given.setdefault(id(block), next(numbers)),
    }
    shown = {"report": report, "style": style, "script": script, "policy": _policy(style, script)}
    template = environment.from_string(_asset("report.html.j2"))
    return template.render(shown, formats=SUFFIX, version=lipforge_version())


def _policy(style: str, script: str) -> str:
    """Allow our own style, our own script and embedded images, and nothing else: the browser then asks no one."""
    first, second = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    own = f"style-src 'sha256-{first}'; script-src 'sha256-{second}'"
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'"


def _bracketed(text: str) -> Markup:
    """A number's interval in a softer colour, so that the eye finds the number."""
    value, bracket, interval = text.partition(" [")
    return escape(value) + (tag("span", bracket + interval, class_="range") if bracket else Markup(""))


def _breakable(text: str) -> Markup:
    """Words that may break after the colons and commas of an attack's settings, rather than inside a word."""
    return Markup(re.sub(r"([:,])", r"\1<wbr>", str(escape(text))))


def _asset(name: str) -> str:
    return resources.files("lipforge.reports").joinpath("page", name).read_text(encoding="utf-8")
