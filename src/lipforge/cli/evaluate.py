"""`lipforge evaluate`: accuracy under attack, resumable and on as many devices as there are."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from torch import nn

from lipforge.cli import attacking, options
from lipforge.cli.estimates import show_estimates
from lipforge.cli.output import note, print_json, results, table
from lipforge.errors import InputError
from lipforge.evaluation import RobustResult, evaluate
from lipforge.evaluation.compare import compare
from lipforge.evaluation.estimate import PROBE
from lipforge.evaluation.estimate import estimate as predict
from lipforge.evaluation.intervals import Method
from lipforge.evaluation.results import share_text
from lipforge.evaluation.robust import BATCH_SIZE
from lipforge.forge import forged, load_recipe, plain, set_ratio_, straight_through
from lipforge.models import load_model
from lipforge.progress import duration
from lipforge.ranks import process_group
from lipforge.records import read_json
from lipforge.runs import record
from lipforge.types import parse_number

VIEWS = {"plain": plain, "forged": forged, "straight_through": straight_through}
LABELS = {"plain": "base", "forged": "forged", "straight_through": "straight_through"}


@dataclass(frozen=True)
class Subject:
    """A classifier to evaluate, what to call it, and what identifies it beside its weights."""

    label: str
    classifier: nn.Module
    identity: dict[str, Any]


def evaluate_command(
    model: options.Model,
    data: options.Data = "cifar10:test",
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="An attack such as pgd:steps=50 or 'apgd + square', repeatable. autoattack is the fast version; "
            "autoattack:version=standard runs the budgets of the reference.",
        ),
    ] = None,
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    eps: Annotated[str, typer.Option(help="Radius of the attacks.")] = "8/255",
    recipe: Annotated[str | None, typer.Option(help="A recipe of `lipforge forge`: evaluate base and forged.")] = None,
    ratio: Annotated[str | None, typer.Option(help="With --recipe: another ratio than the recipe's.")] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(help="With --recipe: only plain, forged or straight_through; repeatable."),
    ] = None,
    limit: options.Limit = None,
    seed: options.Seed = None,
    attack_seed: Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")] = 0,
    run: Annotated[str | None, typer.Option(help="Keep the work here; the same command again resumes it.")] = None,
    save_images: Annotated[
        bool, typer.Option("--save-images", help="With --run: keep the adversarial images, as float32 safetensors.")
    ] = False,
    interval: Annotated[str, typer.Option(help="clopper-pearson or wilson.")] = "clopper-pearson",
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say what it would cost, from a probe.")] = False,
    devices: Annotated[int, typer.Option(help="With --estimate: share the cost among this many devices.")] = 1,
    probe: Annotated[int, typer.Option(help="With --estimate: attack this many images.")] = PROBE,
    weights: options.Weights = None,
    weights_dir: options.WeightsDir = None,
    no_weights: options.NoWeights = False,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = BATCH_SIZE,
    shard_size: Annotated[
        int | None, typer.Option(help="Images that are kept and handed out together; the batch size by default.")
    ] = None,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    on_error: options.OnError = "raise",
    workers: options.Workers = None,
    files: options.Files = None,
    json: options.Json = False,
) -> None:
    """Attack a classifier and say how many images stand, with intervals and reasons to doubt it.

    [bold]Examples[/]

    lipforge evaluate cifar10-resnet --attack autoattack --limit 200 --run runs/x

    lipforge evaluate cifar10-resnet --recipe recipe.json --ratio 2^-7 --attack pgd:steps=50 --run runs/x

    lipforge evaluate wrn-28-10 --no-weights --attack autoattack:version=standard --estimate --devices 8

    torchrun --nproc-per-node 8 -m -- lipforge evaluate my_model.py:build --run runs/x
    """
    attacks, threat = [attacking.parse(text) for text in attack or ["autoattack"]], attacking.threat(norm, eps)
    if save_images and run is None:
        raise InputError("--save-images needs --run, a directory to keep them in")
    where = options.pick_device(device)
    with process_group(where) as rank:
        folder = options.folder_options(resize, crop, interpolation, on_error, workers, files)
        images = options.open_data(data, limit, seed, root, folder)
        loaded = load_model(model, weights, weights_dir=weights_dir, pretrained=not no_weights, classes=classes)
        subjects = _subjects(loaded.to(where), recipe, ratio, view)
        pairs = [(subject, one) for one in attacks for subject in subjects]
        if estimate:
            if rank.is_first:
                show_estimates(
                    [
                        predict(
                            subject.classifier,
                            images,
                            one,
                            threat,
                            label=subject.label,
                            model_name=model,
                            seed=attack_seed,
                            batch_size=batch_size,
                            probe=probe,
                            devices=devices,
                        )
                        for subject, one in pairs
                    ],
                    json,
                )
            return
        kept = options.open_run(run)
        found = [
            evaluate(
                subject.classifier,
                images,
                one,
                threat,
                run=kept,
                label=subject.label,
                model_name=model,
                seed=attack_seed,
                batch_size=batch_size,
                shard_size=shard_size,
                save_images=save_images,
                interval=cast(Method, interval),
                identity=subject.identity,
            )
            for subject, one in pairs
        ]
        if rank.is_first:
            _report(found, run, json)


def _subjects(model: nn.Module, recipe: str | None, ratio: str | None, views: list[str] | None) -> list[Subject]:
    if recipe is None:
        if views or ratio is not None:
            raise InputError("--view and --ratio are about a forged model and need --recipe")
        return [Subject("base", model, {})]
    wrong = [name for name in views or () if name not in VIEWS]
    if wrong:
        raise InputError(f"--view must be one of {', '.join(VIEWS)}, got {wrong[0]!r}")
    load_recipe(recipe).apply_(model)
    if ratio is not None:
        set_ratio_(model, parse_number(ratio, name="ratio"))
    digest = hashlib.sha256(repr(read_json(recipe)).encode()).hexdigest()
    return [
        Subject(
            LABELS[name],
            VIEWS[name](model),
            {} if name == "plain" else {"recipe": digest, "view": name, "ratio": ratio},
        )
        for name in dict.fromkeys(views or ["plain", "forged"])
    ]


def _report(found: list[RobustResult], run: str | None, json: bool) -> None:
    if json:
        print_json(record(found[0]) if len(found) == 1 else [record(one) for one in found])
        return
    first = found[0]
    columns = {
        "model": "left",
        "attack": "left",
        "clean": "right",
        "robust": "right",
        "passes": "right",
        "time": "right",
    }
    rows = [
        [
            one.label,
            one.attack,
            share_text(one.clean_accuracy, one.clean_interval),
            share_text(one.robust_accuracy, one.interval),
            f"{one.forwards + one.backwards:,}",
            duration(one.seconds),
        ]
        for one in found
    ]
    title = f"{first.model}, {first.data}, {first.threat}: % correct [95 %], n={first.count}, attack seed={first.seed}"
    results.print(table(title, columns, rows))
    for one in found:
        if one.given_up:
            results.print(f"{one.label}, {one.attack}: {one.given_up} of the robust images were given up early")
        for text in one.notes:
            note(f"{one.label}, {one.attack}: {text}")
    _compare(found)
    if run is not None:
        results.print(f"wrote {Path(run) / 'results'}", soft_wrap=True)


def _compare(found: list[RobustResult]) -> None:
    """Base against forged, for each attack that both faced."""
    by_label = {(one.attack, one.label): one for one in found}
    for (attack, label), one in by_label.items():
        base = by_label.get((attack, "base"))
        if label == "forged" and base is not None:
            results.print(f"{attack}: {compare(base, one)}", soft_wrap=True)
