"""Auto-PGD: ascent with momentum that halves its step where it stops rising (Croce and Hein 2020).

In a sparse norm (l1) it takes sparse steps, in a ball whose radius shrinks to eps (Croce and Hein 2021).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import find_loss, find_targeted_loss, targets_by_distance, targets_by_rank
from lipforge.attacks.norms import Norm, sparse_step
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
    that many passes, for models whose outputs are random (EOT). With `noise` each of these passes is at a random point
    within `noise` times eps, which gets past gradients that change from point to point. A robust image costs steps + 1
    forwards and steps backwards per restart (times `eot_iter`; with noise a forward more per step), and one forward for
    the clean image.
    """

    name: ClassVar[str] = "apgd"
    steps: int = 100
    restarts: int = 1
    loss: str = "ce"
    rho: float = 0.75
    eot_iter: int = 1
    noise: float = 0.0

    def __post_init__(self) -> None:
        find_loss(self.loss)
        check_least(self, 1, "steps", "restarts", "eot_iter")
        check_least(self, 0, "noise")
        _check_rho(self.rho)

    def attack(self, state: AttackState) -> None:
        goal, schedule = away(state, find_loss(self.loss)), Schedule(self.steps, self.rho, self.eot_iter, self.noise)
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
            hint = "; near is called nearest now" if self.order == "near" else ""
            raise InputError(f"order must be rank or nearest, got {self.order!r}{hint}")

    def attack(self, state: AttackState) -> None:
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
    """How long APGD climbs, when it halves its step, and how many passes, with how much noise, make a gradient."""

    steps: int
    rho: float
    eot_iter: int = 1
    noise: float = 0.0

    def checkpoints(self, *, sparse: bool = False) -> dict[int, int]:
        """The steps after which progress is judged, each with the number of steps since the last such judgement.

        >>> list(Schedule(100, rho=0.75).checkpoints())
        [22, 41, 57, 70, 80, 87, 93, 99]
        """
        if sparse:
            period = max(self.steps // 25, 1)
            return dict.fromkeys(range(period, self.steps + 1, period), period)
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
        _climb(state, at, start, goal, state.eps, schedule)
        return
    point = state.edge_start(at, RADII[0] * state.eps, stream=stream, counter=counter)
    for radius, steps in zip(RADII, phases(schedule.steps), strict=True):
        if steps and len(at):
            start = state.norm.project(point, state.x[at], radius * state.eps)
            climbers = _climb(state, at, start, goal, radius * state.eps, replace(schedule, steps=steps))
            at, point = climbers.at, climbers.best_point


def phases(steps: int) -> tuple[int, int, int]:
    """How many of the sparse steps are taken in each ball; at least one in the last, where alone points count.

    >>> phases(100), phases(2)
    ((30, 30, 40), (0, 0, 2))
    """
    wide = min(-(-3 * steps // 10), (steps - 1) // 2)
    return wide, wide, steps - 2 * wide


def _climb(state: AttackState, at: Tensor, start: Tensor, goal: Goal, eps: float, schedule: Schedule) -> "Climbers":
    """The climbers that are still robust after the steps in a ball of radius `eps`, which may be larger than allowed.

    Only points inside the threat count as successes.
    """
    eot_iter, noise = schedule.eot_iter, schedule.noise
    checkpoints = schedule.checkpoints(sparse=state.norm.sparse)
    slope = state.gradient(start, at, goal, eot_iter=eot_iter, noise=noise)
    climbers = Climbers(state.norm, eps, schedule.rho, at, state.x[at], start, slope)
    for step in range(schedule.steps + 1):
        if step > 0:
            climbers.move(step)
            if step < schedule.steps:
                slope = state.gradient(climbers.point, climbers.at, goal, eot_iter=eot_iter, noise=noise)
            else:  # nobody will use the gradient at the last point
                logits = state.logits(climbers.point, climbers.at, eot_iter=eot_iter)
                slope = Slope(climbers.gradient, goal(logits, climbers.at), logits)
            climbers.see(slope)
        if eps <= state.eps:
            climbers.keep(state.record(climbers.point, climbers.at, slope.logits))
        if step in checkpoints:
            climbers.judge(checkpoints[step])
        if len(climbers.at) == 0:
            break
    return climbers


class Climbers:
    """What APGD remembers of each image in a ball of radius `eps`; every tensor has one row per image.

    They climb with momentum and halve their steps; in a sparse norm they change a few entries at a time, and start anew
    where their best point got sparser.
    """

    def __init__(self, norm: Norm, eps: float, rho: float, at: Tensor, x: Tensor, start: Tensor, slope: Slope) -> None:
        self.norm, self.eps, self.rho = norm, eps, rho
        self.at, self.x = at, x
        self.point = self.last_point = self.best_point = start
        self.gradient = self.best_gradient = slope.gradient
        self.value = self.best_value = self.judged_value = slope.value
        first = eps if norm.sparse else 2.0 * eps
        self.step_size = torch.full((len(x), 1, 1, 1), first, dtype=x.dtype, device=x.device)
        self.rises = torch.zeros_like(at)
        # Halved counts as true before the first checkpoint, so that a best value at the start does not halve there.
        self.halved = torch.ones_like(at, dtype=torch.bool)
        self.changed = _entries(start - x)

    def keep(self, rows: Tensor) -> None:
        """Forget the images where `rows` (M,) is false."""
        if not rows.all():
            vars(self).update({name: part[rows] for name, part in vars(self).items() if isinstance(part, Tensor)})

    def see(self, slope: Slope) -> None:
        """Take in the slope at the new points, and whether it rose."""
        self.rises = self.rises + (slope.value > self.value)
        self.value, self.gradient = slope.value, slope.gradient
        better = slope.value > self.best_value
        self.best_point = _choose(better, self.point, self.best_point)
        self.best_gradient = _choose(better, slope.gradient, self.best_gradient)
        self.best_value = torch.where(better, slope.value, self.best_value)

    def move(self, step: int) -> None:
        """A projected step, mixed with the last move and projected again; or one sparse step, projected."""
        if self.norm.sparse:
            count = (self.changed / SPARSER).long().clamp(1, self.x[0].numel())
            change = sparse_step(self.gradient, self.step_size, count)
            self.point = self.norm.project(self.point + change, self.x, self.eps)
            return
        momentum = MOMENTUM if step > 1 else 1.0
        stepped = self.norm.step(self.point, self.gradient, self.step_size, self.x, self.eps)
        mixed = self.point + momentum * (stepped - self.point) + (1 - momentum) * (self.point - self.last_point)
        self.last_point, self.point = self.point, self.norm.project(mixed, self.x, self.eps)

    def judge(self, period: int) -> None:
        """Shorten the step and go back to the best point, each where the last `period` steps call for it.

        A climb that wavers or has stopped halves its step and goes back. In a sparse norm, one whose best point got
        sparser by 5 % goes back with full steps, and the others shorten theirs. `value` stays that of the point left
        behind: the next step rises if it beats that one, as in the reference.
        """
        if self.norm.sparse:
            changed = _entries(self.best_point - self.x)
            back, self.changed = changed < 0.95 * self.changed, changed
            shorter = (self.step_size / 1.5).clamp_min(self.eps / 10)
            self.step_size = torch.where(back[:, None, None, None], self.eps, shorter)
        else:
            stopped = ~self.halved & (self.best_value <= self.judged_value)
            back = self.halved = (self.rises <= self.rho * period) | stopped
            self.judged_value, self.rises = self.best_value, torch.zeros_like(self.rises)
            self.step_size = _choose(back, self.step_size / 2, self.step_size)
        self.point = _choose(back, self.best_point, self.point)
        self.gradient = _choose(back, self.best_gradient, self.gradient)


def _entries(change: Tensor) -> Tensor:
    """How many entries (N,) of each image are changed."""
    return (change != 0).flatten(1).sum(dim=1)


def _choose(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows[:, None, None, None], yes, no)


def _check_rho(rho: float) -> None:
    if not 0 < rho < 1:
        raise InputError(f"rho must lie between 0 and 1, got {rho}")
