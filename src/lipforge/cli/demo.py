"""`lipforge demo`: forge the bundled robust model on real images, attack it, audit it, and write the report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file
from torch import nn

from lipforge.analysis import analyse
from lipforge.attacks import autoattack
from lipforge.audit import audit
from lipforge.certify import certify
from lipforge.cli import options
from lipforge.cli.output import note, notes, print_json, results, table
from lipforge.data import View, load_data, split, take
from lipforge.errors import DataError, InputError
from lipforge.evaluation import RobustResult, clopper_pearson, evaluate
from lipforge.evaluation.compare import Comparison, compare
from lipforge.evaluation.identity import attack_text, task_name
from lipforge.evaluation.results import share_text
from lipforge.evaluation.scores import SearchResult
from lipforge.forge import forge_, forged, plain, save_recipe, set_ratio_
from lipforge.models import load_model
from lipforge.reports import make_gallery, write_report
from lipforge.runs import RunDir, record
from lipforge.searching import choose_ratio
from lipforge.types import Threat, ratio_text

THREAT = Threat("linf", "8/255")
ATTACK = autoattack("fast")
ATTACK_TEXT = attack_text(ATTACK)
SIGMA = 0.12
HEADLINE = 2**-7
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STEPS = 8


@dataclass(frozen=True)
class Sizes:
    """How many images each step takes, and how many noisy copies of each a certificate takes."""

    calibration: int = 5000
    validation: int = 100
    test: int = 200
    certified: int = 10
    draws: int = 1000
    analysed: int = 32


SMALL, FULL = Sizes(), Sizes(validation=1000, test=1000, certified=100, draws=10_000, analysed=128)


@dataclass(frozen=True)
class Demo:
    """What the demo found; the rest is in the results beside it."""

    model: str
    data: str
    threat: str
    attack: str
    sites: int
    calibrated_on: int
    ratio: float
    reason: str
    count: int
    clean_base: float
    clean_forged: float
    base: float
    forged: float
    difference: Comparison
    verdict: str
    sentence: str
    doubts: tuple[str, ...]


def demo(
    model: Annotated[str, typer.Option(help="A CIFAR-10 classifier, by any name that `lipforge sites` takes.")] = (
        "cifar10-resnet"
    ),
    weights: options.Weights = None,
    out: Annotated[str, typer.Option(help="The run's directory; the same command again resumes it.")] = "runs/demo",
    count: Annotated[int | None, typer.Option(help="How many test images to attack.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Larger samples: 1,000 images instead of 200.")] = False,
    json: options.Json = False,
) -> None:
    """Forge a robust CIFAR-10 model, search its ratio, attack it, audit it, certify it, and write the report.

    [bold]Example[/]: lipforge demo --full --out runs/demo-full
    """
    if count is not None and count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    sizes = FULL if full else SMALL
    classifier = load_model(model, weights)
    _say(1, "getting CIFAR-10: from the cache, or else fetched once")
    calibration, validation, test = _images(sizes, count)
    run = options.open_run(out)
    assert run is not None
    result = _run(classifier, model, calibration, validation, test, run, sizes)
    run.write_result("demo", result)
    _say(8, "writing the report")
    report = write_report(run.path)
    if json:
        print_json({**record(result), "report": report})
        return
    _show(result, report)


def _images(sizes: Sizes, count: int | None) -> tuple[View, View, View]:
    try:
        parts = split(load_data("cifar10"), calibration=sizes.calibration, validation=sizes.validation)
    except DataError as error:
        note(f"CIFAR-10 cannot be had here, so the demo uses the 1,000 real images it ships with. {error}")
        parts = split(load_data("cifar10-sample"), calibration=300, validation=min(200, sizes.validation))
    calibration, validation, test = parts
    return calibration, validation, take(test, min(count or sizes.test, len(test)))


def _run(
    model: nn.Module, name: str, calibration: View, validation: View, test: View, run: RunDir, sizes: Sizes
) -> Demo:
    """All steps; what a run directory keeps is not computed again."""
    _say(2, f"calibrating {name} on {len(calibration):,} training images: one pass, no gradients")
    recipe = forge_(model, calibration, ratio=HEADLINE)
    _say(3, f"searching the ratio on {len(validation)} other training images")
    search = choose_ratio(model, validation, threat=THREAT, run=run)
    ratio = _ratio(search)
    set_ratio_(model, ratio)
    save_recipe(run.path / "recipe.json", model)
    _say(4, f"attacking {len(test)} test images, base and forged at {ratio_text(ratio)}")
    base, candidate = _evaluate(model, name, test, run)
    difference = compare(base, candidate)
    run.write_result("comparison", difference)
    _say(5, f"certifying {min(sizes.certified, len(test))} images, {sizes.draws:,} noisy copies each")
    for label, view in _views(model).items():
        certify(view, test, sigma=SIGMA, n=sizes.draws, limit=sizes.certified, run=run, label=label, model_name=name)
    _say(6, "auditing: attacks that know of the masks, and as much effort against the base")
    found = audit(model, test, THREAT, run=run, name=name)
    _say(7, f"looking inside on {min(sizes.analysed, len(test))} images")
    _look_inside(model, name, test, run, sizes.analysed)
    return Demo(
        model=name,
        data=test.name,
        threat=str(THREAT),
        attack=ATTACK_TEXT,
        sites=len(recipe.sites),
        calibrated_on=recipe.images_seen,
        ratio=ratio,
        reason=search.reason,
        count=len(test),
        base=base.robust_accuracy,
        forged=candidate.robust_accuracy,
        clean_base=base.clean_accuracy,
        clean_forged=candidate.clean_accuracy,
        difference=difference,
        verdict=found.verdict,
        sentence=found.sentence,
        doubts=found.doubts,
    )


def _views(model: nn.Module) -> dict[str, nn.Module]:
    return {"base": plain(model), "forged": forged(model)}


def _ratio(search: SearchResult) -> float:
    """The chosen ratio; the paper's headline where the search would rather not forge, so that there is a subject."""
    chosen = search.chosen or HEADLINE
    assert isinstance(chosen, float)  # the demo searches one ratio for all sites
    return chosen


