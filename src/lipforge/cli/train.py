"""`lipforge train`: adversarial training that can be killed, and fine-tuning with forged functions at work."""

from pathlib import Path
from typing import Annotated

import typer

from lipforge.cli import options
from lipforge.cli.output import print_json, results
from lipforge.data import FolderOptions
from lipforge.errors import InputError
from lipforge.forge import load_recipe, set_mode_
from lipforge.models import load_model
from lipforge.ranks import is_first
from lipforge.training import TrainConfig, train
from lipforge.types import Threat

DEFAULT = TrainConfig()


def train_command(
    arch: Annotated[str, typer.Option(help="What to train: any name that `lipforge sites` takes.")] = "resnet20",
    data: options.Data = "cifar10:train",
    out: Annotated[str, typer.Option(help="The run's directory; the same command again resumes it.")] = "runs/train",
    method: Annotated[str, typer.Option(help="standard, fgsm-rs, pgd-at or trades.")] = DEFAULT.method,
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    eps: Annotated[str, typer.Option(help="The radius to train against.")] = "8/255",
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = DEFAULT.epochs,
    batch_size: options.BatchSize = DEFAULT.batch_size,
    lr: Annotated[float, typer.Option(help="The largest learning rate.")] = DEFAULT.lr,
    schedule: Annotated[str, typer.Option(help="cyclic or cosine.")] = DEFAULT.schedule,
    warmup: Annotated[float, typer.Option(help="Share of all steps in which the rate climbs.")] = DEFAULT.warmup,
    optimizer: Annotated[str, typer.Option(help="sgd or adamw.")] = DEFAULT.optimizer,
    momentum: Annotated[float, typer.Option(help="Momentum of sgd.")] = DEFAULT.momentum,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = DEFAULT.weight_decay,
    clip: Annotated[float, typer.Option(help="Longest gradient; 0 sets no limit.")] = DEFAULT.clip,
    label_smoothing: Annotated[float, typer.Option(help="Share of the label given to all classes.")] = 0.0,
    ema: Annotated[float, typer.Option(help="Decay of the weight average per step; 0 keeps none.")] = DEFAULT.ema,
    steps: Annotated[int, typer.Option(help="Attack steps in training; 0 takes the method's own.")] = 0,
    step: Annotated[float, typer.Option(help="Their size as a multiple of eps; 0 takes the method's own.")] = 0.0,
    clean_epochs: Annotated[float, typer.Option(help="Epochs with eps 0 at the start.")] = 0.0,
    eps_warmup: Annotated[float, typer.Option(help="Epochs in which eps then climbs.")] = 0.0,
    beta: Annotated[float, typer.Option(help="Weight of the robust term of TRADES.")] = DEFAULT.beta,
    awp: Annotated[float, typer.Option(help="Adversarial weight perturbation; its paper takes 0.005.")] = 0.0,
    awp_after: Annotated[int, typer.Option(help="Epochs before it starts.")] = 0,
    crop: Annotated[int, typer.Option(help="Padding of the random crop; 0 does not crop.")] = DEFAULT.crop,
    flip: Annotated[bool, typer.Option(help="Flip half of the images.")] = True,
    holdout: Annotated[int, typer.Option(help="Training images kept for measuring.")] = DEFAULT.holdout,
    limit: Annotated[int | None, typer.Option(help="Train on at most this many images.")] = None,
    seed: Annotated[int, typer.Option(help="Order, augmentation, attacks, and the first weights.")] = 0,
    weights: Annotated[str | None, typer.Option(help="Start from this checkpoint instead of random weights.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from the model's own weights.")] = False,
    recipe: Annotated[str | None, typer.Option(help="Train with the forged functions of this recipe at work.")] = None,
    backward: Annotated[str, typer.Option(help="With --recipe: forged or straight_through.")] = "forged",
    checkpoint_seconds: Annotated[float, typer.Option(help="Longest time that a kill can cost.")] = 180.0,
    root: options.Root = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train a classifier, adversarially or not; a killed run goes on where it was, to the same weights.

    [bold]Examples[/]

    lipforge train --arch preactresnet18:width=16 --method fgsm-rs --epochs 10 --out runs/resnet

    lipforge train --arch cifar10-resnet --pretrained --recipe recipe.json --epochs 2 --lr 0.01 --out runs/tuned

    torchrun --nproc-per-node 2 -m -- lipforge train --method trades --out runs/trades
    """
    config = TrainConfig(
        method=method,  # type: ignore[arg-type]  # TrainConfig checks the word and names the choices
        threat=Threat(norm, eps),  # type: ignore[arg-type]  # and so does Threat
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        schedule=schedule,  # type: ignore[arg-type]
        warmup=warmup,
        optimizer=optimizer,  # type: ignore[arg-type]
        momentum=momentum,
        weight_decay=weight_decay,
        clip=clip,
        label_smoothing=label_smoothing,
        ema=ema,
        steps=steps,
        step=step,
        clean_epochs=clean_epochs,
        eps_warmup=eps_warmup,
        beta=beta,
        awp=awp,
        awp_after=awp_after,
        crop=crop,
        flip=flip,
        holdout=holdout,
        limit=limit,
        seed=seed,
    )
    if backward not in ("forged", "straight_through"):
        raise InputError(f"backward must be forged or straight_through, got {backward!r}")
    images = options.open_data(data, None, None, root, FolderOptions())
    starts_trained = pretrained or weights is not None
    model = load_model(arch, weights, pretrained=starts_trained, seed=seed).to(options.pick_device(device))
    if recipe is not None:
        load_recipe(recipe).apply_(model)
        set_mode_(model, "straight_through" if backward == "straight_through" else "forged")
    result = train(model, images, config, out=out, checkpoint_seconds=checkpoint_seconds)
    if not is_first():
        return
    if json:
        print_json(result)
        return
    clean, robust = 100 * result.clean_accuracy, 100 * result.pgd_accuracy
    results.print(f"{arch}: {result.epochs} epochs in {result.seconds / 60:.1f} min, {result.rollbacks} roll-backs")
    results.print(f"on {holdout} held-out training images: clean {clean:.1f} %, PGD {robust:.1f} %")
    results.print(f"wrote {Path(result.weights)}", soft_wrap=True)
