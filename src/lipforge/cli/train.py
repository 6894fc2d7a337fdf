"""`lipforge train`: adversarial training that can be killed, and fine-tuning with forged functions at work."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import printed, results, say_wrote
from lipforge.errors import InputError
from lipforge.ranks import is_first
from lipforge.records import to_builtins


@dataclass(frozen=True)
class TrainOptions:
    """The fields of `TrainConfig` but the threat, with its defaults."""

    panel: ClassVar[str] = "Training"
    method: Annotated[str, Option(help="standard, fgsm-rs, pgd-at or trades.")] = "fgsm-rs"
    epochs: Annotated[int, Option(help="Passes over the data.")] = 20
    batch_size: Annotated[int, Option(help="Images per step.")] = 128
    lr: Annotated[float, Option(help="The largest learning rate.")] = 0.2
    schedule: Annotated[str, Option(help="cyclic or cosine.")] = "cyclic"
    warmup: Annotated[float, Option(help="Share of all steps in which the rate climbs.")] = 0.3
    optimizer: Annotated[str, Option(help="sgd or adamw.")] = "sgd"
    momentum: Annotated[float, Option(help="Momentum of sgd.")] = 0.9
    weight_decay: Annotated[float, Option(help="Weight decay.")] = 5e-4
    clip: Annotated[float, Option(help="Longest gradient; 0 sets no limit.")] = 0.0
    label_smoothing: Annotated[float, Option(help="Share of the label given to all classes.")] = 0.0
    ema: Annotated[float, Option(help="Decay of the weight average per step; 0 keeps none.")] = 0.0
    steps: Annotated[int, Option(help="Attack steps in training; 0 takes the method's own.")] = 0
    step_size: Annotated[
        float, Option(help="Size of an attack step as a multiple of eps; 0 takes the method's own.")
    ] = 0.0
    clean_epochs: Annotated[float, Option(help="Epochs with eps 0 at the start.")] = 0.0
    eps_warmup: Annotated[float, Option(help="Epochs in which eps then climbs.")] = 0.0
    beta: Annotated[float, Option(help="Weight of the robust term of TRADES.")] = 6.0
    awp: Annotated[float, Option(help="Adversarial weight perturbation; its paper takes 0.005.")] = 0.0
    awp_after: Annotated[int, Option(help="Epochs before it starts.")] = 0
    crop: Annotated[int, Option(help="Padding of the random crop; 0 does not crop.")] = 4
    flip: Annotated[bool, Option(help="Flip half of the images.")] = True
    holdout: Annotated[int, Option(help="Training images kept for measuring.")] = 500
    limit: Annotated[int | None, Option(help="Train on at most this many images.")] = None
    seed: Annotated[int, Option(help="Seed of order, augmentation, attacks, and the first weights.")] = 0


@options.command(norm=("linf", Option(help="linf or l2.")), eps=("8/255", Option(help="The radius to train against.")))
def train(
    training: TrainOptions,
    threats: options.ThreatOptions,
    arch: Annotated[str, Option(help="What to train: any name that `lipforge sites` takes.")] = "resnet20",
    data: options.Data = "cifar10:train",
    out: Annotated[str, Option(help="The run's directory; the same command again resumes it.")] = "runs/train",
    weights: Annotated[str | None, Option(help="Start from this checkpoint instead of random weights.")] = None,
    pretrained: Annotated[bool, Option("--pretrained", help="Start from the model's own weights.")] = False,
    recipe: Annotated[str | None, Option(help="Train with the forged functions of this recipe at work.")] = None,
    backward: Annotated[str, Option(help="With --recipe: forged or straight_through.")] = "forged",
    checkpoint_seconds: Annotated[float, Option(help="Longest time that a kill can cost.")] = 180.0,
    root: options.Root = None,
    device: options.Device = "auto",
    log: options.Log = None,
    json: options.Json = False,
) -> None:
    """Train a classifier, adversarially or not; a killed run resumes to the same weights.

    [bold]Examples[/]

    lipforge train --arch preactresnet18:width=16 --method fgsm-rs --epochs 10 --out runs/resnet

    lipforge train --arch cifar10-resnet --pretrained --recipe recipe.json --epochs 2 --lr 0.01 --out runs/tuned

    torchrun --nproc-per-node 2 -m -- lipforge train --method trades --out runs/trades
    """
    config = lf.TrainConfig(threat=threats.threat, **vars(training))  # it checks the words, and names the choices
    if backward not in ("forged", "straight_through"):
        raise InputError(f"backward must be forged or straight_through, got {backward!r}")
    options.open_run(out)
    images = lf.load_data(data, root=root)
    starts_trained = pretrained or weights is not None
    model = lf.load_model(arch, weights, pretrained=starts_trained, seed=config.seed).to(options.pick_device(device))
    if recipe is not None:
        lf.load_recipe(recipe).apply_(model)
        options.require_forged(model, recipe)
        lf.set_mode_(model, "straight_through" if backward == "straight_through" else "forged")
    with lf.log_to(log):
        result = lf.train(model, images, config, out=out, checkpoint_seconds=checkpoint_seconds)
    if not is_first():
        return
    if printed(json, {"kind": "train", **to_builtins(result)}):
        return
    clean, robust = 100 * result.clean_accuracy, 100 * result.pgd_accuracy
    results.print(f"{arch}: {result.epochs} epochs in {result.seconds / 60:.1f} min, {result.rollbacks} roll-backs")
    results.print(f"on {config.holdout} held-out training images: clean {clean:.1f} %, PGD {robust:.1f} %")
    say_wrote([result.weights])
