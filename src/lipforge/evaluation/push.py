"""Points pushed on, up a classifier's margin, from where an attack left them."""

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


def push(classifier: Classifier, points: Tensor, x: Tensor, y: Tensor, threat: Threat, steps: int = PUSH) -> Tensor:
    """The points after up to `steps` steps up the margin, each where its margin was largest.

    Each image costs `steps` + 1 forwards and `steps` backwards; without steps it costs nothing.
    """
    if not steps or not len(x):
        return points
    best, highest = points.clone(), torch.full_like(x[:, 0, 0, 0], -torch.inf)
    for _ in range(steps):
        value, gradient = _slope(classifier, points, y)
        best[value > highest] = points[value > highest]
        highest = torch.maximum(highest, value)
        points = project(points + steepest_step(gradient, threat, STEP * threat.eps), x, threat)
    with torch.no_grad():
        value = margin(logits_of(classifier, points), y)
    best[value > highest] = points[value > highest]
    return best


def _slope(classifier: Classifier, points: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    points = points.detach().requires_grad_()
    with torch.enable_grad():
        value = margin(logits_of(classifier, points), y)
        (gradient,) = torch.autograd.grad(value.sum(), points)
    return value.detach(), gradient
