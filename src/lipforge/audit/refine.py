"""Ascent from given points: the other side's adversarial images."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lipforge.attacks import Attack, Trial
from lipforge.attacks.losses import find_loss
from lipforge.attacks.norms import project
from lipforge.attacks.pgd import ascend
from lipforge.attacks.trial import away


@dataclass(frozen=True, eq=False)
class Refine(Attack):
    """`steps` projected steps on the margin, of `step` times eps, from `start` (N, C, H, W), which is tried as it is.

    With 0 steps it is a transfer attack: the points are only judged.
    """

    name: ClassVar[str] = "refine"
    start: Tensor
    steps: int = 20
    step: float = 0.1

    def attack(self, trial: Trial) -> None:
        """Climb from the points."""
        at = trial.standing()
        if len(at) == 0:
            return
        start = project(self.start[at], trial.x[at], trial.threat)
        goal = away(trial, find_loss("margin"))
        ascend(trial, at, start, goal, steps=self.steps, step_size=self.step * trial.threat.eps)
