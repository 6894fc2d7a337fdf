"""`lipforge transfer`: images crafted on one model, scored on another, both ways."""

from typing import Annotated

import typer

from lipforge.cli import attacking, options
from lipforge.cli.output import note, print_json, results, table
from lipforge.errors import InputError
from lipforge.evaluation.results import share_text
from lipforge.evaluation.transfer import TransferResult
from lipforge.evaluation.transfer import transfer as transfer_to
from lipforge.models import load_model
from lipforge.ranks import process_group
from lipforge.runs import record


def transfer(
    source: options.Model,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", help="Another model; or give --recipe instead.", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Between SOURCE as it is and SOURCE forged by this recipe.")
    ] = None,
    ratio: attacking.Ratio = None,
    attack: Annotated[str, typer.Option(help="The attack, such as pgd:steps=20.")] = "autoattack:version=fast",
    norm: attacking.NormName = "linf",
    eps: Annotated[str, typer.Option(help="Radius of the attack.")] = "8/255",
    push: Annotated[int, typer.Option(help="Steps up the source's margin after the attack; the paper has 0.")] = 20,
    data: options.Data = "cifar10",
    limit: options.Limit = 500,
    seed: options.Seed = None,
    run: attacking.Run = None,
    attack_seed: attacking.AttackSeed = 0,
    shard_size: attacking.ShardSize = 100,
    weights: options.Weights = None,
    target_weights: Annotated[str | None, typer.Option(help="A checkpoint file for TARGET.")] = None,
    weights_dir: options.WeightsDir = None,
    root: options.Root = None,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    json: options.Json = False,
) -> None:
    """Craft adversarial images on one model and score them on another, in both directions.

    [bold]Examples[/]

    lipforge transfer cifar10-resnet --recipe recipe.json --eps 8/255

    lipforge transfer cifar10-resnet my_model.py:build --target-weights mine.pt --attack pgd:steps=20
    """
    if (target is None) == (recipe is None):
        raise InputError("transfer takes a SOURCE and a TARGET, or a SOURCE with --recipe: one of the two")
    threat, chosen = attacking.threat(norm, eps), attacking.parse(attack)
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, "raise", None, None)
        images = options.open_data(data, limit, seed, root, folder)
        loaded = load_model(source, weights, weights_dir=weights_dir).to(where)
        sides = attacking.views(loaded, recipe, ratio)
        if target is not None:
            other = load_model(target, target_weights, weights_dir=weights_dir).to(where)
            sides = {"source": loaded, "target": other}
        opened = options.open_run(run)
        first, second = sides
        found = [
            transfer_to(
                sides[start],
                sides[end],
                images,
                chosen,
                threat,
                names=(start, end),
                push=push,
                run=opened,
                seed=attack_seed,
                shard_size=shard_size,
            )
            for start, end in ((first, second), (second, first))
        ]
    if rank.is_first:
        _report(source if target is None else f"{source} and {target}", found, run, json)


def _report(title: str, found: list[TransferResult], run: str | None, json: bool) -> None:
    if json:
        print_json({"results": [record(one) for one in found]})
        return
    columns = {"crafted on": "left", "own accuracy": "right", "scored on": "left", "clean": "right"}
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
    title = f"{title}: {one.attack} {one.threat}, push {one.push}, {one.data}, n={one.count}, attack seed={one.seed}"
    results.print(table(title, {**columns, "crafted images": "right", "transferred": "right"}, rows))
    for doubt in dict.fromkeys(f"{one.source}: {doubt}" for one in found for doubt in one.notes):
        note(doubt)
    attacking.say_wrote(run, [one.result_name for one in found])
