"""Adversarial weight perturbation (Wu et al. 2020): the loss is minimised at the worst weights nearby."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lipforge.training.workers import average_


def weight_perturbation(weights: Sequence[Tensor], gradients: Sequence[Tensor], size: float) -> list[Tensor]:
    """One change per weight tensor: along its gradient, `size` times as long as the tensor itself."""
    return [
        gradient * (size * weight.norm() / gradient.norm().clamp_min(1e-12))
        for weight, gradient in zip(weights, gradients, strict=True)
    ]


@contextmanager
def perturbed_weights(model: nn.Module, loss: Tensor, size: float, buffers: Sequence[Tensor]) -> Iterator[None]:
    """The model at the weights that raise `loss` most, layer by layer; the old weights, bit for bit, after the block.

    Only tensors of two or more dimensions move: convolutions and matrices, not biases and norms. `buffers` are the
    values the model's buffers had before `loss` was computed; they are put back, because that pass was only a probe.
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
