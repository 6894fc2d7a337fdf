"""FAB, the fast adaptive boundary attack: jumps to the linearised boundary, biased toward the image.

Croce and Hein 2020. Their attack minimises the distance and goes on after it is inside eps; here an image leaves as
soon as it is fooled inside eps. Theirs asks the model twice per step, at the new point and, where that one is fooled,
at the point pulled back from it; here the slope at the new point serves for both.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack
from lipforge.attacks.hyperplane import to_hyperplane
from lipforge.attacks.losses import targeted_margin
from lipforge.attacks.norms import distance, dual_size, refuse_l1
from lipforge.attacks.targets import differences, targets_by_rank
from lipforge.attacks.trial import Trial, toward
from lipforge.errors import InputError
from lipforge.types import Threat


@dataclass(frozen=True)
class FAB(Attack):
    """FAB toward `targets` classes by clean-logit rank, or with targets = 0 toward whichever boundary is nearest.

    `alpha` bounds the pull toward the image, `eta` overshoots the boundary, `beta` pulls a fooled point back. The first
    restart starts at the image, the others half way to the ball's edge. An image that stands costs steps + 1 forwards
    and steps backwards per target and restart; with targets = 0 a step costs one backward per class but the true one.
    """

    name: ClassVar[str] = "fab"
    steps: int = 100
    targets: int = 9
    restarts: int = 1
    alpha: float = 0.1
    eta: float = 1.05
    beta: float = 0.9

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1 or self.targets < 0:
            raise InputError(
                "steps and restarts must be at least 1 and targets at least 0, "
                f"got {self.steps}, {self.restarts} and {self.targets}"
            )
        if not (0 <= self.alpha < 1 and self.eta >= 1 and 0 < self.beta < 1):
            raise InputError(
                f"alpha must lie in [0, 1), eta be at least 1 and beta lie in (0, 1), "
                f"got {self.alpha}, {self.eta} and {self.beta}"
            )

    def attack(self, trial: Trial) -> None:
        """Walk toward each target, or to the nearest boundary, until nothing stands."""
        refuse_l1(trial.threat)
        targets: list[Tensor | None] = [*targets_by_rank(trial, self.targets)] if self.targets else [None]
        for number, target in enumerate(targets):
            for restart in range(self.restarts):
                self._walk(trial, target, restart, number * self.restarts + restart)

    def _walk(self, trial: Trial, target: Tensor | None, restart: int, counter: int) -> None:
        at, threat = trial.standing(), trial.threat
        x = point = trial.x[at]
        if restart > 0 and len(at):
            point = x + (trial.edge(at, threat, stream="fab-start", counter=counter) - x) / 2
        for _ in range(self.steps):
            if len(at) == 0:
                return
            logits, gap, normal = _boundary(trial, point, at, target)
            inside = distance(point - x, threat) <= threat.eps
            crossed = logits.argmax(dim=1) != trial.y[at]
            trial.record(point[inside], at[inside], logits[inside])
            # The hyperplane stays the one seen from the point itself; only where the jump starts is pulled back.
            pulled = torch.where(crossed[:, None, None, None], x + self.beta * (point - x), point)
            gap = gap + (normal * (pulled - point)).flatten(1).sum(dim=1)
            rows = ~trial.fooled[at]
            at, x, pulled, gap, normal = at[rows], x[rows], pulled[rows], gap[rows], normal[rows]
            point = self._jump(pulled, x, gap, normal, threat)
        rows = distance(point - x, threat) <= threat.eps
        if rows.any():
            trial.record(point[rows], at[rows], trial.logits(point[rows], at[rows]))

    def _jump(self, point: Tensor, x: Tensor, gap: Tensor, normal: Tensor, threat: Threat) -> Tensor:
        """From `point` past the hyperplane, toward where the hyperplane is nearest to `x`."""
        at_x = gap + (normal * (x - point)).flatten(1).sum(dim=1)
        from_point = to_hyperplane(point.flatten(1), normal.flatten(1), gap, threat).reshape(x.shape)
        from_x = to_hyperplane(x.flatten(1), normal.flatten(1), at_x, threat).reshape(x.shape)
        near, far = (distance(change, threat).clamp_min(1e-8) for change in (from_point, from_x))
        pull = (near / (near + far)).clamp_max(self.alpha)[:, None, None, None]
        return ((1 - pull) * (point + self.eta * from_point) + pull * (x + self.eta * from_x)).clamp(0.0, 1.0)


def _boundary(trial: Trial, point: Tensor, at: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the gap z_t - z_y (M,) to the target or to the class that looks nearest, and the gap's gradient."""
    if target is not None:
        slope = trial.gradient(point, at, toward(trial, targeted_margin, target))
        return slope.logits, slope.value, slope.gradient
    others = torch.stack(targets_by_rank(trial, trial.clean_logits().shape[1]), dim=1)
    logits, found = differences(trial, point, at, others[at])
    gap = torch.zeros(len(at), dtype=point.dtype, device=point.device)
    normal, shortest = torch.zeros_like(point), torch.full_like(gap, torch.inf)
    for this, gradient in found:
        length = this.abs() / dual_size(gradient, trial.threat).clamp_min(1e-12)
        nearer = length < shortest
        shortest, gap = torch.where(nearer, length, shortest), torch.where(nearer, this, gap)
        normal = torch.where(nearer[:, None, None, None], gradient, normal)
    return logits, gap, normal
