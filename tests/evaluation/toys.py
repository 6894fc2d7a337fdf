"""A linear classifier, for which it is known which images can be broken."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from lipforge.results import RobustResult
from lipforge.types import Threat
from tests.nets import images, seeded

THREAT = Threat("linf", "8/255")


def linear(classes: int = 2, size: int = 4) -> nn.Module:
    """Flatten and a linear layer."""
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, classes)))


def labelled(model: nn.Module, count: int = 22, size: int = 4) -> tuple[Tensor, Tensor]:
    """Images inside [0.2, 0.8], where [0, 1] never binds; every fifth label is wrong."""
    x = 0.2 + 0.6 * images(count, size=size)
    found = model(x).argmax(dim=1)
    wrong = torch.arange(count) % 5 == 0
    return x, torch.where(wrong, (found + 1) % int(model(x).shape[1]), found)


def robust_images(model: nn.Module, x: Tensor, y: Tensor) -> list[bool]:
    """Which images no perturbation of THREAT can break: the margin beats eps times an l1 norm."""
    weight = model[1].weight  # type: ignore[index]
    gaps = (weight[y][:, None] - weight[None]).abs().sum(dim=2) * THREAT.eps
    logits = model(x)
    margins = logits.gather(1, y[:, None]) - logits - gaps
    margins[torch.arange(len(y)), y] = 1
    return (margins > 0).all(dim=1).tolist()


def untimed(result: RobustResult) -> RobustResult:
    """The result without its times, which no two runs share."""
    return replace(result, seconds=0.0, stages=tuple(replace(stage, seconds=0.0) for stage in result.stages))
