"""`lipforge sweep`: accuracy over many eps and attacks."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, say_wrote, show_table
from lipforge.text import share_text

if TYPE_CHECKING:
    from lipforge.results import SweepResult

RADII = "1/255,2/255,4/255,8/255,16/255,32/255,64/255,96/255"


@options.command(limit=500, eps=(RADII, Option(help="Radii, separated by commas.")))
def sweep(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    attack: Annotated[list[str] | None, Option(help="An attack, repeatable: fgsm and pgd by default.")] = None,
    independent: Annotated[
        bool, Option("--independent", help="Attack every radius afresh, as the paper does, and carry nothing over.")
    ] = False,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Attack a model, and with a recipe the changed model, by several attacks at several radii.

    An image broken at one radius counts as broken at every larger one, unless --independent.

    [bold]Examples[/]

    lipforge sweep cifar10-resnet --recipe recipe.json --attack fgsm --attack pgd:steps=20 \\
    --eps 2/255,4/255,8/255,16/255

    lipforge sweep cifar10-resnet --recipe recipe.json --attack cw --eps 8/255 --run runs/cw
    """
    from lipforge.evaluation import sweep as sweep_all

    chosen = [lf.parse_attack(text) for text in attack or ["fgsm", "pgd"]]
    radii = threats.threats
    with options.session(models, data) as (rank, images, model, _):
        settings = {"carry": not independent, "shard_size": shard_size, **keep.settings()}
        found = sweep_all(recipe.views(model), images, chosen, radii, **settings)
    if rank.is_first:
        _report(models.model, found, keep, json)


def _report(model: str, found: "SweepResult", keep: options.RunOptions, json: bool) -> None:
    from lipforge.evaluation import sweep_name

    if printed(json, found):
        return
    for text in found.all_notes:
        note(text)
    radii = list(dict.fromkeys(row.threat.removeprefix(f"{found.norm} ") for row in found.rows))
    lines: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        start = [row.label, row.attack, share_text(row.clean_accuracy, row.clean_interval)]
        lines.setdefault((row.label, row.attack), start).append(share_text(row.robust_accuracy, row.interval))
    how = "broken images carried over to larger eps" if found.carry else "each eps afresh"
    title = f"{model}: % correct, {found.norm}, {how}, {found.data}, n = {found.count}, seed {found.seed}"
    show_table(title, ["view", "attack", ">clean", *(f">{eps}" for eps in radii)], lines.values())
    say_wrote(keep.paths(sweep_name(found)))
