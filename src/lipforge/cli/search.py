"""`lipforge search`: choose the ratio of a recipe on validation images."""

import re
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.text import points_text, share_text
from lipforge.types import parse_number

if TYPE_CHECKING:
    from lipforge.results import RatioScore, SearchResult
    from lipforge.search import Metric


@options.command(data="cifar10:train", limit=500, data_seed=1)
def search(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    keep: options.RunOptions,
    recipe: Annotated[str, Option(help="A recipe of `lipforge forge`: its bounds stay, its ratio is searched.")],
    ratios: Annotated[str, Option(help="Candidates, separated by commas.")] = "2^-8,2^-7,2^-6",
    attack: options.AttackText = "fast",
    metric: Annotated[
        str, Option(help="non-adaptive, or union with an attack whose backward pass ignores the masks.")
    ] = "union",
    groups: Annotated[
        list[str] | None, Option("--group", help="A ratio for each glob of site names; repeatable.")
    ] = None,
    stages: Annotated[bool, Option("--stages", help="A ratio for each stage of the network.")] = False,
    all_ratios: Annotated[
        bool, Option("--all", help="Attack every candidate, not only the best clean one and its neighbours.")
    ] = False,
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="Skip no image of the ratios that are attacked; several times slower.")
    ] = False,
    plot: Annotated[str | None, Option(help="Save the trade-off as a picture: .png or .svg.")] = None,
    out: Annotated[str | None, Option(help="Write the recipe with the chosen ratio here.")] = None,
    rounds: Annotated[
        int | None, Option(help="Rounds, after which clearly worse ratios are stopped; by default of about 250 images.")
    ] = None,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Choose the ratio: clean accuracy of all candidates, then robust accuracy of the best, its neighbours and base.

    [bold]Examples[/]

    lipforge search cifar10-resnet --recipe recipe.json --ratios 2^-8,2^-7,2^-6 --eps 8/255 --limit 500

    lipforge search cifar10-resnet --recipe recipe.json --metric non-adaptive --attack pgd:steps=20 --plot tradeoff.png

    lipforge search cifar10-resnet --recipe recipe.json --stages --run runs/search --out chosen.json
    """
    from lipforge.search import SKIP_ABOVE, check_picture, plot_tradeoff

    paths = [path for path in (plot, out) if path is not None]
    for path in paths:
        check_out(path)
    if plot is not None:
        check_picture(plot)
    if stages and groups:
        raise InputError("--stages makes the groups by itself; give --group or --stages, not both")
    with options.session(models, data) as (rank, images, model, _):
        chosen = lf.load_recipe(recipe)
        chosen.apply_(model)
        options.require_forged(model, recipe)
        if rank.is_first:
            _warn_of_overlap(chosen.data, images.name)
        found = lf.choose_ratio(
            model,
            images,
            threat=threats.threat,
            ratios=[parse_number(part, name="ratios") for part in ratios.split(",")],
            attack=lf.parse_attack(attack),
            metric=cast("Metric", metric),
            groups=True if stages else groups or False,
            skip_above=None if exhaustive else SKIP_ABOVE,
            all_ratios=all_ratios,
            shard_size=shard_size,
            rounds=rounds,
            **keep.settings(),
        )
        if not rank.is_first:
            return
        if plot is not None:
            plot_tradeoff(found, plot)
        if out is not None:
            lf.set_ratio_(model, found.chosen)
            lf.save_recipe(out, model)
    _report(models.model, found, [*paths, *keep.paths("search")], json)


def _warn_of_overlap(calibration: str, validation: str) -> None:
    whole = [re.sub(r"/(first|random) \d+$", "", name) for name in (calibration, validation)]
    if whole[0] == whole[1]:
        note(
            f"the recipe's bounds come from {calibration} and the search uses {validation}: some images may be in "
            "both. For disjoint ones take another set, or lipforge.split in Python"
        )


def _report(model: str, found: "SearchResult", paths: list[str], json: bool) -> None:
    if printed(json, found):
        return
    about = f"{found.attack} {found.threat}, {found.metric}, {found.data}"
    title = f"{model}: {about}, n = {found.count}, seed {found.seed}"
    columns = ["ratio", ">clean", ">robust", "against base", "images"]
    show_table(title, columns, [_row(score) for score in found.scores])
    say(found.reason)
    say(f"{found.forwards} forward and {found.backwards} backward passes, {found.seconds:.1f} s")
    for text in found.all_notes:
        note(text)
    say_wrote(paths)


def _row(score: "RatioScore") -> list[str]:
    clean = share_text(score.clean_accuracy, score.clean_interval)
    if score.robust_accuracy is None or score.interval is None:
        return [score.label, clean, "", "", "not attacked: neither the best clean ratio nor next to it"]
    change, difference = "", score.against_base
    if difference is not None:
        points = points_text(difference.difference, difference.interval)
        change = f"{points} +{difference.gained} -{difference.lost}"
    refined = f", {score.refined} broken by refining" if score.refined else ""
    how = f"{score.attacked} attacked, {score.transferred} broken by transfer{refined}, {score.skipped} skipped"
    stopped = f"; significantly worse, stopped after {score.count}" if score.status == "stopped" else ""
    robust = f"{share_text(score.robust_accuracy, score.interval)} {score.robust_count}/{score.count}"
    return [score.label, clean, robust, change, how + stopped]
