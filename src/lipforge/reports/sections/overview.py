"""A run in a line, several runs side by side, and where the numbers come from: commands, versions, files."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from lipforge.reports.blocks import Block, Code, Figure, Grid, Prose, Section
from lipforge.reports.charts import Row, Rows, percent_axis
from lipforge.reports.read import Run, base_first, grouped, is_base, roles
from lipforge.reports.sections.evaluations import dot
from lipforge.reports.tables import Cell, Column, Share, Table, columns
from lipforge.results import AuditReport, CertifyResult, DemoResult, RobustResult


def about(run: Run) -> str:
    """Models, data and threats of a run, in one line."""
    found = [*run.evaluations, *run.of(AuditReport)]
    listed = ([getattr(result, name) for result in found] for name in ("model", "data", "threat"))
    return " · ".join(", ".join(kept) for values in listed if (kept := list(filter(None, dict.fromkeys(values)))))


def compare_runs(runs: Sequence[Run]) -> Section:
    """Verdicts and accuracies of several runs in one table each."""
    verdicts, accuracies, certificates = ([Grid(table)] if table.rows else [] for table in _tables(runs))
    blocks: list[Block] = [*verdicts, *([_figure(runs)] if accuracies else []), *accuracies, *certificates]
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
        for (attack, threat), same in grouped(found, "attack", "threat").items():
            bars = tuple(dot(f"{run.name}, {r.label}", colours[r.label], r) for r in same)
            used |= {colours[r.label]: r.label for r in same}
            rows.append(Row(f"{run.name}: {attack}, {threat}", bars))
    said = "; ".join(bar.tip for row in rows for bar in row.bars)
    x, legend = percent_axis("robust accuracy, %"), tuple(used.items())
    chart = Rows(f"Robust accuracy of the runs. {said}.", x, tuple(rows), legend, "interval")
    return Figure("Robust accuracy of every run, with 95 % intervals.", (chart,))


def _tables(runs: Sequence[Run]) -> tuple[Table, Table, Table]:
    verdicts: list[tuple[Cell, ...]] = [
        (run.name, audit.verdict, audit.model, audit.threat, audit.count,
         Share(audit.union.difference, audit.union.interval))
        for run in runs
        for audit in run.of(AuditReport)
    ]  # fmt: skip
    accuracies: list[tuple[Cell, ...]] = [
        (run.name, r.label, r.model, r.attack_text, r.threat, r.count, Share(r.clean_accuracy, r.clean_interval),
         Share(r.robust_accuracy, r.interval))
        for run in runs
        for r in run.evaluations
    ]  # fmt: skip
    certificates: list[tuple[Cell, ...]] = [
        (run.name, r.label, r.sigma, here.radius, r.count, Share(here.accuracy, here.interval))
        for run in runs
        for r in sorted(run.of(CertifyResult), key=base_first)
        for here in r.curve[:3]
    ]
    return (
        Table("verdicts", "Verdicts", columns("run", "verdict", "model", "threat", "n:count",
              "difference, all attacks (points):points"), tuple(verdicts)),
        Table("runs", "Accuracies of all runs", columns("run", "classifier", "model", "attack", "threat", "n:count",
              "clean:share", "robust:share"), tuple(accuracies)),
        Table("runs-certified", "Certified accuracy of all runs, first radii", columns("run", "classifier",
              "sigma:number", "radius:number", "n:count", "certified:share"), tuple(certificates)),
    )  # fmt: skip


def provenance(run: Run) -> Section:
    """How to get the same numbers again, and what they were computed with."""
    blocks: list[Block] = [_commands(run)]
    if sessions := _sessions(run):
        names = list(dict.fromkeys(name for session in sessions for name in session if name != "command"))
        heading = (Column(""), *(Column(f"session {place}", "code") for place in range(1, len(sessions) + 1)))
        rows = tuple((name, *(_text(session.get(name)) for session in sessions)) for name in names)
        blocks.append(Grid(Table("environment", "Versions and machines", heading, rows)))
    if seeds := sorted({result.seed for result in run.evaluations}):
        text = f"Seed{'s' if len(seeds) > 1 else ''}: {', '.join(map(str, seeds))}. Random numbers depend on the seed, "
        blocks.append(Prose(text + "the attack and the image's number alone, not on batches or workers."))
    files = tuple((f"{name}.json", kind) for name, kind in run.kinds.items())
    blocks.append(Grid(Table("files", "Files that this page was made from", columns("file", "kind"), files)))
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
    listed = run.environment.get("environments", [run.environment] if run.environment else [])
    return [session for session in listed if isinstance(session, dict)] if isinstance(listed, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None else str(value)
