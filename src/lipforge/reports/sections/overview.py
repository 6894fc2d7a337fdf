"""A run in a line, and several runs side by side."""

from collections.abc import Sequence

from lipforge.reports.blocks import Block, Figure, Grid, Section
from lipforge.reports.charts import Axis, Bar, Row, Rows
from lipforge.reports.parsed import is_base, robust_results, roles
from lipforge.reports.read import Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.sections.certified import parse_certificate
from lipforge.reports.sections.verdict import parse_audit
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.reports.text import percent


def about(run: Run) -> str:
    """Models, data and attacks of a run, in one line."""
    found, audits = robust_results(run), run.parsed("audit", parse_audit)
    parts: list[str] = []
    for values in (
        [r.model for r in found] + [a.model for a in audits],
        [r.data for r in found] + [a.data for a in audits],
        [r.threat for r in found] + [a.threat for a in audits],
    ):
        if kept := [value for value in dict.fromkeys(values) if value]:
            parts.append(", ".join(kept))
    return " · ".join(parts)


def compare_runs(runs: Sequence[Run]) -> Section:
    """Verdicts and accuracies of several runs in one table each."""
    blocks: list[Block] = []
    if any(robust_results(run) for run in runs):
        blocks += [_figure(runs), Grid(_accuracies(runs))]
    if verdicts := _verdicts(runs):
        blocks.insert(0, Grid(verdicts))
    if certificates := _certificates(runs):
        blocks.append(Grid(certificates))
    lead = (
        "Runs may differ in model, data, attack and number of images; only rows that agree in these can be compared, "
        "and only images of one run are paired."
    )
    return Section("runs", "Runs side by side", lead, tuple(blocks))


def _figure(runs: Sequence[Run]) -> Figure:
    rows: list[Row] = []
    used: dict[str, str] = {}
    for run in runs:
        found = robust_results(run)
        colours = roles(result.label for result in found)
        for setting in dict.fromkeys((r.attack, r.threat) for r in found):
            same = [r for r in found if (r.attack, r.threat) == setting]
            bars = tuple(
                Bar(colours[r.label], *r.interval, f"{run.name}, {r.label}: {percent(r.robust)} %, n = {r.count:,}",
                    percent(r.robust), at=r.robust)
                for r in same
            )  # fmt: skip
            used |= {colours[r.label]: r.label for r in same}
            rows.append(Row(f"{run.name}: {setting[0]}, {setting[1]}", bars))
    said = "; ".join(bar.tip for row in rows for bar in row.bars)
    chart = Rows(f"Robust accuracy of the runs. {said}.", Axis("robust accuracy, %", (0.0, 1.0), percent_tick),
                 tuple(rows), tuple(used.items()), "interval")  # fmt: skip
    return Figure("Robust accuracy of every run, with 95 % intervals.", (chart,))


def _verdicts(runs: Sequence[Run]) -> Table | None:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for audit in run.parsed("audit", parse_audit):
            union = audit.paired.get("union")
            rows.append((run.name, audit.verdict, audit.model, audit.threat, audit.count,
                         union.difference if union else None))  # fmt: skip
    columns = (Column("run"), Column("verdict"), Column("model"), Column("threat"), Column("n", "count"),
               Column("difference under all attacks (points)", "points"))  # fmt: skip
    return Table("verdicts", "Verdicts", columns, tuple(rows)) if rows else None


def _accuracies(runs: Sequence[Run]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (run.name, r.label, r.model, r.attack, r.threat, r.count, Share(r.clean, r.clean_interval),
         Share(r.robust, r.interval))
        for run in runs
        for r in robust_results(run)
    ]  # fmt: skip
    columns = (Column("run"), Column("classifier"), Column("model"), Column("attack"), Column("threat"),
               Column("n", "count"), Column("clean", "share"), Column("robust", "share"))  # fmt: skip
    return Table("runs", "Accuracies of all runs", columns, tuple(rows))


def _certificates(runs: Sequence[Run]) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (run.name, c.label, c.sigma, radius, c.count, share)
        for run in runs
        for c in sorted(run.parsed("certify", parse_certificate), key=lambda c: (not is_base(c.label), c.label))
        for radius, _, share in c.curve[:3]
    ]
    columns = (Column("run"), Column("classifier"), Column("sigma", "number"), Column("radius", "number"),
               Column("n", "count"), Column("certified", "share"))  # fmt: skip
    return (
        Table("runs-certified", "Certified accuracy of all runs, first radii", columns, tuple(rows)) if rows else None
    )
