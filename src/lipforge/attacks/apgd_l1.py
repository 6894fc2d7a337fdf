"""APGD for the l1 ball: sparse steps, and a radius that shrinks to eps (Croce and Hein 2021)."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lipforge.attacks.norms import project
from lipforge.attacks.trial import Goal, Slope, Trial
from lipforge.types import Threat

RADII = (3.0, 2.0, 1.0)
"""Multiples of eps, for 30 %, 30 % and 40 % of the steps: a larger ball is easier to cross, and leads into eps."""

SPARSER = 1.5
"""A step changes as many entries as the best point has changed, divided by this."""


def climb_l1(trial: Trial, goal: Goal, steps: int, *, repeats: int, stream: str, counter: int | Tensor) -> None:
    """One run on the images that stand, in balls of 3, 2 and 1 eps; only points inside eps count as successes."""
    at = trial.standing()
    if len(at) == 0:
        return
    wide = Threat("l1", RADII[0] * trial.threat.eps)
    point = trial.edge(at, wide, stream=stream, counter=counter)
    for radius, count in zip(RADII, phases(steps), strict=True):
        if count and len(at):
            at, point = _phase(trial, at, point, goal, Threat("l1", radius * trial.threat.eps), count, repeats)


def phases(steps: int) -> tuple[int, int, int]:
    """How many of the steps are taken in each ball; at least one in the last, where alone points count.

    >>> phases(100), phases(2)
    ((30, 30, 40), (0, 0, 2))
    """
    wide = min(-(-3 * steps // 10), (steps - 1) // 2)
    return wide, wide, steps - 2 * wide


def _phase(
    trial: Trial, at: Tensor, start: Tensor, goal: Goal, ball: Threat, steps: int, repeats: int
) -> tuple[Tensor, Tensor]:
    """The images that still stand, and the best point found for each in that ball."""
    x = trial.x[at]
    start = project(start, x, ball)
    slope = trial.gradient(start, at, goal, repeats=repeats)
    walkers = _Walkers.at_start(at, x, start, slope, ball)
    last = ball.eps <= trial.threat.eps
    if last:
        walkers = walkers.only(trial.record(start, at, slope.logits))
    period = max(steps // 25, 1)
    for step in range(1, steps + 1):
        if len(walkers.at) == 0:
            break
        walkers.move(ball)
        if step < steps:
            slope = trial.gradient(walkers.point, walkers.at, goal, repeats=repeats)
        else:  # nobody will use the gradient at the last point
            logits = trial.logits(walkers.point, walkers.at, repeats=repeats)
            slope = Slope(walkers.gradient, goal(logits, walkers.at), logits)
        walkers.see(slope)
        if last:
            walkers = walkers.only(trial.record(walkers.point, walkers.at, slope.logits))
        if step % period == 0:
            walkers.judge(ball.eps)
    return walkers.at, walkers.best_point


@dataclass
class _Walkers:
    """What the climb remembers of each image; every field has one row per image."""

    at: Tensor
    x: Tensor
    point: Tensor
    gradient: Tensor
    best_point: Tensor
    best_gradient: Tensor
    best_value: Tensor
    step_size: Tensor
    changed: Tensor

    @classmethod
    def at_start(cls, at: Tensor, x: Tensor, start: Tensor, slope: Slope, ball: Threat) -> "_Walkers":
        sizes = torch.full((len(x),), ball.eps, dtype=x.dtype, device=x.device)
        return cls(at, x, start, slope.gradient, start, slope.gradient, slope.value, sizes, entries(start - x))

    def only(self, rows: Tensor) -> "_Walkers":
        """The images where `rows` (M,) is true."""
        return self if rows.all() else _Walkers(*(getattr(self, field.name)[rows] for field in fields(self)))

    def move(self, ball: Threat) -> None:
        """A step of l1 length `step_size`, spread evenly over the entries with the largest gradients; projected."""
        size = self.gradient.flatten(1).abs()
        count = (self.changed / SPARSER).long().clamp(1, size.shape[1])
        least = size.sort(dim=1, descending=True).values.gather(1, count[:, None] - 1)
        sign = self.gradient.flatten(1).sign() * (size >= least)
        step = sign * (self.step_size[:, None] / sign.abs().sum(dim=1, keepdim=True).clamp_min(1.0))
        self.point = project(self.point + step.reshape(self.x.shape), self.x, ball)

    def see(self, slope: Slope) -> None:
        """Take in the slope at the new points."""
        self.gradient = slope.gradient
        better = slope.value > self.best_value
        rows = better[:, None, None, None]
        self.best_point = torch.where(rows, self.point, self.best_point)
        self.best_gradient = torch.where(rows, slope.gradient, self.best_gradient)
        self.best_value = torch.where(better, slope.value, self.best_value)

    def judge(self, radius: float) -> None:
        """Where the best point got sparser by 5 %, start from it with full steps; elsewhere shorten the step."""
        now = entries(self.best_point - self.x)
        sparser = now < 0.95 * self.changed
        shorter = (self.step_size / 1.5).clamp_min(radius / 10)
        self.step_size = torch.where(sparser, radius, shorter)
        self.changed = now
        rows = sparser[:, None, None, None]
        self.point = torch.where(rows, self.best_point, self.point)
        self.gradient = torch.where(rows, self.best_gradient, self.gradient)


def entries(change: Tensor) -> Tensor:
    """How many entries (N,) of each image are changed."""
    return (change != 0).flatten(1).sum(dim=1)
