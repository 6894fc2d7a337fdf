"""`lipforge evaluate`: accuracy under attack, resumable and on as many devices as there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.fold import folded_views
from lipforge.cli.output import note, printed, say, say_wrote, show_table
from lipforge.cli.processes import refuse_processes
from lipforge.errors import InputError
from lipforge.ranks import by_torchrun
from lipforge.text import duration, share_text

if TYPE_CHECKING:
    from lipforge.results import Estimate


Dtype = Annotated[
    str,
    Option(help="What the model computes in: float32; bfloat16 or float16, as on a device it is deployed to."),
]


@options.command(data="cifar10:test")
def evaluate(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    attack: Annotated[
        list[str] | None,
        Option(
            help="An attack such as pgd:steps=50 or 'apgd + square', repeatable. fast, the default, is lipforge's own "
            "cascade; autoattack is AutoAttack standard, at its published budgets."
        ),
    ] = None,
    view: Annotated[
        list[str] | None, Option(help="With --recipe: only plain, forged or straight_through; repeatable.")
    ] = None,
    fold: Annotated[
        list[str] | None, Option(help='A file of `lipforge fold`: measure the "+ Weight" model too; repeatable.')
    ] = None,
    save_images: Annotated[
        bool, Option("--save-images", help="With --run: keep the adversarial images, as float32 safetensors.")
    ] = False,
    model_info: Annotated[
        str | None,
        Option(
            help="Also write RobustBench's model_info JSON of each model below this folder: DATASET/THREAT/NAME.json."
        ),
    ] = None,
    dtype: Dtype = "float32",
    interval: Annotated[str, Option(help="clopper-pearson or wilson.")] = "clopper-pearson",
    estimate: Annotated[bool, Option("--estimate", help="Only say what it would cost, from a probe.")] = False,
    devices: Annotated[int, Option(help="With --estimate: share the cost among this many devices.")] = 1,
    probe: Annotated[int, Option(help="With --estimate: attack this many images.")] = 8,
    batch_size: Annotated[str, Option(help="Images per forward pass; auto measures which number is fastest.")] = "100",
    shard_size: Annotated[
        int | None, Option(help="Images that are kept and handed out together; the batch size by default.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Attack a classifier and say how many images are robust, with intervals, costs and notes.

    Exit codes: 0 done; 4 a robust accuracy is unreliable, as a note says: gradients look masked or outputs are random.

    [bold]Examples[/]

    lipforge evaluate cifar10-resnet --limit 200 --run runs/x

    lipforge evaluate cifar10-resnet --recipe recipe.json --ratio 2^-7 --attack pgd:steps=50 --run runs/x

    lipforge evaluate wrn-28-10 --no-weights --attack autoattack --estimate --devices 8

    torchrun --nproc-per-node 8 -m -- lipforge evaluate my_model.py:build --run runs/x
    """
    from lipforge.evaluation import estimate as predict
    from lipforge.evaluation import parse_batch_size
    from lipforge.models import check_board
    from lipforge.results.evaluation import UNRELIABLE_EXIT

    attacks, threat = [lf.parse_attack(text) for text in attack or ["fast"]], threats.threat
    if estimate:
        refuse_processes(keep.processes, "--estimate")
    if save_images and keep.run is None:
        raise InputError("--save-images needs --run, a directory to keep them in")
    with options.session(models, data) as (rank, images, model, _):
        if model_info is not None:
            check_board(images.name, threat.norm)
        views = {**recipe.views(model, view), **folded_views(model, fold or ())}
        example = images.batch([0])[0]
        views = {in_dtype_label(label, dtype): lf.in_dtype(one, example, dtype) for label, one in views.items()}
        pairs = [(label, one) for one in attacks for label in views]
        shared: dict[str, Any] = {"model_name": models.model, "batch_size": parse_batch_size(batch_size)}
        if estimate:
            shared |= {"seed": keep.seed, "probe": probe, "devices": devices}
            if rank.is_first:
                costs = [predict(views[label], images, one, threat, label=label, **shared) for label, one in pairs]
                _show_estimates(costs, json)
            return
        shared |= {"shard_size": shard_size, "save_images": save_images, "interval": interval, **keep.settings()}
        found = [lf.evaluate(views[label], images, one, threat, label=label, **shared) for label, one in pairs]
        if rank.is_first:
            infos = [] if model_info is None else _write_infos(found, model_info, recipe)
            _report(found, in_dtype_label("base", dtype), keep, infos, json)
    # torchrun would take the exit code for a crash, and start the evaluation again.
    if any(one.unreliable for one in found) and not by_torchrun():
        raise Exit(UNRELIABLE_EXIT)


