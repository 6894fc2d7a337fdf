"""A run in a line, several runs side by side, and where the numbers come from: commands, versions, files."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from lipforge.reports.blocks import Block, Code, Figure, Grid, Prose, Section
from lipforge.reports.charts import Bar, Row, Rows, percent_axis
from lipforge.reports.read import Run, base_first, is_base, roles
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.results import AuditReport, CertifyResult, DemoResult, RobustResult
from lipforge.text import percent


def about(run: Run) -> str:
    """Models, data and threats of a run, in one line."""
    found = [*run.evaluations, *run.of(AuditReport)]
    listed = ([getattr(result, name) for result in found] for name in ("model", "data", "threat"))
    return " · ".join(", ".join(kept) for values in listed if (kept := list(filter(None, dict.fromkeys(values)))))


def compare_runs(runs: Sequence[Run]) -> Section:
    """Verdicts and accuracies of several runs in one table each."""
    blocks: list[Block] = []
    if verdicts := _verdicts(runs):
        blocks.append(Grid(verdicts))
    if any(run.evaluations for run in runs):
        blocks += [_figure(runs), Grid(_accuracies(runs))]
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
        found = run.evaluations
        colours = roles(result.label for result in found)
        for attack, threat in dict.fromkeys((r.attack, r.threat) for r in found):
            same = [r for r in found if (r.attack, r.threat) == (attack, threat)]
            bars = tuple(
                Bar(colours[r.label], *r.interval,
                    f"{run.name}, {r.label}: {percent(r.robust_accuracy)} %, n = {r.count:,}",
                    percent(r.robust_accuracy), at=r.robust_accuracy)
                for r in same
            )  # fmt: skip
            used |= {colours[r.label]: r.label for r in same}
            rows.append(Row(f"{run.name}: {attack}, {threat}", bars))
    said = "; ".join(bar.tip for row in rows for bar in row.bars)
    chart = Rows(f"Robust accuracy of the runs. {said}.", percent_axis("robust accuracy, %"), tuple(rows),
                 tuple(used.items()), "interval")  # fmt: skip
    return Figure("Robust accuracy of every run, with 95 % intervals.", (chart,))


def _verdicts(runs: Sequence[Run]) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (run.name, audit.verdict, audit.model, audit.threat, audit.count,
         Share(audit.union.difference, audit.union.interval))
        for run in runs
        for audit in run.of(AuditReport)
    ]  # fmt: skip
    columns = (Column("run"), Column("verdict"), Column("model"), Column("threat"), Column("n", "count"),
               Column("difference, all attacks (points)", "points"))  # fmt: skip
    return Table("verdicts", "Verdicts", columns, tuple(rows)) if rows else None


def _accuracies(runs: Sequence[Run]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (run.name, r.label, r.model, r.attack, r.threat, r.count, Share(r.clean_accuracy, r.clean_interval),
         Share(r.robust_accuracy, r.interval))
        for run in runs
        for r in run.evaluations
    ]  # fmt: skip
    columns = (Column("run"), Column("classifier"), Column("model"), Column("attack"), Column("threat"),
               Column("n", "count"), Column("clean", "share"), Column("robust", "share"))  # fmt: skip
    return Table("runs", "Accuracies of all runs", columns, tuple(rows))


def _certificates(runs: Sequence[Run]) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (run.name, r.label, r.sigma, here.radius, r.count, Share(here.accuracy, here.interval))
        for run in runs
        for r in base_first(run.of(CertifyResult))
        for here in r.curve[:3]
    ]
    columns = (Column("run"), Column("classifier"), Column("sigma", "number"), Column("radius", "number"),
               Column("n", "count"), Column("certified", "share"))  # fmt: skip
    title = "Certified accuracy of all runs, first radii"
    return Table("runs-certified", title, columns, tuple(rows)) if rows else None


def provenance(run: Run) -> Section:
    """How to get the same numbers again, and what they were computed with."""
    blocks: list[Block] = [_commands(run)]
    sessions = _sessions(run)
    if sessions:
        names = list(dict.fromkeys(name for session in sessions for name in session if name != "command"))
        columns = (Column(""), *(Column(f"session {place}", "code") for place in range(1, len(sessions) + 1)))
        rows = tuple((name, *(_text(session.get(name)) for session in sessions)) for name in names)
        blocks.append(Grid(Table("environment", "Versions and machines", columns, rows)))
    seeds = sorted({result.seed for result in run.evaluations})
    if seeds:
        text = f"Seed{'s' if len(seeds) > 1 else ''}: {', '.join(map(str, seeds))}. Random numbers depend on the seed, "
        blocks.append(Prose(text + "the attack and the image's number alone, not on batches or workers."))
    files = tuple((f"{name}.json", kind) for name, kind in run.kinds.items())
    blocks.append(Grid(Table("files", "Files that this page was made from", (Column("file"), Column("kind")), files)))
    for task, config in run.configs.items():
        blocks.append(Code(f"Configuration of {task}", json.dumps(config, indent=2, ensure_ascii=False), folded=True))
    return Section("provenance", "Provenance", "", tuple(blocks))


def _commands(run: Run) -> Block:
    """The commands that were recorded; else what the results say of themselves."""
    recorded = [command for session in _sessions(run) if isinstance(command := session.get("command"), str)]
    demos = [
        shlex.join(["lipforge", "demo", "--model", demo.model, "--count", str(demo.count), "--out", run.name])
        for demo in run.of(DemoResult)
    ]
    if recorded or demos:
        return Code("To compute these numbers again", "\n".join(dict.fromkeys(recorded or demos)))
    evaluations = dict.fromkeys(_command(result, run) for result in run.evaluations)
    if evaluations:
        return Code("No command was recorded; the closest ones on the command line", "\n".join(evaluations))
    return Prose("No command was recorded with these results.")


def _command(result: RobustResult, run: Run) -> str:
    norm, _, eps = result.threat.partition(" ")
    words = ["lipforge", "evaluate", result.model or "MODEL"]
    words += [] if is_base(result.label) else ["--recipe", "recipe.json"]
    words += ["--data", result.data.split(" ")[0] or "DATA", "--limit", str(result.count), "--attack", result.attack]
    words += ["--norm", norm, "--eps", eps, "--seed", str(result.seed), "--run", run.name]
    return shlex.join(words)


def _sessions(run: Run) -> list[dict[str, Any]]:
    """The environments of the run, one per kind of session."""
    listed = run.environment.get("environments", [run.environment] if run.environment else [])
    return [session for session in listed if isinstance(session, dict)] if isinstance(listed, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None else str(value)
