"""Projected gradient ascent with restarts; images leave the batch the moment they are fooled."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lipforge.attacks.base import Attack
from lipforge.attacks.losses import find_loss
from lipforge.attacks.norms import project, random_start, refuse_l1, steepest_step
from lipforge.attacks.trial import Goal, Trial, away
from lipforge.errors import InputError


@dataclass(frozen=True)
class PGD(Attack):
    """Steepest steps of `step` times eps, projected after each (Madry et al. 2018).

    An image that is fooled is returned as it was at that moment and costs nothing more; the others are returned as
    the last restart left them. Each restart starts at another random point, or all at `x` without `random`. An image
    that stands costs steps + 1 forwards and steps backwards per restart, and one forward for the clean image.
    """

    name: ClassVar[str] = "pgd"
    steps: int = 20
    restarts: int = 1
    step: float = 0.25
    random: bool = True
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
        if self.steps < 1 or self.restarts < 1:
            raise InputError(f"steps and restarts must be at least 1, got {self.steps} and {self.restarts}")
        if self.restarts > 1 and not self.random:
            raise InputError("restarts without a random start would all be the same; set random=true or restarts=1")
        if not self.step > 0:
            raise InputError(f"step must be above 0 (a multiple of eps), got {self.step}")

    def attack(self, trial: Trial) -> None:
        """Ascend from each start until nothing stands."""
        refuse_l1(trial.threat)
        goal = away(trial, find_loss(self.loss))
        for restart in range(self.restarts):
            at = trial.standing()
            if len(at) == 0:
                return
            start = trial.x[at]
            if self.random:
                ids = trial.ids[at]
                start = random_start(
                    start, trial.threat, seed=trial.seed, sample_ids=ids, stream="pgd-start", counter=restart
                )
            ascend(trial, at, start, goal, steps=self.steps, step_size=self.step * trial.threat.eps)


def ascend(trial: Trial, at: Tensor, start: Tensor, goal: Goal, *, steps: int, step_size: float) -> None:
    """Take `steps` projected steps from `start` with the images at these positions; a fooled image stops."""
    x_adv = start
    for _ in range(steps):
        if len(at) == 0:
            return
        slope = trial.gradient(x_adv, at, goal)
        standing = trial.record(x_adv, at, slope.logits)
        at, x_adv, gradient = at[standing], x_adv[standing], slope.gradient[standing]
        x_adv = project(x_adv + steepest_step(gradient, trial.threat, step_size), trial.x[at], trial.threat)
    if len(at):
        trial.record(x_adv, at, trial.logits(x_adv, at))
