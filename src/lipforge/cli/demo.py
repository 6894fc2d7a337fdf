"""`lipforge demo`: forge the bundled robust model on real images, attack it, and say what is true."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from lipforge.attacks import PGD
from lipforge.batching import batches
from lipforge.cli import options
from lipforge.cli.output import note, notes, print_json, ratio_text, results, table
from lipforge.data import View, load_data, split, take
from lipforge.errors import DataError
from lipforge.evaluation import clean_accuracy, clopper_pearson
from lipforge.forge import forge_, forged, plain, save_recipe, set_ratio_, straight_through
from lipforge.models import load_model
from lipforge.progress import progress
from lipforge.records import write_json
from lipforge.types import Threat

RATIOS = (2**-8, 2**-7, 2**-6, 2**-5)
HEADLINE = 2**-7


@dataclass(frozen=True)
class Row:
    """One line of the demo's table: shares of the test images that are classified correctly."""

    ratio: float
    clean: float
    plain_attack: float
    adaptive_attack: float
    union: float
    gained: int
    lost: int


@dataclass(frozen=True)
class Demo:
    """What the demo measured; `rows[0]` is the base model."""

    model: str
    data: str
    threat: str
    attack: str
    clean_count: int
    attack_count: int
    rows: tuple[Row, ...]


def demo(
    model: Annotated[str, typer.Option(help="A CIFAR-10 classifier, by any name that `lipforge sites` takes.")] = (
        "cifar10-resnet"
    ),
    weights: options.Weights = None,
    out: Annotated[str, typer.Option(help="Where to write the recipe and the summary.")] = "runs/demo",
    count: Annotated[int, typer.Option(help="How many test images to attack.")] = 200,
    json: options.Json = False,
) -> None:
    """Forge a robust CIFAR-10 model with 5,000 training images, attack it, and say whether it got more robust.

    [bold]Example[/]: lipforge demo --count 500
    """
    classifier = load_model(model, weights)
    calibration, test = _images()
    notes.print(f"1/3  calibrating {model} on {len(calibration):,} training images, one pass, no gradients")
    recipe = forge_(classifier, calibration, ratio=HEADLINE)
    notes.print(f"     {len(recipe.sites)} sites: {next(iter(recipe.sites))} .. {list(recipe.sites)[-1]}")
    save_recipe(Path(out) / "recipe.json", classifier)
    notes.print(f"2/3  accuracy on {len(test):,} clean test images, and on {min(count, len(test))} under attack")
    result = _measure(classifier, model, test, take(test, count))
    write_json(Path(out) / "demo.json", result)
    notes.print("3/3  done")
    if json:
        print_json(result)
        return
    _show(result)
    results.print(f"\nwrote {Path(out) / 'recipe.json'} and {Path(out) / 'demo.json'}", soft_wrap=True)


def _images() -> tuple[View, View]:
    try:
        calibration, _, test = split(load_data("cifar10"), calibration=5000, validation=0)
        return calibration, take(test, 2000)
    except DataError as error:
        note(f"CIFAR-10 cannot be had here, so the demo uses the 1,000 images it ships with. {error}")
        calibration, _, test = split(load_data("cifar10-sample"), calibration=500, validation=0)
        return calibration, test


def _measure(model: nn.Module, name: str, test: View, attacked: View) -> Demo:
    threat, attack = Threat("linf", "8/255"), PGD(steps=20, loss="margin")
    base, images = plain(model), _tensors(attacked)
    first, second = (_standing(base, images, attack, threat, seed, "base model") for seed in (0, 1))
    robust = first & second
    share = 1 / len(robust)
    clean = clean_accuracy(base, test).accuracy
    rows = [Row(0.0, clean, share * int(first.sum()), share * int(second.sum()), share * int(robust.sum()), 0, 0)]
    for ratio in RATIOS:
        set_ratio_(model, ratio)
        label = f"forged, ratio {ratio_text(ratio)}"
        direct = _standing(forged(model), images, attack, threat, 0, label)
        adaptive = _standing(straight_through(model), images, attack, threat, 1, f"{label}, adaptive")
        union = direct & adaptive
        row = Row(
            ratio=ratio,
            clean=clean_accuracy(forged(model), test).accuracy,
            plain_attack=share * int(direct.sum()),
            adaptive_attack=share * int(adaptive.sum()),
            union=share * int(union.sum()),
            gained=int((union & ~robust).sum()),
            lost=int((robust & ~union).sum()),
        )
        rows.append(row)
        notes.print(f"     {label}: plain {100 * row.plain_attack:.1f} %, adaptive {100 * row.adaptive_attack:.1f} %")
    set_ratio_(model, HEADLINE)
    return Demo(name, test.name, str(threat), str(attack), len(test), len(robust), tuple(rows))


