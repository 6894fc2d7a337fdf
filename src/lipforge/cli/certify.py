"""`lipforge certify`: certified accuracy by randomized smoothing, base and forged on the same noise."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, results, say, say_wrote, show_table
from lipforge.cli.processes import refuse_processes
from lipforge.text import duration, points_text, share_text
from lipforge.types import parse_number

if TYPE_CHECKING:
    from lipforge.certification import Smoothing
    from lipforge.results import CertifyCost


@options.command(limit=(None, Option(help="Certify at most this many images.")))
def certify(
    models: options.ModelOptions,
    data: options.DataOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    sigma: Annotated[str, Option(help="Deviation of the noise.")] = "0.25",
    n0: Annotated[int, Option("--n0", help="Draws that choose the class.")] = 100,
    n: Annotated[int, Option("--n", help="Fresh draws that bound its probability.")] = 100_000,
    alpha: Annotated[float, Option(help="The probability that an image's claim may be wrong.")] = 0.001,
    skip: Annotated[int, Option(help="Certify every so many images; Cohen et al. take every 20th.")] = 1,
    only_correct: Annotated[
        bool, Option("--only-correct", help="Spend nothing on images whose chosen class is wrong; same curve.")
    ] = False,
    radii: Annotated[str | None, Option(help="Radii of the table, such as 0,0.25,0.5.")] = None,
    estimate: Annotated[bool, Option("--estimate", help="Only say what it would cost, from a probe.")] = False,
    batch_size: options.BatchSize = 256,
    json: options.Json = False,
) -> None:
    """Certify that no perturbation of an l2 norm below a radius changes the answer of the smoothed classifier.

    A note says beforehand if the model was evidently not trained for sigma.

    [bold]Examples[/]

    lipforge certify cifar10-resnet --data cifar10 --skip 20 --estimate

    lipforge certify cifar10-resnet --recipe recipe.json --sigma 0.25 --n 1000 --limit 50 --run runs/smooth

    torchrun --nproc-per-node 8 -m -- lipforge certify my_model.py:build --skip 20 --run runs/smooth
    """
    from lipforge.certification import Smoothing, certify_cost, noise_pilot

    if estimate:
        refuse_processes(keep.processes, "--estimate")
    smoothing = Smoothing(parse_number(sigma, name="sigma"), n0, n, alpha, keep.seed, only_correct)
    chosen = None if radii is None else [parse_number(part, name="radii") for part in radii.split(",")]
    cost: dict[str, Any] = {"skip": skip, "limit": data.limit, "batch_size": batch_size}
    # --skip and --limit choose among all images; of random ones as many are drawn as that takes.
    drawn = None if data.data_seed is None or data.limit is None else data.limit * skip
    among = replace(data, limit=drawn)
    with options.session(models, among) as (rank, images, model, _):
        views = recipe.views(model)
        for label, view in views.items() if rank.is_first else ():
            pilot = noise_pilot(view, images, sigma=smoothing.sigma, skip=skip, limit=data.limit, seed=keep.seed)
            if pilot.untrained:
                note(f"{label}: {pilot}")
        if estimate:
            if rank.is_first:
                cost |= {"sigma": smoothing.sigma, "n0": n0, "n": n}
                costs = [replace(certify_cost(view, images, **cost), label=label) for label, view in views.items()]
                _show_costs(costs, json)
            return
        settings = {**cost, **vars(smoothing), "radii": chosen, "run": keep.open(), "model_name": models.model}
        found = [lf.certify(view, images, label=label, **settings) for label, view in views.items()]
        if rank.is_first:
            _report(models.model, found, smoothing, keep, json)


def _show_costs(costs: "list[CertifyCost]", json: bool) -> None:
    total = sum(cost.seconds for cost in costs)
    if printed(json, costs, seconds=total):
        return
    for cost in costs:
        results.print(f"{cost.label}: {cost}")
    results.print(f"in all about {duration(total)} in one process like this")


def _report(
    model: str, found: "list[lf.CertifyResult]", smoothing: "Smoothing", keep: options.RunOptions, json: bool
) -> None:
    from lipforge.certification import task_name

    paths = keep.paths(*(task_name(one.label, smoothing) for one in found))
    if printed(json, found, wrote=paths):
        return
    base = found[0]
    columns = [">l2 radius", *(f">{one.label}" for one in found)]
    columns += [">difference", ">gained / lost"] if len(found) == 2 else []
    rows = [[f"{here.radius:g}", *_cells(found, here.radius)] for here in base.curve]
    about = f"sigma {smoothing.sigma:g}, {smoothing.n} draws, n = {base.count}, seed {smoothing.seed}"
    show_table(f"{model}: % certified, 95 % interval; {about}", columns, rows)
    abstained = ", ".join(f"{one.label} {one.abstained}" for one in found)
    say(
        f"Each image's claim holds with probability {1 - smoothing.alpha:g}. Abstained: {abstained} of {base.count}. "
        f"{smoothing.n} draws cannot certify beyond {smoothing.largest_radius:.3f}."
    )
    say_wrote(paths)
    if base.count < 100:
        note(f"{base.count} images say little about the data set; the intervals show how little")


def _cells(found: "list[lf.CertifyResult]", radius: float) -> list[str]:
    """Each certified accuracy, then the paired difference with the images gained and lost, in percentage points."""
    from lipforge.statistics import paired

    here = [one.at(radius) for one in found]
    cells = [f"{share_text(at.accuracy, at.interval)} {at.certified}/{found[0].count}" for at in here]
    if len(found) != 2:
        return cells
    both = paired(found[0].certified(radius), found[1].certified(radius))
    return [*cells, points_text(both.difference, both.interval), f"{both.gained} / {both.lost}"]
