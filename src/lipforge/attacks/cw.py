"""The attack of Carlini and Wagner (2017), on the margin between two logits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack
from lipforge.attacks.losses import margin
from lipforge.attacks.norms import distance, refuse_l1
from lipforge.attacks.pgd import PGD
from lipforge.attacks.trial import Trial, away
from lipforge.errors import InputError


@dataclass(frozen=True)
class CW(Attack):
    """For linf, projected ascent on the margin, as tables of robust accuracy use it; for l2, the Lagrangian form.

    linf: `steps` steps of `step` times eps from each of `restarts` random starts; the same as PGD on the margin.

    l2: minimise |x' - x|^2 + c max(z_y - max_{i != y} z_i, 0) by `steps` steps of Adam with the learning rate `rate`,
    over w with x' = (1 + tanh w) / 2, which stays in [0, 1]. The weight c starts at `constant` and is searched for
    `searches` times by bisection, for each image by itself. An image leaves when a point inside eps fools the model; it
    costs steps + 1 forwards and steps backwards per search until then, and one forward for the clean image.
    """

    name: ClassVar[str] = "cw"
    steps: int = 50
    restarts: int = 1
    step: float = 0.25
    searches: int = 6
    constant: float = 1.0
    rate: float = 0.01

    def __post_init__(self) -> None:
        self._ascent()
        if self.searches < 1:
            raise InputError(f"searches must be at least 1, got {self.searches}")
        if not (self.constant > 0 and self.rate > 0):
            raise InputError(f"constant and rate must be above 0, got {self.constant} and {self.rate}")

    def attack(self, trial: Trial) -> None:
        """Ascend on the margin, or search for the weight c."""
        refuse_l1(trial.threat)
        if trial.threat.norm == "linf":
            self._ascent().attack(trial)
            return
        weight = torch.full_like(trial.closest, self.constant)
        low, high = torch.zeros_like(weight), torch.full_like(weight, torch.inf)
        for _ in range(self.searches):
            at = trial.standing()
            crossed = self._descend(trial, at, weight[at])
            high[at] = torch.where(crossed, weight[at], high[at])
            low[at] = torch.where(crossed, low[at], weight[at])
            weight = torch.where(high.isinf(), 10 * weight, (low + high) / 2)

    def _descend(self, trial: Trial, at: Tensor, weight: Tensor) -> Tensor:
        """Adam from the clean image; which images (M,) crossed the boundary anywhere, inside eps or not."""
        rows, crossed = torch.arange(len(at), device=at.device), torch.zeros_like(at, dtype=torch.bool)
        # Just inside the open range of tanh, where its inverse is finite and its slope is not 0.
        w = torch.atanh((2 * trial.x[at] - 1).clamp(-1 + 1e-5, 1 - 1e-5))
        mean, square = torch.zeros_like(w), torch.zeros_like(w)
        for number in range(1, self.steps + 1):
            if len(rows) == 0:
                return crossed
            x, x_adv = trial.x[at[rows]], (1 + torch.tanh(w)) / 2
            slope = trial.gradient(x_adv, at[rows], away(trial, margin))
            crossed[rows] |= slope.value > 0
            pull = weight[rows, None, None, None] * slope.gradient * (slope.value < 0)[:, None, None, None]
            gradient = (2 * (x_adv - x) - pull) * 2 * x_adv * (1 - x_adv)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient.square()
            change = mean / (1 - 0.9**number) / ((square / (1 - 0.999**number)).sqrt() + 1e-8)
            stays = _look(trial, x_adv, at[rows], slope.logits)
            w, mean, square, rows = (w - self.rate * change)[stays], mean[stays], square[stays], rows[stays]
        if len(rows):
            x_adv = (1 + torch.tanh(w)) / 2
            logits = trial.logits(x_adv, at[rows])
            crossed[rows] |= logits.argmax(dim=1) != trial.y[at[rows]]
            _look(trial, x_adv, at[rows], logits)
        return crossed

    def _ascent(self) -> PGD:
        return PGD(steps=self.steps, restarts=self.restarts, step=self.step, loss="margin")


def _look(trial: Trial, x_adv: Tensor, at: Tensor, logits: Tensor) -> Tensor:
    """Record the points inside eps; which images (M,) go on."""
    inside = distance(x_adv - trial.x[at], trial.threat) <= trial.threat.eps
    trial.record(x_adv[inside], at[inside], logits[inside])
    return ~trial.fooled[at]
