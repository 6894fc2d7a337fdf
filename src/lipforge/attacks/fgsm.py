"""The fast gradient sign method: one step along the gradient."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.attacks.base import Attack
from lipforge.attacks.losses import find_loss
from lipforge.attacks.norms import project, random_start, refuse_l1, steepest_step
from lipforge.attacks.trial import Trial, away
from lipforge.errors import InputError


@dataclass(frozen=True)
class FGSM(Attack):
    """One steepest step of `step` times eps (Goodfellow et al. 2015); optimal on a linear model with step 1.

    With `random` it starts at a random point of the ball (FGSM-RS, Wong et al. 2020, who take step 1.25). It costs one
    forward and one backward per image, a forward to see what the step did, and one for the clean image.
    """

    name: ClassVar[str] = "fgsm"
    step: float = 1.0
    random: bool = False
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
        if not self.step > 0:
            raise InputError(f"step must be above 0 (a multiple of eps), got {self.step}")

    def attack(self, trial: Trial) -> None:
        """Take the step, also where the start already fools the model: the one-step attack looks only at its end."""
        at, threat = trial.standing(), trial.threat
        refuse_l1(threat)
        if len(at) == 0:
            return
        x = start = trial.x[at]
        if self.random:
            start = random_start(x, threat, seed=trial.seed, sample_ids=trial.ids[at], stream="fgsm-start")
        gradient = trial.gradient(start, at, away(trial, find_loss(self.loss))).gradient
        x_adv = project(start + steepest_step(gradient, threat, self.step * threat.eps), x, threat)
        trial.record(x_adv, at, trial.logits(x_adv, at))