def _tensors(data: View) -> tuple[Tensor, Tensor]:
    parts = [(batch.images, batch.labels) for batch in batches(data) if batch.labels is not None]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _standing(
    model: nn.Module, images: tuple[Tensor, Tensor], attack: PGD, threat: Threat, seed: int, label: str
) -> Tensor:
    """Which images the attack leaves correctly classified."""
    x, y = images
    parts = []
    with progress(f"attacking {label}", len(x)) as step:
        for ids in torch.split(torch.arange(len(x)), 50):
            adversarial = attack(model, x[ids], y[ids], threat=threat, seed=seed, sample_ids=ids)
            with torch.no_grad():
                parts.append(model(adversarial).argmax(dim=1) == y[ids])
            step(len(ids))
    return torch.cat(parts)


def _show(result: Demo) -> None:
    base = result.rows[0]
    rows = [
        [
            "base" if row is base else ratio_text(row.ratio),
            f"{100 * row.clean:.1f}",
            f"{100 * row.plain_attack:.1f}",
            f"{100 * row.adaptive_attack:.1f}",
            f"{100 * row.union:.1f}",
            _interval(row.union, result.attack_count),
            "" if row is base else f"{100 * (row.union - base.union):+.1f}",
            "" if row is base else f"{row.gained} / {row.lost}",
        ]
        for row in result.rows
    ]
    columns = ["ratio", "clean", "plain", "adaptive", "both", "95 %", "vs base", "gained / lost"]
    counts = f"clean n={result.clean_count}, attacked n={result.attack_count}"
    results.print(table(f"{result.model}, {result.threat}, % correct; {counts}", dict.fromkeys(columns, "right"), rows))
    results.print(
        "plain: PGD, 20 margin-loss steps through the masks. adaptive: the same, with the identity as the masks' "
        "backward pass. both: robust only if neither attack fools it; this is the column that counts. The base model "
        "faces two attacks as well. gained / lost: images against the base model.\n"
    )
    results.print(_sentence(result), soft_wrap=True)


def _interval(share: float, count: int) -> str:
    low, high = clopper_pearson(round(share * count), count)
    return f"{100 * low:.1f}..{100 * high:.1f}"


def _sentence(result: Demo) -> str:
    """What the table says, in words: about the paper's headline ratio, and about the largest apparent gain."""
    base, forged_rows = result.rows[0], result.rows[1:]
    row = next(row for row in forged_rows if row.ratio == HEADLINE)
    best = max(forged_rows, key=lambda row: row.plain_attack)
    fooled = f"{row.gained} images gained, {row.lost} lost out of {result.attack_count}"
    if row.gained <= row.lost:
        verdict = f"At the paper's ratio 2^-7 forging did not make this model more robust: {fooled}."
    else:
        verdict = f"At the paper's ratio 2^-7 the forged model stands on more images, which is no proof yet: {fooled}."
    apparent, real = 100 * (best.plain_attack - base.plain_attack), 100 * (best.union - base.union)
    if apparent <= 0:
        return verdict
    return (
        f"{verdict}\nThe largest gain that the plain attack shows, {apparent:+.1f} points at {ratio_text(best.ratio)}, "
        f"is {real:+.1f} once an attack ignores the masks."
    )
