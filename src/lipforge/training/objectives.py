"""What each method minimises, and the images it makes for that.

Crops and flips depend on (seed, image, epoch) only, so that a resumed run sees the same images. Adversarial images are
made in eval mode, as TRADES does: the attack sees the function that is tested, and no image changes another's gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks import norms
from lipforge.outputs import logits_in
from lipforge.training.config import TrainConfig
from lipforge.types import Threat


def augment(images: Tensor, sample_ids: Tensor, *, seed: int, epoch: int, crop: int, flip: bool) -> Tensor:
    """Each image shifted by up to `crop` pixels in each direction, with zeros moving in, and mirrored half the time."""
    if crop:
        offset = rng.integers(seed, sample_ids, stream="crop", shape=(2,), below=2 * crop + 1, counter=epoch)
        row, column = offset.to(images.device).unbind(dim=1)
        windows = F.pad(images, (crop, crop, crop, crop)).unfold(2, images.shape[2], 1).unfold(3, images.shape[3], 1)
        images = windows[torch.arange(len(images), device=images.device), :, row, column]
    if flip:
        mirrored = rng.signs(seed, sample_ids, stream="flip", shape=(), counter=epoch).to(images.device) > 0
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def craft(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ids: Tensor,
    *,
    config: TrainConfig,
    threat: Threat | None,
    step_size: float,
    epoch: int,
) -> Tensor:
    """`x` attacked under the current `threat`, if there is one, in steps of `step_size` (a multiple of eps)."""
    if config.attack_steps == 0 or threat is None:
        return x
    norm = norms.of(threat)
    with eval_mode(model):
        reference = logits_in(model(x)).detach() if config.method == "trades" else None
        if reference is None:
            x_adv = norm.random_start(
                x, threat.eps, seed=config.seed, sample_ids=ids, stream="train-start", counter=epoch
            )
        else:
            noise = rng.normal(config.seed, ids, stream="trades-start", shape=x.shape[1:], counter=epoch)
            x_adv = norm.project(x + 0.001 * noise.to(x), x, threat.eps)
        for _ in range(config.attack_steps):
            x_adv = x_adv.detach().requires_grad_()
            logits = logits_in(model(x_adv))
            loss = F.cross_entropy(logits, y, reduction="sum") if reference is None else divergence(reference, logits)
            (gradient,) = torch.autograd.grad(loss, x_adv)
            x_adv = norm.step(x_adv.detach(), gradient, step_size * threat.eps, x, threat.eps)
    return x_adv


def objective(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, *, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """The mean loss to minimise, and the logits of the images in `x_adv`.

    TRADES: CE(f(x), y) + beta * KL(f(x) || f(x_adv)) (Zhang et al. 2019). All others: CE(f(x_adv), y).
    """
    if config.method != "trades":
        logits = logits_in(model(x_adv))
        return F.cross_entropy(logits, y, label_smoothing=config.label_smoothing), logits
    clean, logits = logits_in(model(x)), logits_in(model(x_adv))
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
