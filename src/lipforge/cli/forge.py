"""`lipforge forge`: calibrate a model and write its recipe."""

import time
from typing import Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, printed, say_wrote, show_table
from lipforge.cli.sites import note_masks
from lipforge.text import ratio_text
from lipforge.types import parse_number


@options.command(data="cifar10:train")
def forge(
    models: options.ModelOptions,
    data: options.DataOptions,
    where: options.SiteOptions,
    out: Annotated[str, Option(help="Where to write the recipe.")] = "recipe.json",
    mask: options.Mask = "step",
    ratio: Annotated[str, Option(help="Share of the bound below which activations are forged.")] = "2^-7",
    per_channel: Annotated[bool, Option("--per-channel", help="One bound per channel.")] = False,
    quantile: Annotated[float | None, Option(help="This quantile of |x| instead of the maximum.")] = None,
    batch_size: options.BatchSize = 128,
    json: options.Json = False,
) -> None:
    """Find the sites of a model, calibrate them in one pass over data, and write the recipe.

    [bold]Examples[/]

    lipforge forge cifar10-resnet --data cifar10:train --limit 5000 --mask step --ratio 2^-7 --out recipe.json

    lipforge forge robustbench:imagenet/Linf/Liu2023Comprehensive_Swin-L --weights-dir checkpoints \\
    --data folder:/data/imagenet/train --limit 5000

    torchrun --nproc-per-node 8 -m -- lipforge forge my_model.py:build --data cifar10:train
    """
    from lipforge.data.subsets import own_share
    from lipforge.forge import parse_mask
    from lipforge.models import carried_masks

    chosen_mask, chosen_ratio = parse_mask(mask), parse_number(ratio, name="ratio")
    check_out(out)
    with options.session(models, data) as (rank, images, model, _):
        if rank.is_first:
            note_masks(carried_masks(model))
        started = time.perf_counter()
        recipe = lf.forge_(
            model,
            own_share(images),
            mask=chosen_mask,
            ratio=chosen_ratio,
            **where.chosen,
            per_channel=per_channel,
            quantile=quantile,
            batch_size=batch_size,
            data=images.name,
            show_progress=None if rank.is_first else False,
        )
        if rank.is_first:
            recipe.save(out)
            _report(models.model, recipe, out, time.perf_counter() - started, json)


def _report(model: str, recipe: "lf.Recipe", out: str, seconds: float, json: bool) -> None:
    about = {"model": model, "out": out, "seconds": round(seconds, 3), "digest": recipe.digest}
    if printed(json, {"kind": "recipe", **about, **recipe.to_dict()}):
        return
    rows = [
        [name, site.layer, str(site.in_features), _range(site.bound, 1.0), _range(site.bound, site.ratio)]
        for name, site in recipe.sites.items()
    ]
    ratio = "several ratios" if recipe.ratio is None else f"ratio {ratio_text(recipe.ratio)}"
    title = f"{model}: {recipe.mask}, {ratio}, {recipe.images_seen} images of {recipe.data}, {seconds:.1f} s"
    show_table(title, ["site", "layer", ">features", ">bound", ">threshold"], rows)
    say_wrote([out])


def _range(bound: float | list[float], ratio: float) -> str:
    """A bound or a threshold; its range where every channel has its own."""
    if isinstance(bound, list):
        return f"{min(bound) * ratio:.3g} .. {max(bound) * ratio:.3g}"
    return f"{bound * ratio:.4g}"
