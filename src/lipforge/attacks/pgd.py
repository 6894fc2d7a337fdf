"""Gradient ascent: one step (FGSM), projected steps with restarts (PGD), or steps from given points (refine)."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lipforge.attacks import norms
from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import find_loss, margin, margin_loss
from lipforge.attacks.queries import logits_of
from lipforge.attacks.state import AttackState, Goal, away
from lipforge.errors import InputError
from lipforge.memory import in_batches
from lipforge.types import Classifier, Threat

REFINE_STEPS, REFINE_STEP_SIZE = 20, 0.1
"""How far points are refined where nobody says otherwise; the size is a multiple of eps."""


@dataclass(frozen=True)
class FGSM(Attack):
    """One steepest step of `step_size` times eps (Goodfellow et al. 2015); optimal on a linear model with size 1.

    With `random_start` it starts at a random point of the ball (FGSM-RS, Wong et al. 2020, who take 1.25). It costs
    one forward and one backward per image, a forward to see what the step did, and one for the clean image.
    """

    name: ClassVar[str] = "fgsm"
    step_size: float = 1.0
    random_start: bool = False
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
        _check_step_size(self.step_size)

    def attack(self, state: AttackState) -> None:
        """Take the step, also where the start already fools the model: the one-step attack looks only at its end."""
        at = state.robust()
        if len(at) == 0:
            return
        start = _random_start(state, at, "fgsm-start") if self.random_start else state.x[at]
        gradient = state.gradient(start, at, away(state, find_loss(self.loss))).gradient
        x_adv = state.norm.step(start, gradient, self.step_size * state.eps, state.x[at], state.eps)
        state.record(x_adv, at, state.logits(x_adv, at))


@dataclass(frozen=True)
class PGD(Attack):
    """Steepest steps of `step_size` times eps, projected after each (Madry et al. 2018).

    An image that is broken is returned as it was at that moment and costs nothing more; the others are returned at
    their strongest point. Each restart starts at another random point, or all at `x` without `random_start`. A robust
    image costs steps + 1 forwards and steps backwards per restart, and one forward for the clean image.
    """

    name: ClassVar[str] = "pgd"
    steps: int = 20
    restarts: int = 1
    step_size: float = 0.25
    random_start: bool = True
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
        check_least(self, 1, "steps", "restarts")
        if self.restarts > 1 and not self.random_start:
            raise InputError(
                "restarts without a random start would all be the same; set random_start=true or restarts=1"
            )
        _check_step_size(self.step_size)

    def attack(self, state: AttackState) -> None:
        goal = away(state, find_loss(self.loss))
        for restart in range(self.restarts):
            at = state.robust()
            if len(at) == 0:
                return
            start = _random_start(state, at, "pgd-start", restart) if self.random_start else state.x[at]
            ascend(state, at, start, goal, steps=self.steps, step_size=self.step_size)


@dataclass(frozen=True, eq=False)
class Refine(Attack):
    """`steps` projected steps on the margin, of `step_size` times eps, from `start` (N, C, H, W), which is tried first.

    With 0 steps it is a transfer attack: the points are only judged.
    """

    name: ClassVar[str] = "refine"
    start: Tensor
    steps: int = REFINE_STEPS
    step_size: float = REFINE_STEP_SIZE

    def at(self, rows: slice) -> "Refine":
        return replace(self, start=self.start[rows])

    def attack(self, state: AttackState) -> None:
        at = state.robust()
        if len(at) == 0:
            return
        start = state.norm.project(self.start[at], state.x[at], state.eps)
        ascend(state, at, start, away(state, margin_loss), steps=self.steps, step_size=self.step_size)


def ascend(state: AttackState, at: Tensor, start: Tensor, goal: Goal, *, steps: int, step_size: float) -> None:
    """`steps` projected steps of `step_size` times eps from `start`, for these images; a broken image stops."""
    x_adv = start
    for _ in range(steps):
        if len(at) == 0:
            return
        slope = state.gradient(x_adv, at, goal)
        robust = state.record(x_adv, at, slope.logits)
        at, x_adv, gradient = at[robust], x_adv[robust], slope.gradient[robust]
        x_adv = state.norm.step(x_adv, gradient, step_size * state.eps, state.x[at], state.eps)
    if len(at):
        state.record(x_adv, at, state.logits(x_adv, at))


class Refined(NamedTuple):
    """Where the points (N, C, H, W) came to, their margin (N,), which images (N,) had no gradient, and the cost."""

    points: Tensor
    margin: Tensor
    stuck: Tensor
    forwards: int
    backwards: int


def refine(
    classifier: Classifier, points: Tensor, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, steps: int = REFINE_STEPS
) -> Refined:
    """The points after up to `steps` steps down the margin, each where its margin was smallest.

    Unlike `Refine` it does not stop where the classifier is fooled: a smaller margin transfers better. Each image costs
    `steps` + 1 forwards and `steps` backwards; without steps it costs nothing.
    """

    def refined(rows: slice) -> Refined:
        return _refined(classifier, points[rows], x[rows], y[rows], ids[rows], threat, steps)

    parts = in_batches(refined, x, "attack")
    at, value, stuck = (torch.cat(each) for each in zip(*(part[:3] for part in parts), strict=True))
    return Refined(at, value, stuck, parts[0].forwards, parts[0].backwards)


def _refined(
    classifier: Classifier, points: Tensor, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, steps: int
) -> Refined:
    norm, best = norms.of(threat), points.clone()
    stuck, smallest = torch.zeros_like(y, dtype=torch.bool), x.new_full((len(x),), torch.inf)
    if not steps or not len(x):
        return Refined(points, smallest, stuck, 0, 0)
    for step in range(steps + 1):
        points = points.detach().requires_grad_(step < steps)
        with torch.set_grad_enabled(step < steps):
            value = margin(logits_of(classifier, points, ids), y)
        if step < steps and not value.requires_grad:
            return Refined(best, value, torch.ones_like(stuck), 1, 0)
        better = value < smallest
        best[better], smallest = points.detach()[better], torch.minimum(smallest, value.detach())
        if step < steps:
            (gradient,) = torch.autograd.grad(value.sum(), points)
            stuck |= gradient.flatten(1).abs().amax(dim=1) == 0
            points = norm.step(points.detach(), -gradient, REFINE_STEP_SIZE * threat.eps, x, threat.eps)
    return Refined(best, smallest, stuck, steps + 1, steps)


def _random_start(state: AttackState, at: Tensor, stream: str, counter: int = 0) -> Tensor:
    return state.norm.random_start(
        state.x[at], state.eps, seed=state.seed, sample_ids=state.ids[at], stream=stream, counter=counter
    )


def _check_step_size(step_size: float) -> None:
    if not step_size > 0:
        raise InputError(f"step_size must be above 0 (a multiple of eps), got {step_size}")
