"""`lipforge transfer`: images crafted on one model, scored on another, both ways."""

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.text import share_text

if TYPE_CHECKING:
    from lipforge.results import TransferResult


@options.command(limit=500)
def transfer(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    target: Annotated[
        str | None, Argument(metavar="TARGET", help="Another model; or give --recipe instead.", show_default=False)
    ] = None,
    target_weights: Annotated[str | None, Option(help="A checkpoint file for TARGET.")] = None,
    attack: options.AttackText = "fast",
    refine: Annotated[
        int, Option(help="Steps that refine the images on the source after the attack; the paper has 0.")
    ] = 20,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Craft adversarial images on one model and score them on another, in both directions.

    With --recipe the two are MODEL as it is and MODEL changed by the recipe.

    [bold]Examples[/]

    lipforge transfer cifar10-resnet --recipe recipe.json --eps 8/255

    lipforge transfer cifar10-resnet my_model.py:build --target-weights mine.pt --attack pgd:steps=20
    """
    from lipforge.evaluation import transfer as transfer_to

    if (target is None) == (recipe.recipe is None):
        raise InputError("transfer takes a MODEL and a TARGET, or a MODEL with --recipe: one of the two")
    threat, chosen = threats.threat, lf.parse_attack(attack)
    with options.session(models, data) as (rank, images, model, device):
        if len(recipe.ratios) > 1:
            raise InputError(f"--ratio takes one ratio here, got {recipe.ratio}")
        sides = recipe.views(model)
        if target is not None:
            sides = {"source": model, "target": replace(models, model=target, weights=target_weights).load(device)}
        settings = {"refine": refine, "shard_size": shard_size, **keep.settings()}
        found = [
            transfer_to(sides[start], sides[end], images, chosen, threat, names=(start, end), **settings)
            for start, end in itertools.permutations(sides)
        ]
    if rank.is_first:
        _report(models.model if target is None else f"{models.model} and {target}", found, keep, json)


def _report(title: str, found: "list[TransferResult]", keep: options.RunOptions, json: bool) -> None:
    if printed(json, found):
        return
    rows = [
        [
            one.source,
            share_text(one.source_robust_accuracy, one.source_interval),
            one.target,
            share_text(one.clean_accuracy, one.clean_interval),
            share_text(one.robust_accuracy, one.interval),
            f"{one.transferred} of {one.shared}",
        ]
        for one in found
    ]
    one = found[0]
    about = f"{one.attack} {one.threat}, refine {one.refine}, {one.data}, n = {one.count}, seed {one.seed}"
    columns = ["crafted on", ">own accuracy", "scored on", ">clean", ">transfer", ">transferred"]
    show_table(f"{title}: {about}", columns, rows)
    for text in dict.fromkeys(f"{one.source}: {text}" for one in found for text in one.notes):
        note(text)
    say_wrote(keep.paths(*(one.name for one in found)))
