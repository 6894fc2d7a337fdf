"""One step of training: augment, attack, differentiate, move the weights."""

import math

import torch
from torch import Tensor

from lipforge.batching import device_of
from lipforge.errors import TrainingError
from lipforge.training.augment import augment
from lipforge.training.awp import perturbed_weights
from lipforge.training.objectives import Crafting, craft, objective
from lipforge.training.schedule import eps_share, learning_rate
from lipforge.training.session import Session, update_average_
from lipforge.training.workers import average_
from lipforge.types import Threat


def optimize_(session: Session, ids: Tensor) -> tuple[float, float]:
    """One optimizer step on the images `ids`; the mean loss and the share classified correctly."""
    config, model, position = session.config, session.model, session.position
    x, y = _batch(session, ids)
    done = position.epoch + position.batch / session.batches
    for group in session.optimizer.param_groups:
        group["lr"] = learning_rate(config, (done + 1 / session.batches) / config.epochs)
    share = eps_share(config, done)
    threat = Threat(config.threat.norm, share * config.threat.eps) if share else None
    now = Crafting(threat, position.attack_step, position.epoch)
    x_adv = craft(model, x, y, ids.to(x.device), config=config, now=now)
    loss, logits = _backward(session, x, x_adv, y)
    report = torch.stack([loss.detach(), (logits.argmax(dim=1) == y).float().mean()])
    _agree_and_check(session, report)
    session.optimizer.step()
    if session.average is not None:
        update_average_(session.average, model, config.ema, position.epoch * session.batches + position.batch)
    return float(report[0]), float(report[1])


def _batch(session: Session, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The images and labels at `ids`, augmented for the current epoch, where the model is."""
    config, device = session.config, device_of(session.model)
    x, y = session.data.batch(ids.tolist())
    epoch = session.position.epoch
    x = augment(x.to(device), ids.to(device), seed=config.seed, epoch=epoch, crop=config.crop, flip=config.flip)
    return placed(x, device), y.to(device)


def _agree_and_check(session: Session, report: Tensor) -> None:
    """Give all processes the mean gradient, buffers and loss, refuse what is not finite, and clip."""
    config, model, position = session.config, session.model, session.position
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    average_([*gradients, *(buffer for buffer in model.buffers() if buffer.is_floating_point()), report])
    length = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
    if not math.isfinite(float(report[0] + length)):
        raise TrainingError(
            f"the loss or its gradient became NaN or infinite at batch {position.batch + 1} of epoch "
            f"{position.epoch + 1}; {session.out} keeps the last good checkpoint. A lower lr (now {config.lr}) helps"
        )
    if config.clip:
        shrink = (config.clip / length).clamp_max(1.0)
        for gradient in gradients:
            gradient.mul_(shrink)


def _backward(session: Session, x: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Fill the parameters' gradients, at the worst weights nearby where AWP is on; the loss and the logits."""
    config, model = session.config, session.model
    session.optimizer.zero_grad(set_to_none=True)
    if not config.awp or session.position.epoch < config.awp_after:
        loss, logits = objective(model, x, x_adv, y, config=config)
        loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types here
        return loss, logits
    buffers = [buffer.clone() for buffer in model.buffers()]
    proxy, _ = objective(model, x, x_adv, y, config=config)
    with perturbed_weights(model, proxy, config.awp, buffers):
        loss, logits = objective(model, x, x_adv, y, config=config)
        loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types here
    return loss, logits


def placed(images: Tensor, device: torch.device) -> Tensor:
    """The images on the device, in the layout that convolutions are fastest in."""
    return images.to(device).contiguous(memory_format=torch.channels_last)
