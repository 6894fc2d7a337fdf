"""`lipforge curve`: robust accuracy at every eps, from one run."""

from typing import TYPE_CHECKING, Annotated, cast

from typer import Exit, Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say, say_wrote, show_table
from lipforge.ranks import by_torchrun
from lipforge.text import duration, eps_text, points_text, share_text

if TYPE_CHECKING:
    from lipforge.types import Norm


@options.command(limit=500, data="cifar10:test")
def curve(
    models: options.ModelOptions,
    data: options.DataOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    norm: Annotated[str, Option(help="linf, l2 or l1.", rich_help_panel="Threat")] = "linf",
    eps: Annotated[
        str | None, Option(help="Where the curve ends: 16/255 in linf, 2 in l2, 24 in l1.", rich_help_panel="Threat")
    ] = None,
    attack: Annotated[str, Option(help="minimum-norm, fmn, ddn (l2), or several with ' + '.")] = "minimum-norm",
    plot: Annotated[str | None, Option(help="Save the curves as a picture: .svg, .png or .pdf.")] = None,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Find the smallest eps that breaks each image: robust accuracy at every eps in one run.

    With a recipe the base and the changed model are compared, image by image.

    Exit codes: 0 done; 4 a curve is unreliable, as a note says: gradients look masked or outputs are random.

    [bold]Examples[/]

    lipforge curve cifar10-resnet --norm linf --limit 100 --plot curve.svg

    lipforge curve cifar10-resnet --recipe recipe.json --norm l2 --eps 1.5 --run runs/x
    """
    from lipforge.evaluation import check_minimises, check_picture, comparison_name, curve_threat, plot_curves
    from lipforge.results.evaluation import UNRELIABLE_EXIT

    threat, chosen = curve_threat(cast("Norm", norm), eps), lf.parse_attack(attack)
    check_minimises(chosen)  # before the run directory is made
    if plot is not None:
        check_out(plot)
        check_picture(plot)
    with options.session(models, data) as (rank, images, model, _):
        kept = keep.settings()
        settings = {"model_name": models.model, "shard_size": shard_size, **kept}
        found = [
            lf.curve(view, images, threat.norm, eps=threat.spelling, attack=chosen, label=label, **settings)
            for label, view in recipe.views(model).items()
        ]
    if rank.is_first:
        if plot is not None:
            plot_curves(found, plot)
        compared = [lf.compare_curves(found[0], other) for other in found[1:]]
        for pair in compared if kept["run"] is not None else ():
            kept["run"].write_result(comparison_name(pair), pair)
        _report(found, compared, keep, [] if plot is None else [plot], json)
    # torchrun would take the exit code for a crash, and start again.
    if any(one.unreliable for one in found) and not by_torchrun():
        raise Exit(UNRELIABLE_EXIT)


def _report(
    found: "list[lf.CurveResult]",
    compared: "list[lf.CurveComparison]",
    keep: options.RunOptions,
    paths: list[str],
    json: bool,
) -> None:
    from lipforge.evaluation import comparison_name, curve_name

    base = found[0]
    names = [curve_name(one.label, one.attack, one.threat, one.seed) for one in found]
    names += [comparison_name(pair) for pair in compared]
    if printed(json, [*found, *compared]):
        return
    for one in found:
        for text in one.notes:
            note(f"{one.label}: {text}")
    title = f"{base.model}: % robust, {base.norm}, {base.attack}, {base.data}, n = {base.count}, seed {base.seed}"
    rows = ["clean", *map(eps_text, base.shown), "median eps", "area"]
    cells = zip(rows, *map(_column, found), strict=True)
    show_table(title, ["eps", *(f">{one.title}" for one in found)], list(cells))
    band, end = f"±{100 * base.band:.1f} points", eps_text(base.eps)
    say(f"95 % bands ({band}) hold for all eps above 0 together; area: the mean over eps from 0 to {end}")
    for pair in compared:
        say(str(pair))
        at = "; ".join(
            f"{eps_text(radius.eps)} {points_text(radius.comparison.difference, radius.comparison.interval)}"
            for radius in pair.radii
        )
        say(f"  paired, each eps by itself: {at}")
    passes = sum(one.forwards + one.backwards for one in found) / sum(one.count for one in found)
    say(f"{passes:,.0f} passes per image, {duration(sum(one.seconds for one in found))}")
    say_wrote([*paths, *keep.paths(*names)])


def _column(one: "lf.CurveResult") -> list[str]:
    shares = [share_text(one.accuracy_at(eps), one.interval_at(eps)) for eps in one.shown]
    clean = share_text(one.clean_accuracy, one.clean_interval)
    return [clean, *shares, one.median_text, share_text(one.area, one.area_interval)]