def in_dtype_label(label: str, dtype: str) -> str:
    """The label of a model that computes in `dtype`: a run can hold it beside the one in float32."""
    return label if dtype == "float32" else f"{label} {dtype}"


def _write_infos(found: "list[lf.RobustResult]", folder: str, recipe: options.RecipeOptions) -> list[Path]:
    """One file of RobustBench's form per model, with a note where it has no `autoattack_acc`."""
    from lipforge.models import why_unofficial, write_model_info

    tta = None if recipe.recipe is None else lf.load_recipe(recipe.recipe).tta
    paths = []
    for label in dict.fromkeys(one.label for one in found):
        own = [one for one in found if one.label == label]
        changed = own[0].change is not None and own[0].change.tta is not None
        paths.append(write_model_info(own, folder, len(tta.transforms) if tta and changed else None))
        if all(reasons := [why_unofficial(one) for one in own]):
            note(f"{paths[-1]} has no autoattack_acc: {reasons[0]}")
    return paths


def _report(found: "list[lf.RobustResult]", base: str, keep: options.RunOptions, infos: list[Path], json: bool) -> None:
    if printed(json, found):
        return
    first = found[0]
    rows = [
        [
            one.label,
            one.attack,
            share_text(one.clean_accuracy, one.clean_interval),
            one.robust_text,
            f"{one.forwards + one.backwards:,}",
            duration(one.seconds),
        ]
        for one in found
    ]
    title = f"{first.model}, {first.data}, {first.threat}: % correct [95 %], n = {first.count}, seed {first.seed}"
    show_table(title, ["model", "attack", ">clean", ">robust", ">forwards +\nbackwards", ">time"], rows)
    for one in found:
        if one.early_stopped:
            say(f"{one.label}, {one.attack}: robust images that were early-stopped: {one.early_stopped}")
        for text in one.notes:
            note(f"{one.label}, {one.attack}: {text}")
    bases = {one.attack: one for one in found if one.label == base}
    several = len({one.label for one in found} - {base}) > 1
    for one in found:
        if one.label != base and not one.label.startswith("straight_through") and one.attack in bases:
            about = f"{one.attack}, {one.label}" if several else one.attack
            say(f"{about}: {lf.compare(bases[one.attack], one)}")
    say_wrote([*([] if keep.run is None else [Path(keep.run) / "results"]), *infos])


def _show_estimates(found: "list[Estimate]", json: bool) -> None:
    if printed(json, found):
        return
    for one in found:
        low, high = (duration(bound) for bound in one.interval)
        say(f"{one.model} ({one.label}), {one.attack}, {one.threat}, n = {one.count}")
        say(
            f"  {one.forwards:,.0f} forward and {one.backwards:,.0f} backward passes per image (probe of {one.probe}); "
            f"{one.forward_rate:,.1f} images/s forward, {one.gradient_rate:,.1f} with gradient"
        )
        shared = f", {duration(one.wall_seconds)} on {one.devices} devices" if one.devices > 1 else ""
        say(f"  about {duration(one.device_seconds)} of one device [{low} .. {high}]{shared}")
        say("  assuming that " + "; ".join(one.assumptions))
