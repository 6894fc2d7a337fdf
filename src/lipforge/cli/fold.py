"""`lipforge fold`: the paper's "+ Weight" variant, whose weight columns are zeroed in place of a mask."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say_wrote, show_table
from lipforge.errors import InputError, RecipeError
from lipforge.types import parse_number

if TYPE_CHECKING:
    from torch import nn

    from lipforge.forge import Fold


@options.command(data="cifar10:train", recipe=(..., Option(help="The recipe of `lipforge forge`.")))
def fold(
    models: options.ModelOptions,
    data: options.DataOptions,
    recipe: options.RecipeOptions,
    frequency: Annotated[
        str, Option(help="Zero the columns of inputs that are forged to zero at least this often; several by commas.")
    ] = "0.95",
    out: Annotated[
        str, Option(help="Where to write the fold; with several frequencies each gets its own file.")
    ] = "fold.safetensors",
    batch_size: options.BatchSize = 128,
    json: options.Json = False,
) -> None:
    """Count on calibration images which inputs a forged model sets to zero, and zero their weight columns instead.

    The file keeps the counts and the zeroed columns; `lipforge evaluate --fold` measures the model. Count on training
    images: a count on test images would have seen the images of the test.

    [bold]Example[/]

    lipforge fold cifar10-resnet --recipe recipe.json --data cifar10:train --limit 5000 --frequency 0.9,0.95
    """
    frequencies = [parse_number(part.strip(), name="frequency") for part in frequency.split(",")]
    check_out(out)
    with options.session(models, data) as (rank, images, model, _):
        recipe.apply_(model)
        options.require_forged(model, str(recipe.recipe))
        if not rank.is_first:
            return
        counts = lf.count_zeros(lf.forged(model), images, batch_size=batch_size)
        found = {}
        for each in frequencies:
            path = Path(out) if len(frequencies) == 1 else Path(out).with_stem(f"{Path(out).stem}-{each:g}")
            found[path] = lf.fold_(model, counts, frequency=each)
            found[path].undo_(model)
            found[path].save(path)
    name = images.name.partition("/")[0]
    if name.endswith(":test") or ":" not in name:  # a set without a split is its test set
        note(f"{images.name} are test images: a count on them has seen the images of the test")
    _report(models.model, images.name, found, json)


def folded_views(model: "nn.Module", paths: Sequence[str]) -> "dict[str, nn.Module]":
    """The model with each fold's weight columns zeroed and without masks, in a copy of its own."""
    views: dict[str, nn.Module] = {}
    folds = [(path, lf.load_fold(path)) for path in paths]
    labels = Counter(f"folded {loaded.frequency:g}" for _, loaded in folds)
    for path, loaded in folds:
        label = f"folded {loaded.frequency:g}"
        label = label if labels[label] == 1 else f"{label} {Path(path).stem}"
        if label in views:
            raise InputError(f"--fold has two files for '{label}', the second is {path}; rename one or leave it out")
        try:
            views[label] = lf.with_fold(model, loaded)
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from None
    return views


def _report(model: str, data: str, found: "dict[Path, Fold]", json: bool) -> None:
    first = next(iter(found.values()))
    total = sum(len(zeros) for zeros in first.counts.zeros.values())
    rows = [(one.frequency, sum(map(len, one.columns.values())), len(one.columns)) for one in found.values()]
    folds = [
        {"kind": "fold", "frequency": frequency, "columns": columns, "sites": sites, "inputs": total, "out": str(path)}
        for path, (frequency, columns, sites) in zip(found, rows, strict=True)
    ]
    if printed(json, folds, model=model, data=data, images_seen=first.counts.images_seen):
        return
    title = f"{model}: inputs that are forged to zero, {first.counts.images_seen} images of {data}"
    cells = [[f"{frequency:g}", f"{columns} of {total}", str(sites)] for frequency, columns, sites in rows]
    show_table(title, [">frequency", ">zeroed columns", ">sites"], cells)
    for frequency, columns, _ in rows:
        if columns == 0:
            note(f"no input is zero {frequency:.0%} of the time or more: the folded model is the base itself")
    say_wrote(found)
