"""`lipforge demo`: forge the bundled robust model on real images, attack it, audit it, and write the report."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, notes, printed, say, show_table
from lipforge.errors import DataError, InputError
from lipforge.text import ratio_text, share_text
from lipforge.types import Threat

if TYPE_CHECKING:
    from torch import nn

    from lipforge.data import View
    from lipforge.results import DemoResult, SearchResult

THREAT = Threat("linf", "8/255")
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


def demo(
    model: Annotated[
        str, Option(help="A CIFAR-10 classifier, by any name that `lipforge sites` takes.")
    ] = "cifar10-resnet",
    weights: options.Weights = None,
    out: Annotated[str, Option(help="The run's directory; the same command again resumes it.")] = "runs/demo",
    count: Annotated[int | None, Option(help="How many test images to attack.")] = None,
    full: Annotated[bool, Option("--full", help="Larger samples: 1,000 images instead of 200.")] = False,
    json: options.Json = False,
) -> None:
    """Forge a robust CIFAR-10 model, search its ratio, attack it, audit it, certify it, and write the report.

    [bold]Example[/]: lipforge demo --full --out runs/demo-full
    """
    if count is not None and count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    sizes = FULL if full else SMALL
    classifier = lf.load_model(model, weights)
    _say(1, "getting CIFAR-10: from the cache, or else fetched once")
    calibration, validation, test = _images(sizes, count)
    run = options.open_run(out)
    _say(2, f"calibrating {model} on {len(calibration):,} training images: one pass, no gradients")
    lf.forge_(classifier, calibration, ratio=HEADLINE)
    _say(3, f"searching the ratio on {len(validation)} more training images")
    search = lf.choose_ratio(classifier, validation, threat=THREAT, run=run)
    for text in search.all_notes:
        note(f"search: {text}")
    lf.set_ratio_(classifier, _ratio(search))
    lf.save_recipe(run.path / "recipe.json", classifier)
    result = _measure(classifier, model, search, test, run, sizes)
    run.write_result("demo", result)
    _say(8, "writing the report")
    report = lf.write_report(run.path)
    if not printed(json, result, report=report):
        _show(result, report)


def _images(sizes: Sizes, count: int | None) -> "tuple[View, View, View]":
    try:
        parts = lf.split(lf.load_data("cifar10"), calibration=sizes.calibration, validation=sizes.validation)
    except DataError as error:
        note(f"CIFAR-10 is not available here, so the demo uses the 1,000 real images it ships with. {error}")
        parts = lf.split(lf.load_data("cifar10-sample"), calibration=300, validation=min(200, sizes.validation))
    calibration, validation, test = parts
    return calibration, validation, lf.take(test, min(count or sizes.test, len(test)))


def _measure(
    model: "nn.Module", name: str, search: "SearchResult", test: "View", run: "lf.RunDir", sizes: Sizes
) -> "DemoResult":
    """Attack, certify, audit and analyse the forged model; what the run directory keeps is not computed again."""
    from lipforge.results import DemoResult

    recipe, views = lf.recipe_of(model), {"base": lf.plain(model), "forged": lf.forged(model)}
    _say(4, f"attacking {len(test)} test images, base and forged at {ratio_text(_ratio(search))}")
    base, forged = (
        lf.evaluate(view, test, lf.fast(), THREAT, run=run, label=label, model_name=name, save_images=True)
        for label, view in views.items()
    )
    difference = lf.compare(base, forged)
    run.write_result("comparison", difference)
    _say(5, f"certifying {min(sizes.certified, len(test))} images, {sizes.draws:,} noisy copies each")
    for label, view in views.items():
        lf.certify(view, test, sigma=SIGMA, n=sizes.draws, limit=sizes.certified, run=run, label=label, model_name=name)
    _say(6, "auditing: attacks that know of the masks, and as much effort against the base")
    found = lf.audit(model, test, THREAT, run=run, name=name)
    _say(7, f"looking inside on {min(sizes.analysed, len(test))} images")
    _look_inside(model, forged, test, run, sizes.analysed)
    return DemoResult(
        model=name,
        data=test.name,
        threat=str(THREAT),
        attack=base.attack,
        sites=len(recipe.sites),
        calibrated_on=recipe.images_seen,
        ratio=_ratio(search),
        reason=search.reason,
        count=len(test),
        base=base.robust_accuracy,
        forged=forged.robust_accuracy,
        clean_base=base.clean_accuracy,
        clean_forged=forged.clean_accuracy,
        difference=difference,
        verdict=found.verdict,
        sentence=found.sentence,
        failed_checks=found.failed_checks,
        unreliable=forged.unreliable,
    )


def _ratio(search: "SearchResult") -> float:
    """The chosen ratio; the paper's headline where the search would rather not forge, so that there is a subject."""
    chosen = search.chosen or HEADLINE
    assert isinstance(chosen, float)  # the demo searches one ratio for all sites
    return chosen


def _look_inside(model: "nn.Module", result: "lf.RobustResult", test: "View", run: "lf.RunDir", count: int) -> None:
    """The analysis and the gallery, of the images that the evaluation of the forged model has kept."""
    import torch
    from safetensors.torch import load_file

    from lipforge.evaluation import task_name
    from lipforge.reports import make_gallery

    folder = run.path / "shards" / task_name(result.label, result.attack, THREAT, result.seed)
    kept = torch.cat([load_file(path)["images"] for path in sorted(folder.glob("*.safetensors"))])
    x, y = test.batch(range(min(count, len(test))))
    adversarial, view = kept[: len(x)], lf.forged(model)
    attack = f"{result.attack} {THREAT} on the forged model"
    analysis = lf.analyse(
        model, (x, y), adversarial, spectral_images=4, model_name=result.model, data_name=test.name, attack=attack
    )
    run.write_result("analysis", analysis)
    with torch.no_grad():
        before, after = (view(images).argmax(dim=1) for images in (x, adversarial))
    run.write_result("gallery", make_gallery(x, adversarial, y, before, after, class_names=CIFAR10))


def _say(step: int, text: str) -> None:
    notes.print(f"{step}/{STEPS}  {text}", soft_wrap=True)


def _show(result: "DemoResult", report: Path) -> None:
    forged = (f"forged at {ratio_text(result.ratio)}", result.clean_forged, result.forged)
    measured = (("base", result.clean_base, result.base), forged)
    rows = [[label, *(_share(share, result.count) for share in shares)] for label, *shares in measured]
    rows[-1][-1] += " unreliable" if result.unreliable else ""
    title = f"{result.model}, {result.data}, n = {result.count}: % correct with 95 % intervals"
    show_table(title, ["model", ">clean", f">{result.attack} {result.threat}"], rows)
    say(f"search: {result.reason}")
    say(f"attack: {result.difference}")
    say(f"audit:  {result.sentence}")
    for check in result.failed_checks:
        say(f"failed: {check}")
    say(
        f"\nForged functions sit in front of {result.sites} layers; their thresholds come from "
        f"{result.calibrated_on:,} training images. The attack above trusts gradients; the audit also tries attacks "
        "that get past the masks, so its verdict is the one to quote."
    )
    say(f"report: {report}")


def _share(share: float, count: int) -> str:
    from lipforge.statistics import clopper_pearson

    return share_text(share, clopper_pearson(round(share * count), count))
