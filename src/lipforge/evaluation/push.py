"""Points pushed on, up a classifier's margin, from where an attack left them."""

from typing import NamedTuple

import torch
from torch import Tensor

from lipforge.attacks.losses import margin
from lipforge.attacks.norms import project, steepest_step
from lipforge.attacks.queries import logits_of
from lipforge.types import Classifier, Threat

PUSH = 20
"""How many steps, where nobody says otherwise."""

STEP = 0.1
"""The size of a step, as a multiple of eps."""


class Pushed(NamedTuple):
    """Where the points (N, C, H, W) came to, their margin (N,), which images (N,) had no gradient, and the cost."""

    points: Tensor
    margin: Tensor
    stuck: Tensor
    forwards: int
    backwards: int


def push(
    classifier: Classifier, points: Tensor, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, steps: int = PUSH
) -> Pushed:
    """The points after up to `steps` steps up the margin, each where its margin was largest; linf and l2 only.

    Each image costs `steps` + 1 forwards and `steps` backwards; without steps it costs nothing.
    """
    stuck, highest = torch.zeros_like(y, dtype=torch.bool), x.new_full((len(x),), -torch.inf)
    if not steps or not len(x):
        return Pushed(points, highest, stuck, 0, 0)
    best = points.clone()
    for _ in range(steps):
        value, gradient = _slope(classifier, points, y, ids)
        if gradient is None:
            return Pushed(best, value, torch.ones_like(stuck), 1, 0)
        stuck |= gradient.flatten(1).abs().amax(dim=1) == 0
        best[value > highest] = points[value > highest]
        highest = torch.maximum(highest, value)
        points = project(points + steepest_step(gradient, threat, STEP * threat.eps), x, threat)
    with torch.no_grad():
        value = margin(logits_of(classifier, points, ids), y)
    best[value > highest] = points[value > highest]
    return Pushed(best, torch.maximum(highest, value), stuck, steps + 1, steps)


def _slope(classifier: Classifier, points: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """The margin (N,) and its gradient; None from a classifier that gives none."""
    points = points.detach().requires_grad_()
    with torch.enable_grad():
        value = margin(logits_of(classifier, points, ids), y)
        if not value.requires_grad:
            return value, None
        (gradient,) = torch.autograd.grad(value.sum(), points)
    return value.detach(), gradient
