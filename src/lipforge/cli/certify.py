"""`lipforge certify`: certified accuracy by randomized smoothing, base and forged on the same noise."""

from dataclasses import dataclass
from typing import Annotated

import typer
from torch import nn

from lipforge.certify import CertifyCost, CertifyResult, CurvePoint, certify_cost
from lipforge.certify import certify as certify_images
from lipforge.certify.config import Smoothing
from lipforge.certify.smoothing import BATCH_SIZE, task_name
from lipforge.cli import options
from lipforge.cli.output import note, print_json, results, table
from lipforge.data import DataSet
from lipforge.evaluation.compare import paired
from lipforge.forge import forged, load_recipe, plain
from lipforge.models import load_model
from lipforge.progress import duration
from lipforge.ranks import process_group
from lipforge.runs import RunDir, record
from lipforge.types import parse_number

RecipePath = Annotated[str | None, typer.Option(help="A recipe of `lipforge forge`: certify base and forged.")]
Run = Annotated[str | None, typer.Option(help="A run directory: keeps every shard; the same command resumes.")]


@dataclass(frozen=True)
class Plan:
    """What to certify, beside the classifier."""

    smoothing: Smoothing
    radii: list[float] | None
    skip: int
    limit: int | None
    batch_size: int


def certify(
    model: options.Model,
    recipe: RecipePath = None,
    data: options.Data = "cifar10",
    sigma: Annotated[str, typer.Option(help="Deviation of the noise.")] = "0.25",
    n0: Annotated[int, typer.Option("--n0", help="Draws that choose the class.")] = 100,
    n: Annotated[int, typer.Option("--n", help="Fresh draws that bound its probability.")] = 100_000,
    alpha: Annotated[float, typer.Option(help="The probability that an image's claim may be wrong.")] = 0.001,
    limit: Annotated[int | None, typer.Option(help="Certify at most this many images.")] = None,
    skip: Annotated[int, typer.Option(help="Certify every so many images; Cohen et al. take every 20th.")] = 1,
    only_correct: Annotated[
        bool, typer.Option("--only-correct", help="Spend nothing on images whose chosen class is wrong; same curve.")
    ] = False,
    radii: Annotated[str | None, typer.Option(help="Radii of the table, such as 0,0.25,0.5.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    run: Run = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say what it would cost, from a probe.")] = False,
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
    """Certify that no perturbation of an l2 norm below a radius changes the answer of the smoothed classifier.

    [bold]Examples[/]

    lipforge certify cifar10-resnet --data cifar10 --skip 20 --estimate

    lipforge certify cifar10-resnet --recipe recipe.json --sigma 0.25 --n 1000 --limit 50 --run runs/smooth

    torchrun --nproc-per-node 8 -m -- lipforge certify my_model.py:build --skip 20 --run runs/smooth
    """
    smoothing = Smoothing(parse_number(sigma, name="sigma"), n0, n, alpha, seed, only_correct)
    chosen = None if radii is None else [parse_number(part, name="radii") for part in radii.split(",")]
    plan = Plan(smoothing, chosen, skip, limit, batch_size)
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, on_error, workers, files)
        images = options.open_data(data, None, None, root, folder)
        loaded = load_model(model, weights, weights_dir=weights_dir, pretrained=not no_weights, classes=classes)
        views = classifiers(loaded.to(where), recipe)
        if estimate:
            if rank.is_first:
                _show_costs({label: _cost(view, images, plan) for label, view in views.items()}, json)
            return
        opened = options.open_run(run)
        found = [_certify(view, images, plan, opened, label, model) for label, view in views.items()]
        if rank.is_first:
            _report(model, found, plan, run, json)


def classifiers(model: nn.Module, recipe: str | None) -> dict[str, nn.Module]:
    """The model alone, or with a recipe its plain and its forged view."""
    if recipe is None:
        return {"base": model}
    load_recipe(recipe).apply_(model)
    return {"base": plain(model), "forged": forged(model)}


def _certify(view: nn.Module, images: DataSet, plan: Plan, run: RunDir | None, label: str, model: str) -> CertifyResult:
    return certify_images(
        view,
        images,
        **vars(plan.smoothing),
        radii=plan.radii,
        skip=plan.skip,
        limit=plan.limit,
        batch_size=plan.batch_size,
        run=run,
        label=label,
        model_name=model,
    )


def _cost(view: nn.Module, images: DataSet, plan: Plan) -> CertifyCost:
    smoothing = plan.smoothing
    return certify_cost(
        view,
        images,
        sigma=smoothing.sigma,
        n0=smoothing.n0,
        n=smoothing.n,
        skip=plan.skip,
        limit=plan.limit,
        batch_size=plan.batch_size,
    )


def _show_costs(costs: dict[str, CertifyCost], json: bool) -> None:
    if json:
        print_json(costs)
        return
    for label, cost in costs.items():
        results.print(f"{label}: {cost}")
    results.print(f"in all about {duration(sum(cost.seconds for cost in costs.values()))} in one process like this")


def _report(model: str, found: list[CertifyResult], plan: Plan, run: str | None, json: bool) -> None:
    paths = [] if run is None else [f"{run}/results/{task_name(one.label, plan.smoothing)}.json" for one in found]
    if json:
        print_json({"results": [record(one) for one in found], "wrote": paths})
        return
    base, smoothing = found[0], plan.smoothing
    columns = {"l2 radius": "right", **{one.label: "right" for one in found}}
    if len(found) == 2:
        columns |= {"difference": "right", "gained / lost": "right"}
    rows = [
        [f"{here.radius:g}", *(_cell(one.at(here.radius), one.count) for one in found), *_changes(found, here.radius)]
        for here in base.curve
    ]
    title = f"{model}: % certified, 95 % interval; sigma {smoothing.sigma:g}, n {smoothing.n}, {base.count} images"
    results.print(table(title, columns, rows))
    abstained = ", ".join(f"{one.label} {one.abstained}" for one in found)
    results.print(
        f"Each image's claim holds with probability {1 - smoothing.alpha:g}. Abstained: {abstained} of {base.count}. "
        f"{smoothing.n} draws cannot certify beyond {smoothing.largest_radius:.3f}.",
        soft_wrap=True,
    )
    for path in paths:
        results.print(f"wrote {path}", soft_wrap=True)
    if base.count < 100:
        note(f"{base.count} images say little about the data set; the intervals show how little")


def _cell(here: CurvePoint, count: int) -> str:
    low, high = (100 * bound for bound in here.interval)
    return f"{100 * here.accuracy:.1f} [{low:.1f}, {high:.1f}] {here.certified}/{count}"


def _changes(found: list[CertifyResult], radius: float) -> list[str]:
    """The paired difference in points, with images that only the forged and that only the base model certifies."""
    if len(found) < 2:
        return []
    both = paired(found[0].certified(radius), found[1].certified(radius))
    low, high = (100 * bound for bound in both.interval)
    return [f"{100 * both.difference:+.1f} [{low:+.1f}, {high:+.1f}]", f"{both.gained} / {both.lost}"]
