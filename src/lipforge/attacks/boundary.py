"""A walk along the decision boundary: the check on logits that say nothing at the images themselves.

HopSkipJump (Chen, Jordan and Wainwright 2020) with the model's own gradients. It starts at a point of another class far
from the image, goes back toward the image as far as the class stays wrong, and from there along the gradient. Gradients
are asked for only next to the boundary, where logits that hide the way to it from the image have to show it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import margin_loss
from lipforge.attacks.state import AttackState, away

HALVINGS = 4
"""How often a step is halved until it ends in another class; an image for which it never does stays where it is."""


@dataclass(frozen=True)
class Boundary(Attack):
    """At most `steps` steps from each of `restarts` random points; in step t one of radius / sqrt(t).

    An image whose random point is of its own class starts at its negative, or is left alone if that one is too. The way
    back is bisected `bisections` times: gradients are taken that close to the boundary. A robust image costs up to 5 +
    `bisections` forwards and 1 backward per step.
    """

    name: ClassVar[str] = "boundary"
    steps: int = 20
    restarts: int = 1
    bisections: int = 12

    def __post_init__(self) -> None:
        check_least(self, 1, "steps", "restarts", "bisections")

    def attack(self, state: AttackState) -> None:
        for restart in range(self.restarts):
            at = state.robust()
            if len(at) == 0:
                return
            at, point = _far_points(state, at, restart)
            for step in range(self.steps + 1):
                if len(at) == 0:
                    break
                point = _along(state, at, point, step) if step else point
                at, point = _back(state, at, point, self.bisections)


def _far_points(state: AttackState, at: Tensor, restart: int) -> tuple[Tensor, Tensor]:
    """The images that have a far point of another class, and that point: noise, or else the negative."""
    x = state.x[at]
    far = rng.uniform(state.seed, state.ids[at], stream="boundary", shape=x.shape[1:], counter=restart).to(x)
    same = ~_wrong(state, far, at)[0]
    if same.any():
        far[same] = 1 - x[same]
        kept = ~same
        kept[same] = _wrong(state, far[same], at[same])[0]
        return at[kept], far[kept]
    return at, far


def _along(state: AttackState, at: Tensor, point: Tensor, step: int) -> Tensor:
    """The points after a step along the gradient, further into the wrong class."""
    gradient = state.gradient(point, at, away(state, margin_loss)).gradient
    size = state.norm.distance(point - state.x[at]) / step**0.5
    moved, rows = point.clone(), torch.arange(len(at), device=at.device)
    for _ in range(HALVINGS):
        trial = (point[rows] + state.norm.steepest_step(gradient[rows], size[rows, None, None, None])).clamp(0.0, 1.0)
        wrong = _wrong(state, trial, at[rows])[0]
        moved[rows[wrong]] = trial[wrong]
        rows = rows[~wrong]
        if len(rows) == 0:
            break
        size = size / 2
    return moved


def _back(state: AttackState, at: Tensor, point: Tensor, bisections: int) -> tuple[Tensor, Tensor]:
    """The images still robust, and their points brought back toward them until just before the class is right again.

    The first question is at eps: a wrong class there is all that is wanted.
    """
    x, low, high = state.x[at], torch.zeros(len(at)).to(point), torch.ones(len(at)).to(point)
    share = (state.eps / state.norm.distance(point - x).clamp_min(1e-12)).clamp_max(1.0)
    for _ in range(bisections):
        trial = torch.lerp(x, point, share[:, None, None, None])
        wrong, logits = _wrong(state, trial, at)
        if (inside := state.norm.inside(trial, x, state.eps)).any():
            state.record(trial[inside], at[inside], logits[inside])
        low, high = torch.where(wrong, low, share), torch.where(wrong, share, high)
        robust = ~state.broken[at]
        at, x, point, low, high = (each[robust] for each in (at, x, point, low, high))
        if len(at) == 0:
            break
        share = (low + high) / 2
    return at, torch.lerp(x, point, high[:, None, None, None])


def _wrong(state: AttackState, points: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Which points (M,) are misclassified, and their logits (M, K)."""
    logits = state.logits(points, at)
    return logits.argmax(dim=1) != state.y[at], logits
