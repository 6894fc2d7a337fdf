"""Auto-PGD: ascent with momentum that halves its step where it stops rising (Croce and Hein 2020)."""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.apgd_l1 import climb_l1
from lipforge.attacks.base import Attack
from lipforge.attacks.losses import find_loss, find_targeted_loss
from lipforge.attacks.norms import project, steepest_step
from lipforge.attacks.targets import targets_by_distance, targets_by_rank
from lipforge.attacks.trial import Goal, Slope, Trial, away, toward
from lipforge.errors import InputError
from lipforge.types import Threat

MOMENTUM = 0.75


@dataclass(frozen=True)
class APGD(Attack):
    """APGD away from the true class, from `restarts` random points on the ball's edge.

    `rho` is the share of rising steps below which the step is halved. `repeats` above 1 averages every gradient over
    that many passes, for models whose outputs are random (EOT). An image that stands costs steps + 1 forwards and
    steps backwards per restart (times `repeats`), and one forward for the clean image.
    """

    name: ClassVar[str] = "apgd"
    steps: int = 100
    restarts: int = 1
    loss: str = "ce"
    rho: float = 0.75
    repeats: int = 1

    def __post_init__(self) -> None:
        find_loss(self.loss)
        _check(self.steps, self.restarts, self.rho)
        if self.repeats < 1:
            raise InputError(f"repeats must be at least 1, got {self.repeats}")

    def attack(self, trial: Trial) -> None:
        """Climb from each start until nothing stands."""
        goal, schedule = away(trial, find_loss(self.loss)), Schedule(self.steps, self.rho, self.repeats)
        for restart in range(self.restarts):
            climb(trial, goal, schedule, stream=f"apgd-{self.loss}", counter=restart)


