"""`lipforge audit`: is a gain real?"""

from pathlib import Path
from typing import Annotated, cast

import typer
from torch import nn

from lipforge.audit import AuditReport, audit, audit_plan
from lipforge.audit.subjects import classes_of
from lipforge.batching import ImageData
from lipforge.cli import attacking, options
from lipforge.cli.output import print_json, results, table
from lipforge.errors import InputError
from lipforge.forge import load_recipe, set_ratio_
from lipforge.models import load_model
from lipforge.paper import TableAudit, check_table, load_paper, read_table
from lipforge.ranks import by_torchrun, process_group
from lipforge.runs import record
from lipforge.types import parse_number


def audit_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The model to forge, or the base of a pair.", show_default=False),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Argument(metavar="[CANDIDATE]", help="Another model to compare with the first.", show_default=False),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="The recipe that forges MODEL.")] = None,
    ratio: Annotated[str | None, typer.Option(help="Another ratio than the recipe's.")] = None,
    data: options.Data = "cifar10:test",
    limit: options.Limit = 500,
    seed: options.Seed = None,
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    eps: Annotated[str, typer.Option(help="Radius of the attacks.")] = "8/255",
    version: Annotated[str, typer.Option(help="fast, or standard for the budgets of AutoAttack and more.")] = "fast",
    square: Annotated[int, typer.Option(help="Also attack with Square, with this many queries per image.")] = 0,
    margin: Annotated[float, typer.Option(help="Percentage points below which a difference is no change.")] = 1.0,
    attack_seed: Annotated[int, typer.Option(help="Seed of the attacks' random starts.")] = 0,
    run: Annotated[str | None, typer.Option(help="Keep the work here; the same command again resumes it.")] = None,
    published: Annotated[
        str | None, typer.Option("--table", help="Check published numbers instead: paper, or a CSV file.")
    ] = None,
    weights: options.Weights = None,
    candidate_weights: Annotated[str | None, typer.Option(help="A checkpoint file for CANDIDATE.")] = None,
    weights_dir: options.WeightsDir = None,
    root: options.Root = None,
    shard_size: Annotated[int, typer.Option(help="Images that are attacked together, and kept together.")] = 100,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    json: options.Json = False,
) -> None:
    """Find out whether a gain in robustness survives adaptive attacks, or check a table of published numbers.

    Exit codes: 0 real or no change; 1 not real, harmful, or a published number that breaks a rule; 3 undecided.

    [bold]Examples[/]

    lipforge audit cifar10-resnet --recipe recipe.json --data cifar10:test --limit 500 --eps 8/255 --run runs/audit

    lipforge audit cifar10-resnet my_model.py:build --candidate-weights mine.pt --eps 8/255

    lipforge audit --table paper
    """
    if published is not None:
        _check_published(published, model, json)
        return
    threat, share = attacking.threat(norm, eps), margin / 100
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, "raise", None, None)
        images = options.open_data(data, limit, seed, root, folder)
        base, other, name = _subjects(model, candidate, recipe, ratio, weights, candidate_weights, weights_dir)
        kept = options.open_run(run)
        found: ImageData = images
        classes = classes_of(base.to(where), found)
        plan = audit_plan(
            version, classes=classes, square=square, margin=share, seed=attack_seed, shard_size=shard_size
        )
        if other is None:
            report = audit(base, found, threat, plan=plan, run=kept, name=name)
        else:
            report = audit(base, other.to(where), found, threat, plan=plan, run=kept, name=name)
        if rank.is_first:
            _show(report, run, json)
    # torchrun would take a verdict's exit code for a crash, and start the audit again.
    raise typer.Exit(0 if by_torchrun() else report.exit_code)


def _subjects(
    model: str | None,
    candidate: str | None,
    recipe: str | None,
    ratio: str | None,
    weights: str | None,
    candidate_weights: str | None,
    weights_dir: str | None,
) -> tuple[nn.Module, nn.Module | None, str]:
    """The forged model, or base and candidate, and what to call them."""
    if model is None:
        raise InputError("audit needs a MODEL with --recipe, a MODEL and a CANDIDATE, or --table")
    if (recipe is None) == (candidate is None):
        raise InputError("audit takes a MODEL with --recipe, or a MODEL and a CANDIDATE: one of the two")
    if recipe is None and ratio is not None:
        raise InputError("--ratio changes the ratio of a --recipe; a CANDIDATE has none")
    if candidate_weights is not None and candidate is None:
        raise InputError("--candidate-weights needs a CANDIDATE")
    base = load_model(model, weights, weights_dir=weights_dir)
    if candidate is not None:
        return base, load_model(candidate, candidate_weights, weights_dir=weights_dir), f"{model} and {candidate}"
    load_recipe(cast(str, recipe)).apply_(base)
    if ratio is not None:
        set_ratio_(base, parse_number(ratio, name="ratio"))
    return base, None, f"{model} with {recipe}" + (f" at {ratio}" if ratio else "")


def _show(report: AuditReport, run: str | None, json: bool) -> None:
    if json:
        print_json(record(report))
        return
    about = f"{report.model}, {report.data}, {report.threat}, n={report.count}, plain {report.plain_attack}"
    results.print(about, soft_wrap=True)
    results.print(str(report), soft_wrap=True)
    if run is not None:
        results.print(f"wrote {Path(run) / 'results'}", soft_wrap=True)


def _check_published(source: str, model: str | None, json: bool) -> None:
    if model is not None:
        raise InputError("--table checks published numbers and takes no MODEL")
    found = check_table(load_paper() if source == "paper" else read_table(source), source=source)
    if json:
        print_json(record(found))
    else:
        _show_published(found)
    raise typer.Exit(1 if found.findings else 0)


def _show_published(found: TableAudit) -> None:
    broken = sum(rule.broken > 0 for rule in found.rules)
    count = len(found.findings)
    idle = len(found.rules) - found.applied
    rules = f"{found.applied} rules" + (f" ({idle} more had nothing to compare)" if idle else "")
    results.print(
        f"{count} findings in {found.numbers} published numbers, which break {broken} of {rules}"
        if count
        else f"{found.numbers} published numbers break none of {rules}",
        soft_wrap=True,
    )
    if found.unknown:
        results.print(f"not checked, as no rule knows the attack: {', '.join(found.unknown)}", soft_wrap=True)
    if count:
        columns = {"rule": "left", "table": "left", "where": "left", "eps": "right", "evidence": "left"}
        rows = [[item.rule, item.table, item.where, item.eps, item.evidence] for item in found.findings]
        results.print(table("numbers that break a rule", columns, rows))
    listed = [[rule.name, f"{rule.broken} of {rule.checked}", rule.text] for rule in found.rules]
    columns = {"rule": "left", "broken": "right", "what it says (accuracies in percent)": "left"}
    results.print(table("rules", columns, listed))
