"""Auto-PGD: ascent with momentum that halves its step where it stops rising (Croce and Hein 2020).

In a sparse norm (l1) it takes sparse steps, in a ball whose radius shrinks to eps (Croce and Hein 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import find_loss, find_targeted_loss, targets_by_distance, targets_by_rank
from lipforge.attacks.norms import Norm
from lipforge.attacks.state import AttackState, Goal, Slope, away, toward
from lipforge.errors import InputError

MOMENTUM = 0.75

RADII = (3.0, 2.0, 1.0)
"""Multiples of eps, for 30 %, 30 % and 40 % of the sparse steps: a larger ball is easier to cross, and leads to eps."""

SPARSER = 1.5
"""A sparse step changes as many entries as the best point has changed, divided by this."""


@dataclass(frozen=True)
class APGD(Attack):
    """APGD away from the true class, from `restarts` random points on the ball's edge.

    `rho` is the share of rising steps below which the step is halved. `eot_iter` above 1 averages every gradient over
    that many passes, for models whose outputs are random (EOT). A robust image costs steps + 1 forwards and steps
    backwards per restart (times `eot_iter`), and one forward for the clean image.
    """

    name: ClassVar[str] = "apgd"
    steps: int = 100
    restarts: int = 1
    loss: str = "ce"
    rho: float = 0.75
    eot_iter: int = 1

    def __post_init__(self) -> None:
        find_loss(self.loss)
        check_least(self, 1, "steps", "restarts", "eot_iter")
        _check_rho(self.rho)

    def attack(self, state: AttackState) -> None:
        """Climb from each start until no image is robust."""
        goal, schedule = away(state, find_loss(self.loss)), Schedule(self.steps, self.rho, self.eot_iter)
        for restart in range(self.restarts):
            climb(state, goal, schedule, stream=f"apgd-{self.loss}", counter=restart)


@dataclass(frozen=True)
class TargetedAPGD(Attack):
    """APGD toward the classes of clean-logit rank 2, 3, ...: `targets` of them, or as many as there are.

    With order "nearest" the classes are those, of rank 2 to 10, whose boundaries look nearest (MALT, Melamed et al.
    2024). The loss "dlr" is the targeted DLR, for four classes or more; "margin" is the difference of two logits. A
    robust image costs (steps + 1) forwards and steps backwards per target and restart, and one clean forward.
    """

    name: ClassVar[str] = "apgd-t"
    steps: int = 100
    targets: int = 9
    restarts: int = 1
    loss: str = "dlr"
    order: str = "rank"
    rho: float = 0.75

    def __post_init__(self) -> None:
        find_targeted_loss(self.loss)
        check_least(self, 1, "steps", "restarts", "targets")
        _check_rho(self.rho)
        if self.order not in ("rank", "nearest"):
            raise InputError(f"order must be rank or nearest, got {self.order!r}")

    def attack(self, state: AttackState) -> None:
        """Climb toward each target until no image is robust."""
        if len(state.robust()) == 0:
            return
        ordered = targets_by_rank if self.order == "rank" else targets_by_distance
        schedule = Schedule(self.steps, self.rho)
        for number, target in enumerate(ordered(state, self.targets)):
            goal = toward(state, find_targeted_loss(self.loss), target)
            for restart in range(self.restarts):
                climb(state, goal, schedule, stream=f"apgd-t-{self.loss}", counter=number * self.restarts + restart)


@dataclass(frozen=True)
class Schedule:
    """How long APGD climbs, when it halves its step, and how many passes make a gradient."""

    steps: int
    rho: float
    eot_iter: int = 1

    def checkpoints(self) -> dict[int, int]:
        """The steps after which progress is judged, each with the number of steps since the last such judgement.

        >>> list(Schedule(100, rho=0.75).checkpoints())
        [22, 41, 57, 70, 80, 87, 93, 99]
        """
        period, shrink, floor = (max(int(share * self.steps), 1) for share in (0.22, 0.03, 0.06))
        step, periods = 0, {}
        while step + period <= self.steps:
            step += period
            periods[step] = period
            period = max(period - shrink, floor)
        return periods


def climb(state: AttackState, goal: Goal, schedule: Schedule, *, stream: str, counter: int | Tensor) -> None:
    """One run of APGD on the images that are robust; `counter` numbers the start, for all or for each (N,)."""
    at = state.robust()
    if len(at) == 0:
        return
    if not state.norm.sparse:
        start = state.edge_start(at, state.eps, stream=stream, counter=counter)
        _climb(state, DenseClimbers, at, start, goal, state.eps, schedule, schedule.checkpoints())
        return
    point = state.edge_start(at, RADII[0] * state.eps, stream=stream, counter=counter)
    for radius, steps in zip(RADII, phases(schedule.steps), strict=True):
        if steps and len(at):
            eps, period = radius * state.eps, max(steps // 25, 1)
            start = state.norm.project(point, state.x[at], eps)
            checkpoints = dict.fromkeys(range(period, steps + 1, period), period)
            climbers = _climb(state, SparseClimbers, at, start, goal, eps, replace(schedule, steps=steps), checkpoints)
            at, point = climbers.at, climbers.best_point


def phases(steps: int) -> tuple[int, int, int]:
    """How many of the sparse steps are taken in each ball; at least one in the last, where alone points count.

    >>> phases(100), phases(2)
    ((30, 30, 40), (0, 0, 2))
    """
    wide = min(-(-3 * steps // 10), (steps - 1) // 2)
    return wide, wide, steps - 2 * wide


def _climb(
    state: AttackState,
    kind: "type[DenseClimbers | SparseClimbers]",
    at: Tensor,
    start: Tensor,
    goal: Goal,
    eps: float,
    schedule: Schedule,
    checkpoints: Mapping[int, int],
) -> "DenseClimbers | SparseClimbers":
    """The climbers that are still robust after the steps in a ball of radius `eps`, which may be larger than allowed.

    Only points inside the threat count as successes.
    """
    ball, counts, eot_iter = Ball(state.norm, eps, schedule.rho), eps <= state.eps, schedule.eot_iter
    slope = state.gradient(start, at, goal, eot_iter=eot_iter)
    climbers = kind.at_start(ball, at, state.x[at], start, slope)
    if counts:
        climbers = climbers.only(state.record(start, at, slope.logits))
    for step in range(1, schedule.steps + 1):
        if len(climbers.at) == 0:
            break
        climbers.move(step)
        if step < schedule.steps:
            slope = state.gradient(climbers.point, climbers.at, goal, eot_iter=eot_iter)
        else:  # nobody will use the gradient at the last point
            logits = state.logits(climbers.point, climbers.at, eot_iter=eot_iter)
            slope = Slope(climbers.gradient, goal(logits, climbers.at), logits)
        climbers.see(slope)
        if counts:
            climbers = climbers.only(state.record(climbers.point, climbers.at, slope.logits))
        if step in checkpoints:
            climbers.judge(checkpoints[step])
    return climbers


class Ball(NamedTuple):
    """Where the climbers may go, and the share of rising steps below which they halve theirs."""

    norm: Norm
    eps: float
    rho: float


@dataclass
class _Climbers:
    """What APGD remembers of each image; every field but the ball has one row per image."""

    ball: Ball
    at: Tensor
    x: Tensor
    point: Tensor
    gradient: Tensor
    best_point: Tensor
    best_gradient: Tensor
    best_value: Tensor
    step_size: Tensor

    def only(self, rows: Tensor) -> Self:
        """The images where `rows` (M,) is true."""
        if rows.all():
            return self
        return type(self)(self.ball, *(getattr(self, field.name)[rows] for field in fields(self)[1:]))

    def see(self, slope: Slope) -> None:
        """Take in the slope at the new points."""
        self.gradient = slope.gradient
        better = slope.value > self.best_value
        self.best_point = _choose(better, self.point, self.best_point)
        self.best_gradient = _choose(better, slope.gradient, self.best_gradient)
        self.best_value = torch.where(better, slope.value, self.best_value)

    def back_to_best(self, rows: Tensor) -> None:
        """Go back to the best point where `rows` (M,) is true."""
        self.point = _choose(rows, self.best_point, self.point)
        self.gradient = _choose(rows, self.best_gradient, self.gradient)


@dataclass
class DenseClimbers(_Climbers):
    """They climb with momentum, and halve their steps."""

    last_point: Tensor
    value: Tensor
    judged_value: Tensor
    rises: Tensor
    halved: Tensor

    @classmethod
    def at_start(cls, ball: Ball, at: Tensor, x: Tensor, start: Tensor, slope: Slope) -> Self:
        """All images at their start, with steps of twice the radius."""
        gradient, value = slope.gradient, slope.value
        sizes = torch.full((len(x), 1, 1, 1), 2.0 * ball.eps, dtype=x.dtype, device=x.device)
        # Halved counts as true before the first checkpoint, so that a best value at the start does not halve there.
        rises, halved = torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool)
        return cls(ball, at, x, start, gradient, start, gradient, value, sizes, start, value, value, rises, halved)

    def move(self, step: int) -> None:
        """A projected step, mixed with the last move; projected again."""
        momentum = MOMENTUM if step > 1 else 1.0
        norm, eps, _ = self.ball
        stepped = norm.step(self.point, self.gradient, self.step_size, self.x, eps)
        mixed = self.point + momentum * (stepped - self.point) + (1 - momentum) * (self.point - self.last_point)
        self.last_point, self.point = self.point, norm.project(mixed, self.x, eps)

    def see(self, slope: Slope) -> None:
        """Take in the slope at the new points, and whether it rose."""
        self.rises = self.rises + (slope.value > self.value)
        self.value = slope.value
        super().see(slope)

    def judge(self, period: int) -> None:
        """Halve the step, and go back to the best point, where the climb wavers or has stopped.

        `value` stays that of the point left behind: the next step rises if it beats that one, as in the reference.
        """
        wavers = self.rises <= self.ball.rho * period
        stopped = ~self.halved & (self.best_value <= self.judged_value)
        self.halved = wavers | stopped
        self.judged_value = self.best_value
        self.rises = torch.zeros_like(self.rises)
        self.step_size = torch.where(self.halved[:, None, None, None], self.step_size / 2, self.step_size)
        self.back_to_best(self.halved)


@dataclass
class SparseClimbers(_Climbers):
    """They change a few entries at a time, and start anew where their best point got sparser."""

    changed: Tensor

    @classmethod
    def at_start(cls, ball: Ball, at: Tensor, x: Tensor, start: Tensor, slope: Slope) -> Self:
        """All images at their start, with steps as long as the radius."""
        gradient, value = slope.gradient, slope.value
        sizes = torch.full((len(x),), ball.eps, dtype=x.dtype, device=x.device)
        return cls(ball, at, x, start, gradient, start, gradient, value, sizes, _entries(start - x))

    def move(self, step: int) -> None:
        """A step of l1 length `step_size`, spread evenly over the entries with the largest gradients; projected."""
        size = self.gradient.flatten(1).abs()
        count = (self.changed / SPARSER).long().clamp(1, size.shape[1])
        least = size.sort(dim=1, descending=True).values.gather(1, count[:, None] - 1)
        sign = self.gradient.flatten(1).sign() * (size >= least)
        change = sign * (self.step_size[:, None] / sign.abs().sum(dim=1, keepdim=True).clamp_min(1.0))
        self.point = self.ball.norm.project(self.point + change.reshape(self.x.shape), self.x, self.ball.eps)

    def judge(self, period: int) -> None:
        """Where the best point got sparser by 5 %, start from it with full steps; elsewhere shorten the step."""
        now, radius = _entries(self.best_point - self.x), self.ball.eps
        sparser = now < 0.95 * self.changed
        self.step_size = torch.where(sparser, radius, (self.step_size / 1.5).clamp_min(radius / 10))
        self.changed = now
        self.back_to_best(sparser)


def _entries(change: Tensor) -> Tensor:
    """How many entries (N,) of each image are changed."""
    return (change != 0).flatten(1).sum(dim=1)


def _choose(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows[:, None, None, None], yes, no)


def _check_rho(rho: float) -> None:
    if not 0 < rho < 1:
        raise InputError(f"rho must lie between 0 and 1, got {rho}")
