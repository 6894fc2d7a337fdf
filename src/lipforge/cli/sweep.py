"""`lipforge sweep`: accuracy over many eps and attacks."""

from typing import Annotated

import typer

from lipforge.cli import attacking, options
from lipforge.cli.output import note, print_json, results, table
from lipforge.evaluation.results import share_text
from lipforge.evaluation.sweep import SweepResult, result_name
from lipforge.evaluation.sweep import sweep as sweep_all
from lipforge.models import load_model
from lipforge.ranks import process_group
from lipforge.runs import record


def sweep(
    model: options.Model,
    recipe: attacking.Recipe = None,
    ratio: attacking.Ratio = None,
    attack: Annotated[list[str] | None, typer.Option(help="An attack, repeatable: fgsm and pgd by default.")] = None,
    norm: attacking.NormName = "linf",
    eps: Annotated[
        str, typer.Option(help="Radii, separated by commas.")
    ] = "1/255,2/255,4/255,8/255,16/255,32/255,64/255,96/255",
    data: options.Data = "cifar10",
    limit: options.Limit = 500,
    seed: options.Seed = None,
    independent: Annotated[
        bool,
        typer.Option("--independent", help="Attack every radius afresh, as the paper does, and carry nothing over."),
    ] = False,
    run: attacking.Run = None,
    attack_seed: attacking.AttackSeed = 0,
    shard_size: attacking.ShardSize = 100,
    weights: options.Weights = None,
    weights_dir: options.WeightsDir = None,
    root: options.Root = None,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    json: options.Json = False,
) -> None:
    """Attack a model, and with a recipe its forged view, by several attacks at several radii.

    An image fooled at one radius counts as fooled at every larger one, unless --independent.

    [bold]Examples[/]

    lipforge sweep cifar10-resnet --recipe recipe.json --attack fgsm --attack pgd:steps=20 \\
    --eps 2/255,4/255,8/255,16/255

    lipforge sweep cifar10-resnet --recipe recipe.json --attack cw --eps 8/255 --run runs/cw
    """
    chosen = [attacking.parse(text) for text in attack or ["fgsm", "pgd"]]
    radii = attacking.threats(norm, eps)
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, "raise", None, None)
        images = options.open_data(data, limit, seed, root, folder)
        loaded = load_model(model, weights, weights_dir=weights_dir).to(where)
        found = sweep_all(
            attacking.views(loaded, recipe, ratio),
            images,
            chosen,
            radii,
            carry=not independent,
            run=options.open_run(run),
            seed=attack_seed,
            shard_size=shard_size,
        )
    if rank.is_first:
        _report(model, found, run, json)


def _report(model: str, found: SweepResult, run: str | None, json: bool) -> None:
    if json:
        print_json(record(found))
        return
    for doubt in found.notes:
        note(doubt)
    radii = list(dict.fromkeys(row.threat.removeprefix(f"{found.norm} ") for row in found.rows))
    lines: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        start = [row.label, row.attack, share_text(row.clean_accuracy, row.clean_interval)]
        lines.setdefault((row.label, row.attack), start).append(share_text(row.robust_accuracy, row.interval))
    columns = {"view": "left", "attack": "left", "clean": "right", **dict.fromkeys(radii, "right")}
    how = "carried over from smaller eps" if found.carry else "each eps afresh"
    title = f"{model}: % correct, {found.norm}, {how}, {found.data}, n={found.count}, attack seed={found.seed}"
    results.print(table(title, columns, list(lines.values())))
    attacking.say_wrote(run, [result_name(found)])