@dataclass(frozen=True)
class TargetedAPGD(Attack):
    """APGD toward the classes of clean-logit rank 2, 3, ...: `targets` of them, or as many as there are.

    With order "near" the classes are those, of rank 2 to 10, whose boundaries look nearest (MALT, Melamed et al. 2024).
    The loss "dlr" is the targeted DLR, for four classes or more; "margin" is the plain difference of two logits. An
    image that stands costs (steps + 1) forwards and steps backwards per target and restart, and one clean forward.
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
        _check(self.steps, self.restarts, self.rho)
        if self.targets < 1:
            raise InputError(f"targets must be at least 1, got {self.targets}")
        if self.order not in ("rank", "near"):
            raise InputError(f"order must be rank or near, got {self.order!r}")

    def attack(self, trial: Trial) -> None:
        """Climb toward each target until nothing stands."""
        if len(trial.standing()) == 0:
            return
        schedule, ordered = (
            Schedule(self.steps, self.rho),
            targets_by_rank if self.order == "rank" else targets_by_distance,
        )
        for number, target in enumerate(ordered(trial, self.targets)):
            goal = toward(trial, find_targeted_loss(self.loss), target)
            for restart in range(self.restarts):
                climb(trial, goal, schedule, stream=f"apgd-t-{self.loss}", counter=number * self.restarts + restart)


@dataclass(frozen=True)
class Schedule:
    """How long APGD climbs, when it halves its step, and how many passes make a gradient."""

    steps: int
    rho: float
    repeats: int = 1

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


def climb(trial: Trial, goal: Goal, schedule: Schedule, *, stream: str, counter: int | Tensor) -> None:
    """One run of APGD on the images that stand; `counter` numbers the start, for all or for each (N,)."""
    if trial.threat.norm == "l1":
        climb_l1(trial, goal, schedule.steps, repeats=schedule.repeats, stream=stream, counter=counter)
        return
    at, threat = trial.standing(), trial.threat
    if len(at) == 0:
        return
    x, checkpoints = trial.x[at], schedule.checkpoints()
    start = trial.edge(at, threat, stream=stream, counter=counter)
    slope = trial.gradient(start, at, goal, repeats=schedule.repeats)
    climbers = _Climbers.at_start(at, x, start, slope, 2.0 * threat.eps).only(trial.record(start, at, slope.logits))
    for step in range(1, schedule.steps + 1):
        if len(climbers.at) == 0:
            return
        climbers.move(threat, MOMENTUM if step > 1 else 1.0)
        if step < schedule.steps:
            slope = trial.gradient(climbers.point, climbers.at, goal, repeats=schedule.repeats)
        else:  # nobody will use the gradient at the last point
            logits = trial.logits(climbers.point, climbers.at, repeats=schedule.repeats)
            slope = Slope(climbers.gradient, goal(logits, climbers.at), logits)
        standing = trial.record(climbers.point, climbers.at, slope.logits)
        climbers.see(slope)
        climbers = climbers.only(standing)
        if step in checkpoints:
            climbers.judge(checkpoints[step], schedule.rho)


@dataclass
class _Climbers:
    """What APGD remembers of each image; every field has one row per image."""

    at: Tensor
    x: Tensor
    point: Tensor
    last_point: Tensor
    gradient: Tensor
    value: Tensor
    best_point: Tensor
    best_gradient: Tensor
    best_value: Tensor
    judged_value: Tensor
    step_size: Tensor
    rises: Tensor
    halved: Tensor

    @classmethod
    def at_start(cls, at: Tensor, x: Tensor, start: Tensor, slope: Slope, step_size: float) -> "_Climbers":
        value = slope.value
        sizes = torch.full((len(x), 1, 1, 1), step_size, dtype=x.dtype, device=x.device)
        best = (start.clone(), slope.gradient.clone(), value.clone(), value.clone())
        # Halved counts as true before the first checkpoint, so that a best value at the start does not halve there.
        rises, halved = torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool)
        return cls(at, x, start, start, slope.gradient, value, *best, sizes, rises, halved)

    def only(self, rows: Tensor) -> "_Climbers":
        """The images where `rows` (M,) is true."""
        return self if rows.all() else _Climbers(*(getattr(self, field.name)[rows] for field in fields(self)))

    def move(self, threat: Threat, momentum: float) -> None:
        """A projected step, mixed with the last move; projected again."""
        stepped = project(self.point + steepest_step(self.gradient, threat, self.step_size), self.x, threat)
        mixed = self.point + momentum * (stepped - self.point) + (1 - momentum) * (self.point - self.last_point)
        self.last_point, self.point = self.point, project(mixed, self.x, threat)

    def see(self, slope: Slope) -> None:
        """Take in the slope at the new points."""
        self.rises = self.rises + (slope.value > self.value)
        self.gradient, self.value = slope.gradient, slope.value
        better = slope.value > self.best_value
        self.best_point = _choose(better, self.point, self.best_point)
        self.best_gradient = _choose(better, self.gradient, self.best_gradient)
        self.best_value = torch.where(better, self.value, self.best_value)

    def judge(self, period: int, rho: float) -> None:
        """Halve the step, and go back to the best point, where the climb wavers or has stopped.

        `value` stays that of the point left behind: the next step rises if it beats that one, as in the reference.
        """
        wavers = self.rises <= rho * period
        stopped = ~self.halved & (self.best_value <= self.judged_value)
        self.halved = wavers | stopped
        self.judged_value = self.best_value
        self.rises = torch.zeros_like(self.rises)
        self.step_size = torch.where(self.halved[:, None, None, None], self.step_size / 2, self.step_size)
        self.point = _choose(self.halved, self.best_point, self.point)
        self.gradient = _choose(self.halved, self.best_gradient, self.gradient)


def _choose(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows[:, None, None, None], yes, no)


def _check(steps: int, restarts: int, rho: float) -> None:
    if steps < 1 or restarts < 1:
        raise InputError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    if not 0 < rho < 1:
        raise InputError(f"rho must lie between 0 and 1, got {rho}")
