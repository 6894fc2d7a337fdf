"""What each method minimises, and the images it makes for that.

Random crops and flips depend on (seed, image, epoch) only, so that a resumed run sees the same images. Adversarial
images are made with the model in eval mode, as TRADES does for all of its images: batch norms keep their running
statistics, the attack sees the function that will be tested, and no image changes another's gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks.norms import project, random_start, steepest_step
from lipforge.training.config import TrainConfig
from lipforge.types import Threat


def augment(images: Tensor, sample_ids: Tensor, *, seed: int, epoch: int, crop: int, flip: bool) -> Tensor:
    """Each image shifted by up to `crop` pixels in each direction, with zeros moving in, and mirrored half the time."""
    if crop:
        offset = rng.integers(seed, sample_ids, stream="crop", shape=(2,), below=2 * crop + 1, counter=epoch)
        images = _shift(images, offset.to(images.device), crop)
    if flip:
        mirrored = rng.signs(seed, sample_ids, stream="flip", shape=(), counter=epoch).to(images.device) > 0
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


@dataclass(frozen=True)
class Crafting:
    """The attack inside training at one moment; `threat` is None while eps is still 0."""

    threat: Threat | None
    step_size: float
    epoch: int


def craft(model: nn.Module, x: Tensor, y: Tensor, ids: Tensor, *, config: TrainConfig, now: Crafting) -> Tensor:
    """The images the loss is taken on: `x` itself, or `x` after the method's attack."""
    if config.attack_steps == 0 or now.threat is None:
        return x
    with eval_mode(model):
        if config.method == "trades":
            noise = rng.normal(config.seed, ids, stream="trades-start", shape=x.shape[1:], counter=now.epoch)
            x_adv = project(x + 0.001 * noise.to(x), x, now.threat)
            reference = model(x).detach()
        else:
            x_adv = random_start(
                x, now.threat, seed=config.seed, sample_ids=ids, stream="train-start", counter=now.epoch
            )
            reference = None
        for _ in range(config.attack_steps):
            x_adv = x_adv.detach().requires_grad_()
            logits = model(x_adv)
            loss = F.cross_entropy(logits, y, reduction="sum") if reference is None else divergence(reference, logits)
            (gradient,) = torch.autograd.grad(loss, x_adv)
            move = steepest_step(gradient, now.threat, now.step_size * now.threat.eps)
            x_adv = project(x_adv.detach() + move, x, now.threat)
    return x_adv


def objective(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, *, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """The mean loss to minimise, and the logits of the images in `x_adv`.

    TRADES: CE(f(x), y) + beta * KL(f(x) || f(x_adv)) (Zhang et al. 2019). All others: CE(f(x_adv), y).
    """
    if config.method != "trades":
        logits = model(x_adv)
        return F.cross_entropy(logits, y, label_smoothing=config.label_smoothing), logits
    clean, logits = model(x), model(x_adv)
    natural = F.cross_entropy(clean, y, label_smoothing=config.label_smoothing)
    return natural + config.beta * divergence(clean, logits) / len(x), logits


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Sum over the batch of KL(softmax(reference) || softmax(logits))."""
    return F.kl_div(logits.log_softmax(dim=1), reference.log_softmax(dim=1), reduction="sum", log_target=True)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model in eval mode inside the block; every part gets its own mode back after it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def placed(images: Tensor, device: torch.device) -> Tensor:
    """The images on the device, in the layout that convolutions are fastest in."""
    return images.to(device).contiguous(memory_format=torch.channels_last)


def _shift(images: Tensor, offset: Tensor, crop: int) -> Tensor:
    """The window of the original size at `offset` (N, 2) in each image with a border of `crop` zeros."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (crop, crop, crop, crop))
    rows = offset[:, :1] + torch.arange(height, device=images.device)
    columns = offset[:, 1:] + torch.arange(width, device=images.device)
    index = torch.arange(count, device=images.device)
    return padded[
        index[:, None, None, None],
        torch.arange(channels, device=images.device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
