"""Where the numbers come from: commands, configurations, versions, files."""

import json
import shlex
from typing import Any

from lipforge.reports.blocks import Block, Code, Grid, Prose, Section
from lipforge.reports.parsed import Robust, is_base, robust_results
from lipforge.reports.read import Fields, Run
from lipforge.reports.tables import Column, Table


def provenance(run: Run) -> Section:
    """How to get the same numbers again, and what they were computed with."""
    blocks: list[Block] = [_commands(run)]
    sessions = _sessions(run)
    if sessions:
        names = list(dict.fromkeys(name for session in sessions for name in session if name != "command"))
        columns = (Column(""), *(Column(f"session {place}", "code") for place in range(1, len(sessions) + 1)))
        rows = tuple((name, *(_text(session.get(name)) for session in sessions)) for name in names)
        blocks.append(Grid(Table("environment", "Versions and machines", columns, rows)))
    seeds = sorted({result.seed for result in robust_results(run)})
    if seeds:
        text = f"Seed{'s' if len(seeds) > 1 else ''}: {', '.join(map(str, seeds))}. Random numbers depend on the seed, "
        blocks.append(Prose(text + "the attack and the image's number alone, not on batches or workers."))
    files = tuple((result.name + ".json", result.kind) for result in run.results)
    blocks.append(Grid(Table("files", "Files that this page was made from", (Column("file"), Column("kind")), files)))
    for task, config in run.configs.items():
        blocks.append(Code(f"Configuration of {task}", json.dumps(config, indent=2, ensure_ascii=False), folded=True))
    return Section("provenance", "Provenance", "", tuple(blocks))


def _commands(run: Run) -> Block:
    """The commands that were recorded; else what the results say of themselves."""
    recorded = [command for session in _sessions(run) if isinstance(command := session.get("command"), str)]
    demos = run.parsed("demo", lambda fields: _demo(fields, run))
    evaluations = [_command(result, run) for result in robust_results(run)]
    if recorded or demos:
        return Code("To compute these numbers again", "\n".join(dict.fromkeys(recorded or demos)))
    if evaluations:
        title = "No command was recorded; on the command line these come closest"
        return Code(title, "\n".join(dict.fromkeys(evaluations)))
    return Prose("No command was recorded with these results.")


def _demo(fields: Fields, run: Run) -> str:
    words = ["lipforge", "demo", "--model", fields.text("model"), "--count", str(fields.whole("count"))]
    return shlex.join([*words, "--out", run.name])


def _command(result: Robust, run: Run) -> str:
    norm, _, eps = result.threat.partition(" ")
    words = ["lipforge", "evaluate", result.model or "MODEL"]
    words += [] if is_base(result.label) else ["--recipe", "recipe.json"]
    words += ["--data", result.data.split(" ")[0] or "DATA", "--limit", str(result.count), "--attack", result.attack]
    words += ["--norm", norm, "--eps", eps, "--attack-seed", str(result.seed), "--run", run.name]
    return shlex.join(words)


def _sessions(run: Run) -> list[dict[str, Any]]:
    """The environments of the run, one per kind of session."""
    listed = run.environment.get("environments", [run.environment] if run.environment else [])
    return [session for session in listed if isinstance(session, dict)] if isinstance(listed, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None else str(value)
