"""FAB, the fast adaptive boundary attack: jumps to the linearised boundary, biased toward the image.

Croce and Hein 2020. Their attack minimises the distance and continues after it is inside eps; here an image leaves as
soon as it is broken inside eps. Theirs asks the model twice per step, at the new point and, where that one is
misclassified, at the point pulled back from it; here the slope at the new point serves for both.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import differences, targeted_margin_loss, targets_by_rank
from lipforge.attacks.norms import Norm
from lipforge.attacks.state import AttackState, toward
from lipforge.errors import InputError


@dataclass(frozen=True)
class FAB(Attack):
    """FAB toward `targets` classes by clean-logit rank, or with targets = 0 toward whichever boundary is nearest.

    `alpha_max` bounds the pull toward the image, `eta` overshoots the boundary, `beta` pulls a misclassified point
    back. The first restart starts at the image, the others half way to the ball's edge. A robust image costs steps + 1
    forwards and steps backwards per target and restart; with targets = 0 a step costs one backward per other class.
    """

    name: ClassVar[str] = "fab"
    steps: int = 100
    targets: int = 9
    restarts: int = 1
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_least(self, 1, "steps", "restarts")
        check_least(self, 0, "targets")
        if not (0 <= self.alpha_max < 1 and self.eta >= 1 and 0 < self.beta < 1):
            raise InputError(
                f"alpha_max must lie in [0, 1), eta be at least 1 and beta lie in (0, 1), "
                f"got {self.alpha_max}, {self.eta} and {self.beta}"
            )

    def attack(self, state: AttackState) -> None:
        targets: list[Tensor | None] = [*targets_by_rank(state, self.targets)] if self.targets else [None]
        for number, target in enumerate(targets):
            for restart in range(self.restarts):
                self._walk(state, target, restart, number * self.restarts + restart)

    def _walk(self, state: AttackState, target: Tensor | None, restart: int, counter: int) -> None:
        at, norm, eps = state.robust(), state.norm, state.eps
        x = point = state.x[at]
        if restart > 0 and len(at):
            point = x + (state.edge_start(at, eps, stream="fab-start", counter=counter) - x) / 2
        for _ in range(self.steps):
            if len(at) == 0:
                return
            logits, loss, normal = _boundary(state, point, at, target)
            inside = norm.distance(point - x) <= eps
            crossed = logits.argmax(dim=1) != state.y[at]
            state.record(point[inside], at[inside], logits[inside])
            # The hyperplane stays the one seen from the point itself; only where the jump starts is pulled back.
            pulled = torch.where(crossed[:, None, None, None], x + self.beta * (point - x), point)
            loss = loss + (normal * (pulled - point)).flatten(1).sum(dim=1)
            rows = ~state.broken[at]
            at, x, pulled, loss, normal = at[rows], x[rows], pulled[rows], loss[rows], normal[rows]
            point = self._jump(pulled, x, loss, normal, norm)
        rows = norm.distance(point - x) <= eps
        if rows.any():
            state.record(point[rows], at[rows], state.logits(point[rows], at[rows]))

    def _jump(self, point: Tensor, x: Tensor, loss: Tensor, normal: Tensor, norm: Norm) -> Tensor:
        """From `point` past the hyperplane, toward where the hyperplane is nearest to `x`."""
        at_x = loss + (normal * (x - point)).flatten(1).sum(dim=1)
        from_point = norm.to_hyperplane(point.flatten(1), normal.flatten(1), loss).reshape(x.shape)
        from_x = norm.to_hyperplane(x.flatten(1), normal.flatten(1), at_x).reshape(x.shape)
        near, far = (norm.distance(change).clamp_min(1e-8) for change in (from_point, from_x))
        pull = (near / (near + far)).clamp_max(self.alpha_max)[:, None, None, None]
        return ((1 - pull) * (point + self.eta * from_point) + pull * (x + self.eta * from_x)).clamp(0.0, 1.0)


def _boundary(state: AttackState, point: Tensor, at: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the loss z_t - z_y (M,) of the target or the class that looks nearest, and its gradient."""
    if target is not None:
        slope = state.gradient(point, at, toward(state, targeted_margin_loss, target))
        return slope.logits, slope.value, slope.gradient
    others = torch.stack(targets_by_rank(state, state.clean_logits().shape[1]), dim=1)
    logits, found = differences(state, point, at, others[at])
    loss = torch.zeros(len(at), dtype=point.dtype, device=point.device)
    normal, shortest = torch.zeros_like(point), torch.full_like(loss, torch.inf)
    for this, gradient in found:
        length = this.abs() / state.norm.dual_size(gradient).clamp_min(1e-12)
        nearer = length < shortest
        shortest, loss = torch.where(nearer, length, shortest), torch.where(nearer, this, loss)
        normal = torch.where(nearer[:, None, None, None], gradient, normal)
    return logits, loss, normal
