"""Minimum-norm attacks: the nearest point that fools the model, for a whole curve of robust accuracy in one run.

FMN (Pintor et al. 2021) in all norms, DDN (Rony et al. 2019) in l2. Both keep a radius for each image, which shrinks
where the last point fools the model and grows where it does not. Neither leaves the threat: the radius is at most eps.
Under `evaluate` an image leaves as soon as it is broken; a curve goes on to the last step.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import cross_entropy, margin_loss, targeted_margin_loss, targets_by_distance
from lipforge.attacks.state import AttackState, Goal, Slope, away, toward
from lipforge.errors import InputError

LAST_STEP, LAST_GAMMA = 0.01, 0.02
"""What is left of the step and of gamma at the end, as a share of what they were at the beginning."""


@dataclass(frozen=True)
class FMN(Attack):
    """Fast minimum-norm: steps on the margin inside a radius that follows the boundary.

    Until a point fools the model, the radius is the distance at which the linearised boundary is; afterwards it shrinks
    by `gamma` where the point fools the model, to the nearest such point at most, and grows by `gamma` where it does
    not. `step_size` is a multiple of the radius. Both fall along a cosine. With `targets` it walks once toward each of
    that many nearest classes, instead of away from the true one. Steps are the norm's steepest ones, where the paper
    normalises gradients in l2 for all norms. A walk costs at most steps + 1 forwards and steps backwards per image, and
    a forward for each point that is nearer than all before.
    """

    name: ClassVar[str] = "fmn"
    steps: int = 40
    targets: int = 0
    step_size: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        check_least(self, 1, "steps")
        check_least(self, 0, "targets")
        _check_rates(self.step_size, self.gamma)

    def attack(self, state: AttackState) -> None:
        if len(state.attackable()) == 0:
            return
        if not self.targets:
            self._walk(state, away(state, margin_loss))
        for target in targets_by_distance(state, self.targets) if self.targets else ():
            self._walk(state, toward(state, targeted_margin_loss, target))

    def _walk(self, state: AttackState, goal: Goal) -> None:
        at = state.attackable()
        point, radius = state.x[at], torch.full_like(state.margin[at], torch.inf)
        crossed = torch.zeros_like(at, dtype=torch.bool)
        for step in range(self.steps):
            if len(at) == 0:
                return
            slope = state.gradient(point, at, goal)
            fooled = state.record_nearer(point, at, slope.logits)
            crossed |= fooled
            gamma = self.gamma * falling(step, self.steps, LAST_GAMMA)
            guess = self._guess(state, point, at, slope) * (1 + gamma)
            radius = torch.where(crossed, resized(radius, fooled, gamma), guess)
            radius = torch.minimum(radius, state.distance[at].clamp_max(state.eps))
            rows = ~state.broken[at] | state.minimise
            at, point, radius, crossed = at[rows], point[rows], radius[rows], crossed[rows]
            eps = radius[:, None, None, None]
            size = self.step_size * falling(step, self.steps, LAST_STEP) * eps
            point = state.norm.step(point, slope.gradient[rows], size, state.x[at], eps)
        if len(at):
            state.record_nearer(point, at, state.logits(point, at))

    def _guess(self, state: AttackState, point: Tensor, at: Tensor, slope: Slope) -> Tensor:
        """How far (M,) the boundary is from each image, if it is as far from the point as the gradient says."""
        away_by = state.norm.distance(point - state.x[at])
        return away_by + slope.value.abs() / state.norm.dual_size(slope.gradient).clamp_min(1e-12)


@dataclass(frozen=True)
class DDN(Attack):
    """Decoupled direction and norm, in l2: gradient steps give the direction of a change, and its length is set apart.

    The length starts at `initial_eps`, shrinks by `gamma` where the point fools the model and grows by `gamma` where it
    does not. Steps on the cross-entropy have the length `step_size`, which falls along a cosine. It costs steps + 1
    forwards and steps backwards per image, and a forward for each point that is nearer than all before.
    """

    name: ClassVar[str] = "ddn"
    steps: int = 100
    initial_eps: float = 1.0
    step_size: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        check_least(self, 1, "steps")
        _check_rates(self.step_size, self.gamma)
        if not self.initial_eps > 0:
            raise InputError(f"initial_eps must be above 0, got {self.initial_eps}")

    def attack(self, state: AttackState) -> None:
        if not state.norm.smooth:
            raise InputError(f"ddn knows the norm l2, got {state.norm.name}; use fmn, which knows all of them")
        at = state.attackable()
        point, change = state.x[at], torch.zeros_like(state.x[at])
        radius = torch.full_like(state.margin[at], min(self.initial_eps, state.eps))
        for step in range(self.steps):
            if len(at) == 0:
                return
            slope = state.gradient(point, at, away(state, cross_entropy))
            fooled = state.record_nearer(point, at, slope.logits)
            radius = resized(radius, fooled, self.gamma) if step else radius
            radius = torch.minimum(radius, state.distance[at].clamp_max(state.eps))
            rows = ~state.broken[at] | state.minimise
            at, radius = at[rows], radius[rows]
            size = self.step_size * falling(step, self.steps, LAST_STEP)
            change = change[rows] + state.norm.steepest_step(slope.gradient[rows], size)
            point = (state.x[at] + state.norm.steepest_step(change, radius[:, None, None, None])).clamp(0.0, 1.0)
            change = point - state.x[at]
        if len(at):
            state.record_nearer(point, at, state.logits(point, at))


def falling(step: int, steps: int, last: float) -> float:
    """A share that falls along half a cosine, from 1 at step 0 to nearly `last` at the last of `steps`.

    >>> [round(falling(step, 4, last=0.0), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return last + (1 - last) * (1 + math.cos(math.pi * step / steps)) / 2


def resized(radius: Tensor, fooled: Tensor, gamma: float) -> Tensor:
    """The radius (M,), smaller by `gamma` where the point fools the model and larger by it where it does not."""
    return radius * torch.where(fooled, 1 - gamma, 1 + gamma)


def _check_rates(step_size: float, gamma: float) -> None:
    if not (step_size > 0 and 0 < gamma < 1):
        raise InputError(f"step_size must be above 0 and gamma lie between 0 and 1, got {step_size} and {gamma}")
