"""`lipforge search`: choose the ratio of a recipe on validation images."""

import re
from typing import Annotated, cast

import typer

from lipforge.cli import attacking, options
from lipforge.cli.output import note, print_json, results, table
from lipforge.errors import InputError
from lipforge.evaluation.contest import NEAR
from lipforge.evaluation.plot import check_picture, plot_tradeoff
from lipforge.evaluation.results import share_text
from lipforge.evaluation.scores import RatioScore, SearchResult
from lipforge.forge import load_recipe, save_recipe, set_ratio_
from lipforge.models import load_model
from lipforge.ranks import process_group
from lipforge.runs import record
from lipforge.searching import Metric, choose_ratio
from lipforge.types import parse_number


def search(
    model: options.Model,
    recipe: Annotated[str, typer.Option(help="A recipe of `lipforge forge`: its bounds stay, its ratio is searched.")],
    data: options.Data = "cifar10:train",
    limit: options.Limit = 500,
    seed: options.Seed = 1,
    ratios: Annotated[str, typer.Option(help="Candidates, separated by commas.")] = "2^-8,2^-7,2^-6",
    attack: Annotated[str, typer.Option(help="The attack, such as pgd:steps=20.")] = "autoattack:version=fast",
    norm: attacking.NormName = "linf",
    eps: Annotated[str, typer.Option(help="Radius of the attack.")] = "8/255",
    metric: Annotated[
        str, typer.Option(help="plain, or union with an attack whose backward pass ignores the masks.")
    ] = "union",
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="A ratio for each glob of site names; repeatable.")
    ] = None,
    stages: Annotated[bool, typer.Option("--stages", help="A ratio for each stage of the network.")] = False,
    all_ratios: Annotated[
        bool, typer.Option("--all", help="Attack every candidate, not only the best clean one and its neighbours.")
    ] = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Spare no image of the ratios that are attacked; several times slower.")
    ] = False,
    plot: Annotated[str | None, typer.Option(help="Save the trade-off as a picture: .png or .svg.")] = None,
    out: Annotated[str | None, typer.Option(help="Write the recipe with the chosen ratio here.")] = None,
    run: attacking.Run = None,
    attack_seed: attacking.AttackSeed = 0,
    shard_size: attacking.ShardSize = 100,
    rounds: Annotated[
        int | None, typer.Option(help="After each round hopeless ratios are dropped; up to four of about 250 images.")
    ] = None,
    weights: options.Weights = None,
    weights_dir: options.WeightsDir = None,
    root: options.Root = None,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    json: options.Json = False,
) -> None:
    """Choose the ratio: clean accuracy of all candidates, then robust accuracy of the best, its neighbours and base.

    [bold]Examples[/]

    lipforge search cifar10-resnet --recipe recipe.json --ratios 2^-8,2^-7,2^-6 --eps 8/255 --limit 500

    lipforge search cifar10-resnet --recipe recipe.json --metric plain --attack pgd:steps=20 --plot tradeoff.png

    lipforge search cifar10-resnet --recipe recipe.json --stages --run runs/search --out chosen.json
    """
    for path in (plot, out):
        if path is not None:
            options.check_out(path)
    if plot is not None:
        check_picture(plot)
    if stages and groups:
        raise InputError("--stages makes the groups by itself; give --group or --stages, not both")
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, "raise", None, None)
        images = options.open_data(data, limit, seed, root, folder)
        loaded = load_model(model, weights, weights_dir=weights_dir).to(where)
        chosen = load_recipe(recipe)
        chosen.apply_(loaded)
        if rank.is_first:
            _warn_of_overlap(chosen.data, images.name)
        found = choose_ratio(
            loaded,
            images,
            threat=attacking.threat(norm, eps),
            ratios=[parse_number(part, name="ratios") for part in ratios.split(",")],
            attack=attacking.parse(attack),
            metric=cast(Metric, metric),
            groups=True if stages else groups or False,
            near=None if exhaustive else NEAR,
            all_ratios=all_ratios,
            run=options.open_run(run),
            seed=attack_seed,
            shard_size=shard_size,
            rounds=rounds,
        )
        if not rank.is_first:
            return
        if plot is not None:
            plot_tradeoff(found, plot)
        if out is not None:
            set_ratio_(loaded, found.chosen)
            save_recipe(out, loaded)
    _report(model, found, [path for path in (plot, out) if path is not None], run, json)


def _warn_of_overlap(calibration: str, validation: str) -> None:
    """Say so where the validation images come from the set that the bounds come from."""
    whole = [re.sub(r"/(first|random) \d+$", "", name) for name in (calibration, validation)]
    if whole[0] == whole[1]:
        note(
            f"the recipe's bounds come from {calibration} and the search uses {validation}: some images may be in "
            "both. For disjoint ones take another set, or lipforge.split in Python"
        )


def _report(model: str, found: SearchResult, paths: list[str], run: str | None, json: bool) -> None:
    if json:
        print_json(record(found))
        return
    columns = {"ratio": "left", "clean": "right", "robust": "right", "against base": "left", "images": "left"}
    about = f"{found.attack} {found.threat}, {found.metric}, {found.data}"
    title = f"{model}: {about}, n={found.count}, attack seed={found.seed}"
    results.print(table(title, columns, [_row(score) for score in found.scores]))
    results.print(found.reason, soft_wrap=True)
    passes = f"{found.forwards} forward and {found.backwards} backward passes"
    results.print(f"{passes}, {found.seconds:.1f} s", soft_wrap=True)
    for doubt in found.notes:
        note(doubt)
    for path in paths:
        results.print(f"wrote {path}", soft_wrap=True)
    attacking.say_wrote(run, ["search"])


def _row(score: RatioScore) -> list[str]:
    clean = share_text(score.clean_accuracy, score.clean_interval)
    if score.robust_accuracy is None or score.interval is None:
        return [score.label, clean, "", "", "not attacked: not next to the best clean ratio (of equals the smallest)"]
    difference, change = score.against_base, ""
    if difference is not None:
        low, high = (100 * bound for bound in difference.interval)
        change = f"{100 * difference.difference:+.1f} [{low:+.1f}, {high:+.1f}] +{difference.gained} -{difference.lost}"
    pushed = f" and {score.pushed} to a push" if score.pushed else ""
    how = f"{score.attacked} attacked, {score.tried} fell to known points{pushed}, {score.spared} spared"
    stopped = f"; stopped as hopeless after {score.count}" if score.status == "stopped" else ""
    robust = f"{share_text(score.robust_accuracy, score.interval)} {score.standing}/{score.count}"
    return [score.label, clean, robust, change, how + stopped]
