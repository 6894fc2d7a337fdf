"""`lipforge audit`: is a gain real?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, say, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.ranks import by_torchrun
from lipforge.records import to_builtins

if TYPE_CHECKING:
    from lipforge.paper import TableAudit


@options.command(model="", data="cifar10:test", limit=2000)
def audit(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    candidate: Annotated[
        str | None, Argument(metavar="CANDIDATE", help="Another model to compare with the first.", show_default=False)
    ] = None,
    candidate_weights: Annotated[str | None, Option(help="A checkpoint file for CANDIDATE.")] = None,
    surrogate: Annotated[
        list[str] | None,
        Option(
            help="A model, as my_model.py:build, whose gradients might get past a defence of CANDIDATE; repeatable."
        ),
    ] = None,
    attack: Annotated[
        str | None,
        Option(help="An attack of yours, as my.py:attack: (model, images, labels, threat) to adversarial images."),
    ] = None,
    fold: Annotated[
        str | None, Option(help='With --recipe: a file of `lipforge fold`, for the check of the "+ Weight" variant.')
    ] = None,
    version: Annotated[str, Option(help="fast, or standard for the budgets of AutoAttack and more.")] = "fast",
    square: Annotated[int, Option(help="Also attack with Square, with this many queries per image.")] = 0,
    margin: Annotated[float, Option(help="The smallest difference that matters, in percentage points.")] = 1.0,
    all_images: Annotated[
        bool, Option("--all-images", help="Attack all images, even if the verdict is decided before.")
    ] = False,
    published: Annotated[
        str | None, Option("--table", help="Check published numbers instead: paper, or a CSV file.")
    ] = None,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Find out whether a gain in robustness survives adaptive attacks, or check a table of published numbers.

    The audit looks after every 500 images and stops as soon as the verdict is decided.

    Exit codes: 0 real or no change; 1 not real, harmful, or a published number that breaks a rule; 3 undecided; 4
    unreliable.

    [bold]Examples[/]

    lipforge audit cifar10-resnet --recipe recipe.json --data cifar10:test --eps 8/255 --run runs/audit

    lipforge audit cifar10-resnet my_model.py:build --candidate-weights mine.pt --eps 8/255

    lipforge audit cifar10-resnet my_model.py:build --surrogate my_model.py:without_rounding --attack my.py:attack

    lipforge audit --table paper
    """
    if published is not None:
        _check_published(published, models.model, json)
        return
    from lipforge.auditing import classes_of, prospects
    from lipforge.models.load import code_digest, load_function

    _check(models, candidate, candidate_weights, recipe)
    if surrogate and candidate is None:
        raise InputError("--surrogate gives gradients for a CANDIDATE; a model with --recipe brings its own")
    if fold is not None and candidate is not None:
        raise InputError("--fold is about a model with --recipe; a CANDIDATE has none")
    loaded = None if fold is None else lf.load_fold(fold)
    threat, craft = threats.threat, load_function(attack) if attack else None
    with options.session(models, data) as (rank, images, base, device):
        recipe.apply_(base)
        plan = lf.audit_plan(
            version,
            classes=classes_of(base, images),
            square=square,
            margin=margin / 100,
            seed=keep.seed,
            shard_size=shard_size,
            stop_early=not all_images,
        )
        if rank.is_first and not json:
            note(prospects(len(images), plan.margin))
        identity = {"attack": attack, "code": code_digest(craft)} if craft and attack else None
        shared: dict[str, Any] = {"attack": craft, "plan": plan, "run": keep.open(), "identity": identity}
        if candidate is None:
            name = f"{models.model} with {recipe.recipe}" + (f" at {recipe.ratio}" if recipe.ratio else "")
            report = lf.audit(base, images, threat, name=name, fold=loaded, **shared)
        else:
            other = replace(models, model=candidate, weights=candidate_weights).load(device)
            sources = {one: replace(models, model=one, weights=None).load(device) for one in surrogate or ()}
            name = f"{models.model} and {candidate}"
            report = lf.audit(base, other, images, threat, surrogates=sources, name=name, **shared)
        if rank.is_first and not printed(json, report):
            _show(report)
            say_wrote([] if keep.run is None else [Path(keep.run) / "results"])
    # torchrun would take a verdict's exit code for a crash, and start the audit again.
    raise Exit(0 if by_torchrun() else report.exit_code)


def _show(report: "lf.AuditReport") -> None:
    about = f"{report.model}, {report.data}, {report.threat}, n = {report.count}, seed {report.seed}"
    say(f"{about}, non-adaptive attack {report.non_adaptive_attack}")
    say(str(report))


def _check(
    models: options.ModelOptions, candidate: str | None, candidate_weights: str | None, recipe: options.RecipeOptions
) -> None:
    if not models.model:
        raise InputError("audit needs a MODEL with --recipe, a MODEL and a CANDIDATE, or --table")
    if (recipe.recipe is None) == (candidate is None):
        raise InputError("audit takes a MODEL with --recipe, or a MODEL and a CANDIDATE: one of the two")
    if candidate is not None and recipe.ratio is not None:
        raise InputError("--ratio changes the ratio of a --recipe; a CANDIDATE has none")
    if candidate_weights is not None and candidate is None:
        raise InputError("--candidate-weights needs a CANDIDATE")


def _check_published(source: str, model: str, json: bool) -> None:
    if model:
        raise InputError("--table checks published numbers and takes no MODEL")
    from lipforge.paper import check_table, load_paper, read_table

    found = check_table(load_paper() if source == "paper" else read_table(source), source=source)
    if not printed(json, {"kind": "table_audit", **to_builtins(found)}):
        _show_published(found)
    raise Exit(1 if found.findings else 0)


def _show_published(found: "TableAudit") -> None:
    broken = sum(rule.broken > 0 for rule in found.rules)
    count = len(found.findings)
    idle = len(found.rules) - found.applied
    rules = f"{found.applied} rules" + (f" ({idle} more had nothing to compare)" if idle else "")
    say(
        f"{count} findings in {found.numbers} published numbers, which break {broken} of {rules}"
        if count
        else f"{found.numbers} published numbers break none of {rules}"
    )
    if found.unknown:
        say(f"not checked, as no rule knows the attack: {', '.join(found.unknown)}")
    if count:
        rows = [[item.rule, item.table, item.where, item.eps, item.evidence] for item in found.findings]
        show_table("numbers that break a rule", ["rule", "table", "where", ">eps", "evidence"], rows)
    listed = [[rule.name, f"{rule.broken} of {rule.checked}", rule.text] for rule in found.rules]
    show_table("rules", ["rule", ">broken", "what it says (accuracies in percent)"], listed)
