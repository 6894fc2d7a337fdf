"""What attacks maximise: one number per image, larger where the model is closer to being fooled."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from lipforge.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, K) and labels (N,) to one loss per image (N,)."""

TargetedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits (N, K), labels (N,) and target classes (N,) to one loss per image (N,)."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{i != y} z_i - z_y: above 0 exactly where the model is fooled (ties aside).

    >>> margin(torch.tensor([[3.0, 1.0, 2.5]]), torch.tensor([0]))
    tensor([-0.5000])
    """
    return _best_other(logits, y) - _value(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin over z_(1) - z_(3), the gap between the largest and the third largest logit; needs 3 classes."""
    if logits.shape[1] < 3:
        raise InputError(f"the dlr loss needs at least 3 classes, the model has {logits.shape[1]}; use margin")
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + 1e-12)


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y: above 0 where the class `target` (N,) beats the class `y`."""
    return _value(logits, target) - _value(logits, y)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted margin over z_(1) - (z_(3) + z_(4)) / 2; needs 4 classes."""
    if logits.shape[1] < 4:
        raise InputError(f"the targeted dlr loss needs at least 4 classes, the model has {logits.shape[1]}; use margin")
    top = logits.topk(4, dim=1).values
    return targeted_margin(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)


LOSSES: Mapping[str, Loss] = MappingProxyType({"ce": cross_entropy, "margin": margin, "dlr": dlr})
TARGETED_LOSSES: Mapping[str, TargetedLoss] = MappingProxyType({"margin": targeted_margin, "dlr": targeted_dlr})


def find_loss(name: str) -> Loss:
    """The loss of that name."""
    if name not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {name!r}")
    return LOSSES[name]


def find_targeted_loss(name: str) -> TargetedLoss:
    """The targeted loss of that name."""
    if name not in TARGETED_LOSSES:
        raise InputError(f"a targeted loss must be one of {', '.join(TARGETED_LOSSES)}, got {name!r}")
    return TARGETED_LOSSES[name]


def _value(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None]).squeeze(1)


def _best_other(logits: Tensor, y: Tensor) -> Tensor:
    return logits.scatter(1, y[:, None], -torch.inf).amax(dim=1)
