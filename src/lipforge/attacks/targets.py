"""Which classes to aim at, and in which order."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lipforge.attacks.norms import dual_size
from lipforge.attacks.trial import Trial

CANDIDATES = 9
"""How many classes, the highest by clean logit, are looked at for the nearest ones."""


def targets_by_rank(trial: Trial, count: int) -> list[Tensor]:
    """The classes (N,) of clean-logit rank 2, 3, ..., at most `count` of them and at most the classes there are."""
    ranked = trial.clean_logits().argsort(dim=1, descending=True, stable=True)
    return list(ranked[:, 1 : count + 1].unbind(dim=1))


def targets_by_distance(trial: Trial, count: int) -> list[Tensor]:
    """The classes (N,) whose boundaries look nearest from the clean image, at most `count`; found once per trial.

    The distance is the gap between two logits over the dual norm of its gradient: exact on a linear model. It costs
    one forward per image and one backward per candidate.
    """
    if trial.nearest is None:
        candidates = torch.stack(targets_by_rank(trial, CANDIDATES), dim=1)
        at = trial.standing()
        _, found = differences(trial, trial.x[at], at, candidates[at])
        distance = [gap.abs() / dual_size(gradient, trial.threat).clamp_min(1e-12) for gap, gradient in found]
        order = torch.stack(distance, dim=1).argsort(dim=1, stable=True)
        candidates[at] = candidates[at].gather(1, order)
        trial.nearest = candidates
    return list(trial.nearest[:, :count].unbind(dim=1))


def differences(
    trial: Trial, point: Tensor, at: Tensor, classes: Tensor
) -> tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]:
    """The logits, and for each column of `classes` (M, C) the gap z_t - z_y (M,) to that class and its gradient."""
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = trial.ask(point, at)
        gaps = logits.gather(1, classes) - logits.gather(1, trial.y[at][:, None])
    trial.forwards[at] += 1
    trial.backwards[at] += classes.shape[1]

    def each() -> Iterator[tuple[Tensor, Tensor]]:
        last = classes.shape[1] - 1
        for column in range(classes.shape[1]):
            (gradient,) = torch.autograd.grad(gaps[:, column].sum(), point, retain_graph=column < last)
            yield gaps[:, column].detach(), gradient

    return logits.detach(), each()
