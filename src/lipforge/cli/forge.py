"""`lipforge forge`: calibrate a model and write its recipe."""

import time
from typing import Annotated

import torch
import typer

from lipforge.batching import BATCH_SIZE, ImageData
from lipforge.cli import options
from lipforge.cli.output import note, print_json, ratio_text, results, table
from lipforge.data.split import view
from lipforge.errors import InputError
from lipforge.forge import Recipe, forge_, parse_mask
from lipforge.forge.masks import mask_to_dict
from lipforge.forge.sites import DEFAULT_RULES
from lipforge.models import carried_masks, load_model
from lipforge.ranks import Rank, process_group
from lipforge.types import parse_number


def forge(
    model: options.Model,
    data: options.Data = "cifar10:train",
    out: Annotated[str, typer.Option(help="Where to write the recipe.")] = "recipe.json",
    mask: options.Mask = "step",
    ratio: Annotated[str, typer.Option(help="Share of the bound below which activations are forged.")] = "2^-7",
    limit: options.Limit = None,
    seed: options.Seed = None,
    per_channel: Annotated[bool, typer.Option("--per-channel", help="One bound per channel.")] = False,
    quantile: Annotated[float | None, typer.Option(help="This quantile of |x| instead of the maximum.")] = None,
    rule: options.Rules = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    weights: options.Weights = None,
    weights_dir: options.WeightsDir = None,
    no_weights: options.NoWeights = False,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = BATCH_SIZE,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    on_error: options.OnError = "raise",
    workers: options.Workers = None,
    files: options.Files = None,
    json: options.Json = False,
) -> None:
    """Find the sites of a model, calibrate them in one pass over data, and write the recipe.

    [bold]Examples[/]

    lipforge forge cifar10-resnet --data cifar10:train --limit 5000 --mask step --ratio 2^-7 --out recipe.json

    lipforge forge robustbench:imagenet/Linf/Liu2023Comprehensive_Swin-L --weights-dir checkpoints \\
    --data folder:/data/imagenet/train --limit 5000

    torchrun --nproc-per-node 8 -m -- lipforge forge my_model.py:build --data cifar10:train
    """
    chosen_mask, chosen_ratio = parse_mask(mask), parse_number(ratio, name="ratio")
    options.check_out(out)
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, on_error, workers, files)
        images = options.open_data(data, limit, seed, root, folder)
        loaded = load_model(model, weights, weights_dir=weights_dir, pretrained=not no_weights, classes=classes).to(
            where
        )
        masks = carried_masks(loaded)
        if masks and rank.is_first:
            note(f"this model carries {len(masks)} MeanSparse masks already, such as '{masks[0]}'; forging adds more")
        started = time.perf_counter()
        recipe = forge_(
            loaded,
            _share(images, rank),
            mask=chosen_mask,
            ratio=chosen_ratio,
            rules=rule or DEFAULT_RULES,
            include=include or (),
            exclude=exclude or (),
            per_channel=per_channel,
            quantile=quantile,
            batch_size=batch_size,
            data=images.name,
            show_progress=None if rank.is_first else False,
        )
        if rank.is_first:
            recipe.save(out)
            _report(model, recipe, out, time.perf_counter() - started, json)


def _share(images: ImageData, rank: Rank) -> ImageData:
    if rank.count == 1:
        return images
    if len(images) < rank.count:
        raise InputError(f"data must have an image for each of the {rank.count} processes, got {len(images)}")
    return view(images, rank.share(len(images)), name=images.name)


def _report(model: str, recipe: Recipe, out: str, seconds: float, json: bool) -> None:
    if json:
        fields = {**vars(recipe), "mask": mask_to_dict(recipe.mask)}
        print_json({"model": model, "out": out, "seconds": round(seconds, 3), **fields})
        return
    rows = []
    for name, site in recipe.sites.items():
        bound = torch.tensor(site.bound)
        spread = f"{bound.item():.4g}" if bound.ndim == 0 else f"{bound.min():.3g} .. {bound.max():.3g}"
        limits = bound * site.ratio
        limit = f"{limits.item():.4g}" if limits.ndim == 0 else f"{limits.min():.3g} .. {limits.max():.3g}"
        rows.append([name, site.layer, str(site.in_features), spread, limit])
    columns = {"site": "left", "layer": "left", "features": "right", "bound": "right", "threshold": "right"}
    ratio = "several ratios" if recipe.ratio is None else f"ratio {ratio_text(recipe.ratio)}"
    title = f"{model}: {recipe.mask}, {ratio}, {recipe.images_seen} images of {recipe.data}, {seconds:.1f} s"
    results.print(table(title, columns, rows))
    results.print(f"wrote {out}", soft_wrap=True)
