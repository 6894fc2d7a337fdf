"""`lipforge corrupt`: accuracy under common corruptions, made on the fly or read from CIFAR-10-C and ImageNet-C."""

from collections.abc import Sequence
from typing import Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.text import duration, percent, points_text, share_text


@options.command(limit=500, data="cifar10:test")
def corrupt(
    models: options.ModelOptions,
    data: options.DataOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    corruptions: Annotated[
        str | None, Option(help="Only these, such as fog,snow; all 15 by default.", rich_help_panel="Corruptions")
    ] = None,
    severities: Annotated[
        str | None, Option(help="Only these, such as 1,3,5; 1 to 5 by default.", rich_help_panel="Corruptions")
    ] = None,
    published: Annotated[
        str | None,
        Option(
            help="The folder of CIFAR-10-C or ImageNet-C: read its images; --data are the clean ones of the same set.",
            rich_help_panel="Corruptions",
        ),
    ] = None,
    plot: Annotated[str | None, Option(help="Save accuracy by corruption as a picture: .svg, .png or .pdf.")] = None,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Measure accuracy under the 15 common corruptions at five severities.

    With a recipe the base and the changed model are compared on the same corrupted images.

    [bold]Examples[/]

    lipforge corrupt cifar10-resnet --limit 200 --plot corruptions.svg

    lipforge corrupt cifar10-resnet --recipe recipe.json --corruptions fog,snow --severities 1,3,5 --run runs/x

    lipforge corrupt cifar10-resnet --published CIFAR-10-C --run runs/x
    """
    from lipforge.corruptions import check_corruptions, check_severities, corrupted_pair_name
    from lipforge.evaluation import check_picture, plot_corruptions

    # Checked before the run directory is made.
    names, steps = check_corruptions(_parts(corruptions)), check_severities(_numbers(severities))
    if plot is not None:
        check_out(plot)
        check_picture(plot)
    with options.session(models, data) as (rank, images, model, _):
        kept = keep.settings()
        settings = {"model_name": models.model, "shard_size": shard_size, "published": published, **kept}
        found = [
            lf.corrupt(view, images, corruptions=names, severities=steps, label=label, **settings)
            for label, view in recipe.views(model).items()
        ]
    if rank.is_first:
        if plot is not None:
            plot_corruptions(found, plot)
        compared = [lf.compare_corrupted(found[0], other) for other in found[1:]]
        for pair in compared if kept["run"] is not None else ():
            kept["run"].write_result(corrupted_pair_name(pair), pair)
        _report(found, compared, keep, [] if plot is None else [plot], json)


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _numbers(text: str | None) -> list[int] | None:
    parts = _parts(text)
    if parts is None:
        return None
    if not all(part.isdigit() for part in parts):
        raise InputError(f"severities must be among 1, 2, 3, 4, 5, with commas between them, got {text!r}")
    return [int(part) for part in parts]


def _report(
    found: "list[lf.CorruptResult]",
    compared: "list[lf.CorruptComparison]",
    keep: options.RunOptions,
    paths: list[str],
    json: bool,
) -> None:
    from lipforge.corruptions import corrupt_name, corrupted_pair_name

    names = [corrupt_name(one.label, one.source, one.corruptions, one.severities, one.seed) for one in found]
    names += [corrupted_pair_name(pair) for pair in compared]
    if printed(json, [*found, *compared]):
        return
    for text in found[0].notes:
        note(text)
    for one in found:
        title = f"{one.model} ({one.label}): % correct, {one.source}, {one.data}, n = {one.count}, seed {one.seed}"
        columns = ["corruption", *(f">{severity}" for severity in one.severities), ">mean"]
        show_table(title, columns, _rows(one))
        error = f"mean error {percent(1 - one.mean_accuracy)}"
        mce = "" if one.mce is None else f", mCE relative to AlexNet {percent(one.mce)}"
        say(f"clean {share_text(one.clean_accuracy, one.clean_interval)}, {error}{mce}")
    for pair in compared:
        _show_pair(pair)
    say(f"{sum(one.forwards for one in found):,} passes, {duration(sum(one.seconds for one in found))}")
    say_wrote([*paths, *keep.paths(*names)])


def _show_pair(pair: "lf.CorruptComparison") -> None:
    """The paired differences, each corruption by itself and all together."""
    rows = [
        [part.corruption, percent(part.base_accuracy), percent(part.candidate_accuracy),
         points_text(part.difference, part.interval), f"{part.gained} / {part.lost}"]
        for part in pair.corruptions
    ]  # fmt: skip
    columns = ["corruption", f">{pair.base}", f">{pair.candidate}", ">difference", ">gained / lost"]
    show_table(f"{pair.candidate} against {pair.base}: % correct, each corruption by itself", columns, rows)
    say(str(pair))
    relative = "" if pair.relative_error is None else f"; errors relative to the base {pair.relative_error:.3f}"
    say(f"  clean {points_text(pair.clean.difference, pair.clean.interval)}{relative}")


def _rows(one: "lf.CorruptResult") -> list[Sequence[str]]:
    """A row per corruption and one for all, each cell with its Wilson interval, each mean with Student's."""
    rows: list[Sequence[str]] = []
    for name in one.corruptions:
        cells = [_lines(cell.accuracy, cell.interval) for cell in one.of(name)]
        rows.append([name, *cells, _lines(*one.accuracy_of(name))])
    every = _lines(one.mean_accuracy, one.mean_interval)
    return [*rows, ["mean", *(_lines(*one.at(severity)) for severity in one.severities), every]]


def _lines(share: float, interval: tuple[float, float]) -> str:
    """A share with its interval below it: six in a row are too wide otherwise."""
    return share_text(share, interval).replace(" [", "\n[", 1)