def _evaluate(model: nn.Module, name: str, test: View, run: RunDir) -> list[RobustResult]:
    return [
        evaluate(view, test, ATTACK, THREAT, run=run, label=label, model_name=name, save_images=True)
        for label, view in _views(model).items()
    ]


def _look_inside(model: nn.Module, name: str, test: View, run: RunDir, count: int) -> None:
    """The analysis and the gallery, of the images that the evaluation of the forged model has kept."""
    folder = run.path / "shards" / task_name("forged", ATTACK_TEXT, THREAT, seed=0)
    kept = torch.cat([load_file(path)["images"] for path in sorted(folder.glob("*.safetensors"))])
    x, y = test.batch(range(min(count, len(test))))
    adversarial, view = kept[: len(x)], forged(model)
    attack = f"{ATTACK_TEXT} {THREAT} on the forged model"
    analysis = analyse(
        model, (x, y), adversarial, spectral_images=4, model_name=name, data_name=test.name, attack=attack
    )
    run.write_result("analysis", analysis)
    with torch.no_grad():
        before, after = (view(images).argmax(dim=1) for images in (x, adversarial))
    run.write_result("gallery", make_gallery(x, adversarial, y, before, after, class_names=CIFAR10))


def _say(step: int, text: str) -> None:
    notes.print(f"{step}/{STEPS}  {text}", soft_wrap=True)


def _show(result: Demo, report: Path) -> None:
    measured = {
        "base": (result.clean_base, result.base),
        f"forged at {ratio_text(result.ratio)}": (result.clean_forged, result.forged),
    }
    rows = [[label, *(_share(share, result.count) for share in shares)] for label, shares in measured.items()]
    title = f"{result.model}, {result.data}, n={result.count}: % correct with 95 % intervals"
    columns = {"model": "left", "clean": "right", f"{result.attack} {result.threat}": "right"}
    results.print(table(title, columns, rows))
    results.print(f"search: {result.reason}", soft_wrap=True)
    results.print(f"attack: {result.difference}", soft_wrap=True)
    results.print(f"audit:  {result.sentence}", soft_wrap=True)
    for doubt in result.doubts:
        results.print(f"doubt:  {doubt}", soft_wrap=True)
    results.print()
    results.print(
        f"Forged functions sit in front of {result.sites} layers; their thresholds come from {result.calibrated_on:,} "
        "training images. The attack above trusts gradients; the audit also tries attacks that ignore the masks, so "
        "its verdict is the one to quote.",
        soft_wrap=True,
    )
    results.print(f"report: {report}", soft_wrap=True)


def _share(share: float, count: int) -> str:
    return share_text(share, clopper_pearson(round(share * count), count))
