"""One step of training: augment, attack, differentiate, move the weights; the processes share each batch."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipforge.batching import device_of
from lipforge.errors import TrainingError
from lipforge.ranks import joined
from lipforge.training.config import eps_share, learning_rate
from lipforge.training.objectives import augment, craft, objective, placed
from lipforge.training.session import Session, update_average_
from lipforge.types import Threat


def optimize_(session: Session, ids: Tensor) -> tuple[float, float]:
    """One optimizer step on the images `ids`; the mean loss and the share classified correctly."""
    config, model, position = session.config, session.model, session.position
    device, epoch = device_of(model), position.epoch
    x, y = session.data.batch(ids.tolist())
    ids, y = ids.to(device), y.to(device)
    x = placed(augment(x.to(device), ids, seed=config.seed, epoch=epoch, crop=config.crop, flip=config.flip), device)
    done = epoch + position.batch / session.batches
    for group in session.optimizer.param_groups:
        group["lr"] = learning_rate(config, (done + 1 / session.batches) / config.epochs)
    share = eps_share(config, done)
    threat = Threat(config.threat.norm, share * config.threat.eps) if share else None
    x_adv = craft(model, x, y, ids, config=config, threat=threat, step_size=position.attack_step_size, epoch=epoch)
    loss, logits = _backward(session, x, x_adv, y)
    report = torch.stack([loss.detach(), (logits.argmax(dim=1) == y).float().mean()])
    _agree_and_check(session, report)
    session.optimizer.step()
    if session.average is not None:
        update_average_(session.average, model, config.ema, session.steps)
    return float(report[0]), float(report[1])


def _agree_and_check(session: Session, report: Tensor) -> None:
    """Give all processes the mean gradient, buffers and loss, refuse what is not finite, and clip."""
    config, model, position = session.config, session.model, session.position
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    average_([*gradients, *(buffer for buffer in model.buffers() if buffer.is_floating_point()), report])
    length = torch.nn.utils.get_total_norm(gradients)
    if not math.isfinite(float(report[0] + length)):
        raise TrainingError(
            f"the loss or its gradient became NaN or infinite at batch {position.batch + 1} of epoch "
            f"{position.epoch + 1}; {session.out} keeps the last good checkpoint. A lower lr (now {config.lr}) helps"
        )
    if config.clip:  # not clip_grad_norm_, which divides by the length plus 1e-6
        shrink = (config.clip / length).clamp_max(1.0)
        for gradient in gradients:
            gradient.mul_(shrink)


def _backward(session: Session, x: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Fill the parameters' gradients, at the worst weights nearby where AWP is on; the loss and the logits."""
    config, model = session.config, session.model
    session.optimizer.zero_grad(set_to_none=True)
    at_weights: AbstractContextManager[None] = nullcontext()
    if config.awp and session.position.epoch >= config.awp_after:
        buffers = [buffer.clone() for buffer in model.buffers()]
        loss, _ = objective(model, x, x_adv, y, config=config)
        at_weights = perturbed_weights(model, loss, config.awp, buffers)
    with at_weights:
        loss, logits = objective(model, x, x_adv, y, config=config)
        loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types here
    return loss, logits


@contextmanager
def perturbed_weights(model: nn.Module, loss: Tensor, size: float, buffers: Sequence[Tensor]) -> Iterator[None]:
    """Adversarial weight perturbation (Wu et al. 2020): the model at the nearby weights that raise `loss` most.

    Only tensors of two or more dimensions move; the old weights, bit for bit, are back after the block. `buffers` are
    the values the model's buffers had before `loss` was computed; they are put back, as that pass was only a probe.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad and weight.ndim > 1]
    gradients = list(torch.autograd.grad(loss, weights))
    average_(gradients)
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
        for weight, change in zip(weights, weight_perturbation(kept, gradients, size), strict=True):
            weight.add_(change)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)


def weight_perturbation(weights: Sequence[Tensor], gradients: Sequence[Tensor], size: float) -> list[Tensor]:
    """One change per weight tensor: along its gradient, `size` times as long as the tensor itself."""
    return [
        gradient * (size * weight.norm() / gradient.norm().clamp_min(1e-12))
        for weight, gradient in zip(weights, gradients, strict=True)
    ]


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in one exchange; nothing to do in a single process."""
    if not joined() or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def agree(values: Sequence[float], device: torch.device) -> list[float]:
    """The first process's numbers, in every process."""
    shared = list(values)
    if joined():
        dist.broadcast_object_list(shared, src=0, device=device)
    return shared
